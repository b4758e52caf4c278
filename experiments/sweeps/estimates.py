"""Draws the hidden-state paper's figures of trained models, from the points that the store holds.

Points without conclusions are not drawn, but counted as missing. At least one point must have conclusions.
"""

import math
import textwrap
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from audit.laws import conversions
from audit.methods import estimate, lifted
from audit.methods.estimate import IF_GAUSSIAN
from audit.methods.level import show_level
from audit.report import curves, style
from audit.report.style import BOUND, IN, OUT, PREDICTED, STYLE, UPPER
from audit.report.table import at_least
from audit.runtime.progress import counted
from experiments.sweeps.points import Point
from experiments.sweeps.sweep import Axis

_INTERVAL = "0.75"  # the grey of intervals
_DASHES: tuple[Any, ...] = ("--", "-.", (0, (7, 1)), (0, (3, 1, 1, 1, 1, 1)), (0, (1, 3)), "-")
_DOTS = (0, (1, 1))
_ACCOUNTING = "upper bound (accounting)"
_LABEL_DELTA = 1e-7  # the delta at which a profile's label is written
_BOX = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
# On the horizontal axis two neighbouring places are a distance of 1 apart.
_MARK_DISTANCE = 0.18  # between two marks of a place, at most
_MARKS_WIDTH = 0.9  # for all marks of a place, at most
_GROUP_GAP = 0.5  # added between places of different x
_MOST_ACROSS = 8  # the most places side by side; with more, panels are stacked
_LETTERS_PER_INCH = 12  # of a figure's heading
_WIDE = 7.5  # inches; a legend below a figure that is wider has three columns, else two


class MarkLook(NamedTuple):
    """How a method's epsilons are drawn.

    Attributes:
      offset: The distance of the mark from its place's middle, along the horizontal axis.
      look: matplotlib's arguments for the mark.
    """

    offset: float
    look: dict[str, Any]


def looks() -> dict[str, MarkLook]:
    """Returns how each method's epsilons are drawn, by the method's name.

    Methods without a mark are left out. The order is that of the marks at a place, from left to right.
    """
    marks = []
    for name, method in estimate.METHODS.items():
        if method.mark:
            marks.append((name, method.mark))
    marks.sort(key=lambda pair: pair[1].place)

    # Marks of a place stand side by side around its middle. Many marks stand closer than _MARK_DISTANCE, so
    # that they stay within the place.
    middle = (len(marks) - 1) / 2
    distance = min(_MARK_DISTANCE, _MARKS_WIDTH / len(marks))
    by_method = {}
    for i, (name, mark) in enumerate(marks):
        look: dict[str, Any] = {
            "color": style.PALETTE[mark.color],
            "marker": mark.marker,
            "ms": mark.size,
        }
        if not mark.filled:
            look["mfc"] = "white"  # the colour of the marker's face
        if mark.outline:
            look["mec"] = mark.outline  # the colour of its edge
        look["elinewidth"] = mark.line  # the width of the error bar
        by_method[name] = MarkLook((i - middle) * distance, look)
    return by_method


class Place(NamedTuple):
    """A point with its position.

    Attributes:
      at: The position on its panel's horizontal axis.
      point: The point.
    """

    at: float
    point: Point


def epsilon_figure(title: str, x: Axis | None, points: Sequence[Point], delta: float) -> Figure:
    """Draws the epsilons of points, in the panel that each point names.

    Points of the same x stand side by side, one for each series. A point shows the mean of each method's
    epsilons with the range over the seeds, the upper bound, and the prediction, if there is one.

    Args:
      title: The figure's title.
      x: The name and symbol of the horizontal axis; None where x means nothing.
      points: The points of all panels, of which at least one has a conclusion. Others are not drawn, but
        counted as missing in the heading.
      delta: The delta at which epsilon is drawn.
    """
    drawn = _with_conclusions(points)
    by_panel: dict[str, list[Point]] = {}
    for point in drawn:
        by_panel.setdefault(point.panel, []).append(point)
    panels = {name: _place_points(of_panel) for name, of_panel in by_panel.items()}
    across = max(map(len, panels.values()))  # the places of the widest panel

    # Panels stand side by side as long as that is not too wide, else one above the other.
    n_rows = 1
    n_columns = len(panels)
    if len(panels) * across > _MOST_ACROSS:
        n_rows = len(panels)
        n_columns = 1
    # In inches: 0.9 for each place, 2.9 for each row of panels, and room for labels and legend.
    width = max(5.8, 0.9 * across * n_columns + 1.2)
    size = (width, 2.9 * n_rows + 1.5)

    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(n_rows, n_columns, figsize=size, sharey=True, squeeze=False)
        for axis, (name, places) in zip(axes.flat, panels.items(), strict=True):
            _draw_panel(axis, places, x, delta)
            if x:
                # The wide pad leaves room for the values of x, which stand between title and panel.
                axis.set_title(name, fontsize=10, pad=18)
                axis.set_xlabel(x.name)
            else:
                axis.set_title(name, fontsize=10, pad=6)
        for axis in axes[:, 0]:
            axis.set_ylabel(f"epsilon at delta {show_level(delta)}")
        # The panels share the vertical axis, which has some room below 0 and above the highest mark.
        highest = _highest_epsilon(drawn, delta)
        axes[0, 0].set_ylim(-0.04 * highest, 1.2 * highest)
        return _finish(figure, axes[0, 0], title, points)


def trade_off_figure(title: str, points: Sequence[Point]) -> Figure:
    """Draws each conclusion's empirical trade-off curve in its band, beside up to three Gaussian curves.

    The Gaussian curves are at the lower bound on mu, the predicted mu and the upper bound on mu, as far as
    these are known. Each conclusion of each point has a row. At the left the axes are error rates, at the
    right their normal deviates, on which Gaussian curves are lines (hidden-state paper, Figure 6a).

    Args:
      title: The figure's title.
      points: The points, of which at least one has a conclusion.
    """
    rows = []
    for point in points:
        for conclusion in point.conclusions:
            rows.append((point, conclusion))
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
    """Draws privacy profiles, delta over epsilon, of the first four points (hidden-state paper, Figure 11).

    A profile is that of Gaussian DP with parameter mu. Each point has a profile at the mean of its lower
    bounds on mu (`if_gaussian`), and at the predicted mu, if there is a prediction. A single further profile
    is at the accountant's upper bound on mu, the largest of the bounds of all points. Four points are drawn,
    since there are four colors; further points are left out.

    Args:
      title: The figure's title.
      points: The points, of which at least one has a conclusion.
      delta: The usual delta, at which a horizontal line is drawn.
    """
    drawn = _with_conclusions(points)
    # All seeds of a point share the accountant's mu: the first conclusion's is taken. 0.05 replaces an
    # unknown mu and 0, which would leave an empty axis.
    largest_mu = max(point.conclusions[0].mu_upper_bound or 0.05 for point in drawn)
    lowest_delta = 1e-8  # at the axis's lower end
    epsilons = np.linspace(0, conversions.epsilon_from_mu(largest_mu, lowest_delta), 400)
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(6, 4.4))
        upper_bound = conversions.delta_from_mu(largest_mu, epsilons)
        axis.semilogy(epsilons, upper_bound, color=UPPER, ls=":", label=_ACCOUNTING)
        colors = (OUT, IN, BOUND, PREDICTED)
        for point, color, dash in zip(drawn, colors, _DASHES, strict=False):
            _draw_profile(axis, point, epsilons, color, dash)
        axis.axhline(delta, color="0.7", lw=0.8)
        at_right: dict[str, Any] = {
            "xycoords": ("axes fraction", "data"),
            "ha": "right",
            "va": "bottom",
        }
        axis.annotate(f"delta = {show_level(delta)}", (1, delta), **at_right)
        axis.set(xlabel="epsilon", ylabel="delta", ylim=(lowest_delta, 1.5), xlim=(0, epsilons[-1]))
        return _finish(figure, axis, title, points)


def _with_conclusions(points: Sequence[Point]) -> list[Point]:
    """Returns the points that have at least one conclusion."""
    return [point for point in points if point.conclusions]


def _draw_profile(
    axis: Axes, point: Point, epsilons: NDArray[np.float64], color: str, dash: Any
) -> None:
    """Draws a point's privacy profile: the delta of Gaussian DP with parameter mu, over epsilon.

    The profile is drawn at the mean over seeds of `if_gaussian`'s lower bound on mu, and again, thicker and
    paler, at the predicted mu, if there is a prediction.

    Args:
      axis: Where to draw.
      point: The point.
      epsilons: The epsilons at which the profiles are computed.
      color: The color of both lines.
      dash: The dashes of the line at the mean mu.
    """
    # A bound without mu proves nothing, and counts as mu = 0, as does a point without bounds.
    mus = [bound.mu or 0.0 for bound in point.bounds(IF_GAUSSIAN)]
    mu = float(np.mean(mus or [0.0]))
    proven = "nothing proven"
    if mu:
        proven = f"mu = {at_least(mu, 2)}"
    label = f"{point.series}: if Gaussian, {proven}"
    axis.semilogy(
        epsilons, conversions.delta_from_mu(mu, epsilons), color=color, ls=dash, label=label
    )
    predicted = point.predicted_mu()
    if predicted is not None:
        label = f"{point.series}: predicted, mu = {predicted:.2f}"
        profile = conversions.delta_from_mu(predicted, epsilons)
        axis.semilogy(epsilons, profile, color=color, lw=5, alpha=0.3, label=label)
    # The series' name is written onto the predicted profile, or else onto that at the mean mu.
    label_epsilon = conversions.epsilon_from_mu(predicted or mu, _LABEL_DELTA)
    axis.text(
        label_epsilon, _LABEL_DELTA, point.series, ha="center", va="center", fontsize=8, bbox=_BOX
    )


def _place_points(points: Sequence[Point]) -> list[Place]:
    """Places points from left to right by x, at a distance of 1, with a further gap where x changes."""
    places: list[Place] = []
    for point in sorted(points, key=attrgetter("x")):
        at = 0.0
        if places:
            before = places[-1]
            at = before.at + 1
            if before.point.x != point.x:
                at += _GROUP_GAP
        places.append(Place(at, point))
    return places


def _draw_panel(axis: Axes, places: Sequence[Place], x: Axis | None, delta: float) -> None:
    """Draws all points of a panel, each labelled with its series, and labels groups of the same x.

    Args:
      axis: The panel.
      places: The points from left to right, with their positions.
      x: The name and symbol of the horizontal axis; None where x means nothing, and groups have no labels.
      delta: The delta at which epsilon is drawn.
    """
    for place in places:
        _draw_point(axis, place, delta)
    _draw_lines(axis, places)
    positions = []
    labels = []
    for place in places:
        positions.append(place.at)
        labels.append(_wrap(place.point.series, 11))  # letters a line: labels stay apart
    axis.set_xticks(positions, labels, fontsize=8)
    axis.tick_params(axis="x", length=0)
    axis.set_xlim(-0.65, places[-1].at + 0.65)
    if x:
        _label_groups(axis, places, x.symbol)


def _draw_point(axis: Axes, place: Place, delta: float) -> None:
    """Draws a point: the prediction, the upper bound, and every method's mean and range over the seeds.

    A point of a single seed has no range, and shows the interval instead (`Point.interval`).
    """
    at = place.at
    point = place.point
    several_seeds = len(point.conclusions) > 1
    if not several_seeds:
        low, high = point.interval()
        # The interval may have no upper end, which cannot be drawn: 1000 stands for it.
        axis.vlines(at, low, min(high, 1e3), color=_INTERVAL, lw=5)
    predicted = point.predicted(delta)
    # Both lines nearly fill the place, which is 1 wide.
    if predicted is not None:
        ends = (at - 0.42, at + 0.42)
        axis.plot(ends, [predicted] * 2, color=PREDICTED, lw=6, alpha=0.55, solid_capstyle="butt")
    axis.plot((at - 0.45, at + 0.45), [point.upper_bound()] * 2, color=UPPER, ls=_DOTS, lw=1.6)
    for method, (offset, look) in looks().items():
        mean, low, high = point.spread(method)
        errors = None
        if several_seeds:
            # Rounding of the mean could make these just negative, which matplotlib refuses for error bars.
            below = max(mean - low, 0.0)
            above = max(high - mean, 0.0)
            errors = [[below], [above]]
        axis.errorbar([at + offset], [mean], errors, ls="none", capsize=2.5, zorder=3, **look)


def _draw_lines(axis: Axes, places: Sequence[Place]) -> None:
    """Connects each series' means of `if_gaussian` by a thin line."""
    offset = looks()[IF_GAUSSIAN].offset
    by_series: dict[str, list[Place]] = {}
    for place in places:
        by_series.setdefault(place.point.series, []).append(place)
    # There are six kinds of dashes: they repeat for up to 18 series. A single point has nothing to connect.
    for of_series, dash in zip(by_series.values(), _DASHES * 3, strict=False):
        if len(of_series) > 1:
            positions = []
            heights = []
            for place in of_series:
                positions.append(place.at + offset)
                heights.append(place.point.spread(IF_GAUSSIAN).mean)
            axis.plot(positions, heights, color=OUT, lw=0.9, ls=dash, alpha=0.7)


def _label_groups(axis: Axes, places: Sequence[Place], symbol: str) -> None:
    """Writes x above each group of points with the same x, and draws a vertical line between two groups.

    A single group needs neither.
    """
    by_x: dict[float, list[float]] = {}
    for place in places:
        by_x.setdefault(place.point.x, []).append(place.at)
    if len(by_x) == 1:
        return
    for x, positions in by_x.items():
        first = positions[0]
        middle = (first + positions[-1]) / 2
        in_axes = ("data", "axes fraction")
        axis.annotate(
            f"{symbol} = {x:g}", (middle, 1.0), xycoords=in_axes, ha="center", va="bottom"
        )
        if first > 0:  # not the first group: a line in the middle of the gap before it
            axis.axvline(first - (1 + _GROUP_GAP) / 2, color="0.85", lw=0.8)


def _highest_epsilon(points: Sequence[Point], delta: float) -> float:
    """Returns the highest finite epsilon that is drawn, but at least 0.1, so that the axis has a height."""
    epsilons = [0.1]
    for point in points:
        for method in looks():
            epsilons += point.epsilons(method)
        epsilons.append(point.upper_bound())
        epsilons.append(point.predicted(delta) or 0.0)
    return max(filter(math.isfinite, epsilons))


def _finish(figure: Figure, axis: Axes, title: str, points: Sequence[Point]) -> Figure:
    """Adds a heading and a legend to a figure, and returns the figure.

    Args:
      figure: The figure.
      axis: The panel whose labelled lines are the legend. A panel of epsilons has none: the legend then
        explains the marks of all methods.
      title: The heading's first part; the second says which data the figure shows.
      points: The figure's points, with those that are not drawn for want of conclusions.
    """
    letters = int(figure.get_figwidth() * _LETTERS_PER_INCH)
    heading = f"{_wrap(title, letters)}\n{_wrap(_describe_data(points), letters)}"
    figure.suptitle(heading, fontsize=11)
    handles, labels = axis.get_legend_handles_labels()
    if not labels:
        key = _mark_key(points)
        handles = list(key.values())
        labels = list(key)
    columns = 2
    if figure.get_figwidth() > _WIDE:
        columns = 3
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=8)
    return figure


def _mark_key(points: Sequence[Point]) -> dict[str, Any]:
    """Returns the legend of all that panels of epsilons show, as {label: handle}."""
    key: dict[str, Any] = {}
    drawn = _with_conclusions(points)
    for method, (_, look) in looks().items():
        # A method whose epsilon is NaN or infinite at all points has no mark to explain.
        if any(np.isfinite(point.epsilons(method)).any() for point in drawn):
            marker = dict(look)
            del marker["elinewidth"]  # an argument of error bars alone
            key[_method_legend(method, drawn)] = plt.Line2D([], [], ls="none", **marker)
    key[_ACCOUNTING] = plt.Line2D([], [], color=UPPER, ls=_DOTS, lw=1.6)
    if any(len(point.conclusions) == 1 for point in points):
        bar = plt.Line2D([], [], color=_INTERVAL, ls="none", marker="|", ms=12, mew=5)
        key["interval where scores are normal"] = bar
    if any(point.predicted_mu() is not None for point in points):
        label = r"predicted: at $\mu = \sqrt{n / k} / \sigma$, n insertions"
        key[label] = plt.Line2D([], [], color=PREDICTED, lw=6, alpha=0.55)
    return key


def _method_legend(method: str, drawn: Sequence[Point]) -> str:
    """Returns a method's text in the legend.

    Where runs have many canaries, a counterpart may take the method's place (`lifted.counterpart`), with a
    text of its own. That text is returned where all points have such runs, and both texts where only some do.

    Args:
      method: The name of a method for a single canary in each run.
      drawn: The points in the figure.
    """
    # The audits of a point differ by seed alone: the first tells the number of canaries.
    canaries = [point.cells[0].setting.canaries for point in drawn]
    legend = estimate.METHODS[method].legend
    counterpart = lifted.counterpart(method)
    if counterpart is None or max(canaries) == 1:
        return legend
    if min(canaries) > 1:
        return counterpart.legend
    return f"{legend};\nmany canaries: {counterpart.legend}"


def _describe_data(points: Sequence[Point]) -> str:
    """Returns a line on a figure's data: the number of seeds, runs and canaries, and of missing cells."""
    seeds = 0
    missing = 0
    all_runs = set()
    canaries = 1
    for point in points:
        seeds = max(seeds, len(point.cells))
        missing += len(point.cells) - len(point.conclusions)
        for cell in point.cells:
            all_runs.add(cell.runs)
            canaries = max(canaries, cell.setting.canaries)

    description = "one seed, "
    if seeds > 1:
        description = f"mean and range of {seeds} seeds, "
    description += f"{min(all_runs):,}"
    if len(all_runs) > 1:
        description += f" to {max(all_runs):,}"
    description += " runs each"
    if canaries > 1:
        # Some adversaries of the figure may still have a single canary, such as L, which inserts the gradient
        # of an example.
        description += f", {canaries} canaries each if crafted"
    if missing:
        description += f"; {counted(missing, 'cell')} missing"
    return description


def _wrap(text: str, width: int) -> str:
    """Breaks a text into lines of at most `width` letters, between words only."""
    return "\n".join(textwrap.wrap(text, width, break_long_words=False))
