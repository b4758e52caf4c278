"""The hidden-state paper's sweeps, drawn from what the store holds; nothing here trains or solves.

The landscape's show the exact epsilon beside what the Gaussian conversion claims. Only curves that follow
from a cell in an instant are computed here: Example 1's and Figure 6b's.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from audit.landscape import law
from audit.landscape.process import Process, constant
from audit.report.style import BLUE, BOUND, GREEN, IN, ORANGE, OUT, PURPLE, STYLE, UPPER, VERMILION
from audit.statistics import conversions, densities
from experiments.cells.cell import Audited
from experiments.hidden_state import bracket, landscape, proven
from experiments.hidden_state import cells as own_cells
from experiments.hidden_state.landscape import CellResults, LandscapeCell, SearchResults, StudyResults
from experiments.hidden_state.sweep import CLAIMS
from experiments.sweeps import estimates, points, table
from experiments.sweeps.points import Evidence, Spread
from experiments.sweeps.sweep import Drawn, Row, Seeds, Sweep
from models.catalogue import task

_Ends = list[tuple[float, float]]  # epsilon at the last step and at the first, by cell
_LOOKS = ((VERMILION, "-"), (BLUE, "--"), (GREEN, "-."), (PURPLE, (0, (5, 1))), (ORANGE, ":"))


def draw(sweep: Sweep, evidence: Evidence) -> Drawn:
    """A sweep's figures of the cells that are there."""
    drawings = {"figure_8": _draw_norms, "landscape": _draw_landscape, "proven": proven.draw}
    drawings |= dict.fromkeys(("bracket_k", "bracket_steps"), bracket.draw)
    return drawings.get(sweep.name, _draw_audits)(sweep, evidence)


def _draw_audits(sweep: Sweep, evidence: Evidence) -> Drawn:
    every, delta = points.points(sweep.audits(), evidence.audits), evidence.levels.delta
    found = [point for point in every if point.found]
    missing = sum(len(point.cells) - len(point.found) for point in every)
    rows = list(table.rows(sweep.name, found, CLAIMS, delta))
    if not found:
        return Drawn([], missing, rows)
    if sweep.name == "figure_6a":
        figure = estimates.trade_off_figure(sweep.title, every)
    elif sweep.name == "figure_11":
        figure = estimates.profile_figure(sweep.title, every, delta)
    else:
        figure = estimates.epsilon_figure(sweep.title, sweep.axis, every, delta)
    return Drawn([(sweep.name, figure)], missing, rows)


def _draw_norms(sweep: Sweep, evidence: Evidence) -> Drawn:
    requests = [cell.request for cell in sweep.cells if isinstance(cell.request, Audited)]
    norms = {
        task(setting.model).label: values
        for *_, setting, runs in requests
        if (values := own_cells.read_norms(evidence.held, setting, runs)) is not None
    }
    norm = requests[0].setting.mechanism.clipping_norm
    figures = [(sweep.name, norms_figure(norms, norm))] if norms else []
    return Drawn(figures, len(requests) - len(norms), [])


def norms_figure(norms: Mapping[str, own_cells.Norms], clipping_norm: float) -> Figure:
    """Mean and 2 standard deviations of norms (runs, steps) by model, at most five of them."""
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(6, 3.6))
        for (model, values), (color, dash) in zip(norms.items(), _LOOKS, strict=False):
            mean, spread = values.mean(0), 2 * values.std(0, ddof=1)
            steps = np.arange(values.shape[1])
            axis.plot(steps, mean, color=color, ls=dash, label=f"{model} ({len(values)} runs)")
            low, high = np.maximum(mean - spread, 0), mean + spread
            axis.fill_between(steps, low, high, color=color, alpha=0.2, lw=0)
        axis.axhline(clipping_norm, color=UPPER, ls=":", lw=1)
        beside: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
        axis.annotate("$C$", (1, clipping_norm), (3, 0), ha="left", va="center", **beside)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set(xlabel="step", ylabel="norm of the canary's gradient", ylim=(0, None))
        axis.set_title("L's canary before clipping: mean and 2 standard deviations")
        figure.legend(loc="outside lower center", ncols=3, fontsize=8)
        return figure


def _draw_landscape(sweep: Sweep, evidence: Evidence) -> Drawn:
    (grid,) = (cell.request for cell in sweep.cells if isinstance(cell.request, landscape.Grid))
    held = landscape.with_cells(evidence.held)
    results = landscape.results(held, landscape.study(grid, *evidence.levels))
    drawn = landscape_figures(results, grid.runs, landscape.CLIPPING_NORM)
    return Drawn(list(drawn), results.missing, landscape_rows(sweep.name, results.cells, grid.runs))


def landscape_figures(results: StudyResults, runs: int, norm: float) -> Iterator[tuple[str, Figure]]:
    """(name, figure) of every figure: of the cells if there are any, and of Algorithm 6 if it is there.

    `runs` are those of the simulations, `norm` is C, the unit of Figure 10's and Algorithm 6's axes.
    """
    cells, searches, _ = results
    if cells:
        sigmas = sorted({one.cell.noise_multiplier for one in cells})
        with plt.rc_context(STYLE):
            yield "figure_3a", _over_time(cells, [sigmas[0], sigmas[-1]], runs)
            yield "figure_14", _over_time(cells, sigmas, runs)
            yield "figure_3b", _heat_maps(cells, runs)
            yield "figure_6b", _trade_offs(cells, sigmas[len(sigmas) // 2 - (len(sigmas) > 1)])
            yield "figure_10", _loss(norm)
    if searches:
        with plt.rc_context(STYLE):
            figure = _threshold_search(searches, norm, runs)
        yield "algorithm_6", figure


def landscape_rows(name: str, cells: Sequence[CellResults], runs: int) -> list[Row]:
    """The table's rows: what the simulated audit bounds at the last step, beside the exact epsilon."""
    return [
        Row(
            figure=name,
            panel=f"sigma = {cell.noise_multiplier:g}",
            series=f"B = {cell.batch_size}",
            x=cell.batch_size,
            seeds=Seeds(runs, found=1, missing=0),
            epsilons={bound["method"]: Spread(*[bound["epsilon"]] * 3) for bound in simulated.last},
            interval=None,
            predicted=exact.epsilon_exact[-1],
            upper_bound=exact.epsilon_upper,
            claim=table.claim(CLAIMS, name, f"B = {cell.batch_size}", cell.batch_size),
        )
        for cell, _, exact, simulated in cells
    ]


def _over_time(cells: Sequence[CellResults], sigmas: list[float], runs: int) -> Figure:
    sigmas, sizes = list(dict.fromkeys(sigmas)), sorted({one.cell.batch_size for one in cells})
    shape, size = (len(sigmas), len(sizes)), (1.35 * len(sizes) + 0.4, 1.05 * len(sigmas) + 1.1)
    figure, axes = plt.subplots(*shape, figsize=size, sharex=True, sharey="row", squeeze=False)
    for one in cells:
        if one.cell.noise_multiplier in sigmas:
            row, column = sigmas.index(one.cell.noise_multiplier), sizes.index(one.cell.batch_size)
            _draw_over_time(axes[row, column], one, runs)
    for row, sigma in enumerate(sigmas):
        axes[row, 0].set_ylabel(f"epsilon (sigma = {sigma:g})", fontsize=8)
    for column, batch in enumerate(sizes):
        axes[0, column].set_title(f"B = {batch}")
        axes[-1, column].set_xlabel("step t")
    for axis in axes.flat:
        axis.tick_params(labelsize=7)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize=8)
    return figure


def _simulated(runs: int) -> str:
    return f"Algorithm 4's lower value, {runs:,} simulated runs (no bound)"


def _draw_over_time(axis: Axes, results: CellResults, runs: int) -> None:
    """What is claimed, true and a bound; in Example 1, mu = 1 / sqrt(sigma^2 + (t - 1) (sigma / B)^2)."""
    (sigma, size, last, delta), _, exact, simulated = results
    steps = range(1, last + 1)
    variances = [sigma**2 * (1 + (step - 1) / size**2) for step in steps]
    convex = [conversions.epsilon_from_mu(variance**-0.5, delta) for variance in variances]
    axis.axhline(exact.epsilon_upper, color=UPPER, ls=":", label="upper bound")
    axis.plot(steps, simulated.in_sample, ".", color=IN, ms=2, label=_simulated(runs))
    axis.plot(steps, exact.epsilon_gaussian, color=IN, ls="--", lw=1, label="exact mu, Gaussian conversion")
    axis.plot(steps, exact.epsilon_exact, color=OUT, lw=1.2, label="exact epsilon")
    axis.plot(steps, convex, color=PURPLE, ls="-.", lw=1, label="constant gradient (Example 1)")
    axis.set_ylim(bottom=0, top=max(axis.get_ylim()[1], 1.06 * max(simulated.in_sample)))


def _heat_maps(cells: Sequence[CellResults], runs: int) -> Figure:
    steps, delta = cells[0].cell.steps, cells[0].cell.delta
    claimed = [(one.simulated.in_sample[-1], one.simulated.in_sample[0]) for one in cells]
    gaussian = [(half.epsilon_gaussian[-1], half.epsilon_upper) for half in (c.exact["half"] for c in cells)]

    def exact(name: str) -> _Ends:
        return [(one.exact[name].epsilon_exact[-1], one.exact[name].epsilon_upper) for one in cells]

    panels = [
        (f"Gaussian conversion, simulated\n(the paper's; {runs:,} runs)", claimed),
        ("Gaussian conversion of the exact mu\nh = C / 2", gaussian),
        ("exact epsilon, h = C / 2", exact("half")),
        ("exact epsilon, best constant threshold", exact("best_constant")),
        ("exact epsilon, optimal adversary", exact("optimal")),
    ]
    figure, axes = plt.subplots(2, 3, figsize=(10, 7.4))
    for axis, (title, ends) in zip(axes.flat[[0, 1, 3, 4, 5]], panels, strict=True):
        image = _draw_heat_map(axis, [one.cell for one in cells], ends)
        axis.set_title(title, fontsize=9)
    axes[0, 2].axis("off")
    note = (
        f"amplification rate\nepsilon (T = {steps}) / epsilon (1)\nat delta = {delta:g}\n\n"
        "1: hiding the earlier steps\nhides nothing\n\nThe upper row is what converting\n"
        "mu claims, the lower one what\nthe process really loses."
    )
    axes[0, 2].text(0.3, 0.5, note, va="center", fontsize=9, transform=axes[0, 2].transAxes)
    figure.colorbar(image, cax=axes[0, 2].inset_axes((0.05, 0.05, 0.07, 0.9)))
    return figure


def _draw_heat_map(axis: Axes, cells: Sequence[LandscapeCell], ends: _Ends) -> AxesImage:
    """sigma down, B across, last / first written into each cell; "-" where nothing is lost at step 1."""
    sigmas = sorted({cell.noise_multiplier for cell in cells})
    sizes = sorted({cell.batch_size for cell in cells})
    values = np.full((len(sigmas), len(sizes)), np.nan)
    for cell, (last, first) in zip(cells, ends, strict=True):
        if first > 0:
            values[sigmas.index(cell.noise_multiplier), sizes.index(cell.batch_size)] = last / first
    image = axis.imshow(values, vmin=0, vmax=1, cmap="cividis", aspect="auto")
    for (row, column), value in np.ndenumerate(values):
        text = "-" if np.isnan(value) else f"{value:.2f}"
        colour = "white" if np.isnan(value) or value < 0.55 else "black"
        axis.text(column, row, text, ha="center", va="center", color=colour, fontsize=8)
    axis.set_xticks(range(len(sizes)), [str(size) for size in sizes])
    axis.set_yticks(range(len(sigmas)), [f"{sigma:g}" for sigma in sigmas])
    axis.set(xlabel="batch size B", ylabel="noise multiplier sigma")
    axis.spines[:].set_visible(False)
    return image


def _trade_offs(cells: Sequence[CellResults], sigma: float) -> Figure:
    """Figure 6b: how far the exact and the Gaussian trade-off curves lie above the upper bound's."""
    chosen = [one.cell for one in cells if one.cell.noise_multiplier == sigma]
    size = (1.5 * len(chosen) + 0.8, 2.9)
    figure, axes = plt.subplots(1, len(chosen), figsize=size, sharey=True, squeeze=False)
    grid = np.linspace(0, 1, 401)
    for axis, cell in zip(axes[0], chosen, strict=True):
        process = Process(*cell[:3])
        pair = law.last_law(process, constant(process, 0.5))
        rates, mu = densities.trade_off_curve(pair), float(densities.mu_at(pair, 0.5))
        exact = rates.false_negative - conversions.gaussian_trade_off(1 / sigma, rates.false_positive)
        axis.plot(rates.false_positive, exact, color=OUT, label="exact")
        gaussian = conversions.gaussian_trade_off(mu, grid) - conversions.gaussian_trade_off(1 / sigma, grid)
        axis.plot(grid, gaussian, color=IN, ls="--", label="Gaussian, same mu")
        axis.axhline(0, color=UPPER, ls=":", label="upper bound")
        axis.set_title(f"B = {cell.batch_size}, mu = {mu:.3f}", fontsize=9)
        axis.set(xlabel="false-positive rate", xlim=(0, 1))
        axis.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
    axes[0, 0].set_ylabel("false-negative rate\nabove the upper bound's")
    figure.suptitle(f"Trade-off curves, sigma = {sigma:g}, T = {chosen[0].steps}", fontsize=10)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    return figure


def _loss(norm: float) -> Figure:
    theta = np.linspace(-2, 3, 501) * norm
    figure, axis = plt.subplots(figsize=(5, 3.2))
    axis.plot(theta, -norm * np.abs(theta - norm / 2), color=BOUND)
    axis.axvline(norm / 2, color=UPPER, ls=":", lw=1)
    axis.annotate("$h = C / 2$", (norm / 2, -2.2 * norm**2), xytext=(4, 0), textcoords="offset points")
    axis.plot(0, -(norm**2) / 2, "o", color=OUT, label=r"$\theta_1$ without the canary, on average")
    axis.plot(norm, -(norm**2) / 2, "s", color=IN, label=r"$\theta_1$ with the canary, on average")
    for start, end in ((-0.4, -1.4), (1.4, 2.4)):
        heights = [-(norm**2) * abs(at - 0.5) + 0.25 * norm**2 for at in (start, end)]
        arrow = {"arrowstyle": "->", "color": "0.4"}
        axis.annotate("", (end * norm, heights[1]), (start * norm, heights[0]), arrowprops=arrow)
    axis.set(xlabel=r"$\theta$", ylabel="mean loss of a batch", title="The crafted loss landscape")
    axis.set_ylim(top=0.3 * norm**2)
    figure.legend(loc="outside lower center", fontsize=8)
    return figure


def _threshold_search(searches: Sequence[SearchResults], norm: float, runs: int) -> Figure:
    figure, axes = plt.subplots(1, len(searches), figsize=(3.5 * len(searches), 3.6), squeeze=False)
    for axis, (cell, thresholds, exact, claimed) in zip(axes[0], searches, strict=True):
        upper, places = exact[0].epsilon_upper, np.array(thresholds) * norm
        axis.axhline(upper, color=UPPER, ls=":", label="upper bound")
        axis.plot(places, claimed, ".", color=IN, ms=4, label=_simulated(runs))
        axis.plot(places, [one.epsilon_exact[-1] for one in exact], color=OUT, label="exact epsilon")
        axis.axvline(norm / 2, color="0.6", lw=0.8, label="h = C / 2, the paper's")
        axis.set(xlabel="threshold h", title=f"sigma = {cell.noise_multiplier:g}, B = {cell.batch_size}")
        axis.set_ylim(bottom=0, top=1.25 * upper)
    axes[0, 0].set_ylabel(f"epsilon at delta {searches[0].cell.delta:g}")
    title = "Algorithm 6: which threshold of the crafted landscape leaks most after two steps"
    figure.suptitle(title, fontsize=10)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8)
    return figure
