#!/usr/bin/env bash
# The page in headless Chromium: of a run, of two, of a simulation, of a sweep. Skipped as node.sh says. Screenshots of 1400 and 400 pixels' width stay in $SCREENSHOTS.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
. "$here/node.sh"
. "$here/../e2e/lib.sh"
write_input
printf 'events:\n  - {at: 12 ms, device: 6, kind: leave}\n  - {at: 30 ms, device: 2, kind: slow, factor: 0.3}\n' > "$scratch/churn.yaml"
expect_code 0 "train" "$CLEAVE" train "$scratch/input.yaml"
expect_code 0 "train with churn" "$CLEAVE" train "$scratch/input.yaml" output.dir="$scratch/churned" "fleet.churn={trace: $scratch/churn.yaml}"
expect_code 0 "compare" "$CLEAVE" report "$scratch/run" "$scratch/churned" -o "$scratch/both.html"
expect_code 0 "simulate in stages" "$CLEAVE" simulate "$scratch/input.yaml" plan.layout=stages model.n_layer=6 fleet.devices.0.memory='3 MB' fleet.devices.1.memory='6 MB' --output "$scratch/staged"
[ -s "$scratch/staged/layout.json" ] || fail "a simulation in stages leaves no layout.json"
printf 'events:\n  - {at: 3 ms, device: 2, kind: leave}\n' > "$scratch/leave.yaml"
expect_code 0 "simulate losses" "$CLEAVE" simulate "$scratch/input.yaml" plan.layout=stages model.n_layer=6 simulate.steps=2 "fleet.churn={trace: $scratch/leave.yaml}" --output "$scratch/lossy"
expect_code 0 "simulate" "$CLEAVE" simulate "$scratch/input.yaml" --system all --output "$scratch/simulated"
expect_text "simulate names its report" 'report .*/simulated/report\.html'
expect_code 2 "simulate into a run's folder" "$CLEAVE" simulate "$scratch/input.yaml" --output "$scratch/run"
cat > "$scratch/spec.json" <<'JSON'
{"command": "simulate", "input": "input.yaml", "output": "sweep",
 "grid": {"plan.partition": ["auto", "rows"], "fleet.devices.0.count": [1, 4]},
 "plot": {"x": "fleet.devices.0.count", "y": ["step_s"], "series": "plan.partition"}}
JSON
expect_code 0 "sweep" python3 "$TOP/bench/sweep.py" "$scratch/spec.json" --program "$CLEAVE"
cp "$scratch/churned/report.html" "$SCREENSHOTS"
node "$here/browser.js" "$browser" "$scratch" "$SCREENSHOTS" || fail "the pages"
