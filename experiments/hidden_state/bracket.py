"""The range between what audits of a convex model prove and what accounting allows.

Draws the hidden-state bound beside composition, and audits of logistic regression that lie below both.
"""

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from audit.report.style import BLUE, BOUND, FREE, PREDICTED, STYLE, UPPER
from audit.report.table import Column, Table, at_least, at_most
from experiments.cells.cell import Levels
from experiments.sweeps import points
from experiments.sweeps.points import Evidence, Point
from experiments.sweeps.sweep import Axis, Drawn, OwnTable, Sweep

_INTERVAL_COLOR = "0.25"
_LEAST_EPSILON = 0.2  # where the vertical axis begins
_EPSILON_TICKS = (0.3, 1, 3, 10, 30)
_LARGEST_EPSILON = 1e3  # of intervals' ends: infinite ends have no place on the axis
_NOTES = """\
proven:   without an assumption on the curve, by fresh directions
Gaussian: if the curve is Gaussian, by coordinates; interval: two-sided, by them
constant: what a constant direction reaches; hidden: the hidden-state bound"""
_LABELS = {  # of the figure's legend
    "composition": "composition",
    "hidden": "hidden-state bound, of any data",
    "constant": "what a constant direction reaches",
    "interval": "audit's two-sided interval where scores are normal",
    "gaussian": "audit's lower bound if Gaussian, along coordinates",
    "free": "lower bound without an assumption, fresh directions",
}


def draw(sweep: Sweep, evidence: Evidence) -> Drawn:
    """Draws the figure and makes the table of those cells that the store holds."""
    all_points = points.points(sweep.audits(), evidence.audits)
    stored_points = [point for point in all_points if point.found]
    if not stored_points:
        return Drawn([], len(all_points), [])

    axis = sweep.axis or Axis("k", "k")
    figure = bracket_figure(sweep.title, axis, stored_points, evidence.levels.delta)
    table = _make_table(sweep, axis, stored_points, evidence.levels)
    missing = len(all_points) - len(stored_points)
    return Drawn([(sweep.name, figure)], missing, [], table)


def bracket_figure(title: str, x_axis: Axis, every: Sequence[Point], delta: float) -> Figure:
    """Draws a panel for each weight decay: both upper bounds as lines over x, audits as marks with intervals.

    Args:
      title: The figure's title.
      x_axis: What the horizontal axis shows.
      every: The points of all panels; each has a conclusion.
      delta: The delta at which epsilon is drawn.
    """
    panels = list(dict.fromkeys(point.panel for point in every))
    places = sorted({point.x for point in every})
    place_labels = [f"{place:g}" for place in places]
    rotation = 45 if max(places) > 100 else 0
    size = (max(3.1 * len(panels), 5.8), 4.4)

    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, len(panels), figsize=size, squeeze=False, sharey=True)
        for axis, panel in zip(axes[0], panels, strict=True):
            _draw_panel(axis, [point for point in every if point.panel == panel], delta)
            axis.set(
                xscale="log",
                yscale="log",
                title=panel,
                xlabel=x_axis.name,
                ylim=(_LEAST_EPSILON, None),
            )
            axis.set_yticks(_EPSILON_TICKS, [f"{tick:g}" for tick in _EPSILON_TICKS])
            axis.set_xticks(places, place_labels, rotation=rotation)
            axis.minorticks_off()
        axes[0, 0].set_ylabel(f"epsilon at delta {delta:g}")

        legend: dict[str, Artist] = {}
        for axis in axes[0]:
            handles, labels = axis.get_legend_handles_labels()
            legend |= dict(zip(labels, handles, strict=True))
        figure.suptitle(title, fontsize=11)
        figure.legend(
            legend.values(),
            legend.keys(),
            loc="outside lower center",
            ncols=2,
            fontsize=8,
        )
        return figure


def _draw_panel(axis: Axes, panel_points: Sequence[Point], delta: float) -> None:
    """Draws the bounds and audits at one weight decay."""
    _draw_upper_bounds(axis, panel_points)
    _draw_constant_direction(axis, panel_points, delta)
    for point in panel_points:
        conclusion = point.found[0]
        if conclusion.law_is_known:
            axis.plot(
                point.x,
                conclusion.epsilon,
                "o",
                color=FREE,
                ms=4,
                label=_LABELS["free"],
            )
        else:
            _draw_interval(axis, point)
            axis.plot(
                point.x,
                _gaussian_epsilon(point),
                "^",
                color=BLUE,
                ms=4,
                label=_LABELS["gaussian"],
            )


def _draw_upper_bounds(axis: Axes, panel_points: Sequence[Point]) -> None:
    """Draws composition and the hidden-state bound over x; audits at the same x share both."""
    point_at = {point.x: point for point in panel_points}
    xs = sorted(point_at)
    composition = [point_at[x].upper_bound() for x in xs]
    hidden = [_hidden_state_epsilon(point_at[x]) for x in xs]
    axis.plot(xs, composition, color=UPPER, ls=":", label=_LABELS["composition"])
    axis.plot(xs, hidden, color=BOUND, label=_LABELS["hidden"])


def _draw_constant_direction(axis: Axes, panel_points: Sequence[Point], delta: float) -> None:
    """Draws the epsilon that a constant direction reaches, where it is predicted."""
    predicted = []
    for point in panel_points:
        epsilon = point.predicted(delta)
        if epsilon is not None:
            predicted.append((point.x, epsilon))
    if not predicted:
        return
    predicted.sort()
    xs = [x for x, _ in predicted]
    epsilons = [epsilon for _, epsilon in predicted]
    axis.plot(xs, epsilons, label=_LABELS["constant"], color=PREDICTED, lw=5, alpha=0.4)


def _draw_interval(axis: Axes, point: Point) -> None:
    """Draws a two-sided interval as a bar around its geometric mean."""
    low, high = np.minimum(point.interval(), _LARGEST_EPSILON)
    middle = (low * high) ** 0.5
    lengths = [[middle - low], [high - middle]]
    look: dict[str, Any] = {
        "color": _INTERVAL_COLOR,
        "ls": "none",
        "capsize": 3,
        "lw": 1.2,
        "zorder": 3,
    }
    axis.errorbar([point.x], [middle], lengths, label=_LABELS["interval"], **look)


def _hidden_state_epsilon(point: Point) -> float:
    """Returns the hidden-state bound on epsilon; the models of these figures have one."""
    hidden_state = point.found[0].hidden_state
    assert hidden_state is not None
    return hidden_state.bound.epsilon


def _gaussian_epsilon(point: Point) -> float:
    """Returns the audit's lower bound if the trade-off curve is Gaussian."""
    return point.found[0].gaussian.epsilon


def _format_interval(point: Point) -> str:
    low, high = point.interval()
    return f"{low:.2f} to {high:.2f}"


def _make_table(sweep: Sweep, x_axis: Axis, every: Sequence[Point], levels: Levels) -> OwnTable:
    """Makes a table with a row for each place: what is proven there, and the upper bounds."""
    coordinates = []
    proven_epsilons = {}
    for point in every:
        conclusion = point.found[0]
        if not conclusion.law_is_known:
            coordinates.append(point)
        else:
            proven_epsilons[point.panel, point.x] = conclusion.epsilon

    def proven(point: Point) -> float | None:
        return proven_epsilons.get((point.panel, point.x))

    def constant_direction(point: Point) -> float | None:
        return point.predicted(levels.delta)

    columns = (
        Column(None, lambda point: point.x, x_axis.symbol, "{:g}".format, 5, left=True),
        Column(None, proven, "proven", at_least, 7, none="-"),
        Column(None, _gaussian_epsilon, "Gaussian", at_least, 8),
        Column(None, _format_interval, "interval", width=14),
        Column(None, constant_direction, "constant", "{:.3f}".format, 8, none="-"),
        Column(None, _hidden_state_epsilon, "hidden", at_most, 8),
        Column(None, Point.upper_bound, "composition", at_most, 11),
        Column("panel", lambda point: point.panel),
        Column("x", lambda point: point.x),
        Column("proven", proven),
        Column("if_gaussian", _gaussian_epsilon),
        Column("interval_low", lambda point: point.interval()[0]),
        Column("interval_high", lambda point: point.interval()[1]),
        Column("constant_direction", constant_direction),
        Column("hidden_state", _hidden_state_epsilon),
        Column("composition", Point.upper_bound),
    )
    subtitle = f"epsilon at delta {levels.delta:g}, confidence {levels.confidence:g}"
    before = (sweep.title, subtitle)
    table = Table(columns, coordinates, section=lambda point: point.panel, before=before, rule=80)
    return OwnTable(f"{table.text()}\n{_NOTES}", table.csv())
