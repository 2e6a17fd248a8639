"""Checks the files of a run folder against each other: check_files.py RUN exact|disturbed|off|wall."""
import base64
import json
import pathlib
import struct
import sys

run, mode = pathlib.Path(sys.argv[1]), sys.argv[2]
faults = []


def check(good, text):
    if not good:
        faults.append(text)


def near(a, b, slack=1e-9):
    return abs(a - b) <= slack * max(abs(a), abs(b), 1e-12)


metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
timeline = json.loads((run / "timeline.json").read_text())
training = [p for p in timeline["parts"] if not p["evaluation"]]
check(len(training) == len(metrics), f"{len(training)} parts, {len(metrics)} steps")
for part, line in zip(training, metrics):
    step = line["step"]
    check(part["first"] == part["last"] == step, f"part {part} is not step {step}")
    if mode == "off":  # the timeline is real, the metrics' time is the model's
        real = line["wall_s"] * 1.01 + 0.001
        check(0 < part["time_s"] <= real, f"step {step}: {part['time_s']} s of {line['wall_s']} real ones")
    else:
        check(near(part["time_s"], line["time_s"]), f"step {step}: {part['time_s']} s, not {line['time_s']}")
    for key in ("bytes_down", "bytes_up"):
        if mode != "disturbed":
            check(part[key] == line[key], f"step {step}: {key} {part[key]}, not {line[key]}")
        else:  # what was never sent, because the device left or another answered first, is in no span
            check(part[key] <= line[key], f"step {step}: {key} {part[key]} above {line[key]}")

# Devices: what their resources did is what the parts add up to; the coarse cells hold the same time.
for key in ("bytes_down", "bytes_up"):
    devices, parts = (sum(x[key] for x in timeline[name]) for name in ("devices", "parts"))
    check(devices == parts, f"{key}: devices {devices}, parts {parts}")
for key in ("down_s", "compute_s", "up_s", "lost_s"):
    devices, groups, parts = (sum(x[key] for x in timeline[name]) for name in ("devices", "groups", "parts"))
    check(near(devices, parts) and near(groups, parts), f"{key}: devices {devices}, profiles {groups}, parts {parts}")
for line in metrics:
    check(0 < line["floor_s"] <= line["time_s"], f"step {line['step']}: {line['time_s']} s below the floor of {line['floor_s']} s")
if mode != "off":
    check(near(sum(line["time_s"] for line in metrics), sum(p["time_s"] for p in training)), "times of steps do not add up")
cells = timeline["cells"]
data, lanes, columns, rows = base64.b64decode(cells["data"]), cells["lanes"], cells["columns"], len(timeline["devices"])
check(len(data) == (rows + 1) * lanes * columns, "cells have another size")
if mode != "disturbed":
    for lane, key in enumerate(("down_s", "compute_s", "up_s")):
        total = sum(data[(r * columns + c) * lanes + lane] for r in range(rows) for c in range(columns))
        total *= cells["width_s"] / 255
        parts = sum(p[key] for p in timeline["parts"])
        rounding = rows * columns * cells["width_s"] / 255 / 2
        check(abs(total - parts) <= rounding + 1e-6 * parts, f"{key}: cells {total}, parts {parts}")
else:
    check(sum(line["lost"] for line in metrics) > 0, "nothing was lost: the test shows nothing")
    check(any(p["lost_s"] > 0 for p in timeline["parts"]), "lost blocks leave no trace")
    check(any(c["kind"] == "left" for c in timeline["changes"]), "no device is said to have left")
# Every device was seen to receive, compute and send, and no resource for longer than there was time.
if mode in ("off", "wall"):
    check(timeline["clock"] == mode, f"clock {timeline['clock']}")
    for device in timeline["devices"]:
        for key in ("down_s", "compute_s", "up_s"):
            check(0 < device[key] <= timeline["end_s"] * (1 + 1e-9), f"device {device['id']}: {key} {device[key]}")
spans = timeline["spans"]
for key, size in (("start", 4), ("length", 4), ("device", 4), ("name", 2), ("flags", 1)):
    check(len(base64.b64decode(spans[key])) == size * spans["count"], f"spans.{key} has another size")
starts = struct.unpack(f"<{spans['count']}I", base64.b64decode(spans["start"]))
check(list(starts) == sorted(starts), "spans are out of order")

# trace.json: the Trace Event Format's JSON object.
trace = json.loads((run / "trace.json").read_text())
check(isinstance(trace.get("traceEvents"), list) and trace["traceEvents"], "no events")
tracks, processes = set(), {}
for event in trace["traceEvents"]:
    check(event["ph"] in "XiCM", f"phase {event['ph']}")
    check(isinstance(event["pid"], int) and isinstance(event["name"], str), f"event {event}")
    if event["ph"] == "M":
        if event["name"] == "process_name":
            processes[event["pid"]] = event["args"]["name"]
        if event["name"] == "thread_name":
            tracks.add((event["pid"], event["args"]["name"]))
    else:
        check(event["ts"] >= 0 and event["pid"] in processes, f"event {event}")
        check(event["ph"] != "X" or event["dur"] >= 0, f"event {event}")
server = next(pid for pid, name in processes.items() if name == "server")
check({(server, t) for t in ("interface out", "kernels", "interface in")} <= tracks, "the server lacks tracks")
check(len([1 for name in processes.values() if name.startswith("device ")]) == rows, "devices lack tracks")

page = (run / "report.html").read_text()
check(len(page) < 2_000_000, f"the page has {len(page)} bytes")
for outside in ("src=\"http", "href=\"http", "@import", "src='http"):
    check(outside not in page, f"the page refers to something outside: {outside}")
# What losses cost, split, is in the page as it is in the metrics.
data = json.loads(page.split('id="data">', 1)[1].split("</script>", 1)[0])
for key in ("recovery_s", "detection_s", "replanning_s", "resending_s", "recomputing_s"):
    total = sum(line[key] for line in metrics)
    check(near(data["runs"][0]["totals"][key], total), f"the page's {key} is not that of the steps, {total}")
    check([row[key] for row in data["runs"][0]["metrics"]] == [line[key] for line in metrics], f"the page's rows lack {key}")
if mode == "wall":  # real time is never ahead of the model's, and the page says by how much it was behind
    for line in metrics:
        took = line["time_s"] * line["dilation"]
        check(line["dilation"] >= 1 and took <= line["wall_s"] * (1 + 1e-9), f"step {line['step']}: {took} s of {line['wall_s']} real ones")
    took = sum(line["time_s"] * line["dilation"] for line in metrics)
    check(near(data["runs"][0]["totals"]["dilation"], took / sum(line["time_s"] for line in metrics)), "the page's dilation is another")
else:
    check(not any("dilation" in line for line in metrics), f"dilation with clock {mode}")
for line in metrics:
    losses = line.get("losses", [])
    for key, each in (("detection_s", "detection_s"), ("replanning_s", "planning_s"), ("resending_s", "resending_s"), ("recomputing_s", "recomputing_s")):
        check(near(line[key], sum(loss[each] for loss in losses)), f"step {line['step']}: losses do not add up to {key}")
    check(all(loss["blocks"] > 0 and loss["operation"] for loss in losses), f"step {line['step']}: {losses}")
if mode == "disturbed":
    check(any("losses" in line for line in metrics), "no loss is listed")
    check(data["runs"][0]["totals"]["recomputing_s"] > 0, "nothing was computed again: the test shows nothing")
print("\n".join(faults[:20]) or "all agree")
sys.exit(1 if faults else 0)
