"""DTFM's objective in its five scenarios, three seeds of its search, with its authors' sizes and number of stages."""
from .study import Case, Study, grid

SCENARIOS = ["data-centre", "spot-instances", "universities", "regions", "world"]
# The authors' scheduler (DS3Lab/DT-FM, 100 + 4900 candidates, seeded), run once apart from this project; its first seed.
ORIGINAL = {"data-centre": 3.4398, "spot-instances": 49.503930, "universities": 16.086840, "regions": 34.802041, "world": 49.218380}
STUDY = Study("objectives", "python3 bench/compare.py", [
    Case(f"{name}, seed {seed}", {"simulate.dtfm.seed": str(seed)}, input=f"inputs/dtfm/{name}.yaml")
    for name in SCENARIOS for seed in (0, 1, 2)], ["dtfm"])


def figures(r):
    lines = [["scenario", "original, seed 0", "ours, seed 0", "seed 1", "seed 2"]]
    for name in SCENARIOS:
        ours = [r.mid("dtfm", f"{name}, seed {seed}", "figures.objective_s") for seed in (0, 1, 2)]
        lines.append([name, f"{ORIGINAL[name]:.6g}", *("" if v is None else f"{v:.6f}" for v in ours)])
    return {"table": grid(lines)}
