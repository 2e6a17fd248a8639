#!/usr/bin/env python3
"""What each idea brings: one simulated step of OPT-13B, ideas added one after another, on several fleets.

    python3 bench/ablation.py [--program build/release/cleave] [--devices N]

Each line keeps what the lines above it brought. Fleets: the published one (inputs/sim/cleave-256.yaml), the same with
symmetric links, and phones beside laptops. Prints step times in seconds, each with the gain over the line above it.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

TOP = pathlib.Path(__file__).resolve().parent.parent
IDEAS = [
    ("two dimensions", {"plan.layout": "tiles", "plan.partition": "grid", "plan.panels": "1", "plan.asynchronous": "false",
                        "plan.row_groups": "1", "plan.wire": "fp32"}),
    ("+ cuts of k", {"plan.partition": "auto"}),
    ("+ streaming", {"plan.panels": "32"}),
    ("+ asynchronous DAG", {"plan.asynchronous": "true"}),
    ("+ two row groups", {"plan.row_groups": "2", "plan.keep_weights": "never"}),
    ("+ fp16 on the wire", {"plan.wire": "fp16"}),
    ("+ eight row groups, weights kept", {"plan.row_groups": "8", "plan.keep_weights": "auto"}),
    ("+ stages, where they are quicker", {"plan.layout": "auto", "plan.row_groups": "auto"}),
]


def group(name, count, compute, memory, down, up):
    return {"name": name, "count": count, "compute": compute, "memory": memory, "downlink": down, "uplink": up,
            "latency": "0 ms"}


def fleets(devices):
    few = devices // 8
    return {
        "published": [group("edge", devices, ["5 TFLOP/s", "7 TFLOP/s"], ["1 GB", "3 GB"], ["10 MB/s", "100 MB/s"],
                            ["5 MB/s", "10 MB/s"])],
        "symmetric links": [group("edge", devices, ["5 TFLOP/s", "7 TFLOP/s"], ["1 GB", "3 GB"],
                                  ["10 MB/s", "100 MB/s"], ["10 MB/s", "100 MB/s"])],
        "phones and laptops": [group("phone", devices - few, ["0.7 TFLOP/s", "2.2 TFLOP/s"], "512 MB",
                                     ["5 MB/s", "30 MB/s"], ["2 MB/s", "8 MB/s"]),
                               group("laptop", few, ["4 TFLOP/s", "12 TFLOP/s"], ["4 GB", "8 GB"],
                                     ["50 MB/s", "120 MB/s"], ["10 MB/s", "60 MB/s"])],
    }


def step_of(program, overrides):
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        words = [str(program), "simulate", str(TOP / "inputs/sim/cleave-256.yaml"), "--json", out.name]
        run = subprocess.run(words + [f"{k}={v}" for k, v in overrides.items()], capture_output=True, text=True)
        if run.returncode != 0:
            sys.exit(f"{' '.join(words)}: exit code {run.returncode}\n{run.stderr}")
        report = json.load(open(out.name))[0]
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, default=TOP / "build/release/cleave")
    parser.add_argument("--devices", type=int, default=256)
    arguments = parser.parse_args()
    every = fleets(arguments.devices)
    print("| idea | " + " | ".join(every) + " |")
    print("|---" * (len(every) + 1) + "|")
    overrides = {name: {"fleet.devices": json.dumps(groups)} for name, groups in every.items()}
    before = {}
    for idea, change in IDEAS:
        cells = []
        for name, given in overrides.items():
            given.update(change)
            report = step_of(arguments.program, given)
            if not report["feasible"]:
                cells.append(report["why"])
                continue
            step = report["step_s"]
            cells.append(f"{step:.0f} s" + (f" ({before[name] / step:.2f} x)" if name in before else ""))
            before[name] = step
        print(f"| {idea} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
