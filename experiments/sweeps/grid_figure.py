"""The heat map of a grid of audits: the epsilon that each of them proves."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from audit.report import table
from audit.report.style import STYLE
from experiments.sweeps.grid import GridResult, combine, describe, show_value
from experiments.sweeps.panels import draw_heat_map

_MOST_PANELS = 12
_CELL_INCHES = 0.62  # the width of a cell, whose number has five digits


def draw_grid(results: Sequence[GridResult], down: str, across: str) -> Figure:
    """Draws the epsilon that each audit proves over two varied fields, a panel for each value of the others.

    Args:
      results: the audits of a grid, at most 12 panels of them.
      down: the field, by its flag, whose values are rows.
      across: the field whose values are columns.
    """
    axes_of_grid = _list_values(results)
    others = {name: axes_of_grid[name] for name in axes_of_grid if name not in (down, across)}
    panels = combine(others)[:_MOST_PANELS]
    most = max(result.conclusion.epsilon for result in results)
    delta = results[0].conclusion.delta

    width = _CELL_INCHES * len(axes_of_grid[across]) + 1.1
    height = 0.42 * len(axes_of_grid[down]) + 1.0
    figure_size = (max(width * len(panels) + 0.9, 4.2), height + 0.5)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, len(panels), figsize=figure_size, squeeze=False, sharey=True)
        for axis, fixed in zip(axes[0], panels, strict=True):
            chosen = [result for result in results if _has_values(result, fixed)]
            # Where nothing is proven, colours still need a scale.
            image = _draw_panel(axis, chosen, axes_of_grid, (down, across), max(most, 1e-3))
            axis.set(title=describe(fixed), xlabel=across)
        axes[0, 0].set_ylabel(down)
        figure.colorbar(image, ax=axes[0, -1], label="epsilon")
        figure.suptitle(f"epsilon proven at delta {delta:g}", fontsize=10)
    return figure


def _draw_panel(
    axis: Axes,
    results: Sequence[GridResult],
    axes_of_grid: Mapping[str, Sequence[Any]],
    fields: tuple[str, str],
    most: float,
) -> Any:
    """Draws the audits of a panel; returns matplotlib's image, for the colours' scale."""
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
    """Returns the values of each varied field, in the order in which they were given."""
    names = list(results[0].values)
    return {name: list(dict.fromkeys(result.values[name] for result in results)) for name in names}


def _has_values(result: GridResult, fixed: Mapping[str, Any]) -> bool:
    """Returns whether an audit is of a panel, which has these values of the fields outside of it."""
    return all(result.values[name] == value for name, value in fixed.items())
