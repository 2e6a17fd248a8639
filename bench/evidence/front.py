"""What README.md shows of the study of memories (row 6): a table and a chart."""
from . import svg
from .fleets import RIVALS
from .study import grid, three

CHART = "front.svg"
SHOWN = {"cleave": "cleave", "cleave-paper": "published scheme", "dtfm-plus": "dtfm-plus", "asteroid": "asteroid", "swarm": "swarm",
         "megatron": "megatron", "tensor-parallel": "tensor parallel"}


def of_rivals(r, case):
    best = r.fastest(case, [s for s in r.systems if s in RIVALS])
    return f"{three(best[1])} ({best[0]})" if best else "none runs"


def figures(r):
    table = [["memory of a device", *r.cases],
             ["**cleave**", *(f"**{r.text('cleave', case)}**" for case in r.cases)],
             ["the published scheme (`cleave-paper`)", *(r.text("cleave-paper", case) for case in r.cases)],
             ["the fastest of the rivals", *(of_rivals(r, case) for case in r.cases)]]
    return {"front": grid(table)}


def chart(r):
    lines = {shown: [(case, r.mid(system, case)) for case in r.cases if r.mid(system, case) is not None]
             for system, shown in SHOWN.items()}
    return svg.chart("OPT-13B on 256 devices: seconds a step", "memory of a device", "seconds a step", lines)
