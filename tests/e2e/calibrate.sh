#!/usr/bin/env bash
# calibrate writes a fragment that is a legal input, and refuses what no host can carry.
#
#   bash tests/e2e/calibrate.sh RANKS
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

ranks=$1
write_input
expect_code 0 "calibrate" cleave_on "$ranks" calibrate -o "$scratch/host.yaml"
grep -q '^server: ' "$scratch/host.yaml" || fail "no server: in the fragment"
[ "$ranks" -eq 0 ] || for rank in $(seq $((ranks - 1))); do
  grep -Eq "^# rank $rank on .*/s there, .*/s back, latency " "$scratch/host.yaml" || fail "nothing of rank $rank"
done
{
  echo 'model: {family: gpt2, n_layer: 1, n_head: 1, d_model: 32}'
  cat "$scratch/host.yaml"
} > "$scratch/study.yaml"
expect_code 0 "the fragment is an input" "$CLEAVE" simulate "$scratch/study.yaml" --json "$scratch/step.json"

# A second a message: any host keeps up with that. A thousand fast devices on fast links: none does.
sed 's/latency: [0-9]* us/latency: 1 s/' "$scratch/input.yaml" > "$scratch/slow.yaml"
expect_code 0 "a slow fleet" cleave_on "$ranks" calibrate "$scratch/slow.yaml"
expect_text "a slow fleet" 'these hosts can carry the study'
cat > "$scratch/fast.yaml" <<'YAML'
model: {preset: opt-1.3b}
train: {batch: 128}
fleet: {devices: [{count: 200, compute: 100 TFLOP/s, memory: 64 GiB, downlink: 100 GB/s, uplink: 100 GB/s}]}
server: {nic_out: 10 TB/s, nic_in: 10 TB/s, compute: 1 PFLOP/s, memory_bandwidth: 100 TB/s}
YAML
expect_code 3 "a fast fleet" cleave_on "$ranks" calibrate "$scratch/fast.yaml"
expect_text "a fast fleet" 'cannot carry the study .* need .* and there are '
# For longer than ranks wait for each other to end: the others have gone by then.
if [ "$ranks" -gt 0 ]; then
  expect_code 3 "a study that takes long to simulate" cleave_on "$ranks" calibrate "$scratch/fast.yaml" simulate.steps=90
  expect_text "a study that takes long to simulate" 'cannot carry the study .* need .* and there are '
fi
expect_code 2 "a wrong input" cleave_on "$ranks" calibrate "$scratch/input.yaml" fleet.clok=wall
