#!/usr/bin/env python3
"""Steps on fleets and models that are drawn at random: beside their forecasts, their bounds, and another program's steps.

    python3 bench/drawn_fleets.py [--seed 1] [--count 40] [--devices 129-2048] [--program build/release/cleave] [--beside PROGRAM]

Each case draws a model, tokens, sequences, the number of devices, and of these the ranges of processors, memory, links
and latency. Printed: a row a case; then how far forecasts are off, how far steps are above their bounds, and how long
planning takes, with --beside also how steps compare with those of that program. Exit code 1 where a step takes less than
its bound. Rows of the same seed, count and devices are the same cases.
"""
import argparse
import math
import pathlib
import random
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from evidence import points  # noqa: E402

MODELS = ("opt-1.3b", "opt-6.7b", "opt-13b", "opt-13b", "opt-30b", "llama2-7b", "llama2-13b", "llama2-70b")
MEMORY = ("[1 GB, 3 GB]", "[1 GB, 3 GB]", "[512 MB, 1 GB]", "[2 GB, 6 GB]", "8 GB", "[4 GB, 16 GB]", "1 GB")
DOWN = ("[10 MB/s, 100 MB/s]", "[10 MB/s, 100 MB/s]", "[50 MB/s, 100 MB/s]", "[5 MB/s, 20 MB/s]")
UP = ("[5 MB/s, 10 MB/s]", "[5 MB/s, 10 MB/s]", "[50 MB/s, 100 MB/s]", "[2 MB/s, 20 MB/s]")
COMPUTE = ("[5 TFLOP/s, 7 TFLOP/s]", "[5 TFLOP/s, 7 TFLOP/s]", "[1 TFLOP/s, 10 TFLOP/s]")
OFF = 1.1  # a forecast that is off by more is counted


def draw(rng, least, most):
    """A case's name, and what it sets."""
    model, devices = rng.choice(MODELS), round(math.exp(rng.uniform(math.log(least), math.log(most))))
    memory, down, up, compute = (rng.choice(of) for of in (MEMORY, DOWN, UP, COMPUTE))
    latency, tokens, sequences = rng.choice(("0 ms", "20 ms")), rng.choice((512, 1024, 2048)), rng.choice((64, 128, 256))
    fleet = (f"{{name: drawn, count: {devices}, compute: {compute}, memory: {memory}, downlink: {down}, uplink: {up}, "
             f"latency: {latency}}}")
    name = f"{model}, {sequences} x {tokens}, {devices} devices: {compute}, {memory}, {down} down, {up} up, {latency}"
    return name, {"model.preset": model, "model.seq_len": tokens, "train.batch": sequences, "fleet.seed": rng.randrange(100),
                  "fleet.devices": f"[{fleet}]"}


def geometric_mean(values):
    return math.exp(statistics.fmean(math.log(value) for value in values))


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--count", type=int, default=40)
    options.add_argument("--devices", default="129-2048", help="LEAST-MOST")
    options.add_argument("--program", type=pathlib.Path, default=points.TOP / "build" / "release" / "cleave")
    options.add_argument("--beside", type=pathlib.Path)
    options = options.parse_args()
    least, most = (int(end) for end in options.devices.split("-"))
    rng = random.Random(options.seed)
    forecasts, above, planning, beside, below = [], [], [], [], 0
    print("forecast/step  step s  /bound  planning s" + ("  /beside" if options.beside else "") + "  case", flush=True)
    for _ in range(options.count):
        name, settings = draw(rng, least, most)
        point = points.Point("inputs/sim/cleave-256.yaml", settings, "cleave", {})
        report = points.simulate(options.program.resolve(), point)
        if report is None or not report["feasible"]:
            print(f"not run: {name}: {report['why'] if report else 'no time'}", flush=True)
            continue
        step, forecast = report["step_s"], report["figures"].get("forecast_s")
        above.append(step / report["lower_bound_s"])
        planning.append(report["planning_s"])
        below += step < report["lower_bound_s"]
        if forecast:
            forecasts.append(forecast / step)
        row = f"{f'{forecasts[-1]:.3f}' if forecast else 'tiles':>13} {step:7.1f} {above[-1]:7.2f} {planning[-1]:11.2f}"
        if options.beside:
            other = points.simulate(options.beside.resolve(), point)
            beside.append(step / other["step_s"] if other and other["feasible"] else math.nan)
            row += f" {beside[-1]:8.3f}"
        print(f"{row}  {name}", flush=True)
    off = sum(not 1 / OFF <= forecast <= OFF for forecast in forecasts)
    print(f"{len(above)} steps; {off} of {len(forecasts)} forecasts off by more than {OFF - 1:.0%}, {min(forecasts):.2f} to {max(forecasts):.2f}; "
          f"{geometric_mean(above):.2f} of the bound in the geometric mean, {max(above):.2f} at most; planning {statistics.median(planning):.2f} s "
          f"in the median, {max(planning):.1f} s at most")
    both = [ratio for ratio in beside if not math.isnan(ratio)]
    if both:
        print(f"beside the other program: {geometric_mean(both):.3f} of its time in the geometric mean, {min(both):.3f} to {max(both):.3f}")
    print(f"program {points.hash_of(options.program)}; {points.machine()}")
    raise SystemExit(1 if below else 0)


if __name__ == "__main__":
    main()
