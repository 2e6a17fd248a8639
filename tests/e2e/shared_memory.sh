#!/usr/bin/env bash
# Operands that ranks of the server's host read where the server keeps them give the same bytes as operands that are
# sent, also when devices leave, hang and come back while they read. Tensors are large enough (64 KiB) to be shared.
#
#   bash tests/e2e/shared_memory.sh RANKS
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cat > "$scratch/input.yaml" <<YAML
model: {family: gpt2, n_layer: 2, n_head: 4, d_model: 128, vocab_size: 256, seq_len: 64}
data: {text: [$TOP/README.md], tokenizer: byte}
train: {steps: 3, batch: 8}
fleet:
  clock: off
  devices:
    - {name: core, count: 4, compute: 20 GFLOP/s, memory: 64 MB, downlink: 1 GB/s, uplink: 1 GB/s}
verify: {mode: off}
YAML
{
  echo 'events:'
  for i in $(seq 1 120); do
    kinds=(leave join hang join)
    echo "  - {at: $((20 * i)) ms, device: $((i / 4 % 3)), kind: ${kinds[i % 4]}}"
  done
} > "$scratch/trace.yaml"

# same LABEL RANKS OVERRIDE...: as the run in which the server computes everything in one process.
wanted=
same() {
  local label=$1 ranks=$2 folder=$scratch/run got
  shift 2
  rm -rf "$folder"
  expect_code 0 "$label" cleave_on "$ranks" train "$scratch/input.yaml" --quiet "output.dir=$folder" "$@"
  got=$(hash_of "$folder" 3)
  : "${wanted:=$got}"
  [ "$got" = "$wanted" ] || fail "$label: other bits than the reference"
}

same reference 0
[ -n "$wanted" ] || fail "no hash of the reference"
for clock in off virtual; do
  same "in place, clock $clock" "$1" "fleet.clock=$clock"
  same "sent, clock $clock" "$1" "fleet.clock=$clock" fleet.shared_memory=false
  same "in place, clock $clock, devices that come and go" "$1" "fleet.clock=$clock" \
    "fleet.churn={trace: $scratch/trace.yaml}"
done
same "some blocks checked" "$1" verify.mode=sample
