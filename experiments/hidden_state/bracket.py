"""The range between what audits of a convex model prove and what accounting allows.

Draws the hidden-state bound beside composition, and audits of logistic regression that lie below both. An
audit's canaries lie along coordinates, or are fresh directions, whose scores have a known law. Each
place has a single seed, so that a point has a single conclusion.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from audit.methods.level import Level
from audit.report.style import BLUE, BOUND, FREE, PREDICTED, UPPER
from audit.report.table import Column, Table, at_least, at_most
from experiments.sweeps.panels import epsilon_panels
from experiments.sweeps.points import Point
from experiments.sweeps.sweep import Axis, OwnTable, Sweep

_INTERVAL_COLOR = "0.25"
_LEAST_EPSILON = 0.2  # where the vertical axis begins
_EPSILON_TICKS = (0.3, 1, 3, 10, 30)
_LARGEST_EPSILON = 1e3  # of intervals' ends: infinite ends have no place on the axis
_NOTES = """\
proven:   without an assumption on the curve, by fresh directions
Gaussian: if the curve is Gaussian, by coordinates; interval: two-sided, by them
constant: what a constant direction reaches; hidden: the hidden-state bound"""


def draw(sweep: Sweep, every: Sequence[Point], levels: Level) -> tuple[Figure, OwnTable]:
    """Draws audits of a convex model beside two upper bounds on its epsilon, and makes a table of them.

    The upper bounds are the accountant's, by composition of all steps, and the hidden-state bound on the last
    model alone.

    Args:
      sweep: The sweep; its title and x axis are shown.
      every: The points of all panels; each has a conclusion.
      levels: The delta of epsilon, and the confidence.

    Returns:
      The figure, and the table as text and as CSV.
    """
    axis = sweep.axis or Axis("k", "k")  # these sweeps have an axis; the type allows None
    figure = bracket_figure(sweep.title, axis, every, levels.delta)
    return figure, _make_table(sweep, axis, every, levels)


def bracket_figure(title: str, x_axis: Axis, every: Sequence[Point], delta: float) -> Figure:
    """Draws a panel for each weight decay: two upper bounds as lines over x, audits as marks with intervals.

    The upper bounds are composition and the hidden-state bound.

    Args:
      title: The figure's title.
      x_axis: What the horizontal axis shows.
      every: The points of all panels; each has a conclusion.
      delta: The delta at which epsilon is drawn.
    """
    places = sorted({point.x for point in every})
    place_labels = [f"{place:g}" for place in places]
    rotation = 45 if max(places) > 100 else 0  # long labels overlap

    def draw_panel(axis: Axes, panel: str) -> None:
        """Draws a panel's points, with logarithmic axes and a tick at every x of the figure."""
        _draw_panel(axis, [point for point in every if point.panel == panel], delta)
        axis.set(xscale="log", yscale="log", xlabel=x_axis.name, ylim=(_LEAST_EPSILON, None))
        axis.set_yticks(_EPSILON_TICKS, [f"{tick:g}" for tick in _EPSILON_TICKS])
        axis.set_xticks(places, place_labels, rotation=rotation)
        axis.minorticks_off()

    panels = list(dict.fromkeys(point.panel for point in every))
    return epsilon_panels(title, panels, draw_panel, delta, height=3.1, share_y=True)


def _draw_panel(axis: Axes, panel_points: Sequence[Point], delta: float) -> None:
    """Draws the bounds and the audits of a panel, whose models have the same weight decay.

    Two audits stand at the same x. The canaries of one are gradients along coordinates. Those of the other
    have fresh directions, which every run draws at random. Both audits have the same upper bounds, so that
    either gives them.

    Args:
      axis: The panel.
      panel_points: The audits; each has a conclusion.
      delta: The delta at which the predicted epsilon is drawn.
    """
    point_at = {point.x: point for point in panel_points}  # either of two audits
    xs = sorted(point_at)
    composition = [point_at[x].upper_bound() for x in xs]
    hidden = [_hidden_state_epsilon(point_at[x]) for x in xs]
    axis.plot(xs, composition, color=UPPER, ls=":", label="composition")
    axis.plot(xs, hidden, color=BOUND, label="hidden-state bound, of any data")

    # What a canary along a coordinate shows if no other gradient moves that coordinate.
    predicted = []
    for point in panel_points:
        epsilon = point.predicted(delta)
        if epsilon is not None:
            predicted.append((point.x, epsilon))
    if predicted:
        label = "what a constant direction reaches"
        axis.plot(
            *zip(*sorted(predicted), strict=True), label=label, color=PREDICTED, lw=5, alpha=0.4
        )

    # A point has a single conclusion. Only with fresh directions is the law of scores without the canary
    # known, and then the bound needs no assumption. Along coordinates the interval takes scores to be normal,
    # and the lower bound takes the trade-off curve to be Gaussian. The legend shows a repeated label once.
    for point in panel_points:
        if point.conclusions[0].law_is_known:
            epsilon = point.conclusions[0].epsilon
            label = "lower bound without an assumption, fresh directions"
            axis.plot(point.x, epsilon, "o", color=FREE, ms=4, label=label)
        else:
            _draw_interval(axis, point)
            label = "audit's lower bound if Gaussian, along coordinates"
            axis.plot(point.x, _gaussian_epsilon(point), "^", color=BLUE, ms=4, label=label)


def _draw_interval(axis: Axes, point: Point) -> None:
    """Draws an audit's two-sided interval of epsilon as a bar around its geometric mean.

    The vertical axis is logarithmic, so that the geometric mean is its middle. An infinite end is cut off.
    """
    low, high = np.minimum(point.interval(), _LARGEST_EPSILON)
    middle = (low * high) ** 0.5
    axis.errorbar(
        [point.x],
        [middle],
        [[middle - low], [high - middle]],
        label="audit's two-sided interval where scores are normal",
        color=_INTERVAL_COLOR,
        ls="none",
        capsize=3,
        lw=1.2,
        zorder=3,
    )


def _hidden_state_epsilon(point: Point) -> float:
    """Returns the hidden-state upper bound on epsilon, which every model of these figures has."""
    hidden_state = point.conclusions[0].hidden_state
    assert hidden_state is not None
    return hidden_state.bound.epsilon


def _gaussian_epsilon(point: Point) -> float:
    """Returns the audit's lower bound if the trade-off curve is Gaussian."""
    return point.conclusions[0].gaussian.epsilon


def _format_interval(point: Point) -> str:
    """Formats an audit's two-sided interval of epsilon."""
    low, high = point.interval()
    return f"{low:.2f} to {high:.2f}"


def _make_table(sweep: Sweep, x_axis: Axis, every: Sequence[Point], levels: Level) -> OwnTable:
    """Makes a table with a row for each panel and x: the lower bounds of audits, and the upper bounds.

    At each x is an audit along coordinates, whose point is the row, and an audit with fresh directions.

    Args:
      sweep: The sweep, whose title is above the table.
      x_axis: What x means.
      every: The points of all panels; each has a conclusion.
      levels: The delta of epsilon, and the confidence.
    """
    rows = []  # the audits along coordinates
    proven_epsilons = {}  # by fresh directions, at each panel and x
    for point in every:
        conclusion = point.conclusions[0]  # the only one
        if conclusion.law_is_known:  # only with fresh directions
            proven_epsilons[point.panel, point.x] = conclusion.epsilon
        else:
            rows.append(point)

    def proven(point: Point) -> float | None:
        """Returns the epsilon that fresh directions prove at the same panel and x."""
        return proven_epsilons.get((point.panel, point.x))

    def constant_direction(point: Point) -> float | None:
        """Returns the epsilon that a constant direction reaches; None where there is no prediction."""
        return point.predicted(levels.delta)

    # A column with a key is in the CSV, a column with a heading is in the text.
    columns = (
        Column("panel", lambda point: point.panel),
        Column("x", lambda point: point.x, x_axis.symbol, "{:g}".format, 5, left=True),
        Column("proven", proven, "proven", at_least, 7, none="-"),
        Column("if_gaussian", _gaussian_epsilon, "Gaussian", at_least, 8),
        Column(None, _format_interval, "interval", width=14),
        Column("interval_low", lambda point: point.interval()[0]),
        Column("interval_high", lambda point: point.interval()[1]),
        Column("constant_direction", constant_direction, "constant", "{:.3f}".format, 8, none="-"),
        Column("hidden_state", _hidden_state_epsilon, "hidden", at_most, 8),
        Column("composition", Point.upper_bound, "composition", at_most, 11),
    )
    subtitle = f"epsilon at {levels}"
    before = (sweep.title, subtitle)
    table = Table(columns, rows, section=lambda point: point.panel, before=before, rule=80)
    return OwnTable(f"{table.text()}\n{_NOTES}", table.csv())
