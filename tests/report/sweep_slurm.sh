#!/usr/bin/env bash
# bench/sweep.py --slurm on a real one-node Slurm of its own: one command submits the array and the job that gathers.
# Skipped (77) where Slurm cannot run.
here=$(dirname "${BASH_SOURCE[0]}")
. "$here/../e2e/lib.sh"
. "$here/../slurm/slurm.sh"
missing=$(slurm_missing)
[ -z "$missing" ] || skip "$missing"
slurm_up_or_skip "$scratch/slurm"
trap 'slurm_down; finish' EXIT
write_input
cat > "$scratch/spec.json" <<'JSON'
{"command": "simulate", "input": "input.yaml", "output": "sweep",
 "grid": {"plan.partition": ["auto", "rows", "equal"], "fleet.devices.0.count": [1, 2, 4, 8]},
 "slurm": {"time": 5, "at_once": 4}}
JSON
expect_code 0 "submit" python3 "$TOP/bench/sweep.py" "$scratch/spec.json" --program "$CLEAVE" --slurm
expect_text "submit" 'array job [0-9]+ for 12 points; job [0-9]+ gathers after it'
gathered() { grep -q '12 of 12 points, 12 rows' "$scratch/sweep/slurm-gather.txt" 2> /dev/null && [ -s "$scratch/sweep/report.html" ]; }
wait_for 240 gathered || { fail "the array did not end in four minutes"; squeue; cat "$scratch"/sweep/slurm-*.txt; }
