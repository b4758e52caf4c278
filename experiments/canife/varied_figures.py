"""A grid's curves in four panels, in the shape of the paper's Figures 5a, 5b, 8a and 8c."""

from collections.abc import Iterator, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator
from numpy.typing import NDArray

from audit.report import style
from experiments.canife.varied import ROUND, Value
from experiments.canife.varied_points import Averaged, Curves
from experiments.canife.varied_table import text

_COLOURS = (style.BLUE, style.VERMILION, style.GREEN, style.ORANGE, style.PURPLE, style.BLACK)
_MARKS = "os^vDP"
_LOGARITHMIC = 8  # the largest x over the smallest
Floats = NDArray[np.float64]


def varied_figure(curves: Curves) -> Figure:
    """The scores' deviation, the attack's accuracy, canary health and a round's epsilon by the x axis, and
    over rounds the model's accuracy and the training's epsilon, a colour a curve; bars are deviations over
    trainings."""
    panels = [_deviation, _attack, _health, _epsilon]
    if curves.x == ROUND:
        panels = [_deviation, _attack, _epsilon, _health, _test, _training]
    with plt.rc_context(style.STYLE):
        columns = len(panels) // 2
        figure, axes = plt.subplots(2, columns, figsize=(3.8 * columns, 5.6), sharex=True)
        for draw, one in zip(panels, axes.flat, strict=True):
            draw(one, curves)
            _x_axis(one, curves)
        for one in axes[-1]:
            one.set_xlabel(_words(curves.x))
        if curves.curve:
            handles, labels = axes[0, 0].get_legend_handles_labels()
            figure.legend(handles, labels, title=_words(curves.curve), loc="outside upper center", ncols=6)
    return figure


def _deviation(axes: Axes, curves: Curves) -> None:
    _panel(axes, curves, "deviation")
    _panel(axes, curves, "clients", dashed=True)
    axes.set(
        title="scores' deviation with noise\n(dashed: clients alone)", ylabel="deviation / C", ylim=(0, None)
    )


def _attack(axes: Axes, curves: Curves) -> None:
    _panel(axes, curves, "attack")
    axes.set(title="attack accuracy")


def _health(axes: Axes, curves: Curves) -> None:
    _panel(axes, curves, "health")
    axes.set(title="canary health")


def _test(axes: Axes, curves: Curves) -> None:
    _panel(axes, curves, "test")
    axes.set(title="test accuracy")


def _epsilon(axes: Axes, curves: Curves) -> None:
    axes.set(title="one round, as published\n(dashed: exact law)", ylabel=r"$\varepsilon$ at $\delta$ = 1/n")
    _epsilons(axes, curves, "published", "law_then")


def _training(axes: Axes, curves: Curves) -> None:
    axes.set(title="the training, as published\n(dashed: accountant)", ylabel=r"$\varepsilon$")
    _epsilons(axes, curves, "training", "accountant")


def _epsilons(axes: Axes, curves: Curves, estimate: str, exact: str) -> None:
    """Estimates and, dashed, exact values; what is infinite is marked at the upper edge, or said."""
    _panel(axes, curves, estimate)
    _panel(axes, curves, exact, dashed=True)
    found = [getattr(one.averages, name).mean for one in curves.points for name in (estimate, exact)]
    if not np.isfinite(found).any():
        said = "infinite at every point,\nin one training at least"
        axes.text(0.5, 0.5, said, ha="center", transform=axes.transAxes)
        axes.set_yticks([])
        return
    axes.set_ylim(0, None)
    places = _places(curves)
    for _, colour, _, points in _by_curve(curves):
        x = [places[one.x] for one in points if np.isinf(getattr(one.averages, estimate).mean)]
        if x:  # an empty line there upsets the layout
            edge = axes.get_xaxis_transform()
            axes.plot(x, [1] * len(x), "^", color=colour, ms=5, clip_on=False, transform=edge)


def _by_curve(curves: Curves) -> Iterator[tuple[Value, str, str, list[Averaged]]]:
    """(value, colour, mark, points) of every curve, along the x axis."""
    places = _places(curves)
    for i, value in enumerate(dict.fromkeys(one.curve for one in curves.points)):
        own = sorted((one for one in curves.points if one.curve == value), key=lambda one: places[one.x])
        yield value, _COLOURS[i % len(_COLOURS)], _MARKS[i // len(_COLOURS) % len(_MARKS)], own


def _places(curves: Curves) -> dict[Value, float]:
    """Where each x is: numbers are where they are, words one after another."""
    return {
        x: float(i if isinstance(x, (str, bool)) else x)
        for i, x in enumerate(dict.fromkeys(one.x for one in curves.points))
    }


def _panel(axes: Axes, curves: Curves, name: str, dashed: bool = False) -> None:
    """A curve of one of the averages for each value; dashed without bars."""
    places = _places(curves)
    for value, colour, mark, points in _by_curve(curves):
        averages = [getattr(one.averages, name) for one in points]
        x = [places[one.x] for one in points]
        means = _finite([one.mean for one in averages])
        if dashed:
            axes.plot(x, means, "--", color=colour, lw=1)
        else:
            bars = np.nan_to_num([one.deviation for one in averages])
            axes.errorbar(
                x, means, bars, fmt=f"{mark}-", color=colour, ms=4, lw=1, capsize=2, label=text(value)
            )


def _finite(values: Sequence[float]) -> Floats:
    """Values with nan for what is infinite, which is not drawn."""
    found = np.asarray(values, float)
    return np.where(np.isfinite(found), found, np.nan)


def _x_axis(axes: Axes, curves: Curves) -> None:
    """Rounds, numbers that stand for themselves, or words."""
    places = _places(curves)
    values = list(places.values())
    if curves.x == ROUND:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        return
    if min(values) > 0 and max(values) >= _LOGARITHMIC * min(values):
        axes.set_xscale("log")
    axes.set_xticks(values, [text(x) for x in places])
    axes.xaxis.set_minor_locator(NullLocator())


def _words(name: str) -> str:
    """A field's name for readers."""
    return name.replace("_", " ")
