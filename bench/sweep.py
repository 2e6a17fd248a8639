#!/usr/bin/env python3
"""Runs cleave for every point of a grid of overrides, gathers one CSV, and draws figures.

    python3 bench/sweep.py SPEC.yaml            run what is not done yet, then gather and draw
    python3 bench/sweep.py SPEC.yaml --slurm    write an array job (OUTPUT/array.sh) in place of running
    python3 bench/sweep.py SPEC.yaml --gather   only gather and draw what there is

SPEC (YAML needs Debian's python3-yaml; a .json file needs nothing):

    command: simulate                # or train
    input: ../inputs/quickstart.yaml # relative to the SPEC
    output: ../runs/sweep            # a folder for each point, sweep.csv, figures
    ranks: 3                         # train only; 0: without mpirun
    systems: [cleave]                # simulate only
    set: {train.steps: 20}           # overrides of every point
    grid: {train.batch: [4, 8], plan.partition: [auto, rows, equal]}
    plot: {x: train.batch, y: [step_s, lower_bound_s], series: plan.partition, log: false}

A point is done when its folder holds `done.json`, written last and in one piece, with the point's overrides: a sweep
that is stopped anywhere resumes, and a point whose overrides changed runs again.
"""
import argparse
import csv
import itertools
import json
import os
import pathlib
import shlex
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parent.parent


def load(path):
    text = path.read_text()
    if path.suffix == ".json":
        return json.loads(text)
    try:
        import yaml
    except ImportError:
        sys.exit("sweep: reading YAML needs python3-yaml (apt-get install python3-yaml), or give the spec as .json")
    return yaml.safe_load(text)


def check(spec):
    known = {"command", "input", "output", "ranks", "systems", "set", "grid", "plot"}
    faults = [f"unknown key '{key}'" for key in spec if key not in known]
    faults += [f"missing key '{key}'" for key in ("command", "input", "output", "grid") if key not in spec]
    if spec.get("command") not in ("train", "simulate"):
        faults.append("command: train or simulate")
    for key, values in (spec.get("grid") or {}).items():
        if not isinstance(values, list) or not values:
            faults.append(f"grid.{key}: a list of values is needed")
    if faults:
        sys.exit("sweep: " + "\nsweep: ".join(faults))


def text_of(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, (list, dict)) else str(value)


class Point:
    def __init__(self, number, overrides, grid, root):
        self.overrides, self.grid = overrides, grid
        self.folder = root / f"point-{number:04d}"

    def done(self):
        try:
            return json.loads((self.folder / "done.json").read_text())["overrides"] == self.overrides
        except (OSError, ValueError, KeyError):
            return False

    def mark(self):
        temporary = self.folder / "done.json.part"
        temporary.write_text(json.dumps({"overrides": self.overrides}))
        os.replace(temporary, self.folder / "done.json")

    def command(self, spec, program, base):
        words = [str(program), spec["command"], str(base / spec["input"])]
        words += [f"{key}={value}" for key, value in self.overrides.items()]
        if spec["command"] == "train":
            words += [f"output.dir={self.folder}/run", "--quiet"]
            if spec.get("ranks", 0):
                words = ["mpirun", "--oversubscribe", "-n", str(spec["ranks"])] + words
        else:
            words += ["--json", str(self.folder / "simulate.json")]
            if spec.get("systems"):
                words += ["--system", ",".join(spec["systems"])]
        return words

    def rows(self, spec):
        head = {**self.grid, "point": self.folder.name}
        if spec["command"] == "simulate":
            return [{**head, **row} for row in json.loads((self.folder / "simulate.json").read_text())]
        lines = [json.loads(line) for line in (self.folder / "run" / "metrics.jsonl").read_text().splitlines()]
        sums = ("time_s", "lower_bound_s", "wall_s", "bytes_down", "bytes_up", "lost", "redone", "recovery_s", "energy_J")
        row = {**head, "steps": lines[-1]["step"], "loss": lines[-1]["loss"]}
        row.update({key: sum(line[key] for line in lines) for key in sums})
        row["val_loss"] = next((line["val_loss"] for line in reversed(lines) if "val_loss" in line), "")
        row["step_s"] = row["time_s"] / len(lines)
        return [row]


def points_of(spec, root):
    keys = list(spec["grid"])
    for number, values in enumerate(itertools.product(*spec["grid"].values())):
        grid = dict(zip(keys, values))
        overrides = {key: text_of(value) for key, value in {**spec.get("set", {}), **grid}.items()}
        yield Point(number, overrides, {key: text_of(value) for key, value in grid.items()}, root)


def run(point, spec, program, base):
    point.folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    with open(point.folder / "output.txt", "w") as out:
        code = subprocess.call(point.command(spec, program, base), stdout=out, stderr=subprocess.STDOUT, env=environment)
    if code == 0:
        point.mark()
    return code


def gather(points, spec, root):
    rows = [row for point in points if point.done() for row in point.rows(spec)]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with open(root / "sweep.csv.part", "w", newline="") as out:
        writer = csv.DictWriter(out, columns)
        writer.writeheader()
        writer.writerows(rows)
    os.replace(root / "sweep.csv.part", root / "sweep.csv")
    print(f"{len(rows)} rows in {root / 'sweep.csv'}")
    return rows


def number(value):
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def draw(rows, plot, root):
    if not plot or not rows:
        return
    try:
        import matplotlib
    except ImportError:
        print("no figures: python3-matplotlib is not installed (apt-get install python3-matplotlib)")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot
    colors = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]  # Okabe and Ito
    x, series = plot["x"], plot.get("series")
    names = list(dict.fromkeys(row.get(series, "") if series else "" for row in rows))
    for y in plot["y"] if isinstance(plot["y"], list) else [plot["y"]]:
        figure, axes = pyplot.subplots(figsize=(6, 4), constrained_layout=True)
        for i, name in enumerate(names):
            mine = [row for row in rows if not series or row.get(series, "") == name]
            mine = [(row[x], number(row.get(y))) for row in mine if number(row.get(y)) is not None]
            if all(number(a) is not None for a, _ in mine):
                mine = sorted((float(a), b) for a, b in mine)
            axes.plot([a for a, _ in mine], [b for _, b in mine], marker="os^Dv<>"[i % 7], color=colors[i % 7],
                      label=str(name) or None)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        if plot.get("log"):
            axes.set_yscale("log")
        if series:
            axes.legend(title=series)
        file = root / f"{y}.png"
        figure.savefig(file, dpi=150)
        pyplot.close(figure)
        print(f"figure {file}")


def write_array(points, spec_file, root, program):
    left = [i for i, point in enumerate(points) if not point.done()]
    if not left:
        print("every point is done")
        return
    script = root / "array.sh"
    script.write_text(f"""#!/bin/bash
#SBATCH --job-name=cleave-sweep --array={','.join(map(str, left))} --output={root}/slurm-%a.txt --ntasks=1
exec python3 {shlex.quote(str(TOP / 'bench' / 'sweep.py'))} {shlex.quote(str(spec_file))} --point "$SLURM_ARRAY_TASK_ID" --program {shlex.quote(str(program))}
""")
    print(f"sbatch {script}     # {len(left)} points; then: sweep.py {spec_file} --gather")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec", type=pathlib.Path)
    parser.add_argument("--program", type=pathlib.Path, default=TOP / "build" / "release" / "cleave")
    parser.add_argument("--slurm", action="store_true", help="write an array job, run nothing")
    parser.add_argument("--gather", action="store_true", help="run nothing")
    parser.add_argument("--point", type=int, help="run this point only")
    arguments = parser.parse_args()
    spec_file = arguments.spec.resolve()
    spec = load(spec_file)
    check(spec)
    root = (spec_file.parent / spec["output"]).resolve()
    root.mkdir(parents=True, exist_ok=True)
    program = arguments.program.resolve()
    points = list(points_of(spec, root))
    if arguments.slurm:
        return write_array(points, spec_file, root, program)
    failed = 0
    if not arguments.gather:
        todo = points if arguments.point is None else [points[arguments.point]]
        for place, point in enumerate(todo, 1):
            label = " ".join(f"{key}={value}" for key, value in point.grid.items())
            if point.done():
                print(f"[{place}/{len(todo)}] {label}: done before", flush=True)
                continue
            print(f"[{place}/{len(todo)}] {label}", flush=True)
            code = run(point, spec, program, spec_file.parent)
            if code != 0:
                failed += 1
                print(f"    exit code {code}: see {point.folder / 'output.txt'}", flush=True)
    if arguments.point is None:
        draw(gather(points, spec, root), spec.get("plot"), root)
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("sweep: stopped; call it again to go on")
