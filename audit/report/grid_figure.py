"""Plots a grid of audits as a figure for a paper."""

import itertools
from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from audit.report.style import BLACK, BLUE, GREEN, ORANGE, PURPLE, STYLE, VERMILION
from audit.written import at_most, show_level

_LOOKS = ((BLUE, "o"), (VERMILION, "s"), (GREEN, "^"), (ORANGE, "D"), (PURPLE, "v"), (BLACK, "x"))
_MAX_HEIGHT = 3.0  # inches


def draw_grid(frame: pd.DataFrame, varied: Sequence[str], width: float) -> Figure:
    """Plots the proven epsilon against the first varied setting, with a line for each value of the others.

    Args:
      frame: The table of an `audit.Grid`.
      varied: The names of the varied settings. Each point is a mean over seeds, unless only the seed varies.
      width: The width of the figure in inches.
    """
    x_name = "seed"
    others = [name for name in varied if name != "seed"]
    if others:
        x_name = others.pop(0)
    # As text, values become evenly spaced categories on the x axis, in order of first occurrence.
    frame = frame.assign(x=frame[x_name].map(str))
    # Delta is the same in all rows. If no other setting varies, the rows form a single group.
    groups = frame.groupby(["delta", *others], sort=False)
    looks = itertools.cycle(_LOOKS)
    with plt.rc_context({**STYLE, "font.size": 8}):
        figure, axis = plt.subplots(figsize=(width, min(0.75 * width, _MAX_HEIGHT)))
        for (_, *values), rows in groups:
            pairs = zip(others, values, strict=True)
            label = ", ".join(f"{name} = {value}" for name, value in pairs)
            color, marker = next(looks)
            _draw_line(axis, rows, label, color, marker)
        axis.set(xlabel=x_name.replace("_", " "), ylim=(0, None))
        axis.set_ylabel(f"epsilon at delta {show_level(frame['delta'].iloc[0])}")
        axis.legend(fontsize=7)
    return figure


def _draw_line(axis: Axes, rows: pd.DataFrame, label: str, color: str, marker: str) -> None:
    """Plots proven epsilons as a line, and upper bounds as a dotted line, against the column "x" of `rows`.

    A point is the mean over rows with the same x, and its bar extends from the smallest to the largest value.
    The dotted line shows the largest upper bound at each x. If all upper bounds exceed three times the
    largest proven epsilon, they appear only in the legend, because they would flatten the bars.
    """
    proven = rows.groupby("x", sort=False)["epsilon"].agg(["mean", "min", "max"])
    mean = proven["mean"]
    bars = np.array([mean - proven["min"], proven["max"] - mean])  # below and above the mean
    what = "proven"
    if np.any(bars):
        what = "proven (mean and range over seeds)"
    # Not clipped, because the axis would cut points at 0 in half.
    axis.errorbar(
        proven.index,
        mean,
        bars,
        color=color,
        marker=marker,
        ms=4,
        capsize=2,
        clip_on=False,
        label=f"{what} {label}".strip(),
    )

    tightest = rows[["upper_bound", "hidden_state_bound"]].astype(float).min(axis=1)
    upper = tightest.groupby(rows["x"], sort=False).max()
    if upper.min() > 3 * proven["max"].max():
        axis.plot([], ":", color=color, label=f"at most {at_most(upper.max())} {label}".strip())
    elif upper.notna().any():
        axis.plot(upper.index, upper, ":", color=color, label=f"at most {label}".strip())
