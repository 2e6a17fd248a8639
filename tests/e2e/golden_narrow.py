#!/usr/bin/env python3
"""Reference runs with 16 bits on the wire, or 8 between stages: golden_narrow.py TYPE TILES.json STAGES.json.

The figures of `cleave check --json` are held against limits for the type, and each file's parameters must end with
the same bits in tiles and in stages.
"""
import json
import sys

# Roundings of 11 and of 8 bits: about twice the largest figure of 12 files on 24 November 2026. mxint8, beside fp16: 8 bits
# and fewer, about twice the largest of 15 files on 30 November 2026.
LIMITS = {
    "loss": (1e-2, 4e-2, 1.1e-1),
    "grad_norm (relative)": (6e-2, 2e-1, 4e-1),
    "logits_step0": (5e-2, 4e-1, 7e-1),
    "grads_step0 (relative L2)": (6e-2, 2e-1, 4.4e-1),
    "grads_step0 where exactly 0": (5e-5, 1e-3, 6e-5),
    "params_final (of the update)": (3e-1, 4e-1, 1.0),
    "loss_after": (1e-2, 4e-2, 8e-2),
}


def main():
    wire, tiles, stages = sys.argv[1], *(json.load(open(path)) for path in sys.argv[2:4])
    column = {"fp16": 0, "bf16": 1, "mxint8": 2}[wire]
    faults = []
    if not tiles or len(tiles) != len(stages):
        faults.append(f"{len(tiles)} files in tiles, {len(stages)} in stages")
    for in_tiles, in_stages in zip(tiles, stages):
        if in_tiles["parameters_hash"] != in_stages["parameters_hash"]:
            faults.append(f"{in_tiles['file']}: other parameters in stages")
        for figure in in_tiles["figures"]:
            if not figure["worst"] <= LIMITS[figure["name"]][column]:
                faults.append(f"{in_tiles['file']}: {figure['name']} is {figure['worst']:.3g} at {figure['where']}")
    for fault in faults:
        print(fault)
    print(f"{len(tiles)} files in {wire}: {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
