#!/usr/bin/env bash
# Training agrees with the float64 reference runs of tests/golden on RANKS ranks, and the check can fail.
#
#   bash tests/e2e/golden.sh RANKS
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

expect_code 0 "reference runs" cleave_on "$1" check "$TOP"/tests/golden/*.h5 "--json" "$scratch/figures.json"
cat "$scratch/out"
[ -s "$scratch/figures.json" ] || fail "no figures were written"

expect_code 0 "reference runs in stages" cleave_on "$1" check "$TOP"/tests/golden/*.h5 plan.layout=stages verify.mode=off

# Bits do not depend on the number of ranks (same_bits.sh): the rest in one process and on a server and two device ranks.
case $1 in 0 | 3) ;; *) exit 0 ;; esac

# 16-bit operands cannot meet fp32's limits, nor can 8 bits between stages. They have limits of their own, about twice what was
# found (tests/golden/README.md), and end with the same parameters in either layout.
for type in fp16 bf16 mxint8; do
  keys=plan.wire=$type
  [ $type = mxint8 ] && keys="plan.wire=fp16 plan.boundary=mxint8"
  for layout in tiles stages; do
    # shellcheck disable=SC2086  # keys
    expect_code 3 "reference runs in $type, $layout" cleave_on "$1" check "$TOP"/tests/golden/*.h5 $keys \
      plan.layout=$layout verify.mode=off --json "$scratch/$type-$layout.json"
  done
  python3 "$TOP/tests/e2e/golden_narrow.py" $type "$scratch/$type-tiles.json" "$scratch/$type-stages.json" ||
    fail "reference runs in $type"
done

# Nothing of a device that is found out stays, not in the logits either.
for seed in 1 2 3; do
  expect_code 0 "a liar, seed $seed" cleave_on "$1" check "$TOP/tests/golden/gpt2_tiny.h5" plan.layout=tiles verify.mode=quorum \
    verify.fraction=1 "fleet.churn={lie_fraction: 0.4, lie_kind: element, lie_share: 0.5, seed: $seed}"
done

head -c 20000 "$TOP/tests/golden/gpt2_tiny.h5" > "$scratch/short.h5"
expect_code 2 "a reference file cut short" cleave_on "$1" check "$scratch/short.h5"
expect_text "a reference file cut short" 'short\.h5'
