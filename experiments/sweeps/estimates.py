"""Draws the hidden-state paper's figures for trained models."""

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
from audit.methods.estimate import ASSUMPTION_FREE, IF_GAUSSIAN, IN_SAMPLE
from audit.report import audit_panels
from audit.report.style import BLUE, BOUND, FADED, IN, ORANGE, OUT, PREDICTED, UPPER
from audit.report.table import at_least
from audit.written import show_level
from experiments.sweeps.panels import draw_panels
from experiments.sweeps.points import Point
from experiments.sweeps.sweep import Axis, Sweep

_DOTS = (0, (1, 1))
_ACCOUNTING = "upper bound (accounting)"
# Keyword arguments for `Axes.errorbar`.
_MARK: dict[str, Any] = {"elinewidth": 0.8, "capsize": 2.5, "ls": "none", "zorder": 3, "ms": 5}
# For each method, from left to right: its mark's offset from the middle of a point, in units of the distance
# between points, and the mark's style.
LOOKS: dict[str, tuple[float, dict[str, Any]]] = {
    IF_GAUSSIAN: (-0.18, {**_MARK, "color": BLUE, "marker": "o"}),
    ASSUMPTION_FREE: (0.0, {**_MARK, "color": ORANGE, "marker": "^", "ms": 5.5, "mec": "0.3"}),
    IN_SAMPLE: (0.18, {**_MARK, "color": FADED, "marker": "o", "mfc": "white"}),
}
_GROUP_GAP = 0.5  # added between points with different x
_MAX_ACROSS = 8  # points in a row of panels; with more points, each panel gets its own row
_MAX_DRAWN = 1e3  # the height of infinite interval ends
_MIN_DELTA = 1e-8  # the lower end of the delta axis in privacy profiles


def epsilon_figure(sweep: Sweep, points: Sequence[Point]) -> Figure:
    """Draws the epsilons of all points, panel by panel.

    Points with the same x are drawn side by side, one per series (see `_draw_point`).
    """
    by_panel: dict[str, list[Point]] = {}
    for point in points:
        by_panel.setdefault(point.panel, []).append(point)
    panels = {}
    for name, of_panel in by_panel.items():
        of_panel.sort(key=attrgetter("x"))
        panels[name] = partial(_draw_panel, points=of_panel, x_axis=sweep.axis)
    most_points = max(map(len, by_panel.values()))
    fits_in_a_row = most_points * len(panels) <= _MAX_ACROSS
    across = len(panels) if fits_in_a_row else 1
    # A panel needs 0.9 inches for each point and 0.6 for its edges. The heading needs 5.8 inches.
    width = max(0.9 * most_points + 0.6, 5.8 / across)
    figure = draw_panels(
        _make_heading(sweep, points),
        panels,
        size=(width, 2.9),
        across=across,
        ylabel=f"epsilon at delta {show_level(points[0].delta)}",
        sharey=True,
    )
    # The limits of the shared axis ignore intervals, which may extend far above the marks.
    epsilons = [0.1]  # the axis covers at least this epsilon
    for point in points:
        epsilons += [point.upper_bound(), point.predicted() or 0.0]
        for method in LOOKS:
            _, _, largest = point.spread(method)
            epsilons.append(largest)
    highest = max(filter(math.isfinite, epsilons))
    figure.axes[0].set_ylim(-0.04 * highest, 1.2 * highest)
    return figure


def _draw_panel(axis: Axes, points: Sequence[Point], x_axis: Axis | None) -> None:
    """Draws a panel's points, already sorted by x, from left to right.

    `x_axis` has the name and symbol of x, or is None if points have no x.
    """
    positions: list[float] = []
    groups = [list(group) for _, group in groupby(points, attrgetter("x"))]
    position = 0.0
    for group in groups:
        if positions:
            axis.axvline((positions[-1] + position) / 2, color="0.85", lw=0.8)
        begin = position
        for point in group:
            _draw_point(axis, position, point)
            positions.append(position)
            position += 1
        if x_axis and len(groups) > 1:
            axis.annotate(
                f"{x_axis.symbol} = {group[0].x:g}",
                ((begin + positions[-1]) / 2, 1.0),
                ha="center",
                va="bottom",
                xycoords=("data", "axes fraction"),
            )
        position += _GROUP_GAP
    # Labels with more than 11 characters per line would overlap.
    wrap = partial(textwrap.fill, width=11, break_long_words=False)
    axis.set_xticks(positions, [wrap(point.series) for point in points], fontsize=8)
    axis.tick_params(axis="x", length=0)
    axis.set_xlim(-0.65, positions[-1] + 0.65)
    if x_axis:
        axis.set_title(axis.get_title(), pad=18)  # leaves room for values of x
        axis.set_xlabel(x_axis.name)


def _draw_point(axis: Axes, position: float, point: Point) -> None:
    """Draws a point's epsilons at a position on the horizontal axis.

    Each method has a mark at the mean over the point's seeds, and an error bar from the smallest to the
    largest epsilon. For a single seed, a vertical bar shows the two-sided interval for normal scores instead.
    """
    has_one_seed = len(point.conclusions) == 1
    if has_one_seed:
        low, high = point.interval()
        axis.vlines(
            position,
            low,
            min(high, _MAX_DRAWN),
            color="0.75",
            lw=5,
            label="interval if scores are normal",
        )
    predicted = point.predicted()
    if predicted is not None:
        # Every k-th step inserts the canary, so n insertions take n k steps, whose noise is sigma sqrt(n k).
        axis.hlines(
            predicted,
            position - 0.42,
            position + 0.42,
            color=PREDICTED,
            lw=6,
            alpha=0.55,
            label=r"predicted: $\mu = \sqrt{n / k} / \sigma$, n insertions",
        )
    ends = (position - 0.45, position + 0.45)
    heights = [point.upper_bound()] * 2
    axis.plot(ends, heights, color=UPPER, ls=_DOTS, lw=1.6, label=_ACCOUNTING)
    for name, (offset, look) in LOOKS.items():
        method = point.find_method(name)
        if method is None:
            continue
        mean, low, high = point.spread(name)
        errors = None
        if not has_one_seed:
            # Rounding could make an error negative, which matplotlib rejects.
            errors = np.maximum([[mean - low], [high - mean]], 0)
        axis.errorbar([position + offset], [mean], errors, label=method.legend, **look)


def trade_off_figure(sweep: Sweep, points: Sequence[Point]) -> Figure:
    """Draws the empirical trade-off curve of each point's first seed (hidden-state paper, Figure 6a).

    Each point has a row of two panels: one with error rates, and one with their normal deviates, which turn
    Gaussian curves into straight lines.
    """
    rates = np.linspace(0, 1, 401)
    panels = {}
    for point in points:
        conclusion = point.conclusions[0]
        mu = point.predicted_mu()
        name = f"{point.panel}, {point.series}"
        panels[name] = partial(
            audit_panels.draw_trade_off, conclusion=conclusion, grid=rates, predicted_mu=mu
        )
        panels[f"{name}, on deviates"] = partial(
            audit_panels.draw_on_deviates, conclusion=conclusion, predicted_mu=mu
        )
    return draw_panels(_make_heading(sweep, points), panels, size=(4, 3.4), across=2)


def profile_figure(sweep: Sweep, points: Sequence[Point]) -> Figure:
    """Plots privacy profiles of the first four points: delta against epsilon (hidden-state paper, Figure 11).

    The profiles are those of the lower bound from `if_gaussian`, the predicted mu and the upper bound.
    """
    draw = partial(_draw_profiles, points=points)
    return draw_panels(_make_heading(sweep, points), {"": draw}, (6, 3.6), ylabel="delta")


def _draw_profiles(axis: Axes, points: Sequence[Point]) -> None:
    """Plots delta against epsilon for the first four points, with a horizontal line at their delta.

    Lower bounds on mu are means over the seeds.
    """
    # The axis needs a range, so 0.05 replaces an unknown or zero mu. All seeds have the same upper bound.
    largest_mu = max(point.conclusions[0].mu_upper_bound or 0.05 for point in points)
    epsilons = np.linspace(0, conversions.epsilon_from_mu(largest_mu, _MIN_DELTA), 400)

    def plot(mu: float, label: str, **look: Any) -> None:
        axis.semilogy(epsilons, conversions.delta_from_mu(mu, epsilons), label=label, **look)

    plot(largest_mu, _ACCOUNTING, color=UPPER, ls=":")
    for point, color in zip(points[:4], (OUT, IN, BOUND, PREDICTED), strict=False):
        # A bound has no mu if it proves no leakage.
        mu = float(np.mean([bound.mu or 0.0 for bound in point.findings(IF_GAUSSIAN)]))
        plot(mu, f"{point.series}: if Gaussian, mu = {at_least(mu, 2)}", color=color, ls="--")
        predicted = point.predicted_mu()
        if predicted is not None:
            label = f"{point.series}: predicted, mu = {predicted:.2f}"
            plot(predicted, label, color=color, lw=5, alpha=0.3)
    delta = points[0].delta
    axis.axhline(delta, color="0.7", lw=0.8, label=f"delta = {show_level(delta)}")
    axis.set(xlabel="epsilon", ylim=(_MIN_DELTA, 1.5), xlim=(0, epsilons[-1]))


def _make_heading(sweep: Sweep, points: Sequence[Point]) -> str:
    """Returns a figure's title and a line with the largest numbers of seeds and runs."""
    runs = max(point.cells[0].runs for point in points)  # the same for all seeds
    seeds = max(len(point.conclusions) for point in points)
    data = f"mean and range of {seeds} seeds" if seeds > 1 else "one seed"
    return f"{sweep.title}\n{data}, up to {runs:,} runs each"
