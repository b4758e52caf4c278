"""The benchmark's measurements as tables and as a figure."""

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from audit.report.table import Column, Table
from experiments.benchmark.cells import MeasuredCell
from experiments.benchmark.contract import CONFIDENCE, DESIGNS, Estimator
from experiments.benchmark.false_claims import CLAIMED_MU, NOISE, TEST_LEVEL, MeasuredClaim
from experiments.benchmark.registry import ESTIMATORS

LEVEL = 1 - CONFIDENCE
_NOTES = (
    "too much: the share of audits that claim more than the truth, in the worst cell",
    "whose mechanism keeps what the estimator assumes; * in some such cell an exact",
    f"test finds it above {LEVEL:.0%}, at {TEST_LEVEL:.0%} for all tested cells together (Bonferroni);",
    "- it claims no level. else: the share in the worst other cell, for which nobody",
    "is blamed. proven: the mean share of the truth.",
    "no value: audits that gave none, which count as 0. refutes: training runs",
    f"after which half of the audits refute a claim of mu {CLAIMED_MU:.2f}, the noise {NOISE}",
    f"of what is stated; * as many refute a claim that holds, in over {LEVEL:.0%} of audits,",
    f"by such a test at {TEST_LEVEL:.0%} for all estimators together.",
)


class MeasuredEstimator(NamedTuple):
    """The summary of an estimator over all its cells.

    Attributes:
      estimator: the estimator's record.
      cells: the number of its cells.
      worst_share: the largest share of audits above the truth in a cell where its assumptions hold; None if
        there is no such cell.
      over_level: the number of these cells in which it exceeds the level that it claims.
      worst_share_elsewhere: the largest share of audits above the truth in a cell where an assumption is
        broken; None if there is no such cell.
      proven_share: the mean over cells, where its assumptions hold, of the mean epsilon over the true
        epsilon; None if there is no such cell, or all truths are 0.
      refused_share: the share of audits for which it gave no value.
      seconds: the processor time of the median audit in the median cell.
      claim: how many training runs it needs to refute a false claim; None if that is not measured.
    """

    estimator: Estimator
    cells: int
    worst_share: float | None
    over_level: int
    worst_share_elsewhere: float | None
    proven_share: float | None
    refused_share: float
    seconds: float
    claim: MeasuredClaim | None


def summarise_estimators(
    cells: Sequence[MeasuredCell], claims: Sequence[MeasuredClaim] = ()
) -> list[MeasuredEstimator]:
    """Returns the summary of each estimator that has cells, sorted by design.

    Args:
      cells: the measured cells of all estimators.
      claims: the claims that estimators were to refute; of some estimators, or none.
    """
    claim_by_estimator = {claim.estimator: claim for claim in claims}
    # The stars of all these cells together are wrong with a probability of 1% at most.
    tests = sum(cell.is_held_to_level for cell in cells)
    rows = []
    for estimator in sorted(ESTIMATORS.values(), key=lambda record: DESIGNS.index(record.design)):
        own = [cell for cell in cells if cell.estimator == estimator.name]
        if own:
            claim = claim_by_estimator.get(estimator.name)
            rows.append(_summarise_estimator(estimator, own, tests, claim))
    return rows


def _summarise_estimator(
    estimator: Estimator, cells: list[MeasuredCell], tests: int, claim: MeasuredClaim | None
) -> MeasuredEstimator:
    """Returns the summary of an estimator over its cells; `tests` counts all cells held to a level."""
    kept = [cell for cell in cells if not cell.broken]
    elsewhere = [cell for cell in cells if cell.broken]
    proven = [cell.mean / cell.truth for cell in kept if cell.truth > 0]
    tested = [cell for cell in kept if cell.is_held_to_level]
    audits = sum(cell.audits for cell in cells)
    return MeasuredEstimator(
        estimator=estimator,
        cells=len(cells),
        worst_share=max((cell.exceeding_share for cell in kept), default=None),
        over_level=sum(cell.exceeds_level(tests) for cell in tested),
        worst_share_elsewhere=max((cell.exceeding_share for cell in elsewhere), default=None),
        proven_share=_mean(proven),
        refused_share=sum(cell.refused for cell in cells) / audits,
        seconds=float(np.median([cell.seconds for cell in cells])),
        claim=claim,
    )


def _mean(values: list[float]) -> float | None:
    """Returns the mean of values; None if there are none."""
    if not values:
        return None
    return float(np.mean(values))


def make_summary_table(
    cells: Sequence[MeasuredCell], claims: Sequence[MeasuredClaim] = ()
) -> Table[MeasuredEstimator]:
    """Returns the table with a row for each estimator, for people and as CSV.

    Args:
      cells: the measured cells of all estimators.
      claims: the claims that estimators were to refute; of some estimators, or none.
    """
    show_share = "{:.0%}".format

    def show_runs(row: MeasuredEstimator) -> str:
        if row.claim is None:
            return ""
        return row.claim.show(len(claims))

    columns = (
        Column("estimator", attrgetter("estimator.name"), "estimator", width=40, left=True),
        Column("assumption", attrgetter("estimator.assumption")),
        Column("claims_level", attrgetter("estimator.claims_level")),
        Column("cells", attrgetter("cells")),
        Column("too_much", attrgetter("worst_share")),
        Column("cells_over_level", attrgetter("over_level")),
        Column(None, _show_worst_share, "too\nmuch", width=7),
        Column("elsewhere", attrgetter("worst_share_elsewhere"), "\nelse", show_share, 5),
        Column("proven", attrgetter("proven_share"), "\nproven", show_share, 6),
        Column("refused", attrgetter("refused_share"), "no\nvalue", show_share, 5),
        Column("seconds", attrgetter("seconds"), "\nms", _show_milliseconds, 4),
        Column("runs_until_refuted", show_runs, "\nrefutes", width=7),
    )
    max_audits = max(cell.audits for cell in cells)
    title = f"up to {max_audits:,} audits a cell, of {len(cells):,} cells; level {LEVEL:.0%}"
    return Table(
        columns,
        summarise_estimators(cells, claims),
        section=attrgetter("estimator.design"),
        before=(title,),
        after=_NOTES,
        gap=" ",
        rule=80,
    )


def _show_worst_share(row: MeasuredEstimator) -> str:
    """Formats the worst share of audits that claim too much: - without a level, * above it in some cell."""
    if row.worst_share is None:
        return ""
    mark = " "
    if row.over_level:
        mark = "*"
    if not row.estimator.claims_level:
        mark = "-"
    return f"{row.worst_share:.1%}{mark}"


def _show_milliseconds(seconds: float) -> str:
    """Formats seconds as whole milliseconds, or as "<1"."""
    if seconds < 1e-3:
        return "<1"
    return f"{1e3 * seconds:,.0f}"


def make_cell_table(cells: Sequence[MeasuredCell]) -> Table[MeasuredCell]:
    """Returns the table with a row for each cell, as CSV: a column for every field of `MeasuredCell`."""
    return Table([Column(name, attrgetter(name)) for name in MeasuredCell._fields], cells)
