"""Checks timeline.json and layout.json of a simulated step in stages against each other: check_stages.py FOLDER."""
import base64
import json
import pathlib
import struct
import sys

folder = pathlib.Path(sys.argv[1])
timeline, layout = (json.loads((folder / f"{name}.json").read_text()) for name in ("timeline", "layout"))
faults = []


def check(good, text):
    if not good:
        faults.append(text)


def near(a, b, slack):
    return abs(a - b) <= slack


# Cells: of what a link or processor was taken for, weights and owners are a part.
cells, devices = timeline["cells"], timeline["devices"]
lanes, columns, rows = cells["lanes"], cells["columns"], len(devices)
data = base64.b64decode(cells["data"])
check(lanes == 9 and len(data) == (rows + 1) * columns * lanes, f"{lanes} lanes, {len(data)} bytes")
totals = [0] * lanes
for row in range(rows):
    for column in range(columns):
        at = (row * columns + column) * lanes
        cell = data[at:at + lanes]
        totals = [a + b for a, b in zip(totals, cell)]
        check(cell[5] + cell[6] <= cell[0] + 2 and cell[7] <= cell[1] + 1 and cell[8] <= cell[2] + 1, f"device {row}, column {column}: {list(cell)}")
seconds = [total * cells["width_s"] / 255 for total in totals]
rounding = rows * columns * cells["width_s"] / 255 / 2
downlink = {device["id"]: device["downlink"] for device in devices}
weights = sum(stage["weights_bytes"] / downlink[device] for stage in layout["stages"] for device in stage["replicas"])
sent_apart = sum(device["weights_bytes"] / downlink[device["id"]] for device in layout["devices"])  # slices' weights too
check(weights * .999 - rounding <= seconds[5] <= sent_apart * 1.02 + rounding, f"weights take {seconds[5]} s, not {weights} to {sent_apart}")
check(all(seconds[lane] > 0 for lane in (7, 8)), f"owners neither compute nor send: {seconds}")

# Spans say what they are: chunks, weights, owners' sums, by stage.
spans, names = timeline["spans"], timeline["names"]
flags = base64.b64decode(spans["flags"])
of = struct.unpack(f"<{spans['count']}H", base64.b64decode(spans["name"]))
for flag, name in zip(flags, of):
    work, resource = flag >> 5, flag & 7
    if resource > 2:
        check(work == 0, f"the server's span {name} has an errand")
        continue
    words = {1: ("forward", "backward", "recomputation", "chunk again"), 2: ("weights",), 3: ("summing", "sums")}[work]
    what, stage = names[name].split(", stage ")
    check(what in words and int(stage) < len(layout["stages"]), f"'{names[name]}' has flags {flag}")
check({flag >> 5 for flag in flags} >= {1, 2, 3}, "not every kind of work is kept")

for device in layout["devices"]:
    held = device["weights_bytes"] + device["sequences_bytes"] + device["sums_bytes"]
    check(held <= device["memory"], f"device {device['id']}: {held} of {device['memory']} bytes")
for number, stage in enumerate(layout["stages"]):
    times = {"uplinks": stage["passes_s"], "owners' links": stage["owner_links_s"], "weights": stage["weights_s"], "processors": stage["compute_s"]}
    check(times[stage["bound_by"]] == max(times.values()), f"stage {number} is bound by {stage['bound_by']}: {times}")
print("\n".join(faults[:20]) or "all agree")
sys.exit(1 if faults else 0)
