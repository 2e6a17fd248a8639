#!/usr/bin/env python3
"""Steps in stages and in tiles: the studies of docs/measurements/stages.md, simulation.md and fleet_sizes.md.

    python3 bench/stages.py [--program build/release/cleave] [--jobs 2] [--minutes N] [--brief]

Writes stages, stage-losses, tiles and ideas, .json and .csv, in docs/measurements/results, and the pages that quote them.
Resumes; points lie in runs/evidence.
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from evidence import command, stage_losses, stages, tiles  # noqa: E402

if __name__ == "__main__":
    sys.exit(command.run(__doc__, [stages.STUDY, stage_losses.STUDY, tiles.STUDY, tiles.IDEAS_STUDY]))
