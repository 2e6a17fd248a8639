"""Checks the JSON of `cleave plan` for a layout in stages against docs/interface.md: check_plan.py PLAN.json MODEL.json.

MODEL.json has the keys of the input's section `model`; the sizes of its tensors are worked out here.
"""
import collections
import json
import sys

plan, model = (json.load(open(name)) for name in sys.argv[1:3])
faults = []


def check(good, text):
    if not good:
        faults.append(text)


def gpt2(d, ff, layer):
    h = f"transformer.h.{layer}."
    return {h + "attn.c_attn": (d, 3 * d), h + "attn.c_proj": (d, d)}, {h + "mlp.c_fc": (d, ff), h + "mlp.c_proj": (ff, d)}


def opt(d, ff, layer):
    h = f"model.decoder.layers.{layer}."
    return {h + f"self_attn.{x}_proj": (d, d) for x in ("q", "k", "v", "out")}, {h + "fc1": (d, ff), h + "fc2": (ff, d)}


def llama(d, ff, layer):
    h, kv = f"model.layers.{layer}.", d * model["n_kv_head"] // model["n_head"]
    return ({h + "self_attn.q_proj": (d, d), h + "self_attn.k_proj": (d, kv), h + "self_attn.v_proj": (d, kv), h + "self_attn.o_proj": (d, d)},
            {h + "mlp.gate_proj": (d, ff), h + "mlp.up_proj": (d, ff), h + "mlp.down_proj": (ff, d)})


family, d, layers = model["family"], model["d_model"], model["n_layer"]
halves, norm = {"gpt2": gpt2, "opt": opt, "llama": llama}[family], d if family == "llama" else 2 * d
tied = {"gpt2": "transformer.wte", "opt": "model.decoder.embed_tokens", "llama": "model.embed_tokens"}[family]
sizes, weights, pieces = {}, {}, []  # elements of tensors that have owners; bytes of each piece's weights, 2 a matrix's element and 4 a vector's
for layer in range(layers):
    for name, products in zip(("attn", "mlp"), halves(d, model["d_ff"], layer)):
        pieces.append(f"h.{layer}.{name}")
        weights[pieces[-1]] = 4 * norm
        for product, (k, n) in products.items():
            sizes[product + ".weight"] = k * n
            weights[pieces[-1]] += 2 * k * n
            if family != "llama":
                sizes[product + ".bias"] = n
                weights[pieces[-1]] += 4 * n
head = model["vocab_size"] * d
sizes[(tied if model["tie_embeddings"] else "lm_head") + ".weight"] = head
pieces.append("head")
weights["head"] = 2 * head + 4 * norm

check(plan["version"] == 1 and plan["layout"] == "stages", f"version {plan['version']}, layout {plan['layout']}")
check(0 < plan["floor_s"] <= plan["step_s"] and 0 < plan["lower_bound_s"] <= plan["step_s"],
      f"step {plan['step_s']}, bound {plan['lower_bound_s']}, floor {plan['floor_s']}")
check(plan["chunk_tokens"] > 0, f"chunk_tokens {plan['chunk_tokens']}")
memory = {device["id"]: device["memory"] for device in plan["devices"]}
held, fully = collections.Counter(), collections.Counter()

# Stages follow each other from the first piece to the head.
check(set(plan["stages"][0]) >= {"first", "last", "weights_bytes", "replicas", "memory_bytes"}, f"a stage has {set(plan['stages'][0])}")
place = 0
for number, stage in enumerate(plan["stages"]):
    first, last = pieces.index(stage["first"]), pieces.index(stage["last"])
    check(first == place and last >= first, f"stage {number} is {stage['first']} .. {stage['last']}, not from {pieces[place]}")
    place = last + 1
    expected = sum(weights[name] for name in pieces[first:place])
    check(stage["weights_bytes"] == expected, f"stage {number}: {stage['weights_bytes']} bytes of weights, not {expected}")
    check(stage["replicas"] and len(set(stage["replicas"])) == len(stage["replicas"]), f"stage {number}: replicas {stage['replicas']}")
    check(stage["memory_bytes"] > stage["weights_bytes"], f"stage {number}: memory_bytes {stage['memory_bytes']}")
    for device, full in zip(stage["replicas"], stage["replica_memory_bytes"]):
        held[device] += stage["memory_bytes"]
        fully[device] += full
        check(full >= stage["memory_bytes"], f"stage {number}: device {device} reserves {full}")
check(place == len(pieces), f"stages end at {pieces[place - 1]}")

# Slices fill every tensor exactly, without overlap, and lie in its stage.
fills = collections.defaultdict(list)
where = {}
for number, stage in enumerate(plan["stages"]):
    for name in pieces[pieces.index(stage["first"]):pieces.index(stage["last"]) + 1]:
        where[name] = number


def stage_of(tensor):
    layer = next((part for part in tensor.split(".") if part.isdigit()), None)
    if layer is None:
        return where["head"]
    return where[f"h.{layer}.attn" if "attn" in tensor else f"h.{layer}.mlp"]


for piece in plan["gradient_slices"]:
    check(set(piece) >= {"device", "stage", "tensor", "begin", "end", "memory_bytes"}, f"a slice has {set(piece)}")
    check(piece["device"] in memory, f"{piece['tensor']}: device {piece['device']}")
    check(piece["tensor"] in sizes, f"{piece['tensor']} has an owner")
    check(piece["begin"] < piece["end"], f"{piece['tensor']}: an empty slice")
    check(piece["tensor"] not in sizes or piece["stage"] == stage_of(piece["tensor"]), f"{piece['tensor']} in stage {piece['stage']}")
    fills[piece["tensor"]].append((piece["begin"], piece["end"]))
for piece in plan["gradient_slices"] + plan["further_groups"]:
    held[piece["device"]] += piece["memory_bytes"]
    fully[piece["device"]] += piece["memory_bytes"]
for tensor, size in sizes.items():
    at = 0
    for begin, end in sorted(fills[tensor]):
        check(begin == at, f"{tensor}: {begin} after {at}")
        at = end
    check(at == size, f"{tensor}: filled to {at} of {size}")
for counter in (held, fully):
    for device, taken in counter.items():
        check(taken <= memory[device], f"device {device}: {taken} bytes of {memory[device]}")
print("\n".join(faults[:20]) or "as docs/interface.md says")
sys.exit(1 if faults else 0)
