"""The figure and table of the sweep of correlated noise."""

from collections.abc import Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from audit.claims.matrix import MatrixMechanism
from audit.report.style import BLACK, BLUE, FADED, GREEN, UPPER, VERMILION
from audit.report.table import at_least, at_most
from audit.written import show_level
from experiments.hidden_state.bracket import gather_rows
from experiments.hidden_state.correlated import ACCOUNTED_EPSILON, STRATEGIES
from experiments.sweeps.panels import draw_panels, take
from experiments.sweeps.points import Evidence, Point
from experiments.sweeps.records import Record, Records, field, own_table, select
from experiments.sweeps.sweep import OwnTable, Sweep

_LOOKS = {  # color and line by strategy
    "independent": (BLACK, ":"),
    "lambda:0.9": (BLUE, "-."),
    "bsr:16": (GREEN, "--"),
    "bisr:16": (VERMILION, "-"),
}
_NOTES = """\
linear:   last model if losses are linear, by the formula; not a bound
audit:    two-sided interval of canaries along coordinates, if scores are normal
proven:   lower bound of fresh directions, assumption-free"""


def draw_correlated(
    sweep: Sweep, points: Sequence[Point], evidence: Evidence
) -> tuple[Figure, OwnTable]:
    """Draws epsilon of the last model over k, and makes the table."""
    delta = evidence.levels.delta
    rows = gather_rows(points, delta, partial(_describe, delta))
    panels = {}
    for row in rows:
        panel = row["panel"]
        panels[panel] = partial(_draw_panel, rows=select(rows, panel=panel))
    label = f"epsilon of the last model\nat delta {show_level(delta)}"
    figure = draw_panels(sweep.title, panels, (4.2, 3.2), ylabel=label, sharey=True)
    columns = [
        field("panel"),
        field("strategy", "noise", left=True),
        field("k", "k", "g"),
        field("noise_multiplier", "sigma", ".4g"),
        field("linear", "linear", ".2f"),
        field("interval_low", "audit", ".2f"),
        field("interval_high", "to", ".2f"),
        field("proven", "proven", at_least),
        field("every_model", "all models", at_most),
    ]
    title = f"{sweep.title}\nepsilon at {evidence.levels}"
    return figure, own_table(title, columns, rows, [_NOTES], section="panel", gap="  ")


def _describe(delta: float, point: Point) -> Record:
    """Returns a point's noise, and the epsilons by formulas."""
    setting = point.cells[0].setting
    schedule = setting.schedule
    noise = setting.mechanism.noise
    sigma = setting.mechanism.noise_multiplier
    claim = MatrixMechanism(noise, sigma, schedule.steps, schedule.periodicity)
    return {
        "strategy": noise,
        "k": point.x,
        "noise_multiplier": sigma,
        "linear": claim.last_model_if_linear(delta),
        "every_model": claim.epsilon(delta),
    }


def _draw_panel(axis: Axes, rows: Records) -> None:
    """Draws a model's epsilons over k: lines by the formula, intervals, and proven bounds."""
    for strategy, label in STRATEGIES.items():
        color, dash = _LOOKS[strategy]
        of_strategy = select(rows, strategy=strategy)
        ks = take(of_strategy, "k")
        axis.plot(ks, take(of_strategy, "linear"), dash, color=color, label=label)
        low, high = take(of_strategy, "interval_low"), take(of_strategy, "interval_high")
        axis.vlines(ks, low, high, color=color, lw=4, alpha=0.4)
        axis.plot(ks, take(of_strategy, "proven"), "o", color=color, ms=5)
    # Colors are those of the strategies, so the legend shows the marks in grey.
    axis.plot([], [], "-", color=FADED, label="predicted if losses are linear")
    axis.vlines([], [], [], color=FADED, lw=4, alpha=0.4, label="audited, 95% if scores are normal")
    axis.plot([], [], "o", color=FADED, label="proven by fresh directions")
    axis.axhline(ACCOUNTED_EPSILON, color=UPPER, lw=0.8, label="all models, accounted")
    axis.set(xscale="log", xlabel="periodicity k", ylim=(0, 1.1 * ACCOUNTED_EPSILON))
    axis.set_xticks(np.unique(take(rows, "k")))
    axis.minorticks_off()
    axis.xaxis.set_major_formatter("{x:g}")
