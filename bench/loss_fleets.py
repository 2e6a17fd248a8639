#!/usr/bin/env python3
"""Losses in stages on fleets of any seeds: OPT-13B on 256 devices, fp16 on the wire.

    python3 bench/loss_fleets.py SEEDS [--sessions] [--program build/release/cleave] [--jobs 2]

1, 3 or 5 devices fall silent at a tenth, half and nine tenths of a step, as in the study of docs/measurements/stages.md,
whose fleets have the seeds 42 to 71. Prints a table of what that adds, and each step that takes longer than the limit;
with --sessions also how much longer steps take in sessions of 20 minutes. Exit code 1 where a limit is passed. Resumes.
"""
import argparse
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from evidence import points, stage_losses, study  # noqa: E402

MEDIAN_S, WORST_S, SESSIONS_PERCENT = 6, 15, 10  # that may be added
LEAST_FLEETS = 5  # whose medians are held against the limits


def seeds_of(text):
    """FIRST-LAST or one seed, by commas."""
    ranges = [part.partition("-") for part in text.split(",")]
    return [seed for first, _, last in ranges for seed in range(int(first), int(last or first) + 1)]


def rows_of(point):
    kept = point.kept()
    return {**point.labels, **kept["report"]}


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("seeds", type=seeds_of, help="such as 72-101, or 85,95")
    options.add_argument("--sessions", action="store_true")
    options.add_argument("--program", type=pathlib.Path, default=points.TOP / "build" / "release" / "cleave")
    options.add_argument("--jobs", type=int, default=2)
    options = options.parse_args()
    seeds = options.seeds
    cases = {stage_losses.name_of(n, at): (n, at) for n in stage_losses.COUNTS for at in stage_losses.MOMENTS}
    names = [*cases, *([stage_losses.CALM, stage_losses.SESSIONS] if options.sessions else [])]
    fleets = study.Study("loss-fleets", "", [case for case in stage_losses.CASES if case.name in names], ["cleave"], seeds=seeds)
    if points.run(fleets.points(), options.program.resolve(), options.jobs):
        raise SystemExit("points are left")
    rows = [rows_of(point) for point in fleets.points()]
    lines, late, hit, passed = [stage_losses.HEAD], [], 0, False
    for name, (count, moment) in cases.items():
        its = [row for row in rows if row["case"] == name]
        added = {row["seed"]: stage_losses.added_s(row) for row in its}
        if None in added.values():
            raise SystemExit(f"{name}: not survived")
        hit += sum(stage_losses.hit_work(row) for row in its)
        lines.append(stage_losses.line(count, moment, list(added.values())))
        passed |= len(seeds) >= LEAST_FLEETS and statistics.median(added.values()) > MEDIAN_S
        late += [f"seed {seed}, {name}: {s:.1f} s" for seed, s in added.items() if s > WORST_S]
    print(study.grid(lines))
    print(f"program {points.hash_of(options.program)}; {len(seeds)} fleets, seeds {seeds[0]} to {seeds[-1]}; {len(cases) * len(seeds)} steps, of which {hit} "
          f"lost work; {len(late)} took more than {WORST_S} s longer")
    print("".join(f"- {one}\n" for one in late), end="")
    passed |= bool(late)
    if hit == 0:
        raise SystemExit("the losses hit no work")
    if options.sessions:
        by_case = {name: {row["seed"]: row["step_s"] for row in rows if row["case"] == name} for name in names}
        longer = [100 * (by_case[stage_losses.SESSIONS][seed] / by_case[stage_losses.CALM][seed] - 1) for seed in seeds]
        print(f"in sessions of 20 minutes steps take {statistics.median(longer):.1f} % longer ({min(longer):.1f} to {max(longer):.1f})")
        passed |= len(seeds) >= LEAST_FLEETS and statistics.median(longer) > SESSIONS_PERCENT
    return 1 if passed else 0


if __name__ == "__main__":
    sys.exit(main())
