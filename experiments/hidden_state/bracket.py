"""Between what audits find of a convex model and what accounting allows: the hidden-state bound beside
composition, and audits of logistic regression that stand below both."""

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from audit.report.style import BLUE, BOUND, FREE, PREDICTED, STYLE, UPPER
from audit.report.table import Column, Table, at_least, at_most
from experiments.cells.cell import Levels
from experiments.sweeps import points
from experiments.sweeps.points import Evidence, Point
from experiments.sweeps.sweep import Axis, Drawn, OwnTable, Sweep

_INTERVAL = "0.25"
_LEAST, _TICKS = 0.2, (0.3, 1, 3, 10, 30)  # of the epsilons that are drawn
_NOTES = """\
proven:   without an assumption on the curve, by fresh directions
Gaussian: if the curve is Gaussian, by coordinates; interval: two-sided, by them
constant: what a constant direction reaches; hidden: the hidden-state bound"""
_WORDS = {  # of the figure's key
    "composition": "composition",
    "hidden": "hidden-state bound, of any data",
    "constant": "what a constant direction reaches",
    "interval": "audit's two-sided interval where scores are normal",
    "gaussian": "audit's lower bound if Gaussian, along coordinates",
    "free": "lower bound without an assumption, fresh directions",
}


def draw(sweep: Sweep, evidence: Evidence) -> Drawn:
    """The figure and the table of the cells that are there."""
    every = points.points(sweep.audits(), evidence.audits)
    there = [point for point in every if point.found]
    if not there:
        return Drawn([], len(every), [])
    axis = sweep.axis or Axis("k", "k")
    figure = bracket_figure(sweep.title, axis, there, evidence.levels.delta)
    table = _table(sweep, axis, there, evidence.levels)
    return Drawn([(sweep.name, figure)], len(every) - len(there), [], table)


def bracket_figure(title: str, x: Axis, every: Sequence[Point], delta: float) -> Figure:
    """A panel a weight decay: both upper bounds as lines over x, the audits as marks with intervals."""
    panels = list(dict.fromkeys(point.panel for point in every))
    with plt.rc_context(STYLE):
        size = (max(3.1 * len(panels), 5.8), 4.4)
        figure, axes = plt.subplots(1, len(panels), figsize=size, squeeze=False, sharey=True)
        for axis, panel in zip(axes[0], panels, strict=True):
            _draw_panel(axis, [point for point in every if point.panel == panel], delta)
            axis.set(xscale="log", yscale="log", title=panel, xlabel=x.name, ylim=(_LEAST, None))
            places = sorted({point.x for point in every})
            axis.set_yticks(_TICKS, [f"{tick:g}" for tick in _TICKS])
            axis.set_xticks(places, [f"{place:g}" for place in places], rotation=45 * (max(places) > 100))
            axis.minorticks_off()
        axes[0, 0].set_ylabel(f"epsilon at delta {delta:g}")
        key: dict[str, Any] = {}
        for axis in axes[0]:
            key |= dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
        figure.suptitle(title, fontsize=11)
        figure.legend(key.values(), key.keys(), loc="outside lower center", ncols=2, fontsize=8)
        return figure


def _draw_panel(axis: Axes, every: Sequence[Point], delta: float) -> None:
    first = sorted({point.x: point for point in every}.items())
    xs, composition = [x for x, _ in first], [point.upper_bound() for _, point in first]
    axis.plot(xs, composition, color=UPPER, ls=":", label=_WORDS["composition"])
    axis.plot(xs, [_hidden(point) for _, point in first], color=BOUND, label=_WORDS["hidden"])
    predicted = sorted((p.x, value) for p in every if (value := p.predicted(delta)) is not None)
    if predicted:
        look: dict[str, Any] = {"color": PREDICTED, "lw": 5, "alpha": 0.4}
        axis.plot(*zip(*predicted, strict=True), label=_WORDS["constant"], **look)
    for point in every:
        if point.found[0].fresh is not None:
            axis.plot(point.x, point.found[0].epsilon, "o", color=FREE, ms=4, label=_WORDS["free"])
            continue
        low, high = np.minimum(point.interval(), 1e3)
        ends = [[(low * high) ** 0.5 - low], [high - (low * high) ** 0.5]]
        shown: dict[str, Any] = {"color": _INTERVAL, "ls": "none", "capsize": 3, "lw": 1.2, "zorder": 3}
        axis.errorbar([point.x], [(low * high) ** 0.5], ends, label=_WORDS["interval"], **shown)
        axis.plot(point.x, _gaussian(point), "^", color=BLUE, ms=4, label=_WORDS["gaussian"])


def _hidden(point: Point) -> float:
    """The hidden-state bound on epsilon; the models of these figures have one."""
    found = point.found[0].hidden_state
    assert found is not None
    return found.bound.epsilon


def _gaussian(point: Point) -> float:
    return point.found[0].gaussian.epsilon


def _table(sweep: Sweep, x: Axis, every: Sequence[Point], levels: Levels) -> OwnTable:
    """A row a place: what is proven there, and the upper bounds."""
    coordinates = [point for point in every if point.found[0].fresh is None]
    fresh = {(p.panel, p.x): p.found[0].epsilon for p in every if p.found[0].fresh is not None}

    def free(point: Point) -> float | None:
        return fresh.get((point.panel, point.x))

    def reach(point: Point) -> float | None:
        return point.predicted(levels.delta)

    shown = (
        Column(None, lambda point: point.x, x.symbol, "{:g}".format, 5, left=True),
        Column(None, free, "proven", at_least, 7, none="-"),
        Column(None, _gaussian, "Gaussian", at_least, 8),
        Column(None, lambda point: "{:.2f} to {:.2f}".format(*point.interval()), "interval", width=14),
        Column(None, reach, "constant", "{:.3f}".format, 8, none="-"),
        Column(None, _hidden, "hidden", at_most, 8),
        Column(None, Point.upper_bound, "composition", at_most, 11),
        Column("panel", lambda point: point.panel),
        Column("x", lambda point: point.x),
        Column("proven", free),
        Column("if_gaussian", _gaussian),
        Column("interval_low", lambda point: point.interval()[0]),
        Column("interval_high", lambda point: point.interval()[1]),
        Column("constant_direction", reach),
        Column("hidden_state", _hidden),
        Column("composition", Point.upper_bound),
    )
    title = f"epsilon at delta {levels.delta:g}, confidence {levels.confidence:g}"
    made = Table(shown, coordinates, section=lambda point: point.panel, before=(sweep.title, title), rule=80)
    return OwnTable(f"{made.text()}\n{_NOTES}", made.csv())
