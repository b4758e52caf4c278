"""Two figures that are in no paper: the last model between bounds, and what training runs prove.

The bracket shows what the last model of a training run leaks, between upper bounds on it and what audits
prove. An upper bound is proven, or it rests on measured constants; if steps have kinks it is an estimate.
Each place has a single seed: a point has a single conclusion.

The other figure shows what each method proves of the paper's models after so many training runs: fresh
directions next to GC-R, the paper's adversary whose canary is a gradient along a random coordinate.
"""

import contextlib
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
from audit.conclusions.concluded import conclude_setting
from audit.conclusions.conclusion import method_of
from audit.errors import InputError
from audit.methods.estimate import ASSUMPTION_FREE, IF_GAUSSIAN
from audit.methods.exact_null import EXACT_NULL, EXACT_NULL_GDP
from audit.methods.lifted import LIFTED, LIFTED_GAUSSIAN
from audit.report.style import BLUE, BOUND, FADED, FREE, GREEN, PREDICTED, UPPER, VERMILION
from audit.report.table import Table, at_least, at_most, number
from audit.settings.setting import Setting, identity
from audit.written import show_level
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
_SMALL: dict[str, Any] = {"ms": 4, "ls": ""}
_MARKS: dict[str, tuple[str, dict[str, Any]]] = {  # label and looks, by the field of a row
    "composition": ("composition", {"color": UPPER, "ls": ":"}),
    "constant_direction": (
        "what a constant direction reaches",
        {"color": PREDICTED, "lw": 5, "alpha": 0.4},
    ),
    "proven": (
        "lower bound without an assumption, fresh directions",
        {"color": FREE, "marker": "o", **_SMALL},
    ),
    "gdp_limit": (
        "below it no GDP guarantee holds, fresh directions",
        {"color": GREEN, "marker": "^", **_SMALL},
    ),
    "if_gaussian": (
        "lower bound if Gaussian, along coordinates",
        {"color": BLUE, "marker": "v", **_SMALL},
    ),
}
_NOTES = """\
proven:   without an assumption, by fresh directions; GDP: below it no GDP guarantee holds
Gauss:    if the curve is Gaussian; audit: two-sided, where scores are normal; by coordinates
const:    what a constant direction reaches, predicted
at most:  upper bound on the last model, and why; x10: if steps expand ten times as much
estimate: steps have kinks, and derivatives do not bound them"""
# Numbers of training runs at which bounds are shown.
_SHOWN_RUNS = (8, 10, 20, 30, 60, 100, 200, 400, 1000, 2000, 5000)
_LOOKS = {  # of methods: color, marker, line
    EXACT_NULL: (FREE, "", "-"),
    ASSUMPTION_FREE: (BLUE, "s", "--"),
    LIFTED: (BLUE, "s", "--"),
    IF_GAUSSIAN: (VERMILION, "^", "-."),
    LIFTED_GAUSSIAN: (VERMILION, "^", "-."),
}


def draw_bracket(
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
        axis.set_xticks(places, labels, fontsize=7)
        axis.minorticks_off()

    panels = {row["panel"]: partial(draw_panel, row["panel"]) for row in rows}
    label = f"epsilon at delta {show_level(evidence.levels.delta)}"
    figure = draw_panels(sweep.title, panels, ylabel=label, sharey=True)
    nearest = number(".2f")
    columns = [
        field("panel"),
        field("x", x_axis.symbol, number("g"), width=5),
        field("proven", "proven", at_least, width=6),
        field("gdp_limit", "GDP", at_least, width=6),
        field("if_gaussian", "Gauss", at_least, width=6),
        field("interval_low", "audit", nearest, width=6),
        field("interval_high", "to", nearest, width=6),
        field("constant_direction", "const", nearest, width=6),
        field("at_most", "at most", at_most, width=7),
        field("margin", "x10", at_most, width=6),
        field("word", "why", width=11),
        field("expansion", "mean c", number(".5f"), width=8),
        field("composition", "composed", at_most, width=8),
    ]
    before = (sweep.title, f"epsilon at {evidence.levels}")
    section = itemgetter("panel")
    table = Table(columns, rows, section, before=before, after=[_NOTES], gap=" ", rule=80)
    return figure, OwnTable(table.text(), table.csv())


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


def draw_proven(
    sweep: Sweep, points: Sequence[Point], evidence: Evidence
) -> tuple[Figure, OwnTable]:
    """Draws what each method proves over the number of training runs, and makes a table of it.

    Args:
      sweep: The sweep, whose title is above figure and table.
      points: A point for each model, k and adversary, with the conclusion of its audit.
      evidence: What the store holds, and the delta and confidence of bounds.
    """
    rows = [row for point in points for row in make_proven_rows(point, evidence)]
    delta = evidence.levels.delta

    def draw_panel(panel: str, axis: Axes) -> None:
        """Draws the limits and the lines of a panel."""
        of_panel = [point for point in points if point.panel == panel]
        predicted = of_panel[-1].predicted(delta)  # of GC-R, which comes last
        if predicted is not None:
            label = "predicted where gradients do not interfere"
            axis.axhline(predicted, color=PREDICTED, lw=6, alpha=0.55, label=label)
        upper_bound = of_panel[0].upper_bound()
        axis.axhline(upper_bound, color=UPPER, ls=":", label="upper bound (accounting)")
        for name, (color, marker, dash) in _LOOKS.items():
            line = [row for row in rows if (row["panel"], row["method"]) == (panel, name)]
            if line:
                trainings = [row["trainings"] for row in line]
                epsilons = [row["epsilon"] for row in line]
                shown = FADED if line[0]["assumes"] == "REFUTED" else color
                look = {"color": shown, "marker": marker, "ls": dash, "label": line[0]["legend"]}
                axis.plot(trainings, epsilons, ms=3.5, **look)
        axis.set(xscale="log", xlabel="training runs", ylim=(0, None))

    panels = {point.panel: partial(draw_panel, point.panel) for point in points}
    label = f"epsilon at delta {show_level(delta)}"
    figure = draw_panels(sweep.title, panels, (3.1, 2.7), ylabel=label)
    columns = [
        field("panel"),
        field("method", "method", width=18, left=True),
        field("canaries", "canaries", number(","), width=8),
        field("trainings", "trainings", number(","), width=9),
        field("epsilon", "epsilon", at_least, width=8),
        field("upper_bound", "upper bound", at_most, width=11),
        field("assumes", "assumes", left=True),
    ]
    shown = [row for row in rows if row["is_shown"]]
    before = [f"{sweep.title}: epsilon at {evidence.levels}"]
    table = Table(columns, shown, itemgetter("panel"), before=before, rule=80)
    return figure, OwnTable(table.text(), table.csv())


def make_proven_rows(point: Point, evidence: Evidence) -> list[Record]:
    """Returns a row for each method and number of training runs: the lower bound on epsilon after these runs.

    An audit with fresh directions has a bound after every run, and the table shows some of them. Any other
    audit has those of each method in _LOOKS, from its first runs, at the numbers in _SHOWN_RUNS.

    Args:
      point: One audit of a panel, and the conclusion from all its runs.
      evidence: The stored scores, and the delta and confidence of bounds.
    """
    (cell,) = point.cells
    (conclusion,) = point.conclusions
    lines = []
    if conclusion.law_is_known:  # of fresh directions
        bound = conclusion.assumption_free
        lines.append((bound, dict(enumerate(bound.path, 1))))
    else:
        by_runs = {}
        for runs in _SHOWN_RUNS:
            scores = None
            if runs < cell.runs:
                scores = evidence.held.scores(identity(cell.setting), runs)
            with contextlib.suppress(InputError):  # too few runs for its methods
                if scores is not None:
                    by_runs[runs] = conclude_setting(scores, cell.setting, evidence.levels)
        by_runs[cell.runs] = conclusion
        for bound in conclusion.bounds:
            if bound.method in _LOOKS:
                name = bound.method
                epsilons = {runs: part.bound(name).epsilon for runs, part in by_runs.items()}
                lines.append((bound, epsilons))
    rows = []
    for bound, epsilons in lines:
        method = method_of(bound)
        for runs, epsilon in epsilons.items():
            row = {
                "panel": point.panel,
                "method": method.name,
                "legend": method.legend,
                "canaries": cell.setting.canaries,
                "trainings": runs,
                "epsilon": epsilon,
                "upper_bound": point.upper_bound(),
                "assumes": method.assumes.word if bound.holds else "REFUTED",
                "is_shown": runs in (1, 3, *_SHOWN_RUNS, cell.runs),
            }
            rows.append(row)
    return rows
