"""Figures with panels, a title above and a common legend below, and heat maps."""

from collections.abc import Callable, Iterable, Mapping, Sequence
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
from experiments.sweeps.records import Records

_DARK = 0.55  # the share of a heat map's range with dark cells and white numbers


def draw_panels(
    title: str,
    panels: Mapping[str, Callable[[Axes], object]],
    size: tuple[float, float] = (3.1, 2.9),
    across: int = 3,
    ylabel: str = "",
    legend_columns: int = 2,
    **options: Any,
) -> Figure:
    """Draws a figure with panels, row by row, with a title above and a common legend below.

    `panels` has the function that draws each panel on an axis, by the panel's title. At most `across` of
    them, of `size` inches, are in a row with the label `ylabel`. `options` are arguments of
    `Figure.subplots`.
    """
    columns = min(len(panels), across)
    rows = -(-len(panels) // columns)  # rounded up
    # In inches: titles need a width of 5.8, title and legend a height of 1.3.
    figsize = (max(size[0] * columns, 5.8), size[1] * rows + 1.3)
    with plt.rc_context(STYLE):
        figure = plt.figure(figsize=figsize)
        axes = figure.subplots(rows, columns, squeeze=False, **options)
        for axis in axes[:, 0]:
            axis.set_ylabel(ylabel)
        for axis, (name, draw) in zip(axes.flat, panels.items(), strict=False):
            axis.set_title(name, fontsize=10)
            draw(axis)
        for axis in axes.flat[len(panels) :]:  # empty places of the last row
            axis.axis("off")
        figure.suptitle(title, fontsize=11)
        _add_legend(figure, axes.flat, legend_columns)
    return figure


def _add_legend(figure: Figure, axes: Iterable[Axes], columns: int) -> None:
    """Adds a legend below the panels, with each label once; in one column if it is too wide."""
    legend: dict[str, Artist] = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        legend |= dict(zip(labels, handles, strict=True))
    if not legend:
        return
    add = partial(
        figure.legend,
        list(legend.values()),
        list(legend),
        loc="outside lower center",
        fontsize=8,
    )
    drawn = add(ncols=columns)
    if drawn.get_window_extent().width > figure.bbox.width:
        drawn.remove()
        add(ncols=1)


def plot_lines(
    axis: Axes, records: Any, looks: Mapping[str, tuple[str, str, str]], **options: Any
) -> None:
    """Plots fields of records over `x`, with their standard errors (`_error`) if known.

    `records` may also have an array for each field. `looks` has the label, the color, and matplotlib's format
    of marker and line, by field; fields that no record has are left out. `options` are arguments of
    `Axes.set`.
    """
    frame = pd.DataFrame(records).dropna(axis="columns", how="all")
    for name, (label, color, line) in looks.items():
        if name in frame:
            axis.errorbar(
                "x",
                name,
                frame.get(f"{name}_error"),
                data=frame,
                fmt=line,
                color=color,
                ms=4,
                label=label,
            )
    axis.set(**options)
    if "xticks" in options:
        axis.minorticks_off()


def draw_dot(
    axis: Axes,
    place: int,
    value: float,
    edge: float,
    color: str,
    is_filled: bool,
    label: str,
) -> None:
    """Draws a value at a place of the vertical axis: a dot, or an arrow at the edge if it is larger."""
    marker = "o" if value <= edge else ">"
    face = color if is_filled else "white"
    axis.plot(min(value, edge), place, marker, color=color, mfc=face, clip_on=False, label=label)


def take(records: Records, name: str) -> NDArray[np.float64]:
    """Returns a field of each record; NaN for records without it."""
    return np.array([record.get(name) for record in records], np.float64)


def draw_heat_map(
    axis: Axes,
    values: NDArray[np.float64],
    row_labels: Sequence[str],
    column_labels: Sequence[str],
    most: float,
    show: Callable[[float], str] = "{:.2f}".format,
) -> None:
    """Draws a heat map of values (rows, columns), at least 0, with a number in each cell ("-" for NaN).

    `most` is the value of the brightest color; the darkest is 0. `show` formats a cell's value.
    """
    axis.imshow(
        values,
        vmin=0,
        vmax=most,
        cmap="cividis",
        aspect="auto",
    )
    for (row, column), value in np.ndenumerate(values):
        color = "white" if value < _DARK * most else "black"
        text = "-" if np.isnan(value) else show(value)
        axis.text(
            column,
            row,
            text,
            ha="center",
            va="center",
            color=color,
            fontsize=8,
        )
    axis.set_xticks(range(len(column_labels)), column_labels)
    axis.set_yticks(range(len(row_labels)), row_labels)
    axis.spines[:].set_visible(False)
