#!/usr/bin/env bash
# Processor time of a training step with messages read in place and with messages copied, by the difference of a long and a
# short run of the same program, interleaved (docs/measurements/speed.md).
#
#   bash bench/shared_memory.sh TEXT [ROUNDS]     TEXT: any text file; default: 2 rounds
#
# The model is that of inputs/speed/six-layers.yaml. Takes a minute and a half a round. Edit: nothing.
set -euo pipefail
TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
text=$(realpath "${1:?usage: bash bench/shared_memory.sh TEXT [ROUNDS]}")
rounds=${2:-2}
short=4
long=14
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# user and system seconds of so many steps
seconds_of() {
  local TIMEFORMAT='%U %S'
  rm -rf "$scratch/run"
  { time bash "$TOP/jobs/run.sh" "$TOP/inputs/speed/six-layers.yaml" 3 --quiet "data.text=$text" "output.dir=$scratch/run" \
      "train.steps=$1" "fleet.shared_memory=$2" > "$scratch/out" 2>&1; } 2>&1
}
for _ in $(seq "$rounds"); do
  for shared in true false; do
    few=$(seconds_of $short $shared)
    many=$(seconds_of $long $shared)
    echo "$few $many" | awk -v n=$((long - short)) -v shared=$shared \
      '{printf "shared_memory %-5s  user %.2f  system %.2f  sum %.2f s a step\n", shared, ($3-$1)/n, ($4-$2)/n, ($3+$4-$1-$2)/n}'
  done
done
