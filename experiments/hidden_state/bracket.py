"""Two figures beyond the paper: bounds on the leakage of the last model, and bounds over training runs.

The bracket shows upper bounds on the leakage of the last model (proven, or with measured constants; estimates
if steps have kinks), and the lower bounds of audits. Each place has one seed.

The other figure compares fresh directions with GC-R on the paper's models, over the number of training runs.
"""

import contextlib
from collections.abc import Callable, Hashable, Sequence
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
from audit.report.table import at_least, at_most
from audit.settings.setting import Setting, identity
from audit.written import show_level
from experiments.hidden_state.measured import EXPANSION
from experiments.sweeps.panels import draw_panels, plot_lines, take
from experiments.sweeps.points import Evidence, Point
from experiments.sweeps.records import Record, Records, field, own_table, select
from experiments.sweeps.sweep import OwnTable, Sweep

ESTIMATE = "estimate"
COMPOSITION = "composition"
_MARGIN = 10  # multiplies the excess over 1 of measured Lipschitz constants
_MAX_EPSILON = 1e3  # infinite ends of intervals are drawn here
_TICKS = (0.3, 1, 3, 10, 30)  # of a logarithmic axis
_LOOKS = {  # by field: label, color, and format of marker and line
    "composition": ("composition", UPPER, ":"),
    "proven": ("assumption-free lower bound, fresh directions", FREE, "o"),
    "gdp_limit": ("lower bound on any GDP guarantee, fresh directions", GREEN, "^"),
    IF_GAUSSIAN: ("lower bound if Gaussian, coordinates", BLUE, "v"),
}
_MEASURED = "upper bound on the last model, proven or measured"
_ESTIMATED = "estimated upper bound on the last model: steps have kinks"
_NOTES = """\
proven:   assumption-free, fresh directions; GDP: lower bound on any GDP guarantee
Gauss:    if the curve is Gaussian; audit: two-sided, if scores are normal; coordinates
const:    predicted for a constant direction
at most:  upper bound on the last model, and why; x10: if steps expand ten times as much
estimate: steps have kinks, and derivatives do not bound them"""
# Numbers of training runs with shown bounds.
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
    """Draws the figure of upper bounds and audits, and makes its table; each point has a conclusion."""
    x_axis = sweep.axis
    assert x_axis is not None
    rows = make_rows(points, sweep, evidence)
    places = sorted(set(map(itemgetter("x"), rows)))
    look: dict[str, Any] = {
        "xscale": "log",
        "xlabel": x_axis.name,
        "xticks": places,
        "ylim": (0, None),
    }
    if sweep.name in ("bracket_k", "bracket_steps"):
        look |= {"yscale": "log", "ylim": (0.2, None), "yticks": _TICKS}
    panels = {}
    for row in rows:
        panel = row["panel"]
        of_panel = sorted(select(rows, panel=panel), key=itemgetter("x"))
        panels[panel] = partial(_draw_rows, rows=of_panel, look=look)
    label = f"epsilon at delta {show_level(evidence.levels.delta)}"
    figure = draw_panels(sweep.title, panels, ylabel=label, sharey=True)
    nearest = ".2f"
    columns = [
        field("panel"),
        field("x", x_axis.symbol, "g", width=5),
        field("proven", "proven", at_least, width=6),
        field("gdp_limit", "GDP", at_least, width=6),
        field(IF_GAUSSIAN, "Gauss", at_least, width=6),
        field("interval_low", "audit", nearest, width=6),
        field("interval_high", "to", nearest, width=6),
        field("constant_direction", "const", nearest, width=6),
        field("at_most", "at most", at_most, width=7),
        field("margin", "x10", at_most, width=6),
        field("word", "why", width=11),
        field("expansion", "mean c", ".5f", width=8),
        field("composition", "composed", at_most, width=8),
    ]
    title = f"{sweep.title}\nepsilon at {evidence.levels}"
    return figure, own_table(title, columns, rows, [_NOTES], section="panel", gap=" ")


def list_measured(sweep: Sweep) -> list[Setting]:
    """Returns the settings of the steps that the sweep measures."""
    return [cell.request for cell in sweep.cells if isinstance(cell.request, Setting)]


def make_rows(points: Sequence[Point], sweep: Sweep, evidence: Evidence) -> list[Record]:
    """Returns a row for each place, a panel and an x. Unknown values are left out.

    A place has up to two audits: fresh directions and a coordinate. `word` names the assumption of the upper
    bound, and `expansion` is the mean Lipschitz constant of steps. Other fields are epsilons.
    """
    by_training = {_describe_training(setting): setting for setting in list_measured(sweep)}

    def describe(point: Point) -> Record:
        """Returns the upper bounds at a point."""
        # A place without a measurement has a proven bound or k = 1: use the audit's setting.
        setting = point.cells[0].setting
        setting = by_training.get(_describe_training(setting), setting)
        composition = point.upper_bound()
        return {"composition": composition, **_find_upper(composition, setting, evidence)}

    return gather_rows(points, evidence.levels.delta, describe)


def gather_rows(
    points: Sequence[Point], delta: float, describe: Callable[[Point], Record]
) -> list[Record]:
    """Returns a row for each place: a panel, a noise and an x.

    It has the fields of `describe` for its first point, and epsilons of up to two audits: `proven` and
    `gdp_limit` of fresh directions, and those of a coordinate. Unknown values are left out.
    """
    rows: dict[tuple[str, str, float], Record] = {}
    for point in points:
        noise = point.cells[0].setting.mechanism.noise
        place = (point.panel, noise, point.x)
        if place not in rows:
            rows[place] = {"panel": point.panel, "x": point.x, **describe(point)}
        conclusion = point.conclusions[0]
        if conclusion.law_is_known:  # fresh directions
            gdp_limit = conclusion.bound(EXACT_NULL_GDP).epsilon
            rows[place] |= {"proven": conclusion.epsilon, "gdp_limit": gdp_limit}
        else:
            low, high = point.interval()
            rows[place] |= {
                "interval_low": low,
                "interval_high": high,
                IF_GAUSSIAN: point.spread(IF_GAUSSIAN)[0],
                "constant_direction": point.predicted(delta),
            }
    return list(rows.values())


def _describe_training(setting: Setting) -> Hashable:
    """Returns the parts of a setting that decide how steps stretch distances, without the adversary."""
    return setting.model, setting.mechanism, setting.schedule, setting.seed


def _find_upper(composition: float, setting: Setting, evidence: Evidence) -> Record:
    """Returns the fields of the upper bound on the last model, if it is proven or measured.

    `composition` is the accountant's epsilon for all models of a run together.
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
        steps = read_expansion(evidence, setting)
        if steps is None:
            return {}
        if steps.kink:  # across a kink, a derivative does not bound the distance of two models
            word = ESTIMATE
        state = lipschitz.hidden_state(setting, delta, steps._replace(kink=""))
        assert isinstance(state, HiddenState)
    return {
        "at_most": state.bound.epsilon,
        "word": word,
        "margin": state.margins[_MARGIN].epsilon,
        "expansion": float(np.asarray(state.periods.lipschitz).mean()),
    }


def read_expansion(evidence: Evidence, setting: Setting) -> lipschitz.Steps | None:
    """Returns the measured expansion of a setting's steps; None if it is not stored."""
    store = evidence.held.open(identity(setting, EXPANSION))
    return None if store is None else lipschitz.find_current(store)


def _draw_rows(axis: Axes, rows: Records, look: dict[str, Any]) -> None:
    """Draws a panel's upper bounds over x as lines, and its audits as marks and intervals."""
    at_most_look = (_MEASURED, BOUND, "-")
    if select(rows, word=ESTIMATE):
        at_most_look = (_ESTIMATED, BOUND, "--")
    plot_lines(axis, rows, {**_LOOKS, "at_most": at_most_look})
    xs = take(rows, "x")
    axis.fill_between(
        xs,
        take(rows, "at_most"),
        take(rows, "margin"),
        color=BOUND,
        alpha=0.15,
        lw=0,
        label="range if steps expand ten times as much",
    )
    constant = take(rows, "constant_direction")
    if np.isfinite(constant).any():
        label = "predicted for a constant direction"
        axis.plot(xs, constant, color=PREDICTED, lw=5, alpha=0.4, label=label)
    axis.vlines(
        xs,
        take(rows, "interval_low"),
        np.minimum(take(rows, "interval_high"), _MAX_EPSILON),
        color=BLUE,
        zorder=3,
        label="two-sided interval if scores are normal",
    )
    axis.set(**look)
    axis.minorticks_off()
    axis.xaxis.set_major_formatter("{x:g}")  # not as powers of 10
    axis.yaxis.set_major_formatter("{x:g}")


def draw_proven(
    sweep: Sweep, points: Sequence[Point], evidence: Evidence
) -> tuple[Figure, OwnTable]:
    """Draws each method's lower bounds over the number of training runs, and makes their table.

    A point is one audit of a model and k by an adversary.
    """
    delta = evidence.levels.delta
    rows: list[Record] = []
    for point in points:
        rows += make_proven_rows(point, evidence)

    def draw_panel(axis: Axes, of_panel: Records) -> None:
        last = of_panel[-1]  # GC-R's, which may have a prediction
        if last["predicted"] is not None:
            label = "predicted if gradients do not interfere"
            axis.axhline(last["predicted"], color=PREDICTED, lw=6, alpha=0.55, label=label)
        axis.axhline(last["upper_bound"], color=UPPER, ls=":", label="upper bound (accounting)")
        for name, (color, line) in _METHODS.items():
            of_method = select(of_panel, method=name)
            if of_method:
                first = of_method[0]
                if first["assumes"] == "REJECTED":
                    color = FADED
                plot_lines(axis, of_method, {"epsilon": (first["legend"], color, line)})
        axis.set(xscale="log", xlabel="training runs", ylim=(0, None))

    panels = {}
    for panel in dict.fromkeys(map(itemgetter("panel"), rows)):
        panels[panel] = partial(draw_panel, of_panel=select(rows, panel=panel))
    label = f"epsilon at delta {show_level(delta)}"
    figure = draw_panels(sweep.title, panels, (3.1, 2.7), ylabel=label)
    columns = [
        field("panel"),
        field("method", "method", width=18, left=True),
        field("canaries", "canaries", ",", width=8),
        field("trainings", "trainings", ",", width=9),
        field("epsilon", "epsilon", at_least, width=8),
        field("upper_bound", "upper bound", at_most, width=11),
        field("assumes", "assumes", left=True),
    ]
    title = f"{sweep.title}: epsilon at {evidence.levels}"
    shown = select(rows, is_shown=True)
    return figure, own_table(title, columns, shown, section="panel", gap="  ")


def make_proven_rows(point: Point, evidence: Evidence) -> list[Record]:
    """Returns a row for each method and number of training runs, with its lower bound on epsilon.

    Fresh directions have a bound after every run, and the table shows some of them. Other audits have bounds
    from their first runs, at the numbers in _SHOWN_RUNS.
    """
    (cell,) = point.cells
    (conclusion,) = point.conclusions
    by_runs = {}
    for runs in _SHOWN_RUNS:
        if runs < cell.runs and not conclusion.law_is_known:
            scores = evidence.held.scores(identity(cell.setting), runs)
            with contextlib.suppress(InputError):  # some methods need more runs
                if scores is not None:
                    by_runs[runs] = conclude_setting(scores, cell.setting, evidence.levels)
    by_runs[cell.runs] = conclusion
    rows = []
    for bound in conclusion.bounds:
        if bound.method not in _METHODS:
            continue
        method = method_of(bound)
        assumes = method.assumes.word if bound.holds else "REJECTED"
        epsilons = {runs: part.bound(method.name).epsilon for runs, part in by_runs.items()}
        if conclusion.law_is_known:  # fresh directions
            epsilons = dict(enumerate(bound.path, 1))
        for runs, epsilon in epsilons.items():
            row = {
                "x": runs,
                "panel": point.panel,
                "method": method.name,
                "legend": method.legend,
                "canaries": cell.setting.canaries,
                "trainings": runs,
                "epsilon": epsilon,
                "upper_bound": point.upper_bound(),
                "predicted": point.predicted(evidence.levels.delta),
                "assumes": assumes,
                "is_shown": runs in (1, 3, *_SHOWN_RUNS, cell.runs),
            }
            rows.append(row)
    return rows
