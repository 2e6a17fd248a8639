#!/usr/bin/env python3
"""Steps to a loss, read from curves: between two measured steps, never, and for each seed beside its own model."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "bench"))
from evidence import loss_time  # noqa: E402


def main():
    one = [[0, 4.0], [300, 3.0], [600, 2.0], [1000, 1.5]]
    assert loss_time.steps_to(one, 3.0) == 300
    assert loss_time.steps_to(one, 2.5) == 450
    assert loss_time.steps_to(one, 1.0) is None
    slow = [[0, 4.0], [600, 3.0], [1000, 2.9]]
    quick = [[0, 4.0], [150, 3.0], [1000, 1.0]]
    curves = {"one-model": {"1": one, "2": one}, "local-50": {"1": slow, "2": quick}, "top-0.035": {"1": slow, "2": slow}}
    assert loss_time.needed(curves, "one-model", 300) == [300, 300]
    assert loss_time.needed(curves, "local-50", 300) == [600, 150]
    assert loss_time.needed(curves, "local-50", 600) is None  # one seed never gets there: a median of the lucky would flatter
    assert loss_time.needed(curves, "top-0.035", 300) == [600, 600]
    for algorithm in loss_time.ALGORITHMS:  # what is kept was trained, and learns
        for curve in loss_time.curves()[0][algorithm].values():
            assert curve[0][0] == 0 and curve[-1][0] == 1000 and curve[-1][1] < curve[0][1], algorithm
    print("steps to a loss are read right")


if __name__ == "__main__":
    main()
