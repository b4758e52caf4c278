"""Draws the benchmark's figure."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from audit.report.style import BLUE, GREEN, VERMILION
from experiments.benchmark.contract import OURS, PAPER, PEER
from experiments.benchmark.tables import LEVEL
from experiments.sweeps.panels import draw_dot, draw_panels
from experiments.sweeps.records import Record

# The color and the label of each kind of estimator.
_LOOKS = {OURS: (BLUE, "this project"), PEER: (VERMILION, "package"), PAPER: (GREEN, "paper")}
_MAX_RATIO = 1.3  # larger ratios of epsilon to the true epsilon are drawn as arrows at this edge


def draw_figure(estimators: Sequence[Record]) -> Figure:
    """Draws each estimator's fraction of wrong audits, and its mean epsilon over the true epsilon.

    `estimators` are the rows of the summary table. The first panel has a square-root scale, which spreads
    small fractions. Filled points mark estimators that claim a confidence level.
    """
    names = [row["estimator"] for row in estimators]

    def draw_dots(axis: Axes, name: str, edge: float) -> None:
        """Draws a field of all rows, with values beyond the edge as arrows and lines between designs."""
        for place, row in enumerate(estimators):
            if row["too_much"] is not None:
                color, label = _LOOKS[row["kind"]]
                draw_dot(axis, place, row[name] or 0.0, edge, color, row["claims_level"], label)
            if place and row["design"] != estimators[place - 1]["design"]:
                axis.axhline(place - 0.5, color="0.6", lw=0.8)
        axis.set_xlim(0, edge)
        axis.set_ylim(len(names) - 0.5, -0.5)
        axis.set_yticks(range(len(names)), names, fontsize=8)

    def draw_wrong(axis: Axes) -> None:
        """Draws the worst fractions of audits above the truth, with a line at the allowed level."""
        roots = (lambda fraction: np.sqrt(np.maximum(fraction, 0)), np.square)
        axis.set_xscale("function", functions=roots)
        draw_dots(axis, "too_much", 1.0)
        axis.plot([], [], "o", color="0.4", mfc="white", label="without a confidence level")
        axis.axvline(LEVEL, color="0.3", lw=1, ls=(0, (4, 2)))
        axis.set_xticks([0, 0.01, 0.05, 0.2, 0.5, 1], ["0", "1%", "5%", "20%", "50%", "100%"])
        axis.set_xlabel("audits above the true epsilon, in the worst cell")

    def draw_proven(axis: Axes) -> None:
        """Draws the mean epsilons over the true epsilon."""
        draw_dots(axis, "proven", _MAX_RATIO)
        axis.set_xlabel("mean epsilon over the true epsilon")

    panels = {"": draw_wrong, " ": draw_proven}
    return draw_panels("", panels, (4.5, 7.7), legend_columns=4, sharey=True)
