#!/usr/bin/env python3
"""Steps in stages: the studies of docs/measurements/stages.md, each over several fleet seeds.

    python3 bench/stages.py [--program build/release/cleave] [--seeds 5] [--case NAME ...] [--losses]

With --losses instead: what it adds to a step of OPT-13B on 256 devices that 1, 3 or 5 of them fall silent at 10, 50 or 90 % of it, beyond
the time until that is noticed; and steps while every device leaves after 20 minutes in the mean.

Prints the median of the step with its range, the layout's bound, the floor of any layout, the forecast over the step, bytes, and
the real seconds that planning and all of it took, as a table in Markdown.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parent.parent
DETECTION = 0.2  # seconds, simulate's default
SIM, DTFM = "inputs/sim/cleave-256.yaml", "inputs/dtfm/world.yaml"


def edge(count, memory="[1 GB, 3 GB]"):
    return ("fleet.devices=[{name: edge, count: %d, compute: [5 TFLOP/s, 7 TFLOP/s], memory: %s, downlink: [10 MB/s, 100 MB/s], "
            "uplink: [5 MB/s, 10 MB/s], latency: 0 ms}]" % (count, memory))


CASES = {
    "OPT-13B, 256 devices": (SIM, []),
    "OPT-13B, 1024 devices": (SIM, [edge(1024)]),
    "OPT-13B, 1024 devices behind 100 Gbit/s": (SIM, [edge(1024), "server.nic_out=100 Gbit/s", "server.nic_in=100 Gbit/s"]),
    "OPT-13B, 64 devices": (SIM, [edge(64)]),
    "OPT-13B, 64 devices of 16 GB": (SIM, [edge(64, "16 GB")]),
    "OPT-13B, 256 devices of 512 MB": (SIM, [edge(256, "512 MB")]),
    "OPT-1.3B, 256 devices": (SIM, ["model.preset=opt-1.3b"]),
    "OPT-125M, 256 devices": (SIM, ["model.preset=opt-125m"]),
    "GPT-3 XL, 64 GPUs in eight cities": (DTFM, ["plan.wire=fp16"]),
    "Llama2-70B, 8192 devices": ("inputs/sim/llama2-70b-8192.yaml", []),
}


def simulate(program, path, overrides):
    run = subprocess.run([str(program), "simulate", str(TOP / path), "--json", "-"] + overrides, capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"{path} {overrides}: exit code {run.returncode}\n{run.stderr}")
    return json.loads(run.stdout)[0]


def losses(program, seeds):
    print("| lost at once | at | added beyond detection, median (range) |")
    print("|---|---|---|")
    for count in (1, 3, 5):
        for progress in (0.1, 0.5, 0.9):
            added = []
            for seed in range(seeds):
                run = simulate(program, SIM, [f"fleet.seed={42 + seed}", f"simulate.loss.devices={count}", f"simulate.loss.progress={progress}"])
                if not run["feasible"]:
                    sys.exit(f"{count} devices at {progress}: {run['why']}")
                added.append(max(0.0, run["recovery_s"] - DETECTION))
            if not any(added):
                sys.exit(f"{count} devices at {progress}: no loss hit anything")
            print(f"| {count} | {progress:.0%} | {statistics.median(added):.3g} s ({min(added):.3g}-{max(added):.3g}) |", flush=True)
    calm = simulate(program, SIM, [])
    run = simulate(program, SIM, ["fleet.churn={mean_session: 20 min, mean_absence: 10 min}", "simulate.steps=4"])
    if not run["feasible"]:
        sys.exit(f"sessions of 20 minutes: {run['why']}")
    print(f"\nSessions of 20 minutes, absences of 10, 4 steps: {run['step_s']:.4g} s a step, {run['step_s'] / calm['step_s'] - 1:.0%} longer than {calm['step_s']:.4g} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, default=TOP / "build/release/cleave")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--case", action="append", choices=CASES)
    parser.add_argument("--losses", action="store_true")
    arguments = parser.parse_args()
    if arguments.losses:
        return losses(arguments.program, arguments.seeds)
    print("| study | step, median (range) | bound | floor | forecast / step | GB down | GB up | planning | wall | layout, first seed |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name in arguments.case or CASES:
        path, overrides = CASES[name]
        runs = [simulate(arguments.program, path, overrides + [f"fleet.seed={42 + seed}"])
                for seed in range(1 if path == DTFM else arguments.seeds)]
        if not all(run["feasible"] for run in runs):
            print(f"| {name} | not feasible: {next(run['why'] for run in runs if not run['feasible'])} |")
            continue
        of = lambda key: [run[key] for run in runs]
        median = lambda values: statistics.median(values)
        forecasts = [run["figures"]["forecast_s"] / run["step_s"] for run in runs if "forecast_s" in run.get("figures", {})]
        ratio = f"{min(forecasts):.2f}-{max(forecasts):.2f}" if forecasts else ""
        print(f"| {name} | {median(of('step_s')):.4g} s ({min(of('step_s')):.4g}-{max(of('step_s')):.4g}) | {median(of('lower_bound_s')):.4g} s "
              f"| {median(of('floor_s')):.3g} s | {ratio} | {median(of('bytes_down')) / 1e9:.0f} | {median(of('bytes_up')) / 1e9:.0f} "
              f"| {median(of('planning_s')):.2f} s | {median(of('wall_s')):.1f} s | {runs[0]['layout']} |", flush=True)


if __name__ == "__main__":
    main()
