#!/usr/bin/env bash
# A fleet so short of memory that the critical path leaves next to none for anything beside it is planned all the same, in
# seconds: OPT-13B on 32 devices of 512 MB. Devices that would be given a million blocks are not asked. CTest's time
# limit is the expectation: it took a quarter of an hour when they were.
#
#   bash tests/e2e/short_of_memory.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

fleet='{name: edge, count: 32, compute: [5 TFLOP/s, 7 TFLOP/s], memory: 512 MB, downlink: [10 MB/s, 100 MB/s], uplink: [5 MB/s, 10 MB/s]}'
expect_code 0 simulate cleave_on 0 simulate "$TOP/inputs/sim/cleave-256.yaml" --system cleave "fleet.devices=[$fleet]" \
  fleet.seed=42 --json "$scratch/report.json"
python3 - "$scratch/report.json" <<'PYTHON' || fail "no step that its memory allows"
import json, sys
report = json.load(open(sys.argv[1]))[0]
print(report["layout"], report["step_s"], report["device_memory_max"])
sys.exit(not (report["feasible"] and report["step_s"] >= report["lower_bound_s"] and report["device_memory_max"] <= 512e6))
PYTHON

# And where devices come and go, so that those that are there at a time have no room for all weights and sums at once: 256
# of them, of which a third is away. The step in stages goes on, sequences first; it took 35 times as long in tiles.
fleet='{name: edge, count: 256, compute: [5 TFLOP/s, 7 TFLOP/s], memory: 512 MB, downlink: [50 MB/s, 100 MB/s], uplink: [50 MB/s, 100 MB/s]}'
expect_code 0 sessions cleave_on 0 simulate "$TOP/inputs/sim/cleave-256.yaml" --system cleave "fleet.devices=[$fleet]" \
  fleet.seed=42 'fleet.churn={mean_session: 20 min, mean_absence: 10 min}' simulate.steps=2 --json "$scratch/sessions.json"
python3 - "$scratch/sessions.json" <<'PYTHON' || fail "no step in stages under sessions"
import json, sys
report = json.load(open(sys.argv[1]))[0]
print(report["layout"], report["step_s"], report["device_memory_max"])
sys.exit(not (report["feasible"] and "stages" in report["layout"] and report["lower_bound_s"] <= report["step_s"] < 1000
              and report["device_memory_max"] <= 512e6))
PYTHON
