"""The hidden-state paper's figures of trained models, from the points that the store holds.

Points without conclusions are not drawn, but counted as missing; at least one point must have some.
"""

import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from audit.progress import counted
from audit.report import curves, style
from audit.report.style import BOUND, IN, OUT, PREDICTED, STYLE, UPPER
from audit.report.table import at_least
from audit.statistics import conversions, estimate, lifted
from audit.statistics.estimate import IF_GAUSSIAN
from experiments.sweeps.points import Point
from experiments.sweeps.sweep import Axis

_INTERVAL = "0.75"  # a grey
_DASHES: tuple[Any, ...] = ("--", "-.", (0, (7, 1)), (0, (3, 1, 1, 1, 1, 1)), (0, (1, 3)), "-")
_DOTS = (0, (1, 1))
_ACCOUNTING = "upper bound (accounting)"
_LABEL_DELTA = 1e-7  # delta at which a profile carries its label
_BOX = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
_MARK_DISTANCE = 0.18  # between two marks of a place
_MARKS_WIDTH = 0.9  # of all marks of a place, at most
_GROUP_GAP = 0.5  # between the groups of two x
_MOST_ACROSS = 8  # places side by side before panels are stacked


class MarkLook(NamedTuple):
    """How a method's epsilons look, and how far from their place's middle they are drawn."""

    offset: float
    look: dict[str, Any]


def looks() -> dict[str, MarkLook]:
    """Returns the looks of the methods that have a mark, from left to right."""
    marks = {name: method.mark for name, method in estimate.METHODS.items() if method.mark}
    middle = (len(marks) - 1) / 2
    distance = min(_MARK_DISTANCE, _MARKS_WIDTH / len(marks))
    by_method = {}
    for i, (name, mark) in enumerate(sorted(marks.items(), key=lambda item: item[1].place)):
        look: dict[str, Any] = {"color": style.PALETTE[mark.color], "marker": mark.marker, "ms": mark.size}
        if not mark.filled:
            look["mfc"] = "white"
        if mark.outline:
            look["mec"] = mark.outline
        look["elinewidth"] = mark.line
        by_method[name] = MarkLook((i - middle) * distance, look)
    return by_method


class Place(NamedTuple):
    """A point, and where it is on its panel's x axis."""

    at: float
    point: Point


def epsilon_figure(title: str, x: Axis | None, points: Sequence[Point], delta: float) -> Figure:
    """Draws a panel for each `panel` of the points.

    At each x the series are side by side: every estimator's bounds with their range over the seeds, the upper
    bound, and the prediction where there is one.
    """
    drawn = [point for point in points if point.found]
    panels = {}
    for name in _distinct_values(drawn, "panel"):
        panels[name] = _place_points([point for point in drawn if point.panel == name])
    across = max(len(places) for places in panels.values())
    if len(panels) * across > _MOST_ACROSS:
        n_rows, n_columns = len(panels), 1
    else:
        n_rows, n_columns = 1, len(panels)
    width = max(5.8, 0.9 * across * n_columns + 1.2)
    size = (width, 2.9 * n_rows + 1.5)

    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(n_rows, n_columns, figsize=size, sharey=True, squeeze=False)
        for axis, (name, places) in zip(axes.flat, panels.items(), strict=True):
            _draw_panel(axis, places, x, delta)
            axis.set_title(name, fontsize=10, pad=18 if x else 6)
            axis.set_xlabel(x.name if x else "")
        for axis in axes[:, 0]:
            axis.set_ylabel(f"epsilon at delta {delta:g}")
        highest = _highest_epsilon(drawn, delta)
        axes[0, 0].set_ylim(-0.04 * highest, 1.2 * highest)
        return _finish(figure, axes[0, 0], title, points)


def trade_off_figure(title: str, points: Sequence[Point]) -> Figure:
    """Draws the empirical trade-off curve in its band beside Gaussian ones, a row for each conclusion.

    The axes are rates at the left, and normal deviates at the right (hidden-state paper, Figure 6a).
    """
    rows = [(point, conclusion) for point in points for conclusion in point.found]
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(len(rows), 2, figsize=(8, 3.4 * len(rows) + 1.2), squeeze=False)
        for (rates, deviates), (point, conclusion) in zip(axes, rows, strict=True):
            mu = point.predicted_mu()
            curves.draw_trade_off(rates, conclusion, np.linspace(0, 1, 401), mu)
            rates.set(xlim=(0, 1), ylim=(0, 1))
            curves.draw_on_deviates(deviates, conclusion, mu)
            rates.set_title(f"{point.panel}, {point.series}", pad=16)
            deviates.set_title("on normal deviates", pad=16)
        return _finish(figure, axes[0, 0], title, points)


def profile_figure(title: str, points: Sequence[Point], delta: float) -> Figure:
    """Draws delta(epsilon) at `if_gaussian`'s mean mu, its prediction and the upper bound (Figure 11)."""
    drawn = [point for point in points if point.found]
    largest_mu = max(point.found[0].mu_upper_bound or 0.05 for point in drawn)
    epsilons = np.linspace(0, conversions.epsilon_from_mu(largest_mu, 1e-8), 400)
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(6, 4.4))
        upper_bound = conversions.delta_from_mu(largest_mu, epsilons)
        axis.semilogy(epsilons, upper_bound, color=UPPER, ls=":", label=_ACCOUNTING)
        colors = (OUT, IN, BOUND, PREDICTED)
        for point, color, dash in zip(drawn, colors, _DASHES, strict=False):
            _draw_profile(axis, point, epsilons, color, dash)
        axis.axhline(delta, color="0.7", lw=0.8)
        at_right: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "bottom"}
        axis.annotate(f"delta = {delta:g}", (1, delta), **at_right)
        axis.set(xlabel="epsilon", ylabel="delta", ylim=(1e-8, 1.5), xlim=(0, epsilons[-1]))
        return _finish(figure, axis, title, points)


def _draw_profile(axis: Axes, point: Point, epsilons: NDArray[np.float64], color: str, dash: Any) -> None:
    """Draws a point's delta(epsilon) at its mean mu and, paler, at the predicted one."""
    mu = float(np.mean([bound.mu or 0.0 for bound in point.bounds(IF_GAUSSIAN)]))
    proven = f"mu = {at_least(mu, 2)}" if mu else "nothing proven"
    label = f"{point.series}: if Gaussian, {proven}"
    axis.semilogy(epsilons, conversions.delta_from_mu(mu, epsilons), color=color, ls=dash, label=label)
    predicted = point.predicted_mu()
    if predicted is not None:
        label = f"{point.series}: predicted, mu = {predicted:.2f}"
        profile = conversions.delta_from_mu(predicted, epsilons)
        axis.semilogy(epsilons, profile, color=color, lw=5, alpha=0.3, label=label)
    label_epsilon = conversions.epsilon_from_mu(predicted or mu, _LABEL_DELTA)
    axis.text(
        label_epsilon, _LABEL_DELTA, point.series, ha="center", va="center", fontsize=8, bbox=_BOX
    )


def _distinct_values(points: Sequence[Point], name: str) -> list[Any]:
    """Returns the values of a field of the points, each once, in their order."""
    return list(dict.fromkeys(getattr(point, name) for point in points))


def _place_points(points: Sequence[Point]) -> list[Place]:
    """Places points from left to right: by x, with a gap between two x, and side by side at one x."""
    places: list[Place] = []
    for x in sorted(_distinct_values(points, "x")):
        start = places[-1].at + 1 + _GROUP_GAP if places else 0.0
        group = [point for point in points if point.x == x]
        for i, point in enumerate(group):
            places.append(Place(start + i, point))
    return places


def _draw_panel(axis: Axes, places: Sequence[Place], x: Axis | None, delta: float) -> None:
    """Draws all points of a panel, and labels them."""
    for place in places:
        _draw_point(axis, place, delta)
    _draw_lines(axis, places)
    labels = [_wrap(place.point.series, 11) for place in places]
    axis.set_xticks([place.at for place in places], labels, fontsize=8)
    axis.tick_params(axis="x", length=0)
    axis.set_xlim(-0.65, places[-1].at + 0.65)
    if x:
        _label_groups(axis, places, x.symbol)


def _draw_point(axis: Axes, place: Place, delta: float) -> None:
    """Draws a point: interval, prediction, upper bound, and every method's mean and range over the seeds."""
    at = place.at
    point = place.point
    several_seeds = len(point.found) > 1
    if not several_seeds:
        low, high = point.interval()
        axis.vlines(at, low, min(high, 1e3), color=_INTERVAL, lw=5)
    predicted = point.predicted(delta)
    if predicted is not None:
        ends = (at - 0.42, at + 0.42)
        axis.plot(ends, [predicted] * 2, color=PREDICTED, lw=6, alpha=0.55, solid_capstyle="butt")
    axis.plot((at - 0.45, at + 0.45), [point.upper_bound()] * 2, color=UPPER, ls=_DOTS, lw=1.6)
    for method, (offset, look) in looks().items():
        mean, low, high = point.spread(method)
        errors = None
        if several_seeds:
            errors = [[max(mean - low, 0.0)], [max(high - mean, 0.0)]]
        axis.errorbar([at + offset], [mean], errors, ls="none", capsize=2.5, zorder=3, **look)


def _draw_lines(axis: Axes, places: Sequence[Place]) -> None:
    """Draws a thin line through each series that has several points."""
    offset = looks()[IF_GAUSSIAN].offset
    all_series = _distinct_values([place.point for place in places], "series")
    for series, dash in zip(all_series, _DASHES * 3, strict=False):
        own = [place for place in places if place.point.series == series]
        if len(own) > 1:
            positions = [place.at + offset for place in own]
            heights = [place.point.spread(IF_GAUSSIAN).mean for place in own]
            axis.plot(positions, heights, color=OUT, lw=0.9, ls=dash, alpha=0.7)


def _label_groups(axis: Axes, places: Sequence[Place], symbol: str) -> None:
    """Writes x above each group of points and draws a line between two, where there are several groups."""
    for x in _distinct_values([place.point for place in places], "x"):
        own = [place.at for place in places if place.point.x == x]
        if len(own) == len(places):
            continue
        top = ((own[0] + own[-1]) / 2, 1.0)
        in_axes = ("data", "axes fraction")
        axis.annotate(f"{symbol} = {x:g}", top, xycoords=in_axes, ha="center", va="bottom")
        if own[0] > 0:
            axis.axvline(own[0] - (1 + _GROUP_GAP) / 2, color="0.85", lw=0.8)


def _highest_epsilon(points: Sequence[Point], delta: float) -> float:
    """Returns the highest finite epsilon that is drawn, and 0.1 at least."""
    epsilons = []
    for point in points:
        for method in looks():
            epsilons += point.epsilons(method)
        epsilons.append(point.upper_bound())
        epsilons.append(point.predicted(delta) or 0.0)
    return max([epsilon for epsilon in epsilons if np.isfinite(epsilon)] + [0.1])


def _finish(figure: Figure, axis: Axes, title: str, points: Sequence[Point]) -> Figure:
    """Adds the title, and a legend: the axis's own, or else that of the methods' marks."""
    characters = int(figure.get_figwidth() * 12)
    heading = f"{_wrap(title, characters)}\n{_wrap(_describe_data(points), characters)}"
    figure.suptitle(heading, fontsize=11)
    handles, labels = axis.get_legend_handles_labels()
    if not labels:
        key = _mark_key(points)
        handles = list(key.values())
        labels = list(key)
    columns = 3 if figure.get_figwidth() > 7.5 else 2
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=8)
    return figure


def _mark_key(points: Sequence[Point]) -> dict[str, Any]:
    """Returns the legend of all that is drawn in a panel: {label: handle}."""
    key: dict[str, Any] = {}
    drawn = [point for point in points if point.found]
    for method, (_, look) in looks().items():
        if any(np.isfinite(point.epsilons(method)).any() for point in drawn):
            marker = {name: value for name, value in look.items() if name != "elinewidth"}
            key[_method_legend(method, drawn)] = plt.Line2D([], [], ls="none", **marker)
    key[_ACCOUNTING] = plt.Line2D([], [], color=UPPER, ls=_DOTS, lw=1.6)
    if any(len(point.found) == 1 for point in points):
        bar = plt.Line2D([], [], color=_INTERVAL, ls="none", marker="|", ms=12, mew=5)
        key["interval where scores are normal"] = bar
    if any(point.predicted_mu() is not None for point in points):
        label = r"predicted: at $\mu = \sqrt{n / k} / \sigma$, n insertions"
        key[label] = plt.Line2D([], [], color=PREDICTED, lw=6, alpha=0.55)
    return key


def _method_legend(method: str, drawn: Sequence[Point]) -> str:
    """Returns a method's legend, that of its counterpart where runs have many canaries, or both."""
    canaries = [point.cells[0].setting.canaries for point in drawn]
    legend = estimate.METHODS[method].legend
    counterpart = lifted.counterpart(method)
    if counterpart is None or max(canaries) == 1:
        return legend
    if min(canaries) > 1:
        return counterpart.legend
    return f"{legend};\nmany canaries: {counterpart.legend}"


def _describe_data(points: Sequence[Point]) -> str:
    """Returns how many seeds, runs and canaries a figure rests on, and how many cells are missing."""
    cells = [cell for point in points for cell in point.cells]
    seeds = max(len(point.cells) for point in points)
    description = f"mean and range of {seeds} seeds, " if seeds > 1 else "one seed, "

    fewest = min(cell.runs for cell in cells)
    most = max(cell.runs for cell in cells)
    models = f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"
    description += f"{models} runs each"

    canaries = max(cell.setting.canaries for cell in cells)
    if canaries > 1:
        description += f", {canaries} canaries each where gradients are crafted"
    missing = sum(len(point.cells) - len(point.found) for point in points)
    if missing:
        description += f"; {counted(missing, 'cell')} missing"
    return description


def _wrap(text: str, width: int) -> str:
    return "\n".join(textwrap.wrap(text, width, break_long_words=False))
