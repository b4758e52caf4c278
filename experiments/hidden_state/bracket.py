"""What the last model of a training run leaks: between upper bounds on it and what audits prove.

An upper bound is proven, or it rests on measured constants; if steps have kinks it is an estimate. Each
place has a single seed: a point has a single conclusion.
"""

from collections.abc import Hashable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from audit.claims.hidden_state import HiddenState
from audit.conclusions import lipschitz
from audit.methods.estimate import IF_GAUSSIAN
from audit.methods.exact_null import EXACT_NULL_GDP
from audit.methods.level import show_level
from audit.report.style import BLUE, BOUND, FREE, GREEN, PREDICTED, UPPER
from audit.report.table import Table, at_least, at_most, number
from audit.settings.setting import Setting
from experiments.cells.cell import Cell
from experiments.hidden_state import expansion
from experiments.sweeps.panels import draw_panels
from experiments.sweeps.points import Evidence, Point
from experiments.sweeps.records import Record, field
from experiments.sweeps.sweep import Axis, OwnTable, Sweep

ESTIMATE = "estimate"
COMPOSITION = "composition"
_MARGIN = 10  # by how much the margin multiplies the excess over 1 of measured Lipschitz constants
_MAX_EPSILON = 1e3  # at which infinite ends of intervals are cut off
_TICKS = (0.3, 1, 3, 10, 30)  # of a logarithmic axis
_MARKS: dict[str, tuple[str, dict[str, Any]]] = {  # label and looks, by the field of a row
    "composition": ("composition", {"color": UPPER, "ls": ":"}),
    "constant_direction": (
        "what a constant direction reaches",
        {"color": PREDICTED, "lw": 5, "alpha": 0.4, "zorder": 1},
    ),
    "proven": (
        "lower bound without an assumption, fresh directions",
        {"color": FREE, "marker": "o", "ms": 4, "ls": ""},
    ),
    "gdp_limit": (
        "below it no GDP guarantee holds, fresh directions",
        {"color": GREEN, "marker": "^", "ms": 4, "ls": ""},
    ),
    "if_gaussian": (
        "lower bound if Gaussian, along coordinates",
        {"color": BLUE, "marker": "v", "ms": 4, "ls": ""},
    ),
}
_NOTES = """\
proven:   without an assumption, by fresh directions; GDP: below it no GDP guarantee holds
Gauss:    if the curve is Gaussian; audit: two-sided, where scores are normal; by coordinates
const:    what a constant direction reaches, predicted
at most:  upper bound on the last model, and why; x10: if steps expand ten times as much
estimate: steps have kinks, and derivatives do not bound them"""


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
    places = sorted({row["x"] for row in rows})
    labels = [f"{place:g}" for place in places]

    def draw_panel(panel: str, axis: Axes) -> None:
        """Draws a panel's rows, with a tick at every x of the figure."""
        of_panel = [row for row in rows if row["panel"] == panel]
        _draw_rows(axis, sorted(of_panel, key=itemgetter("x")))
        axis.set(xscale="log", xlabel=x_axis.name)
        if logarithmic:
            axis.set(yscale="log", ylim=(0.2, None))
            axis.set_yticks(_TICKS, [f"{tick:g}" for tick in _TICKS])
        else:
            axis.set_ylim(0, None)
        axis.set_xticks(places, labels, rotation=45 if places[-1] > 100 else 0)  # they overlap
        axis.minorticks_off()

    panels = {row["panel"]: partial(draw_panel, row["panel"]) for row in rows}
    label = f"epsilon at delta {show_level(evidence.levels.delta)}"
    figure = draw_panels(sweep.title, panels, ylabel=label, sharey=True)
    return figure, _make_table(sweep.title, x_axis, rows, evidence)


def count_unmeasured(sweep: Sweep, evidence: Evidence) -> int:
    """Returns how many of a sweep's measurements of how much steps stretch distances the store lacks."""
    settings = _list_measured(sweep.cells)
    return sum(expansion.read(evidence.held, setting) is None for setting in settings)


def make_rows(points: Sequence[Point], cells: Sequence[Cell], evidence: Evidence) -> list[Record]:
    """Returns a row for each place, a panel and an x; a row has no fields for what is unknown.

    A place has up to two audits, with fresh directions and along a coordinate. The fields of a row are
    epsilons but for `panel`, `x`, the `word` for what the upper bound assumes, and `expansion`, the mean
    Lipschitz constant of steps.

    Args:
      points: The points of all panels; each has a conclusion.
      cells: The sweep's cells, whose measurements of steps are used.
      evidence: What the store holds, and the delta and confidence of bounds.
    """
    measured = {_describe_training(setting): setting for setting in _list_measured(cells)}
    rows: dict[tuple[str, float], Record] = {}
    for point in points:
        place = (point.panel, point.x)
        if place not in rows:
            # If nothing is measured, since a bound is proven or k is 1, the audit's own setting will do.
            setting = point.cells[0].setting
            setting = measured.get(_describe_training(setting), setting)
            composition = point.upper_bound()
            upper = _find_upper(composition, setting, evidence)
            rows[place] = {"panel": point.panel, "x": point.x, "composition": composition, **upper}
        conclusion = point.conclusions[0]
        if conclusion.law_is_known:  # of fresh directions
            gdp_limit = conclusion.bound(EXACT_NULL_GDP).epsilon
            rows[place] |= {"proven": conclusion.epsilon, "gdp_limit": gdp_limit}
        else:
            low, high = point.interval()
            rows[place] |= {
                "interval_low": low,
                "interval_high": high,
                "if_gaussian": point.epsilons(IF_GAUSSIAN)[0],
                "constant_direction": point.predicted(evidence.levels.delta),
            }
    return list(rows.values())


def _list_measured(cells: Sequence[Cell]) -> list[Setting]:
    """Returns the settings whose steps are measured by a cell."""
    return [cell.request for cell in cells if isinstance(cell.request, Setting)]


def _describe_training(setting: Setting) -> Hashable:
    """Returns what decides how a setting's steps stretch distances: all but the adversary."""
    return setting.model, setting.mechanism, setting.schedule, setting.seed


def _find_upper(composition: float, setting: Setting, evidence: Evidence) -> Record:
    """Returns the upper bound on the last model, if it is proven or has been measured.

    Args:
      composition: The accountant's epsilon, for all models of a run together.
      setting: The setting whose steps are measured, or else of any audit there.
      evidence: What the store holds, and the delta of bounds.
    """
    delta = evidence.levels.delta
    state = lipschitz.hidden_state(setting, delta)
    word = "measured"
    if isinstance(state, HiddenState):  # proven, without a measurement
        word = state.assumes.word
    # At k = 1 every step inserts: unless steps contract, composition is the only bound.
    contracts = isinstance(state, HiddenState) and state.bound.epsilon < composition
    if setting.schedule.periodicity == 1 and not contracts:
        return {"at_most": composition, "word": COMPOSITION, "margin": composition}
    if isinstance(state, str):
        steps = expansion.read(evidence.held, setting)
        if steps is None:
            return {}
        if steps.kink:  # there a derivative does not bound how far a step separates two models
            word = ESTIMATE
        state = lipschitz.hidden_state(setting, delta, steps._replace(kink=""))
        assert isinstance(state, HiddenState)
    return {
        "at_most": state.bound.epsilon,
        "word": word,
        "margin": state.margins[_MARGIN].epsilon,
        "expansion": state.mean_constant,
    }


def _draw_rows(axis: Axes, rows: Sequence[Record]) -> None:
    """Draws a panel's upper bounds over x as lines, and its audits as marks and intervals."""
    xs = [row["x"] for row in rows]

    def take(name: str) -> NDArray[np.float64]:
        """Returns a field of all rows, NaN for rows without it."""
        return np.array([row.get(name) for row in rows], np.float64)

    for name, (label, look) in _MARKS.items():
        if np.isfinite(take(name)).any():
            axis.plot(xs, take(name), label=label, **look)
    label = "last model at most, proven or measured"
    dash = "-"
    if any(row.get("word") == ESTIMATE for row in rows):
        label = "last model at most by derivatives, an estimate: steps have kinks"
        dash = "--"
    axis.plot(xs, take("at_most"), label=label, color=BOUND, ls=dash)
    label = "up to steps that expand ten times as much"
    look = {"color": BOUND, "alpha": 0.15, "lw": 0, "label": label}
    axis.fill_between(xs, take("at_most"), take("margin"), **look)
    label = "audit's two-sided interval where scores are normal"
    highs = np.minimum(take("interval_high"), _MAX_EPSILON)
    axis.vlines(xs, take("interval_low"), highs, color=BLUE, zorder=3, label=label)


def _make_table(title: str, x_axis: Axis, rows: Sequence[Record], evidence: Evidence) -> OwnTable:
    """Makes a table with a row for each place: what audits prove there, and the upper bounds."""
    nearest = number(".2f")
    columns = [
        field("panel"),
        field("x", x_axis.symbol, number("g"), width=5),
        field("proven", "proven", at_least, width=6, none="-"),
        field("gdp_limit", "GDP", at_least, width=6, none="-"),
        field("if_gaussian", "Gauss", at_least, width=6, none="-"),
        field("interval_low", "audit", nearest, width=6, none="-"),
        field("interval_high", "to", nearest, width=6, none="-"),
        field("constant_direction", "const", nearest, width=6, none="-"),
        field("at_most", "at most", at_most, width=7, none="-"),
        field("margin", "x10", at_most, width=6, none="-"),
        field("word", "why", width=11, none="-"),
        field("expansion", "mean c", number(".5f"), width=8, none="-"),
        field("composition", "composed", at_most, width=8),
    ]
    before = (title, f"epsilon at {evidence.levels}")
    section = itemgetter("panel")
    table = Table(columns, rows, section=section, before=before, after=[_NOTES], gap=" ", rule=80)
    return OwnTable(table.text(), table.csv())
