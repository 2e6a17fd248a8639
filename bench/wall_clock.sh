#!/usr/bin/env bash
# How well real time follows the model: emulated time of a run under clock wall over that of the same run under clock
# virtual. 1.00 is a host that keeps up; more is the factor by which time was stretched because it could not.
#
#   bash bench/wall_clock.sh [RANKS [SLOWER]]      SLOWER: divides every rate of the fleet (default 1)
set -euo pipefail
cd "$(dirname "$0")/.."
. jobs/mpi-env.sh
ranks=${1:-3} slower=${2:-1}
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
    output.dir="$folder/$clock" > "$folder/$clock.txt" 2>&1 || { cat "$folder/$clock.txt"; exit 1; }
done
python3 - "$folder" <<'PYTHON'
import json, sys
steps = {c: [json.loads(l) for l in open(f"{sys.argv[1]}/{c}/metrics.jsonl")] for c in ("virtual", "wall")}
print("step   virtual s   wall s   ratio")
for v, w in zip(steps["virtual"], steps["wall"]):
    print(f"{v['step']:4}   {v['time_s']:9.3f}   {w['time_s']:6.3f}   {w['time_s'] / v['time_s']:5.3f}")
total = {c: sum(line["time_s"] for line in steps[c]) for c in steps}
print(f"all    {total['virtual']:9.3f}   {total['wall']:6.3f}   {total['wall'] / total['virtual']:5.3f}")
PYTHON
