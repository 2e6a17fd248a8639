#!/usr/bin/env bash
# The trained parameters are the same bytes whatever computed them.
#
#   bash tests/e2e/same_bits.sh RANKS     every clock, equal and auto cuts, one and two server threads, on RANKS ranks
#   bash tests/e2e/same_bits.sh fleets    other fleets, cuts and faults, within one process
#   bash tests/e2e/same_bits.sh panels    operands in panels, as to ranks of other hosts, on three ranks
#   bash tests/e2e/same_bits.sh stages    devices that hold weights for a step, fp16 on the wire, on three ranks
#
# Every run is compared with one that the server computes on a fleet of a single device.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

write_input
number=0
# Large enough for panels: products in rows, weight gradients (of 2048 tokens) in runs of k, attention in pairs.
common=()
if [ "$1" = panels ]; then
  common=(model.n_layer=1 model.n_head=4 model.d_model=256 model.seq_len=256 train.batch=8 fleet.shared_memory=false)
fi
if [ "$1" = stages ]; then common=(plan.wire=fp16 model.seq_len=200); fi
# same LABEL RANKS OVERRIDE...
same() {
  local label=$1 ranks=$2 folder
  shift 2
  number=$((number + 1))
  folder=$scratch/run$number
  expect_code 0 "$label" cleave_on "$ranks" train "$scratch/input.yaml" --quiet "output.dir=$folder" \
    "${common[@]}" "$@"
  [ "$(hash_of "$folder" 4)" = "$wanted" ] || fail "$label: other bits than the reference"
  cp "$folder/metrics.jsonl" "$scratch/"
  rm -rf "$folder"
}
# Every 2 ms a device leaves, or one that is away comes back; now and then one hangs. Device 7 stays.
write_trace() {
  local i device kind state=(in in in in in in in)
  echo 'events:' > "$scratch/trace.yaml"
  for i in $(seq 1 500); do
    device=$((i * i * 31 % 101 % 7))
    if [ "${state[device]}" != in ]; then
      state[device]=in
      kind="join"
    elif [ $((i % 5)) -eq 0 ]; then
      state[device]=out
      kind=hang
    else
      state[device]=out
      kind=leave
    fi
    echo "  - {at: $((2 * i)) ms, device: $device, kind: $kind}" >> "$scratch/trace.yaml"
  done
}

expect_code 0 reference cleave_on 0 train "$scratch/input.yaml" --quiet "output.dir=$scratch/reference" "${common[@]}" \
  'fleet.devices=[{name: one, compute: 1 TFLOP/s, memory: 1 GiB, downlink: 1 GB/s, uplink: 1 GB/s}]'
wanted=$(hash_of "$scratch/reference" 4)
before=$(hash_of "$scratch/reference" 2)
if [ -z "$wanted" ] || [ "$wanted" = "$before" ]; then fail "the hash does not follow the parameters"; fi

if [ "$1" = fleets ]; then
  for cut in rows grid paper; do same "partition $cut" 0 "plan.partition=$cut"; done
  same "40 devices" 0 fleet.devices.0.count=37
  same "no verification" 0 verify.mode=off
  same "sampled verification" 0 verify.mode=sample
  same "small memories" 0 'fleet.devices.0.memory=256 KiB'
  same "jitter" 0 'fleet.devices.0.jitter=5 ms'
  write_trace
  same "devices that come, go and hang" 0 "fleet.churn={trace: $scratch/trace.yaml}"
  grep -Eq '"lost": ?[1-9]' "$scratch/metrics.jsonl" || fail "the trace of churn hit nothing"
  for seed in 1 2 3; do
    same "devices that are slow, seed $seed" 0 "fleet.churn={slow_fraction: 0.5, slow_factor: 0.1, seed: $seed}"
    same "devices that lie, seed $seed" 0 "fleet.churn={lie_fraction: 0.4, seed: $seed}"
  done
elif [ "$1" = stages ]; then
  stages=(plan.layout=stages verify.mode=off)
  for clock in virtual wall off; do same "stages, clock $clock" 3 "fleet.clock=$clock" "${stages[@]}"; done
  for owners in replicas apart; do same "stages, owners: $owners" 3 "${stages[@]}" "plan.owners=$owners"; done
  same "stages, chunks of 128" 3 "${stages[@]}" plan.chunk_tokens=128 server.threads=2
  same "stages, a whole fleet" 0 "${stages[@]}" fleet.devices.0.count=23
  same "tiles" 3 verify.mode=off
  write_trace
  same "stages of devices that come, go and hang" 3 "${stages[@]}" "fleet.churn={trace: $scratch/trace.yaml}"
  grep -Eq '"lost": ?[1-9]' "$scratch/metrics.jsonl" || fail "the trace of churn hit nothing"
  printf 'events:\n  - {at: 0 ms, device: 1, kind: slow, factor: 0.001}\n' > "$scratch/trace.yaml"
  for clock in virtual wall; do
    same "stages, a device that turns out slow, clock $clock" 3 "fleet.clock=$clock" "${stages[@]}" "fleet.churn={trace: $scratch/trace.yaml}"
  done
elif [ "$1" = panels ]; then
  few=(fleet.devices.0.count=2 fleet.devices.1.count=1)
  for clock in virtual off; do
    same "panels, clock $clock" 3 "fleet.clock=$clock" "${few[@]}"
    same "panels, clock $clock, whole fleet" 3 "fleet.clock=$clock" verify.mode=off
  done
  same "panels beside weights that stay" 3 fleet.clock=off plan.row_groups=2 plan.keep_weights=always
  write_trace
  same "panels of devices that come, go and hang" 3 fleet.clock=off "fleet.churn={trace: $scratch/trace.yaml}"
  same "panels of devices that lie" 3 "${few[@]}" 'fleet.churn={lie_fraction: 0.4, seed: 1}'
else
  for clock in virtual wall off; do
    for cut in equal auto; do
      for threads in 1 2; do
        same "$1 ranks, clock $clock, $cut, $threads threads" "$1" "fleet.clock=$clock" "plan.partition=$cut" \
          "server.threads=$threads"
      done
    done
  done
fi
