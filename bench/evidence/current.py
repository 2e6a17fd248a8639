"""Is a results file older than the program? Its quickest points, run again, must give the same times to nine digits."""
import math

from .points import Point, simulate
from .study import RESULTS, Results

POINTS = 3  # of each file, of different systems, cleave first
QUICK_S = 2.0  # a point that took longer when it was made is not run again, unless its file has none that did not
KEYS = ("feasible", "step_s", "recovery_s", "bytes_down")


def same(a, b):
    if isinstance(a, float) and isinstance(b, (int, float)):
        return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)
    return a == b


def chosen(results):
    """The quickest point of cleave, and of other systems, quickest first; at least the quickest of all."""
    best = {}
    for row in results.rows:
        if row["seconds"] <= QUICK_S and row["seconds"] < best.get(row["system"], {"seconds": math.inf})["seconds"]:
            best[row["system"]] = row
    if not best:
        return sorted(results.rows, key=lambda row: row["seconds"])[:1]
    return sorted(best.values(), key=lambda row: (row["system"] != "cleave", row["seconds"]))[:POINTS]


def check(program):
    faults = []
    for file in sorted(RESULTS.glob("*.json")):
        results = Results(file.stem)
        rows = chosen(results)
        if not rows:
            faults.append(f"{file.name}: has no points")
        for row in rows:
            report = simulate(program, Point(row["input"], row["set"], row["system"], {}))
            if report is None:
                faults.append(f"{file.name}: {row['system']}, {row['case']}: no plan in time")
                continue
            changed = [f"{key} {row[key]} there, {report[key]} now" for key in KEYS if not same(row[key], report[key])]
            if changed:
                faults.append(f"{file.name} is older than the program: {row['system']}, {row['case']}: {'; '.join(changed)} "
                              f"(made by: {results.head['command']})")
    return faults
