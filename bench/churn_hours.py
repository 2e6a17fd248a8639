"""A row of churn_hours.sh: RATE UNDISTURBED.json CHURNED.json, both of `cleave simulate --json`."""
import json
import sys

calm, churned = (json.load(open(name))[0] for name in sys.argv[2:4])
steps = churned["steps"]
time = sum(s["step_s"] for s in steps)
# Present at a step's start and end; in between, the mean of both.
present = [calm["devices"]] + [s["devices_present"] for s in steps]
away = sum(s["step_s"] * (1 - (a + b) / 2 / calm["devices"]) for s, a, b in zip(steps, present, present[1:])) / time
if away <= 0 or not any(s["lost"] for s in steps):
    sys.exit(f"churn_hours: nobody left, or nothing was lost, at {sys.argv[1]} % an hour: nothing is shown")
mean = time / len(steps)
total = {key: sum(s[key] for s in steps) for key in ("lost", "redone", "recovery_s", "planning_s")}
print(f"| {sys.argv[1]} % | {len(steps)} | {time / 3600:.2f} | {mean:.2f} (calm: {calm['step_s']:.2f}) | {1 - calm['step_s'] / mean:.1%} | {away:.1%} "
      f"| {total['lost']} | {total['redone']} | {total['recovery_s']:.1f} | {total['planning_s'] / len(steps) * 1e3:.0f} | {max(s['planning_s'] for s in steps) * 1e3:.0f} |")
