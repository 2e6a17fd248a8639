#!/usr/bin/env python3
"""What losses cost a step in stages: OPT-13B on 256 devices (inputs/sim/cleave-256.yaml).

    python3 bench/stage_losses.py [--program build/release/cleave] [--seeds 5]

Prints, as a table in Markdown, what it adds to a step that 1, 3 or 5 devices fall silent at 10, 50 or 90 % of it, beyond the
time until that is noticed; then the length of steps while every device leaves after 20 minutes in the mean. A loss that hit
nothing ends it with an error.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parent.parent
DETECTION = 0.2  # seconds, simulate's default
SIM = "inputs/sim/cleave-256.yaml"


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
    arguments = parser.parse_args()
    losses(arguments.program, arguments.seeds)


if __name__ == "__main__":
    main()
