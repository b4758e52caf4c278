"""Draws the sweeps' figures that are not in the paper (see `sweep.py`).

Brackets compare upper bounds on the last model's leakage with audit results.
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
from audit.claims.matrix import MatrixMechanism
from audit.claims.measured import MEASURED
from audit.conclusions import lipschitz
from audit.conclusions.concluded import conclude_setting
from audit.conclusions.conclusion import Conclusion, method_of
from audit.errors import InputError
from audit.methods.estimate import ASSUMPTION_FREE, IF_GAUSSIAN
from audit.methods.exact_null import EXACT_NULL, EXACT_NULL_GDP
from audit.methods.lifted import LIFTED, LIFTED_GAUSSIAN
from audit.report.style import BLACK, BLUE, BOUND, FADED, FREE, GREEN, PREDICTED, UPPER, VERMILION
from audit.report.table import at_least, at_most
from audit.settings.setting import Setting, identity
from audit.written import show_level
from experiments.hidden_state.correlated import ACCOUNTED_EPSILON, STRATEGIES
from experiments.hidden_state.measured import EXPANSION
from experiments.sweeps.panels import draw_panels_of, plot_lines, take
from experiments.sweeps.points import Evidence, Point
from experiments.sweeps.records import Record, Records, field, own_table, select
from experiments.sweeps.sweep import OwnTable, Sweep

ESTIMATE = "estimate"
COMPOSITION = "composition"
_MARGIN = 10  # figures also show the bounds if steps expand distances ten times as much
_MAX_EPSILON = 1e3  # infinite interval ends are drawn at this value
_EPSILON_TICKS = (0.3, 1, 3, 10, 30)  # on a logarithmic axis
_LINES = {  # keyed by field: label, color and matplotlib format
    "composition": ("composition", UPPER, ":"),
    "proven": ("assumption-free lower bound, fresh directions", FREE, "o"),
    "gdp_limit": ("lower bound on any GDP guarantee, fresh directions", GREEN, "^"),
    IF_GAUSSIAN: ("lower bound if Gaussian, coordinates", BLUE, "v"),
}
_NOTES = """\
proven:   assumption-free, fresh directions; GDP: lower bound on any GDP guarantee
Gauss:    if the curve is Gaussian; audit: two-sided, if scores are normal; coordinates
const:    predicted for a constant direction
at most:  upper bound on the last model, and why
x10:      the same if steps expand distances ten times as much
estimate: steps have kinks, so derivatives do not bound their expansion"""
_SHOWN_RUNS = (8, 10, 20, 30, 60, 100, 200, 400, 1000, 2000, 5000)  # run counts shown in the table
_METHODS = {  # keyed by method: color and matplotlib format
    EXACT_NULL: (FREE, "-"),
    ASSUMPTION_FREE: (BLUE, "s--"),
    LIFTED: (BLUE, "s--"),
    IF_GAUSSIAN: (VERMILION, "^-."),
    LIFTED_GAUSSIAN: (VERMILION, "^-."),
}
_STRATEGY_LOOKS = {  # keyed by noise strategy: color and line style
    "independent": (BLACK, ":"),
    "lambda:0.9": (BLUE, "-."),
    "bsr:16": (GREEN, "--"),
    "bisr:16": (VERMILION, "-"),
}
_INTERVAL: dict[str, Any] = {"lw": 4, "alpha": 0.4}
_CORRELATED_NOTES = """\
linear:   last model if losses are linear, from a formula; not a bound
audit:    two-sided interval from coordinate canaries, if scores are normal
proven:   lower bound from fresh directions, assumption-free"""


def draw_bracket(
    sweep: Sweep, points: Sequence[Point], evidence: Evidence
) -> tuple[Figure, OwnTable]:
    """Plots upper bounds and audits of the last model against the sweep's x, and tabulates them."""
    x_axis = sweep.axis
    assert x_axis is not None
    rows = make_rows(points, sweep, evidence)
    look: dict[str, Any] = {
        "xscale": "log",
        "xlabel": x_axis.name,
        "xticks": np.unique(take(rows, "x")),
        "ylim": (0, None),
    }
    if sweep.name in ("bracket_k", "bracket_steps"):  # a wide range of epsilons
        look |= {"yscale": "log", "ylim": (0.2, None), "yticks": _EPSILON_TICKS}
    figure = draw_panels_of(
        rows,
        sweep.title,
        partial(_draw_bracket_panel, look=look),
        size=(3.1, 2.9),
        ylabel=f"epsilon at delta {show_level(evidence.levels.delta)}",
        sharey=True,
    )
    columns = [  # field, heading, format; bounds are rounded up or down
        field("panel"),
        field("x", x_axis.symbol, "g"),
        # Lower bounds from fresh directions.
        field("proven", "proven", at_least),
        field("gdp_limit", "GDP", at_least),  # on the epsilon of any mu-GDP claim
        # From coordinates.
        field(IF_GAUSSIAN, "Gauss", at_least),  # lower bound if the trade-off curve is Gaussian
        field("interval_low", "audit", ".2f"),  # two-sided interval
        field("interval_high", "to", ".2f"),
        # Predicted if all other gradients are 0 along the canary's direction.
        field("constant_direction", "const", ".2f"),
        # Upper bounds.
        field("at_most", "at most", at_most),  # on the last model
        field("margin", "x10", at_most),  # if steps expand distances ten times as much
        field("word", "why"),  # the assumption
        field("expansion", "mean c", ".5f"),  # the steps' mean Lipschitz constant
        field("composition", "composed", at_most),  # on all models together
    ]
    title = f"{sweep.title}\nepsilon at {evidence.levels}"
    return figure, own_table(title, columns, rows, [_NOTES], section="panel", gap=" ")


def list_measured(sweep: Sweep) -> list[Setting]:
    """Returns the settings for which the sweep measures how much steps expand distances."""
    # Only measurement cells have a `Setting` as their request.
    return [cell.request for cell in sweep.cells if isinstance(cell.request, Setting)]


def make_rows(points: Sequence[Point], sweep: Sweep, evidence: Evidence) -> list[Record]:
    """Returns the rows from `gather_rows`, with upper bounds on the last model's epsilon (`_find_upper`)."""
    # A sweep's steps and bounds do not depend on the adversary, so we measure them for only one adversary.
    with_measurement = {_describe_training(setting): setting for setting in list_measured(sweep)}
    rows = gather_rows(points)
    for row in rows:
        audited: Setting = row["setting"]
        # A setting that is not found needs no measurement: its model has proven Lipschitz constants,
        # or every step inserts the canary, and `composition` is its bound.
        setting = with_measurement.get(_describe_training(audited), audited)
        row |= _find_upper(row["composition"], setting, evidence)
    return rows


def gather_rows(points: Sequence[Point]) -> list[Record]:
    """Returns a row for each panel, noise strategy and x, in order of first occurrence.

    A row combines up to two audits, one with fresh directions and one with canaries along coordinates. Fields
    of a missing audit are omitted. All points must have a conclusion. IF_GAUSSIAN is averaged over seeds;
    other fields use the first seed.

    Returns:
      Rows with `panel`, `x`, the `setting` of the first audit, and these epsilons:

      composition: The accountant's epsilon for all models together.
      proven, gdp_limit: Assumption-free lower bounds, from fresh directions, on epsilon and on the epsilon of
        any mu-GDP guarantee.
      interval_low, interval_high, if_gaussian: From coordinates: a two-sided interval if scores are normal,
        and a lower bound if the trade-off curve is Gaussian.
      constant_direction: The prediction if all other gradients are 0 along a coordinate.
    """
    rows: dict[tuple[str, str, float], Record] = {}
    for point in points:
        setting = point.cells[0].setting  # the others differ only in the seed
        place = (point.panel, setting.mechanism.noise, point.x)
        shared = {
            "panel": point.panel,
            "x": point.x,
            "setting": setting,
            "composition": point.upper_bound(),
        }
        row = rows.setdefault(place, shared)
        conclusion = point.conclusions[0]
        # The distribution of scores without a canary is known only for fresh directions.
        if conclusion.law_is_known:
            row |= {
                "proven": conclusion.epsilon,
                "gdp_limit": conclusion.finding(EXACT_NULL_GDP).epsilon,
            }
        else:
            low, high = point.interval()
            mean, _min, _max = point.spread(IF_GAUSSIAN)
            row |= {
                "interval_low": low,
                "interval_high": high,
                IF_GAUSSIAN: mean,
                "constant_direction": point.predicted(),
            }
    return list(rows.values())


def _describe_training(setting: Setting) -> Hashable:
    """Returns a key for a setting's training steps: all its parts except the adversary."""
    return setting.model, setting.mechanism, setting.schedule, setting.seed


def _find_upper(composition: float, setting: Setting, evidence: Evidence) -> Record:
    """Returns an upper bound on the last model's epsilon, or {} if a required measurement is not stored.

    The bound needs the steps' Lipschitz constants: how much they expand the distance between two models. For
    some models, these are proven; others need measurements. Whatever the constants, the bound is at most
    `composition`, the accountant's epsilon for all models together.

    Returns:
      at_most: The bound.
      word: Its assumption as one word, such as MEASURED; COMPOSITION if it only uses `composition`; ESTIMATE
        if steps have kinks (ReLU), since measured derivatives then do not bound the expansion.
      margin: The bound if steps expand distances ten times as much.
      expansion: The mean Lipschitz constant of the steps; missing for COMPOSITION.
    """
    upper = lipschitz.hidden_state(setting, evidence.levels.delta)  # a str if no bound is proven
    is_lower = isinstance(upper, HiddenState) and upper.bound.epsilon < composition

    every_step_inserts = setting.schedule.periodicity == 1
    if every_step_inserts and not is_lower:
        # A bound below `composition` would require contracting steps, so we skip the measurement.
        return {"at_most": composition, "word": COMPOSITION, "margin": composition}
    if isinstance(upper, HiddenState):
        return _describe_upper(upper, upper.assumes.word)
    return _find_measured_upper(setting, evidence)


def _find_measured_upper(setting: Setting, evidence: Evidence) -> Record:
    """Returns the result of `_find_upper` for measured Lipschitz constants, or {} if they are not stored."""
    steps = read_expansion(evidence, setting)
    if steps is None:
        return {}
    # If steps have kinks, there is no bound, and `hidden_state` returns the reason. We clear `kink` to get an
    # estimate.
    upper = lipschitz.hidden_state(setting, evidence.levels.delta, steps._replace(kink=""))
    assert isinstance(upper, HiddenState)
    return _describe_upper(upper, word=ESTIMATE if steps.kink else MEASURED)


def _describe_upper(upper: HiddenState, word: str) -> Record:
    """Returns the record of an upper bound; see `_find_upper`."""
    return {
        "at_most": upper.bound.epsilon,
        "word": word,
        "margin": upper.margins[_MARGIN].epsilon,
        "expansion": float(np.asarray(upper.periods.lipschitz).mean()),
    }


def read_expansion(evidence: Evidence, setting: Setting) -> lipschitz.Steps | None:
    """Returns the measured Lipschitz constants of a setting's steps, or None if they are not stored."""
    store = evidence.held.open(identity(setting, EXPANSION))
    if store is None:
        return None
    return lipschitz.find_current(store)


def _draw_bracket_panel(axis: Axes, records: Records, look: dict[str, Any]) -> None:
    """Draws upper bounds on the last model's epsilon as lines, and audits as markers and intervals.

    The band is a safety margin: the bounds if steps expand distances ten times as much as assumed.
    The records come from `make_rows`. `look` contains keyword arguments for `Axes.set`.
    """
    rows = sorted(records, key=itemgetter("x"))
    x = take(rows, "x")
    label = "range if steps expand ten times as much"
    axis.fill_between(
        x, take(rows, "at_most"), take(rows, "margin"), color=BOUND, alpha=0.15, lw=0, label=label
    )
    constant = take(rows, "constant_direction")
    if np.isfinite(constant).any():
        label = "predicted for a constant direction"
        axis.plot(x, constant, color=PREDICTED, lw=5, alpha=0.4, label=label)
    low = take(rows, "interval_low")
    high = np.minimum(take(rows, "interval_high"), _MAX_EPSILON)
    axis.vlines(x, low, high, color=BLUE, zorder=3, label="two-sided interval if scores are normal")
    bound_line = ("upper bound on the last model, proven or measured", BOUND, "-")
    # ESTIMATE: steps have kinks (ReLU), where derivatives do not bound the expansion.
    if select(rows, word=ESTIMATE):
        bound_line = ("estimated upper bound on the last model: steps have kinks", BOUND, "--")
    plot_lines(axis, rows, {**_LINES, "at_most": bound_line}, **look)
    axis.yaxis.set_major_formatter("{x:g}")  # not as powers of 10


def draw_proven(
    sweep: Sweep, points: Sequence[Point], evidence: Evidence
) -> tuple[Figure, OwnTable]:
    """Plots each method's lower bounds against the number of training runs, and tabulates a selection."""
    rows = []
    for point in points:
        rows += make_proven_rows(point, evidence)
    ylabel = f"epsilon at delta {show_level(evidence.levels.delta)}"
    figure = draw_panels_of(rows, sweep.title, _draw_proven_panel, size=(3.1, 2.7), ylabel=ylabel)
    columns = [  # field, heading, format
        field("panel"),
        field("method", "method", left=True),
        field("canaries", "canaries", ","),
        field("x", "trainings", ",")._replace(key="trainings"),  # the CSV column's name
        field("epsilon", "epsilon", at_least),
        field("upper_bound", "upper bound", at_most),
        field("assumes", "assumes", left=True),
    ]
    title = f"{sweep.title}: epsilon at {evidence.levels}"
    tabulated = select(rows, is_shown=True)
    return figure, own_table(title, columns, tabulated, section="panel", gap="  ")


def _draw_proven_panel(axis: Axes, records: Records) -> None:
    """Plots the lower bounds for one model and periodicity against the number of training runs.

    Bounds whose assumption is refuted are gray.
    """
    # Records for fresh directions have no prediction. They come first, so we use the last record.
    last = records[-1]
    if last["predicted"] is not None:
        label = "predicted if gradients do not interfere"
        axis.axhline(last["predicted"], color=PREDICTED, lw=6, alpha=0.55, label=label)
    axis.axhline(last["upper_bound"], color=UPPER, ls=":", label="upper bound (accounting)")
    for name, (color, line) in _METHODS.items():
        of_method = select(records, method=name)
        if of_method:
            first = of_method[0]
            if first["assumes"] == "REJECTED":
                color = FADED
            plot_lines(axis, of_method, {"epsilon": (first["legend"], color, line)})
    axis.set(xscale="log", xlabel="training runs", ylim=(0, None))


def make_proven_rows(point: Point, evidence: Evidence) -> list[Record]:
    """Returns a row for each method and number of training runs, with the lower bound on epsilon.

    Audits with fresh directions yield a bound after every run; the table shows some (`is_shown`). Audits
    along coordinates yield a bound for each run count in _SHOWN_RUNS and for all runs.
    """
    (cell,) = point.cells  # there is one seed
    (conclusion,) = point.conclusions
    by_runs = {}
    if not conclusion.law_is_known:
        by_runs = _conclude_first_runs(point, evidence)
    rows = []
    for bound in conclusion.bounds:
        if bound.method not in _METHODS:
            continue
        method = method_of(bound)
        if conclusion.law_is_known:  # fresh directions
            epsilons = dict(enumerate(bound.path, start=1))  # keyed by number of runs
        else:
            epsilons = {runs: first.finding(method.name).epsilon for runs, first in by_runs.items()}
        for runs, epsilon in epsilons.items():
            rows.append(
                {
                    "x": runs,
                    "panel": point.panel,
                    "method": method.name,
                    "legend": method.legend,
                    "canaries": cell.setting.canaries,
                    "epsilon": epsilon,
                    "upper_bound": point.upper_bound(),
                    "predicted": point.predicted(),
                    # `holds` is False if the scores reject the bound's assumption.
                    "assumes": method.assumes.word if bound.holds else "REJECTED",
                    # With 1 or 3 runs, only fresh directions yield bounds.
                    "is_shown": runs in (1, 3, *_SHOWN_RUNS, cell.runs),
                }
            )
    return rows


def _conclude_first_runs(point: Point, evidence: Evidence) -> dict[int, Conclusion]:
    """Returns the conclusion from an audit's first n runs, for each n in _SHOWN_RUNS and for all runs.

    The dict is keyed by n, and omits counts that are too small for one of the audit's methods.
    """
    (cell,) = point.cells  # there is one seed
    by_runs = {}
    for runs in _SHOWN_RUNS:  # increasing
        if runs >= cell.runs:
            break
        scores = evidence.held.scores(identity(cell.setting), runs)
        assert scores is not None  # the point has a conclusion, so all runs are stored
        with contextlib.suppress(InputError):  # too few runs
            by_runs[runs] = conclude_setting(scores, cell.setting, evidence.levels)
    by_runs[cell.runs] = point.conclusions[0]
    return by_runs


def draw_correlated(
    sweep: Sweep, points: Sequence[Point], evidence: Evidence
) -> tuple[Figure, OwnTable]:
    """Plots the last model's epsilon against k for each noise strategy, and tabulates it.

    Canaries are inserted every k steps; `gather_rows` returns k as `x`. We add a prediction for losses that
    are linear in the model.
    """
    delta = evidence.levels.delta
    rows = gather_rows(points)
    for row in rows:
        mechanism = row["setting"].mechanism
        schedule = row["setting"].schedule
        sigma = mechanism.noise_multiplier
        claim = MatrixMechanism(mechanism.noise, sigma, schedule.steps, schedule.periodicity)
        row |= {
            "strategy": mechanism.noise,
            "noise_multiplier": sigma,
            "linear": claim.last_model_if_linear(delta),
        }
    figure = draw_panels_of(
        rows,
        sweep.title,
        _draw_strategies,
        size=(4.2, 3.2),
        ylabel=f"epsilon of the last model\nat delta {show_level(delta)}",
        sharey=True,
    )
    columns = [  # field, heading, format
        field("panel"),
        field("strategy", "noise", left=True),
        field("x", head="k", show="g")._replace(key="k"),  # the CSV column's name
        field("noise_multiplier", "sigma", ".4g"),
        field("linear", "linear", ".2f"),
        field("interval_low", "audit", ".2f"),  # two-sided interval
        field("interval_high", "to", ".2f"),
        field("proven", "proven", at_least),
        field("composition", "all models", at_most),
    ]
    title = f"{sweep.title}\nepsilon at {evidence.levels}"
    return figure, own_table(title, columns, rows, [_CORRELATED_NOTES], section="panel", gap="  ")


def _draw_strategies(axis: Axes, records: Records) -> None:
    """Plots the last models' epsilons against k in one panel, with a color for each noise strategy.

    Predictions are drawn as lines, audits as intervals, and proven bounds as dots.
    """
    options: dict[str, Any] = {
        "xscale": "log",
        "xlabel": "periodicity k",
        "xticks": np.unique(take(records, "x")),
        "ylim": (0, 1.1 * ACCOUNTED_EPSILON),
    }
    for strategy, label in STRATEGIES.items():
        color, dash = _STRATEGY_LOOKS[strategy]
        rows = select(records, strategy=strategy)
        low = take(rows, "interval_low")
        axis.vlines(take(rows, "x"), low, take(rows, "interval_high"), color=color, **_INTERVAL)
        # The label, color and line or marker for each plotted field of the rows.
        looks = {"linear": (label, color, dash), "proven": ("", color, "o")}
        plot_lines(axis, rows, looks, **options)
    # Gray legend entries without data, for all strategies.
    axis.plot([], [], "-", color=FADED, label="predicted if losses are linear")
    label = "audited, 95% if scores are normal"
    axis.vlines([], [], [], color=FADED, label=label, **_INTERVAL)
    axis.plot([], [], "o", color=FADED, label="proven by fresh directions")
    axis.axhline(ACCOUNTED_EPSILON, color=UPPER, lw=0.8, label="all models, accounted")
