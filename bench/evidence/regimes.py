"""The table of regimes: model x memory x devices x links x churn, and the fastest system in each cell."""
import math
import statistics

from .fleets import EVERY, HEADLINE, OTHER_ALGORITHMS, SMALL, WIDE, edge, fleet
from .study import Case, Study, grid, three

MODELS = ["opt-125m", "opt-1.3b", "opt-13b"]
MEMORIES = {"512 MB": "512 MB", "1-3 GB": SMALL, "16 GB": "16 GB"}
COUNTS = [32, 256]
# Down and up, each way of the device: the published fleet's, and fibre.
LINKS = {"published": (("10 MB/s", "100 MB/s"), ("5 MB/s", "10 MB/s")), "fibre": (("50 MB/s", "100 MB/s"), ("50 MB/s", "100 MB/s"))}
CHURN = {"calm": {}, "sessions of 20 min": {"fleet.churn": {"mean_session": "20 min", "mean_absence": "10 min"}, "simulate.steps": "2"}}
SYSTEMS = [s for s in EVERY if s != "cloud-gpu"]
# On churn only what is published to go on after losses, and what is granted it most cheaply.
UNDER_CHURN = [s for s in SYSTEMS if s not in ("cleave-paper", "dtfm-plus", "asteroid-plus", "summa", "progfed", "local-steps")]


# Swarm is published with boundary tensors in 8 bits; all others, and cleave by default, send 16.
SIXTEEN = ", swarm in 16 bits"
EIGHT = ", cleave in 8 bits"


def name(model, memory, count, links, churn):
    return f"{model}, {memory}, {count} devices, {links}, {churn}"


STUDY = Study("regimes", "python3 bench/compare.py", [
    Case(name(m, memory, n, links, churn),
         {**fleet(edge(n, MEMORIES[memory], down=LINKS[links][0], up=LINKS[links][1])), **HEADLINE, **CHURN[churn], "model.preset": m},
         systems=SYSTEMS if churn == "calm" else UNDER_CHURN)
    for churn in CHURN for m in MODELS for memory in MEMORIES for n in COUNTS for links in LINKS] + [
    Case(name(m, memory, n, links, "calm") + ", server unlimited",
         {**fleet(edge(n, MEMORIES[memory], down=LINKS[links][0], up=LINKS[links][1])), **WIDE, "model.preset": m}, systems=["cleave"])
    for m in MODELS for memory in MEMORIES for n in COUNTS for links in LINKS] + [
    Case(name(m, memory, n, links, churn) + SIXTEEN,
         {**fleet(edge(n, MEMORIES[memory], down=LINKS[links][0], up=LINKS[links][1])), **HEADLINE, **CHURN[churn], "model.preset": m,
          "simulate.swarm.boundary_bits": "16"}, systems=["swarm"])
    for churn in CHURN for m in MODELS for memory in MEMORIES for n in COUNTS for links in LINKS] + [
    Case(name(m, memory, n, links, churn) + EIGHT,
         {**fleet(edge(n, MEMORIES[memory], down=LINKS[links][0], up=LINKS[links][1])), **HEADLINE, **CHURN[churn], "model.preset": m,
          "plan.boundary": "mxint8"}, systems=["cleave"])
    for churn in CHURN for m in MODELS for memory in MEMORIES for n in COUNTS for links in LINKS], SYSTEMS)


def ranked(r, case, systems):
    able = [(r.mid(s, case), s) for s in systems if r.mid(s, case) is not None]
    return sorted(able)


def mine(r, case):
    """Cleave's time, or why there is none."""
    time = r.mid("cleave", case)
    return f"{three(time)} s" if time else "no" if r.points("cleave", case) else "not run yet"


def cell(r, case):
    """Fastest that trains alike, with the second; and who changes the training and is faster still."""
    alike = ranked(r, case, [s for s in r.systems if s not in OTHER_ALGORITHMS])
    if not alike:
        return "none runs"
    text = f"**{alike[0][1]}** {three(alike[0][0])} s"
    if len(alike) > 1:
        text += f", {alike[1][1]} {three(alike[1][0])}"
    if alike[0][1] != "cleave":
        text += f"; cleave {mine(r, case)}"
    other = ranked(r, case, OTHER_ALGORITHMS)
    if other and other[0][0] < alike[0][0]:
        text += f" (*{other[0][1]}* {three(other[0][0])})"
    return text


def table(r, churn):
    columns = [(n, links) for n in COUNTS for links in LINKS]
    lines = [["model, memory", *(f"{n} devices, {links}" for n, links in columns)]]
    for m in MODELS:
        for memory in MEMORIES:
            lines.append([f"{m}, {memory}", *(cell(r, name(m, memory, n, links, churn)) for n, links in columns)])
    return grid(lines)


def unlimited(r):
    columns = [(n, links) for n in COUNTS for links in LINKS]
    lines = [["model, memory", *(f"{n} devices, {links}" for n, links in columns)]]
    for m in MODELS:
        for memory in MEMORIES:
            lines.append([f"{m}, {memory}"] + [
                f"{r.text('cleave', name(m, memory, n, links, 'calm'))}, {r.text('cleave', name(m, memory, n, links, 'calm') + ', server unlimited')}"
                for n, links in columns])
    return grid(lines)


def losses(r):
    """A list, one line a cell that cleave loses."""
    lines, cells, in_16_bits, in_8_bits, shares = [], 0, [], [], []
    for case in r.cases:
        if case.endswith(("unlimited", SIXTEEN, EIGHT)):
            continue
        alike = ranked(r, case, [s for s in r.systems if s not in OTHER_ALGORITHMS])
        if not alike or not r.points("cleave", case):
            continue
        cells += 1
        time, short = r.mid("cleave", case), r.mid("cleave", case + EIGHT)
        if short and time:
            shares.append(short / time)
        rival = min(((t, s) for t, s in alike if s != "cleave"), default=None)
        if rival and (not short or rival[0] < short):
            in_8_bits.append(f"{case} ({rival[1]} {three(rival[0])} s, cleave {three(short)} s)" if short else f"{case} ({rival[1]})")
        if alike[0][1] != "cleave":
            lines.append(f"- {case}: {alike[0][1]} {three(alike[0][0])} s, cleave {mine(r, case)}{f', {three(time / alike[0][0])} x' if time else ''}")
            alike = [(r.mid("swarm", case + SIXTEEN) or math.inf, s) if s == "swarm" else (t, s) for t, s in alike]
            if min(alike)[1] != "cleave":
                in_16_bits.append(f"{case} ({min(alike)[1]} {three(min(alike)[0])} s)")
    def left(cases):
        return f"{len(cases)}: {'; '.join(cases)}" if cases else "none"

    return (f"cleave is not the fastest in {len(lines)} of {cells} cells:\n\n" + "\n".join(lines) +
            "\n\nSwarm sends boundary tensors in 8 bits, as it is published; all others send 16. With 16 bits for all "
            f"(`simulate.swarm.boundary_bits: 16`) these are left: {left(in_16_bits)}.\n\n"
            f"With 8 bits for cleave too (`plan.boundary: mxint8`, all other rivals 16) these are left: {left(in_8_bits)}. "
            f"It then takes {three(statistics.geometric_mean(shares))} of its time with 16, in the geometric mean of {len(shares)} cells "
            f"({three(min(shares))} to {three(max(shares))}).\n")


def figures(r):
    return {"small fibre": mine(r, name("opt-125m", "16 GB", 32, "fibre", "calm")),
            "candidates of smaller fleets": mine(r, name("opt-1.3b", "16 GB", 256, "fibre", "calm")),
            "kept sequences": mine(r, name("opt-13b", "16 GB", 32, "fibre", "calm")),
            "kept sequences in sessions": mine(r, name("opt-13b", "16 GB", 32, "fibre", "sessions of 20 min")), "calm": table(r, "calm"), "churn": table(r, "sessions of 20 min"), "unlimited": unlimited(r), "losses": losses(r)}
