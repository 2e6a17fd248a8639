"""Points of studies: one system on one input, run once by `cleave simulate` and kept under runs/evidence ($CLEAVE_STUDIES/evidence).

A point is kept under a key of its input, overrides and system, with the hash of the program that made it. What another
program made is run again, unless the caller names the systems that are to be made anew. Rivals use the server's interface
only where it relays, so other points of theirs do without overrides of it, and studies that differ only there share them.
"""
import concurrent.futures
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import time

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
RUNS = pathlib.Path(os.environ.get("CLEAVE_STUDIES", TOP / "runs"))
KEPT = RUNS / "evidence"
LIMIT_S = 900  # of real time for one point; sessions on 256 devices of 512 MB in tiles take eight minutes with AVX2
OURS = ("cleave", "cleave-paper")
# Written to results files; the rest of a report is not needed.
FIELDS = ("feasible why devices devices_used step_s lower_bound_s floor_s bytes_down bytes_up device_bytes_down_max "
          "device_memory_max recovery_s energy_J server_energy_J planning_s wall_s layout").split()


@dataclasses.dataclass
class Point:
    """`labels` say which cell of the study's table it belongs to; they are no part of its key."""
    input: str
    set: dict
    system: str
    labels: dict

    def overrides(self):
        kept = dict(self.set)
        if self.system not in OURS and kept.get("fleet.peer_links") != "relayed":
            kept = {k: v for k, v in kept.items() if not k.startswith("server.nic_")}
        if self.system == "cloud-gpu":
            kept = {k: v for k, v in kept.items() if not k.startswith("fleet.")}
        return {k: v if isinstance(v, str) else json.dumps(v) for k, v in sorted(kept.items())}

    def file(self):
        text = json.dumps([self.input, self.overrides(), self.system])
        return KEPT / f"{hashlib.sha256(text.encode()).hexdigest()[:20]}.json"

    def kept(self):
        try:
            return json.loads(self.file().read_text())
        except (OSError, ValueError):
            return None


def store(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(text)
    os.replace(part, path)


def machine():
    text = pathlib.Path("/proc/cpuinfo").read_text()
    name = re.search(r"model name\s*:\s*(.*)", text)
    kernels = "AVX-512" if "avx512f" in text else "AVX2" if "avx2" in text else "neither AVX2 nor AVX-512"
    return f"{os.cpu_count()} cores, {name[1] if name else 'unknown processor'}, {kernels}"


def hash_of(program):
    return hashlib.sha256(program.read_bytes()).hexdigest()[:12]


def simulate(program, point):
    """The report of one system, or None past the limit; a bad input ends everything, since it is the study's fault."""
    command = [str(program), "simulate", str(TOP / point.input), "--system", point.system, "--json", "-"]
    command += [f"{key}={value}" for key, value in point.overrides().items()]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return None  # a loaded machine is no fault of the system: the point counts as not run
    if run.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: exit code {run.returncode}\n{run.stderr[-2000:]}")
    report = json.loads(run.stdout)[0]
    figures = report.get("figures") or {}
    if report.get("losses"):
        figures["lost_tasklets"] = sum(loss["blocks"] for loss in report["losses"])
    return {**{k: report.get(k) for k in FIELDS}, "figures": figures}


def wanted(points, program_hash, again=()):
    """Those that are to be run, each key once: not kept, or made by another program (by `again`: of these systems only)."""
    found = {}
    for point in points:
        kept = point.kept()
        if kept and (kept["program"] == program_hash or (again and point.system not in again)):
            continue
        found.setdefault(point.file(), point)
    return list(found.values())


def run(points, program, jobs=2, minutes=None, again=()):
    """Runs what is wanted. Returns how many points were left for want of time."""
    program_hash = hash_of(program)
    todo = wanted(points, program_hash, again)
    end = time.monotonic() + 60 * minutes if minutes else None
    done = left = 0

    def one(point):
        if end and time.monotonic() > end:
            return False
        begun = time.monotonic()
        report = simulate(program, point)
        if report is None:
            print(f"no plan within {LIMIT_S} s: {point.system} {point.labels}", file=sys.stderr, flush=True)
            return False
        store(point.file(), json.dumps({"program": program_hash, "date": time.strftime("%Y-%m-%d"), "input": point.input,
                                        "set": point.overrides(), "system": point.system, "machine": machine(),
                                        "seconds": round(time.monotonic() - begun, 2), "report": report}))
        return True

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        tasks = {pool.submit(one, point): point for point in todo}
        for task in concurrent.futures.as_completed(tasks):
            if task.result():
                done += 1
                point = tasks[task]
                print(f"[{done}/{len(todo)}] {point.system} {' '.join(str(v) for v in point.labels.values())}",
                      file=sys.stderr, flush=True)
            else:
                left += 1
    return left
