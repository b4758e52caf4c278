"""Shows the benchmark's measurements as a table."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from audit.laws import intervals
from audit.report.table import Column, Table
from experiments.benchmark.contract import CONFIDENCE, DESIGNS, Estimator
from experiments.benchmark.false_claims import CLAIMED_MU, NOISE
from experiments.benchmark.registry import ESTIMATORS
from experiments.sweeps.records import Record, field

LEVEL = 1 - CONFIDENCE
_TEST_LEVEL = 0.01  # the probability that any star in a table is wrong
_NOTES = (
    "too much: share of audits above the true epsilon, in the worst cell that meets",
    "the estimator's assumptions. * an exact test rejects the level",
    f"{LEVEL:.0%} in a cell, at {_TEST_LEVEL:.0%} over all cells (Bonferroni). - does not claim a level.",
    "else: the same share in cells that violate its assumptions. proven: mean epsilon",
    "over the true epsilon. no value: audits without a value, which count as 0.",
    f"refutes: runs with which half of the audits refute a claim of mu {CLAIMED_MU:.2f} if the",
    f"noise is {NOISE} of the claimed noise. * over {LEVEL:.0%} of audits refute a true",
    f"claim, by an exact test at {_TEST_LEVEL:.0%} over all estimators (Bonferroni).",
)


def exceeds_level(wrong: int, audits: int, tests: int) -> bool:
    """Returns whether more audits are wrong than the level allows, by an exact binomial test.

    `tests` is the number of such tests, for a Bonferroni correction to 1% in total.
    """
    error = _TEST_LEVEL / tests  # for each end of the interval
    limits = intervals.clopper_pearson(wrong, audits, 1 - 2 * error)
    return bool(limits.lower > LEVEL + 1e-12)  # tolerates rounding


def is_held_to_level(cell: Record) -> bool:
    """Returns whether the estimator claims a level and the mechanism meets its assumptions."""
    return ESTIMATORS[cell["estimator"]].claims_level and not cell["broken"]


def _summarise(estimator: Estimator, cells: Sequence[Record], tests: int) -> Record:
    """Returns an estimator's record, without the claims; `tests` as in `exceeds_level`."""
    usual = [cell for cell in cells if not cell["broken"]]  # whose assumptions hold
    others = [cell for cell in cells if cell["broken"]]
    proven = [cell["mean"] / cell["truth"] for cell in usual if cell["truth"] > 0]
    over_level = 0
    for cell in filter(is_held_to_level, cells):
        over_level += exceeds_level(cell["exceeding"], cell["audits"], tests)
    refused = sum(cell["refused"] for cell in cells)
    return {
        "estimator": estimator.name,
        "kind": estimator.kind,
        "design": estimator.design,
        "assumption": estimator.assumption,
        "claims_level": estimator.claims_level,
        "cells": len(cells),
        "too_much": _find_largest_share(usual),
        "cells_over_level": over_level,
        "elsewhere": _find_largest_share(others),
        "proven": float(np.mean(proven)) if proven else None,
        "refused": refused / sum(cell["audits"] for cell in cells),
        "seconds": float(np.median([cell["seconds"] for cell in cells])),
    }


def _find_largest_share(cells: Sequence[Record]) -> float | None:
    """Returns the largest share of audits above the truth in a cell; None without cells."""
    return max((cell["exceeding"] / cell["audits"] for cell in cells), default=None)


def show_runs(claim: Record, tests: int) -> str:
    """Returns the number of runs that refute a claim, with * if true claims are refuted too often.

    `claim` is the record of a `ClaimCell`, and `tests` the number of claims in the table.
    """
    if claim["runs"] is None:
        return f">{claim['max_runs']:,}"
    mark = " "
    if exceeds_level(claim["false_refutations"], claim["audits"], tests):
        mark = "*"
    return f"{claim['runs']:,}{mark}"


def make_summary_table(cells: Sequence[Record], claims: Sequence[Record]) -> Table[Record]:
    """Returns the table with a row for each estimator with cells, sorted by design.

    Args:
      cells: The measured cells of all estimators.
      claims: The measured cells of false claims.
    """
    tests = sum(map(is_held_to_level, cells))
    runs = {}
    for claim in claims:
        runs[claim["estimator"]] = show_runs(claim, len(claims))
    records = []
    for estimator in sorted(ESTIMATORS.values(), key=lambda record: DESIGNS.index(record.design)):
        own = [cell for cell in cells if cell["estimator"] == estimator.name]
        if own:
            record = _summarise(estimator, own, tests)
            record["runs_until_refuted"] = runs.get(estimator.name, "")
            records.append(record)
    share = partial(field, show=".0%")
    columns = (
        field("estimator", head="estimator", width=40, left=True),
        *map(field, ("assumption", "claims_level", "cells", "too_much", "cells_over_level")),
        Column(None, _show_worst_share, head="too\nmuch", width=7),
        share("elsewhere", head="\nelse", width=5),
        share("proven", head="\nproven", width=6),
        share("refused", head="no\nvalue", width=5),
        field("seconds", head="\nms", show=_show_milliseconds, width=4),
        field("runs_until_refuted", head="\nrefutes", width=7),
    )
    max_audits = max(cell["audits"] for cell in cells)
    return Table(
        columns,
        records,
        section=lambda record: str(record["design"]),
        before=(f"up to {max_audits:,} audits a cell, of {len(cells):,} cells; level {LEVEL:.0%}",),
        after=_NOTES,
        gap=" ",
        rule=80,
    )


def _show_worst_share(record: Record) -> str:
    """Formats the worst share of audits above the truth: - without a level, * above it in some cell."""
    if record["too_much"] is None:
        return ""
    mark = " "
    if record["cells_over_level"]:
        mark = "*"
    if not record["claims_level"]:
        mark = "-"
    return f"{record['too_much']:.1%}{mark}"


def _show_milliseconds(seconds: float) -> str:
    return "<1" if seconds < 1e-3 else f"{1e3 * seconds:,.0f}"
