#!/usr/bin/env bash
# What it costs to lose devices in the middle of an operation: OPT-13B on 256 devices, 1, 3 and 5 lost at once at several
# moments of a step; for every operation that was hit, the time split into detection, planning (processor time),
# re-sending and re-computing, and by how much it ended later than in the undisturbed step, detection excluded, as a share
# of its own time. Then by how much the step ended later, beside the share of it that the lost devices would have done.
#
#   bash bench/losses.sh [key=value ...]          CLEAVE=/path/to/cleave  PROGRESS='0.2 0.6'
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
study = json.load(open(sys.argv[1]))[0]
if not study.get("losses"):
    sys.exit(f"losses: {sys.argv[2]} devices lost at {sys.argv[3]} of the step hit no operation")
for l in study.get("losses", []):
    beyond = max(0.0, l["added_s"] - l["detection_s"])
    print(f"| {sys.argv[2]} | {float(sys.argv[3]):.0%} | {l['operation']} | {l['operation_s']:.2f} | {l['detection_s']:.2f} | {l['planning_s'] * 1e3:.2f} "
          f"| {l['resending_s']:.2f} | {l['recomputing_s']:.2f} | {beyond:.3f} | {beyond / l['operation_s']:.1%} |")
count, progress, step = int(sys.argv[2]), float(sys.argv[3]), study["step_s"]
away = (1 - progress) * step * count / (study["devices"] - count)
print(f"| {count} | {progress:.0%} | *step* | {step:.2f} | | | | | {study['recovery_s']:.3f} (their share of what was left to do: {away:.3f}) | {study['recovery_s'] / step:.1%} |")
PY
  done
done
