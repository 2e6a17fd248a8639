"""The study of losses in stages (docs/measurements/stages.md): devices that fall silent in a step, and sessions that end."""
import statistics

from .study import Case, Study, grid, three

COUNTS, MOMENTS = (1, 3, 5), (0.1, 0.5, 0.9)
DETECTION_S = 0.2  # simulate.loss.detection by default
SEEDS = list(range(42, 72))  # the worst of many is asked for
CALM, SESSIONS = "nothing lost, 4 steps", "sessions of 20 minutes, absences of 10, 4 steps"


def name_of(count, moment):
    return f"{count} lost at {moment:.0%}"


CASES = [Case(name_of(n, at), {"simulate.loss.devices": str(n), "simulate.loss.progress": str(at)}) for n in COUNTS for at in MOMENTS]
CASES += [Case(CALM, {"simulate.steps": "4"}),
          Case(SESSIONS, {"simulate.steps": "4", "fleet.churn": "{mean_session: 20 min, mean_absence: 10 min}"})]
STUDY = Study("stage-losses", "python3 bench/stages.py", CASES, ["cleave"], seeds=SEEDS)


HEAD = ["lost at once", "at", "added s beyond detection, median (range)"]


def added_s(row):
    """What the losses of a step added beyond detection; None where it was not survived."""
    return None if row["recovery_s"] is None else max(0.0, row["recovery_s"] - DETECTION_S)


def line(count, moment, added):
    return [str(count), f"{moment:.0%}", f"{three(statistics.median(added))} ({three(min(added))}-{three(max(added))})"]


def hit_work(row):
    """Whether who was lost had anything to do: late in a step some have not."""
    return bool(row["feasible"]) and row["figures"].get("lost_tasklets", 0) > 0


def figures(r):
    """{key: text}: `table` of what losses add beyond detection, and `sessions`."""
    lines = [HEAD]
    for count in COUNTS:
        for moment in MOMENTS:
            case = name_of(count, moment)
            rows = r.points("cleave", case)
            if not any(hit_work(row) for row in rows):
                raise ValueError(f"{case}: the losses hit no work in any seed")
            added = [added_s(row) for row in rows if row["feasible"]]
            if len(added) < len(rows) or None in added:
                raise ValueError(f"{case}: not survived")
            lines.append(line(count, moment, added))
    calm = {row["seed"]: row["step_s"] for row in r.points("cleave", CALM)}
    longer = [100 * (row["step_s"] / calm[row["seed"]] - 1) for row in r.points("cleave", SESSIONS) if row["feasible"]]
    return {"table": grid(lines),
            "sessions": f"{r.text('cleave', SESSIONS)} s a step, {three(statistics.median(longer))} % ({three(min(longer))}-{three(max(longer))}) "
                        f"longer than without"}
