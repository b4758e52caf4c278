"""The benchmark's measurements as tables: a row for each estimator, and a row for each cell."""

import itertools
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from audit.report.table import Column, Table, number
from experiments.benchmark.cells import MeasuredCell
from experiments.benchmark.contract import CONFIDENCE, DESIGNS, TEST_LEVEL
from experiments.benchmark.false_claims import CLAIMED_MU, NOISE, MeasuredClaim
from experiments.benchmark.registry import ESTIMATORS

LEVEL = 1 - CONFIDENCE
_NOTES = (
    "too much: the share of audits that claim more than the truth, in the worst cell",
    "whose mechanism keeps what the estimator assumes; * in some such cell an exact",
    f"test finds it above {LEVEL:.0%}, at {TEST_LEVEL:.0%} for all tested cells together (Bonferroni);",
    "- it says no level. else: the share in the worst other cell, for which nobody",
    "is blamed. proven: the mean share of the truth.",
    "no value: audits that gave none, which count as 0. refutes: training runs",
    f"after which half of the audits refute a claim of mu {CLAIMED_MU:.2f}, the noise {NOISE}",
    f"of what is stated; * as many refute a claim that holds, in over {LEVEL:.0%} of audits,",
    f"by such a test at {TEST_LEVEL:.0%} for all estimators together.",
)


class MeasuredEstimator(NamedTuple):
    """The summary of an estimator over all its cells.

    Attributes:
      estimator: The estimator's name.
      design: The design of its audits, one of `contract.DESIGNS`.
      claims_level: Whether it claims that its bound holds at the confidence.
      cells: The number of its cells.
      worst_share: The largest share of audits above the truth in a cell where its assumptions hold; None
        where there is no such cell.
      over_level: Those cells, where its assumptions hold, in which it exceeds the level that it claims.
      worst_share_elsewhere: The largest share of audits above the truth in a cell where an assumption is
        broken; None where there is no such cell.
      proven_share: The mean over cells, where its assumptions hold, of the mean epsilon over the true
        epsilon; None where there is no such cell, or all truths are 0.
      refused_share: The share of audits for which it gave no value.
      seconds: The processor time of the median audit in the median cell.
      claim: How many training runs it needs to refute a false claim; None where that is not measured.
    """

    estimator: str
    design: str
    claims_level: bool
    cells: int
    worst_share: float | None
    over_level: tuple[MeasuredCell, ...]
    worst_share_elsewhere: float | None
    proven_share: float | None
    refused_share: float
    seconds: float
    claim: MeasuredClaim | None = None

    @property
    def kind(self) -> str:
        """Returns the estimator's kind: OURS, PEER or PAPER."""
        return ESTIMATORS[self.estimator].kind


def summarise_estimators(
    cells: Sequence[MeasuredCell], claims: Sequence[MeasuredClaim] = ()
) -> list[MeasuredEstimator]:
    """Returns the summary of each estimator, sorted by design, then in the order of the estimators' records.

    Args:
      cells: The measured cells of all estimators.
      claims: The claims that estimators refuted; of some estimators, or none.
    """
    order = list(ESTIMATORS)
    claim_by_estimator = {claim.estimator: claim for claim in claims}
    # The stars of all these cells together are wrong with a probability of 1% at most.
    tests = sum(cell.is_held_to_level for cell in cells)

    def rank(cell: MeasuredCell) -> tuple[int, int]:
        """Returns the key by which cells are sorted: the places of design and estimator."""
        return DESIGNS.index(cell.design), order.index(cell.estimator)

    rows = []
    ranked = sorted(cells, key=rank)  # `groupby` needs an estimator's cells side by side
    for name, group in itertools.groupby(ranked, attrgetter("estimator")):
        row = _summarise_estimator(list(group), tests)
        rows.append(row._replace(claim=claim_by_estimator.get(name)))
    return rows


def _summarise_estimator(cells: list[MeasuredCell], tests: int) -> MeasuredEstimator:
    """Returns the summary of an estimator over its cells.

    Args:
      cells: The estimator's cells, at least one.
      tests: The number of cells of all estimators that are held to a level.
    """
    shares = []
    shares_elsewhere = []
    proven_shares = []
    over_level = []
    for cell in cells:
        if cell.broken:  # the estimator is not to blame where its assumptions do not hold
            shares_elsewhere.append(cell.exceeding_share)
            continue
        shares.append(cell.exceeding_share)
        if cell.proven_share is not None:
            proven_shares.append(cell.proven_share)
        if cell.is_held_to_level and cell.exceeds_level(tests):
            over_level.append(cell)

    proven_share = None
    if proven_shares:
        proven_share = float(np.mean(proven_shares))
    refused = sum(cell.refused for cell in cells)
    audits = sum(cell.audits for cell in cells)
    return MeasuredEstimator(
        estimator=cells[0].estimator,
        design=cells[0].design,
        claims_level=cells[0].level,
        cells=len(cells),
        worst_share=max(shares, default=None),
        over_level=tuple(over_level),
        worst_share_elsewhere=max(shares_elsewhere, default=None),
        proven_share=proven_share,
        refused_share=refused / audits,
        seconds=float(np.median([cell.seconds for cell in cells])),
    )


def make_summary_table(
    cells: Sequence[MeasuredCell], claims: Sequence[MeasuredClaim] = ()
) -> Table[MeasuredEstimator]:
    """Returns the table with a row for each estimator, for people and for files.

    A column has a key (its name in files), a value, a heading, a format and a width. Columns without a key
    are for people alone, columns without a heading for files alone. Files have the plain numbers.

    `too_much` is the worst share of audits above the truth over cells where the estimator's assumptions hold.
    `elsewhere` ("else") is the worst share over all other cells.

    Args:
      cells: The measured cells of all estimators.
      claims: The claims that estimators refuted; of some estimators, or none.
    """
    show_share = "{:.0%}".format

    def show_claim(claim: MeasuredClaim) -> str:
        """Returns a claim's number of runs as text; its mark is tested together with those of all claims."""
        return claim.show(len(claims))

    columns = (
        Column("estimator", attrgetter("estimator"), "estimator", width=40, left=True),
        Column("design", attrgetter("design")),
        Column("level", attrgetter("claims_level")),
        Column("cells", attrgetter("cells")),
        Column("too_much", attrgetter("worst_share")),
        Column("cells_over_level", lambda row: len(row.over_level)),
        Column(None, _show_worst_share, "too\nmuch", width=7),
        Column("elsewhere", attrgetter("worst_share_elsewhere"), "\nelse", show_share, 5),
        Column("proven", attrgetter("proven_share"), "\nproven", show_share, 6),
        Column("refused", attrgetter("refused_share"), "no\nvalue", show_share, 5),
        Column("seconds", attrgetter("seconds"), "\nms", _show_milliseconds, 4),
        Column(None, attrgetter("claim"), "\nrefutes", show_claim, 7),
        *_make_claim_columns(),
    )
    most_audits = max((cell.audits for cell in cells), default=0)
    title = f"up to {most_audits:,} audits a cell, of {len(cells):,} cells; level {LEVEL:.0%}"
    return Table(
        columns,
        summarise_estimators(cells, claims),
        section=attrgetter("design"),
        before=(title,),
        after=_NOTES,
        gap=" ",
        rule=80,
    )


def _make_claim_columns() -> list[Column]:
    """Returns the columns about the false claim that estimators are to refute; they are in files alone."""
    # The column's name in files: the field of `MeasuredClaim` that it shows.
    names = {
        "runs_until_refuted": "runs",
        "most_runs": "most_runs",
        "claim_audits": "audits",
        "false_refutations": "false_refutations",
    }

    def read(field: str) -> Callable[[MeasuredEstimator], Any]:
        """Returns a function that reads a field of a row's claim; None where the row has no claim."""
        return lambda row: None if row.claim is None else getattr(row.claim, field)

    return [Column(key, read(field)) for key, field in names.items()]


def _show_worst_share(row: MeasuredEstimator) -> str | None:
    """Formats the worst share of audits that claim too much, with a mark; None where there is no share.

    The mark is - where the estimator claims no level, and * where it exceeds its level in some cell.
    """
    if row.worst_share is None:
        return None
    if not row.claims_level:
        mark = "-"
    elif row.over_level:
        mark = "*"
    else:
        mark = " "
    return f"{row.worst_share:.1%}{mark}"


def _show_milliseconds(seconds: float) -> str:
    """Formats seconds as whole milliseconds, or as "<1"."""
    if seconds < 1e-3:
        return "<1"
    return f"{1e3 * seconds:,.0f}"


def make_cell_table(cells: Sequence[MeasuredCell]) -> Table[MeasuredCell]:
    """Returns the table with a row for each cell.

    Its CSV and JSON have a column for every field of `MeasuredCell`. People see fewer columns, with rounded
    numbers.
    """
    stored_columns = []
    for name in MeasuredCell._fields:
        if name != "broken":
            stored_columns.append(Column(name, attrgetter(name)))

    shown_columns = (
        _make_shown_column("estimator", attrgetter("estimator"), left=True),
        _make_shown_column("mechanism", attrgetter("mechanism"), left=True),
        _make_shown_column("n", attrgetter("n"), number(",")),
        _make_shown_column("audits", attrgetter("audits"), number(",")),
        _make_shown_column("truth", attrgetter("truth"), number(".2f")),
        _make_shown_column("mean epsilon", attrgetter("mean"), number(".2f")),
        _make_shown_column("above the truth", attrgetter("exceeding_share"), "{:.1%}".format),
        _make_shown_column("95% limits", lambda cell: f"{cell.low:.1%} to {cell.high:.1%}"),
        _make_shown_column("by", attrgetter("beyond"), number(".2f")),
        _make_shown_column("spread over orders", attrgetter("spread"), number(".2f")),
        _make_shown_column("ms", lambda cell: 1e3 * cell.seconds, number(".1f")),
        _make_shown_column("refused", lambda cell: cell.refused or None, number("d")),
    )
    # This column is both in files and for people, with the same text.
    broken_column = Column(
        "broken", lambda cell: "; ".join(cell.broken), "outside of its assumptions", left=True
    )
    return Table((*stored_columns, *shown_columns, broken_column), cells)


def _make_shown_column(
    head: str,
    value: Callable[[MeasuredCell], Any],
    show: Callable[[Any], str] = str,
    left: bool = False,
) -> Column:
    """Returns a column for people alone, which no file has.

    Args:
      head: The column's heading.
      value: (cell) -> its value in the column.
      show: (value) -> the text that people see.
      left: Whether the text is aligned to the left.
    """
    return Column(None, value, head, show, left=left)
