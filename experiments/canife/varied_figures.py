"""A grid's curves in four panels, in the shape of the paper's Figures 5a, 5b, 8a and 8c."""

from collections.abc import Iterator, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator
from numpy.typing import NDArray

from experiments.canife.varied import Value
from experiments.canife.varied_points import ROUND, Averaged, Curves
from experiments.canife.varied_table import text
from experiments.plots import style

_COLOURS = (style.BLUE, style.VERMILION, style.GREEN, style.ORANGE, style.PURPLE, style.BLACK)
_MARKS = "os^vDP"
_LOGARITHMIC = 8  # the largest x over the smallest
Floats = NDArray[np.float64]


def varied_figure(curves: Curves) -> Figure:
    """The scores' deviation, the attack's accuracy, canary health and a round's epsilon by the x axis, a
    colour a curve; bars are deviations over trainings, marks at the upper edge are infinite."""
    with plt.rc_context(style.STYLE):
        figure, axes = plt.subplots(2, 2, figsize=(7.6, 5.6), sharex=True)
        deviation, attack, health, epsilon = axes.flat
        _panel(deviation, curves, "deviation")
        _panel(deviation, curves, "clients", dashed=True)
        deviation.set(title="scores' deviation, with noise (dashed: clients alone)", ylabel="deviation / C")
        _panel(attack, curves, "attack")
        attack.set(title="attack accuracy")
        _panel(health, curves, "health")
        health.set(title="canary health", xlabel=_words(curves.x))
        _panel(epsilon, curves, "published")
        _panel(epsilon, curves, "law_then", dashed=True)
        epsilon.set(title="one round, published (dashed: exact law)", xlabel=_words(curves.x))
        epsilon.set(ylabel="epsilon at delta 1/n")
        _bottoms(deviation, epsilon)
        _mark_infinite(epsilon, curves)
        for one in axes.flat:
            _x_axis(one, curves)
        if curves.curve:
            attack.legend(title=_words(curves.curve), fontsize=7, title_fontsize=7)
    return figure


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


def _bottoms(*panels: Axes) -> None:
    """Panels from 0; where nothing is finite, up to 1."""
    for axes in panels:
        drawn = any(np.isfinite(np.asarray(line.get_ydata(), float)).any() for line in axes.lines)
        axes.set_ylim(0, None if drawn else 1)


def _mark_infinite(axes: Axes, curves: Curves) -> None:
    """Marks at the upper edge where an estimate is infinite."""
    places = _places(curves)
    for _, colour, _, points in _by_curve(curves):
        x = [places[one.x] for one in points if np.isinf(one.averages.published.mean)]
        axes.plot(
            x, [1] * len(x), "^", color=colour, ms=5, clip_on=False, transform=axes.get_xaxis_transform()
        )


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
