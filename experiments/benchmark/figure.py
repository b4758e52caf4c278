"""Draws the benchmark's figure."""

from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from audit.report.style import BLUE, GREEN, VERMILION
from experiments.benchmark.contract import OURS, PAPER, PEER
from experiments.benchmark.tables import LEVEL
from experiments.sweeps.panels import draw_dot, draw_panels
from experiments.sweeps.records import Records

# The color and the label of each kind of estimator.
_LOOKS = {OURS: (BLUE, "this project"), PEER: (VERMILION, "package"), PAPER: (GREEN, "paper")}
_MAX_RATIO = 1.3  # the edge of the axis, with arrows for larger ratios to the true epsilon


def draw_figure(estimators: Records) -> Figure:
    """Plots how often each estimator exceeds the true epsilon, and its mean epsilon over the true epsilon.

    `estimators` are the summary table's rows, with this ratio as `proven`. Filled dots mark estimators that
    claim a confidence level.
    """
    panels = {  # keyed by title; these blank titles must differ
        "": partial(_draw_wrong_audits, estimators=estimators),
        " ": partial(_draw_dots, estimators=estimators, name="proven", edge=_MAX_RATIO),
    }
    figure = draw_panels("", panels, (4.5, 7.7), legend_columns=4, sharey=True)
    figure.axes[1].set_xlabel("mean epsilon over the true epsilon")
    return figure


def _draw_wrong_audits(axis: Axes, estimators: Records) -> None:
    """Draws `too_much`: how often each estimator exceeds the true epsilon in its worst cell.

    A cell is a mechanism and an audit size that meet the estimator's assumptions. A line marks the allowed
    fraction. The square-root scale spreads out small fractions.
    """
    scale_and_inverse = (lambda fraction: np.sqrt(np.maximum(fraction, 0)), np.square)
    axis.set_xscale("function", functions=scale_and_inverse)
    _draw_dots(axis, estimators, name="too_much", edge=1.0)  # 100%
    # Explain the white dots in the legend.
    axis.plot([], [], "o", color="0.4", mfc="white", label="without a confidence level")
    axis.axvline(LEVEL, color="0.3", lw=1, ls=(0, (4, 2)))
    axis.set_xticks([0, 0.01, 0.05, 0.2, 0.5, 1], ["0", "1%", "5%", "20%", "50%", "100%"])
    axis.set_xlabel("audits above the true epsilon, in the worst cell")


def _draw_dots(axis: Axes, estimators: Records, name: str, edge: float) -> None:
    """Draws the field `name` of each row as a dot, from top to bottom, and separates designs with lines.

    An arrow at `edge`, the end of the horizontal axis, marks a larger value. A dot is filled if the estimator
    claims a confidence level, and missing if no cell meets its assumptions (`too_much` is None).
    """
    for place, row in enumerate(estimators):
        if row["too_much"] is not None:
            color, label = _LOOKS[row["kind"]]
            value = row[name] or 0.0  # `proven` is None if every true epsilon is 0
            is_filled = row["claims_level"]
            draw_dot(axis, place, value, edge, color, is_filled, label)
        if place and row["design"] != estimators[place - 1]["design"]:
            axis.axhline(place - 0.5, color="0.6", lw=0.8)
    names = [row["estimator"] for row in estimators]
    axis.set_xlim(0, edge)
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.set_yticks(range(len(names)), names, fontsize=8)
