#!/usr/bin/env python3
"""Loss against time for systems that change the training: docs/measurements/loss_against_time.md.

    python3 bench/loss_time.py [TEXT] [--seeds 2] [--program build/release/cleave] [--jobs 2] [--minutes N]

TEXT: tinyshakespeare (see inputs/learn/tinyshakespeare-gpt2.yaml). Trains the small model with every algorithm and seed, two at a time
(bench/evidence/small_gpt2.py; five minutes of a core each), simulates the large ones, and writes the curves, the study
loss-time and the pages. Resumes: a curve is kept in runs/evidence under the hash of the program and of the text.
Needs Debian's python3-torch; without it, it says so and ends with exit code 1. Without TEXT nothing is trained: the curves
stay, which no program of ours has a part in, and the large ones are simulated.
"""
import argparse
import concurrent.futures
import hashlib
import json
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from evidence import loss_time, pages, points, small_gpt2, study  # noqa: E402

TRAINING = pathlib.Path(small_gpt2.__file__)


def torch_version(python):
    run = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True)
    return run.stdout.strip() if run.returncode == 0 else None


def train(python, text, algorithm, seed):
    """A curve, kept."""
    key = hashlib.sha256(TRAINING.read_bytes() + text.read_bytes() + f"{algorithm} {seed}".encode()).hexdigest()[:20]
    file = points.KEPT / f"curve-{key}.json"
    if not file.exists():
        run = subprocess.run([python, str(TRAINING), str(text), algorithm, str(seed)], capture_output=True, text=True)
        if run.returncode != 0:
            raise RuntimeError(f"{TRAINING.name} {algorithm} {seed}: {run.stderr[-2000:]}")
        points.store(file, run.stdout)
        print(f"trained {algorithm}, seed {seed}", file=sys.stderr, flush=True)
    return json.loads(file.read_text())


def train_all(arguments):
    """All curves, and what made them, to the results."""
    version = torch_version(arguments.python)
    if version is None:
        sys.exit("loss_time: no PyTorch; apt-get install python3-torch")
    if not arguments.text.is_file():
        sys.exit(f"loss_time: no file {arguments.text}")
    seeds = [str(s) for s in range(1, 1 + arguments.seeds)]
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        tasks = {(a, s): pool.submit(train, arguments.python, arguments.text, a, s) for s in seeds for a in small_gpt2.ALGORITHMS}
        curves = {a: {s: tasks[a, s].result() for s in seeds} for a in small_gpt2.ALGORITHMS}
    points.store(loss_time.CURVES, json.dumps({
        "command": f"python3 bench/loss_time.py {arguments.text.name}" + (f" --seeds {arguments.seeds}" if arguments.seeds != 2 else ""),
        "date": time.strftime("%Y-%m-%d"), "torch": version, "seeds": seeds, "machine": points.machine(), "curves": curves}) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=pathlib.Path, nargs="?")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--python", default="/usr/bin/python3")
    pages.add_options(parser)
    arguments = parser.parse_args()
    if arguments.text is not None:
        train_all(arguments)
    pages.prepare(arguments, [loss_time.STUDY])
    left = points.run(loss_time.STUDY.points(), arguments.program.resolve(), arguments.jobs, arguments.minutes, pages.again(arguments))
    loss_time.STUDY.write()
    points.store(loss_time.PLOT, loss_time.draw(study.Results(loss_time.STUDY.name)))
    pages.write_all()
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
