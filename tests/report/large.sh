#!/usr/bin/env bash
# 1000 devices and 200 steps: files and page stay bounded, and the page opens within 3 s of processor time. Skipped as node.sh says.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
. "$here/node.sh"
. "$here/../e2e/lib.sh"
write_input
expect_code 0 "train" "$CLEAVE" train "$scratch/input.yaml" --quiet train.steps=200 train.eval_every=50 checkpoint.every=200 \
  fleet.devices.0.count=700 fleet.devices.1.count=300 verify.mode=off
expect_code 0 "8 devices" "$CLEAVE" train "$scratch/input.yaml" --quiet train.steps=200 output.dir="$scratch/small" verify.mode=off
bytes() { stat -c %s "$1"; }
[ "$(bytes "$scratch/small/report.html")" -le 2000000 ] || fail "the page of 8 devices has $(bytes "$scratch/small/report.html") bytes"
[ "$(bytes "$scratch/run/report.html")" -le 4000000 ] || fail "the page of 1000 devices has $(bytes "$scratch/run/report.html") bytes"
[ "$(bytes "$scratch/run/trace.json")" -le 20000000 ] || fail "the trace of 1000 devices has $(bytes "$scratch/run/trace.json") bytes"
node "$here/large.js" "$browser" "$scratch/run/report.html" "$SCREENSHOTS" || fail "the page of 1000 devices"
printf 'bytes of report.html: %s (8 devices), %s (1000)\n' "$(bytes "$scratch/small/report.html")" "$(bytes "$scratch/run/report.html")"
