#!/usr/bin/env bash
# With verify.rollback a device that begins to lie leaves no trace: the run ends with the honest parameters, metrics.jsonl
# has each step once, the lines of steps taken back are in taken_back.jsonl, and nobody goes on from their checkpoints;
# whether the run was resumed meanwhile, or killed in the middle of it.
#
#   bash tests/e2e/rollback.sh tiles|stages
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

layout=$1
modes=(audit quorum)
[ "$layout" = stages ] || modes+=(sample) # which stages do not have
write_input
steps=9
# One layout, so that an honest run tells when the lies are to begin.
arguments=(train "$scratch/input.yaml" --quiet "train.steps=$steps" checkpoint.every=1 checkpoint.keep=20 "plan.layout=$layout" verify.mode=off
  train.eval_every=0) # time_s is of training alone
run=$scratch/run
# Who lies: in stages a device that holds layers, whatever the server's links, since what a head answers must be right to
# be taken at all.
slow=(fleet.clock=wall 'server.nic_in=20 MB/s')
holders_of_layers() {
  "$CLEAVE" plan "${arguments[@]:1}" "$@" --json "$scratch/plan.json" > /dev/null
  tr -d ' \n' < "$scratch/plan.json" | grep -Eo '"replicas":\[[0-9,]*' | head -1 | grep -Eo '[0-9]+' | sort
}
liar=6
if [ "$layout" = stages ]; then
  quick_ones=$(holders_of_layers)
  liar=$(comm -12 <(echo "$quick_ones") <(holders_of_layers "${slow[@]}") | head -1)
fi
[ -n "$liar" ] || fail "no device holds layers with quick and with slow links"

expect_code 0 "honest run" "$CLEAVE" "${arguments[@]}"
wanted=$(hash_of "$run" $steps)
wanted_3=$(hash_of "$run" 3)
wanted_5=$(hash_of "$run" 5)
# When the sixth step begins, and the fourth.
begin_after() {
  head -"$1" "$run/metrics.jsonl" | grep -Eo '"time_s": ?[0-9.e-]+' | sed 's/.*://' | awk '{sum += $1} END {print 1000 * sum}'
}
late=$(begin_after 3)
rm -rf "$run"
lies_from() { echo "events: [{at: $1 ms, device: $liar, kind: lie, factor: 1, lie: element}]" > "$scratch/lies.yaml"; }
lies_from "$late"

# each_step_once LABEL
each_step_once() {
  [ "$(grep -Eo '^[{]"step": ?[0-9]+' "$run/metrics.jsonl" | grep -Eo '[0-9]+')" = "$(seq 1 $steps)" ] ||
    fail "$1: metrics.jsonl does not hold each step once"
}
for mode in "${modes[@]}"; do
  checks=("verify.mode=$mode" verify.fraction=0.5 verify.rollback=2)
  # Checks take time in stages.
  expect_code 0 "$mode, honest run" "$CLEAVE" "${arguments[@]}" "${checks[@]}"
  [ "$(hash_of "$run" $steps)" = "$wanted" ] || fail "$mode, honest run: other bits"
  lies_from "$(begin_after 5)"
  rm -rf "$run"
  lies=("${checks[@]}" "fleet.churn={trace: $scratch/lies.yaml}")
  expect_code 0 "$mode" "$CLEAVE" "${arguments[@]}" "${lies[@]}"
  expect_text "$mode: names who is left out" 'device '$liar' is left out'
  expect_text "$mode: says what is taken back" 'steps [0-9]+ to [0-9]+ are taken back and run again: device '$liar
  expect_text "$mode: says what stays" 'what device '$liar' did up to step [0-9]+ stays: it is out of the reach of verify.rollback 2'
  [ "$(hash_of "$run" $steps)" = "$wanted" ] || fail "$mode: other bits than the honest run"
  each_step_once "$mode"
  [ "$(wc -l < "$run/taken_back.jsonl")" -eq 1 ] || fail "$mode: taken_back.jsonl is not one line"
  moved=$(grep -Eo '"step": ?[0-9]+' "$run/taken_back.jsonl" | wc -l)
  grep -q "\"taken_back\": $moved, " "$run/metrics.jsonl" || fail "$mode: metrics.jsonl does not say that $moved lines moved"
  [ "$(find "$run" -name '*.taken_back' | wc -l)" -ge 2 ] || fail "$mode: checkpoints of steps taken back are not set aside"
  rm -rf "$run"
done

# Devices of two processes: the first one trains five steps, in the last two of which a device lies, and looks at nothing;
# the second one looks at everything. Whoever goes back to before these two steps ends with the honest parameters.
looks_at_nothing=(verify.mode=audit verify.fraction=0)
looks_at_all=(verify.mode=audit verify.fraction=1 "fleet.churn={trace: $scratch/lies.yaml}")
# first_part LABEL ARGUMENT...
first_part() {
  local label=$1
  shift
  rm -rf "$run" "$run".*
  lies_from "$late"
  expect_code 0 "$label: first part" "$CLEAVE" "${arguments[@]}" train.steps=5 train.lr_decay_steps=$steps \
    "fleet.churn={trace: $scratch/lies.yaml}" "${looks_at_nothing[@]}" "$@"
  [ "$(hash_of "$run" 3)" = "$wanted_3" ] || fail "$label: somebody lied too early"
  [ "$(hash_of "$run" 5)" != "$wanted_5" ] || fail "$label: nobody lied, nothing is shown"
  lies_from 0
}
second_part() { expect_code 0 "$1" "$CLEAVE" "${arguments[@]}" --resume auto "${looks_at_all[@]}" verify.rollback=2; }
check_honest() {
  [ "$(hash_of "$run" $steps)" = "$wanted" ] || fail "$1: other bits than the honest run"
  each_step_once "$1"
  [ ! -e "$run/verdict.json" ] || fail "$1: the verdict is still there"
  [ "$(find "$run" -name '*.taken_back' | wc -l)" -ge 2 ] || fail "$1: checkpoints of steps taken back are not set aside"
}

# Of one checkpoint that is kept, and those that going back may need.
first_part "resumed" verify.rollback=2 checkpoint.keep=1
[ "$(find "$run" -name 'checkpoint-*.h5' | wc -l)" -eq 3 ] || fail "resumed: not three checkpoints"
second_part "resumed"
expect_text "resumed: says how far it reaches" 'verify.rollback reaches back to step 3: from checkpoint-3.h5$'
expect_text "resumed: says what is taken back" 'steps 4 to 6 are taken back and run again: device '$liar
expect_text "resumed: says what stays" 'what device '$liar' did up to step 3 stays'
check_honest "resumed"

# No checkpoint reaches far enough, or none says who did what.
first_part "nothing old enough" verify.rollback=2
rm "$run"/checkpoint-[123].h5
second_part "nothing old enough"
expect_text "nothing old enough: says so first" 'reaches back to step 4: from checkpoint-4.h5, no older one of this run is there'
expect_text "nothing old enough: says what stays" 'what device '$liar' did up to step 4 stays'
[ "$(hash_of "$run" $steps)" != "$wanted" ] || fail "nothing old enough: the honest bits all the same"
first_part "no record"
second_part "no record"
expect_text "no record: says so first" 'reaches back to step 5, from which the run goes on, and no further: checkpoint-5.h5 does not say'
expect_text "no record: says what stays" 'what device '$liar' did up to step 5 stays'
each_step_once "no record"

# Killed after the device was found out and before its checkpoints have other names: the verdict is heeded. On slow links
# in real time there is time for it.
killed=0
for try in 1 2 3 4 5; do
  first_part "killed" verify.rollback=2
  "$CLEAVE" "${arguments[@]}" --resume auto "${looks_at_all[@]}" verify.rollback=2 "${slow[@]}" > "$scratch/out" 2>&1 &
  pid=$!
  until [ -e "$run/verdict.json" ] || ! kill -0 $pid 2> /dev/null; do :; done
  kill -KILL $pid 2> /dev/null || true
  wait $pid 2> /dev/null || true
  if [ -s "$run/verdict.json" ] && [ -z "$(find "$run" -name '*.taken_back')" ] && [ -s "$run/checkpoint-5.h5" ]; then
    killed=1
    break
  fi
  echo "killed at another moment, try $try"
done
if [ $killed -eq 1 ]; then
  expect_code 2 "killed: from a step that is condemned" "$CLEAVE" "${arguments[@]}" --resume "$run/checkpoint-5.h5"
  expect_text "killed: says why not" 'device '$liar' had a part that was not checked'
  second_part "killed"
  expect_text "killed: goes on from before" 'resuming after step 3'
  expect_text "killed: says what was taken back" 'steps after step 3 are taken back: device '$liar' had been found out'
  check_honest "killed"
  grep -q '"after_step": *3' "$run/taken_back.jsonl" || fail "killed: the lines are not in taken_back.jsonl"
else
  fail "never killed between the verdict and what follows from it: nothing is shown"
fi

expect_code 2 "rollback without checks" "$CLEAVE" "${arguments[@]}" --dry-run verify.mode=off verify.rollback=3
expect_text "rollback without checks" 'verify.rollback.*nothing'
expect_code 2 "rollback below 0" "$CLEAVE" "${arguments[@]}" --dry-run verify.rollback=-1
expect_text "rollback below 0" 'verify.rollback'
exit $((failures > 0))
