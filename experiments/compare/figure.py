"""The comparison as a figure: a line a value, bounds filled, estimates hollow, beside the upper bound."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from experiments.compare.methods import ComparedRow
from experiments.plots.style import BLACK, FREE, IN, OUT, STYLE

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
        for color, filled, label in (
            (FREE, FREE, "bound, whatever the curve"),
            (OUT, OUT, "bound, if what it assumes holds"),
            (IN, "white", "estimate, no bound"),
        ):
            axis.plot([], [], "o", color=color, mfc=filled, label=label)
        axis.axvline(upper, color=BLACK, ls=(0, (1, 1)), lw=1.6, label="upper bound (accounting)")
        names = [f"{row.method}: {row.value.replace('_', ' ')}" for row in rows]
        axis.set(yticks=range(len(rows)), xlim=(0, shown), xlabel=f"epsilon at delta {delta:g}")
        axis.set_yticklabels(names, fontsize=8)
        axis.invert_yaxis()
        figure.legend(loc="outside lower center", ncols=2, fontsize=8)
        return figure
