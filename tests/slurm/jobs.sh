#!/usr/bin/env bash
# The batch scripts of jobs/slurm on a real Slurm of one node: each as its head says it is submitted.
#
#   bash tests/slurm/jobs.sh        exit code 77: no Slurm can run here, and why
. "$(dirname "${BASH_SOURCE[0]}")/../e2e/lib.sh"
. "$TOP/tests/slurm/one_node.sh"

why=$(slurm_missing)
[ -z "$why" ] || { echo "skipped: $why"; exit 77; }

# Runs on every way out, also after a failure or a time limit, before the scratch folder goes.
end_slurm() {
  local status=$?
  slurm_down || true
  if [ "$status" -ne 0 ] || [ "$failures" -ne 0 ]; then tail -n 20 "$slurm_scratch"/log/slurm*.log; fi
  rm -rf "$slurm_scratch"
  (exit "$status")
  finish
}
# A socket's path must be short, and the build folder's may not be.
slurm_scratch=$(mktemp -d "${TMPDIR:-/tmp}/cleave-slurm.XXXXXX")
trap end_slurm EXIT
trap 'exit 143' TERM INT

write_input
export CLEAVE CLEAVE_JOBS=$TOP/jobs
slurm_up_or_skip "$slurm_scratch"
cd "$scratch"

# state_of JOB, of an array the first task's.
state_of() { scontrol show job "$1" 2> /dev/null | grep -o 'JobState=[A-Z]*' | head -n 1 | cut -d= -f2; }
has_ended() { [[ $(state_of "$1") =~ COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL|OUT_OF_MEMORY ]]; }
# submit ARGUMENT...: sbatch; the job's number in $job.
submit() { job=$(sbatch --parsable --ntasks=3 "$@" 2> "$scratch/sbatch.err") || { cat "$scratch/sbatch.err"; exit 1; }; }
# expect_completed SECONDS LABEL LOG
expect_completed() {
  wait_for "$1" has_ended "$job" || fail "$2: still $(state_of "$job") after $1 s"
  [ "$(state_of "$job")" = COMPLETED ] || {
    fail "$2: the job ended as $(state_of "$job")"
    tail -n 30 "$3"
  }
}
run=(train.steps=6 checkpoint.every=0)
slow=(fleet.clock=wall 'server.nic_in=20 MB/s') # gives the time to hit a run

# 1. An uninterrupted run, whose bits the others must reach.
submit --time=5 --output="$scratch/plain.log" "$TOP/jobs/slurm/train.sbatch" input.yaml "${run[@]}" output.dir=plain
expect_completed 120 "one run" "$scratch/plain.log"
wanted=$(hash_of "$scratch/plain" 6)

# 2. A run told before its time limit, requeued by itself until it is done; the others run meanwhile. The limit is one
# minute, the least that Slurm has. Slurm looks every 30 s: the signal comes 5 to 35 s after the start of a run of 50 s.
submit --time=1 --signal=B:USR1@25 --output="$scratch/requeue.log" "$TOP/jobs/slurm/requeue.sbatch" input.yaml \
  "${run[@]}" "${slow[@]}" 'server.nic_in=800 kB/s' output.dir=requeue
requeued=$job

# 3. Six points as an array, and the same again: nothing is run twice.
for batch in 4 8; do for partition in auto rows equal; do echo "train.batch=$batch plan.partition=$partition"; done; done > points.txt
submit --ntasks=1 --time=5 --array=0-5%2 --output="$scratch/sweep-%a.log" "$TOP/jobs/slurm/sweep.sbatch" input.yaml points.txt sweep
array_ended() { [ -z "$(squeue --noheader --jobs "$job" 2> /dev/null)" ]; }
wait_for 120 array_ended || fail "the array is still there after 120 s"
for point in 0 1 2 3 4 5; do
  grep -q '"system": *"cleave"' "sweep/$point.json" || { fail "point $point left no figures"; cat "sweep-$point.log"; }
done
[ "$(find sweep -type f | wc -l)" -eq 6 ] || fail "the sweep left other files than its points"

# 4. A device task is killed: the job goes on.
submit --time=5 --output="$scratch/killed.log" "$TOP/jobs/slurm/train.sbatch" input.yaml "${run[@]}" "${slow[@]}" output.dir=killed
wait_for 120 test -s killed/metrics.jsonl || fail "the run whose device is killed does not start"
kill -KILL "$(pid_of killed 2)" || fail "the device rank had ended"
[ "$(state_of "$job")" = RUNNING ] || fail "a dead device rank ended the job: $(state_of "$job")"
expect_completed 120 "a device killed" "$scratch/killed.log"
[ "$(hash_of "$scratch/killed" 6)" = "$wanted" ] || fail "a device killed: other bits than the uninterrupted run"

# 5. The whole run is killed (as a lost node does it): started again inside the job, from its last checkpoint.
submit --nodes=1 --ntasks-per-node=3 --time=5 --output="$scratch/survive.log" "$TOP/jobs/slurm/survive.sbatch" input.yaml \
  "${run[@]}" "${slow[@]}" checkpoint.every=1 output.dir=survive
wait_for 120 test -s survive/checkpoint-2.h5 || fail "the run that is to survive does not start"
kill -KILL "$(pid_of survive 0)" || fail "the server had ended"
expect_completed 180 "the server killed" "$scratch/survive.log"
grep -q 'start 2 .*checkpoint' "$scratch/survive.log" || fail "the run was not started again from a checkpoint"
[ "$(hash_of "$scratch/survive" 6)" = "$wanted" ] || fail "the server killed: other bits than the uninterrupted run"

# What became of the requeued one.
job=$requeued
expect_completed 300 "requeued" "$scratch/requeue.log"
grep -q 'ended with exit code 75' "$scratch/requeue.log" || fail "the run was never stopped by its limit"
[ "$(hash_of "$scratch/requeue" 6)" = "$wanted" ] || fail "requeued: other bits than the uninterrupted run"
sed -n 's/^== /    /p' "$scratch/requeue.log"
