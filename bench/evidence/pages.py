"""Pages made from results files: docs/reproduction.md as a whole, and what stands between markers in other pages.

A block stands between `<!-- figures: STUDY KEY -->` and `<!-- /figures -->` on lines of their own; a figure within a line
between `<!--figure STUDY KEY-->` and `<!--/figure-->`. Both are computed from docs/measurements/results/STUDY.json, so two
pages that name one figure cannot disagree, and a page that somebody edited by hand fails `check`.
"""
import pathlib
import re
import sys

from . import front, loss_time, objectives, peers, regimes, stage_losses, stages, study, svg, tiles
from .points import RUNS, TOP, store
from .rows import ROWS
from .study import Results, three

sys.path.append(str(TOP / "tests" / "docs"))
from wrap import wrapped_page  # noqa: E402

REPRODUCTION = TOP / "docs" / "reproduction.md"
BLOCK = re.compile(r"(<!-- figures: (\S+) (.+?) -->\n)(.*?)(<!-- /figures -->)", re.S)
INLINE = re.compile(r"(<!--figure (\S+) (.+?)-->)(.*?)(<!--/figure-->)")
# Studies whose figures other pages quote: name -> function of its Results that gives {key: text}.
QUOTED = {"stages": stages.figures, "stage-losses": stage_losses.figures, "tiles": tiles.figures,
          "ideas": tiles.ideas_figures, "regimes": regimes.figures, "objectives": objectives.figures, "peers": peers.figures,
          "loss-time": loss_time.figures, "row-06": front.figures}


def add_options(parser):
    parser.add_argument("--program", type=pathlib.Path, default=TOP / "build" / "release" / "cleave")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--again", help="systems, by commas")
    parser.add_argument("--brief", action="store_true")


def prepare(arguments, studies):
    """Before studies run. Brief ones are written apart, so that they never stand in for whole ones."""
    if arguments.brief:
        study.RESULTS = RUNS / "brief"
        return
    for of in studies:
        of.take_over()


def again(arguments):
    return tuple(arguments.again.split(",")) if arguments.again else ()


def have(name):
    return (study.RESULTS / f"{name}.json").exists()


def concluded():
    """Rows whose study has results, with what it says. Two rows may share a study."""
    for row in ROWS:
        if have(row.study.name):
            results = Results(row.study.name)
            row.tables, row.plot, row.notes = [], None, ""
            try:
                row.conclude(results, row)
            except (TypeError, ValueError, IndexError, KeyError):
                if not (results.head["not_run"] or results.head["brief"]):
                    raise
                row.number, row.verdict = "too few of its points were run to say", "*not run in full*"
                row.tables = [("Seconds a step", results.table())]
            if results.head["not_run"]:
                row.verdict += f" (preliminary: {results.head['not_run']} of {results.head['not_run'] + results.head['points']} points not run)"
            yield row, results


def plot_of(row, results):
    if row.plot is None:
        row.plot = ("", "seconds a step", {s: [(c, v) for c in results.cases if (v := results.mid(s, c)) is not None]
                                           for s in results.systems})
    return svg.chart(f"{row.number_of}. {row.claim}"[:84], *row.plot)


def behind(rows):
    """Where a rival that trains alike is faster than cleave: {case: (rival, factor)}, by results file."""
    from .fleets import RIVALS
    found = {}
    for row, r in rows:
        for case in r.cases:
            best, mine = r.fastest(case, [s for s in r.systems if s in RIVALS]), r.mid("cleave", case)
            if best and mine and best[1] < mine:
                found.setdefault(r.head["study"], {})[case] = (best[0], mine / best[1])
    return found


def reproduction():
    rows = list(concluded())
    losses = behind(rows)
    short = {}
    for row, _ in rows:
        word = re.search(r"\*(.+?)\*", row.verdict)[1]
        short.setdefault(word.removesuffix(":"), []).append(str(row.number_of))
    lost = "; ".join(f"row {int(name[4:])}: " + ", ".join(f"{case} ({rival}, {three(v)} x)" for case, (rival, v) in cases.items())
                     for name, cases in losses.items())
    compared = sum(1 for _, r in {r.head["study"]: (0, r) for _, r in rows}.values() for c in r.cases
                   if r.mid("cleave", c) and r.fastest(c, [s for s in r.systems if s not in ("cleave", "cleave-paper", "cloud-gpu")]))
    text = [
        "<!-- Written by bench/reproduce.py from docs/measurements/results; edit bench/evidence. -->",
        "# What the publications claim, beside what runs here", "",
        f"**Where cleave loses first.** In {sum(len(c) for c in losses.values())} of the {compared} cases below in which cleave and a rival both "
        f"run, a rival that trains alike is faster: {lost}. They are models that fit a device or a few, links between devices that carry as much as "
        "the server's, and few devices that each hold whole layers with their moments: there a batch has little to gain from a server in the "
        "middle. One A100 with its state in host memory is a further system "
        "beside the fleet (row 3).", "",
        "**Which claims hold.** " + "; ".join(f"{word}: rows {', '.join(numbers)}" for word, numbers in short.items()) +
        " (of a row with several claims, the first). What holds, holds because weights are streamed from a server that keeps all state: "
        "small memories run, and a lost device costs its own work only. What does not hold fails for two reasons. The publications compare with "
        "rivals at part of their strength; here each has its own scheduler in full, moments in shards, recomputation and the best of all "
        "shapes ([rivals.md](rivals.md)). And their headline links cost nothing where ours are charged: the server's interface has "
        "100 Gbit/s, unlimited only where a table says so.", "",
        "Of the publications abstracts and released code were read, no figure's values. Every number is emulated time of `cleave simulate`, under "
        "one accounting for all. Cells: median over fleet seeds (least-greatest); \"no\" is not feasible, an empty cell was not run. "
        "*Another algorithm*: `fusionllm`, `local-steps` and `progfed` change the training; they are in tables and never counted as the fastest rival. "
        "What that costs in loss: [measurements/loss_against_time.md](measurements/loss_against_time.md).", ""]
    text.append("| row | claim | source | verdict |\n|---|---|---|---|")
    text += [f"| [{row.number_of}](#row-{row.number_of}) | {row.claim} | {row.source} | {row.verdict} |" for row, _ in rows]
    missing = [str(row.number_of) for row in ROWS if not have(row.study.name)]
    if missing:
        text.append(f"\nNot run: rows {', '.join(missing)}.")
    for row, results in rows:
        text += ["", f"## Row {row.number_of}", "", f"**Claim** ({row.source}): {row.claim}.", "", f"**Ours**: {row.number}.", "",
                 f"**Verdict**: {row.verdict}.", ""]
        if row.notes:
            text += [row.notes, ""]
        for title, table in row.tables:
            text += [f"{title}:", "", table]
        if (study.RESULTS / f"{figure_name(row)}").exists():
            text += [f"![row {row.number_of}](measurements/results/{figure_name(row)})", ""]
        text.append(f"{results.stamp()} [CSV](measurements/results/{row.study.name}.csv)")
    return wrapped_page("\n".join(text) + "\n")[0]


def figure_name(row):
    return f"claim-{row.number_of:02d}.svg"


def pages_with_markers():
    for page in sorted([TOP / "README.md", *(TOP / "docs").rglob("*.md")]):
        text = page.read_text()
        if page != REPRODUCTION and ("<!-- figures:" in text or "<!--figure " in text):
            yield page, text


def filled(text):
    """The page with everything between its markers made anew."""
    made = {}

    def of(name, key):
        if not have(name):
            return f"not run yet: {name}\n"
        if name not in made:
            results = Results(name)
            made[name] = {**QUOTED[name](results), "stamp": results.stamp() + "\n"}
        if key not in made[name]:
            raise KeyError(f"the study {name} has no figure '{key}'")
        return made[name][key]

    text = BLOCK.sub(lambda m: m[1] + of(m[2], m[3]) + m[5], text)
    return wrapped_page(INLINE.sub(lambda m: m[1] + of(m[2], m[3]).strip() + m[5], text))[0]


def write_all():
    """Results of brief studies change no page but a reproduction.md of their own."""
    brief = study.RESULTS.name == "brief"
    for row, results in concluded():
        drawing = plot_of(row, results)
        if drawing:
            store(study.RESULTS / figure_name(row), drawing)
    store(study.RESULTS / "reproduction.md" if brief else REPRODUCTION, reproduction())
    if brief:
        return
    if have("row-06"):
        store(study.RESULTS / front.CHART, front.chart(Results("row-06")))
    for page, text in pages_with_markers():
        store(page, filled(text))


def check():
    """Faults: pages that are not what their results files say."""
    faults = [f"{page.relative_to(TOP)} is not what its results files say: python3 bench/figures.py writes it anew"
              for page, text in pages_with_markers() if filled(text) != text]
    if REPRODUCTION.exists() and REPRODUCTION.read_text() != reproduction():
        faults.append("docs/reproduction.md is not what its results files say: python3 bench/figures.py writes it anew")
    return faults
