#!/usr/bin/env python3
"""Every published claim beside our number: seventeen rows, each a study of `cleave simulate`.

    python3 bench/reproduce.py                    run what is not kept yet, write results, draw, write docs/reproduction.md
    python3 bench/reproduce.py --row 4 --row 5    these rows only; the page keeps the others' results
    python3 bench/reproduce.py --gather           run nothing
    python3 bench/reproduce.py --again cleave,cleave-paper
                                                  of what another program made, run only cleave's points again
    python3 bench/reproduce.py --brief            two cases of each row, one seed, no slow planner; results and page go to runs/brief

Options: --program build/release/cleave, --jobs 2, --minutes N (starts no point after that; the same command goes on).
Results: docs/measurements/results/row-NN.json, .csv, .svg. Points are kept in runs/evidence;
those that were run elsewhere are taken over from the results files. Needs nothing but Python.
"""
import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from evidence import pages, points  # noqa: E402
from evidence.rows import ROWS  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", type=int, action="append", choices=[row.number_of for row in ROWS])
    parser.add_argument("--gather", action="store_true")
    pages.add_options(parser)
    arguments = parser.parse_args()
    chosen = [row for row in ROWS if not arguments.row or row.number_of in arguments.row]
    studies = list({row.study.name: row.study for row in chosen}.values())
    pages.prepare(arguments, studies)
    left = 0
    if not arguments.gather:
        everything = [point for study in studies for point in study.points(arguments.brief)]
        left = points.run(everything, arguments.program.resolve(), arguments.jobs, arguments.minutes, pages.again(arguments))
    for study in studies:
        study.write(arguments.brief)
    pages.write_all()
    to = pages.study.RESULTS if arguments.brief else "docs/reproduction.md and docs/measurements/results"
    print(f"written: {to}{f'; {left} points left, the same command goes on' if left else ''}")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
