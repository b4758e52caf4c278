"""The figure of a grid of audits, in the size of a paper's column or page."""

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
      frame: the table of an `audit.Grid`.
      varied: the names of the varied settings. Seeds are averaged, unless only the seed varies.
      width: the figure's width, in inches.
    """
    names = [name for name in varied if name != SEED] or [SEED]
    x_name, *others = names
    x_values = list(dict.fromkeys(frame[x_name]))
    frame = frame.assign(place=frame[x_name].map(x_values.index))
    lines = [("", frame)]
    if others:
        lines = []
        for values, rows in frame.groupby(others, sort=False):
            pairs = zip(others, values, strict=True)
            lines.append((", ".join(f"{name} = {value}" for name, value in pairs), rows))

    with plt.rc_context({**STYLE, "font.size": 8}):
        figure, axis = plt.subplots(figsize=(width, min(0.75 * width, _MAX_HEIGHT)))
        for place, (label, rows) in enumerate(lines):
            color, marker = _LOOKS[place % len(_LOOKS)]
            _draw_line(axis, rows, color, marker, label)
        axis.set_xticks(range(len(x_values)), list(map(str, x_values)))
        axis.set(xlabel=x_name.replace("_", " "), ylim=(0, None))
        axis.set_ylabel(f"epsilon at delta {show_level(frame['delta'].iloc[0])}")
        axis.legend(fontsize=7)
    return figure


def _draw_line(axis: Axes, rows: pd.DataFrame, color: str, marker: str, label: str) -> None:
    """Draws the mean of proven epsilons with bars from the smallest to the largest, and upper bounds."""
    proven = rows.groupby("place")["epsilon"].agg(["mean", "min", "max"])
    bars = np.array([proven["mean"] - proven["min"], proven["max"] - proven["mean"]])
    axis.errorbar(
        proven.index,
        proven["mean"],
        bars,
        color=color,
        marker=marker,
        ms=4,
        capsize=2,
        label=f"proven {label}".strip(),
    )
    upper = rows[["upper_bound", "hidden_state_bound"]].astype(float).min(axis=1)
    upper = upper.groupby(rows["place"]).max()
    if upper.notna().any():
        axis.plot(upper.index, upper, ":", color=color, label=f"at most {label}".strip())
