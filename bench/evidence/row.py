"""A row of docs/reproduction.md: a publication's claim, the study that was run, and what it says."""
import dataclasses
import typing

from .study import Study


@dataclasses.dataclass
class Row:
    """`conclude(results, row)` fills what stands below the line."""
    number_of: int
    claim: str
    source: str
    study: Study
    conclude: typing.Callable
    number: str = ""
    verdict: str = ""
    notes: str = ""
    tables: list = dataclasses.field(default_factory=list)
    plot: tuple = None  # (x label, y label, {line: [(x, y)]})


def at_least(values, claim):
    """How a claim of "at least so much" fares: whether all, some or none of the values reach it."""
    values = list(values)
    reached = sum(v >= claim for v in values)
    if values and reached == len(values):
        return "reproduced"
    return "reproduced in part" if reached else "contradicted"
