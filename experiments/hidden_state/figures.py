"""The hidden-state paper's sweeps, drawn from what the store holds; nothing here trains or solves."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from audit.report.style import BLUE, GREEN, UPPER, VERMILION
from audit.settings.setting import Setting
from experiments.hidden_state import bracket, landscape, landscape_figures, norms
from experiments.hidden_state.sweep import CLAIMS
from experiments.sweeps import estimates, points, table
from experiments.sweeps.panels import draw_panels
from experiments.sweeps.points import Evidence
from experiments.sweeps.sweep import Drawn, OwnTable, Sweep
from models.catalogue import task

_LINE_LOOKS = ((VERMILION, "-"), (BLUE, "--"), (GREEN, "-."))  # of the three models in Figure 8


def draw(sweep: Sweep, evidence: Evidence) -> Drawn:
    """Draws a sweep's figures from those of its cells that the store holds."""
    match sweep.name:
        case "figure_8":
            return _draw_norms(sweep, evidence)
        case "landscape":
            return _draw_landscape(sweep, evidence)
    return _draw_audits(sweep, evidence)


def _draw_audits(sweep: Sweep, evidence: Evidence) -> Drawn:
    """Draws a figure of audits of trained models, and makes the rows of its table, or a table of its own."""
    delta = evidence.levels.delta
    all_points = points.points(sweep.audits(), evidence.audits)
    stored_points = [point for point in all_points if point.conclusions]
    missing = sum(len(point.cells) - len(point.conclusions) for point in all_points)
    missing += bracket.count_unmeasured(sweep, evidence)
    if not stored_points:
        return Drawn(figures=[], missing=missing, rows=[])

    # Functions that are given all points leave out those without a conclusion.
    own_table = None
    rows = []
    match sweep.name:
        case "proven":
            figure, own_table = bracket.draw_proven(sweep, stored_points, evidence)
        case "bracket_k" | "bracket_steps":
            figure, own_table = bracket.draw_bracket(
                sweep, stored_points, evidence, logarithmic=True
            )
        case "bracket" | "bracket_rates":
            figure, own_table = bracket.draw_bracket(
                sweep, stored_points, evidence, logarithmic=False
            )
        case "figure_6a":
            figure = estimates.trade_off_figure(sweep.title, all_points)
        case "figure_11":
            figure = estimates.profile_figure(sweep.title, all_points, delta)
        case _:
            figure = estimates.epsilon_figure(sweep.title, sweep.axis, all_points, delta)
    if own_table is None:
        rows = list(table.make_rows(sweep, stored_points, CLAIMS, delta))
    return Drawn([(sweep.name, figure)], missing, rows, table=own_table)


def _draw_norms(sweep: Sweep, evidence: Evidence) -> Drawn:
    """Draws Figure 8: the norms of L's canaries before clipping, for the models whose norms are stored."""
    by_model = {}
    for cell in sweep.cells:
        setting = cell.request
        assert isinstance(setting, Setting)
        stored_norms = norms.read(evidence.held, setting, cell.runs)
        if stored_norms is not None:
            by_model[task(setting.model).label] = stored_norms
            clipping_norm = setting.mechanism.clipping_norm  # the same for all
    missing = len(sweep.cells) - len(by_model)
    if not by_model:
        return Drawn(figures=[], missing=missing, rows=[])

    def draw_norms(axis: Axes) -> None:
        """Draws the mean of norms over the runs, and 2 standard deviations about it, step by step."""
        for (model, run_norms), (color, dash) in zip(by_model.items(), _LINE_LOOKS, strict=False):
            steps = np.arange(run_norms.shape[1])
            mean = run_norms.mean(0)  # over the runs
            spread = 2 * run_norms.std(0, ddof=1)
            low = np.maximum(mean - spread, 0)  # no norm is below 0
            axis.plot(steps, mean, color=color, ls=dash, label=f"{model} ({len(run_norms)} runs)")
            axis.fill_between(steps, low, mean + spread, color=color, alpha=0.2, lw=0)
        axis.axhline(clipping_norm, color=UPPER, ls=":", lw=1, label="$C$")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set(xlabel="step", ylabel="norm of the canary's gradient", ylim=(0, None))

    title = "L's canary before clipping: mean and 2 standard deviations"
    figure = draw_panels(title, {"": draw_norms}, (6, 2.9))
    return Drawn([(sweep.name, figure)], missing, rows=[])


def _draw_landscape(sweep: Sweep, evidence: Evidence) -> Drawn:
    """Draws the crafted landscape's figures, and makes its table."""
    audits = landscape.read(evidence.held, sweep.cells, landscape.AUDIT)
    searches = landscape.read(evidence.held, sweep.cells, landscape.SEARCH)
    figures = list(landscape_figures.draw(audits, searches))
    missing = len(sweep.cells) - len(audits) - len(searches)
    if not figures:
        return Drawn(figures, missing, rows=[])
    shown = landscape_figures.make_table(audits)
    return Drawn(figures, missing, rows=[], table=OwnTable(shown.text(), shown.csv()))
