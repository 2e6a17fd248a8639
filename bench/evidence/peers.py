"""Devices that reach each other directly, through the server, or not at all; and what a step takes in energy, the server's with it."""
from .fleets import HEADLINE, edge, fleet
from .regimes import LINKS
from .study import Case, Study, grid, three

REACH = {"direct": "direct", "relayed by the server": "relayed", "not at all": "none"}
FIBRE = dict(zip(("down", "up"), LINKS["fibre"]))
FLEETS = {
    "opt-1.3b, 256 devices of 1-3 GB, published links": ("opt-1.3b", edge(256)),
    "opt-1.3b, 256 devices of 16 GB, fibre": ("opt-1.3b", edge(256, "16 GB", **FIBRE)),
    "opt-13b, 32 devices of 16 GB, fibre": ("opt-13b", edge(32, "16 GB", **FIBRE)),
}
SYSTEMS = ["cleave", "dtfm", "swarm", "megatron", "fsdp", "confidant", "galaxy", "tensor-parallel", "data-parallel", "cloud-gpu"]
# The server's power belongs to every system, and its interface to those that are relayed.
STUDY = Study("peers", "python3 bench/compare.py", [
    Case(f"{name}; {reach}", {**fleet(devices), **HEADLINE, "server.power_idle": "200 W", "server.power_load": "500 W",
                              "fleet.peer_links": key, "model.preset": model}, systems=SYSTEMS if key == "direct" else SYSTEMS[:-1])
    for name, (model, devices) in FLEETS.items() for reach, key in REACH.items()], SYSTEMS)


def steps(r):
    lines = [["fleet; devices reach each other", *SYSTEMS[:-1]]]
    for case in r.cases:
        best = r.fastest(case, SYSTEMS[:-1])
        lines.append([case] + [f"**{t}**" if best and s == best[0] else t for s in SYSTEMS[:-1] for t in [r.text(s, case)]])
    return grid(lines)


def energy(r):
    """kJ of devices + server, of the cases in which devices reach each other."""
    lines = [["fleet", *SYSTEMS]]
    for case in r.cases:
        if case.endswith("; direct"):
            parts = [[r.mid(s, case, key) for key in ("energy_J", "server_energy_J")] for s in SYSTEMS]
            lines.append([case.removesuffix("; direct")] + ["no" if None in p else " + ".join(three(v / 1e3) for v in p) for p in parts])
    return grid(lines)


def figures(r):
    return {"steps": steps(r), "energy": energy(r)}
