"""The hidden-state paper's sweeps, drawn from what the store holds; nothing here trains or solves."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from audit import concluded
from audit.report import style
from audit.report.style import BLUE, GREEN, ORANGE, PURPLE, VERMILION
from experiments.cells.cell import Audited
from experiments.hidden_state import cells, landscape, landscape_figures
from experiments.hidden_state.cells import Norms
from experiments.hidden_state.landscape import Grid
from experiments.hidden_state.sweep import CLAIMS
from experiments.sweeps import estimates, points, table
from experiments.sweeps.points import Evidence, Point
from experiments.sweeps.sweep import Drawn, Sweep
from models.catalogue import task

_LOOKS = ((VERMILION, "-"), (BLUE, "--"), (GREEN, "-."), (PURPLE, (0, (5, 1))), (ORANGE, ":"))


def draw(sweep: Sweep, evidence: Evidence) -> Drawn:
    """A sweep's figures of the cells that are there."""
    return {"figure_8": _draw_norms, "landscape": _draw_landscape}.get(sweep.name, _draw_audits)(
        sweep, evidence
    )


def _draw_audits(sweep: Sweep, evidence: Evidence) -> Drawn:
    """One figure, if any point has conclusions."""
    every, delta = points.points(sweep.audits(), evidence.audits), evidence.levels.delta
    found = [point for point in every if point.found]
    missing = sum(len(point.cells) - len(point.found) for point in every)
    rows = list(table.rows(sweep.name, found, CLAIMS, delta))
    if not found:
        return Drawn([], missing, rows)
    if sweep.name == "figure_6a":
        figure = estimates.trade_off_figure(sweep.title, list(map(_tested, every)))
    elif sweep.name == "figure_11":
        figure = estimates.profile_figure(sweep.title, every, delta)
    else:
        figure = estimates.epsilon_figure(sweep.title, sweep.axis, every, delta)
    return Drawn([(sweep.name, figure)], missing, rows)


def _tested(point: Point) -> Point:
    """The point with the test of the Gaussian curve in each conclusion, and what speaks for one."""
    reason = concluded.gaussian_reason(point.cells[0].setting)
    return point._replace(found=tuple(one.with_curve_test()._replace(reason=reason) for one in point.found))


def _draw_norms(sweep: Sweep, evidence: Evidence) -> Drawn:
    """Figure 8, of the models that are there."""
    requests = [cell.request for cell in sweep.cells if isinstance(cell.request, Audited)]
    read = {
        task(setting.model).label: cells.read_norms(evidence.held, setting, runs)
        for *_, setting, runs in requests
    }
    norms = {model: values for model, values in read.items() if values is not None}
    norm = requests[0].setting.mechanism.clipping_norm
    figures = [(sweep.name, norms_figure(norms, norm))] if norms else []
    return Drawn(figures, len(requests) - len(norms), [])


def norms_figure(norms: Mapping[str, Norms], clipping_norm: float) -> Figure:
    """Mean and 2 standard deviations of norms (runs, steps) by model, at most five of them."""
    with plt.rc_context(style.STYLE):
        figure, axis = plt.subplots(figsize=(6, 3.6))
        for (model, values), (color, dash) in zip(norms.items(), _LOOKS, strict=False):
            mean, spread = values.mean(0), 2 * values.std(0, ddof=1)
            steps = np.arange(values.shape[1])
            axis.plot(steps, mean, color=color, ls=dash, label=f"{model} ({len(values)} runs)")
            low, high = np.maximum(mean - spread, 0), mean + spread
            axis.fill_between(steps, low, high, color=color, alpha=0.2, lw=0)
        axis.axhline(clipping_norm, color=style.UPPER, ls=":", lw=1)
        beside: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
        axis.annotate("$C$", (1, clipping_norm), (3, 0), ha="left", va="center", **beside)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set(xlabel="step", ylabel="norm of the canary's gradient", ylim=(0, None))
        axis.set_title("L's canary before clipping: mean and 2 standard deviations")
        figure.legend(loc="outside lower center", ncols=3, fontsize=8)
        return figure


def _draw_landscape(sweep: Sweep, evidence: Evidence) -> Drawn:
    """Figures 3a, 3b, 6b, 10 and 14 of the cells that are there, and Algorithm 6's."""
    (grid,) = (cell.request for cell in sweep.cells if isinstance(cell.request, Grid))
    held = landscape.with_cells(evidence.held)
    results = landscape.results(held, landscape.study(grid, *evidence.levels))
    drawn = landscape_figures.figures(results, grid.runs, landscape.CLIPPING_NORM)
    rows = landscape_figures.rows(sweep.name, results.cells, grid.runs)
    return Drawn(list(drawn), results.missing, rows)
