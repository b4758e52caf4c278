"""Draws the hidden-state paper's figures of trained models.

A point without conclusions is not drawn, and its cells count as missing. At least one point must have a
conclusion.
"""

import math
import textwrap
from collections.abc import Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from audit.laws import conversions
from audit.methods import estimate
from audit.methods.estimate import IF_GAUSSIAN
from audit.report import audit_panels, style
from audit.report.style import BOUND, IN, OUT, PREDICTED, UPPER
from audit.report.table import at_least
from audit.written import counted, show_level
from experiments.cells.cell import Audited
from experiments.sweeps.panels import draw_panels
from experiments.sweeps.points import Point
from experiments.sweeps.sweep import Axis

_DOTS = (0, (1, 1))
_ACCOUNTING = "upper bound (accounting)"
# Positions on the horizontal axis: neighbouring points have the distance 1.
_MARK_DISTANCE = 0.18  # between two methods' marks of one point
_GROUP_GAP = 0.5  # additional distance between points with different x
_MAX_ACROSS = 8  # points in a row of panels; with more, each panel gets its own row
_MAX_DRAWN = 1e3  # infinite ends of intervals are drawn here
_MIN_DELTA = 1e-8  # the lower end of the axis of privacy profiles
_LETTERS_PER_INCH = 12  # in a figure's heading


def looks() -> dict[str, tuple[float, dict[str, Any]]]:
    """Returns how to draw the epsilons of each method, by the method's name and in order from left to right.

    The value is the horizontal distance of the method's mark from its point's middle, and matplotlib's
    arguments for the mark.
    """
    marks = [(name, method.mark) for name, method in estimate.METHODS.items() if method.mark]
    marks.sort(key=lambda named: named[1].place)
    by_method = {}
    for i, (name, mark) in enumerate(marks):
        look = {
            "color": style.PALETTE[mark.color],
            "marker": mark.marker,
            "ms": mark.size,
            "mec": mark.outline or None,  # the color of the marker's edge
            "elinewidth": 0.8,  # the width of the error bar
        }
        if not mark.filled:
            look["mfc"] = "white"  # the color of the marker's face
        by_method[name] = ((i - (len(marks) - 1) / 2) * _MARK_DISTANCE, look)
    return by_method


def epsilon_figure(title: str, x: Axis | None, points: Sequence[Point], delta: float) -> Figure:
    """Draws the epsilons of the points in all panels.

    Each point shows the mean of each method's epsilons with the range over its seeds, the upper bound, and
    the prediction, if any. Points with the same x are next to each other, one for each series.

    Args:
      title: The figure's title.
      x: The horizontal axis, or None if points have no x.
      points: The points of all panels.
      delta: The delta of all epsilons.
    """
    drawn = list(filter(attrgetter("conclusions"), points))
    by_panel: dict[str, list[Point]] = {}
    for point in drawn:
        by_panel.setdefault(point.panel, []).append(point)
    panels = {}
    for name, of_panel in by_panel.items():
        of_panel.sort(key=attrgetter("x"))
        panels[name] = partial(_draw_panel, points=of_panel, x=x, delta=delta)
    widest = max(map(len, by_panel.values()))
    across = len(panels) if widest * len(panels) <= _MAX_ACROSS else 1
    size = (max(0.9 * widest + 0.6, 5.8 / across), 2.9)  # inches
    heading = _make_heading(title, points, size[0] * across)
    label = f"epsilon at delta {show_level(delta)}"
    figure = draw_panels(heading, panels, size, across, label, sharey=True)
    # Intervals may be far higher than the marks, so the marks decide the limits of the shared axis.
    epsilons = [0.1]
    for point in drawn:
        epsilons += [point.upper_bound(), point.predicted(delta) or 0.0]
        for method in looks():
            epsilons.append(point.spread(method)[-1])
    highest = max(filter(math.isfinite, epsilons))
    figure.axes[0].set_ylim(-0.04 * highest, 1.2 * highest)
    return figure


def _draw_panel(axis: Axes, points: Sequence[Point], x: Axis | None, delta: float) -> None:
    """Draws the points of a panel, which are sorted by x, from left to right.

    Each point has its series below, and each group of points with the same x has its value of x above.
    `delta` is that of all epsilons.
    """
    positions: list[float] = []
    groups = [list(group) for _, group in groupby(points, attrgetter("x"))]
    begin = 0.0
    for group in groups:
        end = begin + len(group) - 1
        for i, point in enumerate(group):
            _draw_point(axis, begin + i, point, delta)
            positions.append(begin + i)
        if x and len(groups) > 1:
            axis.annotate(
                f"{x.symbol} = {group[0].x:g}",
                ((begin + end) / 2, 1.0),
                ha="center",
                va="bottom",
                xycoords=("data", "axes fraction"),
            )
        begin = end + 1 + _GROUP_GAP
        if group is not groups[-1]:
            axis.axvline((end + begin) / 2, color="0.85", lw=0.8)
    # Labels with more than 11 letters in a line would overlap.
    axis.set_xticks(positions, [_wrap(point.series, 11) for point in points], fontsize=8)
    axis.tick_params(axis="x", length=0)
    axis.set_xlim(-0.65, positions[-1] + 0.65)
    if x:
        axis.set_title(axis.get_title(), pad=18)  # leaves room for the values of x
        axis.set_xlabel(x.name)


def _draw_point(axis: Axes, at: float, point: Point, delta: float) -> None:
    """Draws a point at a position on the horizontal axis.

    It shows the prediction, the upper bound and each method's mean with the range over the seeds. With a
    single seed, it shows the two-sided interval for normal scores instead of ranges.
    """
    several_seeds = len(point.conclusions) > 1
    if not several_seeds:
        low, high = point.interval()
        end = min(high, _MAX_DRAWN)
        axis.vlines(at, low, end, color="0.75", lw=5, label="interval if scores are normal")
    predicted = point.predicted(delta)
    if predicted is not None:
        label = r"predicted: $\mu = \sqrt{n / k} / \sigma$, n insertions"
        ends = (at - 0.42, at + 0.42)
        axis.hlines(predicted, *ends, color=PREDICTED, lw=6, alpha=0.55, label=label)
    bar = (at - 0.45, at + 0.45)
    upper = [point.upper_bound()] * 2
    axis.plot(bar, upper, color=UPPER, ls=_DOTS, lw=1.6, label=_ACCOUNTING)
    for name, (offset, look) in looks().items():
        method = point.find_method(name)
        if method is None:
            continue
        mean, low, high = point.spread(name)
        errors = None
        if several_seeds:
            # Rounding could make an error negative, which matplotlib rejects.
            errors = np.maximum([[mean - low], [high - mean]], 0)
        look = {"capsize": 2.5, "ls": "none", "zorder": 3, **look}
        axis.errorbar([at + offset], [mean], errors, label=method.legend, **look)


def trade_off_figure(title: str, points: Sequence[Point]) -> Figure:
    """Draws the empirical trade-off curve of each point's first seed (hidden-state paper, Figure 6a).

    A point has a row of two panels. The first shows error rates, the second their normal deviates, on which
    Gaussian curves are straight lines. Both also show the curve's confidence band, and the Gaussian curves of
    the lower bound on mu, the predicted mu and the upper bound on mu, if known.
    """

    def draw_rates(axis: Axes, point: Point) -> None:
        rates = np.linspace(0, 1, 401)
        audit_panels.draw_trade_off(axis, point.conclusions[0], rates, point.predicted_mu())
        axis.set(xlim=(0, 1), ylim=(0, 1))
        axis.set_title(axis.get_title(), pad=16)

    def draw_deviates(axis: Axes, point: Point) -> None:
        audit_panels.draw_on_deviates(axis, point.conclusions[0], point.predicted_mu())
        axis.set_title("on normal deviates", pad=16)

    panels = {}
    for point in points:
        if point.conclusions:
            name = f"{point.panel}, {point.series}"
            panels[name] = partial(draw_rates, point=point)
            panels[f"{name}, on normal deviates"] = partial(draw_deviates, point=point)
    return draw_panels(_make_heading(title, points, 8), panels, size=(4, 3.4), across=2)


def profile_figure(title: str, points: Sequence[Point], delta: float) -> Figure:
    """Draws privacy profiles of the first four points: delta over epsilon (hidden-state paper, Figure 11).

    All profiles are those of Gaussian DP. Each point has the profile of its lower bound on mu, the mean of
    `if_gaussian` over the seeds, and that of its predicted mu, if any. The figure also has the profile of the
    largest upper bound on mu, and a horizontal line at the usual `delta`.
    """
    drawn = list(filter(attrgetter("conclusions"), points))
    # 0.05 replaces an unknown mu or 0, since the axis needs a range.
    largest_mu = max(point.conclusions[0].mu_upper_bound or 0.05 for point in drawn)
    epsilons = np.linspace(0, conversions.epsilon_from_mu(largest_mu, _MIN_DELTA), 400)

    def draw(axis: Axes) -> None:
        """Draws all profiles on one axis."""

        def plot(mu: float, label: str, **look: Any) -> None:
            axis.semilogy(epsilons, conversions.delta_from_mu(mu, epsilons), label=label, **look)

        plot(largest_mu, _ACCOUNTING, color=UPPER, ls=":")
        for point, color in zip(drawn, (OUT, IN, BOUND, PREDICTED), strict=False):
            mu = float(np.mean([bound.mu or 0.0 for bound in point.findings(IF_GAUSSIAN)]))
            plot(mu, f"{point.series}: if Gaussian, mu = {at_least(mu, 2)}", color=color, ls="--")
            predicted = point.predicted_mu()
            if predicted is not None:
                label = f"{point.series}: predicted, mu = {predicted:.2f}"
                plot(predicted, label, color=color, lw=5, alpha=0.3)  # thicker and paler
        axis.axhline(delta, color="0.7", lw=0.8, label=f"delta = {show_level(delta)}")
        axis.set(xlabel="epsilon", ylim=(_MIN_DELTA, 1.5), xlim=(0, epsilons[-1]))

    return draw_panels(_make_heading(title, points, 6), {"": draw}, (6, 3.6), ylabel="delta")


def _make_heading(title: str, points: Sequence[Point], inches: float) -> str:
    """Returns a figure's title, and a line with the numbers of seeds, runs and missing cells.

    `inches` is the width of the panels, which decides where lines break.
    """
    cells: list[Audited] = []
    missing = 0
    seeds = 0
    for point in points:
        cells += point.cells
        missing += len(point.cells) - len(point.conclusions)
        seeds = max(seeds, len(point.cells))
    most = max(map(attrgetter("runs"), cells))
    data = "one seed"
    if seeds > 1:
        data = f"mean and range of {seeds} seeds"
    data += f", up to {most:,} runs each"
    if missing:
        data += f"; {counted(missing, 'cell')} missing"
    letters = int(max(inches, 5.8) * _LETTERS_PER_INCH)
    return f"{_wrap(title, letters)}\n{_wrap(data, letters)}"


def _wrap(text: str, width: int) -> str:
    """Breaks a text into lines of at most `width` letters, between words only."""
    return "\n".join(textwrap.wrap(text, width, break_long_words=False))
