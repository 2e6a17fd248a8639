"""Rows 13 to 17: what the rivals' own publications claim."""
from .fleets import HEADLINE, SEEDS, edge, fleet
from .row import Row, at_least
from .rows_a import COMMAND
from .study import Case, Study, span, three

SCENARIOS = ["data-centre", "spot-instances", "universities", "regions", "world"]
study_13 = Study("row-13", COMMAND.format(13), [
    Case(name, {"simulate.dtfm.stages": "0", "plan.wire": "fp16"}, input=f"inputs/dtfm/{name}.yaml") for name in SCENARIOS],
    ["cleave", "dtfm", "dtfm-plus", "asteroid", "swarm", "megatron", "fsdp", "tensor-parallel"])


def conclude_13(r, row):
    # Placement by links against the same shape with devices in a random order.
    placed = {c: r.ratios_within("megatron", c, "figures.random_placement_s", "step_s")[0] for c in r.cases}
    dtfm = {c: r.mid("megatron", c, "figures.random_placement_s") / r.mid("dtfm", c) for c in r.cases}
    row.number = ("Megatron placed at random over DTFM: " + ", ".join(f"{c} {three(v)} x" for c, v in dtfm.items()) +
                  "; Megatron placed at random over placed by links: " + ", ".join(f"{c} {three(v)} x" for c, v in placed.items()))
    world = dtfm["world"]
    scheduled = r.mid("megatron", "world") / r.mid("dtfm", "world")
    row.verdict = f"*{'reproduced' if world >= 4.8 else 'reproduced in part' if world > 1 else 'contradicted'}*: {three(world)} x in the world-wide case, " \
        f"{'' if world >= 4.8 else 'not 4.8; '}against Megatron whose stages are placed by links too it is {three(scheduled)} x"
    behind = [c for c in r.cases if (best := r.fastest(c, [s for s in r.systems if s != "cleave"])) and r.mid("cleave", c)
              and best[1] < r.mid("cleave", c)]
    row.notes = (f"cleave is behind the fastest rival in {', '.join(behind) or 'none of them'}. Megatron here tries every shape and keeps moments in shards, which "
                 "the publication's did not.")
    row.tables = [("Seconds a step, GPT-3 XL on 64 GPUs", r.table()),
                  ("The same with Megatron's devices in a random order", r.table("figures.random_placement_s", systems=["megatron"]))]


def jetson(link):
    def group(name, count, compute, memory):
        return {"name": name, "count": count, "compute": compute, "memory": memory, "downlink": link, "uplink": link, "latency": "1 ms"}

    return fleet(group("nano", 4, "0.47 TFLOP/s", "3 GB"), group("tx2", 2, "1.33 TFLOP/s", "6 GB"), group("nx", 2, "1.7 TFLOP/s", "6 GB"))


study_14 = Study("row-14", COMMAND.format(14), [
    Case(f"{name}, {link}{', 1 lost' if loss else ''}", {**jetson(link), **HEADLINE, "model.preset": name, "train.batch": "32",
                                                        "model.seq_len": "512", "simulate.loss.devices": str(loss)})
    for loss in (0, 1) for name in ("opt-125m", "gpt2-355m") for link in ("100 Mbit/s", "1000 Mbit/s")],
    ["cleave", "asteroid", "asteroid-plus", "dtfm", "data-parallel", "confidant", "megatron", "swarm", "fsdp"])


def conclude_14(r, row):
    calm = [c for c in r.cases if not c.endswith("lost")]
    dp = {c: v for c in calm for v in r.ratios("data-parallel", "asteroid", c)}
    pp = {c: r.mid("confidant", c, "figures.even_cuts_s") / r.mid("asteroid", c) for c in calm
          if r.mid("confidant", c, "figures.even_cuts_s") and r.mid("asteroid", c)}
    hybrid = {c: v for c in calm for v in r.ratios("dtfm", "asteroid", c)}
    heavy = [v for c in r.cases if c.endswith("lost") for v in r.ratios_within("asteroid", c, "figures.recovery_heavy_s", "recovery_s")]
    row.number = (f"over Asteroid: data parallelism {span(list(dp.values()))}, one pipeline with even cuts {span(list(pp.values()))}, "
                  f"equal pipelines side by side (DTFM's, HetPipe-like) {span(list(hybrid.values()))}; re-scheduling in full over replay {span(heavy)}")
    most = max([*dp.values(), *pp.values()], default=0)
    row.verdict = "; ".join([
        f"*{'reproduced' if most >= 12.2 else 'reproduced in part' if most > 1 else 'contradicted'}* (up to 12.2 x over conventional): up to {three(most)} x",
        f"*{'reproduced' if max(hybrid.values(), default=0) >= 2.1 else 'reproduced in part' if max(hybrid.values(), default=0) > 1 else 'contradicted'}* "
        f"(2.1 x over hybrid): {span(list(hybrid.values()))}",
        f"*{at_least(heavy, 14)}* (14 x faster recovery): {span(heavy)}"])
    row.notes = ("Four Nano, two TX2, two Xavier NX (0.47, 1.33, 1.7 TFLOP/s; 3, 6, 6 GB usable); the publication's mix was not found, nor its "
                 "models (convolutions and a small BERT). A batch of 32 sequences of 512 tokens.")
    row.tables = [("Seconds a step", r.table(cases=calm)),
                  ("Seconds that a loss adds", r.table("recovery_s", cases=[c for c in r.cases if c.endswith("lost")])),
                  ("Asteroid re-scheduled in full", r.table("figures.recovery_heavy_s", systems=["asteroid"],
                                                            cases=[c for c in r.cases if c.endswith("lost")]))]


SPREADS = [1, 2, 5, 10]


def with_worst(spread, devices, alike):
    """All but one device compute 2 TFLOP/s, the last one 1 / spread of it; `alike`: all are as slow as that one."""
    def group(name, count, rate):
        return {"name": name, "count": count, "compute": f"{rate:g} TFLOP/s", "memory": "2 GB", "downlink": "1 Gbit/s",
                "uplink": "1 Gbit/s", "latency": "1 ms"}

    worst = 2 / spread
    return {**fleet(group("best", devices - 1, worst if alike else 2), group("worst", 1, worst)), **HEADLINE,
            "model.preset": "gpt2-124m", "train.batch": "32", "model.seq_len": "512"}


study_15 = Study("row-15", COMMAND.format(15), [
    Case(f"{n} x, {devices} devices{', all as the worst' if alike else ''}", with_worst(n, devices, alike),
         systems=["confidant"] if alike else None)
    for alike in (False, True) for devices in (3, 8) for n in SPREADS], ["confidant", "cleave", "swarm", "asteroid"])


def conclude_15(r, row):
    gains = {}
    for case in [c for c in r.cases if not c.endswith("worst")]:
        even = r.mid("confidant", f"{case}, all as the worst", "figures.even_cuts_s")
        if even and r.mid("confidant", case):
            gains[case] = even / r.mid("confidant", case)
    ten = {c: v for c, v in gains.items() if c.startswith("10 x")}
    row.number = "even cuts over cuts by measured speed: " + "; ".join(f"{c}: {three(v)} x" for c, v in gains.items())
    row.verdict = f"*{at_least(ten.values(), 6.8)}*: where the best device is 10 times the worst, " + ", ".join(
        f"{three(v)} x with {c.split(', ')[1]}" for c, v in ten.items())
    row.notes = ("The worst stage sets the pace of a pipeline with even cuts, so that it is costed as if all devices were as slow as the worst: an upper limit "
                 "of the gain, which leaves out that the fill is shorter. Cuts by measured speed leave the worst device next to nothing, or out. The publication's model "
                 "is a convolutional one.")
    row.tables = [("Seconds a step, GPT-2 124M", r.table(cases=[c for c in r.cases if not c.endswith("worst")])),
                  ("Even cuts, all devices as the worst, seconds a step",
                   r.table("figures.even_cuts_s", systems=["confidant"], cases=[c for c in r.cases if c.endswith("worst")]))]


LINKS = {"1-10 Gbit/s": ("1 Gbit/s", "10 Gbit/s"), "0.1-1 Gbit/s": ("100 Mbit/s", "1 Gbit/s"),
         "10-100 Mbit/s": ("10 Mbit/s", "100 Mbit/s"), "8 Mbit/s-10 Gbit/s": ("8 Mbit/s", "10 Gbit/s")}
study_16 = Study("row-16", COMMAND.format(16), [
    Case(name, {**fleet(edge(48, ["8 GB", "24 GB"], ("10 TFLOP/s", "40 TFLOP/s"), pair, pair, "gpu")), **HEADLINE,
                "model.preset": "gpt2-1558m"}) for name, pair in LINKS.items()],
    ["fusionllm", "cleave", "dtfm", "swarm", "megatron", "local-steps"], seeds=SEEDS)


def conclude_16(r, row):
    gains = {c: r.ratios_within("fusionllm", c, "figures.uncompressed_s", "step_s") for c in r.cases}
    row.number = "without compression over with: " + "; ".join(f"{c} {span(v)}" for c, v in gains.items())
    every = [v for values in gains.values() for v in values]
    within = sum(1.45 <= v <= 9.39 for v in every)
    row.verdict = ("*reproduced*" if within == len(every) else "*reproduced in part*" if max(every) >= 1.45 else "*contradicted*") + \
        f": {within} of {len(every)} points lie between 1.45 and 9.39 x, {sum(v < 1.45 for v in every)} below, {sum(v > 9.39 for v in every)} above. It changes the training; its loss was not measured here"
    row.tables = [("Seconds a step, GPT-2 1558M on 48 GPUs, by the links drawn", r.table())]


SIZES = {"opt-1.3b": 1.3e9, "opt-6.7b": 6.7e9, "opt-13b": 13e9, "opt-30b": 30e9}
T4 = edge(256, "15 GB", "26 TFLOP/s", "200 Mbit/s", "200 Mbit/s", "t4")
CHURN = {"none": "none", "1 h": {"mean_session": "1 h", "mean_absence": "10 min"}, "20 min": {"mean_session": "20 min", "mean_absence": "10 min"}}
study_17 = Study("row-17", COMMAND.format(17), [
    *(Case(m, {**fleet(edge(memory="16 GB")), **HEADLINE, "model.preset": m}, systems=["swarm", "cleave", "megatron"]) for m in SIZES),
    *(Case(f"opt-13b on 256 T4, sessions {name}", {**fleet(T4), **HEADLINE, "fleet.churn": churn,
                                                  "simulate.steps": "1" if churn == "none" else "3"},
           systems=["cleave", "swarm", "megatron", "dtfm", "confidant"]) for name, churn in CHURN.items()),
    *(Case(f"opt-1.3b, 1-3 GB, sessions {name}", {**fleet(edge()), **HEADLINE, "fleet.churn": churn, "model.preset": "opt-1.3b",
                                                 "simulate.steps": "1" if churn == "none" else "3"},
           systems=["cleave", "swarm", "megatron", "dtfm", "confidant"]) for name, churn in CHURN.items())],
    ["swarm"])


def conclude_17(r, row):
    # bytes on devices' uplinks a FLOP of the batch: 6 x parameters x tokens
    need = {m: r.mid("swarm", m, "bytes_up") / (6 * p * 128 * 1024) * 1e15 for m, p in SIZES.items() if r.mid("swarm", m)}
    falls = all(b < a for a, b in zip(need.values(), list(need.values())[1:]))
    t4 = {name: f"swarm {r.text('swarm', f'opt-13b on 256 T4, sessions {name}')} s, cleave "
                f"{r.text('cleave', f'opt-13b on 256 T4, sessions {name}')} s" for name in CHURN}
    row.number = ("bytes up a PFLOP, swarm: " + ", ".join(f"{m} {three(v / 1e6)} MB" for m, v in need.items()) + "; OPT-13B on 256 T4 at 200 Mbit/s, sessions "
                  + "; ".join(f"{n}: {t}" for n, t in t4.items()))
    first, *later = need.values()
    row.verdict = ("*reproduced*: larger models need fewer bytes a FLOP" if falls else
                   "*reproduced in part*: each larger model needs fewer bytes a FLOP than the smallest, but they do not fall with every size, as "
                   "the fastest layouts have other numbers of layers a stage" if all(v < first for v in later) else
                   "*contradicted*: larger models do not need fewer bytes a FLOP")
    stops = [c for c in r.cases[5:] if r.points("swarm", c) and r.mid("swarm", c) is None and not c.endswith("none")]
    row.verdict += "; " + (f"*contradicted* that it survives: it stops in {'; '.join(stops)}" if stops else "*reproduced*: it survives the churn that was run")
    ahead = [c for c in r.cases if r.mid("swarm", c) and r.mid("cleave", c) and r.mid("swarm", c) < r.mid("cleave", c)]
    row.notes = f"SWARM is faster than cleave in {', '.join(ahead) if ahead else 'none of these cases'}."
    row.tables = [("Seconds a step", r.table(cases=r.cases[:4])), ("Seconds a step with churn, OPT-13B", r.table(cases=r.cases[4:7])),
                  ("Seconds a step with churn, OPT-1.3B", r.table(cases=r.cases[7:]))]


ROWS = [
    Row(13, "4.8 x over Megatron on eight cities of three continents", "DTFM", study_13, conclude_13),
    Row(14, "up to 12.2 x over conventional parallelism, 2.1 x over hybrid; 14 x faster recovery", "Asteroid", study_14, conclude_14),
    Row(15, "6.8 x over a pipeline without dynamic cuts when the best device is 10 x the worst", "FTPipeHD", study_15, conclude_15),
    Row(16, "1.45-9.39 x by adaptive compression on slow links", "FusionLLM", study_16, conclude_16),
    Row(17, "larger models need less network a FLOP; survives failures on T4s below 200 Mbit/s", "SWARM", study_17, conclude_17),
]
