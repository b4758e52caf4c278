"""The comparison as a table and as a figure.

Both have a line for each value, beside the upper bound; in the figure bounds are filled, estimates hollow.
"""

from collections.abc import Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from audit.methods.level import show_level
from audit.report.style import BLACK, FADED, FREE, IN, OUT, STYLE
from audit.report.table import Column, Table, at_least, at_most, number
from audit.runtime.progress import counted
from experiments.compare.compared import FINAL, Compared
from experiments.compare.rows import ESTIMATE, REFUTED, ComparedRow

# Colours of the bounds that hold for every trade-off curve, by the word for their assumption. Other bounds
# assume something of the curve.
_COLOURS = {"nothing": FREE, "fair coins": FREE, "fresh directions": FREE}
_KEY = (  # the legend: (colour of the edge, colour of the fill, label)
    (FREE, FREE, "bound, whatever the curve"),
    (OUT, OUT, "bound, if what it assumes holds"),
    (IN, "white", "estimate, no bound"),
)
_REFUTED_KEY = (FADED, "white", "refuted: the curve is not Gaussian")
_NOTES = """\
estimator: bounds hold at confidence {confidence} for what they assume.
(no bound): an estimate or a measurement. s: seconds spent now; kept: none.
One mechanism, neighbours (a canary is added) and delta for all: {steps:,} steps of
DP-SGD, each of which takes the canary, sigma = {sigma:g}."""
_REFUTED = "REFUTED: these scores refute a Gaussian curve: such rows do not hold."


def comparison_table(
    compared: Compared, rows: Sequence[ComparedRow], upper: float
) -> Table[ComparedRow]:
    """Returns the comparison's table: a row for each value, and the accountant's epsilon below the rows.

    Args:
      compared: The mechanism, delta and confidence.
      rows: The rows of all methods, in order.
      upper: The accountant's epsilon at the delta of `compared`.
    """
    # A column without a key is left out of the CSV; a column without a head, out of the text.
    columns = [
        Column("method", attrgetter("method"), "method", width=20, left=True),
        Column("value", attrgetter("value"), "estimator", width=23, left=True),
        Column("sees", attrgetter("sees")),
        Column("runs", attrgetter("runs"), "runs", number(","), 5),
        Column("seconds", attrgetter("seconds"), "s", number(".0f"), 4, none="kept"),
        Column(None, _format_epsilon, "epsilon", width=7),
        Column("epsilon", attrgetter("epsilon")),
        Column("assumes", attrgetter("assumes"), "assumes", left=True),
        Column("upper_bound", lambda row: upper),
    ]
    # A line in the form of a row; its blank fills the columns of runs and seconds.
    upper_bound = f"{'upper bound':<20} {'accounting':<23} {'':>10} {at_most(upper):>7}"
    notes = _NOTES.format(
        confidence=show_level(compared.confidence),
        steps=compared.steps,
        sigma=compared.noise_multiplier,
    )
    after = ["-" * 80, upper_bound, notes]
    if _any_refuted(rows):
        after.append(_REFUTED)
    return Table(
        columns,
        rows,
        section=_describe_view,
        before=(
            f"epsilon at delta {show_level(compared.delta)}: {compared.model} on Fashion-MNIST",
        ),
        after=after,
        gap=" ",
        rule=80,
    )


def _format_epsilon(row: ComparedRow) -> str:
    """Formats epsilon: an estimate to the nearest, a bound rounded down so that it stays one."""
    if row.assumes == ESTIMATE:
        return f"{row.epsilon:.3f}"
    return at_least(row.epsilon)


def _describe_view(row: ComparedRow) -> str:
    """Returns the heading of the rows whose methods see the same of the training as this row's."""
    if row.sees == FINAL:
        return f"sees the {row.sees}"
    return f"sees {row.sees}"


def _any_refuted(rows: Sequence[ComparedRow]) -> bool:
    """Returns whether the scores refute the assumption of some row's bound."""
    return any(row.assumes == REFUTED for row in rows)


def comparison_figure(rows: Sequence[ComparedRow], upper: float, delta: float) -> Figure:
    """Draws each row's epsilon as a dot, from top to bottom, and the accountant's epsilon as a line.

    The horizontal axis ends 5% beyond the largest epsilon, or beyond 1.6 times the accountant's if that is
    less. So a few estimates far above the accountant's epsilon, which become arrows, do not press all other
    dots together.

    Args:
      rows: The rows of all methods, in order.
      upper: The accountant's epsilon.
      delta: The delta of every epsilon, for the axis' label.
    """
    highest = max([upper, *(row.epsilon for row in rows)])
    edge = min(1.6 * upper, highest) * 1.05
    with plt.rc_context(STYLE):
        height = 0.24 * len(rows) + 1.3  # inches: the rows, and what is above and below them
        figure, axis = plt.subplots(figsize=(7, height))
        for place, row in enumerate(rows):
            _draw_value(axis, place, row, edge)
        key = list(_KEY)
        if _any_refuted(rows):
            key.append(_REFUTED_KEY)
        for color, filled, label in key:
            axis.plot([], [], "o", color=color, mfc=filled, label=label)  # for the legend alone
        axis.axvline(upper, color=BLACK, ls=(0, (1, 1)), lw=1.6, label="upper bound (accounting)")

        names = []
        for row in rows:
            names.append(
                f"{row.method}: {row.value.replace('_', ' ')}, {counted(row.runs, 'model')}"
            )
        axis.set(
            yticks=range(len(rows)), xlim=(0, edge), xlabel=f"epsilon at delta {show_level(delta)}"
        )
        axis.set_yticklabels(names, fontsize=8)
        axis.invert_yaxis()
        # Rows of the same view follow each other; a line is drawn where the view changes.
        for place, (above, below) in enumerate(pairwise(rows), 1):
            if above.sees != below.sees:
                _draw_border(axis, place, above, below)
        figure.suptitle(
            "One mechanism: fresh directions, and the methods of four papers", fontsize=10
        )
        figure.legend(loc="outside lower center", ncols=2, fontsize=8)
        return figure


def _draw_value(axis: Axes, place: int, row: ComparedRow, edge: float) -> None:
    """Draws a row's epsilon as a dot, filled for a bound and hollow for an estimate or a refuted bound.

    The colour of a bound says whether it assumes something of the trade-off curve. An epsilon beyond `edge`
    becomes an arrow there, with its value as text.

    Args:
      axis: The axes, with epsilon to the right and rows downwards.
      place: The row's number, from 0 at the top.
      row: The row to draw.
      edge: The largest epsilon on the axis.
    """
    if row.assumes == REFUTED:
        color = FADED
    elif row.is_bound:
        # `_COLOURS` has a colour for each assumption that leaves the trade-off curve open. Bounds with any
        # other assumption hold only for some curves.
        color = _COLOURS.get(row.assumes, OUT)
    else:
        color = IN  # an estimate; IN and OUT are two colours of the palette
    filled = color if row.is_bound else "white"
    if row.epsilon <= edge:
        axis.plot(row.epsilon, place, "o", color=color, mfc=filled, clip_on=False)
        return
    axis.plot(edge, place, ">", color=color, mfc=filled, clip_on=False)
    value = f"{row.epsilon:.1f}"
    if row.is_bound:
        value = at_least(row.epsilon, 1)  # rounded down, so that it remains a bound
    axis.text(0.98 * edge, place, value, ha="right", va="center", fontsize=8)


def _draw_border(axis: Axes, place: int, above: ComparedRow, below: ComparedRow) -> None:
    """Draws a line between the rows `place` - 1 and `place`, and says what the methods on each side see.

    Args:
      axis: The axes, with rows downwards.
      place: The number of the row below the line, from 0 at the top.
      above: The row above the line.
      below: The row below the line.
    """
    look: dict[str, Any] = {
        "ha": "right",
        "fontsize": 8,
        "color": "0.35",
        # Texts are at y in rows, but at x as a share of the width of the axes.
        "transform": axis.get_yaxis_transform(),
    }
    # Rows point downwards: a smaller place is higher up, and the line is halfway between both rows.
    axis.axhline(place - 0.5, color="0.7", lw=0.8)
    axis.text(0.99, place - 0.6, _describe_view(above), va="bottom", **look)
    axis.text(0.99, place - 0.4, _describe_view(below), va="top", **look)
