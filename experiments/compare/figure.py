"""The comparison as a figure: a line a value, bounds filled, estimates hollow, beside the upper bound."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from audit.report import rounding
from audit.report.style import BLACK, FREE, IN, OUT, STYLE
from audit.words import counted
from experiments.compare.methods import ComparedRow

_LOOKS = {"nothing": FREE, "fair coins": FREE, "uniform canaries": FREE}  # other bounds assume more


def comparison_figure(rows: Sequence[ComparedRow], upper: float, delta: float) -> Figure:
    """Values from top to bottom in the order of the table."""
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(7, 0.24 * len(rows) + 1.3))
        shown = min(1.6 * upper, max([upper, *(row.epsilon for row in rows)])) * 1.05
        for place, row in enumerate(rows):
            color = _LOOKS.get(row.assumes, OUT) if row.is_bound else IN
            inside = row.epsilon <= shown
            marker = "o" if inside else ">"
            filled = color if row.is_bound else "white"
            axis.plot(min(row.epsilon, shown), place, marker, color=color, mfc=filled, clip_on=False)
            if not inside:
                beyond = rounding.at_least(row.epsilon, 1) if row.is_bound else f"{row.epsilon:.1f}"
                axis.text(0.98 * shown, place, beyond, ha="right", va="center", fontsize=8)
        for color, filled, label in (
            (FREE, FREE, "bound, whatever the curve"),
            (OUT, OUT, "bound, if what it assumes holds"),
            (IN, "white", "estimate, no bound"),
        ):
            axis.plot([], [], "o", color=color, mfc=filled, label=label)
        axis.axvline(upper, color=BLACK, ls=(0, (1, 1)), lw=1.6, label="upper bound (accounting)")
        names = [f"{row.method}: {row.value.replace('_', ' ')}, {counted(row.runs, 'model')}" for row in rows]
        axis.set(yticks=range(len(rows)), xlim=(0, shown), xlabel=f"epsilon at delta {delta:g}")
        axis.set_yticklabels(names, fontsize=8)
        axis.invert_yaxis()
        _part(axis, rows)
        figure.suptitle("One mechanism, audited by the methods of four papers", fontsize=10)
        figure.legend(loc="outside lower center", ncols=2, fontsize=8)
        return figure


def _part(axis: Axes, rows: Sequence[ComparedRow]) -> None:
    """A line between those who see the final model and those who see more."""
    look: dict[str, Any] = {
        "transform": axis.get_yaxis_transform(),
        "ha": "right",
        "fontsize": 8,
        "color": "0.35",
    }
    for place, (above, below) in enumerate(pairwise(rows), 1):
        if above.sees != below.sees:
            axis.axhline(place - 0.5, color="0.7", lw=0.8)
            axis.text(0.99, place - 0.6, f"sees the {above.sees}", va="bottom", **look)
            axis.text(0.99, place - 0.4, f"sees {below.sees}", va="top", **look)
