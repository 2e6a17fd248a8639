"""Rows 1 to 6: time a step, devices, cloud GPUs, recovery, bytes a device, memory."""
import statistics

from .fleets import EVERY, HEADLINE, OTHER_ALGORITHMS, RIVALS, SEEDS, SMALL, WIDE, edge, fleet
from .row import Row, at_least
from .study import Case, Study, grid, span, three

COMMAND = "python3 bench/reproduce.py --row {}"
COUNTS = [32, 64, 128, 256, 512, 1024, 2048, 4096, 8192]
MEMORIES = ["256 MB", "512 MB", "1 GB", "2 GB", "4 GB", "8 GB", "16 GB"]
CLOSE = ["dtfm", "asteroid", "swarm", "megatron", "confidant", "galaxy", "summa", "fsdp", "tensor-parallel", "fusionllm"]

study_1 = Study("row-01", COMMAND.format(1), [
    Case("OPT-13B, 1-3 GB", {**fleet(edge()), **HEADLINE}),
    Case("OPT-13B, 1-3 GB, server unlimited", {**fleet(edge()), **WIDE}, systems=["cleave", "cleave-paper"]),
    Case("OPT-13B, 16 GB", {**fleet(edge(memory="16 GB")), **HEADLINE},
         seeds={"dtfm": SEEDS, "asteroid": SEEDS, "dtfm-plus": SEEDS, "cleave-paper": SEEDS}),
    Case("OPT-13B, 16 GB, server unlimited", {**fleet(edge(memory="16 GB")), **WIDE}, systems=["cleave"]),
    Case("OPT-1.3B, 1-3 GB", {**fleet(edge()), **HEADLINE, "model.preset": "opt-1.3b"},
         seeds={"dtfm": SEEDS, "asteroid": SEEDS}),
], EVERY, seeds=SEEDS)


def conclude_1(r, row):
    mine = [s for s in r.systems if s in RIVALS]
    parts, least, claimed = [], [], []
    for case in ("OPT-13B, 1-3 GB", "OPT-13B, 16 GB", "OPT-1.3B, 1-3 GB"):
        for named in ("dtfm", "asteroid", "confidant", "megatron"):
            if values := r.ratios(named, "cleave", case):
                claimed.append((f"{named}, {case}", statistics.median(values)))
        best = r.fastest(case, mine)
        if best is None:
            parts.append(f"{case}: no rival that keeps the algorithm runs")
            continue
        ratios = r.ratios(best[0], "cleave", case)
        least += ratios
        parts.append(f"{case}: {best[0]}, the fastest rival, takes {span(ratios)} as long")
    inside = sum(v >= 4 for _, v in claimed)
    row.number = "; ".join(parts)
    row.verdict = (f"*{at_least(least, 4)}*: of {len(claimed)} pairs of a system that the publication names and a fleet on which it "
                   f"runs, cleave is at least 4 times as fast in {inside}")
    row.tables = [("Seconds a step", r.table())]


study_2 = Study("row-02", COMMAND.format(2), [
    Case(str(n), {**fleet(edge(n, "16 GB")), **HEADLINE},
         systems=(["cleave", "cleave-paper", *CLOSE] if n <= 512 else
                  ["cleave", "dtfm", "asteroid", "swarm", "megatron", "confidant", "galaxy", "tensor-parallel"] if n == 1024
                  else ["cleave", "tensor-parallel"]),
         seeds={"cleave": SEEDS if n in (256, 1024) else SEEDS[:1]}) for n in COUNTS] + [
    Case(f"{n}, unlimited", {**fleet(edge(n, "16 GB")), **WIDE}, systems=["cleave"],
         seeds={"cleave": SEEDS if n in (256, 1024) else SEEDS[:1]}) for n in COUNTS], CLOSE)


def stops_at(r, system, suffix=""):
    """The number of devices after which a doubling gains less than a tenth; None where every doubling that was run gains more."""
    counts = [n for n in COUNTS if r.mid(system, f"{n}{suffix}") is not None]
    for a, b in zip(counts, counts[1:]):
        if r.mid(system, f"{a}{suffix}") < 1.1 * r.mid(system, f"{b}{suffix}"):
            return a
    return None


def conclude_2(r, row):
    named = [s for s in CLOSE if s not in OTHER_ALGORITHMS]
    # The fastest of one rival says little: beyond 1024 devices tensor parallelism alone was run.
    compared = [n for n in COUNTS if sum(r.mid(s, str(n)) is not None for s in named) > 1]
    lead = {n: statistics.median(values) for n in compared
            if (best := r.fastest(str(n), named)) and (values := r.ratios(best[0], "cleave", str(n)))}
    ends = {s: stops_at(r, s) for s in ["cleave", *named]}
    most = {s: max((n for n in COUNTS if r.mid(s, str(n)) is not None), default=None) for s in ends}

    def said(system, suffix=""):
        n = stops_at(r, system, suffix)
        return f"{n}" if n else f"none up to {most[system]}"

    row.number = (f"time of the fastest rival over cleave's: from {three(min(lead.values()))} to {three(max(lead.values()))} x at "
                  f"{min(lead)} to {max(lead)} devices; devices from which a doubling gains less than a tenth: cleave {said('cleave')} "
                  f"(server unlimited: {said('cleave', ', unlimited')}), "
                  + ", ".join(f"{s} {said(s)}" for s in ends if s != "cleave" and most[s]))
    known = {s: n for s, n in ends.items() if s != "cleave" and n}
    mine = ends["cleave"] or most["cleave"]
    eight = [s for s, n in known.items() if mine >= 8 * n]
    open_ended = [s for s in ends if s != "cleave" and most[s] and not ends[s]]
    row.verdict = (f"*{at_least(lead.values(), 10)}* (up to 10 x: at most {three(max(lead.values()))} x); " if max(lead.values()) < 10 else
                   f"*{at_least(lead.values(), 10)}* (up to 10 x); ") + (
        f"*{'reproduced in part' if eight else 'contradicted'}* (up to 8 x more devices): against {', '.join(eight) or 'none'}; "
        f"still gaining at the largest number that was run: {', '.join(open_ended) or 'none'}")
    row.tables = [("Seconds a step, server's interface 100 Gbit/s", r.table(cases=[str(n) for n in COUNTS], corner="devices")),
                  ("Seconds a step, server's interface unlimited",
                   r.table(cases=[f"{n}, unlimited" for n in COUNTS], systems=["cleave"]))]
    row.plot = ("devices of 16 GB", "seconds a step", {
        **{s: [(n, r.mid(s, str(n))) for n in COUNTS if r.mid(s, str(n))] for s in r.systems},
        "cleave, unlimited": [(n, r.mid("cleave", f"{n}, unlimited")) for n in COUNTS if r.mid("cleave", f"{n}, unlimited")]})


study_3 = Study("row-03", COMMAND.format(3), [
    *(Case(f"{n}{', unlimited' if wide is WIDE else ''}", {**fleet(edge(n)), **wide}, systems=["cleave"],
           seeds={"cleave": SEEDS if n in (256, 1024) else SEEDS[:1]})
      for wide in (HEADLINE, WIDE) for n in (256, 512, 1024, 2048, 4096)),
    Case("one A100", {}, systems=["cloud-gpu"]), Case("8 A100", {"simulate.gpu.count": "8"}, systems=["cloud-gpu"])],
    ["cleave"])


def conclude_3(r, row):
    counts, parts, equal = (256, 512, 1024, 2048, 4096), [], {}
    for gpu in ("one A100", "8 A100"):
        goal = r.mid("cloud-gpu", gpu)
        for suffix, server in (("", "100 Gbit/s"), (", unlimited", "unlimited")):
            n = next((n for n in counts if (r.mid("cleave", f"{n}{suffix}") or goal + 1) <= goal), None)
            equal[gpu, server] = n
            best = min(r.mid("cleave", f"{n}{suffix}") for n in counts if r.mid("cleave", f"{n}{suffix}"))
            parts.append(f"{gpu} ({three(goal)} s), server {server}: " + (
                f"equalled by {n} devices" if n else f"not equalled by up to {counts[-1]} devices (best {three(best)} s)"))
    row.number = "; ".join(parts)
    reached = sum(n is not None for n in equal.values())
    row.verdict = "*reproduced*" if reached == len(equal) else (
        "*reproduced in part*" if reached else "*contradicted*") + (
        ": " + ("with " + ", ".join(f"{three(n)} devices for {g}, server {s}" for (g, s), n in equal.items() if n) + " only"
                if reached else "no fleet up to 4096 devices of 1-3 GB is as fast as one A100 with its state in host memory; "
                "the server's interface and the length of a pipeline's fill are in the way"))
    row.tables = [("Seconds a step, OPT-13B, devices of 1-3 GB", r.table())]


LOSSES = [1, 3, 5]
study_4 = Study("row-04", COMMAND.format(4), [
    Case(f"{model}, {memory if isinstance(memory, str) else '1-3 GB'}, {n} lost",
         {**fleet(edge(memory=memory)), **HEADLINE, "model.preset": preset, "simulate.loss.devices": str(n)})
    for model, preset, memory in (("OPT-13B", "opt-13b", "16 GB"), ("OPT-1.3B", "opt-1.3b", SMALL)) for n in LOSSES],
    ["cleave", "cleave-paper", "dtfm", "asteroid", "swarm", "megatron", "confidant", "galaxy", "tensor-parallel"],
    seeds=SEEDS)


def conclude_4(r, row):
    every, over = {}, []
    for system in [s for s in r.systems if s not in ("cleave", "cleave-paper")]:
        values = [v for case in r.cases for v in r.ratios(system, "cleave", case, "recovery_s")]
        over += values
        every[system] = span(values) if values else "never survives"
    calm = {c: (r.text("cleave", c), r.points("cleave", c)[0]["layout"]) for c in (r.cases[0], r.cases[3])}
    row.number = "recovery of each rival over cleave's, all cases: " + ", ".join(f"{s} {v}" for s, v in every.items())
    at_100 = sum(v >= 100 for v in over)
    free = sum(a > 0 and b == 0 for system in every for case in r.cases for a, b in r.pairs(system, "cleave", case, "recovery_s"))
    row.verdict = (f"*{at_least(over, 100)}*: at least 100 x in {at_100} of {len(over)} pairs of a rival that survives and a loss; "
                   f"in {free} more the loss does not make cleave's step longer at all, and there is no ratio")
    row.notes = ("The steps into which cleave's losses fall: " +
                 "; ".join(f"{c.rsplit(',', 1)[0]}: {t} s a step ({layout})" for c, (t, layout) in calm.items()) +
                 ". A rival that does not survive starts again from a checkpoint, which is not in the ratio.")
    row.tables = [("Seconds that the loss adds, detection included", r.table("recovery_s"))]
    row.tables += [("Asteroid re-scheduled in full, seconds",
                    r.table("figures.recovery_heavy_s", systems=["asteroid"]))]


def conclude_5(r, row):
    counts = [n for n in COUNTS if r.mid("cleave", str(n)) is not None]
    mean = {n: r.mid("cleave", str(n), "device_bytes_down") / 1e9 for n in counts}
    other = {n: r.mid("tensor-parallel", str(n), "device_bytes_down") / 1e9 for n in counts if r.mid("tensor-parallel", str(n))}
    falls = all(mean[b] < mean[a] for a, b in zip(counts, counts[1:]))
    row.number = (f"cleave: {three(mean[counts[0]])} GB a device at {counts[0]}, {three(mean[counts[-1]])} GB at {counts[-1]}; "
                  f"tensor-parallel: {three(other[min(other)])} to {three(other[max(other)])} GB")
    constant = max(other.values()) < 1.2 * min(other.values())
    row.verdict = f"*reproduced*: every doubling up to {counts[-1]} lowers it" if falls else (
        "*reproduced in part*: it falls from the first count to the last, but not at every doubling"
        if mean[counts[-1]] < mean[counts[0]] else "*contradicted*: it does not fall")
    row.verdict += "" if constant else "; *contradicted* that conventional tensor parallelism is constant: at its best shape it falls, too"
    lines = [["devices", *map(str, counts)], ["cleave", *(three(mean[n]) for n in counts)],
             ["tensor-parallel", *(three(other[n]) if n in other else "no" for n in counts)]]
    row.tables = [("GB down to a device in the mean, OPT-13B, devices of 16 GB, 100 Gbit/s", grid(lines))]
    row.notes = ("Tensor parallelism adds replicas as devices join, so that its curve is that of its own best shape, not of one ring "
                 "over all devices. Devices in use are counted.")
    row.plot = ("devices of 16 GB", "GB down a device", {"cleave": list(mean.items()), "tensor-parallel": list(other.items())})


study_6 = Study("row-06", COMMAND.format(6), [
    Case(m, {**fleet(edge(memory=m)), **HEADLINE}, systems=[s for s in EVERY if s != "asteroid-plus"]) for m in MEMORIES], EVERY)


def conclude_6(r, row):
    runs = {s: next((m for m in MEMORIES if r.mid(s, m) is not None), None) for s in r.systems}
    wins = {m: r.fastest(m, [s for s in r.systems if s in ["cleave", *RIVALS]]) for m in MEMORIES}
    mine = r.mid("cleave", "512 MB")
    row.number = (f"cleave at 512 MB: {three(mine) + ' s' if mine else 'does not run'}, at 16 GB: {r.text('cleave', '16 GB')} s; least memory: "
                  + ", ".join(f"{s} {m}" for s, m in runs.items() if m) + "; fastest: "
                  + ", ".join(f"{m} {w[0]}" for m, w in wins.items() if w))
    row.verdict = "*reproduced*: it runs in 512 MB" + (
        f", but takes {mine / r.mid('cleave', '16 GB'):.1f} times as long as with 16 GB" if mine else "") if mine else "*contradicted*"
    row.tables = [("Seconds a step, OPT-13B on 256 devices", r.table(corner="memory"))]


ROWS = [
    Row(1, "4-10 x lower time a batch than edge systems at the same number of devices", "Cleave v2", study_1, conclude_1),
    Row(2, "up to 10 x lower time a batch; up to 8 x more devices", "Cleave v1", study_2, conclude_2),
    Row(3, "as fast as cloud GPU training", "Cleave v1", study_3, conclude_3),
    Row(4, "recovery at least 100 x faster", "Cleave", study_4, conclude_4),
    Row(5, "bytes a device fall as devices join; conventional tensor parallelism: constant", "Cleave v2", study_2, conclude_5),
    Row(6, "memory a device: runs in 512 MB", "Cleave", study_6, conclude_6),
]
