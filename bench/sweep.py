#!/usr/bin/env python3
"""Runs cleave for every point of a grid of overrides, gathers one CSV, draws figures and a page.

    python3 bench/sweep.py SPEC.yaml            run what is not done yet, gather, draw; the same again after a stop
    python3 bench/sweep.py SPEC.yaml --slurm    the same as a Slurm array, and a job that gathers after it
    python3 bench/sweep.py SPEC.yaml --gather   only gather and draw what there is

SPEC (YAML needs Debian's python3-yaml; a .json file needs nothing):

    command: simulate                # or train
    input: ../inputs/quickstart.yaml # relative to the SPEC
    output: ../runs/sweep            # a folder for each point, sweep.csv, figures, report.html
    ranks: 3                         # train only; 0: without mpirun
    systems: [cleave]                # simulate only
    set: {train.steps: 20}           # overrides of every point
    grid:
      fleet.devices.0.count: [4, 8]  # a list of values, or {label: value} where values are long
      plan.partition: [auto, rows, equal]
      server.nic_out+server.nic_in: [10 Gbit/s, unlimited]   # several keys with one value
    plot: {x: fleet.devices.0.count, y: [step_s, lower_bound_s], series: plan.partition, log: false}
    slurm: {time: 30, cpus-per-task: 2, at_once: 8}   # sbatch's options; at_once: tasks at the same time

A point is done when its folder holds `done.json`, written last and in one piece, with all that it was made from: the
command, the input's hash, the systems and the point's overrides. So a sweep that is stopped anywhere resumes, and a point
runs again when one of these changed. A training point that was stopped in
the middle goes on from its newest checkpoint. Exit code 1 when a point failed, 2 for a bad SPEC, 130 when stopped.
"""
import argparse
import csv
import hashlib
import itertools
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parent.parent
KEYS = {"command", "input", "output", "ranks", "systems", "set", "grid", "plot", "slurm"}


def refuse(*faults):
    print("\n".join(f"sweep: {fault}" for fault in faults), file=sys.stderr)
    sys.exit(2)


def load(path):
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        refuse(error)
    if path.suffix == ".json":
        try:
            return json.loads(text)
        except ValueError as error:
            refuse(f"{path}: {error}")
    try:
        import yaml
    except ImportError:
        refuse("reading YAML needs python3-yaml (apt-get install python3-yaml), or give the spec as .json")
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        refuse(f"{path}: {error}")


def check(spec):
    if not isinstance(spec, dict):
        refuse("the spec is no mapping")
    faults = [f"unknown key '{key}'" for key in spec if key not in KEYS]
    faults += [f"missing key '{key}'" for key in ("command", "input", "output", "grid") if key not in spec]
    if spec.get("command") not in ("train", "simulate"):
        faults.append("command: train or simulate")
    for key, kind, said in (("input", str, "a file"), ("output", str, "a folder"), ("systems", list, "a list of names"),
                            ("ranks", int, "a whole number"), ("set", dict, "key: value"), ("grid", dict, "key: values"),
                            ("plot", dict, "key: value"), ("slurm", dict, "key: value")):
        if spec.get(key) is not None and not isinstance(spec[key], kind):
            faults.append(f"{key}: {said} is needed, not {spec[key]!r}")
    grid = spec.get("grid")
    for key, values in (grid if isinstance(grid, dict) else {}).items():
        if not isinstance(values, (list, dict)) or not values:
            faults.append(f"grid.{key}: a list of values, or label: value, is needed")
    plot = spec["plot"] if isinstance(spec.get("plot"), dict) else {}
    faults += [f"plot: missing key '{key}'" for key in ("x", "y") if plot and key not in plot]
    if faults:
        refuse(*faults)


def text_of(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, (list, dict)) else str(value)


def store(path, text):
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(text)
    os.replace(temporary, path)


class Point:
    """One combination: `grid` is how it is labelled, `overrides` what the program is given beside `common`."""

    def __init__(self, number, overrides, grid, root, common):
        self.number, self.overrides, self.grid = number, overrides, grid
        self.made_from = {**common, "overrides": overrides}
        self.folder = root / f"point-{number:04d}"

    def recorded(self, name):
        try:
            return json.loads((self.folder / name).read_text()) == self.made_from
        except (OSError, ValueError):
            return False

    def done(self):
        return self.recorded("done.json")

    def begin(self):
        """Makes the folder; what was made from something else goes."""
        if self.folder.exists() and not self.recorded("point.json"):
            shutil.rmtree(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        store(self.folder / "point.json", json.dumps(self.made_from))

    def command(self, spec, program, base):
        words = [str(program), spec["command"], str(base / spec["input"])]
        words += [f"{key}={value}" for key, value in self.overrides.items()]
        if spec["command"] == "train":
            words += [f"output.dir={self.folder}/run", "--quiet"]
            if list((self.folder / "run").glob("checkpoint-*.h5")):
                words += ["--resume", "auto"]
            if spec.get("ranks", 0):
                words = ["mpirun", "--oversubscribe", "-n", str(spec["ranks"])] + words
        else:
            words += ["--json", str(self.folder / "simulate.json")]
            if spec.get("systems"):
                words += ["--system", ",".join(spec["systems"])]
        return words

    def run(self, spec, program, base):
        """The program's exit code; with 0 the point is done."""
        self.begin()
        environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        with open(self.folder / "output.txt", "a") as out:
            code = subprocess.call(self.command(spec, program, base), stdout=out, stderr=subprocess.STDOUT,
                                   env=environment)
        if code == 0:
            store(self.folder / "done.json", json.dumps(self.made_from))
        return code

    def rows(self, spec):
        head = {**self.grid, "point": self.folder.name}
        if spec["command"] == "simulate":
            return [{**head, **row} for row in json.loads((self.folder / "simulate.json").read_text())]
        lines = [json.loads(line) for line in (self.folder / "run" / "metrics.jsonl").read_text().splitlines()]
        sums = ("time_s", "lower_bound_s", "floor_s", "wall_s", "bytes_down", "bytes_up", "lost", "redone", "recovery_s", "energy_J")
        row = {**head, "steps": lines[-1]["step"], "loss": lines[-1]["loss"]}
        row.update({key: sum(line[key] for line in lines) for key in sums})
        row["val_loss"] = next((line["val_loss"] for line in reversed(lines) if "val_loss" in line), "")
        row["step_s"] = row["time_s"] / len(lines)
        return [row]


def points_of(spec, base, root):
    try:
        text = (base / spec["input"]).read_bytes()
    except OSError as error:
        refuse(f"input: {error}")
    common = {"command": spec["command"], "input": hashlib.sha256(text).hexdigest(), "systems": spec.get("systems")}
    axes = []
    for key, values in spec["grid"].items():
        labelled = values.items() if isinstance(values, dict) else ((text_of(value), value) for value in values)
        axes.append([(key, str(label), text_of(value)) for label, value in labelled])
    fixed = {key: text_of(value) for key, value in (spec.get("set") or {}).items()}
    for number, choice in enumerate(itertools.product(*axes)):
        overrides = {**fixed, **{one: value for key, _, value in choice for one in key.split("+")}}
        yield Point(number, overrides, {key: label for key, label, _ in choice}, root, common)


def run_points(todo, spec, program, base):
    """How many failed."""
    failed = 0
    for place, point in enumerate(todo, 1):
        label = " ".join(f"{key}={value}" for key, value in point.grid.items())
        if point.done():
            print(f"[{place}/{len(todo)}] {label}: done before", flush=True)
            continue
        print(f"[{place}/{len(todo)}] {label}", flush=True)
        code = point.run(spec, program, base)
        if code != 0:
            failed += 1
            print(f"    exit code {code}: see {point.folder / 'output.txt'}", flush=True)
    return failed


def gather(points, spec, root):
    done = [point for point in points if point.done()]
    rows = [row for point in done for row in point.rows(spec)]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with open(root / "sweep.csv.part", "w", newline="") as out:
        writer = csv.DictWriter(out, columns)
        writer.writeheader()
        writer.writerows(rows)
    os.replace(root / "sweep.csv.part", root / "sweep.csv")
    store(root / "sweep.json", json.dumps({"format": 1, "command": spec["command"], "points": len(points),
                                           "points_done": len(done), "grid": list(spec["grid"]),
                                           "plot": spec.get("plot") or {}, "rows": rows}))
    print(f"{len(done)} of {len(points)} points, {len(rows)} rows: {root / 'sweep.csv'}")
    return rows


def number(value):
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def draw(rows, plot, root):
    """A PNG and an SVG for each y of the spec's plot."""
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
        axes.grid(color="#dddddd", linewidth=0.6)
        if plot.get("log"):
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        if series:
            axes.legend(title=series)
        for ending in ("png", "svg"):
            file = root / f"{y}.{ending}"
            figure.savefig(file, dpi=150)
            print(f"figure {file}")
        pyplot.close(figure)


def conclude(points, spec, root, program):
    rows = gather(points, spec, root)
    draw(rows, spec.get("plot"), root)
    if rows and subprocess.call([str(program), "report", str(root)], stdout=subprocess.DEVNULL) == 0:
        print(f"page {root / 'report.html'}")


def ranges(numbers):
    """[0, 1, 2, 5] as sbatch writes it: 0-2,5."""
    runs = []
    for n in numbers:
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ",".join(f"{a}-{b}" if b > a else str(a) for a, b in runs)


def slurm_answers():
    """Where none does, sinfo asks for a minute."""
    try:
        return shutil.which("sinfo") and subprocess.run(["sinfo"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=20).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def submit(points, spec, spec_file, root, program):
    """Writes the array's and the gathering job's scripts, and gives them to sbatch where there is one."""
    left = [point.number for point in points if not point.done()]
    if not left:
        print("every point is done")
        return conclude(points, spec, root, program)
    options = {"ntasks": max(1, spec.get("ranks", 0)), **(spec.get("slurm") or {})}
    at_once = options.pop("at_once", None)
    again = f"exec {shlex.quote(sys.executable)} {shlex.quote(str(TOP / 'bench' / 'sweep.py'))} {shlex.quote(str(spec_file))}"
    again += f" --program {shlex.quote(str(program))}"
    head = "".join(f"#SBATCH --{key}={value}\n" for key, value in options.items())
    array = ranges(left) + (f"%{at_once}" if at_once else "")

    def output(name):  # sbatch reads quotes as a shell does
        return shlex.quote(f"--output={root}/slurm-{name}.txt")

    (root / "array.sh").write_text(
        f"#!/bin/bash\n#SBATCH --job-name=cleave-sweep --array={array} {output('%a')}\n{head}"
        f"{again} --point \"$SLURM_ARRAY_TASK_ID\"\n")
    (root / "gather.sh").write_text(
        f"#!/bin/bash\n#SBATCH --job-name=cleave-gather {output('gather')} --ntasks=1\n{again} --gather\n")
    if not slurm_answers():
        print(f"no Slurm answers here; where one does:  sbatch {root / 'array.sh'}     # {len(left)} points")
        return None
    job = subprocess.check_output(["sbatch", "--parsable", str(root / "array.sh")], text=True).split(";")[0].strip()
    after = subprocess.check_output(["sbatch", "--parsable", f"--dependency=afterany:{job}", str(root / "gather.sh")],
                                    text=True).split(";")[0].strip()
    print(f"array job {job} for {len(left)} points; job {after} gathers after it")
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec", type=pathlib.Path)
    parser.add_argument("--program", type=pathlib.Path, default=TOP / "build" / "release" / "cleave")
    parser.add_argument("--slurm", action="store_true", help="as an array job; where no Slurm answers, only write its script")
    parser.add_argument("--gather", action="store_true", help="run nothing")
    parser.add_argument("--point", type=int, help="run this point only")
    arguments = parser.parse_args()
    spec_file = arguments.spec.resolve()
    spec = load(spec_file)
    check(spec)
    root = (spec_file.parent / spec["output"]).resolve()
    root.mkdir(parents=True, exist_ok=True)
    program = arguments.program.resolve()
    points = list(points_of(spec, spec_file.parent, root))
    if arguments.slurm:
        submit(points, spec, spec_file, root, program)
        return 0
    failed = 0
    if arguments.point is not None and not 0 <= arguments.point < len(points):
        refuse(f"there is no point {arguments.point}: they are 0 to {len(points) - 1}")
    if not arguments.gather:
        todo = points if arguments.point is None else [points[arguments.point]]
        failed = run_points(todo, spec, program, spec_file.parent)
    if arguments.point is None:
        conclude(points, spec, root, program)
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\nsweep: stopped; the same command goes on", file=sys.stderr)
        sys.exit(130)
