"""What the last model of a training run leaks: between upper bounds on it and what audits prove.

An upper bound is proven, or it rests on measured constants; if steps have kinks it is an estimate. Each
place has a single seed: a point has a single conclusion.
"""

from collections.abc import Hashable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from audit.claims.hidden_state import HiddenState
from audit.conclusions import lipschitz
from audit.methods.estimate import IF_GAUSSIAN
from audit.methods.exact_null import EXACT_NULL_GDP
from audit.report.style import BLUE, BOUND, FREE, GREEN, PREDICTED, UPPER
from audit.report.table import Column, Table, at_least, at_most, number
from audit.settings.setting import Setting
from experiments.cells.cell import Cell
from experiments.hidden_state import expansion
from experiments.sweeps.panels import epsilon_panels
from experiments.sweeps.points import Evidence, Point
from experiments.sweeps.sweep import Axis, OwnTable, Sweep

ESTIMATE = "estimate"
COMPOSITION = "composition"
_MARGIN = 10  # by how much the margin multiplies the excess over 1 of measured Lipschitz constants
_MAX_EPSILON = 1e3  # at which infinite ends of intervals are cut off
_MIN_EPSILON = 0.2  # where a logarithmic axis begins
_TICKS = (0.3, 1, 3, 10, 30)
_NOTES = """\
proven:   without an assumption, by fresh directions; GDP: below it no GDP guarantee holds
Gauss:    if the curve is Gaussian; audit: two-sided, where scores are normal; by coordinates
const:    what a constant direction reaches, predicted
at most:  upper bound on the last model, and why; x10: if steps expand ten times as much
estimate: steps have kinks, and derivatives do not bound them"""


class BracketRow(NamedTuple):
    """The bounds and audits of a model at a place of the figure; None for what is not stored or not known.

    Attributes:
      panel: The panel.
      x: The value on the x axis.
      composition: The accountant's epsilon, for all models of a run together.
      at_most: The upper bound on the last model, or an estimate of it.
      word: What the upper bound assumes, in a word, or `ESTIMATE`.
      margin: What the upper bound would be if steps expanded ten times as much.
      expansion: The mean Lipschitz constant of steps; None where composition is the only bound.
      proven: What fresh directions prove, with no assumption.
      gdp_limit: The epsilon below which no GDP guarantee holds, by fresh directions.
      interval_low, interval_high: The two-sided interval of the audit along a coordinate.
      if_gaussian: The lower bound of the audit along a coordinate, if the curve is Gaussian.
      constant_direction: What a canary along a coordinate shows if no other gradient moves that coordinate.
    """

    panel: str
    x: float
    composition: float
    at_most: float | None = None
    word: str | None = None
    margin: float | None = None
    expansion: float | None = None
    proven: float | None = None
    gdp_limit: float | None = None
    interval_low: float | None = None
    interval_high: float | None = None
    if_gaussian: float | None = None
    constant_direction: float | None = None


def draw(
    sweep: Sweep, points: Sequence[Point], evidence: Evidence, logarithmic: bool
) -> tuple[Figure, OwnTable]:
    """Draws the figure of upper bounds and audits, and makes its table.

    Args:
      sweep: The sweep.
      points: The points of all panels; each has a conclusion.
      evidence: What the store holds, and the delta and confidence of bounds.
      logarithmic: Whether epsilon has a logarithmic axis.
    """
    x_axis = sweep.axis or Axis("k", "k")  # these sweeps have an axis; the type allows None
    rows = make_rows(points, sweep.cells, evidence)
    places = sorted({row.x for row in rows})
    rotation = 45 if max(places) > 100 else 0  # long labels overlap

    def draw_panel(axis: Axes, panel: str) -> None:
        """Draws a panel's rows, with a tick at every x of the figure."""
        _draw_panel(axis, sorted(row for row in rows if row.panel == panel))
        axis.set(xscale="log", xlabel=x_axis.name)
        if logarithmic:
            axis.set(yscale="log", ylim=(_MIN_EPSILON, None))
            axis.set_yticks(_TICKS, [f"{tick:g}" for tick in _TICKS])
        else:
            axis.set_ylim(0, None)
        axis.set_xticks(places, [f"{place:g}" for place in places], rotation=rotation)
        axis.minorticks_off()

    panels = list(dict.fromkeys(row.panel for row in rows))
    delta = evidence.levels.delta
    figure = epsilon_panels(sweep.title, panels, draw_panel, delta, height=2.9, share_y=True)
    return figure, _make_table(sweep.title, x_axis, rows, evidence)


def count_unmeasured(sweep: Sweep, evidence: Evidence) -> int:
    """Returns how many of a sweep's measurements of how much steps stretch distances the store lacks."""
    settings = _list_measured(sweep.cells)
    return sum(expansion.read(evidence.held, setting) is None for setting in settings)


def make_rows(
    points: Sequence[Point], cells: Sequence[Cell], evidence: Evidence
) -> list[BracketRow]:
    """Returns a row for each place, a panel and an x, in the order of the points.

    A place has up to two audits, with fresh directions and along a coordinate.

    Args:
      points: The points of all panels; each has a conclusion.
      cells: The sweep's cells, whose measurements of steps are used.
      evidence: What the store holds, and the delta and confidence of bounds.
    """
    measured = {_describe_training(setting): setting for setting in _list_measured(cells)}
    rows: dict[tuple[str, float], BracketRow] = {}
    for point in points:
        place = (point.panel, point.x)
        if place not in rows:
            # If nothing is measured, since a bound is proven or k is 1, the audit's own setting will do.
            setting = point.cells[0].setting
            setting = measured.get(_describe_training(setting), setting)
            rows[place] = _add_upper(BracketRow(*place, point.upper_bound()), setting, evidence)
        conclusion = point.conclusions[0]
        if conclusion.law_is_known:  # of fresh directions
            gdp_limit = conclusion.bound(EXACT_NULL_GDP).epsilon
            rows[place] = rows[place]._replace(proven=conclusion.epsilon, gdp_limit=gdp_limit)
        else:
            low, high = point.interval()
            rows[place] = rows[place]._replace(
                interval_low=low,
                interval_high=high,
                if_gaussian=point.epsilons(IF_GAUSSIAN)[0],
                constant_direction=point.predicted(evidence.levels.delta),
            )
    return list(rows.values())


def _list_measured(cells: Sequence[Cell]) -> list[Setting]:
    """Returns the settings whose steps are measured by a cell."""
    return [cell.request for cell in cells if isinstance(cell.request, Setting)]


def _describe_training(setting: Setting) -> Hashable:
    """Returns what decides how a setting's steps stretch distances: all but the adversary."""
    return setting.model, setting.mechanism, setting.schedule, setting.seed


def _add_upper(row: BracketRow, setting: Setting, evidence: Evidence) -> BracketRow:
    """Returns a row with the upper bound on the last model, if it is proven or has been measured.

    Args:
      row: The row, which has composition's epsilon.
      setting: The setting whose steps are measured, or else of any audit there.
      evidence: What the store holds, and the delta of bounds.
    """
    delta = evidence.levels.delta
    state = lipschitz.hidden_state(setting, delta)
    word = "measured"
    if isinstance(state, HiddenState):  # proven, without a measurement
        word = state.assumes.word
    # At k = 1 every step inserts: unless steps contract, composition is the only bound.
    contracts = isinstance(state, HiddenState) and state.bound.epsilon < row.composition
    if setting.schedule.periodicity == 1 and not contracts:
        epsilon = row.composition
        return row._replace(at_most=epsilon, word=COMPOSITION, margin=epsilon)
    if isinstance(state, str):
        steps = expansion.read(evidence.held, setting)
        if steps is None:
            return row
        if steps.kink:  # there a derivative does not bound how far a step separates two models
            word = ESTIMATE
        state = lipschitz.hidden_state(setting, delta, steps._replace(kink=""))
        assert isinstance(state, HiddenState)
    margin = state.margins[_MARGIN].epsilon
    bound = state.bound.epsilon
    return row._replace(at_most=bound, word=word, margin=margin, expansion=state.mean_constant)


def _draw_panel(axis: Axes, rows: Sequence[BracketRow]) -> None:
    """Draws a panel's upper bounds over x as lines, and its audits as marks and intervals."""

    xs = [row.x for row in rows]

    def take(field: str) -> NDArray[np.float64]:
        """Returns a field of all rows, NaN for rows without it."""
        return np.array([getattr(row, field) for row in rows], np.float64)

    def draw(field: str, label: str, **look: Any) -> None:
        """Draws a field if any row has it."""
        if np.isfinite(take(field)).any():
            axis.plot(xs, take(field), label=label, **look)

    draw("composition", "composition", color=UPPER, ls=":")
    label = "last model at most, proven or measured"
    dash = "-"
    if any(row.word == ESTIMATE for row in rows):
        label = "last model at most by derivatives, an estimate: steps have kinks"
        dash = "--"
    draw("at_most", label, color=BOUND, ls=dash)
    label = "up to steps that expand ten times as much"
    look: dict[str, Any] = {"color": BOUND, "alpha": 0.15, "lw": 0, "label": label}
    axis.fill_between(xs, take("at_most"), take("margin"), **look)
    label = "what a constant direction reaches"
    draw("constant_direction", label, color=PREDICTED, lw=5, alpha=0.4, zorder=1)

    label = "lower bound without an assumption, fresh directions"
    draw("proven", label, color=FREE, marker="o", ms=4, ls="")
    label = "below it no GDP guarantee holds, fresh directions"
    draw("gdp_limit", label, color=GREEN, marker="^", ms=4, ls="")
    label = "lower bound if Gaussian, along coordinates"
    draw("if_gaussian", label, color=BLUE, marker="v", ms=4, ls="")
    label = "audit's two-sided interval where scores are normal"
    highs = np.minimum(take("interval_high"), _MAX_EPSILON)
    axis.vlines(xs, take("interval_low"), highs, color=BLUE, zorder=3, label=label)


def _make_table(
    title: str, x_axis: Axis, rows: Sequence[BracketRow], evidence: Evidence
) -> OwnTable:
    """Makes a table with a row for each place: what audits prove there, and the upper bounds."""
    two_decimals = number(".2f")
    # A column with a heading is in the text, all are in the CSV.
    shown: tuple[tuple[str, str | None, Any, int], ...] = (
        ("panel", None, str, 0),
        ("x", x_axis.symbol, "{:g}".format, 5),
        ("proven", "proven", at_least, 6),
        ("gdp_limit", "GDP", at_least, 6),
        ("if_gaussian", "Gauss", at_least, 6),
        ("interval_low", "audit", two_decimals, 6),
        ("interval_high", "to", two_decimals, 6),
        ("constant_direction", "const", two_decimals, 6),
        ("at_most", "at most", at_most, 7),
        ("margin", "x10", at_most, 6),
        ("word", "why", str, 11),
        ("expansion", "mean c", number(".5f"), 8),
        ("composition", "composed", at_most, 8),
    )
    columns = []
    for key, head, show, width in shown:
        columns.append(Column(key, attrgetter(key), head, show, width, none="-"))
    before = (title, f"epsilon at {evidence.levels}")
    section = attrgetter("panel")
    table = Table(columns, rows, section=section, before=before, gap=" ", rule=80)
    return OwnTable(f"{table.text()}\n{_NOTES}", table.csv())
