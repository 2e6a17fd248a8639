"""What bench/stages.py and bench/compare.py have in common: run, write results, write pages."""
import argparse

from . import pages, points


def run(about, studies):
    """Exit code: 0, or 1 when points are left."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    pages.add_options(parser)
    arguments = parser.parse_args()
    pages.prepare(arguments, studies)
    left = points.run([p for study in studies for p in study.points(arguments.brief)], arguments.program.resolve(), arguments.jobs,
                      arguments.minutes, pages.again(arguments))
    for study in studies:
        study.write(arguments.brief)
        print(f"{study.name}: docs/measurements/results/{study.name}.json")
    pages.write_all()
    return 1 if left else 0
