"""The hidden-state paper's figures of trained models, from the points that the store holds.

Points without conclusions are not drawn, but counted as missing; at least one must have some.
"""

import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from audit.progress import counted
from audit.report import curves, style
from audit.report.style import BOUND, IN, OUT, PREDICTED, STYLE, UPPER
from audit.report.table import at_least
from audit.statistics import conversions, estimate, lifted
from audit.statistics.estimate import IF_GAUSSIAN
from experiments.sweeps.points import Point
from experiments.sweeps.sweep import Axis

_INTERVAL = "0.75"
_DASHES: tuple[Any, ...] = ("--", "-.", (0, (7, 1)), (0, (3, 1, 1, 1, 1, 1)), (0, (1, 3)), "-")
_ACCOUNTING = "upper bound (accounting)"
_NAMED_AT = 1e-7  # delta at which profiles carry their names
_BOX = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
_APART, _ACROSS = 0.18, 0.9  # between two marks of a place, and of all of them at most
_GAP = 0.5  # between the groups of two x
_MOST_ACROSS = 8  # places side by side before panels stand below each other


class MarkLook(NamedTuple):
    """How a method's epsilons look, and where beside their place's middle they stand."""

    offset: float
    look: dict[str, Any]


def looks() -> dict[str, MarkLook]:
    """The methods that have a mark, from left to right."""
    marked = [(name, record.mark) for name, record in estimate.METHODS.items() if record.mark]
    middle, apart = (len(marked) - 1) / 2, min(_APART, _ACROSS / len(marked))
    found = {}
    for i, (name, mark) in enumerate(sorted(marked, key=lambda one: one[1].place)):
        look = {"color": style.PALETTE[mark.color], "marker": mark.marker, "ms": mark.size}
        ground = {} if mark.filled else {"mfc": "white"}
        outline = {"mec": mark.outline} if mark.outline else {}
        found[name] = MarkLook((i - middle) * apart, {**look, **ground, **outline, "elinewidth": mark.line})
    return found


class Place(NamedTuple):
    """Where a point stands in its panel."""

    at: float
    point: Point


def epsilon_figure(title: str, x: Axis | None, points: Sequence[Point], delta: float) -> Figure:
    """A panel for each `panel`: at each x the series side by side, every estimator's bounds with their
    range over the seeds, the upper bound, and the prediction where there is one."""
    drawn = [point for point in points if point.found]
    panels = {name: _places([p for p in drawn if p.panel == name]) for name in _unique(drawn, "panel")}
    across = max(len(places) for places in panels.values())
    stacked = len(panels) * across > _MOST_ACROSS
    shape = (len(panels), 1) if stacked else (1, len(panels))
    width = max(5.8, 0.9 * across * shape[1] + 1.2)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(*shape, figsize=(width, 2.9 * shape[0] + 1.5), sharey=True, squeeze=False)
        for axis, (name, places) in zip(axes.flat, panels.items(), strict=True):
            _draw_panel(axis, places, x, delta)
            axis.set_title(name, fontsize=10, pad=18 if x else 6)
            axis.set_xlabel(x.name if x else "")
        for axis in axes[:, 0]:
            axis.set_ylabel(f"epsilon at delta {delta:g}")
        high = _highest(drawn, delta)
        axes[0, 0].set_ylim(-0.04 * high, 1.2 * high)
        return _finish(figure, axes[0, 0], title, points)


def trade_off_figure(title: str, points: Sequence[Point]) -> Figure:
    """The empirical trade-off curve in its band beside Gaussian ones, on axes of rates and of normal deviates
    (hidden-state paper, Figure 6a); a row a conclusion."""
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
    """delta(epsilon) at `if_gaussian`'s mean mu, its prediction and the upper bound (Figure 11)."""
    drawn = [point for point in points if point.found]
    largest = max(point.found[0].mu_upper_bound or 0.05 for point in drawn)
    grid = np.linspace(0, conversions.epsilon_from_mu(largest, 1e-8), 400)
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(6, 4.4))
        axis.semilogy(grid, conversions.delta_from_mu(largest, grid), color=UPPER, ls=":", label=_ACCOUNTING)
        looks = zip((OUT, IN, BOUND, PREDICTED), _DASHES, strict=False)
        for point, (color, dash) in zip(drawn, looks, strict=False):
            mu = float(np.mean([bound.mu or 0.0 for bound in point.bounds(IF_GAUSSIAN)]))
            proven = f"mu = {at_least(mu, 2)}" if mu else "nothing proven"
            label = f"{point.series}: if Gaussian, {proven}"
            axis.semilogy(grid, conversions.delta_from_mu(mu, grid), color=color, ls=dash, label=label)
            predicted = point.predicted_mu()
            if predicted is not None:
                label = f"{point.series}: predicted, mu = {predicted:.2f}"
                profile = conversions.delta_from_mu(predicted, grid)
                axis.semilogy(grid, profile, color=color, lw=5, alpha=0.3, label=label)
            where = conversions.epsilon_from_mu(predicted or mu, _NAMED_AT)
            axis.text(where, _NAMED_AT, point.series, ha="center", va="center", fontsize=8, bbox=_BOX)
        axis.axhline(delta, color="0.7", lw=0.8)
        at_right: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "bottom"}
        axis.annotate(f"delta = {delta:g}", (1, delta), **at_right)
        axis.set(xlabel="epsilon", ylabel="delta", ylim=(1e-8, 1.5), xlim=(0, grid[-1]))
        return _finish(figure, axis, title, points)


def _unique(points: Sequence[Point], name: str) -> list[Any]:
    return list(dict.fromkeys(getattr(point, name) for point in points))


def _places(points: Sequence[Point]) -> list[Place]:
    places: list[Place] = []
    for x in sorted(_unique(points, "x")):
        start = places[-1].at + 1 + _GAP if places else 0.0
        group = [point for point in points if point.x == x]
        places += [Place(start + i, point) for i, point in enumerate(group)]
    return places


def _draw_panel(axis: Axes, places: Sequence[Place], x: Axis | None, delta: float) -> None:
    for at, point in places:
        if len(point.found) == 1:
            low, high = point.interval()
            axis.vlines(at, low, min(high, 1e3), color=_INTERVAL, lw=5)
        predicted = point.predicted(delta)
        if predicted is not None:
            ends = (at - 0.42, at + 0.42)
            axis.plot(ends, [predicted] * 2, color=PREDICTED, lw=6, alpha=0.55, solid_capstyle="butt")
        axis.plot((at - 0.45, at + 0.45), [point.upper_bound()] * 2, color=UPPER, ls=(0, (1, 1)), lw=1.6)
        for method, (offset, look) in looks().items():
            mean, low, high = point.spread(method)
            several = len(point.found) > 1
            reach = [[max(mean - low, 0.0)], [max(high - mean, 0.0)]] if several else None
            axis.errorbar([at + offset], [mean], reach, ls="none", capsize=2.5, zorder=3, **look)
    _draw_lines(axis, places)
    axis.set_xticks([p.at for p in places], [_wrapped(p.point.series, 11) for p in places], fontsize=8)
    axis.tick_params(axis="x", length=0)
    axis.set_xlim(-0.65, places[-1].at + 0.65)
    if x:
        _label_groups(axis, places, x.symbol)


def _draw_lines(axis: Axes, places: Sequence[Place]) -> None:
    offset = looks()[IF_GAUSSIAN].offset
    for series, dash in zip(_unique([p.point for p in places], "series"), _DASHES * 3, strict=False):
        own = [place for place in places if place.point.series == series]
        if len(own) > 1:
            heights = [place.point.spread(IF_GAUSSIAN).mean for place in own]
            axis.plot([p.at + offset for p in own], heights, color=OUT, lw=0.9, ls=dash, alpha=0.7)


def _label_groups(axis: Axes, places: Sequence[Place], symbol: str) -> None:
    for x in _unique([p.point for p in places], "x"):
        own = [place.at for place in places if place.point.x == x]
        if len(own) < len(places):
            top, words = ((own[0] + own[-1]) / 2, 1.0), f"{symbol} = {x:g}"
            axis.annotate(words, top, xycoords=("data", "axes fraction"), ha="center", va="bottom")
            if own[0] > 0:
                axis.axvline(own[0] - (1 + _GAP) / 2, color="0.85", lw=0.8)


def _highest(points: Sequence[Point], delta: float) -> float:
    drawn = [value for point in points for method in looks() for value in point.epsilons(method)]
    drawn += [point.upper_bound() for point in points] + [point.predicted(delta) or 0.0 for point in points]
    return max([value for value in drawn if np.isfinite(value)] + [0.1])


def _finish(figure: Figure, axis: Axes, title: str, points: Sequence[Point]) -> Figure:
    characters = int(figure.get_figwidth() * 12)
    heading = f"{_wrapped(title, characters)}\n{_wrapped(_stands_on(points), characters)}"
    figure.suptitle(heading, fontsize=11)
    handles, labels = axis.get_legend_handles_labels()
    if not labels:
        handles, labels = _key(points)
    columns = 3 if figure.get_figwidth() > 7.5 else 2
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=8)
    return figure


def _key(points: Sequence[Point]) -> tuple[list[Any], list[str]]:
    key: dict[str, Any] = {}
    for method, (_, look) in looks().items():
        if any(np.isfinite(point.epsilons(method)).any() for point in points if point.found):
            shown = {name: value for name, value in look.items() if name != "elinewidth"}
            key[_legend(method, points)] = plt.Line2D([], [], ls="none", **shown)
    key[_ACCOUNTING] = plt.Line2D([], [], color=UPPER, ls=(0, (1, 1)), lw=1.6)
    if any(len(point.found) == 1 for point in points):
        bar = plt.Line2D([], [], color=_INTERVAL, ls="none", marker="|", ms=12, mew=5)
        key["interval where scores are normal"] = bar
    if any(point.predicted_mu() is not None for point in points):
        words = r"predicted: at $\mu = \sqrt{n / k} / \sigma$, n insertions"
        key[words] = plt.Line2D([], [], color=PREDICTED, lw=6, alpha=0.55)
    return list(key.values()), list(key)


def _legend(method: str, points: Sequence[Point]) -> str:
    """The method's words, or those of the one that stands for it where runs have many canaries, or both."""
    canaries = [point.cells[0].setting.canaries for point in points if point.found]
    single, many = estimate.METHODS[method].legend, lifted.counterpart(method)
    if many is None or max(canaries) == 1:
        return single
    return many.legend if min(canaries) > 1 else f"{single};\nmany canaries: {many.legend}"


def _stands_on(points: Sequence[Point]) -> str:
    runs = sorted({cell.runs for point in points for cell in point.cells})
    seeds = max(len(point.cells) for point in points)
    models = f"{runs[0]:,}" if len(runs) == 1 else f"{runs[0]:,} to {runs[-1]:,}"
    over = f"mean and range of {seeds} seeds, " if seeds > 1 else "one seed, "
    canaries = max(cell.setting.canaries for point in points for cell in point.cells)
    of_many = f", {canaries} canaries each where gradients are crafted" if canaries > 1 else ""
    missing = sum(len(point.cells) - len(point.found) for point in points)
    return f"{over}{models} runs each{of_many}" + (f"; {counted(missing, 'cell')} missing" if missing else "")


def _wrapped(text: str, width: int) -> str:
    return "\n".join(textwrap.wrap(text, width, break_long_words=False))
