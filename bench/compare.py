#!/usr/bin/env python3
"""Every system under one accounting: the fastest one for each model, memory, number of devices, links and churn.

    python3 bench/compare.py [--program build/release/cleave] [--jobs 2] [--minutes N] [--brief]

Also devices that do not reach each other, energy with the server's, and DTFM's objective in its five scenarios. Writes
docs/measurements/results/regimes.json, peers.json, objectives.json and their .csv, and the pages that quote them. Resumes; points lie in runs/evidence.
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from evidence import command, objectives, peers, regimes  # noqa: E402

if __name__ == "__main__":
    sys.exit(command.run(__doc__, [peers.STUDY, regimes.STUDY, objectives.STUDY]))
