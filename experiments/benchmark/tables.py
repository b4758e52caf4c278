"""Shows the benchmark's measurements as a table."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from audit.laws import intervals
from audit.report.table import Column, Table
from experiments.benchmark.contract import CONFIDENCE, DESIGNS, Estimator
from experiments.benchmark.false_claims import CLAIMED_MU, NOISE
from experiments.benchmark.registry import ESTIMATORS
from experiments.sweeps.records import Record, Records, field, select

LEVEL = 1 - CONFIDENCE  # the allowed fraction of wrong audits (epsilon above the truth)
_TEST_LEVEL = 0.01  # the allowed probability that any star in a column is wrong
_NOTES = (
    "too much: fraction of results above the true epsilon, in the worst cell that",
    f"meets the estimator's assumptions. * an exact test rejects the {LEVEL:.0%} level",
    f"in a cell, at {_TEST_LEVEL:.0%} across all cells (Bonferroni). - claims no level.",
    "else: the same fraction in cells that violate its assumptions. proven: mean",
    "epsilon / true epsilon. no value: audits without a value, counted as 0.",
    f"refutes: runs after which half of the audits refute a claim of mu {CLAIMED_MU:.2f} if",
    f"the noise is {NOISE} times that claimed. * over {LEVEL:.0%} of audits refute a true",
    f"claim, by an exact test at {_TEST_LEVEL:.0%} across all estimators (Bonferroni).",
)


def exceeds_level(wrong: int, audits: int, tests: int) -> bool:
    """Returns True if an exact binomial test finds that the probability of a wrong audit exceeds LEVEL, 5%.

    A Bonferroni correction limits the probability of any false finding in `tests` such tests to 1%.
    """
    error = _TEST_LEVEL / tests  # on each side of the interval
    limits = intervals.clopper_pearson(wrong, audits, confidence=1 - 2 * error)
    return bool(limits.lower > LEVEL + 1e-12)  # LEVEL, 1 - 0.95, has a rounding error


def is_held_to_level(cell: Record) -> bool:
    """Returns True if the estimator claims a level and the mechanism meets its assumptions."""
    return ESTIMATORS[cell["estimator"]].claims_level and not cell["broken"]


def _summarize(estimator: Estimator, cells: Records, tests: int) -> Record:
    """Returns an estimator's row of the table, except for the column of refuted claims.

    `cells` are the estimator's records (`AuditedCell.measure`). `exceeding` counts wrong audits, `refused`
    counts audits without a value, and `broken` names the violated assumptions. `too_much` is the largest
    fraction of wrong audits in cells without violations, and `elsewhere` is the largest in other cells.
    `tests` is the number of `exceeds_level` tests across all estimators.
    """
    meeting = [cell for cell in cells if not cell["broken"]]
    violating = [cell for cell in cells if cell["broken"]]
    proven_fractions = [cell["mean"] / cell["truth"] for cell in meeting if cell["truth"] > 0]
    over_level = 0
    for cell in filter(is_held_to_level, cells):
        over_level += exceeds_level(cell["exceeding"], cell["audits"], tests)
    frame = pd.DataFrame(cells)
    return {
        "estimator": estimator.name,
        "kind": estimator.kind,
        "design": estimator.design,
        "assumption": estimator.assumption,
        "claims_level": estimator.claims_level,
        "cells": len(cells),
        "too_much": _find_worst_fraction(meeting),
        "cells_over_level": over_level,
        "elsewhere": _find_worst_fraction(violating),
        "proven": float(np.mean(proven_fractions)) if proven_fractions else None,
        "refused": frame["refused"].sum() / frame["audits"].sum(),
        "seconds": frame["seconds"].median(),
    }


def _find_worst_fraction(cells: Records) -> float | None:
    """Returns the fraction of wrong audits in the worst cell, or None if there are no cells."""
    return max((cell["exceeding"] / cell["audits"] for cell in cells), default=None)


def show_runs(claim: Record, tests: int) -> str:
    """Formats the number of runs that refute a false claim, with * if a true claim is refuted too often.

    `claim` is a record of `ClaimCell.measure`. `tests` is the number of tests of true claims across all
    estimators.
    """
    if claim["runs"] is None:  # too few runs; the true claim is not tested
        return f">{claim['max_runs']:,}"
    mark = " "
    if exceeds_level(claim["false_refutations"], claim["audits"], tests):
        mark = "*"
    return f"{claim['runs']:,}{mark}"


def _make_rows(cells: Records, claims: Records) -> Iterator[Record]:
    """Yields a row for each measured estimator, grouped by design.

    The arguments are those of `make_summary_table`.
    """
    # The Bonferroni corrections for cells and for claims are separate.
    tests_of_cells = sum(map(is_held_to_level, cells))
    runs = {claim["estimator"]: show_runs(claim, tests=len(claims)) for claim in claims}
    for estimator in sorted(ESTIMATORS.values(), key=lambda record: DESIGNS.index(record.design)):
        its_cells = select(cells, estimator=estimator.name)
        if its_cells:
            row = _summarize(estimator, its_cells, tests_of_cells)
            yield {**row, "runs_until_refuted": runs.get(estimator.name, "")}


def make_summary_table(cells: Records, claims: Records) -> Table[Record]:
    """Returns a table with a row for each measured estimator, grouped by design.

    `cells` are records of `AuditedCell.measure`, and `claims` are records of `ClaimCell.measure`.
    """
    # _NOTES explains the columns. Those without a heading are only in the CSV.
    columns = (
        field("estimator", head="estimator", width=40, left=True),
        *map(field, ("assumption", "claims_level", "cells", "too_much", "cells_over_level")),
        Column(value=_show_worst_fraction, head="too\nmuch", width=7),
        field("elsewhere", "\nelse", ".0%", width=5),
        field("proven", "\nproven", ".0%", width=6),
        field("refused", "no\nvalue", ".0%", width=5),
        field("seconds", head="\nms", show=_show_milliseconds, width=4),
        field("runs_until_refuted", head="\nrefutes", width=7),
    )
    max_audits = max(cell["audits"] for cell in cells)
    return Table(
        columns,
        list(_make_rows(cells, claims)),
        section=lambda record: str(record["design"]),
        before=(f"up to {max_audits:,} audits per cell, {len(cells):,} cells; level {LEVEL:.0%}",),
        after=_NOTES,
        gap=" ",
        rule=80,
    )


def _show_worst_fraction(record: Record) -> str:
    """Formats the fraction of wrong audits in the worst cell that meets the estimator's assumptions.

    "-" marks an estimator that claims no level, and "*" one that exceeds its level in a cell.
    """
    if record["too_much"] is None:  # no such cells
        return ""
    mark = " "  # aligns the numbers
    if record["cells_over_level"]:
        mark = "*"
    if not record["claims_level"]:
        mark = "-"
    return f"{record['too_much']:.1%}{mark}"


def _show_milliseconds(seconds: float) -> str:
    """Formats a time as a whole number of milliseconds."""
    return "<1" if seconds < 1e-3 else f"{1e3 * seconds:,.0f}"
