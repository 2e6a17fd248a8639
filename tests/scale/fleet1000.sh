#!/usr/bin/env bash
# The shipped fleet of 1000 devices on 3 ranks, one step: same bits as two devices give, and a server and ranks far below
# the 8 GiB that they may take. The whole run of 20 steps: docs/measurements/scale.md.
. "$(dirname "${BASH_SOURCE[0]}")/../e2e/lib.sh"

run=(train "$TOP/inputs/scale/fleet-1000.yaml" --quiet train.steps=1)
expect_code 0 "two devices" "$CLEAVE" "${run[@]}" 'fleet.devices=[{count: 2, compute: 1 TFLOP/s, memory: 4 GiB, downlink: 1 GB/s, uplink: 1 GB/s}]' \
  output.dir="$scratch/two"
expect_code 0 "1000 devices" launch 3 "$CLEAVE" "${run[@]}" output.dir="$scratch/many"
[ "$(hash_of "$scratch/many" 1)" = "$(hash_of "$scratch/two" 1)" ] || fail "1000 devices: other bits than two"
peak=$(grep -o 'peak memory: server [0-9.]* [KMG]iB' "$scratch/many/log.txt")
[[ $peak =~ server\ [0-9.]+\ [KM]iB ]] || fail "the server took too much: $peak"
[ "$(grep -o '"devices": [0-9]*' "$scratch/many/metrics.jsonl" | grep -o '[0-9]*')" -gt 100 ] || fail "most of the fleet was left out"
