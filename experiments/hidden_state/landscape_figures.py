"""The landscape's figures: 3a, 3b, 6b, 10, 14 and Algorithm 6 of the hidden-state paper, each with the
exact epsilon beside what the Gaussian conversion claims."""

from collections.abc import Iterator
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from audit.landscape import law
from audit.statistics import conversions, densities
from experiments.hidden_state import landscape_cells
from experiments.hidden_state.landscape_cells import Cell, Exact, Simulated
from experiments.plots.style import BOUND, IN, OUT, PURPLE, STYLE, UPPER

Exacts = dict[tuple[Cell, str], Exact]
Claims = dict[Cell, tuple[Exact, Simulated]]
CONVEX = PURPLE


def all_figures(
    cells: list[Cell], exact: Exacts, claims: Claims, runs: int, norm: float
) -> Iterator[tuple[str, Figure]]:
    """(name, figure) of every figure but Algorithm 6's."""
    sigmas = sorted({cell.noise_multiplier for cell in cells})
    with plt.rc_context(STYLE):
        yield "figure_3a", _over_time(cells, claims, [sigmas[0], sigmas[-1]])
        yield "figure_14", _over_time(cells, claims, sigmas)
        yield "figure_3b", _heat_maps(cells, exact, claims, runs)
        yield "figure_6b", _trade_offs(cells, sigmas[len(sigmas) // 2 - (len(sigmas) > 1)])
        yield "figure_10", _landscape(norm)


def search_figure(
    out: Path, delta: float, runs: int, seed: int, confidence: float, norm: float
) -> tuple[str, Figure]:
    """(name, figure) of Algorithm 6: every threshold at T = 2, by what the audit claims and what is true."""
    with plt.rc_context(STYLE):
        return "algorithm_6", _threshold_search(out, delta, runs, seed, confidence, norm)


def _over_time(cells: list[Cell], claims: Claims, sigmas: list[float]) -> Figure:
    """epsilon by step: a row a noise multiplier, a column a batch size."""
    sigmas = list(dict.fromkeys(sigmas))
    sizes = sorted({cell.batch_size for cell in cells})
    figure, axes = plt.subplots(
        len(sigmas),
        len(sizes),
        figsize=(2.1 * len(sizes) + 0.6, 1.7 * len(sigmas) + 0.9),
        sharex=True,
        sharey="row",
        squeeze=False,
    )
    for cell in cells:
        if cell.noise_multiplier in sigmas:
            row, column = sigmas.index(cell.noise_multiplier), sizes.index(cell.batch_size)
            _draw_over_time(axes[row, column], cell, *claims[cell])
    for axis, size in zip(axes[0], sizes, strict=True):
        axis.set_title(f"B = {size}")
    for axis, sigma in zip(axes[:, 0], sigmas, strict=True):
        axis.set_ylabel(f"sigma = {sigma:g}\nepsilon")
    for axis in axes[-1]:
        axis.set_xlabel("step t")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, fontsize=8)
    return figure


def _draw_over_time(axis: Axes, cell: Cell, exact: Exact, simulated: Simulated) -> None:
    """One cell: what is claimed, what is true, and what cannot be exceeded."""
    steps = range(1, cell.steps + 1)
    convex = [_convex_epsilon(cell, t) for t in steps]
    axis.axhline(exact.epsilon_upper, color=UPPER, ls=":", label="upper bound")
    axis.plot(steps, simulated.in_sample, ".", color=IN, ms=3, label="simulated, Gaussian conversion")
    axis.plot(steps, exact.epsilon_gaussian, color=IN, ls="--", lw=1, label="exact mu, Gaussian conversion")
    axis.plot(steps, exact.epsilon_exact, color=OUT, label="exact epsilon")
    axis.plot(steps, convex, color=CONVEX, ls="-.", lw=1, label="constant gradient (Example 1)")
    axis.set_ylim(bottom=0)


def _convex_epsilon(cell: Cell, step: int) -> float:
    """Example 1: noise accumulates, mu = 1 / sqrt(sigma^2 + (t - 1) (sigma / B)^2)."""
    variance = cell.noise_multiplier**2 * (1 + (step - 1) / cell.batch_size**2)
    return conversions.epsilon_from_mu(variance**-0.5, cell.delta)


def _heat_maps(cells: list[Cell], exact: Exacts, claims: Claims, runs: int) -> Figure:
    """Amplification rates epsilon(T) / epsilon(1): as claimed, and exact for three adversaries."""
    steps = cells[0].steps
    panels = [
        (f"Gaussian conversion, simulated\n(the paper's; {runs:,} runs)", _simulated_rates(claims)),
        (
            "Gaussian conversion of the exact mu\nh = C / 2",
            {c: exact[c, "half"].epsilon_gaussian[-1] / exact[c, "half"].epsilon_upper for c in cells},
        ),
        ("exact epsilon, h = C / 2", _exact_rates(cells, exact, "half")),
        ("exact epsilon, best constant threshold", _exact_rates(cells, exact, "best_constant")),
        ("exact epsilon, optimal adversary", _exact_rates(cells, exact, "optimal")),
    ]
    figure, axes = plt.subplots(2, 3, figsize=(10, 7.4))
    for axis, (title, rates) in zip(axes.flat[[0, 1, 3, 4, 5]], panels, strict=True):
        image = _draw_heat_map(axis, cells, rates)
        axis.set_title(title, fontsize=9)
    axes[0, 2].axis("off")
    note = (
        f"amplification rate\nepsilon(T = {steps}) / epsilon(1)\nat delta = {cells[0].delta:g}\n\n"
        "1: hiding the earlier steps\nhides nothing\n\nThe upper row is what converting\n"
        "mu claims, the lower one what\nthe process really loses."
    )
    axes[0, 2].text(0.3, 0.5, note, va="center", fontsize=9, transform=axes[0, 2].transAxes)
    figure.colorbar(image, cax=axes[0, 2].inset_axes((0.05, 0.05, 0.07, 0.9)))
    return figure


def _simulated_rates(claims: Claims) -> dict[Cell, float]:
    """The paper's rate; NaN where nothing is claimed at step 1."""
    rates = {}
    for cell, (_, result) in claims.items():
        first, last = result.in_sample[0], result.in_sample[-1]
        rates[cell] = last / first if first > 0 else np.nan
    return rates


def _exact_rates(cells: list[Cell], exact: Exacts, name: str) -> dict[Cell, float]:
    """The exact rate; NaN where step 1 loses nothing."""
    results = {cell: exact[cell, name] for cell in cells}
    return {
        cell: r.epsilon_exact[-1] / r.epsilon_upper if r.epsilon_upper > 0 else np.nan
        for cell, r in results.items()
    }


def _draw_heat_map(axis: Axes, cells: list[Cell], rates: dict[Cell, float]):
    """sigma down, B across, the rate written into each cell."""
    sigmas = sorted({cell.noise_multiplier for cell in cells})
    sizes = sorted({cell.batch_size for cell in cells})
    values = np.full((len(sigmas), len(sizes)), np.nan)
    for cell in cells:
        values[sigmas.index(cell.noise_multiplier), sizes.index(cell.batch_size)] = rates[cell]
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


def _trade_offs(cells: list[Cell], sigma: float) -> Figure:
    """Figure 6b: the exact trade-off curve beside the Gaussian one of the same mu at C / 2."""
    chosen = [cell for cell in cells if cell.noise_multiplier == sigma]
    figure, axes = plt.subplots(
        1, len(chosen), figsize=(2.4 * len(chosen) + 0.8, 3.1), sharey=True, squeeze=False
    )
    grid = np.linspace(0, 1, 401)
    for axis, cell in zip(axes[0], chosen, strict=True):
        process = law.Process(cell.noise_multiplier, cell.batch_size, cell.steps)
        pair = law.last_law(process, law.constant(process, 0.5))
        rates = densities.trade_off_curve(pair)
        mu = float(densities.mu_at(pair, 0.5))
        axis.plot(rates.false_positive, rates.false_negative, color=OUT, label="exact")
        axis.plot(
            grid, conversions.gaussian_trade_off(mu, grid), color=IN, ls="--", label="Gaussian, same mu"
        )
        limit = conversions.gaussian_trade_off(1 / sigma, grid)
        axis.plot(grid, limit, color=UPPER, ls=":", label="upper bound")
        axis.set(title=f"B = {cell.batch_size}, mu = {mu:.3f}", xlabel="false-positive rate")
        axis.set(xlim=(0, 1), ylim=(0, 1))
    axes[0, 0].set_ylabel(f"false-negative rate\nsigma = {sigma:g}, T = {chosen[0].steps}")
    axes[0, 0].legend(fontsize=8, loc="upper right")
    return figure


def _landscape(norm: float) -> Figure:
    """Figure 10: the loss whose gradient pushes the worlds apart."""
    theta = np.linspace(-2, 3, 501) * norm
    figure, axis = plt.subplots(figsize=(5, 3.2))
    axis.plot(theta, -norm * np.abs(theta - norm / 2), color=BOUND)
    axis.axvline(norm / 2, color=UPPER, ls=":", lw=1)
    axis.annotate("h = C / 2", (norm / 2, -2.2 * norm**2), xytext=(4, 0), textcoords="offset points")
    axis.plot(0, -(norm**2) / 2, "o", color=OUT, label="theta_1 without the canary, on average")
    axis.plot(norm, -(norm**2) / 2, "s", color=IN, label="theta_1 with the canary, on average")
    for start, end in ((-0.4, -1.4), (1.4, 2.4)):
        arrow = {"arrowstyle": "->", "color": "0.4"}
        heights = (
            -(norm**2) * abs(start - 0.5) + 0.25 * norm**2,
            -(norm**2) * abs(end - 0.5) + 0.25 * norm**2,
        )
        axis.annotate("", (end * norm, heights[1]), (start * norm, heights[0]), arrowprops=arrow)
    axis.set(xlabel="theta", ylabel="mean loss of a batch", title="The crafted loss landscape")
    axis.set_ylim(top=0.3 * norm**2)
    figure.legend(loc="outside lower center", fontsize=8)
    return figure


def _threshold_search(
    out: Path, delta: float, runs: int, seed: int, confidence: float, norm: float
) -> Figure:
    """Algorithm 6: every threshold at T = 2, by what the audit claims and by what is true."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6))
    for axis, cell in zip(axes, landscape_cells.search_cells(delta), strict=True):
        sigma = cell.noise_multiplier
        thresholds = np.array(landscape_cells.thresholds(cell))
        exact = [landscape_cells.exact_at(out, cell, float(h)) for h in thresholds]
        claimed = landscape_cells.searched(out, cell, runs, seed, confidence).claimed
        axis.axhline(exact[0].epsilon_upper, color=UPPER, ls=":", label="upper bound")
        axis.plot(thresholds * norm, claimed, ".", color=IN, label="simulated, Gaussian conversion")
        axis.plot(thresholds * norm, [e.epsilon_exact[-1] for e in exact], color=OUT, label="exact epsilon")
        axis.axvline(norm / 2, color="0.6", lw=0.8)
        axis.set(xlabel="threshold h", title=f"T = 2, sigma = {sigma:g}, B = {cell.batch_size}")
        axis.set_ylim(bottom=0, top=1.25 * exact[0].epsilon_upper)
    axes[0].set_ylabel(f"epsilon at delta {delta:g}")
    axes[0].legend(fontsize=8, loc="lower center", frameon=True, framealpha=1, edgecolor="none")
    return figure
