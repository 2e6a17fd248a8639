#!/usr/bin/env python3
"""Every system under one accounting: runs the studies beside this file and writes their tables and figures.

    python3 bench/compare/compare.py               all of them; what is done is not run again
    python3 bench/compare/compare.py memory churn  these only
    python3 bench/compare/compare.py --gather      run nothing, write what there is

A study is a spec of bench/sweep.py (NAME.json); its points lie in runs/compare/NAME. Points made by another program than
the one given are run again, and tables.md names the program of each study by the start of its SHA-256. Written, under
docs/measurements/compare: NAME.csv, NAME.svg (and NAME-recovery.svg, NAME-energy.svg where they say something), and
tables.md with all of them.
Needs nothing but Python.
"""
import argparse
import csv
import hashlib
import json
import math
import os
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parent.parent
OUT = TOP / "docs" / "measurements" / "compare"

# name, what varies, title, figures besides the step time
STUDIES = [
    ("memory", "memory of a device", "OPT-13B on 256 devices, by memory", ["energy_J"]),
    ("devices", "devices", "OPT-13B, devices of 16 GB, by their number", ["energy_J"]),
    ("model", "model", "256 devices of 1-3 GB, by model", ["energy_J"]),
    ("ratio", "downlink / uplink", "OPT-13B on 256 devices of 16 GB, uplink 7.5 MB/s, by DL:UL", []),
    ("recovery", "devices lost at once", "OPT-13B on 256 devices of 16 GB, losses at half of the step", ["recovery_s"]),
    ("recovery-small", "devices lost at once", "OPT-1.3B on 256 devices of 1-3 GB, losses at half of the step",
     ["recovery_s"]),
    ("churn", "mean session", "OPT-1.3B on 256 devices of 1-3 GB that leave and return after 10 min", ["recovery_s"]),
    ("world", "", "GPT-3 XL on 64 GPUs in eight cities (DTFM's fifth scenario)", []),
    ("dtfm-data-centre", "seed", "DTFM's objective: data centre", []),
    ("dtfm-spot-instances", "seed", "DTFM's objective: spot instances", []),
    ("dtfm-universities", "seed", "DTFM's objective: universities", []),
    ("dtfm-regions", "seed", "DTFM's objective: regions", []),
    ("dtfm-world", "seed", "DTFM's objective: world", []),
]
COLORS = {"cleave": "#D55E00", "cleave-paper": "#E69F00", "dtfm": "#0072B2", "asteroid": "#009E73",
          "tensor-parallel": "#CC79A7", "data-parallel": "#56B4E9", "cloud-gpu": "#666666"}
NOT_ON_THE_FLEET = {"cloud-gpu"}
LABELS = {"step_s": "step time (s)", "energy_J": "energy of a step (J)", "recovery_s": "added by the loss (s)"}


def store(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    os.replace(part, path)


def rows_of(name):
    """Rows of a study, each with `x`; none when it has not run."""
    spec = json.loads((HERE / f"{name}.json").read_text())
    try:
        sweep = json.loads((HERE / spec["output"] / "sweep.json").read_text())
    except OSError:
        return []
    return [{"x": row[next(iter(spec["grid"]))], **row} for row in sweep["rows"]]


def runs_of(name):
    return HERE / json.loads((HERE / f"{name}.json").read_text())["output"]


def mark(name, program):
    """Says by which program the points of a study are made; what another one made goes."""
    digest = hashlib.sha256(program.read_bytes()).hexdigest()[:12]
    runs = runs_of(name)
    if runs.exists() and program_of(name) != digest:
        shutil.rmtree(runs)
    runs.mkdir(parents=True, exist_ok=True)
    store(runs / "program.txt", digest)


def program_of(name):
    try:
        return (runs_of(name) / "program.txt").read_text()
    except OSError:
        return None


def seconds(value):
    return "-" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def cell(row):
    if row is None:
        return ""
    return seconds(row["step_s"]) if row["feasible"] else "no"


def winner(rows):
    able = [row for row in rows if row["feasible"] and row["system"] not in NOT_ON_THE_FLEET]
    if not able:
        return "none"
    ranked = sorted(able, key=lambda row: row["step_s"])
    if len(ranked) == 1:
        return f"**{ranked[0]['system']}**, alone"
    return f"**{ranked[0]['system']}**, {ranked[1]['step_s'] / ranked[0]['step_s']:.2f} x before {ranked[1]['system']}"


def grid(lines):
    return "\n".join("| " + " | ".join(line) + " |" for line in lines[:1]) + "\n|" + "---|" * len(lines[0]) + "\n" + \
        "\n".join("| " + " | ".join(line) + " |" for line in lines[1:]) + "\n"


def gigabytes(value):
    return f"{value / 1e9:.3g}"


def table(name, label, title, rows):
    xs = list(dict.fromkeys(row["x"] for row in rows))
    systems = list(dict.fromkeys(row["system"] for row in rows))
    at = {(row["x"], row["system"]): row for row in rows}
    text = f"## {title}\n\n`python3 bench/compare/compare.py {name}`; figures in [{name}.csv]({name}.csv); " \
        f"program {program_of(name)}.\n\n"
    if name.startswith("dtfm-"):
        lines = [["seed", "objective s", "data parallel s", "pipelines s", "our step s", "planning s"]]
        for x in xs:
            row = at[x, "dtfm"]
            f = row["figures"]
            lines.append([str(x), f"{f['objective_s']:.6f}", f"{f['objective_data_parallel_s']:.6f}",
                          f"{f['objective_pipeline_s']:.6f}", seconds(row["step_s"]), seconds(row["planning_s"])])
        return text + grid(lines)
    lines = [["step s" if not label else f"step s, by {label}", *systems, "fastest on the fleet"]]
    for x in xs:
        mine = [at[x, s] for s in systems if (x, s) in at]
        lines.append([str(x), *(cell(at.get((x, s))) for s in systems), winner(mine)])
    text += grid(lines)
    if any(row["feasible"] and row.get("recovery_s") != 0 for row in rows):
        lines = [["recovery s", *systems]]
        for x in xs:
            lines.append([str(x), *(("not survived" if at[x, s]["recovery_s"] is None else seconds(at[x, s]["recovery_s"]))
                                    if at[x, s]["feasible"] else "no" for s in systems)])
        text += "\n" + grid(lines)
    lines = [["", "system", "devices used", "bound s", "GB down", "GB up", "most down to one, GB", "device memory GB",
              "energy kJ", "layout, or why not"]]
    for row in rows:
        head = [str(row["x"]), row["system"]]
        if not row["feasible"]:
            lines.append([*head, "", "", "", "", "", "", "", row["why"]])
            continue
        note = "; ".join(part for part in (row["layout"], row["why"]) if part)
        lines.append([*head, str(row["devices_used"]), seconds(row["lower_bound_s"]), gigabytes(row["bytes_down"]),
                      gigabytes(row["bytes_up"]), gigabytes(row["device_bytes_down_max"]),
                      gigabytes(row["device_memory_max"]), f"{row['energy_J'] / 1e3:.3g}", note])
    return text + "\n" + grid(lines)


def figure(title, label, y, rows):
    """An SVG: one line a system over the points of the study, logarithmic upwards; infeasible points are left out."""
    xs = list(dict.fromkeys(row["x"] for row in rows))
    good = [row for row in rows if row["feasible"] and (row.get(y) or 0) > 0]
    if not good or len(xs) < 2:
        return None
    low = math.floor(math.log10(min(row[y] for row in good)))
    high = max(low + 1, math.ceil(math.log10(max(row[y] for row in good))))
    left, top, width, height = 70, 40, 420, 260
    place = {x: left + width * (i + 0.5) / len(xs) for i, x in enumerate(xs)}

    def up(value):
        return top + height * (high - math.log10(value)) / (high - low)

    def words(x, y_, text, anchor="middle", extra=""):
        return f'<text x="{x:.1f}" y="{y_:.1f}" text-anchor="{anchor}" {extra}>{text}</text>'

    parts = ['<svg xmlns="http://www.w3.org/2000/svg" width="660" height="370" font-family="sans-serif" font-size="12">',
             '<rect width="660" height="370" fill="white"/>', words(left, 22, title, "start", 'font-size="14"')]
    for power in range(low, high + 1):
        parts.append(f'<line x1="{left}" x2="{left + width}" y1="{up(10.0 ** power):.1f}" y2="{up(10.0 ** power):.1f}" '
                     'stroke="#dddddd"/>')
        parts.append(words(left - 8, up(10.0 ** power) + 4, f"{10.0 ** power:g}", "end"))
    parts += [words(place[x], top + height + 18, str(x)) for x in xs]
    parts.append(words(left + width / 2, top + height + 40, label))
    parts.append(words(18, top + height / 2, LABELS[y], "middle", f'transform="rotate(-90 18 {top + height / 2})"'))
    for i, system in enumerate(dict.fromkeys(row["system"] for row in good)):
        color = COLORS.get(system, "black")
        points = [(place[row["x"]], up(row[y])) for row in good if row["system"] == system]
        dash = ' stroke-dasharray="4 3"' if system in NOT_ON_THE_FLEET else ""
        parts.append(f'<polyline fill="none" stroke="{color}" stroke-width="2"{dash} points="' +
                     " ".join(f"{a:.1f},{b:.1f}" for a, b in points) + '"/>')
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.5" fill="{color}"/>' for a, b in points]
        parts.append(f'<rect x="{left + width + 14}" y="{top + 20 * i}" width="12" height="12" fill="{color}"/>')
        parts.append(words(left + width + 32, top + 20 * i + 10, system, "start"))
    return "\n".join(parts) + "\n</svg>\n"


def write_csv(path, rows):
    columns = ["x", "system", "feasible", "why", "layout", "devices", "devices_used", "step_s", "lower_bound_s", "compute_s",
               "bytes_down", "bytes_up", "server_out_s", "server_in_s", "device_bytes_down_max", "device_memory_max",
               "recovery_s", "energy_J", "planning_s", "wall_s"]
    figures = sorted({f"figures.{key}" for row in rows for key in row.get("figures") or {}})
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(path.name + ".part"), "w", newline="") as out:
        writer = csv.DictWriter(out, columns + figures, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({**row, **{f"figures.{k}": v for k, v in (row.get("figures") or {}).items()}})
    os.replace(path.with_name(path.name + ".part"), path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="*", help="names; all when left out")
    parser.add_argument("--program", type=pathlib.Path, default=TOP / "build" / "release" / "cleave")
    parser.add_argument("--gather", action="store_true", help="run nothing")
    arguments = parser.parse_args()
    known = [name for name, *_ in STUDIES]
    for name in arguments.studies:
        if name not in known:
            sys.exit(f"compare: there is no study '{name}' (one of {', '.join(known)})")
    failed = 0
    if not arguments.gather:
        for name in arguments.studies or known:
            print(f"== {name}", flush=True)
            mark(name, arguments.program)
            failed += subprocess.call([sys.executable, str(TOP / "bench" / "sweep.py"), str(HERE / f"{name}.json"),
                                       "--program", str(arguments.program)]) != 0
    tables = ["<!-- Written by bench/compare/compare.py. -->\n# Every system under one accounting: tables\n\n"
              "Step times in seconds of emulated time; \"no\": not feasible, and the last column of the second table says why.\n"
              "cloud-gpu uses no device of the fleet and stands beside. What the figures mean: "
              "[compare.md](../compare.md).\n"]
    for name, label, title, more in STUDIES:
        rows = rows_of(name)
        if not rows:
            continue
        write_csv(OUT / f"{name}.csv", rows)
        text = table(name, label, title, rows)
        for y in ["step_s", *more] if not name.startswith("dtfm-") else []:
            svg = figure(title, label, y, rows)
            if svg:
                file = f"{name}.svg" if y == "step_s" else f"{name}-{y.split('_')[0]}.svg"
                store(OUT / file, svg)
                text += f"\n![{LABELS[y]}]({file})\n"
        tables.append(text)
    store(OUT / "tables.md", "\n".join(tables))
    print(f"written: {OUT}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
