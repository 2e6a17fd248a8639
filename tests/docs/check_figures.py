#!/usr/bin/env python3
"""Figures on pages come from results files: every page is what they say, and the check notices when one is not.

    check_figures.py             the pages of this tree
    check_figures.py --program P the quickest points of each results file, run again, give the same figures
"""
import pathlib
import sys

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(TOP / "bench"))
from evidence import current, pages, study  # noqa: E402


def notices():
    """A figure that is changed on a page, and a point that is changed in a file, are found."""
    faults = []
    for page, text in pages.pages_with_markers():
        for pattern in (pages.BLOCK, pages.INLINE):
            match = pattern.search(text)
            if match and pages.filled(text[:match.start(4)] + "0" + text[match.end(4):]) != text:
                faults.append(f"{page}: a changed figure is not put right")
    if not any(True for _ in pages.pages_with_markers()):
        faults.append("no page has markers: nothing is checked")
    row = study.Results("stages").rows[0]
    if current.same(row["step_s"], row["step_s"] * 1.0001) or not current.same(row["step_s"], row["step_s"]):
        faults.append("times that differ by a ten-thousandth count as the same")
    return faults


def main():
    if sys.argv[1:2] == ["--program"]:
        faults = current.check(pathlib.Path(sys.argv[2]))
    else:
        faults = notices() + pages.check()
    print("\n".join(faults) or "every figure is what its results file says")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
