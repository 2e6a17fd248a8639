#!/usr/bin/env python3
"""Writes into the pages of the documentation what results files say; runs nothing.

    python3 bench/figures.py            docs/reproduction.md, and what stands between markers in other pages
    python3 bench/figures.py --check    writes nothing; exit code 3 when a page is not what its results file says
    python3 bench/figures.py --current PROGRAM
                                        the quickest points of every results file again; exit code 3 when PROGRAM gives
                                        another time than the file: the study is older than the program
"""
import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from evidence import current, pages  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--current", type=pathlib.Path)
    arguments = parser.parse_args()
    if not arguments.check and not arguments.current:
        pages.write_all()
        return 0
    faults = (pages.check() if arguments.check else []) + (current.check(arguments.current) if arguments.current else [])
    print("\n".join(faults) or "every page is what its results files say")
    return 3 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
