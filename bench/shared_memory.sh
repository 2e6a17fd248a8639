#!/usr/bin/env bash
# Processor time of a training step with messages read in place and with messages copied, by the difference of a long and a
# short run of the same program, interleaved (docs/measurements/scale.md).
#
#   bash bench/shared_memory.sh [ROUNDS] [TEXT]     default: 2 rounds on /work/shared/data/tinyshakespeare.txt
set -euo pipefail
TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
rounds=${1:-2}
text=${2:-/work/shared/data/tinyshakespeare.txt}
short=4
long=14
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cat > "$scratch/input.yaml" <<INPUT
model: {family: gpt2, n_layer: 6, n_head: 6, d_model: 384, d_ff: 1536, seq_len: 256, vocab_size: 256}
data: {text: $text, tokenizer: byte, val_fraction: 0.1}
train: {batch: 8, lr: 1e-3, seed: 1, eval_every: 0}
fleet:
  clock: off
  devices:
    - {name: d, count: 2, compute: 1 TFLOP/s, memory: 4 GiB, downlink: 10 Gbit/s, uplink: 10 Gbit/s, latency: 100 us}
verify: {mode: off}
output: {dir: $scratch/run}
INPUT
# user and system seconds of so many steps
seconds_of() {
  local TIMEFORMAT='%U %S'
  rm -rf "$scratch/run"
  { time bash "$TOP/jobs/run.sh" "$scratch/input.yaml" 3 --quiet "train.steps=$1" "fleet.shared_memory=$2" > "$scratch/out" 2>&1; } 2>&1
}
for _ in $(seq "$rounds"); do
  for shared in true false; do
    few=$(seconds_of $short $shared)
    many=$(seconds_of $long $shared)
    echo "$few $many" | awk -v n=$((long - short)) -v shared=$shared \
      '{printf "shared_memory %-5s  user %.2f  system %.2f  sum %.2f s a step\n", shared, ($3-$1)/n, ($4-$2)/n, ($3+$4-$1-$2)/n}'
  done
done
