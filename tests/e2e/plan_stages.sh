#!/usr/bin/env bash
# `plan` of layouts in stages: its JSON for models of every family and devices of several sizes, the table, and what it
# says of an input that cannot be laid out. Needs python3 (exit code 77 without it).
command -v python3 > /dev/null || { echo "skipped: no python3"; exit 77; }
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
here=$TOP/tests/e2e

# plan_of MODEL MEMORY ARGUMENT...: the plan of a small model, given as JSON, on 30 devices.
plan_of() {
  printf '%s' "$1" > "$scratch/model.json"
  cat > "$scratch/input.yaml" <<YAML
model: $1
train: {batch: 12}
fleet:
  devices:
    - {name: edge, count: 30, compute: [50 GFLOP/s, 70 GFLOP/s], memory: $2, downlink: [1 MB/s, 10 MB/s], uplink: [500 kB/s, 1 MB/s], latency: 1 ms}
plan: {layout: stages, wire: fp16}
YAML
  shift 2
  "$CLEAVE" plan "$scratch/input.yaml" --json "$scratch/plan.json" "$@"
}

checked=0 several_groups=0
for model in \
  '{"family": "gpt2", "n_layer": 3, "n_head": 8, "d_model": 128, "d_ff": 512, "vocab_size": 643, "seq_len": 256, "tie_embeddings": true}' \
  '{"family": "gpt2", "n_layer": 2, "n_head": 4, "d_model": 64, "d_ff": 200, "vocab_size": 301, "seq_len": 256, "tie_embeddings": false}' \
  '{"family": "opt", "n_layer": 4, "n_head": 8, "d_model": 128, "d_ff": 512, "vocab_size": 640, "seq_len": 256, "tie_embeddings": true}' \
  '{"family": "opt", "n_layer": 3, "n_head": 8, "d_model": 128, "d_ff": 500, "vocab_size": 1001, "seq_len": 384, "tie_embeddings": false}' \
  '{"family": "llama", "n_layer": 3, "n_head": 8, "n_kv_head": 2, "d_model": 128, "d_ff": 344, "vocab_size": 640, "seq_len": 256, "tie_embeddings": false}' \
  '{"family": "llama", "n_layer": 4, "n_head": 8, "n_kv_head": 4, "d_model": 128, "d_ff": 344, "vocab_size": 777, "seq_len": 256, "tie_embeddings": true}'; do
  for memory in '[3 MB, 5 MB]' '[3 MB, 30 MB]' '200 MB'; do
    for uplink in '[500 kB/s, 1 MB/s]' '[4 MB/s, 10 MB/s]'; do
      expect_code 0 "$model, $memory" plan_of "$model" "$memory" "fleet.devices.0.uplink=$uplink" server.nic_out='60 MB/s'
      expect_text "$model, $memory" 'taken longest: .* of stage [0-9]+'
      expect_code 0 "$model, $memory, $uplink: JSON" python3 "$here/check_plan.py" "$scratch/plan.json" "$scratch/model.json"
      checked=$((checked + 1))
      ! grep -q '"group": [1-9]' "$scratch/plan.json" || several_groups=$((several_groups + 1))
    done
  done
done
[ "$checked" -eq 36 ] || fail "$checked plans were checked"
[ "$several_groups" -gt 0 ] || fail "no plan has several groups of owners: the test shows nothing of them"

# What fits no device, and what fits no fleet: which device lacks how much.
small='{"family": "opt", "n_layer": 4, "n_head": 8, "d_model": 128, "d_ff": 512, "vocab_size": 640, "seq_len": 256}'
expect_code 2 "a piece that fits no device" plan_of "$small" '400 kB'
expect_text "a piece that fits no device" "'h\.0\.(attn|mlp)'.* device [0-9]+ \(edge, 400\.0 kB\).* lacks [0-9.]+ [kM]B"
expect_code 2 "a fleet that is too small" plan_of "$small" '3 MB' 'fleet.devices.0.count=2'
expect_text "a fleet that is too small" 'a layout was found for [0-9.]+ times the memory: device [0-9]+ \(edge, 3\.0 MB\), which has most, lacks [0-9.]+ MB'
