#!/usr/bin/env bash
# One truth: `train` with clock virtual reports, to the last digit, the step times that `simulate` predicts for the same
# input, and the first step's bounds and bytes; devices that leave, join, slow down and hang included; `plan` reports the
# first step's time; and a simulation run twice writes the same trace, byte for byte.
#
#   bash tests/e2e/one_truth.sh RANKS
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

ranks=$1
seq 1 4000 > "$scratch/text.txt"
cat > "$scratch/churn.yaml" <<'YAML'
events:
  - {at: 0.004 s, device: 1, kind: leave}
  - {at: 0.02 s, device: 2, kind: slow, factor: 0.2}
  - {at: 0.03 s, device: 1, kind: join}
  - {at: 0.05 s, device: 4, kind: hang}
  - {at: 1.2 s, device: 4, kind: join}
YAML
cat > "$scratch/input.yaml" <<YAML
model: {family: gpt2, n_layer: 2, n_head: 4, d_model: 64, vocab_size: 256, seq_len: 32}
data: {text: [$scratch/text.txt], tokenizer: byte}
train: {steps: 3, batch: 8}
fleet:
  seed: 5
  clock: virtual
  devices:
    - {name: phone, count: 4, compute: [1 GFLOP/s, 4 GFLOP/s], memory: 8 MB, downlink: [4 MB/s, 40 MB/s], uplink: [2 MB/s, 8 MB/s], latency: 2 ms}
    - {name: laptop, count: 2, compute: 9 GFLOP/s, memory: 64 MB, downlink: 60 MB/s, uplink: 20 MB/s, latency: 1 ms, jitter: 1 ms}
server: {nic_out: 1 Gbit/s, nic_in: 1 Gbit/s}
verify: {mode: off}
simulate: {steps: 3}
output: {dir: $scratch/run}
YAML

# compare LABEL OVERRIDE...: in one process; every second on several ranks, on which no time depends.
tried=0
compare() {
  local label=$1
  shift
  tried=$((tried + 1))
  [ "$ranks" = 0 ] || [ $((tried % 2)) = 1 ] || return 0
  rm -rf "$scratch/run"
  expect_code 0 "$label: simulate" cleave_on 0 simulate "$scratch/input.yaml" "$@" --json "$scratch/simulate.json"
  expect_code 0 "$label: train" cleave_on "$ranks" train "$scratch/input.yaml" "$@" --quiet
  python3 - "$scratch/simulate.json" "$scratch/run/metrics.jsonl" "$label" <<'PYTHON' || fail "$label: times differ"
import json, sys
report = json.load(open(sys.argv[1]))[0]
lines = [line for line in map(json.loads, open(sys.argv[2])) if "time_s" in line]
simulated = [step["step_s"] for step in report["steps"]]
trained = [line["time_s"] for line in lines]
print(sys.argv[3], simulated, trained)
first = ["lower_bound_s", "floor_s", "bytes_down", "bytes_up"]  # of the first step
for name in first:
    if report[name] != lines[0][name]:
        sys.exit(f"{sys.argv[3]}: {name} simulated {report[name]}, trained {lines[0][name]}")
sys.exit(0 if len(trained) == 3 and simulated == trained else 1)
PYTHON
}

compare "as given"
# With the same jitter.
expect_code 0 "plan" cleave_on 0 plan "$scratch/input.yaml" --json "$scratch/plan.json" --quiet
python3 - "$scratch/simulate.json" "$scratch/plan.json" <<'PYTHON' || fail "plan: not the first step's time"
import json, sys
simulated, planned = (json.load(open(path)) for path in sys.argv[1:])
sys.exit(simulated[0]["steps"][0]["step_s"] != planned["step_s"])
PYTHON
compare "an unlimited interface" server.nic_out=unlimited server.nic_in=unlimited fleet.devices.1.jitter='0 ms'
compare "row groups, 16 bits" plan.row_groups=2 plan.wire=fp16
compare "weights kept from row group to row group" plan.row_groups=4 plan.keep_weights=always fleet.devices.0.count=14
compare "weights kept, churn" plan.row_groups=4 plan.keep_weights=always fleet.devices.0.count=14 \
  "fleet.churn={trace: $scratch/churn.yaml}"
compare "a barrier, no streaming" plan.asynchronous=false plan.panels=1
compare "churn" "fleet.churn={trace: $scratch/churn.yaml}"
compare "churn, an unlimited interface" "fleet.churn={trace: $scratch/churn.yaml}" server.nic_out=unlimited \
  server.nic_in=unlimited fleet.devices.1.jitter='0 ms'

# In stages, where rehearsals take another layout than the one with the best forecast; with memory for kept sequences too.
mixed='{name: phone, count: 9, compute: [1 GFLOP/s, 4 GFLOP/s], memory: [2 MB, 8 MB], downlink: [4 MB/s, 40 MB/s], uplink: [2 MB/s, 8 MB/s], latency: 2 ms}'
laptops='{name: laptop, count: 3, compute: 9 GFLOP/s, memory: 64 MB, downlink: 60 MB/s, uplink: 20 MB/s, latency: 1 ms}'
for seed in 1 2; do
  stages=(model.n_layer=4 "fleet.seed=$seed" "fleet.devices=[$mixed, $laptops]")
  compare "stages of fleet $seed" plan.layout=stages "${stages[@]}"
  compare "auto, fleet $seed, churn" "${stages[@]}" "fleet.churn={trace: $scratch/churn.yaml}"
done
# No device holds the whole head.
small='{name: phone, count: 40, compute: 1 TFLOP/s, memory: 1.8 MB, downlink: 40 MB/s, uplink: 5 MB/s}'
parts=(model.family=llama model.n_layer=8 model.d_model=128 model.seq_len=64 model.vocab_size=8000 train.batch=64 plan.wire=fp16
  "fleet.devices=[$small]")
expect_code 0 "plan: a head in parts" cleave_on 0 plan "$scratch/input.yaml" "${parts[@]}" plan.layout=stages
expect_text "plan: a head in parts" 'head\.1'
compare "a head in parts" "${parts[@]}" plan.layout=stages
compare "a head in parts, auto" "${parts[@]}"
compare "a head in parts, churn" "${parts[@]}" plan.layout=stages "fleet.churn={trace: $scratch/churn.yaml}"
compare "stages, much memory" plan.layout=stages plan.wire=fp16 "${stages[@]}" fleet.devices.0.memory='1 GB'

for run in a b; do
  expect_code 0 "simulate, recorded" cleave_on 0 simulate "$scratch/input.yaml" "fleet.churn={trace: $scratch/churn.yaml}" \
    --output "$scratch/$run"
done
for file in trace.json timeline.json; do
  [ -s "$scratch/a/$file" ] || fail "no $file"
  cmp "$scratch/a/$file" "$scratch/b/$file" || fail "two runs wrote different $file"
done
