"""What the last model of a neural network leaks at most, and what audits find: figure and table.

An upper bound is proven, or it rests on measured constants; where steps have kinks it is an estimate. Each
place has a single seed, so that a point has a single conclusion.
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from audit.claims.hidden_state import HiddenState
from audit.conclusions import lipschitz
from audit.methods.exact_null import EXACT_NULL_GDP
from audit.methods.level import Level, show_percent
from audit.report.style import BLUE, BOUND, FREE, GREEN, UPPER
from audit.report.table import Column, Table, at_least, at_most, number
from audit.settings.setting import Setting
from experiments.cells.cell import Cell
from experiments.hidden_state import networks
from experiments.sweeps.panels import epsilon_panels
from experiments.sweeps.points import Evidence, Point
from experiments.sweeps.sweep import Axis, OwnTable, Sweep

ESTIMATE = "estimate"
COMPOSITION = "composition"
_MARGIN = 10  # by how much the margin multiplies the excess over 1 of measured Lipschitz constants
_LARGEST_EPSILON = 1e3  # at which infinite ends of intervals are cut off
_NOTES = """\
proven:  without an assumption, by fresh directions; GDP: below it no GDP guarantee holds, by the same
audit:   two-sided interval where scores are normal, along the coordinate that a rehearsal recommends
at most: upper bound on the last model, and why; x10: if steps expand ten times as much
estimate: steps have kinks, so that derivatives do not bound them"""


class UpperPoint(NamedTuple):
    """An upper bound on the last model's epsilon, or an estimate of it.

    Attributes:
      epsilon: The upper bound, at the levels' delta.
      word: What the bound assumes, in a word, or `ESTIMATE`.
      margin: What the upper bound would be if steps expanded ten times as much.
      expansion: The mean Lipschitz constant of steps; None where composition is the only bound.
    """

    epsilon: float
    word: str
    margin: float
    expansion: float | None


class BracketRow(NamedTuple):
    """The bounds and audits of a model at a place of the figure.

    Attributes:
      panel: The panel.
      x: The value on the x axis.
      composition: The accountant's epsilon, for all models of a run together.
      upper: The upper bound on the last model; None where it was not measured yet.
      proven: What fresh directions prove, with no assumption; None where they were not audited yet.
      gdp_limit: The epsilon below which no GDP guarantee holds; None where fresh directions were not audited.
      interval: The audit's two-sided interval along a coordinate; None where there is none yet.
    """

    panel: str
    x: float
    composition: float
    upper: UpperPoint | None
    proven: float | None
    gdp_limit: float | None
    interval: tuple[float, float] | None


def draw(sweep: Sweep, points: Sequence[Point], evidence: Evidence) -> tuple[Figure, OwnTable]:
    """Draws the figure of upper bounds and audits, and makes its table.

    Args:
      sweep: The sweep; its title and x axis are shown.
      points: The points of all panels; those without a conclusion are passed over.
      evidence: What the store holds, and the delta and confidence of bounds.
    """
    axis = sweep.axis or Axis("k", "k")  # these sweeps have an axis; the type allows None
    rows = make_rows(points, sweep.cells, evidence)
    figure = _draw_figure(sweep.title, axis, rows, evidence.levels)
    return figure, _make_table(sweep, axis, rows, evidence)


def count_unmeasured(sweep: Sweep, evidence: Evidence) -> int:
    """Returns how many of a sweep's measurements of how much steps stretch distances the store lacks."""
    count = 0
    for cell in sweep.cells:
        if not isinstance(cell.request, Setting):  # an audit, no measurement
            continue
        if networks.read_expansion(evidence.held, cell.request) is None:
            count += 1
    return count


def make_rows(
    points: Sequence[Point], cells: Sequence[Cell], evidence: Evidence
) -> list[BracketRow]:
    """Returns a row for each place at which anything was audited, in the order of the points.

    A place is a panel and an x. It has up to two audits, with fresh directions and along a coordinate, each
    of a single seed, so that a point has at most one conclusion. The audits of a place differ in their
    adversaries and numbers of canaries, on which the accountant's epsilon (composition) does not depend.

    Args:
      points: The points of all panels; those without a conclusion are passed over.
      cells: The sweep's cells, whose measurements of steps are used.
      evidence: What the store holds, and the delta and confidence of bounds.
    """
    # The settings whose steps are measured, by what decides how steps stretch distances. Audits that differ
    # in the adversary alone share a measurement.
    measured = {}
    for cell in cells:
        if isinstance(cell.request, Setting):  # a cell that measures; other cells audit
            measured[_describe_training(cell.request)] = cell.request

    # The audits at each place, by series: with fresh directions, and along a coordinate.
    places: dict[tuple[str, float], dict[str, Point]] = {}
    for point in points:
        if point.conclusions:
            places.setdefault((point.panel, point.x), {})[point.series] = point

    rows = []
    for (panel, x), by_series in places.items():
        fresh = by_series.get(networks.FRESH)
        coordinate = by_series.get(networks.COORDINATE)
        any_point = next(iter(by_series.values()))
        audited = any_point.cells[0].setting
        # Where nothing is measured, since a bound is proven or k is 1, the audit's own setting will do.
        setting = measured.get(_describe_training(audited), audited)
        composition = any_point.upper_bound()

        # What fresh directions prove: epsilon without an assumption, and the epsilon below which no GDP
        # guarantee holds.
        proven = None
        gdp_limit = None
        if fresh is not None:
            conclusion = fresh.conclusions[0]
            proven = conclusion.epsilon
            gdp_limit = conclusion.bound(EXACT_NULL_GDP).epsilon
        rows.append(
            BracketRow(
                panel=panel,
                x=x,
                composition=composition,
                upper=_find_upper(setting, composition, evidence),
                proven=proven,
                gdp_limit=gdp_limit,
                interval=None if coordinate is None else coordinate.interval(),
            )
        )
    return rows


def _describe_training(setting: Setting) -> Hashable:
    """Returns what decides how a setting's steps stretch distances: all but the adversary."""
    return setting.model, setting.mechanism, setting.schedule, setting.seed


def _find_upper(setting: Setting, composition: float, evidence: Evidence) -> UpperPoint | None:
    """Returns the upper bound on the last model at a place; None where it has not been measured.

    It is proven, or it rests on measured derivatives of the steps. Where steps have kinks, such as those of a
    ReLU, derivatives do not bound how far a step separates two models, and the bound is an estimate.

    Args:
      setting: The setting whose steps are measured, or else of any audit there.
      composition: The accountant's epsilon.
      evidence: What the store holds, and the delta of bounds.
    """
    # At k = 1 every step inserts. Nothing is measured there: composition is the only bound, with no margin.
    if setting.schedule.periodicity == 1:
        return UpperPoint(composition, COMPOSITION, margin=composition, expansion=None)
    delta = evidence.levels.delta
    state = lipschitz.hidden_state(setting, delta)
    if isinstance(state, HiddenState):  # proven, without a measurement
        return _describe(state, state.assumes.word)

    # Nothing is proven of the steps, and `state` is a text that says why.
    steps = networks.read_expansion(evidence.held, setting)
    if steps is None:
        return None
    word = ESTIMATE if steps.kink else "measured"
    return _describe(_bound_regardless_of_kinks(setting, steps, delta), word)


def _bound_regardless_of_kinks(
    setting: Setting, steps: lipschitz.Steps, delta: float
) -> HiddenState:
    """Returns the bound from the steps' measured derivatives, as if steps had no kinks.

    At a kink a derivative does not bound how far a step separates two models. The bound is then an estimate.

    Args:
      setting: The setting whose steps were measured.
      steps: What was measured.
      delta: The delta of the bound's epsilon.
    """
    # For steps with a kink, `hidden_state` would return a text that says why there is no bound.
    state = lipschitz.hidden_state(setting, delta, steps._replace(kink=""))
    assert isinstance(state, HiddenState)
    return state


def _describe(state: HiddenState, word: str) -> UpperPoint:
    """Returns a hidden-state bound as the figure shows it.

    Args:
      state: The bound, its margins, and the Lipschitz constants of the steps.
      word: What the bound assumes, in a word.
    """
    return UpperPoint(
        epsilon=state.bound.epsilon,
        word=word,
        margin=state.margins[_MARGIN].epsilon,  # if constants exceeded 1 by _MARGIN times as much
        expansion=state.mean_constant,  # the mean Lipschitz constant
    )


def _draw_figure(title: str, x_axis: Axis, rows: Sequence[BracketRow], levels: Level) -> Figure:
    """Draws all panels of the rows: upper bounds as lines over x, audits as marks and intervals."""
    places = sorted({row.x for row in rows})
    labels = [f"{place:g}" for place in places]

    def draw_panel(axis: Axes, panel: str) -> None:
        """Draws a panel's rows, with a logarithmic x axis and a tick at every x of the figure."""
        _draw_panel(axis, [row for row in rows if row.panel == panel], levels.confidence)
        axis.set(xscale="log", xlabel=x_axis.name, ylim=(0, None))
        axis.set_xticks(places, labels)
        axis.minorticks_off()

    panels = list(dict.fromkeys(row.panel for row in rows))
    return epsilon_panels(title, panels, draw_panel, levels.delta, height=2.7, share_y=True)


def _draw_panel(axis: Axes, rows: Sequence[BracketRow], confidence: float) -> None:
    """Draws a panel's upper bounds over x, and its audits.

    Args:
      axis: The panel.
      rows: The panel's rows, in the order of x.
      confidence: The confidence of the audits' intervals.
    """
    xs = [row.x for row in rows]
    axis.plot(xs, [row.composition for row in rows], color=UPPER, ls=":", label="composition")
    _draw_upper(axis, rows)
    for row in rows:
        if row.proven is not None:
            label = "lower bound without an assumption, fresh directions"
            axis.plot(row.x, row.proven, "o", color=FREE, ms=4, label=label)
        if row.gdp_limit is not None:
            label = "below it no GDP guarantee holds, fresh directions"
            axis.plot(row.x, row.gdp_limit, "^", color=GREEN, ms=4, label=label)
        if row.interval is not None:
            _draw_interval(axis, row.x, row.interval, confidence)


def _draw_upper(axis: Axes, rows: Sequence[BracketRow]) -> None:
    """Draws the upper bounds on the last model as a line, and a band up to their margins.

    A margin is what the bound would be if steps expanded ten times as much.

    Args:
      axis: The panel.
      rows: The panel's rows, in the order of x; those without an upper bound are left out.
    """
    bounded = [(row.x, row.upper) for row in rows if row.upper is not None]
    if not bounded:
        return
    xs = [x for x, _ in bounded]
    epsilons = [upper.epsilon for _, upper in bounded]
    margins = [upper.margin for _, upper in bounded]
    # The line is called an estimate as soon as any of its points is an estimate.
    is_estimate = any(upper.word == ESTIMATE for _, upper in bounded)
    label = "last model at most, proven or measured"
    dash = "-"
    if is_estimate:
        label = "last model at most by derivatives, an estimate: steps have kinks"
        dash = "--"
    axis.plot(xs, epsilons, color=BOUND, ls=dash, label=label)
    label = "up to steps that expand ten times as much"
    axis.fill_between(xs, epsilons, margins, color=BOUND, alpha=0.15, lw=0, label=label)


def _draw_interval(axis: Axes, x: float, interval: tuple[float, float], confidence: float) -> None:
    """Draws the interval of an audit along a coordinate as a bar at x; an infinite end is cut off.

    Args:
      axis: The panel.
      x: The place of the bar.
      interval: The lower and the upper end, in epsilon.
      confidence: The interval's confidence, for the legend.
    """
    low = interval[0]
    high = min(interval[1], _LARGEST_EPSILON)
    middle = (low + high) / 2
    axis.errorbar(
        [x],
        [middle],
        [[middle - low], [high - middle]],
        label=f"audit's {show_percent(confidence)} interval, recommended coordinate",
        color=BLUE,
        ls="none",
        capsize=3,
        lw=1.2,
        zorder=3,
    )


def _make_table(
    sweep: Sweep, x_axis: Axis, rows: Sequence[BracketRow], evidence: Evidence
) -> OwnTable:
    """Makes a table with a row for each place: what audits prove there, and the upper bounds.

    Args:
      sweep: The sweep, whose title is above the table.
      x_axis: What x means.
      rows: The rows.
      evidence: The delta and confidence of bounds.
    """
    # A column with a key is in the CSV, a column with a heading is in the text.
    columns = (
        Column("panel", lambda row: row.panel),
        Column("x", lambda row: row.x, x_axis.symbol, "{:g}".format, 5, left=True),
        Column("proven", lambda row: row.proven, "proven", at_least, 7, none="-"),
        Column("gdp_limit", lambda row: row.gdp_limit, "GDP", at_least, 7, none="-"),
        Column(None, _show_interval, "audit", width=14),
        Column("interval_low", lambda row: _find_end(row, 0)),
        Column("interval_high", lambda row: _find_end(row, 1)),
        Column("at_most", _find_epsilon, "at most", at_most, 8, none="-"),
        Column("margin", _find_margin, "x10", at_most, 7, none="-"),
        Column("word", _find_word, "why", width=11, left=True, none="-"),
        Column("expansion", _find_expansion, "mean c", number(".5f"), 8, none="-"),
        Column("composition", lambda row: row.composition, "composed", at_most, 8),
    )
    levels = evidence.levels
    subtitle = f"epsilon at {levels}"
    before = (sweep.title, subtitle)
    table = Table(columns, rows, section=lambda row: row.panel, before=before, gap=" ", rule=80)
    return OwnTable(f"{table.text()}\n{_NOTES}", table.csv())


def _show_interval(row: BracketRow) -> str:
    """Formats the audit's interval of epsilon; "-" where there is none."""
    if row.interval is None:
        return "-"
    low, high = row.interval
    return f"{low:.2f} to {high:.2f}"


def _find_epsilon(row: BracketRow) -> float | None:
    """Returns the upper bound on the last model's epsilon; None where it was not measured yet."""
    return None if row.upper is None else row.upper.epsilon


def _find_margin(row: BracketRow) -> float | None:
    """Returns the upper bound if steps expanded ten times as much; None where it was not measured yet."""
    return None if row.upper is None else row.upper.margin


def _find_word(row: BracketRow) -> str | None:
    """Returns the word for what the upper bound assumes; None where it was not measured yet."""
    return None if row.upper is None else row.upper.word


def _find_expansion(row: BracketRow) -> float | None:
    """Returns the mean Lipschitz constant of steps; None where there is none."""
    return None if row.upper is None else row.upper.expansion


def _find_end(row: BracketRow, place: int) -> float | None:
    """Returns the lower (place 0) or the upper (place 1) end of the audit's interval; None without one."""
    return None if row.interval is None else row.interval[place]
