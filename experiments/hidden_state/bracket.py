"""What the last model of a training run leaks: between upper bounds on it and what audits prove.

An upper bound is proven, or it rests on measured constants; if steps have kinks it is an estimate. Each
place has a single seed: a point has a single conclusion.
"""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from audit.claims.hidden_state import HiddenState
from audit.conclusions import lipschitz
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


class UpperPoint(NamedTuple):
    """An upper bound on the last model's epsilon, or an estimate of it.

    Attributes:
      epsilon: The upper bound.
      word: What the bound assumes, in a word, or `ESTIMATE`.
      margin: What the upper bound would be if steps expanded ten times as much.
      expansion: The mean Lipschitz constant of steps; None where composition is the only bound.
    """

    epsilon: float
    word: str
    margin: float
    expansion: float | None


class BracketRow(NamedTuple):
    """The bounds and audits of a model at a place of the figure; None for what is not stored or not known.

    Attributes:
      panel: The panel.
      x: The value on the x axis.
      composition: The accountant's epsilon, for all models of a run together.
      upper: The upper bound on the last model.
      proven: What fresh directions prove, with no assumption.
      gdp_limit: The epsilon below which no GDP guarantee holds, by fresh directions.
      interval: The two-sided interval of the audit along a coordinate.
      gaussian: The lower bound of the audit along a coordinate, if the curve is Gaussian.
      constant: What a canary along a coordinate shows if no other gradient moves that coordinate.
    """

    panel: str
    x: float
    composition: float
    upper: UpperPoint | None
    proven: float | None = None
    gdp_limit: float | None = None
    interval: tuple[float, float] | None = None
    gaussian: float | None = None
    constant: float | None = None


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
    assert sweep.axis is not None
    rows = make_rows(points, sweep.cells, evidence)
    places = sorted({row.x for row in rows})
    rotation = 45 if max(places) > 100 else 0  # long labels overlap

    def draw_panel(axis: Axes, panel: str) -> None:
        """Draws a panel's rows, with a tick at every x of the figure."""
        _draw_panel(axis, sorted(row for row in rows if row.panel == panel))
        axis.set(xscale="log", xlabel=sweep.axis.name)
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
    return figure, _make_table(sweep.title, sweep.axis, rows, evidence)


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
        audited = point.cells[0].setting
        composition = point.upper_bound()
        row = rows.get((point.panel, point.x))
        if row is None:
            # If nothing is measured, since a bound is proven or k is 1, the audit's own setting will do.
            setting = measured.get(_describe_training(audited), audited)
            upper = _find_upper(setting, composition, evidence)
            row = BracketRow(point.panel, point.x, composition, upper)
        conclusion = point.conclusions[0]
        if conclusion.law_is_known:  # of fresh directions
            gdp_limit = conclusion.bound(EXACT_NULL_GDP).epsilon
            row = row._replace(proven=conclusion.epsilon, gdp_limit=gdp_limit)
        else:
            row = row._replace(
                interval=point.interval(),
                gaussian=point.epsilons("if_gaussian")[0],
                constant=point.predicted(evidence.levels.delta),
            )
        rows[point.panel, point.x] = row
    return list(rows.values())


def _list_measured(cells: Sequence[Cell]) -> list[Setting]:
    """Returns the settings whose steps are measured by a cell."""
    return [cell.request for cell in cells if isinstance(cell.request, Setting)]


def _describe_training(setting: Setting) -> Hashable:
    """Returns what decides how a setting's steps stretch distances: all but the adversary."""
    return setting.model, setting.mechanism, setting.schedule, setting.seed


def _find_upper(setting: Setting, composition: float, evidence: Evidence) -> UpperPoint | None:
    """Returns the upper bound on the last model at a place; None if it has not been measured.

    Args:
      setting: The setting whose steps are measured, or else of any audit there.
      composition: The accountant's epsilon.
      evidence: What the store holds, and the delta of bounds.
    """
    delta = evidence.levels.delta
    state = lipschitz.hidden_state(setting, delta)
    # At k = 1 every step inserts: unless steps contract, composition is the only bound.
    contracts = isinstance(state, HiddenState) and state.bound.epsilon < composition
    if setting.schedule.periodicity == 1 and not contracts:
        return UpperPoint(composition, COMPOSITION, margin=composition, expansion=None)
    if isinstance(state, HiddenState):  # proven, without a measurement
        return _describe(state, state.assumes.word)
    steps = expansion.read(evidence.held, setting)
    if steps is None:
        return None
    # At a kink a derivative does not bound how far a step separates two models.
    word = ESTIMATE if steps.kink else "measured"
    measured = lipschitz.hidden_state(setting, delta, steps._replace(kink=""))
    assert isinstance(measured, HiddenState)
    return _describe(measured, word)


def _describe(state: HiddenState, word: str) -> UpperPoint:
    """Returns a hidden-state bound as the figure shows it."""
    margin = state.margins[_MARGIN].epsilon
    return UpperPoint(state.bound.epsilon, word, margin, state.mean_constant)


def _draw_panel(axis: Axes, rows: Sequence[BracketRow]) -> None:
    """Draws a panel's upper bounds over x as lines, and its audits as marks and intervals."""
    xs = [row.x for row in rows]
    axis.plot(xs, [row.composition for row in rows], color=UPPER, ls=":", label="composition")
    _draw_upper(axis, rows)
    predicted = [(row.x, row.constant) for row in rows if row.constant is not None]
    if predicted:
        label = "what a constant direction reaches"
        axis.plot(
            *zip(*predicted, strict=True), color=PREDICTED, lw=5, alpha=0.4, zorder=1, label=label
        )
    marks: tuple[tuple[str, str, str, str], ...] = (
        ("proven", "o", FREE, "lower bound without an assumption, fresh directions"),
        ("gdp_limit", "^", GREEN, "below it no GDP guarantee holds, fresh directions"),
        ("gaussian", "v", BLUE, "lower bound if Gaussian, along coordinates"),
    )
    for field, marker, color, label in marks:
        known = [row for row in rows if getattr(row, field) is not None]
        values = [getattr(row, field) for row in known]
        axis.plot([row.x for row in known], values, marker, color=color, ms=4, label=label)
    for row in rows:
        if row.interval is not None:
            axis.vlines(
                row.x,
                row.interval[0],
                min(row.interval[1], _MAX_EPSILON),
                color=BLUE,
                lw=1.2,
                zorder=3,
                label="audit's two-sided interval where scores are normal",
            )


def _draw_upper(axis: Axes, rows: Sequence[BracketRow]) -> None:
    """Draws the upper bounds on the last model as a line, and a band up to their margins."""
    bounded = [(row.x, row.upper) for row in rows if row.upper is not None]
    if not bounded:
        return
    xs = [x for x, _ in bounded]
    epsilons = [upper.epsilon for _, upper in bounded]
    look: dict[str, Any] = {"ls": "-", "label": "last model at most, proven or measured"}
    if any(upper.word == ESTIMATE for _, upper in bounded):
        look = {
            "ls": "--",
            "label": "last model at most by derivatives, an estimate: steps have kinks",
        }
    axis.plot(xs, epsilons, color=BOUND, **look)
    margins = [upper.margin for _, upper in bounded]
    label = "up to steps that expand ten times as much"
    axis.fill_between(xs, epsilons, margins, color=BOUND, alpha=0.15, lw=0, label=label)


def _make_table(
    title: str, x_axis: Axis, rows: Sequence[BracketRow], evidence: Evidence
) -> OwnTable:
    """Makes a table with a row for each place: what audits prove there, and the upper bounds."""

    def find_upper(field: str) -> Any:
        """Returns a function of a row: a field of its upper bound."""
        return lambda row: getattr(row.upper, field, None)

    def find_end(place: int) -> Any:
        """Returns a function of a row: the lower (0) or the upper (1) end of its interval."""
        return lambda row: None if row.interval is None else row.interval[place]

    # A column with a key is in the CSV, a column with a heading is in the text.
    columns = (
        Column("panel", lambda row: row.panel),
        Column("x", lambda row: row.x, x_axis.symbol, "{:g}".format, 5, left=True),
        Column("proven", lambda row: row.proven, "proven", at_least, 6, none="-"),
        Column("gdp_limit", lambda row: row.gdp_limit, "GDP", at_least, 6, none="-"),
        Column("if_gaussian", lambda row: row.gaussian, "Gauss", at_least, 6, none="-"),
        Column("interval_low", find_end(0), "audit", number(".2f"), 6, none="-"),
        Column("interval_high", find_end(1), "to", number(".2f"), 6, none="-"),
        Column("constant_direction", lambda row: row.constant, "const", number(".2f"), 6, none="-"),
        Column("at_most", find_upper("epsilon"), "at most", at_most, 7, none="-"),
        Column("margin", find_upper("margin"), "x10", at_most, 6, none="-"),
        Column("word", find_upper("word"), "why", width=11, left=True, none="-"),
        Column("expansion", find_upper("expansion"), "mean c", number(".5f"), 8, none="-"),
        Column("composition", lambda row: row.composition, "composed", at_most, 8),
    )
    before = (title, f"epsilon at {evidence.levels}")
    table = Table(columns, rows, section=lambda row: row.panel, before=before, gap=" ", rule=80)
    return OwnTable(f"{table.text()}\n{_NOTES}", table.csv())
