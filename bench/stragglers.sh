#!/usr/bin/env bash
# How soon unannounced stragglers are planned as what they are: the time of each step of inputs/sim/stragglers.yaml,
# beside that of a planner that knew (the same devices, declaring their true rates); in stages and in tiles.
#
#   bash bench/stragglers.sh          CLEAVE=/path/to/cleave
set -euo pipefail
TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CLEAVE=${CLEAVE:-$TOP/build/release/cleave}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
common='memory: [1 GB, 3 GB], latency: 0 ms'
known="[{name: punctual, count: 205, compute: [5 TFLOP/s, 7 TFLOP/s], downlink: [10 MB/s, 100 MB/s], uplink: [5 MB/s, 10 MB/s], $common},
 {name: straggler, count: 51, compute: [0.5 TFLOP/s, 0.7 TFLOP/s], downlink: [1 MB/s, 10 MB/s], uplink: [0.5 MB/s, 1 MB/s], $common}]"
for layout in stages tiles; do
  "$CLEAVE" simulate "$TOP/inputs/sim/stragglers.yaml" plan.layout=$layout --json "$work/learned.json" > /dev/null 2>&1
  "$CLEAVE" simulate "$TOP/inputs/sim/stragglers.yaml" plan.layout=$layout simulate.steps=1 fleet.churn=none "fleet.devices=$known" --json "$work/known.json" > /dev/null 2>&1
  python3 - "$work" $layout <<'PY'
import json, sys
load = lambda name: json.load(open(f"{sys.argv[1]}/{name}.json"))[0]
known, steps = load("known")["step_s"], load("learned")["steps"]
if steps[0]["step_s"] <= known or sys.argv[2] == "tiles" and not any(step["copies"] for step in steps):
    sys.exit("stragglers: no device was slower than it said")
print(f"{sys.argv[2]}: a planner that knew: {known:.1f} s")
for number, step in enumerate(steps, 1):
    print(f"step {number}: {step['step_s']:.1f} s, {step['step_s'] / known:.3f} times, {step['copies']} copies")
PY
done
