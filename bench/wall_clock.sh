#!/usr/bin/env bash
# How well real time follows the model: a run under clock wall, and the same run under clock virtual. The two must agree
# on the time of every step, and real time must be within 5 % of it: exit code 1 otherwise.
#
#   bash bench/wall_clock.sh [RANKS [SLOWER [OVERRIDE...]]]
#
# SLOWER: divides every rate of the fleet (default 1). OVERRIDE: as for cleave train, e.g. plan.layout=stages
# verify.mode=off.
#
# dilation: real over modelled time. 1.00 is a host that keeps up; more, the factor by which it stretches time.
set -euo pipefail
cd "$(dirname "$0")/.."
. jobs/mpi-env.sh
ranks=${1:-3} slower=${2:-1} overrides=("${@:3}")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
rate() { python3 -c "print(f'{$1 / $slower:g} $2')"; }
cat > "$folder/input.yaml" <<YAML
model: {family: gpt2, n_layer: 2, n_head: 4, d_model: 128, vocab_size: 256, seq_len: 64}
data: {text: [$PWD/README.md], tokenizer: byte}
train: {steps: 5, batch: 8}
fleet:
  devices:
    - {name: phone, count: 6, compute: $(rate 2 GFLOP/s), memory: 64 MB, downlink: $(rate 10 MB/s), uplink: $(rate 4 MB/s), latency: 5 ms}
server: {nic_out: 1 Gbit/s, nic_in: 1 Gbit/s}
YAML
for clock in virtual wall; do
  launch "$ranks" build/release/cleave train "$folder/input.yaml" fleet.clock=$clock --quiet \
    output.dir="$folder/$clock" "${overrides[@]}" > "$folder/$clock.txt" 2>&1 || { cat "$folder/$clock.txt"; exit 1; }
done
python3 - "$folder" <<'PYTHON'
import json, sys
steps = {c: [json.loads(l) for l in open(f"{sys.argv[1]}/{c}/metrics.jsonl")] for c in ("virtual", "wall")}
print("step   virtual s   wall s, model   wall s, real   dilation")
real = modelled = 0
for v, w in zip(steps["virtual"], steps["wall"]):
    real, modelled = real + w["time_s"] * w["dilation"], modelled + w["time_s"]
    print(f"{v['step']:4}   {v['time_s']:9.3f}   {w['time_s']:13.3f}   {w['time_s'] * w['dilation']:12.3f}   {w['dilation']:8.4f}")
print(f"all    {sum(v['time_s'] for v in steps['virtual']):9.3f}   {modelled:13.3f}   {real:12.3f}   {real / modelled:8.4f}")
alike = all(v["time_s"] == w["time_s"] for v, w in zip(steps["virtual"], steps["wall"]))
sys.exit(0 if alike and real <= 1.05 * modelled else 1)
PYTHON
