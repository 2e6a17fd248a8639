#!/usr/bin/env bash
# An installed Cleave works from wherever its folder is moved to, and its libraries plan from another project.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

expect_code 0 "cmake --install" cmake --install "$BUILD" --prefix "$scratch/first"
mv "$scratch/first" "$scratch/moved"
if grep -rlI "$scratch/first" "$scratch/moved" > "$scratch/out"; then fail "these files know the prefix: $(cat "$scratch/out")"; fi
check_prefix "$scratch/moved"

expect_code 0 "find_package" cmake -S "$TOP/tests/package/consumer" -B "$scratch/consumer" -DCMAKE_PREFIX_PATH="$scratch/moved" \
  -DCMAKE_BUILD_TYPE=Release
expect_code 0 "building the consumer" cmake --build "$scratch/consumer"
expect_code 0 "the consumer" "$scratch/consumer/consumer"
expect_text "the consumer" 'tasklets, .* bound'
