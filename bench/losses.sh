#!/usr/bin/env bash
# What it costs to lose devices in the middle of an operation: OPT-13B on 256 devices, 1, 3 and 5 lost at once at several
# moments of a step; for every operation that was hit, the time split into detection, planning (real), re-sending and
# re-computing, and by how much it ended later, beyond the detection, as a share of its own time.
#
#   bash bench/losses.sh [key=value ...]          CLEAVE=/path/to/cleave
set -euo pipefail
TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CLEAVE=${CLEAVE:-$TOP/build/release/cleave}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo '| lost | at | operation | takes s | detection s | planning ms | re-sending s | re-computing s | added beyond detection s | share |'
echo '|---|---|---|---|---|---|---|---|---|---|'
for progress in ${PROGRESS:-0.1 0.15 0.2 0.25 0.6 0.8}; do
  for count in 1 3 5; do
    "$CLEAVE" simulate "$TOP/inputs/sim/cleave-256.yaml" simulate.loss.devices="$count" simulate.loss.progress="$progress" "$@" --json "$work/out.json" > /dev/null 2>&1
    python3 - "$work/out.json" "$count" "$progress" <<'PY'
import json, sys
for l in json.load(open(sys.argv[1]))[0].get("losses", []):
    beyond = max(0.0, l["added_s"] - l["detection_s"])
    print(f"| {sys.argv[2]} | {float(sys.argv[3]):.0%} | {l['operation']} | {l['operation_s']:.2f} | {l['detection_s']:.2f} | {l['planning_s'] * 1e3:.2f} "
          f"| {l['resending_s']:.2f} | {l['recomputing_s']:.2f} | {beyond:.3f} | {beyond / l['operation_s']:.1%} |")
PY
  done
done
