#!/usr/bin/env bash
# A run that is killed, or asked to stop, at any step goes on to the same bits; every step is in metrics.jsonl once.
#
#   bash tests/e2e/resume.sh RANKS
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

ranks=$1
steps=8
write_input
# Links slow enough, in real time, that a run can be hit in the middle of a step.
arguments=(train "$scratch/input.yaml" --quiet "train.steps=$steps" checkpoint.keep=3 fleet.clock=wall
  'server.nic_in=20 MB/s')

# start_run: the run in the background; its pid in $pid.
start_run() {
  if [ "$ranks" -eq 0 ]; then
    "$CLEAVE" "${arguments[@]}" > "$scratch/out" 2>&1 &
  else
    mpirun -n "$ranks" "$CLEAVE" "${arguments[@]}" > "$scratch/out" 2>&1 &
  fi
  pid=$!
}
started_steps() { [ "$(lines_of "$scratch/run")" -ge "$1" ]; }
check_whole() {
  expect_code 0 "$1: resumed" cleave_on "$ranks" "${arguments[@]}" --resume auto
  [ "$(hash_of "$scratch/run" $steps)" = "$wanted" ] || fail "$1: other bits than the uninterrupted run"
  [ "$(grep -Eo '"step": ?[0-9]+' "$scratch/run/metrics.jsonl" | grep -Eo '[0-9]+')" = "$(seq 1 $steps)" ] ||
    fail "$1: metrics.jsonl does not hold each step once"
  [ -z "$(find "$scratch/run" -name '*.tmp*')" ] || fail "$1: a temporary file is left"
  rm -rf "$scratch/run"
}

expect_code 0 "uninterrupted run" cleave_on "$ranks" "${arguments[@]}"
wanted=$(hash_of "$scratch/run" $steps)
# As a job that is queued once too often does: what was told of the run stays.
cp "$scratch/run"/{verification.json,timeline.json,report.html,metrics.jsonl} "$scratch"
expect_code 0 "resumed when all is done" cleave_on "$ranks" "${arguments[@]}" --resume auto
for file in verification.json timeline.json report.html metrics.jsonl; do
  cmp -s "$scratch/run/$file" "$scratch/$file" || fail "resumed when all is done: another $file"
done
grep -q "nothing is left to do" "$scratch/run/log.txt" || fail "resumed when all is done: it does not say so"
rm "$scratch/run/report.html"
cp "$scratch/run/input.yaml" "$scratch/input.kept"
expect_code 0 "resumed when all is done, with other settings" cleave_on "$ranks" "${arguments[@]}" --resume auto \
  train.steps=3 checkpoint.keep=7
cmp -s "$scratch/run/input.yaml" "$scratch/input.kept" || fail "resumed when all is done: settings that no step ran with"
for file in verification.json timeline.json report.html; do
  cmp -s "$scratch/run/$file" "$scratch/$file" || fail "resumed when all is done, without a report: another $file"
done
# As if a run that had been stopped, and told of that, was killed while it told of its end.
cp "$scratch/run/log.txt" "$scratch/run/report.html"
cp "$scratch/run/log.txt" "$scratch/run/report.html.tmp"
expect_code 0 "resumed when all is done but the report" cleave_on "$ranks" "${arguments[@]}" --resume auto
cmp -s "$scratch/run/report.html" "$scratch/report.html" || fail "resumed when all is done but the report: there is none"
[ ! -e "$scratch/run/report.html.tmp" ] || fail "resumed when all is done but the report: a temporary file is left"
rm -rf "$scratch/run"

# start_and_kill STEP: false if the run ended before it was hit, as one does when this script is kept waiting for a core.
start_and_kill() {
  start_run
  wait_for 60 started_steps "$1" || fail "killed after step $1: never got there"
  wait_for 60 test -s "$scratch/run/ranks.json" || fail "no ranks.json"
  kill -KILL "$(pid_of "$scratch/run" 0)" || true
  ! wait "$pid"
}
for at in 0 1 2 3 5 7; do
  for try in 1 2 3; do
    ! start_and_kill $at || break
    [ $try -lt 3 ] || fail "killed after step $at: it had ended, three times"
    rm -rf "$scratch/run"
  done
  check_whole "killed after step $at"
done

for at in 1 4; do
  start_run
  wait_for 60 started_steps $at || fail "stopped after step $at: never got there"
  # mpirun passes USR1 on to the ranks; to TERM it answers itself, so that one goes to the server alone.
  if [ "$at" -eq 1 ]; then kill -USR1 "$pid"; else kill -TERM "$(pid_of "$scratch/run" 0)"; fi
  code=0
  wait "$pid" || code=$?
  [ "$code" -eq 75 ] || { fail "stopped after step $at: exit code $code, not 75"; cat "$scratch/out"; }
  done_steps=$(lines_of "$scratch/run")
  [ -s "$scratch/run/checkpoint-$done_steps.h5" ] || fail "stopped after step $at: no checkpoint of step $done_steps"
  check_whole "stopped after step $at"
done
