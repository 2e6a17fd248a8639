#!/usr/bin/env bash
# timeline.json and trace.json against metrics.jsonl, and the report command. Needs python3 (exit code 77 without it).
command -v python3 > /dev/null || { echo "skipped: no python3"; exit 77; }
. "$(dirname "${BASH_SOURCE[0]}")/../e2e/lib.sh"
here=$TOP/tests/report

write_input
expect_code 0 "train" "$CLEAVE" train "$scratch/input.yaml"
expect_text "train names its report" 'report .*/run/report\.html'
expect_code 0 "undisturbed" python3 "$here/check_files.py" "$scratch/run" exact
cat > "$scratch/churn.yaml" <<'YAML'
events:
  - {at: 5 ms, device: 1, kind: leave}
  - {at: 12 ms, device: 6, kind: leave}
  - {at: 30 ms, device: 1, kind: join}
  - {at: 40 ms, device: 2, kind: slow, factor: 0.2}
YAML
expect_code 0 "train with churn" "$CLEAVE" train "$scratch/input.yaml" output.dir="$scratch/second" \
  "fleet.churn={trace: $scratch/churn.yaml}"
expect_code 0 "disturbed" python3 "$here/check_files.py" "$scratch/second" disturbed
# Real clocks: the model followed in real time, and what the devices tell of themselves.
for clock in off wall; do
  expect_code 0 "train, clock $clock" "$CLEAVE" train "$scratch/input.yaml" output.dir="$scratch/$clock" train.steps=2 \
    fleet.clock=$clock 'fleet.devices=[{name: phone, count: 3, compute: 5 GFLOP/s, memory: 512 MiB, downlink: 20 MB/s, uplink: 10 MB/s, latency: 1 ms}]'
  expect_code 0 "clock $clock" python3 "$here/check_files.py" "$scratch/$clock" $clock
done
# Where the server's real time went: phases that add up to the steps, for the types of operation that the model has.
expect_code 0 "train with a profile" "$CLEAVE" train "$scratch/input.yaml" output.dir="$scratch/profiled" output.profile=true
expect_text "train with a profile" "the server's real time, a step: kernel "
expect_code 0 "profile" python3 "$here/check_profile.py" "$scratch/profiled"
expect_code 0 "report" "$CLEAVE" report "$scratch/run" "$scratch/second" -o "$scratch/both.html"
grep -q '"name":"second"' "$scratch/both.html" || fail "the comparison lacks a run"
mkdir "$scratch/empty"
expect_code 2 "report of nothing" "$CLEAVE" report "$scratch/empty"
expect_text "report of nothing" 'neither metrics.jsonl nor simulate.json'
# A simulated step in stages: what its devices did, and the layout that the report draws.
expect_code 0 "simulate in stages" "$CLEAVE" simulate "$scratch/input.yaml" plan.layout=stages model.n_layer=6 --output "$scratch/staged"
expect_code 0 "stages" python3 "$here/check_stages.py" "$scratch/staged"
expect_code 0 "simulate in tiles, same folder" "$CLEAVE" simulate "$scratch/input.yaml" plan.layout=tiles --output "$scratch/staged"
[ ! -e "$scratch/staged/layout.json" ] || fail "the layout of an earlier simulation is left"
