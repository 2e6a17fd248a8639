"""Rows 7 to 12: links, heterogeneity, stragglers, models, batches, the solver."""
import statistics

from .fleets import HEADLINE, OTHER_ALGORITHMS, RIVALS, edge, fleet
from .row import Row, at_least
from .rows_a import COMMAND, study_2
from .study import Case, Study, grid, span, three

NAMED = ["cleave", "cleave-paper", "dtfm", "asteroid", "swarm", "megatron", "confidant", "galaxy", "fsdp", "tensor-parallel",
         "fusionllm"]
SAME = [s for s in NAMED if s not in ("cleave", "cleave-paper", *OTHER_ALGORITHMS)]


def against(r, cases, rivals=SAME):
    """Text: per case the fastest rival's time over cleave's."""
    parts = []
    for case in cases:
        best = r.fastest(case, rivals)
        if best is None:
            parts.append(f"{case}: no rival runs")
        else:
            parts.append(f"{case}: {span(r.ratios(best[0], 'cleave', case))} ({best[0]})")
    return "; ".join(parts)


def lead(r, case, rivals=SAME):
    """The fastest rival's time over cleave's: the median over seeds; None where no rival runs."""
    best = r.fastest(case, rivals)
    values = r.ratios(best[0], "cleave", case) if best else []
    return statistics.median(values) if values else None


RATIOS = [1, 2, 5, 10, 20]
LEVEL = 1.01  # closer times than this are a draw: one fleet seed says no more
study_7 = Study("row-07", COMMAND.format(7), [
    Case(f"{n}", {**fleet(edge(memory="16 GB", up="7.5 MB/s", down=f"{7.5 * n} MB/s")), **HEADLINE}) for n in RATIOS],
    [*NAMED, "dtfm-plus"])


def conclude_7(r, row):
    cases = [str(n) for n in RATIOS]
    leads = {c: lead(r, c) for c in cases}
    inside = [leads[c] for c in cases if c in ("2", "5", "10") and leads[c]]
    row.number = "time of the fastest rival over cleave's at downlink / uplink " + against(r, cases)
    level = [c for c in ("2", "5", "10") if leads[c] and 1 / LEVEL < leads[c] < LEVEL]
    row.verdict = ("*reproduced*: between 2 and 10 cleave is ahead of every rival that trains alike" if inside and min(inside) > LEVEL else
                   "*contradicted*: between 2 and 10 a rival is ahead" if inside and max(inside) <= 1 / LEVEL else
                   "*reproduced in part*: ahead of every rival that trains alike in some of the range only") + "".join(
                       f"; at {c} level with {r.fastest(c, SAME)[0]}" for c in level)
    row.tables = [("Seconds a step, OPT-13B on 256 devices of 16 GB, uplink 7.5 MB/s", r.table(corner="downlink / uplink"))]
    row.plot = ("downlink / uplink", "seconds a step", {s: [(n, r.mid(s, str(n))) for n in RATIOS if r.mid(s, str(n))]
                                                        for s in r.systems})


FLEETS = {"mild": (("5 TFLOP/s", "7 TFLOP/s"), ("14 MB/s", "100 MB/s"), ("5 MB/s", "10 MB/s")),
          "moderate": (("2 TFLOP/s", "10 TFLOP/s"), ("5 MB/s", "200 MB/s"), ("2 MB/s", "20 MB/s")),
          "extreme": (("1 TFLOP/s", "20 TFLOP/s"), ("1 MB/s", "500 MB/s"), ("1 MB/s", "50 MB/s"))}


def mean_of(low, high):
    """Of two rates in the same unit."""
    unit = low.split()[1]
    return f"{(float(low.split()[0]) + float(high.split()[0])) / 2:g} {unit}"


study_8 = Study("row-08", COMMAND.format(8), [
    Case(f"{name}, {label}", {**fleet(edge(memory=memory, compute=c, down=d, up=u)), **HEADLINE})
    for label, memory in (("16 GB", "16 GB"), ("1-3 GB", ["1 GB", "3 GB"])) for name, (c, d, u) in FLEETS.items()] + [
    Case(f"{name}, all alike, 16 GB", {**fleet(edge(memory="16 GB", compute=mean_of(*c), down=mean_of(*d), up=mean_of(*u))), **HEADLINE})
    for name, (c, d, u) in FLEETS.items()], NAMED)


def conclude_8(r, row):
    def slower(system, name):
        a, b = r.mid(system, f"{name}, all alike, 16 GB"), r.mid(system, f"{name}, 16 GB")
        return b / a if a and b else None

    cost = {s: slower(s, "extreme") for s in ("cleave", *SAME) if slower(s, "extreme")}
    mine = cost.pop("cleave")
    row.number = ("extreme heterogeneity over devices that are all alike, of the same mean rates, 16 GB: cleave " + three(mine) + " x, " +
                  ", ".join(f"{s} {three(v)} x" for s, v in cost.items()) +
                  "; fastest rival over cleave: " + against(r, [c for c in r.cases if "alike" not in c]))
    leads = [lead(r, c) for c in r.cases if "alike" not in c and lead(r, c)]
    better = [s for s, v in sorted(cost.items(), key=lambda item: item[1]) if v < mine]
    row.verdict = f"*{at_least(leads, 1)}* that cleave is ahead under any heterogeneity; " + (
        f"*contradicted* that it loses least by it: {', '.join(better)} lose{'s' if len(better) == 1 else ''} less" if better else
        "*reproduced* that it loses least by it")
    row.notes = "Ranges of compute, downlink and uplink: " + "; ".join(
        f"{name} {c[0].split()[0]} to {c[1]}, {d[0].split()[0]} to {d[1]}, {u[0].split()[0]} to {u[1]}" for name, (c, d, u) in FLEETS.items()) + \
        ". Their means differ, so that steps of the three say nothing about heterogeneity beside each other: beside fleets of devices that are all " \
        "alike, at the means of these ranges, they do."
    row.tables = [("Seconds a step, OPT-13B on 256 devices", r.table())]


SHARES = [0, 5, 10, 20]


def stragglers(share, known):
    """Known: they declare a tenth. Unknown: their rates fall to a tenth when the first step begins; three steps."""
    few = round(256 * share / 100)
    if known:
        slow = edge(few, "16 GB", ("0.5 TFLOP/s", "0.7 TFLOP/s"), ("1 MB/s", "10 MB/s"), ("0.5 MB/s", "1 MB/s"), "slow")
        return {**fleet(edge(256 - few, "16 GB"), *([slow] if few else [])), **HEADLINE}
    return {**fleet(edge(256, "16 GB")), **HEADLINE, "simulate.steps": "3", "fleet.churn": {
        "mean_session": "1000000 h", "mean_absence": "1 h", "slow_fraction": share / 100, "slow_factor": 0.1, "seed": 1}}


study_9 = Study("row-09", COMMAND.format(9), [
    Case(f"{n} %, {'known' if known else 'unknown'}", stragglers(n, known)) for known in (True, False) for n in SHARES
    if known or n], ["cleave", "cleave-paper", "dtfm", "asteroid", "swarm", "megatron", "confidant", "galaxy", "tensor-parallel"])


def conclude_9(r, row):
    worst = {}
    for kind in ("known", "unknown"):
        worst[kind] = {s: r.mid(s, f"20 %, {kind}") / r.mid(s, "0 %, known") for s in r.systems
                       if r.mid(s, f"20 %, {kind}") and r.mid(s, "0 %, known")}
    row.number = "; ".join(f"20 % {kind}, over none: " + ", ".join(f"{s} {three(v)} x" for s, v in values.items())
                           for kind, values in worst.items())
    leads = {c: lead(r, c, [s for s in r.systems if s in RIVALS]) for c in r.cases}
    leads = {c: v for c, v in leads.items() if v}
    row.verdict = f"*{at_least(leads.values(), 1)}* that cleave is ahead with stragglers: fastest rival over cleave " + ", ".join(
        f"{c} {three(v)} x" for c, v in leads.items())
    row.notes = ("Unknown to the planner: mean of three steps from the one in which they appear; every system plans with measured rates from the second "
                 "one on. Layouts with unknown stragglers, cleave: "
                 f"{r.points('cleave', '20 %, unknown')[0]['layout']}.")
    row.tables = [("Seconds a step, OPT-13B on 256 devices of 16 GB", r.table())]


MODELS = {"opt-125m": 0.125, "opt-1.3b": 1.3, "opt-6.7b": 6.7, "opt-13b": 13, "opt-30b": 30, "opt-66b": 66, "llama2-7b": 7,
          "llama2-13b": 13, "llama2-70b": 70}


def devices_for(billions):
    return max(1, min(1024, round(256 * billions / 13)))


study_10 = Study("row-10", COMMAND.format(10), [
    Case(f"{m}, {devices_for(b)} of {label}", {**fleet(edge(devices_for(b), memory)), **HEADLINE, "model.preset": m},
         systems=NAMED if devices_for(b) <= 256 or label != "16 GB" else
         ["cleave", "swarm", "megatron", "confidant", "galaxy", "tensor-parallel"])
    for label, memory in (("1-3 GB", ["1 GB", "3 GB"]), ("16 GB", "16 GB")) for m, b in MODELS.items()], NAMED)


def conclude_10(r, row):
    row.number = "fastest rival over cleave: " + against(r, r.cases)
    values = {c: lead(r, c) for c in r.cases}
    alone = [c for c, v in values.items() if v is None and r.mid("cleave", c)]
    values = {c: v for c, v in values.items() if v}
    behind = [c for c, v in values.items() if v < 1]
    row.verdict = (f"*{at_least(values.values(), 4)}* (at least 4 x): {sum(v >= 4 for v in values.values())} of {len(values)} cases in which "
                   f"a rival runs; cleave is behind in {', '.join(behind) or 'none'}; alone in {len(alone)} cases")
    row.notes = ("Devices = 256 x parameters / 13B, at most 1024. DTFM and Asteroid were not run above 256 devices of 16 GB: megatron, "
                 "which places the same stages by links, stands for them.")
    row.tables = [("Seconds a step, devices of 1-3 GB", r.table(cases=[c for c in r.cases if c.endswith("1-3 GB")])),
                  ("Seconds a step, devices of 16 GB", r.table(cases=[c for c in r.cases if c.endswith("16 GB")]))]


BATCHES = [16, 32, 64, 128, 256]
study_11 = Study("row-11", COMMAND.format(11), [
    Case(f"batch {b}, {b // 2} devices", {**fleet(edge(b // 2, "16 GB")), **HEADLINE, "train.batch": str(b)}) for b in BATCHES],
    NAMED)


def conclude_11(r, row):
    row.number = "fastest rival over cleave: " + against(r, r.cases)
    values = [v for c in r.cases if (v := lead(r, c))]
    row.verdict = f"*{at_least(values, 4)}* (at least 4 x at every batch)"
    row.tables = [("Seconds a step, OPT-13B, devices of 16 GB", r.table())]


def conclude_12(r, row):
    counts = [n for n in ("256", "1024", "8192") if r.mid("cleave", n, "planning_s") is not None]
    row.number = "cleave's planning: " + ", ".join(f"{r.text('cleave', n, 'planning_s')} s at {n} devices" for n in counts) + \
        "; the publication allows its solver 180 s (5 % gap), 600 s at 1024 devices"
    most = r.mid("cleave", "1024", "planning_s")
    row.verdict = (f"*{'reproduced' if most <= 600 else 'contradicted'}*: {three(most)} of the 600 s that the publication allows its solver at 1024 "
                   "devices; a search without a solver, whose layouts are printed beside a lower bound")
    row.notes = "Real seconds on a machine shared with other builds: upper limits. All that comes before the first step is counted."
    systems = [s for s in r.systems if any(r.points(s, n) for n in counts)]
    row.tables = [("Planning, real seconds", grid([["devices", *counts]] + [
        [s, *(r.text(s, n, "planning_s") for n in counts)] for s in systems]))]


ROWS = [
    Row(7, "downlinks 2-10 x as fast as uplinks suit it", "Cleave v2", study_7, conclude_7),
    Row(8, "heterogeneity: mild, moderate, extreme", "Cleave's code", study_8, conclude_8),
    Row(9, "stragglers: 0, 5, 10, 20 % at a tenth of every rate", "Cleave's code", study_9, conclude_9),
    Row(10, "models OPT-125M to 66B, Llama2-7B to 70B; devices = 256 x parameters / 13B, at most 1024", "Cleave's code", study_10,
        conclude_10),
    Row(11, "batches of 16 to 256 with devices = batch / 2", "Cleave's code", study_11, conclude_11),
    Row(12, "solver: limit 180 s, gap 5 %; 600 s at 1024 devices", "Cleave's code", study_2, conclude_12),
]
