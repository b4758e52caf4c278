"""What figures with several panels have in common: the panels' grid, and a legend for all of them."""

from collections.abc import Callable, Iterable, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from numpy.typing import NDArray

from audit.report.style import STYLE

_MOST_ACROSS = 3  # panels side by side
_DARK = 0.55  # of a heat map's range: cells below are dark, and their numbers white


def epsilon_panels(
    title: str,
    names: Sequence[str],
    draw_panel: Callable[[Axes, str], object],
    delta: float,
    height: float,
    share_y: bool = False,
) -> Figure:
    """Draws a grid of panels whose vertical axis is epsilon.

    Args:
      title: The figure's title.
      names: The panels' names.
      draw_panel: Draws into an axis the panel of a name.
      delta: The delta of epsilon.
      height: The height of a row of panels, in inches.
      share_y: Whether all panels share the vertical axis.
    """
    columns = min(len(names), _MOST_ACROSS)
    rows = -(-len(names) // columns)
    size = (max(3.1 * columns, 5.8), height * rows + 1.3)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, sharey=share_y)
        for axis, name in zip(axes.flat, names, strict=False):
            draw_panel(axis, name)
            axis.set_title(name)
        for axis in axes.flat[len(names) :]:
            axis.axis("off")
        for axis in axes[:, 0]:
            axis.set_ylabel(f"epsilon at delta {delta:g}")
        figure.suptitle(title, fontsize=11)
        add_legend(figure, axes.flat, 2)
        return figure


def add_legend(figure: Figure, axes: Iterable[Axes], columns: int, size: int = 8) -> None:
    """Adds a legend of all axes' labels, each once, below the panels; `size` is in points."""
    legend: dict[str, Artist] = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        legend |= dict(zip(labels, handles, strict=True))
    handles = list(legend.values())
    figure.legend(handles, list(legend), loc="outside lower center", ncols=columns, fontsize=size)


def draw_heat_map(
    axis: Axes,
    values: NDArray[np.float64],
    row_labels: Sequence[str],
    column_labels: Sequence[str],
    most: float,
    show: Callable[[float], str] = "{:.2f}".format,
) -> AxesImage:
    """Draws values from 0 as coloured cells, each with its number in it.

    Args:
      axis: Where to draw.
      values: (rows, columns); NaN is a cell without a value, "-".
      row_labels: At the left, from the top.
      column_labels: Below.
      most: The value of the brightest colour.
      show: Returns the number that is shown in a cell.
    """
    image = axis.imshow(values, vmin=0, vmax=most, cmap="cividis", aspect="auto")
    for (row, column), value in np.ndenumerate(values):
        is_missing = bool(np.isnan(value))
        text = "-" if is_missing else show(float(value))
        color = "white" if is_missing or value < _DARK * most else "black"
        axis.text(column, row, text, ha="center", va="center", color=color, fontsize=8)
    axis.set_xticks(range(len(column_labels)), column_labels)
    axis.set_yticks(range(len(row_labels)), row_labels)
    axis.spines[:].set_visible(False)
    return image
