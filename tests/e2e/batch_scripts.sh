#!/usr/bin/env bash
# The batch scripts that start a run again, without a Slurm: folders whose paths YAML quotes or that are links, and
# starts that were told themselves where to go on from. Its commands are stand-ins.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

write_input
cd "$scratch"
mkdir bin
# A requeue ends the job; so does this one, with an exit code of its own.
printf '#!/bin/sh\necho "requeued $2"; kill -KILL "$PPID"\n' > bin/scontrol
printf '#!/bin/sh\nhostname\n' > bin/sinfo
# Stops on request in its second step, as Slurm would ask for.
cat > bin/stopped << 'SH'
#!/bin/bash
case " $* " in *" --dry-run "*) exec "$REAL" "$@" ;; esac
"$REAL" "$@" checkpoint.every=1 train.steps=2000 < /dev/null &
pid=$!
until [ "$(wc -l 2> /dev/null < "$RUN/metrics.jsonl" || echo 0)" -gt "${LINES_BEFORE:-0}" ] || ! kill -0 "$pid"; do sleep 0.05; done
kill -USR1 "$pid"
wait "$pid"
SH
chmod +x bin/*
export PATH=$scratch/bin:$PATH CLEAVE_JOBS=$TOP/jobs SLURM_JOB_ID=7 SLURM_NTASKS=2 REAL=$CLEAVE
export CLEAVE=$scratch/bin/stopped

mkdir elsewhere "with blanks"
ln -s elsewhere link
for run in "with blanks/a 'run' # 1" link; do
  export RUN=$scratch/$run
  expect_code 137 "$run: first start" bash "$TOP/jobs/slurm/requeue.sbatch" input.yaml "output.dir=$run" --resume auto
  expect_text "$run: first start" 'requeued 7'
  LINES_BEFORE=$(lines_of "$run") SLURM_RESTART_COUNT=1 expect_code 137 "$run: second start" \
    bash "$TOP/jobs/slurm/requeue.sbatch" input.yaml "output.dir=$run" --resume auto
  expect_text "$run: second start" 'after step [1-9]'
  expect_text "$run: second start" 'requeued 7'
done

# What the first start went on from may be gone by then: the folder is found all the same.
for asked in "--resume gone.h5" "--resume=gone.h5 --resume-with-changes"; do
  # shellcheck disable=SC2086  # an option and its value
  [[ "$(run_folder "$REAL" input.yaml output.dir=link $asked)" = */link ]] || fail "$asked: no folder is found"
done

# go_on keeps what was asked for until the run has a checkpoint of its own.
mkdir none
go_on none in.yaml --resume old.h5 a=b
[ "${arguments[*]}" = "in.yaml --resume old.h5 a=b" ] || fail "without a checkpoint: ${arguments[*]}"
go_on none in.yaml a=b
[ "${arguments[*]}" = "in.yaml a=b --resume auto" ] || fail "never asked: ${arguments[*]}"
for asked in "--resume old.h5" --resume=old.h5; do
  # shellcheck disable=SC2086  # an option and its value
  go_on link in.yaml $asked --resume-with-changes a=b
  [ "${arguments[*]}" = "in.yaml --resume-with-changes a=b --resume auto" ] || fail "$asked: ${arguments[*]}"
done
