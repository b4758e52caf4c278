"""The benchmark's measurements as a table, a row an estimator, and as a figure, a point an estimator."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from audit.report.table import Column, Table, number
from experiments.benchmark.contract import CONFIDENCE, DESIGNS
from experiments.benchmark.measured import MeasuredCell
from experiments.benchmark.registry import ESTIMATORS

LEVEL = 1 - CONFIDENCE
_NOTES = (
    "too much: the share of audits that claim more than the truth, in the worst cell",
    "whose mechanism keeps what the estimator assumes; * in some such cell an exact",
    f"test at 1% finds it above {LEVEL:.0%}; - it says no level. else: the share in the worst",
    "other cell, for which nobody is blamed. proven: the mean share of the truth.",
    "no value: audits that gave none, which count as 0.",
)


class MeasuredEstimator(NamedTuple):
    """An estimator over all its cells: those of mechanisms that it is for, and the others.

    worst: the largest share of audits above the truth in a cell that it is for; elsewhere: in another; None
    where there is no cell. proven: the mean share of the truth in the former; None where all truths are 0.
    over: the cells in which it exceeds its level.
    """

    estimator: str
    design: str
    level: bool
    cells: int
    worst: float | None
    over: tuple[MeasuredCell, ...]
    elsewhere: float | None
    proven: float | None
    refused: float
    seconds: float

    @property
    def kind(self) -> str:
        return ESTIMATORS[self.estimator].kind


def rows(found: Sequence[MeasuredCell]) -> list[MeasuredEstimator]:
    """A row an estimator, by design and in the order of the records."""
    order = {name: place for place, name in enumerate(ESTIMATORS)}
    ranked = sorted(found, key=lambda one: (DESIGNS.index(one.design), order[one.estimator]))
    return [_row(list(group)) for _, group in itertools.groupby(ranked, lambda one: one.estimator)]


def _row(cells: list[MeasuredCell]) -> MeasuredEstimator:
    own = [one for one in cells if not one.broken]
    shares = [one.proven for one in own if one.proven is not None]
    return MeasuredEstimator(
        *(cells[0].estimator, cells[0].design, cells[0].level, len(cells)),
        worst=max((one.share for one in own), default=None),
        over=tuple(one for one in own if one.blamed and one.over),
        elsewhere=max((one.share for one in cells if one.broken), default=None),
        proven=float(np.mean(shares)) if shares else None,
        refused=sum(one.refused for one in cells) / sum(one.audits for one in cells),
        seconds=float(np.median([one.seconds for one in cells])),
    )


def summary(found: Sequence[MeasuredCell]) -> Table[MeasuredEstimator]:
    """The table for a terminal."""

    def worst(row: MeasuredEstimator) -> str | None:
        mark = "-" if not row.level else "*" if row.over else " "
        return None if row.worst is None else f"{row.worst:.1%}{mark}"

    share = "{:.0%}".format
    columns = (
        Column("estimator", lambda row: row.estimator, "estimator", width=40, left=True),
        Column("cells", lambda row: row.cells, "cells", number("d"), 5),
        Column(None, worst, "too\nmuch", width=7),
        Column("elsewhere", lambda row: row.elsewhere, "\nelse", share, 5),
        Column("proven", lambda row: row.proven, "\nproven", share, 6),
        Column("refused", lambda row: row.refused, "no\nvalue", share, 5),
        Column("seconds", lambda row: row.seconds, "\nms", _milliseconds, 5),
    )
    audits = max((one.audits for one in found), default=0)
    title = f"up to {audits:,} audits a cell, of {len(found):,} cells; level {LEVEL:.0%}"
    return Table(
        columns, rows(found), section=lambda row: row.design, before=(title,), after=_NOTES, gap=" ", rule=80
    )


def _milliseconds(seconds: float) -> str:
    return "<1" if seconds < 1e-3 else f"{1e3 * seconds:,.0f}"


def details(found: Sequence[MeasuredCell]) -> Table[MeasuredCell]:
    """A row a cell, for CSV and JSON, and for people what matters of it."""
    kept = [Column(name, lambda one, name=name: getattr(one, name)) for name in MeasuredCell._fields[:-1]]  # type: ignore[misc]
    share = "{:.1%}".format
    seen = (
        Column(None, lambda one: one.estimator, "estimator", left=True),
        Column(None, lambda one: one.mechanism, "mechanism", left=True),
        Column(None, lambda one: one.n, "n", number(",")),
        Column(None, lambda one: one.audits, "audits", number(",")),
        Column(None, lambda one: one.truth, "truth", number(".2f")),
        Column(None, lambda one: one.mean, "mean epsilon", number(".2f")),
        Column(None, lambda one: one.share, "above the truth", share),
        Column(None, lambda one: f"{one.low:.1%} to {one.high:.1%}", "95% limits"),
        Column(None, lambda one: one.beyond, "by", number(".2f")),
        Column(None, lambda one: one.spread, "spread over orders", number(".2f")),
        Column(None, lambda one: 1e3 * one.seconds, "ms", number(".1f")),
        Column(None, lambda one: one.refused or None, "refused", number("d")),
        Column("broken", lambda one: "; ".join(one.broken), "outside of its assumptions", left=True),
    )
    return Table((*kept, *seen), found)
