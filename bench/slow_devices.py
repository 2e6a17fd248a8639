#!/usr/bin/env python3
"""What devices add to a step in stages that turn out slow without saying so: OPT-13B on 256 devices, fp16 on the wire.

    python3 bench/slow_devices.py [--program build/release/cleave]

1, 3 or 10 devices of the published fleet, drawn by each of five fleet seeds, do a tenth of what they declare, or next to
nothing, from the beginning of a step or from its middle on. Prints a table: medians over the seeds, with ranges. Of a
program that waits for whoever is slow, leave out those that do next to nothing (--tenth): they would take days.
"""
import argparse
import json
import pathlib
import random
import statistics
import subprocess
import tempfile

TOP = pathlib.Path(__file__).resolve().parent.parent
SEEDS, COUNTS, DEVICES = range(42, 47), (1, 3, 10), 256
MOMENTS = {"the beginning": 0, "60 s on": 60}
FACTORS = {"a tenth": 0.1, "nothing": 1e-6}


def steps_of(program, folder, seed, slow=(), at=0, factor=1.0):
    trace, figures = folder / "trace.yaml", folder / "figures.json"
    events = "".join(f"  - {{at: {at} s, device: {device}, kind: slow, factor: {factor}}}\n" for device in slow)
    trace.write_text("events:\n" + events if events else "events: []\n")
    subprocess.run([program, "simulate", TOP / "inputs/sim/cleave-256.yaml", f"fleet.seed={seed}", "plan.layout=stages", "simulate.steps=2",
                    f"output.dir={folder / 'run'}", "--json", figures] + ([f"fleet.churn={{trace: {trace}}}"] if slow else []),
                   check=True, capture_output=True)
    return json.loads(figures.read_text())[0]["steps"]


def text(values):
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--program", default=str(TOP / "build/release/cleave"))
    options.add_argument("--tenth", action="store_true")
    options = options.parse_args()
    print("| devices that do | from | number | step s | added s | late | next step s |\n|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        calm = {seed: steps_of(options.program, folder, seed)[0] for seed in SEEDS}
        if any(step.get("late", 0) for step in calm.values()):
            raise SystemExit("somebody is late where all do as they declare")
        print(f"| all that they declare | | | {text([step['step_s'] for step in calm.values()])} | | 0 | |")
        for what, factor in list(FACTORS.items())[:1 if options.tenth else None]:
            for when, at in MOMENTS.items():
                for count in COUNTS:
                    runs = {seed: steps_of(options.program, folder, seed, random.Random(seed * 1000 + count).sample(range(DEVICES), count), at, factor)
                            for seed in SEEDS}
                    first = {seed: steps[0]["step_s"] for seed, steps in runs.items()}
                    added = [first[seed] - calm[seed]["step_s"] for seed in SEEDS]
                    late = [steps[0].get("late", 0) for steps in runs.values()]
                    print(f"| {what} | {when} | {count} | {text(list(first.values()))} | {text(added)} | {min(late)} to {max(late)} | "
                          f"{text([steps[1]['step_s'] for steps in runs.values()])} |", flush=True)


if __name__ == "__main__":
    main()
