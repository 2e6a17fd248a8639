#!/usr/bin/env bash
# Builds the fuzzers (clang, preset `fuzz`) and runs each from seeds of today's formats (seeds.cpp) and its corpus.
#
#   bash tests/fuzz/run.sh [--seconds N | --brief] [FUZZER ...]     e.g.  bash tests/fuzz/run.sh --seconds 600 message yaml
#
# FUZZER: message, yaml, safetensors, checkpoint; default: all of them. What a fuzzer learns goes to build/fuzz/corpus.
# The corpus in the repository is only read; it has inputs that no seed is, findings above all. A finding stays as
# build/fuzz/FUZZER-crash-... and ends with code 1; put its input into tests/fuzz/corpus/FUZZER as a regression test
# once it is fixed. Code 77: no clang 16 here (skipped).
set -euo pipefail

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
seconds=60
brief=no
[ "${1:-}" != --seconds ] || { seconds=$2; shift 2; }
[ "${1:-}" != --brief ] || { brief=yes; seconds=5; shift; }
fuzzers=("$@")
[ "${#fuzzers[@]}" -gt 0 ] || fuzzers=(message yaml safetensors checkpoint)

compiler=$(command -v clang++-16 || true)
if [ -z "$compiler" ]; then
  echo "skipped: no clang++-16 here (Debian: clang-16 and libclang-rt-16-dev)"
  exit 77
fi
if ! echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' |
  "$compiler" -x c++ -fsanitize=fuzzer,address - -o /dev/null 2>/dev/null; then
  echo "skipped: $compiler has no libFuzzer (Debian: libclang-rt-16-dev)"
  exit 77
fi

cd "$TOP"
cmake --preset fuzz -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_C_COMPILER="${compiler/clang++/clang}" > build-fuzz.log 2>&1 ||
  { cat build-fuzz.log; rm -f build-fuzz.log; exit 1; }
rm -f build-fuzz.log
jobs=$(nproc)
[ "$brief" = no ] || jobs=1  # as a test it has one processor
cmake --build build/fuzz --parallel "$jobs" --target fuzzers fuzz_seeds

cd build/fuzz
# Written anew each time, so that no seed is of an earlier format, which a decoder refuses at its first bytes.
rm -rf seeds
mkdir seeds
tests/fuzz/fuzz_seeds seeds
for fuzzer in "${fuzzers[@]}"; do
  printf '\n== fuzz_%s: %s s\n' "$fuzzer" "$seconds"
  options=(-malloc_limit_mb=1024)
  asan=detect_leaks=0:allocator_may_return_null=0
  if [ "$fuzzer" = checkpoint ]; then
    # libhdf5 asks malloc for lengths that it finds in a file and reports an error when it gets none, so here malloc may
    # say no, and what is asked for but never touched does not count. Its own faults are not ours to hold a change up
    # with: the brief run is the same every time.
    options=(-malloc_limit_mb=1000000) # 0 would mean that of -rss_limit_mb
    asan=detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=1024
    [ "$brief" = no ] || options+=(-runs=300 -seed=1)
  fi
  mkdir -p "corpus/$fuzzer" "seeds/$fuzzer"
  folders=("corpus/$fuzzer" "seeds/$fuzzer")
  [ ! -d "$TOP/tests/fuzz/corpus/$fuzzer" ] || folders+=("$TOP/tests/fuzz/corpus/$fuzzer")
  # The suppression is for what uninstrumented libraries allocate once and keep.
  ASAN_OPTIONS=$asan nice "tests/fuzz/fuzz_$fuzzer" \
    -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 "${options[@]}" -max_len=16384 -print_final_stats=1 \
    -artifact_prefix="$fuzzer-" "${folders[@]}" > "$fuzzer.log" 2>&1 ||
    { tail -60 "$fuzzer.log"; exit 1; }
  grep -E 'stat::number_of_executed_units|stat::new_units_added|DONE' "$fuzzer.log"
done
