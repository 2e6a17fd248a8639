#!/usr/bin/env bash
# bench/sweep.py: 12 points, stopped in the middle, resumed, gathered and plotted by the same command; the array job.
# Skipped (77) without a python3 that has the yaml and matplotlib modules.
for python in python3 /usr/bin/python3; do
  ! "$python" -c 'import yaml, matplotlib' 2> /dev/null || break
  python=
done
[ -n "$python" ] || { echo "skipped: no python3 with yaml and matplotlib (python3-yaml, python3-matplotlib)"; exit 77; }
. "$(dirname "${BASH_SOURCE[0]}")/../e2e/lib.sh"
write_input
cat > "$scratch/spec.yaml" <<'YAML'
command: train
input: input.yaml
output: sweep
set: {train.steps: 3, checkpoint.every: 1, data.val_fraction: 0}
grid:
  plan.partition: [auto, rows, equal]
  fleet.devices.0.count: [1, 2, 4, 8]
plot: {x: fleet.devices.0.count, y: [step_s, loss], series: plan.partition}
slurm: {time: 5, at_once: 2}
YAML
sweep=("$python" "$TOP/bench/sweep.py" "$scratch/spec.yaml" --program "$CLEAVE")
# No Slurm answers, and at once: sinfo asks for a minute. sweep_slurm.sh has a real one.
mkdir "$scratch/bin"
printf '#!/bin/sh\nexit 1\n' > "$scratch/bin/sinfo"
chmod +x "$scratch/bin/sinfo"
count() { find "$scratch/sweep" -name "$1" 2> /dev/null | wc -l; }
enough() { [ "$(count done.json)" -ge 4 ]; }

# Killed outright, with whatever runs under it: nothing gets a chance to clean up.
setsid "${sweep[@]}" > "$scratch/first" 2>&1 &
first=$!
wait_for 120 enough || fail "four points in two minutes"
kill -KILL -- "-$first"
wait "$first" 2> /dev/null || true
done_before=$(count done.json)
[ "$done_before" -lt 12 ] || fail "all points were done before the stop: the test shows nothing"

expect_code 0 "resume" "${sweep[@]}"
[ "$(grep -c 'done before' "$scratch/out")" -eq "$done_before" ] || fail "points that were done ran again"
expect_text "all are gathered" '12 of 12 points, 12 rows'
expect_text "figures" 'figure .*/step_s\.png'
expect_text "a page" 'page .*/report\.html'
[ "$(wc -l < "$scratch/sweep/sweep.csv")" -eq 13 ] || fail "sweep.csv has not 12 rows"
for figure in step_s loss; do
  head -c 4 "$scratch/sweep/$figure.png" | grep -q PNG || fail "no figure of $figure"
done
# Whatever the partition and the fleet, the loss has the same bits; a resumed point's too.
losses=$("$python" -c 'import csv, sys; print(len({r["loss"] for r in csv.DictReader(open(sys.argv[1]))}))' "$scratch/sweep/sweep.csv")
[ "$losses" -eq 1 ] || fail "$losses different losses, not one"
expect_code 0 "again" "${sweep[@]}"
[ "$(grep -c 'done before' "$scratch/out")" -eq 12 ] || fail "a finished sweep ran points again"

# A changed override makes its points run again, and only them. The array is what is left.
sed -i 's/equal\]/grid]/' "$scratch/spec.yaml"
expect_code 0 "array" env PATH="$scratch/bin:$PATH" "${sweep[@]}" --slurm
grep -q -- '--array=8-11%2' "$scratch/sweep/array.sh" || fail "the array is not points 8 to 11, two at a time"
grep -q -- '--time=5' "$scratch/sweep/array.sh" || fail "the array lacks its time limit"
for task in 8 9 10 11; do
  expect_code 0 "task $task" env SLURM_ARRAY_TASK_ID=$task bash "$scratch/sweep/array.sh"
done
expect_code 0 "gather" bash "$scratch/sweep/gather.sh"
expect_text "the array's points are there" '12 of 12 points'
# With another input none is done.
echo '# another input' >> "$scratch/input.yaml"
expect_code 0 "another input" env PATH="$scratch/bin:$PATH" "${sweep[@]}" --slurm
grep -q -- '--array=0-11%2' "$scratch/sweep/array.sh" || fail "points of another input count as done"
printf 'command: train\ngird: {}\n' > "$scratch/bad.yaml"
expect_code 2 "bad spec" "$python" "$TOP/bench/sweep.py" "$scratch/bad.yaml"
expect_text "bad spec" "unknown key 'gird'"
# Faults of a spec are told of, not shown as the script's own.
refused() { # refused PATTERN SPEC.json-TEXT [ARGUMENT...]
  local pattern=$1
  printf '%s' "$2" > "$scratch/bad.json"
  shift 2
  expect_code 2 "bad spec: $pattern" "$python" "$TOP/bench/sweep.py" "$scratch/bad.json" "$@"
  expect_text "bad spec: $pattern" "sweep: .*$pattern"
}
spec='"command": "simulate", "input": "input.yaml", "output": "with blanks"'
refused 'systems: a list of names is needed' "{$spec, \"grid\": {\"train.batch\": [4]}, \"systems\": \"cleave\"}"
refused 'grid: key: values is needed' "{$spec, \"grid\": [4]}"
refused 'bad.json: ' "{$spec"
refused 'no point 7: they are 0 to 1' "{$spec, \"grid\": {\"train.batch\": [4, 8]}}" --point 7
printf 'command: [' > "$scratch/bad.yaml"
expect_code 2 "no YAML" "$python" "$TOP/bench/sweep.py" "$scratch/bad.yaml"
# sbatch ends an option at a blank that is not in quotes.
echo "{$spec, \"grid\": {\"train.batch\": [4, 8]}}" > "$scratch/blanks.json"
expect_code 0 "blanks in the path" env PATH="$scratch/bin:$PATH" "$python" "$TOP/bench/sweep.py" "$scratch/blanks.json" --program "$CLEAVE" --slurm
grep -qF "'--output=$scratch/with blanks/slurm-%a.txt'" "$scratch/with blanks/array.sh" || fail "the array's output is not in quotes"
