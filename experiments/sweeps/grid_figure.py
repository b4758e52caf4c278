"""Draws the heat map of a grid of audits, the epsilon that each of them proves."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from audit.methods.level import show_level
from audit.report import table
from audit.report.style import STYLE
from experiments.sweeps.grid import GridResult, combine, describe, show_value
from experiments.sweeps.panels import draw_heat_map

_MOST_PANELS_ACROSS = 4
_CELL_INCHES = 0.62  # the width of a cell, which has room for a number of five digits


def draw_grid(results: Sequence[GridResult], down: str, across: str) -> Figure:
    """Draws heat maps of the epsilon that each audit proves, over the values of two varied fields.

    Each combination of the other fields' values has a panel, of which up to 4 stand side by side.

    Args:
      results: the results of a grid's audits.
      down: the flag of the field whose values are rows.
      across: the flag of the field whose values are columns.
    """
    axes_of_grid = _list_values(results)
    # A panel fixes the values of all other varied fields.
    others = {name: axes_of_grid[name] for name in axes_of_grid if name not in (down, across)}
    panels = combine(others)
    panels_across = min(len(panels), _MOST_PANELS_ACROSS)
    panels_down = math.ceil(len(panels) / panels_across)
    most = max(result.conclusion.epsilon for result in results)
    delta = results[0].conclusion.delta

    # A panel's cells, with room for its labels; then all panels, with room for the scale of colours.
    width = _CELL_INCHES * len(axes_of_grid[across]) + 1.1
    height = 0.42 * len(axes_of_grid[down]) + 1.0
    figure_size = (max(width * panels_across + 0.9, 4.2), height * panels_down + 0.7)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            panels_down, panels_across, figsize=figure_size, squeeze=False, sharey=True
        )
        for axis in axes.flat[len(panels) :]:
            axis.set_axis_off()
        for axis, fixed in zip(axes.flat, panels, strict=False):
            chosen = [result for result in results if _has_values(result, fixed)]
            # 1e-3, since the colours need a scale even where nothing is proven.
            image = _draw_panel(axis, chosen, axes_of_grid, (down, across), max(most, 1e-3))
            axis.set(title=describe(fixed), xlabel=across)
        for axis in axes[:, 0]:
            axis.set_ylabel(down)
        # All panels have the same scale of colours: the last image's stands for all.
        figure.colorbar(image, ax=axes[:, -1], label="epsilon")
        figure.suptitle(
            f"epsilon proven at delta {show_level(delta)}\n{_describe_audits(results)}", fontsize=9
        )
    return figure


def _describe_audits(results: Sequence[GridResult]) -> str:
    """Returns what all audits of a grid share, for its title: "fcnn, gc_s, 100 runs".

    A model or an adversary that is varied is left out: the axes or the panels have it. Where numbers of runs
    differ, as adversaries have their own, the least and the largest are given.
    """
    models = {result.setting.model for result in results}
    adversaries = {result.setting.adversary.name for result in results}
    parts: list[str] = []
    for names in (models, adversaries):
        if len(names) == 1:
            parts += names
    runs = sorted({result.conclusion.count_runs() for result in results})
    numbers = f"{runs[0]:,}" if len(runs) == 1 else f"{runs[0]:,} to {runs[-1]:,}"
    return ", ".join([*parts, f"{numbers} runs"])


def _draw_panel(
    axis: Axes,
    results: Sequence[GridResult],
    axes_of_grid: Mapping[str, Sequence[Any]],
    fields: tuple[str, str],
    most: float,
) -> Any:
    """Draws a panel's heat map, and returns matplotlib's image, from which the scale of colours is drawn.

    Args:
      axis: where to draw.
      results: the results of the panel's audits.
      axes_of_grid: the values of each varied field, by its flag.
      fields: the flags of the field whose values are rows, and of that whose values are columns.
      most: the epsilon of the brightest colour.
    """
    rows, columns = (axes_of_grid[name] for name in fields)
    proven = np.full((len(rows), len(columns)), np.nan)
    for result in results:
        row, column = (result.values[name] for name in fields)
        proven[rows.index(row), columns.index(column)] = result.conclusion.epsilon
    row_labels = [show_value(value) for value in rows]
    column_labels = [show_value(value) for value in columns]
    rounded_down = partial(table.at_least, decimals=2)
    return draw_heat_map(axis, proven, row_labels, column_labels, most, rounded_down)


def _list_values(results: Sequence[GridResult]) -> dict[str, list[Any]]:
    """Returns the values of each varied field, by its flag, in the order of first occurrence."""
    names = list(results[0].values)
    return {name: list(dict.fromkeys(result.values[name] for result in results)) for name in names}


def _has_values(result: GridResult, fixed: Mapping[str, Any]) -> bool:
    """Returns whether an audit has the values `fixed`, {flag: value}, which all audits of a panel share."""
    return all(result.values[name] == value for name, value in fixed.items())
