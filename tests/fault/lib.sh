# shellcheck shell=bash
# What the fault scripts share. Sourced; expects $work, a scratch folder.

# write_small_input STEPS KEEP: a run of a second or so with a checkpoint every other step, in $work/input.yaml.
write_small_input() {
  { yes 'The quick brown fox jumps over the lazy dog; pack my box with five dozen liquor jugs.' 2> /dev/null || true; } |
    head -n 400 > "$work/text.txt"
  cat > "$work/input.yaml" <<YAML
model: {family: gpt2, n_layer: 2, n_head: 2, d_model: 64, seq_len: 32}
data: {text: text.txt}
train: {steps: $1, batch: 8}
fleet:
  devices:
    - {name: a, count: 3, compute: 1 TFLOP/s, memory: 64 MiB, downlink: 100 MB/s, uplink: 50 MB/s}
checkpoint: {every: 2, keep: $2}
output: {dir: run}
YAML
}
