"""The benchmark's measurements as tables: a row for each estimator, and a row for each cell."""

import itertools
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from audit.report.table import Column, Table, number
from experiments.benchmark.cells import MeasuredCell
from experiments.benchmark.contract import CONFIDENCE, DESIGNS
from experiments.benchmark.false_claims import CLAIMED_MU, NOISE, MeasuredClaim
from experiments.benchmark.registry import ESTIMATORS

LEVEL = 1 - CONFIDENCE
_NOTES = (
    "too much: the share of audits that claim more than the truth, in the worst cell",
    "whose mechanism keeps what the estimator assumes; * in some such cell an exact",
    f"test at 1% finds it above {LEVEL:.0%}; - it says no level. else: the share in the worst",
    "other cell, for which nobody is blamed. proven: the mean share of the truth.",
    "no value: audits that gave none, which count as 0. refutes: training runs",
    f"after which half of the audits refute a claim of mu {CLAIMED_MU:.2f}, the noise {NOISE}",
    f"of what is stated; * as many refute a claim that holds, in over {LEVEL:.0%} of audits.",
)


class MeasuredEstimator(NamedTuple):
    """An estimator over all its cells.

    Attributes:
      estimator: Its name.
      design: One of `contract.DESIGNS`.
      claims_level: Whether it claims that its bound holds at the confidence.
      cells: How many there are.
      worst_share: The largest share of audits above the truth in a cell whose mechanism keeps what the
        estimator assumes; None where there is no such cell.
      over_level: Those of these cells in which it exceeds its level.
      worst_share_elsewhere: As `worst_share`, of the other cells.
      proven_share: The mean share of the truth where its assumptions hold; None where all truths are 0.
      refused_share: The share of audits that gave no value.
      seconds: Of a processor, the median audit of the median cell.
      claim: After how many training runs it refutes a claim; None where that is not measured.
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
    """Returns a row for each estimator, by design and in the order of the records."""
    order = list(ESTIMATORS)
    claim_by_estimator = {claim.estimator: claim for claim in claims}

    def rank(cell: MeasuredCell) -> tuple[int, int]:
        return DESIGNS.index(cell.design), order.index(cell.estimator)

    rows = []
    ranked = sorted(cells, key=rank)
    for name, group in itertools.groupby(ranked, attrgetter("estimator")):
        row = _summarise_estimator(list(group))
        rows.append(row._replace(claim=claim_by_estimator.get(name)))
    return rows


def _summarise_estimator(cells: list[MeasuredCell]) -> MeasuredEstimator:
    """Returns the row of an estimator's cells."""
    shares = []
    shares_elsewhere = []
    proven_shares = []
    over_level = []
    for cell in cells:
        if cell.broken:
            shares_elsewhere.append(cell.exceeding_share)
            continue
        shares.append(cell.exceeding_share)
        if cell.proven_share is not None:
            proven_shares.append(cell.proven_share)
        if cell.is_held_to_level and cell.exceeds_level:
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
    """Returns the table of a row for each estimator, for people and for files."""
    show_share = "{:.0%}".format
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
        Column(None, attrgetter("claim"), "\nrefutes", str, 7),
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
    """Returns the columns, in files alone, of the claim that each estimator is to refute."""
    names = {
        "runs_until_refuted": "runs",
        "most_runs": "most_runs",
        "claim_audits": "audits",
        "false_refutations": "false_refutations",
    }

    def read(field: str) -> Callable[[MeasuredEstimator], Any]:
        return lambda row: None if row.claim is None else getattr(row.claim, field)

    return [Column(key, read(field)) for key, field in names.items()]


def _show_worst_share(row: MeasuredEstimator) -> str | None:
    """Returns the worst share with a mark: - where no level is claimed, * where the level is exceeded."""
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
    """Returns seconds as whole milliseconds."""
    if seconds < 1e-3:
        return "<1"
    return f"{1e3 * seconds:,.0f}"


def make_cell_table(cells: Sequence[MeasuredCell]) -> Table[MeasuredCell]:
    """Returns the table with a row for each cell: all of it for CSV and JSON, what matters for people."""
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
    # Its text is the same in CSV and for people.
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
    """Returns a column that people see and that is in no file."""
    return Column(None, value, head, show, left=left)
