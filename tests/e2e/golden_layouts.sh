#!/usr/bin/env bash
# Layouts in stages that small devices ask for (heads in parts, rounds, mixtures with tiles) take reference runs of
# tests/golden to the parameters that tiles end with.
#
#   bash tests/e2e/golden_layouts.sh RANKS
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

tried=0
parameters_of() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))[0]["parameters_hash"])' "$1"; }
# like_tiles WHAT TEXT RANKS FILE MODEL WIRE DEVICES MEMORY: so many devices of so many kB take the reference file in stages, of which
# `plan` says TEXT, to the parameters that tiles end with.
like_tiles() {
  # Bits do not depend on the number of ranks (same_bits.sh): every third case on several.
  tried=$((tried + 1))
  [ "$3" = 0 ] || [ $((tried % 3)) = 1 ] || return 0
  local what="$1, $4 $6 $8" text=$2 ranks=$3 file=$TOP/tests/golden/$4.h5 model=$5 wire=$6 code
  local devices="fleet.devices=[{name: phone, count: $7, compute: 1 TFLOP/s, memory: $8 kB, downlink: 40 MB/s, uplink: 5 MB/s}]"
  local settings=(plan.wire="$wire" plan.layout=stages verify.mode=off "$devices")
  printf 'model: %s\ntrain: {batch: 4}\nfleet: {devices: []}\n' "$model" > "$scratch/shape.yaml"
  expect_code 0 "plan of $what" cleave_on 0 plan "$scratch/shape.yaml" "${settings[@]}"
  expect_text "plan of $what" "$text"
  code=$([ "$wire" = fp32 ] && echo 0 || echo 3)  # 16-bit operands cannot meet fp32's limits: golden.sh
  expect_code "$code" "$what" cleave_on "$ranks" check "$file" "${settings[@]}" --json "$scratch/stages.json"
  local tiles=$scratch/tiles-$4-$wire.json
  [ -s "$tiles" ] || expect_code "$code" "the same in tiles" cleave_on "$ranks" check "$file" plan.wire="$wire" plan.layout=tiles --json "$tiles"
  [ "$(parameters_of "$scratch/stages.json")" = "$(parameters_of "$tiles")" ] || fail "$what: other parameters"
}

# Devices that cannot hold the head: it goes in parts.
gpt2='{family: gpt2, n_layer: 1, n_head: 3, d_model: 9, d_ff: 31, vocab_size: 3331, seq_len: 19, max_pos: 23}'
opt='{family: opt, n_layer: 1, n_head: 3, d_model: 9, d_ff: 31, vocab_size: 4608, seq_len: 19, max_pos: 23}'
for case in "gpt2 fp32 300" "gpt2 fp16 250" "gpt2 bf16 250" "opt fp32 300" "opt fp16 250" "opt bf16 250"; do
  read -r family wire memory <<< "$case"
  like_tiles "a head in parts" 'head\.1' "$1" "${family}_words" "${!family}" "$wire" 12 "$memory"
done

# Devices that cannot hold all stages at once: they go in rounds.
gpt2_clip='{family: gpt2, n_layer: 3, n_head: 3, d_model: 48, vocab_size: 256, seq_len: 24, max_pos: 32}'
llama_gqa='{family: llama, n_layer: 2, n_head: 4, n_kv_head: 2, d_model: 64, d_ff: 172, vocab_size: 256, seq_len: 32}'
opt_small='{family: opt, n_layer: 2, n_head: 4, d_model: 64, vocab_size: 256, seq_len: 32, max_pos: 48}'
for case in "gpt2_clip fp32 400" "gpt2_clip fp16 300" "gpt2_clip bf16 250" "llama_gqa fp32 550" "llama_gqa fp16 350" "opt_small fp32 550" "opt_small bf16 350"; do
  read -r name wire memory <<< "$case"
  like_tiles rounds 'round 2 of' "$1" "$name" "${!name}" "$wire" 3 "$memory"
done

# Devices that have room for one half of a layer, and not for the other: that one runs in tiles between the stages. All
# reference runs but three with many words and one with hardly any, where whatever holds the rest holds a whole layer.
shape_of() {
  python3 - "$1" << 'PY'
import json, re, sys
config = json.loads(re.search(rb'\{"[^\0]*?"vocab_size"[^\0]*\}', open(sys.argv[1], "rb").read()).group(0))
keys = ["family", "vocab_size", "n_layer", "n_head", "d_model", "d_ff", "seq_len"] + (["n_kv_head"] if config["family"] == "llama" else ["max_pos"])
print("{" + ", ".join(f"{key}: {config[key]}" for key in keys) + "}")
PY
}
for case in "gpt2_clip fp32 193.7" "gpt2_clip bf16 145" "gpt2_odd fp32 371" "gpt2_small fp32 349.8" "gpt2_tiny fp32 6.66" \
  "llama_gqa fp32 275" "llama_gqa fp16 230" "llama_mha fp32 349.8" "llama_mqa fp32 824" "llama_tiny fp32 10.69" \
  "opt_odd fp32 824" "opt_small fp32 310" "opt_small fp16 220" "opt_tiny fp32 5.92"; do
  read -r name wire memory <<< "$case"
  like_tiles "a mixture" 'in tiles over all devices' "$1" "$name" "$(shape_of "$TOP/tests/golden/$name.h5")" "$wire" 6 "$memory"
done
