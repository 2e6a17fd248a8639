"""A study: cases x systems x seeds, its results file, and what is read from it.

A results file holds the rows of all points (one a system, case and seed), the programs that made them, the date, the
machine and the command. Everything that a page says is computed from that file alone.
"""
import collections
import csv
import dataclasses
import io
import json
import statistics

from . import fleets
from .points import FIELDS, TOP, Point, store

RESULTS = TOP / "docs" / "measurements" / "results"  # where results are written and read


@dataclasses.dataclass
class Case:
    """One column of a table. `systems` and `seeds` override the study's."""
    name: str
    set: dict
    input: str = fleets.PUBLISHED
    systems: list = None
    seeds: dict = None  # system -> seeds


@dataclasses.dataclass
class Study:
    name: str
    command: str
    cases: list
    systems: list
    seeds: list = dataclasses.field(default_factory=lambda: fleets.SEEDS[:1])  # of systems that are not slow; slow ones: the first

    def seeds_of(self, case, system, brief):
        if system == "cloud-gpu":
            return [fleets.SEEDS[0]]
        seeds = (case.seeds or {}).get(system) or (
            fleets.SEEDS[:1] if system in fleets.SLOW else self.seeds)
        return seeds[:1] if brief else seeds

    def points(self, brief=False):
        return [Point(case.input, {**case.set, "fleet.seed": str(seed)}, system, {"case": case.name, "seed": seed})
                for case in (self.cases[:2] if brief else self.cases) for system in (case.systems or self.systems)
                if not (brief and system in fleets.SLOW)
                for seed in self.seeds_of(case, system, brief)]

    def take_over(self):
        """Points that were run elsewhere count as kept: what the repository's results file says of them."""
        try:
            head = json.loads((RESULTS / f"{self.name}.json").read_text())
        except (OSError, ValueError):
            return
        made_by = {}
        for program, systems in head["programs"].items():
            for system in systems:
                made_by.setdefault(system, []).append(program)
        rows = {(row["case"], row["seed"], row["system"]): row for row in head["rows"]}
        for point in self.points():
            row = rows.get((point.labels["case"], point.labels["seed"], point.system))
            if row is None or row["set"] != point.overrides() or row["input"] != point.input or point.kept() is not None:
                continue
            report = {key: row.get(key) for key in [*FIELDS, "figures"]}
            store(point.file(), json.dumps({"program": row.get("program") or " or ".join(made_by[point.system]),
                                            "date": row.get("date") or head["date"],
                                            "machine": row.get("machine") or head["machine"], "input": row["input"], "set": row["set"],
                                            "system": point.system, "seconds": row["seconds"], "report": report}))

    def write(self, brief=False):
        """The results file of the points that were run, .json and .csv."""
        rows, programs, machines, dates, missing = [], {}, collections.Counter(), set(), 0
        for point in self.points(brief):
            kept = point.kept()
            if kept is None:
                missing += 1
                continue
            programs.setdefault(kept["program"], set()).add(point.system)
            machines[kept["machine"]] += 1
            dates.add(kept["date"])
            rows.append({**point.labels, "system": point.system, "seconds": kept["seconds"], **kept["report"],
                         "input": kept["input"], "set": kept["set"], "program": kept["program"], "date": kept["date"],
                         "machine": kept["machine"]})
        head = {"study": self.name, "command": self.command, "date": max(dates, default=""), "machine": text_of(machines),
                "programs": {p: sorted(s) for p, s in sorted(programs.items())}, "points": len(rows), "not_run": missing,
                "brief": brief}
        store(RESULTS / f"{self.name}.json", json.dumps(head)[:-1] + ', "rows": [\n' +
              ",\n".join(json.dumps(row) for row in rows) + "\n]}\n")
        store(RESULTS / f"{self.name}.csv", csv_of(rows))


def csv_of(rows):
    figures = sorted({f"figures.{key}" for row in rows for key in row["figures"]})
    out = io.StringIO()
    writer = csv.DictWriter(out, ["case", "seed", "system", *FIELDS, *figures], extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({**row, **{f"figures.{k}": v for k, v in row["figures"].items()}})
    return out.getvalue()


def text_of(machines):
    """`machines`: a counter of points by where they were made."""
    return "; ".join(name if len(machines) == 1 else f"{name} ({count} points)" for name, count in machines.most_common())


def three(value):
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


class Results:
    """What a results file says. `of` are lists over seeds of feasible points, `mid` medians or None."""

    def __init__(self, name):
        self.head = json.loads((RESULTS / f"{name}.json").read_text())
        self.rows = self.head.pop("rows")
        self.cases = list(dict.fromkeys(row["case"] for row in self.rows))
        self.systems = list(dict.fromkeys(row["system"] for row in self.rows))

    def points(self, system, case):
        return [row for row in self.rows if row["system"] == system and row["case"] == case]

    def of(self, system, case, key="step_s"):
        return [v for v in (value_of(row, key) for row in self.points(system, case) if row["feasible"]) if v is not None]

    def mid(self, system, case, key="step_s"):
        """The median; None where any seed is not feasible, for a median over the lucky ones would flatter."""
        rows = self.points(system, case)
        values = self.of(system, case, key)
        return statistics.median(values) if rows and len(values) == len(rows) else None

    def text(self, system, case, key="step_s", scale=1):
        rows = self.points(system, case)
        if not rows:
            return ""
        values = [v * scale for v in self.of(system, case, key)]
        able = [row for row in rows if row["feasible"]]
        if not able:
            return "no"
        if not values:
            return "not survived" if key == "recovery_s" else ""
        if len(values) == 1:
            text = three(values[0])
        else:
            low, mid, high = (three(v) for v in (min(values), statistics.median(values), max(values)))
            text = mid if low == high else f"{mid} ({low}-{high})"
        if len(values) < len(rows):
            text += f", {len(rows) - len(values)} of {len(rows)} seeds " + (
                "not survived" if key == "recovery_s" and len(able) == len(rows) else "no")
        return text

    def pairs(self, over, under, case, key="step_s"):
        """A figure of two systems, seed by seed; one seed of either serves all of the other's where it has no more."""
        a, b = ({row["seed"]: value_of(row, key) for row in self.points(s, case) if row["feasible"]} for s in (over, under))
        if len(a) == 1 and over == "cloud-gpu":
            a = {seed: next(iter(a.values())) for seed in b}
        return [(a[seed], b[seed]) for seed in a if seed in b and a[seed] is not None and b[seed] is not None]

    def ratios(self, over, under, case, key="step_s"):
        """over / under, seed by seed, where under is not 0."""
        return [a / b for a, b in self.pairs(over, under, case, key) if b]

    def ratios_within(self, system, case, over, under):
        """One figure of a system over another, seed by seed."""
        pairs = [(value_of(row, over), value_of(row, under)) for row in self.points(system, case) if row["feasible"]]
        return [a / b for a, b in pairs if a is not None and b]

    def fastest(self, case, systems):
        """(system, median), or None."""
        able = [(self.mid(s, case), s) for s in systems if self.mid(s, case) is not None]
        return (min(able)[1], min(able)[0]) if able else None

    def table(self, key="step_s", cases=None, systems=None, scale=1, corner=""):
        cases = cases or self.cases
        systems = [s for s in systems or self.systems if any(self.points(s, c) for c in cases)]
        return grid([[corner, *cases]] + [[s, *(self.text(s, c, key, scale) for c in cases)] for s in systems])

    def stamp(self):
        programs = "; ".join(p if len(self.head["programs"]) == 1 else f"{p} ({', '.join(s)})"
                             for p, s in self.head["programs"].items())
        seeds = sorted({row["seed"] for row in self.rows})
        left = f"; {self.head['not_run']} points not run" if self.head["not_run"] else ""
        return (f"`{self.head['command']}`, {self.head['date']}; program {programs}; {self.head['points']} points, fleet seeds "
                f"{seeds[0]}-{seeds[-1]}{left}; {self.head['machine']}.")


def value_of(row, key):
    if key.startswith("figures."):
        return row["figures"].get(key[8:])
    if key == "device_bytes_down":
        return row["bytes_down"] / row["devices_used"]
    return row.get(key)


def grid(lines):
    text = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([text[0], "|" + "---|" * len(lines[0]), *text[1:]]) + "\n"


def span(values, unit=" x"):
    if not values:
        return "none"
    low, mid, high = three(min(values)), three(statistics.median(values)), three(max(values))
    return f"{mid}{unit}" if low == high else f"{mid}{unit} ({low}-{high})"

