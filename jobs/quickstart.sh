#!/usr/bin/env bash
# From a fresh clone to a trained model: installs packages, builds, trains the quickstart on 8 emulated devices (6
# phones, 2 laptops), lets the model write, and says where the report lies.
#
#   bash jobs/quickstart.sh [key=value ...]           e.g.  bash jobs/quickstart.sh train.steps=50
#
# Takes under 10 minutes on a bare machine with 2 cores, most of it packages and compiling; the training takes about a
# minute, and a second call starts it within seconds. Works from any folder, as root or not (root only for packages).
# Edit: nothing; the model and the fleet stand in inputs/quickstart.yaml.
set -euo pipefail

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CLEAVE=$TOP/build/release/cleave
SECONDS=0

bash "$TOP/jobs/setup.sh" --target cleave
# shellcheck source=mpi-env.sh
. "$TOP/jobs/mpi-env.sh"
ready=$SECONDS

run=$TOP/runs/quickstart # output.dir of the input, unless overridden
for argument in "$@"; do
  case $argument in output.dir=*) run=${argument#*=} ;; esac
done

# A rank a core beside the server, which host the devices; with more, ranks wait for each other's turn on a core.
ranks=$(($(nproc) < 8 ? $(nproc) + 1 : 9))
printf '\n== Training on 8 emulated devices: mpirun -n %d build/release/cleave train inputs/quickstart.yaml\n' "$ranks"
launch "$ranks" "$CLEAVE" train "$TOP/inputs/quickstart.yaml" "$@"
trained=$SECONDS

checkpoint=$(newest_checkpoint "$run")
[ -n "$checkpoint" ] || { echo "quickstart: the run left no checkpoint in $run" >&2; exit 1; }
printf '\n== What it writes after "A device "\n'
"$CLEAVE" generate "$checkpoint" --prompt 'A device ' --tokens 500 --temperature 0.5 --seed 1

printf '\n== Done: %d s to set up, %d s to train. In %s:\n' "$ready" "$((trained - ready))" "$run"
for file in metrics.jsonl input.yaml trace.json "$(basename "$checkpoint")"; do
  [ ! -e "$run/$file" ] || printf '   %s\n' "$file"
done
printf 'Next: inputs/learn/tinyshakespeare-gpt2.yaml, README.md, docs/\n'
[ ! -e "$run/report.html" ] || printf 'What happened, device by device (open it in a browser): %s\n' "$run/report.html"
