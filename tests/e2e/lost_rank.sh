#!/usr/bin/env bash
# A device rank that is killed in mid-run costs nothing but time: the run goes on, ends with code 0, and has the same
# bits. Started as jobs/run.sh starts it.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

write_input
arguments=("$scratch/input.yaml" 4 --quiet train.steps=8)
slow=(fleet.clock=wall 'server.nic_in=20 MB/s')

expect_code 0 "undisturbed run" bash "$TOP/jobs/run.sh" "${arguments[@]}" "output.dir=$scratch/whole"
wanted=$(hash_of "$scratch/whole" 8)

enough() { [ "$(lines_of "$scratch/run")" -ge "$1" ]; }
CLEAVE=$CLEAVE bash "$TOP/jobs/run.sh" "${arguments[@]}" "${slow[@]}" > "$scratch/out" 2>&1 &
pid=$!
for victim in 2 3 1; do # after the last one the server is alone
  wait_for 60 enough "$victim" || fail "no progress before rank $victim is killed"
  kill -KILL "$(pid_of "$scratch/run" "$victim")" || fail "rank $victim had ended"
done
code=0
wait "$pid" || code=$?
[ "$code" -eq 0 ] || { fail "exit code $code"; cat "$scratch/out"; }
[ "$(hash_of "$scratch/run" 8)" = "$wanted" ] || fail "other bits than the undisturbed run"
grep -Eq '"lost": ?[1-9]' "$scratch/run/metrics.jsonl" || fail "no loss was counted"

# A run that fails before it has a trainer, in a place where nobody may make folders: its ranks are told, and none has to
# be killed.
# shellcheck disable=SC2016  # for the ranks' shells
ended=(bash -c '"$@"; code=$?; echo "a rank ended with $code"; exit $code' _ "$CLEAVE")
expect_code 1 "no folder" launch 3 "${ended[@]}" train "$scratch/input.yaml" --quiet output.dir=/proc/run
[ "$(grep -c '^a rank ended with 0$' "$scratch/out")" -eq 2 ] || { fail "no folder: ranks were not told"; cat "$scratch/out"; }
