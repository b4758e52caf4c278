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

from audit.claims.hidden_state import HiddenState
from audit.conclusions import lipschitz
from audit.conclusions.concluded import conclude_setting
from audit.conclusions.conclusion import method_of
from audit.errors import InputError
from audit.methods.estimate import ASSUMPTION_FREE, IF_GAUSSIAN
from audit.methods.exact_null import EXACT_NULL, EXACT_NULL_GDP
from audit.methods.lifted import LIFTED, LIFTED_GAUSSIAN
from audit.report.style import BLUE, BOUND, FADED, FREE, GREEN, PREDICTED, UPPER, VERMILION
from audit.report.table import at_least, at_most, number
from audit.settings.setting import Setting, identity
from audit.written import show_level
from experiments.hidden_state import measured
from experiments.sweeps.panels import draw_panels, plot_lines, take
from experiments.sweeps.points import Evidence, Point
from experiments.sweeps.records import Record, field, own_table
from experiments.sweeps.sweep import OwnTable, Sweep

ESTIMATE = "estimate"
COMPOSITION = "composition"
_MARGIN = 10  # by how much the margin multiplies the excess over 1 of measured Lipschitz constants
_MAX_EPSILON = 1e3  # at which infinite ends of intervals are cut off
_TICKS = (0.3, 1, 3, 10, 30)  # of a logarithmic axis
_LOOKS = {  # of the fields of rows: label, color, and format of marker and line
    "composition": ("composition", UPPER, ":"),
    "proven": ("lower bound without an assumption, fresh directions", FREE, "o"),
    "gdp_limit": ("below it no GDP guarantee holds, fresh directions", GREEN, "^"),
    IF_GAUSSIAN: ("lower bound if Gaussian, along coordinates", BLUE, "v"),
}
_AT_MOST = {"at_most": ("last model at most, proven or measured", BOUND, "-")}
_ESTIMATED = "last model at most by derivatives, an estimate: steps have kinks"
_NOTES = """\
proven:   without an assumption, by fresh directions; GDP: below it no GDP guarantee holds
Gauss:    if the curve is Gaussian; audit: two-sided, where scores are normal; by coordinates
const:    what a constant direction reaches, predicted
at most:  upper bound on the last model, and why; x10: if steps expand ten times as much
estimate: steps have kinks, and derivatives do not bound them"""
# Numbers of training runs at which bounds are shown.
_SHOWN_RUNS = (8, 10, 20, 30, 60, 100, 200, 400, 1000, 2000, 5000)
_METHODS = {  # color, and format of marker and line
    EXACT_NULL: (FREE, "-"),
    ASSUMPTION_FREE: (BLUE, "s--"),
    LIFTED: (BLUE, "s--"),
    IF_GAUSSIAN: (VERMILION, "^-."),
    LIFTED_GAUSSIAN: (VERMILION, "^-."),
}


def draw_bracket(
    sweep: Sweep, points: Sequence[Point], evidence: Evidence
) -> tuple[Figure, OwnTable]:
    """Draws the figure of upper bounds and audits, and makes its table.

    Args:
      sweep: The sweep, which has an axis.
      points: The points of all panels; each has a conclusion.
      evidence: What the store holds, and the delta and confidence of bounds.
    """
    x_axis = sweep.axis
    assert x_axis is not None
    rows = make_rows(points, sweep, evidence)
    places = sorted({row["x"] for row in rows})
    look: dict[str, Any] = {"xscale": "log", "xlabel": x_axis.name, "ylim": (0, None)}
    look |= {"xticks": places, "xticklabels": [f"{place:g}" for place in places]}
    if sweep.name in ("bracket_k", "bracket_steps"):
        look |= {"yscale": "log", "ylim": (0.2, None)}
        look |= {"yticks": _TICKS, "yticklabels": [f"{tick:g}" for tick in _TICKS]}
    panels = {}
    for row in rows:
        of_panel = [other for other in rows if other["panel"] == row["panel"]]
        of_panel.sort(key=itemgetter("x"))
        panels[row["panel"]] = partial(_draw_rows, rows=of_panel, look=look)
    label = f"epsilon at delta {show_level(evidence.levels.delta)}"
    figure = draw_panels(sweep.title, panels, ylabel=label, sharey=True)
    nearest = number(".2f")
    columns = [
        field("panel"),
        field("x", x_axis.symbol, number("g"), width=5),
        field("proven", "proven", at_least, width=6),
        field("gdp_limit", "GDP", at_least, width=6),
        field(IF_GAUSSIAN, "Gauss", at_least, width=6),
        field("interval_low", "audit", nearest, width=6),
        field("interval_high", "to", nearest, width=6),
        field("constant_direction", "const", nearest, width=6),
        field("at_most", "at most", at_most, width=7),
        field("margin", "x10", at_most, width=6),
        field("word", "why", width=11),
        field("expansion", "mean c", number(".5f"), width=8),
        field("composition", "composed", at_most, width=8),
    ]
    layout: dict[str, Any] = {"before": (sweep.title, f"epsilon at {evidence.levels}")}
    layout |= {"section": itemgetter("panel"), "after": [_NOTES], "gap": " "}
    return figure, own_table(columns, rows, **layout)


def list_measured(sweep: Sweep) -> list[Setting]:
    """Returns the settings of a sweep whose steps are measured by a cell."""
    return [cell.request for cell in sweep.cells if isinstance(cell.request, Setting)]


def make_rows(points: Sequence[Point], sweep: Sweep, evidence: Evidence) -> list[Record]:
    """Returns a row for each place, a panel and an x; a row has no fields for what is unknown.

    A place has up to two audits, with fresh directions and along a coordinate. The fields of a row are
    epsilons but for `panel`, `x`, the `word` for what the upper bound assumes, and `expansion`, the mean
    Lipschitz constant of steps.

    Args:
      points: The points of all panels; each has a conclusion.
      sweep: The sweep, whose cells measure steps.
      evidence: What the store holds, and the delta and confidence of bounds.
    """
    by_training = {_describe_training(setting): setting for setting in list_measured(sweep)}
    rows: dict[tuple[str, float], Record] = {}
    for point in points:
        place = (point.panel, point.x)
        if place not in rows:
            # If nothing is measured, since a bound is proven or k is 1, the audit's own setting will do.
            setting = point.cells[0].setting
            setting = by_training.get(_describe_training(setting), setting)
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
                IF_GAUSSIAN: point.spread(IF_GAUSSIAN)[0],
                "constant_direction": point.predicted(evidence.levels.delta),
            }
    return list(rows.values())


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
        steps = measured.read_expansion(evidence.held, setting)
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


def _draw_rows(axis: Axes, rows: Sequence[Record], look: dict[str, Any]) -> None:
    """Draws a panel's upper bounds over x as lines, and its audits as marks and intervals."""
    plot_lines(axis, rows, _LOOKS)
    at_most_looks = _AT_MOST
    if any(row.get("word") == ESTIMATE for row in rows):
        at_most_looks = {"at_most": (_ESTIMATED, BOUND, "--")}
    plot_lines(axis, rows, at_most_looks)
    xs = take(rows, "x")
    label = "up to steps that expand ten times as much"
    shade: dict[str, Any] = {"color": BOUND, "alpha": 0.15, "lw": 0, "label": label}
    axis.fill_between(xs, take(rows, "at_most"), take(rows, "margin"), **shade)
    band: dict[str, Any] = {"color": PREDICTED, "lw": 5, "alpha": 0.4}
    constant = take(rows, "constant_direction")
    if np.isfinite(constant).any():
        axis.plot(xs, constant, label="what a constant direction reaches", **band)
    label = "audit's two-sided interval where scores are normal"
    highs = np.minimum(take(rows, "interval_high"), _MAX_EPSILON)
    axis.vlines(xs, take(rows, "interval_low"), highs, color=BLUE, zorder=3, label=label)
    axis.set(**look)
    axis.minorticks_off()


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
    # By panel: of GC-R, which comes last.
    predictions = {point.panel: point.predicted(delta) for point in points}

    def draw_panel(axis: Axes, of_panel: Sequence[Record]) -> None:
        """Draws the limits and the lines of a panel."""
        predicted = predictions[of_panel[0]["panel"]]
        if predicted is not None:
            label = "predicted where gradients do not interfere"
            axis.axhline(predicted, color=PREDICTED, lw=6, alpha=0.55, label=label)
        upper_bound = of_panel[0]["upper_bound"]
        axis.axhline(upper_bound, color=UPPER, ls=":", label="upper bound (accounting)")
        for name, (color, line) in _METHODS.items():
            shown = [{**row, "x": row["trainings"]} for row in of_panel if row["method"] == name]
            for row in shown[:1]:
                color = FADED if row["assumes"] == "REFUTED" else color
                plot_lines(axis, shown, {"epsilon": (row["legend"], color, line)})
        axis.set(xscale="log", xlabel="training runs", ylim=(0, None))

    panels = {}
    for point in points:
        of_panel = [row for row in rows if row["panel"] == point.panel]
        panels[point.panel] = partial(draw_panel, of_panel=of_panel)
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
    return figure, own_table(columns, shown, section=itemgetter("panel"), before=before)


def make_proven_rows(point: Point, evidence: Evidence) -> list[Record]:
    """Returns a row for each method and number of training runs: the lower bound on epsilon after these runs.

    An audit with fresh directions has a bound after every run, and the table shows some of them. Any other
    audit has those of each method in _METHODS, from its first runs, at the numbers in _SHOWN_RUNS.

    Args:
      point: One audit of a panel, and the conclusion from all its runs.
      evidence: The stored scores, and the delta and confidence of bounds.
    """
    (cell,) = point.cells
    (conclusion,) = point.conclusions
    by_runs = {}
    for runs in _SHOWN_RUNS:
        if runs < cell.runs and not conclusion.law_is_known:
            scores = evidence.held.scores(identity(cell.setting), runs)
            with contextlib.suppress(InputError):  # too few runs for its methods
                if scores is not None:
                    by_runs[runs] = conclude_setting(scores, cell.setting, evidence.levels)
    by_runs[cell.runs] = conclusion
    rows = []
    for bound in [bound for bound in conclusion.bounds if bound.method in _METHODS]:
        method = method_of(bound)
        epsilons = {runs: part.bound(method.name).epsilon for runs, part in by_runs.items()}
        if conclusion.law_is_known:  # of fresh directions
            epsilons = dict(enumerate(bound.path, 1))
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
