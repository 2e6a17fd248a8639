#!/usr/bin/env python3
"""A brief study is run, kept, resumed and written: brief_study.py PROGRAM SCRATCH."""
import json
import os
import pathlib
import shutil
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parent.parent.parent


def main():
    program, scratch = sys.argv[1], pathlib.Path(sys.argv[2]) / "brief_study"
    shutil.rmtree(scratch, ignore_errors=True)
    command = [sys.executable, str(TOP / "bench" / "reproduce.py"), "--brief", "--row", "15", "--program", program]
    environment = {**os.environ, "CLEAVE_STUDIES": str(scratch)}
    first = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert first.returncode == 0, first.stderr
    ran = first.stderr.count("\n")
    results = json.loads((scratch / "brief" / "row-15.json").read_text())
    assert ran == results["points"] > 0 and results["not_run"] == 0, (ran, results["points"], results["not_run"])
    row = next(row for row in results["rows"] if row["system"] == "confidant")
    direct = subprocess.run([program, "simulate", str(TOP / row["input"]), "--system", "confidant", "--json", "-",
                             *(f"{k}={v}" for k, v in row["set"].items())], capture_output=True, text=True, check=True)
    assert json.loads(direct.stdout)[0]["step_s"] == row["step_s"]
    assert "## Row 15" in (scratch / "brief" / "reproduction.md").read_text()
    # What is kept is not run again; what is missing is.
    kept = sorted((scratch / "evidence").glob("*.json"))
    assert len(kept) == ran
    kept[0].unlink()
    second = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert second.returncode == 0 and second.stderr.count("\n") == 1, second.stderr
    # What another program made is run again.
    other = json.loads(kept[1].read_text())
    kept[1].write_text(json.dumps({**other, "program": "another"}))
    third = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert third.returncode == 0 and third.stderr.count("\n") == 1, third.stderr
    assert json.loads(kept[1].read_text())["report"]["step_s"] == other["report"]["step_s"]


if __name__ == "__main__":
    main()
