"""Draws figures with several panels."""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from audit.report.style import STYLE
from experiments.sweeps.records import Records, select


def draw_panels(
    title: str,
    panels: Mapping[str, Callable[[Axes], object]],
    size: tuple[float, float],
    across: int = 3,
    ylabel: str = "",
    legend_columns: int = 2,
    **options: Any,
) -> Figure:
    """Draws a figure with rows of panels, a title above them and a common legend below.

    Args:
      panels: {a panel's title: a function that draws the panel on the given axis}.
      size: The width and height of a panel in inches.
      across: The largest number of panels in a row.
      ylabel: The label of each row's vertical axis.
      **options: Keyword arguments for `Figure.subplots`, such as sharey=True.
    """
    columns = min(len(panels), across)
    rows = math.ceil(len(panels) / columns)
    width, height = size
    # The title needs 5.8 inches of width. The title and the legend together need 1.3 inches of height.
    figsize = (max(width * columns, 5.8), height * rows + 1.3)
    with plt.rc_context(STYLE):
        figure = plt.figure(figsize=figsize)
        axes = figure.subplots(rows, columns, squeeze=False, **options)
        for axis in axes[:, 0]:
            axis.set_ylabel(ylabel)
        for axis, (name, draw) in zip(axes.flat, panels.items(), strict=False):
            axis.set_title(name, fontsize=10)
            draw(axis)
        for axis in axes.flat[len(panels) :]:  # the last row may have more axes than panels
            axis.axis("off")
        figure.suptitle(title, fontsize=11, wrap=True)
        _add_legend(figure, axes.flat, legend_columns)
    return figure


def draw_panels_of(
    records: Records,
    title: str,
    draw: Callable[..., object],
    *args: Any,
    **options: Any,
) -> Figure:
    """Draws a figure with a panel for each value of the records' `panel` field.

    `draw(axis, records=...)` draws a panel's records. `args` and `options` are the other arguments of
    `draw_panels`.
    """
    panels = {}
    for record in records:
        panel = record["panel"]
        panels[panel] = partial(draw, records=select(records, panel=panel))
    return draw_panels(title, panels, *args, **options)


def _add_legend(figure: Figure, axes: Iterable[Axes], columns: int) -> None:
    """Adds a legend below the panels that lists each label once, in one column if more do not fit."""
    artists: dict[str, Artist] = {}  # keyed by label
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        artists |= dict(zip(labels, handles, strict=True))
    if not artists:
        return
    add = partial(figure.legend, artists.values(), artists, loc="outside lower center", fontsize=8)
    drawn = add(ncols=columns)
    if drawn.get_window_extent().width > figure.bbox.width:
        drawn.remove()
        add(ncols=1)


def plot_lines(
    axis: Axes, records: Any, looks: Mapping[str, tuple[str, str, str]], **options: Any
) -> None:
    """Plots several fields of records against their `x` field.

    A field `name` has error bars if the records also have a field `name_error`, its standard error.

    Args:
      records: The records, or a mapping from each field to its values.
      looks: Maps each field to its label, its color and its Matplotlib format string, such as "o--". Fields
        without values are skipped.
      **options: Keyword arguments for `Axes.set`.
    """
    frame = pd.DataFrame(records).dropna(axis="columns", how="all")
    for name, (label, color, line) in looks.items():
        if name in frame:
            error = frame.get(f"{name}_error")
            axis.errorbar(frame["x"], frame[name], error, fmt=line, color=color, ms=4, label=label)
    axis.set(**options)
    if "xticks" in options:
        axis.minorticks_off()
        axis.xaxis.set_major_formatter("{x:g}")  # not as powers of 10


def draw_dot(
    axis: Axes, place: int, value: float, edge: float, color: str, is_filled: bool, label: str
) -> None:
    """Draws a value as a dot, or as an arrow at `edge` if it is larger.

    `place` is the position on the vertical axis, and `edge` is the end of the horizontal axis.
    """
    marker = "o" if value <= edge else ">"
    face = color if is_filled else "white"
    axis.plot(min(value, edge), place, marker, color=color, mfc=face, clip_on=False, label=label)


def take(records: Records, name: str) -> NDArray[np.float64]:
    """Returns a field's values in n records, of shape (n,), with NaN for records without the field."""
    return np.array([record.get(name) for record in records], np.float64)
