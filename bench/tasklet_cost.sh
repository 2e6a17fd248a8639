#!/usr/bin/env bash
# What a small tasklet costs the server: its real time beside kernels and waiting, by phase, with two device ranks.
#
#   bash bench/tasklet_cost.sh [OVERRIDE ...]      for example fleet.clock=virtual
#
# Takes some seconds. Medians over steps; the devices compute on the same cores meanwhile, so an idle machine with more
# cores shows less. Edit: nothing.
set -euo pipefail

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bash "$TOP/jobs/run.sh" "$TOP/inputs/speed/small-tasklets.yaml" 3 --quiet "output.dir=$work/run" "$@"
python3 - "$work/run/metrics.jsonl" << 'PYTHON'
import json
import statistics
import sys

steps = [r for r in map(json.loads, open(sys.argv[1])) if "wall_s" in r][4:]
tasklets = steps[0]["tasklets"]
if any(r["tasklets"] != tasklets for r in steps):
    sys.exit("tasklet_cost: steps differ in their tasklets")
micro = {p: statistics.median(r["phases_s"][p] for r in steps) * 1e6 / tasklets for p in steps[0]["phases_s"]}
print(f"{tasklets} tasklets a step, {steps[0]['bytes_down'] / tasklets:.0f} bytes down each, {len(steps)} steps")
print("microseconds a tasklet: " + ", ".join(f"{p} {v:.1f}" for p, v in micro.items()))
print(f"the server's own, without kernels: {sum(v for p, v in micro.items() if p not in ('wait', 'kernel')):.1f}")
PYTHON
