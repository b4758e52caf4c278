"""The page of a check: its table and findings, the movements of single examples and the noise, drawn."""

import textwrap
from collections.abc import Mapping
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes

from audit.report import page, style

_MAX_BARS = 24  # in a figure; the largest are drawn
_MAX_NAME = 60  # characters of the name beside a bar
_MIN_WIDTH = 1e-3  # of a bar: a logarithmic axis has no 0


class _Bars(NamedTuple):
    """A figure with a bar for each of a check's numbers; bars outside of the limits are red.

    Attributes:
      key: the name of the numbers among the check's pictures.
      caption: the text below the figure.
      unit: the axis' name.
      least, most: the limits of right numbers.
      height: the figure's height in inches.
      scale: the axis' scale.
    """

    key: str
    caption: str
    unit: str
    least: float
    most: float
    height: float = 3.2
    scale: str = "linear"


# A movement's unit, the learning rate times the clipping norm over the batch size, is the largest allowed
# movement. Movements may exceed it by 2%, for rounding.
_MOVEMENTS = _Bars(
    key="movements",
    caption=(
        "How far an example moves the step, added or in place of a row, in units of eta C / B; at most 1 is "
        "allowed."
    ),
    unit="eta C / B",
    least=0,
    most=1.02,
    height=5.2,
    scale="log",
)
_LAYERS = _Bars(
    key="layers",
    caption="The noise's deviation by layer, over the stated one; 1 is right.",
    unit="stated deviations",
    least=0.9,
    most=1.1,
)
_BATCHES = _LAYERS._replace(
    key="batches", caption="The noise's deviation by batch, over the stated one; 1 is right."
)


def check_page(report: Mapping[str, Any], pictures: Mapping[str, Any]) -> bytes:
    """Returns the HTML page of a check of DP-SGD, in UTF-8.

    Args:
      report: the fields of a check's report, as its `to_dict` returns them.
      pictures: the measured numbers and arrays to draw, the report's `pictures`. "movements": how far each
        example moves the step, by the example's name. "sample": draws of the noise, in units of its stated
        deviation. "layers", "batches": the noise's deviation divided by the stated deviation, by the name of
        the layer or batch. "size": how many times as large as stated the step is, 1 by default; all else is
        in units of its own size.
    """
    subject = "a step"
    if report["subject"] != "step":
        subject = report["subject"]
    title = f"Check of {subject} of DP-SGD"
    return page.document(title, page.macros.check(title, report, _draw_figures(pictures)))


def _draw_figures(pictures: Mapping[str, Any]) -> list[Markup]:
    """Returns figures of what a check measured."""
    at_size = ""
    size = pictures.get("size", 1.0)
    if size != 1:
        at_size = f" The step is {size:.4g} times as large as stated; units here are those of its own size."
    figures = []
    with plt.rc_context(style.STYLE):
        for bars in (_MOVEMENTS, _LAYERS, _BATCHES):
            if pictures.get(bars.key):
                figure, axes = plt.subplots(figsize=(5.2, bars.height))
                _draw_bars(axes, bars, pictures[bars.key])
                figures.append(page.figure(style.svg(figure), bars.caption + at_size))
        if len(pictures.get("sample", ())) > 1:  # a single draw makes no histogram
            figure, axes = plt.subplots(figsize=(5.2, 3.2))
            _draw_noise(axes, pictures["sample"])
            caption = "The noise of many seeds in stated deviations, beside the normal law."
            figures.append(page.figure(style.svg(figure), caption + at_size))
    return figures


def _draw_bars(axes: Axes, bars: _Bars, values: Mapping[str, float]) -> None:
    """Draws the 24 largest values as horizontal bars beside their names, and a line at 1.

    Values that are not finite come first, red and as wide as the largest other.
    """
    sizes = {name: value if np.isfinite(value) else np.inf for name, value in values.items()}
    widest = max([size for size in sizes.values() if np.isfinite(size)], default=1.0)
    largest = sorted(sizes, key=lambda name: -sizes[name])[:_MAX_BARS]
    labels = []
    for place, name in enumerate(largest):
        size = sizes[name]
        is_right = bars.least <= size <= bars.most
        color = style.VERMILION
        if is_right:
            color = style.OUT
        axes.barh(place, np.clip(size, _MIN_WIDTH, max(widest, _MIN_WIDTH)), color=color)
        label = textwrap.shorten(name, _MAX_NAME, placeholder=" ...")
        labels.append(label if np.isfinite(size) else f"{label} (not finite)")
    axes.set_yticks(range(len(labels)), labels, fontsize=6.5)
    axes.invert_yaxis()
    axes.axvline(1, color=style.BLACK, lw=1)
    axes.set(xlabel=bars.unit, xscale=bars.scale)
    if bars.scale == "log":
        # At least two decades: where all examples are clipped their movements differ by rounding alone.
        left, right = axes.get_xlim()
        axes.set_xlim(min(left, 0.05), max(right, 5))


def _draw_noise(axes: Axes, sample: Any) -> None:
    """Draws a histogram of the noise in stated deviations, clipped to [-5, 5], beside the normal density."""
    edges = np.linspace(-5, 5, 61)
    axes.hist(np.clip(sample, -5, 5), list(edges), density=True, color=style.OUT)
    axes.plot(edges, np.exp(-(edges**2) / 2) / np.sqrt(2 * np.pi), color=style.BLACK)
    axes.set(xlabel="stated deviations", ylabel="density")
