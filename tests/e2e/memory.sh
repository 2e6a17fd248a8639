#!/usr/bin/env bash
# The memory that a run says beforehand that its server will take is what it then takes, within 10 %, on the model and the
# fleet of the quickstart, in each layout, and on six layers without emulation, where weights and sums are most of it.
#
#   bash tests/e2e/memory.sh RANKS
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# within_a_tenth LABEL INPUT OVERRIDE...
within_a_tenth() {
  local label=$1 input=$2 line
  shift 2
  expect_code 0 "$label" cleave_on "$ranks" train "$TOP/inputs/$input" "output.dir=$scratch/run" "$@"
  rm -rf "$scratch/run"
  line=$(grep -a 'peak memory: server' "$scratch/out") || { fail "$label: the run does not say what memory it took"; return; }
  awk -v line="$line" 'BEGIN {
    if (!match(line, /server [0-9.]+ MiB \(predicted [0-9.]+ MiB\)/)) { print "no figures in: " line; exit 1 }
    split(substr(line, RSTART, RLENGTH), word, /[ ()]+/)
    measured = word[2]; predicted = word[5]
    if (predicted < 0.9 * measured || predicted > 1.1 * measured) { print "not within 10 %: " line; exit 1 }
  }' || fail "$label: the forecast of the server's memory"
}

ranks=$1
quickstart=(quickstart.yaml train.steps=3 train.eval_every=3 train.eval_batches=2)
within_a_tenth tiles "${quickstart[@]}"
within_a_tenth stages "${quickstart[@]}" plan.layout=stages verify.mode=off
within_a_tenth "stages, fp16" "${quickstart[@]}" plan.layout=stages verify.mode=off plan.wire=fp16
parts=(quickstart.yaml model.d_model=128 model.d_ff=512 model.n_layer=2 model.vocab_size=40000 model.seq_len=128 train.batch=8 train.steps=2
  train.eval_every=0 checkpoint.every=0 plan.layout=stages verify.mode=off
  "fleet.devices=[{name: phone, count: 24, compute: [1 TFLOP/s, 4 TFLOP/s], memory: 24 MB, downlink: 50 MB/s, uplink: 10 MB/s}]")
expect_code 0 "plan of a head in parts" cleave_on 0 plan "$TOP/inputs/quickstart.yaml" "${parts[@]:1}"
expect_text "plan of a head in parts" 'head\.1'
within_a_tenth "a head in parts" "${parts[@]}"
within_a_tenth "a head in parts, fp16" "${parts[@]}" plan.wire=fp16
# mixture WIRE MEMORY: devices that have room for attention, and not for what comes after it.
mixture() {
  local settings=("${quickstart[@]:1}" model.n_layer=6 train.batch=32 plan.layout=stages verify.mode=off plan.wire="$1"
    "fleet.devices=[{name: phone, count: 8, compute: [1 TFLOP/s, 4 TFLOP/s], memory: $2, downlink: 50 MB/s, uplink: 10 MB/s}]")
  expect_code 0 "plan of a mixture" cleave_on 0 plan "$TOP/inputs/quickstart.yaml" "${settings[@]}"
  expect_text "plan of a mixture" 'in tiles over all devices'
  within_a_tenth "a mixture, $1" quickstart.yaml "${settings[@]}"
}
mixture fp32 '1380 kB'
mixture fp16 '1020 kB'
[ "$ranks" -le 3 ] || exit 0  # six layers have two devices
six_layers=(speed/six-layers.yaml train.steps=2 "data.text=$TOP/README.md")
within_a_tenth "six layers" "${six_layers[@]}"
within_a_tenth "six layers, fp16" "${six_layers[@]}" plan.wire=fp16
