#!/usr/bin/env bash
# Models and tokens that exist already: token files of both kinds, generation by token ids, a model of another writer
# that is imported, fine-tuned with frozen tensors and exported, and models that no host here can hold.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# python PROGRAM ARGUMENT...: with the standard library alone.
python() {
  local program=$1
  shift
  /usr/bin/python3 -c "$program" "$@" || fail "the test's own Python program failed"
}

write_input

# --- Token files: 4000 ids of a vocabulary of 301, raw as nanoGPT writes them and under llm.c's header.
python '
import struct, sys
ids = [(i * i * 7 + i // 5) % 301 for i in range(4000)]
raw = struct.pack("<%dH" % len(ids), *ids)
open(sys.argv[1] + "/raw.bin", "wb").write(raw)
open(sys.argv[1] + "/header.bin", "wb").write(struct.pack("<256i", 20240520, 1, len(ids), *[0] * 253) + raw)
' "$scratch"
for kind in raw header; do
  sed "s/{text: text, tokenizer: byte, /{tokens: $kind.bin, /; s/d_model: 32/d_model: 32, vocab_size: 301/; s/dir: run/dir: $kind/" \
    "$scratch/input.yaml" > "$scratch/$kind.yaml"
  expect_code 0 "training on $kind.bin" "$CLEAVE" train "$scratch/$kind.yaml" --quiet
done
[ "$(hash_of "$scratch/raw" 4)" = "$(hash_of "$scratch/header" 4)" ] || fail "the two token files train different models"
tokens_model=$scratch/raw/checkpoint-4.h5
expect_code 0 "generate by ids" "$CLEAVE" generate "$tokens_model" --prompt-tokens 7,300,0 --tokens 9 --seed 2
[ "$(grep -Eo '[0-9]+' "$scratch/out" | tail -n 9 | awk '$1 < 301' | wc -l)" -eq 9 ] || fail "generate wrote no ids"
expect_code 2 "text for a model of ids" "$CLEAVE" generate "$tokens_model" --prompt hello
expect_text "text for a model of ids" '--prompt-tokens'
expect_code 2 "an id beyond the vocabulary" "$CLEAVE" generate "$tokens_model" --prompt-tokens 7,301
expect_text "an id beyond the vocabulary" '301'
expect_code 2 "a token file with ids beyond the vocabulary" \
  "$CLEAVE" train "$scratch/raw.yaml" model.vocab_size=300 "output.dir=$scratch/none"
expect_text "a token file with ids beyond the vocabulary" 'data\.tokens|vocab'
[ ! -e "$scratch/none" ] || fail "a refused run left a folder"

# --- A safetensors file by another writer, under the Hub's names, is imported, fine-tuned in part, and exported.
python '
import json, math, struct, sys
d, layers, vocab, positions = 32, 2, 256, 64
shapes = {"wte.weight": [vocab, d], "wpe.weight": [positions, d], "ln_f.weight": [d], "ln_f.bias": [d]}
for l in range(layers):
    for part, shape in {"ln_1.weight": [d], "ln_1.bias": [d], "attn.c_attn.weight": [d, 3 * d], "attn.c_attn.bias": [3 * d],
                        "attn.c_proj.weight": [d, d], "attn.c_proj.bias": [d], "ln_2.weight": [d], "ln_2.bias": [d],
                        "mlp.c_fc.weight": [d, 4 * d], "mlp.c_fc.bias": [4 * d], "mlp.c_proj.weight": [4 * d, d],
                        "mlp.c_proj.bias": [d]}.items():
        shapes["h.%d.%s" % (l, part)] = shape
header, data = {}, b""
for name, shape in shapes.items():
    size = math.prod(shape)
    gain = name.endswith("weight") and len(shape) == 1
    part = struct.pack("<%df" % size, *[1.0 if gain else 0.05 * math.sin(0.7 * i + len(name)) for i in range(size)])
    header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(part)]}
    data += part
text = json.dumps(header).encode()
open(sys.argv[1] + "/model.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + data)
json.dump({"model_type": "gpt2", "vocab_size": vocab, "n_positions": positions, "n_embd": d, "n_layer": layers, "n_head": 2,
           "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5}, open(sys.argv[1] + "/config.json", "w"))
' "$scratch"
expect_code 0 "import" "$CLEAVE" import "$scratch/model.safetensors" "$scratch/imported.h5"
frozen='train.freeze=[transformer.wte.weight, "transformer.h.0.*"]'
expect_code 0 "fine-tuning" "$CLEAVE" train "$scratch/input.yaml" --quiet "model.init=$scratch/imported.h5" "$frozen"
expect_code 0 "fine-tuning on other devices" "$CLEAVE" train "$scratch/input.yaml" --quiet "model.init=$scratch/imported.h5" \
  "$frozen" "output.dir=$scratch/other" fleet.devices.0.count=1 plan.partition=grid
[ "$(hash_of "$scratch/run" 4)" = "$(hash_of "$scratch/other" 4)" ] || fail "fine-tuned bits depend on the fleet"
expect_code 0 "export" "$CLEAVE" export "$scratch/run/checkpoint-4.h5" "$scratch/tuned.safetensors"
python '
import json, struct, sys
def read(path):
    raw = open(path, "rb").read()
    size, = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8:8 + size])
    return {name.removeprefix("transformer."): raw[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]]
            for name, t in header.items() if name != "__metadata__"}
before, after = (read(sys.argv[1] + name) for name in ("/model.safetensors", "/tuned.safetensors"))
assert before.keys() == after.keys(), before.keys() ^ after.keys()
same = {name for name in before if before[name] == after[name]}
assert same == {name for name in before if name == "wte.weight" or name.startswith("h.0.")}, same
' "$scratch"
expect_code 2 "a pattern that matches nothing" "$CLEAVE" train "$scratch/input.yaml" 'train.freeze=[transformer.h.9.*]' \
  "output.dir=$scratch/none"
expect_text "a pattern that matches nothing" 'train\.freeze.*h\.9'

# --- Models beyond this host are refused before anything is made, with the figures.
for preset in opt-66b llama2-70b; do
  expect_code 2 "$preset" "$CLEAVE" train "$scratch/input.yaml" "model={preset: $preset, seq_len: 64}" "output.dir=$scratch/none"
  expect_text "$preset" 'parameters and moments [0-9.]+ (G|T)iB, activations and gradients [0-9.]+ .iB.* is free'
  [ ! -e "$scratch/none" ] || fail "$preset left a folder"
done
