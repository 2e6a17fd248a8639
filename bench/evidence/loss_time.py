"""Loss against time: what a system that changes the training gains in time, it may lose in steps.

The loss of each algorithm is that of a small model trained for real (small_gpt2.py); the time of a step is that of `cleave simulate`
for a large one. Their product, steps to a loss x seconds a step, is read as if the large model needed as many steps more as the small
one does.
"""
import json
import statistics

from . import svg
from .fleets import HEADLINE, edge, fleet
from .points import TOP
from .regimes import LINKS
from .study import Case, Study, grid, three

CURVES = TOP / "docs" / "measurements" / "results" / "learning" / "loss-curves.json"
PLOT = TOP / "docs" / "measurements" / "results" / "learning" / "loss-time.svg"
ALIKE = ["cleave", "swarm", "megatron"]
# Algorithm -> who trains so, and its name in tables.
ALGORITHMS = {"one-model": (ALIKE, "one model (cleave, swarm, megatron, all that train alike)"),
              "local-500": (["local-steps"], "local-steps, averaged every 500 steps"),
              "local-50": (["local-steps"], "local-steps, averaged every 50 steps"),
              "top-0.035": (["fusionllm"], "fusionllm, 3.5 % of values kept"),
              "grown-4": (["progfed"], "progfed, grown in 4 parts")}
FIBRE = dict(zip(("down", "up"), LINKS["fibre"]))
FLEETS = {"opt-125m, published links": ("opt-125m", edge(256, "16 GB")), "opt-125m, fibre": ("opt-125m", edge(256, "16 GB", **FIBRE)),
          "opt-1.3b, published links": ("opt-1.3b", edge(256, "16 GB")), "opt-13b, published links": ("opt-13b", edge(256, "16 GB"))}
OFTEN = "; averaged every 50 steps"
STUDY = Study("loss-time", "python3 bench/loss_time.py tinyshakespeare.txt", [
    case for name, (model, devices) in FLEETS.items() for case in (
        Case(name, {**fleet(devices), **HEADLINE, "model.preset": model}, systems=[*ALIKE, "fusionllm", "local-steps", "progfed"]),
        Case(name + OFTEN, {**fleet(devices), **HEADLINE, "model.preset": model, "simulate.local_steps.interval": "50"},
             systems=["local-steps"]))], [*ALIKE, "fusionllm", "local-steps", "progfed"])
GOALS = (300, 600, 1000)  # the losses that one model has after so many steps


def curves():
    """{algorithm: {seed: [[step, loss], ...]}} and what the file says of its making."""
    head = json.loads(CURVES.read_text())
    return head.pop("curves"), head


def steps_to(curve, loss):
    """Steps until the loss is reached, between two that were measured; None: never."""
    for (before, above), (step, below) in zip(curve, curve[1:]):
        if below <= loss:
            return before + (step - before) * (above - loss) / (above - below)
    return None


def goal(all_curves, seed, steps):
    return dict(map(tuple, all_curves["one-model"][seed]))[steps]


def needed(all_curves, algorithm, steps):
    """Steps that the algorithm takes to the loss of one model after `steps`, by seed; None where one never gets there."""
    found = [steps_to(curve, goal(all_curves, seed, steps)) for seed, curve in all_curves[algorithm].items()]
    return None if None in found else found


def over(values):
    low, mid, high = (three(v) for v in (min(values), statistics.median(values), max(values)))
    return mid if low == high else f"{mid} ({low}-{high})"


def learning(all_curves):
    lines = [["algorithm", "loss at the end", *(f"steps to the loss of one model at {s}" for s in GOALS)]]
    for algorithm, (_, name) in ALGORITHMS.items():
        cells = [needed(all_curves, algorithm, s) for s in GOALS]
        ends = [curve[-1][1] for curve in all_curves[algorithm].values()]
        lines.append([name, over(ends)] + [over(c) if c else "never" for c in cells])
    return grid(lines)


def times(r, all_curves, steps):
    """For each fleet: seconds a step, and hours to the loss of one model at `steps`."""
    lines = [["fleet", *(f"{system}" for system in ALIKE), *(ALGORITHMS[a][1] for a in list(ALGORITHMS)[1:])]]
    for name in FLEETS:
        cells = []
        for algorithm, (systems, _) in ALGORITHMS.items():
            for system in systems:
                each = r.mid(system, name + (OFTEN if algorithm == "local-50" else ""))
                count = needed(all_curves, algorithm, steps)
                if each is None:
                    cells.append("no")
                elif count is None:
                    cells.append(f"{three(each)} s; never")
                else:
                    cells.append(f"{three(each)} s; {three(each * statistics.median(count) / 3600)} h")
        lines.append([name, *cells])
    return grid(lines)


def lines_of(r, all_curves, name):
    """{system: [(hours, loss)]} of the first seed, for a plot."""
    found = {}
    for algorithm, (systems, _) in ALGORITHMS.items():
        for system in systems:
            each = r.mid(system, name + (OFTEN if algorithm == "local-50" else ""))
            if each is not None:
                label = system + {"local-500": ", 500", "local-50": ", 50"}.get(algorithm, "")
                found[label] = [(step * each / 3600, loss) for step, loss in next(iter(all_curves[algorithm].values())) if step]
    return found


def draw(r):
    name = next(iter(FLEETS))
    return svg.chart(f"Loss against time: {name}, 256 devices of 16 GB", "hours", "validation loss, nats",
                     lines_of(r, curves()[0], name))


def figures(r):
    all_curves, head = curves()
    return {"learning": learning(all_curves), **{f"times {s}": times(r, all_curves, s) for s in GOALS},
            "curves-stamp": f"`{head['command']}`, {head['date']}; PyTorch {head['torch']}, seeds {', '.join(head['seeds'])}; {head['machine']}.\n"}
