"""The comparison as a table and as a figure.

Both have a line for each value, next to the upper bound; in the figure bounds are filled, estimates hollow.
"""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from audit.report.style import BLACK, FADED, FREE, IN, OUT
from audit.report.table import Column, Table, at_least, at_most, number
from audit.written import counted, show_level
from experiments.compare.compared import ALL, FINAL, Compared
from experiments.compare.rows import ESTIMATE, REFUTED
from experiments.sweeps.panels import draw_panels
from experiments.sweeps.records import Record, field

_VIEWS = {FINAL: "sees the final model", ALL: "sees every iterate"}
_FREE = ("nothing", "fair coins", "fresh directions")  # what bounds for every curve assume
_NOTES = """\
estimator: bounds hold at confidence {confidence} for what they assume.
(no bound): an estimate or a measurement. s: seconds spent now; kept: none.
One mechanism, neighbours (a canary is added) and delta for all: {steps:,} steps of
DP-SGD, each of which takes the canary, sigma = {sigma:g}."""
_REFUTED = "REFUTED: these scores refute a Gaussian curve: such rows do not hold."


def make_table(compared: Compared, rows: Sequence[Record], upper: float) -> Table[Record]:
    """Returns the comparison's table: a row for each value, and the accountant's epsilon below the rows.

    Args:
      compared: The mechanism, delta and confidence.
      rows: The records of all methods, in order.
      upper: The accountant's epsilon at the delta of `compared`.
    """
    columns = [
        field("method", "method", width=20, left=True),
        field("value", "estimator", width=23, left=True),
        field("sees"),
        field("runs", "runs", number(","), 5),
        field("seconds", "s", number(".0f"), 4, none="kept"),
        Column(None, _show_epsilon, "epsilon", width=7),
        field("epsilon"),
        field("assumes", "assumes", left=True),
        Column("upper_bound", lambda row: upper),
    ]
    # A line in the form of a row; its blank fills the columns of runs and seconds.
    upper_bound = f"{'upper bound':<20} {'accounting':<23} {'':>10} {at_most(upper):>7}"
    confidence = show_level(compared.confidence)
    noise_multiplier = compared.noise_multiplier
    notes = _NOTES.format(confidence=confidence, steps=compared.steps, sigma=noise_multiplier)
    after = ["-" * 80, upper_bound, notes]
    if any(row["assumes"] == REFUTED for row in rows):
        after.append(_REFUTED)
    before = [f"epsilon at delta {show_level(compared.delta)}: {compared.model} on Fashion-MNIST"]
    return Table(
        columns, rows, lambda row: _VIEWS[row["sees"]], before=before, after=after, gap=" ", rule=80
    )


def _show_epsilon(row: Record) -> str:
    """Returns epsilon as text: an estimate to the nearest, a bound rounded down."""
    epsilon = row["epsilon"]
    return f"{epsilon:.3f}" if row["assumes"] == ESTIMATE else at_least(epsilon)


def draw(rows: Sequence[Record], upper: float, delta: float) -> Figure:
    """Draws each value as a dot, from top to bottom, and the accountant's epsilon as a line.

    The horizontal axis ends 5% beyond the largest epsilon, or beyond 1.6 times the accountant's if that is
    less. The few estimates far above the accountant's epsilon become arrows with their value.

    Args:
      rows: The records of all methods, in order.
      upper: The accountant's epsilon.
      delta: The delta of every epsilon, for the axis' label.
    """
    edge = 1.05 * min(1.6 * upper, max([upper, *(row["epsilon"] for row in rows)]))

    def draw_rows(axis: Axes) -> None:
        """Draws all values, and the upper bound."""
        names = []
        for place, row in enumerate(rows):
            color, label = _find_look(row)
            is_bound = row["assumes"] not in (ESTIMATE, REFUTED)
            marker = "o"
            if row["epsilon"] > edge:
                marker = ">"
                text = _show_epsilon(row)
                axis.text(0.98 * edge, place, text, ha="right", va="center", fontsize=8)
            look: dict[str, Any] = {"color": color, "clip_on": False, "label": label}
            look["mfc"] = color if is_bound else "white"
            axis.plot([min(row["epsilon"], edge)], [place], marker, **look)
            value = row["value"].replace("_", " ")
            names.append(f"{row['method']}: {value}, {counted(row['runs'], 'model')}")
        label = "upper bound (accounting)"
        axis.axvline(upper, color=BLACK, ls=(0, (1, 1)), lw=1.6, label=label)
        axis.set_yticks(range(len(rows)), names, fontsize=8)
        axis.set(xlim=(0, edge), xlabel=f"epsilon at delta {show_level(delta)}")
        axis.invert_yaxis()
        split = sum(row["sees"] == FINAL for row in rows) - 0.5
        label = "below: methods that see every iterate"
        axis.axhline(split, color="0.7", lw=0.8, label=label)

    title = "One mechanism: fresh directions, and the methods of four papers"
    return draw_panels(title, {"": draw_rows}, (7, 0.24 * len(rows)))


def _find_look(row: Record) -> tuple[str, str]:
    """Returns a value's color, and its label in the legend."""
    if row["assumes"] == REFUTED:
        return FADED, "refuted: the curve is not Gaussian"
    if row["assumes"] == ESTIMATE:
        return IN, "estimate, no bound"
    if row["assumes"] in _FREE:
        return FREE, "bound, whatever the curve"
    return OUT, "bound, if what it assumes holds"
