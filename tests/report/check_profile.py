"""Holds profile.json against metrics.jsonl: python3 check_profile.py RUN-FOLDER"""
import json
import pathlib
import sys

folder = pathlib.Path(sys.argv[1])
profile = json.loads((folder / "profile.json").read_text())
steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
phases = ["kernel", "pack", "send", "wait", "receive", "verify", "place", "schedule"]


def total(times):
    assert list(times) == phases, times
    assert all(seconds >= 0 for seconds in times.values()), times
    return sum(times.values())


def close(a, b):
    return abs(a - b) <= 1e-6 + 1e-9 * max(abs(a), abs(b))


assert profile["steps"] == len(steps), (profile["steps"], len(steps))
for step in steps:
    # What is outside of the phases: the two looks at the clock around them, with whatever the machine did in between.
    assert total(step["phases_s"]) <= step["wall_s"] + 1e-6, step
assert sum(total(s["phases_s"]) for s in steps) >= 0.5 * sum(s["wall_s"] for s in steps)
for phase in phases:
    by_step = sum(s["phases_s"][phase] for s in steps)
    by_type = sum(o["phases_s"][phase] for o in profile["operations"])
    assert close(profile["phases_s"][phase], by_step) and close(by_step, by_type), (phase, by_step, by_type)
types = {o["type"]: o["phases_s"] for o in profile["operations"]}
assert types["mlp.c_fc.forward"]["pack"] > 0 and types["mlp.c_fc.forward"]["place"] > 0, types["mlp.c_fc.forward"]
assert types["ln_1.forward"]["kernel"] > 0, types.get("ln_1.forward")
print(f"{len(steps)} steps, {len(types)} types of operation")
