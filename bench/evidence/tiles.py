"""The study of steps in tiles (docs/measurements/simulation.md, fleet_sizes.md): plan.layout=tiles, which small memories and faulty fleets use."""
from .fleets import SMALL, WIDE, edge, fleet
from .study import Case, Study, grid, three

TILES = {"plan.layout": "tiles", "plan.row_groups": "8", **WIDE}
ONE_GROUP = {**TILES, "plan.row_groups": "1"}
COUNTS = [64, 128, 256, 512, 1024, 2048, 4096, 8192]
INTERFACES = {"unlimited": WIDE, **{f"{rate} Gbit/s": {"server.nic_out": f"{rate} Gbit/s", "server.nic_in": f"{rate} Gbit/s"}
                                    for rate in (400, 100)}}


def sized(count, interface):
    return f"{count} devices, {interface}"


def slower(factor):
    """A fifth of the fleet with all rates divided by the factor."""
    rates = [((low / factor, high / factor), unit) for (low, high), unit in (((5, 7), "TFLOP/s"), ((10, 100), "MB/s"), ((5, 10), "MB/s"))]
    compute, down, up = (tuple(f"{rate:g} {unit}" for rate in pair) for pair, unit in rates)
    return fleet(edge(205, name="punctual"), edge(51, compute=compute, down=down, up=up, name="straggler"))


VARIED = {
    "downlink : uplink": {f"{ratio}": fleet(edge(up="5 MB/s", down=f"{5 * ratio} MB/s")) for ratio in (1, 2, 5, 10, 20)},
    "memory": {size: fleet(edge(memory=size)) for size in ("256 MB", "512 MB", "1 GB", "3 GB")},
    "server interface": {rate: {"server.nic_out": rate, "server.nic_in": rate} for rate in ("10 Gbit/s", "50 Gbit/s", "200 Gbit/s")},
    "a fifth slower by": {f"{factor}": slower(factor) for factor in (2, 5, 20)},
    "model": {name: {"model.preset": name} for name in ("opt-1.3b", "opt-6.7b", "llama2-7b", "llama2-13b")},
}
CASES = [Case(sized(n, name), {**TILES, **fleet(edge(n)), **interface}) for n in COUNTS for name, interface in INTERFACES.items()]
CASES += [Case(f"{n} devices, one row group", {**ONE_GROUP, **fleet(edge(n))}) for n in (64, 256, 1024)]
CASES += [Case("256 devices, fp32 on the wire", {**TILES, "plan.wire": "fp32"}),
          Case("256 devices, two dimensions", {**ONE_GROUP, "plan.partition": "grid"}),
          Case("256 devices, two row groups", {**TILES, "plan.row_groups": "2"})]
CASES += [Case(f"{what}: {value}", {**TILES, **overrides}) for what, values in VARIED.items() for value, overrides in values.items()]
PAPER = "256 devices, as published"
STUDY = Study("tiles", "python3 bench/stages.py", [*CASES, Case(PAPER, WIDE, systems=["cleave-paper"])], ["cleave"])

PHONES = [edge(224, "512 MB", ("0.7 TFLOP/s", "2.2 TFLOP/s"), ("5 MB/s", "30 MB/s"), ("2 MB/s", "8 MB/s"), "phone"),
          edge(32, ("4 GB", "8 GB"), ("4 TFLOP/s", "12 TFLOP/s"), ("50 MB/s", "120 MB/s"), ("10 MB/s", "60 MB/s"), "laptop")]
FLEETS = {"published": fleet(edge()), "symmetric links": fleet(edge(up=("10 MB/s", "100 MB/s"))),
          "phones and laptops": {"fleet.devices": PHONES}}
IDEAS = [  # each line keeps what the lines above it brought
    ("two dimensions", {**WIDE, "plan.layout": "tiles", "plan.partition": "grid", "plan.panels": "1", "plan.asynchronous": "false",
                        "plan.row_groups": "1", "plan.wire": "fp32"}),
    ("+ cuts of k", {"plan.partition": "auto"}),
    ("+ streaming", {"plan.panels": "32"}),
    ("+ asynchronous graph", {"plan.asynchronous": "true"}),
    ("+ fp16 on the wire", {"plan.wire": "fp16"}),
    ("+ eight row groups, weights kept", {"plan.row_groups": "8", "plan.keep_weights": "auto"}),
    ("stages instead, a sequence at a time", {"plan.layout": "stages", "plan.row_groups": "auto", "plan.chunk_tokens": "1024",
                                              "plan.owners": "apart", "plan.preload": "false"}),
    ("+ chunks", {"plan.chunk_tokens": "auto"}),
    ("+ replicas own gradients", {"plan.owners": "auto"}),
    ("+ preloading", {"plan.preload": "true"}),
    ("+ 8 bits between stages", {"plan.boundary": "mxint8"}),
]


def ideas():
    cases = [Case(f"as published, {where}", {**WIDE, **devices}, systems=["cleave-paper"]) for where, devices in FLEETS.items()]
    kept = {}
    for name, overrides in IDEAS:
        kept = {**kept, **overrides}
        cases += [Case(f"{name}, {where}", {**kept, **devices}, systems=["cleave"]) for where, devices in FLEETS.items()]
    return cases


IDEAS_STUDY = Study("ideas", "python3 bench/stages.py", ideas(), ["cleave"])


def gb(value):
    return f"{value / 1e9:.3g}"


def line(r, system, case, label):
    step, bound = r.mid(system, case), r.mid(system, case, "lower_bound_s")
    if step is None:
        return [label, "no" if r.points(system, case) else "", "", "", "", "", ""]
    return [label, f"{step:.1f}", f"{bound:.1f}", f"{step / bound:.2f}", f"{r.mid(system, case, 'bytes_down') / 1e12:.2f}",
            f"{r.mid(system, case, 'bytes_up') / 1e12:.2f}", gb(r.mid(system, case, "device_bytes_down_max"))]


HEAD = ["step s", "bound s", "step / bound", "TB down", "TB up", "most GB down to a device"]


def steps(r):
    cases = [sized(n, "unlimited") for n in (64, 256, 1024)] + [sized(256, "100 Gbit/s"), sized(1024, "100 Gbit/s")]
    cases += [case for case in r.cases if case.startswith(("64", "256", "1024")) and case not in cases and case != PAPER
              and not any(case == sized(n, i) for n in COUNTS for i in INTERFACES)]
    return grid([["", *HEAD], *(line(r, "cleave", case, case) for case in cases), line(r, "cleave-paper", PAPER, f"{PAPER} (`--system cleave-paper`)")])


def sizes(r):
    lines = [["devices", *(f"{name}: step s, mean and most GB down" for name in INTERFACES)]]
    for n in COUNTS:
        cells = []
        for name in INTERFACES:
            step = r.mid("cleave", sized(n, name))
            cells.append("" if step is None else f"{step:.1f}; {gb(r.mid('cleave', sized(n, name), 'bytes_down') / n)}, "
                                                 f"{gb(r.mid('cleave', sized(n, name), 'device_bytes_down_max'))}")
        lines.append([str(n), *cells])
    return grid(lines)


def varied(r):
    return grid([["varied", "value", *HEAD]] + [[what, *line(r, "cleave", f"{what}: {value}", value)] for what, values in VARIED.items() for value in values])


def figures(r):
    found = {case: f"{r.mid('cleave', case):.0f} s" for case in r.cases if case != PAPER and r.mid("cleave", case)}
    return {"steps": steps(r), "sizes": sizes(r), "varied": varied(r), **found}


def ideas_table(r):
    lines, before = [["idea", *FLEETS]], {}
    for name in ["as published", *(name for name, _ in IDEAS)]:
        cells = []
        for where in FLEETS:
            system, case = "cleave-paper" if name == "as published" else "cleave", f"{name}, {where}"
            step = r.mid(system, case)
            gain = f" ({before[where] / step:.2f} x)" if step and before.get(where) else ""
            cells.append(f"{three(step)} s{gain}" if step else "no" if r.points(system, case) else "")
            before[where] = step
        lines.append([name, *cells])
    return grid(lines)


def ideas_figures(r):
    return {"table": ideas_table(r)}
