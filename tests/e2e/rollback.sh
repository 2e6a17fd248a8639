#!/usr/bin/env bash
# With verify.rollback a device that begins to lie leaves no trace: the run ends with the honest parameters, metrics.jsonl
# has each step once, the lines of steps taken back are in taken_back.jsonl, and nobody goes on from their checkpoints.
#
#   bash tests/e2e/rollback.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

write_input
steps=9
arguments=(train "$scratch/input.yaml" --quiet "train.steps=$steps" checkpoint.every=1 checkpoint.keep=20)
run=$scratch/run

expect_code 0 "honest run" "$CLEAVE" "${arguments[@]}"
wanted=$(hash_of "$run" $steps)
# When the sixth step begins.
at=$(head -5 "$run/metrics.jsonl" | grep -Eo '"time_s": ?[0-9.e-]+' | sed 's/.*://' | awk '{sum += $1} END {print 1000 * sum}')
rm -rf "$run"
cat > "$scratch/lies.yaml" <<YAML
events: [{at: $at ms, device: 6, kind: lie, factor: 1, lie: element}]
YAML

# each_step_once LABEL
each_step_once() {
  [ "$(grep -Eo '^[{]"step": ?[0-9]+' "$run/metrics.jsonl" | grep -Eo '[0-9]+')" = "$(seq 1 $steps)" ] ||
    fail "$1: metrics.jsonl does not hold each step once"
}
for mode in sample audit quorum; do
  lies=("verify.mode=$mode" verify.fraction=0.5 verify.rollback=2 "fleet.churn={trace: $scratch/lies.yaml}")
  expect_code 0 "$mode" "$CLEAVE" "${arguments[@]}" "${lies[@]}"
  expect_text "$mode: names who is left out" 'device 6 is left out'
  expect_text "$mode: says what is taken back" 'steps [0-9]+ to [0-9]+ are taken back and run again: device 6'
  expect_text "$mode: says what stays" 'what device 6 did up to step [0-9]+ stays: it is out of the reach of verify.rollback 2'
  [ "$(hash_of "$run" $steps)" = "$wanted" ] || fail "$mode: other bits than the honest run"
  each_step_once "$mode"
  [ "$(wc -l < "$run/taken_back.jsonl")" -eq 1 ] || fail "$mode: taken_back.jsonl is not one line"
  moved=$(grep -Eo '"step": ?[0-9]+' "$run/taken_back.jsonl" | wc -l)
  grep -q "\"taken_back\": $moved, " "$run/metrics.jsonl" || fail "$mode: metrics.jsonl does not say that $moved lines moved"
  [ "$(find "$run" -name '*.taken_back' | wc -l)" -ge 2 ] || fail "$mode: checkpoints of steps taken back are not set aside"
  rm -rf "$run"
done

# Resumed, it reaches back to where it went on, says so, and does not say that nothing is left.
expect_code 0 "first part" "$CLEAVE" "${arguments[@]}" train.steps=5 train.lr_decay_steps=$steps
sed -i "s/at: [^,]*,/at: 0 ms,/" "$scratch/lies.yaml"
expect_code 0 "resumed" "$CLEAVE" "${arguments[@]}" --resume auto verify.mode=quorum verify.fraction=0.5 \
  verify.rollback=2 "fleet.churn={trace: $scratch/lies.yaml}"
expect_text "resumed: says how far it reaches" 'verify.rollback reaches back to step 5'
expect_text "resumed: says what stays" 'what device 6 did up to step 5 stays'
[ "$(hash_of "$run" $steps)" = "$wanted" ] || fail "resumed: other bits than the honest run"
each_step_once "resumed"

expect_code 2 "rollback without checks" "$CLEAVE" "${arguments[@]}" --dry-run verify.mode=off verify.rollback=3
expect_text "rollback without checks" 'verify.rollback.*nothing'
expect_code 2 "rollback below 0" "$CLEAVE" "${arguments[@]}" --dry-run verify.rollback=-1
expect_text "rollback below 0" 'verify.rollback'
exit $((failures > 0))
