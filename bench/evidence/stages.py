"""The study of steps in stages (docs/measurements/stages.md): the default layout over ten fleets."""
import statistics

from .fleets import PUBLISHED, SEEDS, WIDE, edge, fleet
from .study import Case, Study, grid

WORLD = "inputs/dtfm/world.yaml"
ONE = {"cleave": SEEDS[:1]}
LONG = {"model.seq_len": "2048", "train.batch": "64"}
CASES = [
    Case("OPT-13B, 256 devices", {}),
    Case("OPT-13B, 256 devices behind 100 Gbit/s", {"server.nic_out": "100 Gbit/s", "server.nic_in": "100 Gbit/s"}),
    Case("OPT-13B, 1024 devices", fleet(edge(1024))),
    Case("OPT-13B, 1024 devices behind 100 Gbit/s", {**fleet(edge(1024)), "server.nic_out": "100 Gbit/s", "server.nic_in": "100 Gbit/s"}),
    Case("OPT-13B, 64 devices", fleet(edge(64))),
    Case("OPT-13B, 64 devices, all stages at once", {**fleet(edge(64)), "plan.rounds": "false"}),
    Case("OPT-13B, 64 devices of 16 GB", fleet(edge(64, "16 GB"))),
    Case("OPT-13B, 32 devices", fleet(edge(32))),
    Case("OPT-13B, 32 devices, in tiles", {**fleet(edge(32)), "plan.layout": "tiles"}, seeds=ONE),
    Case("OPT-13B, 32 devices of 512 MB", fleet(edge(32, "512 MB")), seeds=ONE),
    Case("OPT-13B, 256 devices of 512 MB", fleet(edge(256, "512 MB"))),
    Case("OPT-13B, 256 devices of 512 MB, all stages at once", {**fleet(edge(256, "512 MB")), "plan.rounds": "false"}),
    Case("OPT-13B, 256 devices of 600 MB", fleet(edge(256, "600 MB"))),
    Case("OPT-13B, 256 devices of 600 MB, all stages at once", {**fleet(edge(256, "600 MB")), "plan.rounds": "false"}),
    Case("OPT-13B, 256 devices of 700 MB", fleet(edge(256, "700 MB"))),
    Case("sequences of 2048, 32 devices of 512 MB", {**fleet(edge(32, "512 MB")), **LONG}, seeds=ONE),
    Case("sequences of 2048, 32 devices of 512 MB, in tiles", {**fleet(edge(32, "512 MB")), **LONG, "plan.layout": "tiles"}, seeds=ONE),
    Case("sequences of 2048, 256 devices of 512 MB", {**fleet(edge(256, "512 MB")), **LONG}, seeds=ONE),
    Case("sequences of 2048, 256 devices of 512 MB, in stages", {**fleet(edge(256, "512 MB")), **LONG, "plan.layout": "stages"}, seeds=ONE),
    Case("OPT-13B, 256 devices, 8 bits between stages", {"plan.boundary": "mxint8"}),
    Case("OPT-13B, 256 devices behind 100 Gbit/s, 8 bits between stages", {"plan.boundary": "mxint8", "server.nic_out": "100 Gbit/s", "server.nic_in": "100 Gbit/s"}),
    Case("OPT-13B, 1024 devices, 8 bits between stages", {**fleet(edge(1024)), "plan.boundary": "mxint8"}),
    Case("OPT-13B, 64 devices, 8 bits between stages", {**fleet(edge(64)), "plan.boundary": "mxint8"}),
    Case("OPT-13B, 256 devices of 512 MB, 8 bits between stages", {**fleet(edge(256, "512 MB")), "plan.boundary": "mxint8"}),
    Case("OPT-1.3B, 256 devices, 8 bits between stages", {"model.preset": "opt-1.3b", "plan.boundary": "mxint8"}),
    Case("OPT-125M, 256 devices, 8 bits between stages", {"model.preset": "opt-125m", "plan.boundary": "mxint8"}),
    Case("OPT-1.3B, 256 devices", {"model.preset": "opt-1.3b"}),
    Case("OPT-125M, 256 devices", {"model.preset": "opt-125m"}),
    Case("GPT-3 XL, 64 GPUs in eight cities", {"plan.wire": "fp16"}, input=WORLD, seeds=ONE),
    Case("Llama2-70B, 8192 devices", {}, input="inputs/sim/llama2-70b-8192.yaml", seeds=ONE),
]
STUDY = Study("stages", "python3 bench/stages.py", CASES, ["cleave"], seeds=SEEDS)
for case in CASES:  # inputs leave the interface unlimited; said here so that results files show it
    if case.input == PUBLISHED and "server.nic_out" not in case.set:
        case.set = {**case.set, **WIDE}


def figures(r):
    """{key: text}: `table`, and the median step of every case."""
    lines = [["study", "step s, median (range)", "bound s", "floor s", "forecast / step", "GB down", "GB up", "planning s", "wall s",
              "layout, first seed"]]
    found = {}
    for case in r.cases:
        rows = r.points("cleave", case)
        forecasts = [row["figures"]["forecast_s"] / row["step_s"] for row in rows if row["figures"].get("forecast_s")]  # none in tiles
        of = {key: statistics.median(values) if (values := r.of("cleave", case, key)) else None
              for key in ("lower_bound_s", "floor_s", "bytes_down", "bytes_up", "planning_s", "wall_s")}
        lines.append([case, r.text("cleave", case), f"{of['lower_bound_s']:.4g}", f"{of['floor_s']:.3g}",
                      f"{min(forecasts):.2f}-{max(forecasts):.2f}" if forecasts else "", f"{of['bytes_down'] / 1e9:.0f}",
                      f"{of['bytes_up'] / 1e9:.0f}", f"{of['planning_s']:.2g}", f"{of['wall_s']:.2g}", rows[0]["layout"]])
        middle = r.mid("cleave", case)
        found[case] = f"{middle:.1f} s" if middle < 10 else f"{middle:.0f} s"
    return {"table": grid(lines), **found}
