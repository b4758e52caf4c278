"""The page of a check: its table and findings, the movements of single examples and the noise, drawn."""

import textwrap
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import scipy
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from audit.report import page, style
from audit.report.page import PageTable

_MOST_BARS = 24  # in a figure; the largest are drawn
_LONGEST_NAME = 60  # characters of the name beside a bar
_LEAST_SIZE = 1e-3  # length of the shortest bar: a logarithmic axis has no 0


def check_page(report: Mapping[str, Any], pictures: Mapping[str, Any]) -> bytes:
    """Returns the HTML page of a check of DP-SGD, in UTF-8.

    Args:
      report: the fields of a check's report, as its `to_dict` returns them.
      pictures: the measured numbers and arrays to draw, the report's `pictures`.
    """
    subject = report["subject"]
    if subject == "step":
        subject = "a step"
    title = f"Check of {subject} of DP-SGD"
    # Classes of the page's style: red for bugs, orange where checks could not be tried, grey for
    # passed.
    kind = "violated" if report["findings"] else "leaks"
    if report["passed"]:
        kind = "nothing"
    rows = [tuple(check.values()) for check in report["checks"]]  # cells in the order of the header
    content = page.macros.check(
        title,
        report,
        kind,
        PageTable("Checks", ("check", "result", "what was seen"), rows),
        _draw_figures(pictures),
        _make_p_value_table(report["p_values"], report["level"]),
        PageTable("Provenance", ("what", "value"), list(report["provenance"].items())),
    )
    return page.document(title, content)


def _make_p_value_table(p_values: Mapping[str, float], level: float) -> PageTable:
    """Returns the page's table of all statistical tests, the smallest p-value first.

    Args:
      p_values: the p-values by the tests' names.
      level: the level of all tests together, by Holm's procedure.
    """
    caption = f"All statistical tests together are at level {level:g} (Holm)."
    if any(name.startswith("noise") for name in p_values):
        caption += (
            " Tests of the noise of several batches use the same seeds, so that they agree where the noise "
            "does not depend on the batch."
        )
    ranked = sorted(p_values.items(), key=lambda item: item[1])
    rows = [(name, f"{p_value:.2g}") for name, p_value in ranked]
    return PageTable(caption, ("test", "p-value"), rows)


def _draw_figures(pictures: Mapping[str, Any]) -> list[Markup]:
    """Returns figures of what a check measured.

    Args:
      pictures: some or all of these. "movements": how far each example moves the step, by the example's name.
        "sample": draws of the noise, in units of its stated deviation. "layers", "batches": the noise's
        deviation divided by the stated deviation, by the name of the layer or batch. "size": how many times
        as large as stated the step is, 1 by default; all else is in units of its own size. "sizes":
        the sizes of batches. "expected": their expected size.
    """
    at_size = ""
    size = pictures.get("size", 1.0)
    if size != 1:
        at_size = f" The step is {size:.4g} times as large as stated; units here are those of its own size."
    figures = []
    if pictures.get("movements"):
        caption = (
            "How far an example moves the step, added or in place of a row, in units of eta C / B; at "
            f"most 1 is allowed.{at_size}"
        )
        figure = _draw_figure(
            lambda axes: _draw_movements(axes, pictures["movements"]),
            caption,
            height=5.2,
        )
        figures.append(figure)
    if len(pictures.get("sample", ())) > 1:  # a single draw makes no histogram
        caption = f"The noise of many seeds in stated deviations, beside the normal law.{at_size}"
        figures.append(_draw_figure(lambda axes: _draw_noise(axes, pictures["sample"]), caption))
    for key, noun in (("layers", "layer"), ("batches", "batch")):
        deviations = pictures.get(key)
        if deviations:
            caption = f"The noise's deviation by {noun}, over the stated one; 1 is right.{at_size}"
            draw = partial(_draw_deviations, deviations=deviations)
            figures.append(_draw_figure(draw, caption))
    if "sizes" in pictures:
        caption = "Sizes of the batches that were drawn; the line is the expected size."
        figures.append(_draw_figure(lambda axes: _draw_sizes(axes, pictures), caption))
    return figures


def _draw_figure(
    draw: Callable[[Axes], None],
    caption: str,
    height: float = 3.2,
) -> Markup:
    """Returns a figure of the page, with its caption.

    Args:
      draw: function that draws into the figure's axes.
      caption: text below the figure, which is also its alternative text.
      height: height of the figure in inches.
    """
    with plt.rc_context(style.STYLE):
        figure, axes = plt.subplots(figsize=(5.2, height))
        draw(axes)
        return page.figure(style.svg(figure), caption, caption)


def _draw_movements(axes: Axes, movements: Mapping[str, float]) -> None:
    """Draws how far each example moves the step, in units of eta C / B; bars above 1.02 are red.

    The unit is the learning rate times the clipping norm over the batch size, the largest allowed movement.
    Movements may exceed it by 2%, for rounding.
    """
    _draw_bars(axes, movements, is_right=lambda size: size <= 1.02)
    axes.set_xscale("log")
    # At least two decades: where all examples are clipped their movements differ by rounding alone, and an
    # axis that is fitted to them shows nothing else.
    left, right = axes.get_xlim()
    axes.set_xlim(min(left, 0.05), max(right, 5))
    axes.set_xlabel("eta C / B")


def _draw_deviations(axes: Axes, deviations: Mapping[str, float]) -> None:
    """Draws the noise's deviations over the stated deviation; bars not within 10% of 1 are red."""
    _draw_bars(axes, deviations, is_right=lambda size: abs(size - 1) < 0.1)
    axes.set_xscale("linear")
    axes.set_xlabel("stated deviations")


def _draw_bars(
    axes: Axes,
    values: Mapping[str, float],
    is_right: Callable[[float], bool],
) -> None:
    """Draws the 24 largest values as horizontal bars beside their names, and a line at 1.

    Args:
      axes: the axes to draw into.
      values: the values by name. Values that are not finite come first, red and as wide as the largest other.
      is_right: function that says whether a finite value is as it should be. Others are red.
    """
    sizes = {}  # the values, with infinity for all that are not finite
    for name, value in values.items():
        sizes[name] = value if np.isfinite(value) else np.inf
    widest = max([size for size in sizes.values() if np.isfinite(size)], default=1.0)
    largest = sorted(sizes, key=lambda name: -sizes[name])[:_MOST_BARS]

    labels = []
    widths = []
    colors = []
    for name in largest:
        size = sizes[name]
        label = textwrap.shorten(name, _LONGEST_NAME, placeholder=" ...")
        labels.append(label if np.isfinite(size) else f"{label} (not finite)")
        # A logarithmic axis shows neither infinity nor 0: widths end at the largest finite value, and begin
        # at a small one.
        widths.append(max(min(size, widest), _LEAST_SIZE))
        colors.append(style.OUT if is_right(size) else style.VERMILION)
    places = range(len(largest))
    axes.barh(places, widths, color=colors)
    axes.set_yticks(places, labels, fontsize=6.5)
    axes.invert_yaxis()
    axes.axvline(1, color=style.BLACK, lw=1)


def _draw_noise(axes: Axes, sample: Any) -> None:
    """Draws a histogram of the noise beside the normal density.

    The noise is in units of its stated standard deviation, clipped to [-5, 5].
    """
    edges = np.linspace(-5, 5, 61)
    clipped = np.clip(sample, -5, 5)
    axes.hist(clipped, list(edges), density=True, color=style.OUT)
    axes.plot(edges, scipy.stats.norm.pdf(edges), color=style.BLACK)
    axes.set_xlabel("stated deviations")
    axes.set_ylabel("density")


def _draw_sizes(axes: Axes, pictures: Mapping[str, Any]) -> None:
    """Draws a histogram of the batches' sizes, and a line at the expected size."""
    sizes = np.asarray(pictures["sizes"])
    width = -(-(np.ptp(sizes) + 1) // 30)  # whole sizes a bar, and at most 30 bars
    edges = np.arange(sizes.min() - 0.5, sizes.max() + width + 0.5, width)
    axes.hist(sizes, list(edges), color=style.OUT)
    axes.axvline(pictures["expected"], color=style.BLACK)
    # Room on both sides, for batches that all have the same size.
    left = min(sizes.min(), pictures["expected"])
    right = max(sizes.max(), pictures["expected"])
    axes.set_xlim(left - 3, right + 3)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("examples in a batch")
    axes.set_ylabel("batches")
