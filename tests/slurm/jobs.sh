#!/usr/bin/env bash
# The batch scripts of jobs/slurm on a real Slurm of one node: each as its head says it is submitted.
#
#   bash tests/slurm/jobs.sh        exit code 77: no Slurm can run here, and why
. "$(dirname "${BASH_SOURCE[0]}")/../e2e/lib.sh"
. "$TOP/tests/slurm/slurm.sh"

why=$(slurm_missing)
[ -z "$why" ] || skip "$why"

write_input
export CLEAVE CLEAVE_JOBS=$TOP/jobs
slurm_for_test
cd "$scratch"

submit() { submit_job --ntasks=3 "$@"; }
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
