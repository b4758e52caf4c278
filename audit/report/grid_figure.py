"""The figure of a grid of audits, as wide as a paper's column or page."""

import itertools
from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from audit.report.style import BLACK, BLUE, GREEN, ORANGE, PURPLE, STYLE, VERMILION
from audit.written import show_level

SEED = "seed"
_LOOKS = ((BLUE, "o"), (VERMILION, "s"), (GREEN, "^"), (ORANGE, "D"), (PURPLE, "v"), (BLACK, "x"))
_MAX_HEIGHT = 3.0  # inches


def draw_grid(frame: pd.DataFrame, varied: Sequence[str], width: float) -> Figure:
    """Draws the proven epsilon over the first varied setting, with a line for each value of the others.

    Args:
      frame: The table of an `audit.Grid`.
      varied: The names of the varied settings. A point is the mean over seeds, unless only the seed varies.
      width: The figure's width, in inches.
    """
    names = [name for name in varied if name != SEED] or [SEED]
    x_name, *others = names
    x_values = list(dict.fromkeys(frame[x_name]))
    frame = frame.assign(place=frame[x_name].map(x_values.index))  # on the x axis
    lines = {"": frame}
    if others:
        lines = {}
        for values, rows in frame.groupby(others, sort=False):
            pairs = zip(others, values, strict=True)
            lines[", ".join(f"{name} = {value}" for name, value in pairs)] = rows

    with plt.rc_context({**STYLE, "font.size": 8}):
        figure, axis = plt.subplots(figsize=(width, min(0.75 * width, _MAX_HEIGHT)))
        looks = itertools.cycle(_LOOKS)
        for (label, rows), (color, marker) in zip(lines.items(), looks, strict=False):
            _draw_line(axis, rows, color, marker, label)
        axis.set_xticks(range(len(x_values)), list(map(str, x_values)))
        axis.set(xlabel=x_name.replace("_", " "), ylim=(0, None))
        axis.set_ylabel(f"epsilon at delta {show_level(frame['delta'].iloc[0])}")
        axis.legend(fontsize=7)
    return figure


def _draw_line(axis: Axes, rows: pd.DataFrame, color: str, marker: str, label: str) -> None:
    """Draws a line of proven epsilons and a dotted line of upper bounds over the column "place".

    A point is the mean of the rows at a place. Its bar reaches from the smallest to the largest epsilon.
    """
    proven = rows.groupby("place")["epsilon"].agg(["mean", "min", "max"])
    mean = proven["mean"]
    bars = np.array([mean - proven["min"], proven["max"] - mean])
    look = {"marker": marker, "ms": 4, "capsize": 2, "color": color}
    axis.errorbar(proven.index, mean, bars, label=f"proven {label}".strip(), **look)
    upper = rows[["upper_bound", "hidden_state_bound"]].astype(float).min(axis=1)
    upper = upper.groupby(rows["place"]).max()
    if upper.notna().any():
        axis.plot(upper.index, upper, ":", color=color, label=f"at most {label}".strip())
