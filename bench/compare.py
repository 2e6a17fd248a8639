#!/usr/bin/env python3
"""Every system under one accounting: the fastest one for each model, memory, number of devices, links and churn.

    python3 bench/compare.py [--program build/release/cleave] [--jobs 2] [--minutes N] [--brief]

Also DTFM's objective in its five scenarios. Writes docs/measurements/results/regimes.json, objectives.json and their .csv,
and the pages that quote them. Resumes; points lie in runs/evidence.
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from evidence import command, objectives, regimes  # noqa: E402

if __name__ == "__main__":
    sys.exit(command.run(__doc__, [regimes.STUDY, objectives.STUDY]))
