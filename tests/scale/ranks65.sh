#!/usr/bin/env bash
# 65 ranks on however few cores: every one hosts a device, and the bits are those of one process.
. "$(dirname "${BASH_SOURCE[0]}")/../e2e/lib.sh"

write_input
sed -i 's/count: 5/count: 40/; s/count: 3/count: 24/' "$scratch/input.yaml"
run=(train "$scratch/input.yaml" --quiet train.steps=2)
expect_code 0 "one process" "$CLEAVE" "${run[@]}" output.dir="$scratch/one"
expect_code 0 "65 ranks" launch 65 "$CLEAVE" "${run[@]}" output.dir="$scratch/many"
[ "$(hash_of "$scratch/many" 2)" = "$(hash_of "$scratch/one" 2)" ] || fail "65 ranks: other bits than one process"
[ "$(grep -c '"pid"' "$scratch/many/ranks.json")" -eq 65 ] || fail "ranks.json does not name 65 ranks"
