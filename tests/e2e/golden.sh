#!/usr/bin/env bash
# Training agrees with the float64 reference runs of tests/golden on RANKS ranks, and the check can fail.
#
#   bash tests/e2e/golden.sh RANKS
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

expect_code 0 "reference runs" cleave_on "$1" check "$TOP"/tests/golden/*.h5 "--json" "$scratch/figures.json"
cat "$scratch/out"
[ -s "$scratch/figures.json" ] || fail "no figures were written"

expect_code 0 "reference runs in stages" cleave_on "$1" check "$TOP"/tests/golden/*.h5 plan.layout=stages verify.mode=off

expect_code 3 "16-bit operands cannot meet fp32's limits" \
  cleave_on "$1" check "$TOP/tests/golden/gpt2_tiny.h5" plan.wire=bf16
head -c 20000 "$TOP/tests/golden/gpt2_tiny.h5" > "$scratch/short.h5"
expect_code 2 "a reference file cut short" cleave_on "$1" check "$scratch/short.h5"
expect_text "a reference file cut short" 'short\.h5'
