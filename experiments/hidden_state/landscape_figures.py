"""Draws the crafted landscape: the exact epsilon next to what the Gaussian conversion claims.

Only curves that follow from a landscape in an instant are computed here: Example 1's and Figure 6b's.
"""

from collections.abc import Iterator, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from audit.laws import conversions, densities
from audit.methods.level import show_level
from audit.report.style import BOUND, IN, OUT, PURPLE, STYLE, UPPER
from experiments.hidden_state import landscape_law as law
from experiments.hidden_state.landscape import Audited, Landscape, Searched
from experiments.hidden_state.sweep import CLAIMS
from experiments.sweeps import table
from experiments.sweeps.panels import add_legend, draw_heat_map
from experiments.sweeps.points import Spread
from experiments.sweeps.sweep import Row, Seeds

_HALF = 0.5  # the paper's threshold, in units of C
_EXACT_PANELS = {
    "half": "exact epsilon, h = C / 2",
    "best_constant": "exact epsilon, best constant threshold",
    "optimal": "exact epsilon, optimal adversary",
}
_NOTE = """\
amplification rate
epsilon (T = {steps}) / epsilon (1)
at delta = {delta}

1: hiding the earlier steps
hides nothing

The upper row is what converting
mu claims, the lower one what
the process really loses."""


def draw(audits: Sequence[Audited], searches: Sequence[Searched]) -> Iterator[tuple[str, Figure]]:
    """Yields each figure's name and the figure: those of the audits, and Algorithm 6's, as far as stored."""
    with plt.rc_context(STYLE):
        if audits:
            sigmas = sorted({request.landscape.noise_multiplier for request, _ in audits})
            # Figure 6b is drawn at a single sigma: 4 among the usual noise multipliers 1, 2, ..., 8.
            below_middle = max(len(sigmas) // 2 - 1, 0)
            yield "figure_3a", _draw_over_time(audits, sorted({sigmas[0], sigmas[-1]}))
            yield "figure_14", _draw_over_time(audits, sigmas)
            yield "figure_3b", _draw_heat_maps(audits)
            yield "figure_6b", _draw_trade_offs(audits, sigmas[below_middle])
            yield "figure_10", _draw_loss()
        if searches:
            yield "algorithm_6", _draw_threshold_search(searches)


def make_rows(audits: Sequence[Audited]) -> list[Row]:
    """Returns a row of the table of all sweeps for each landscape: the bounds of its simulated audit.

    The exact epsilon at the simulated threshold is in the column of predictions.
    """
    rows = []
    for (landscape, _, simulation), result in audits:
        series = f"B = {landscape.batch_size}"
        epsilons = {}
        for bound in result.last:
            epsilon = bound["epsilon"]
            epsilons[bound["method"]] = Spread(epsilon, epsilon, epsilon)
        row = Row(
            figure="landscape",
            panel=f"sigma = {landscape.noise_multiplier:g}",
            series=series,
            x=landscape.batch_size,
            seeds=Seeds(simulation.runs, stored=1, missing=0),
            epsilons=epsilons,
            interval=None,
            predicted=result.at_threshold.epsilon[-1],
            upper_bound=result.upper,
            claim=table.claim(CLAIMS, "landscape", series, landscape.batch_size),
        )
        rows.append(row)
    return rows


def _draw_over_time(audits: Sequence[Audited], sigmas: Sequence[float]) -> Figure:
    """Draws epsilon over the steps, a row for each of the noise multipliers and a column for each B."""
    sizes = sorted({request.landscape.batch_size for request, _ in audits})
    figsize = (1.35 * len(sizes) + 0.4, 1.05 * len(sigmas) + 1.1)
    figure, axes = plt.subplots(
        len(sigmas), len(sizes), figsize=figsize, sharex=True, sharey="row", squeeze=False
    )
    for audited in audits:
        landscape = audited[0].landscape
        if landscape.noise_multiplier in sigmas:
            row = sigmas.index(landscape.noise_multiplier)
            _draw_landscape_over_time(axes[row, sizes.index(landscape.batch_size)], audited)
    for axis, sigma in zip(axes[:, 0], sigmas, strict=True):
        axis.set_ylabel(f"epsilon (sigma = {sigma:g})", fontsize=8)
    for column, batch_size in zip(axes.T, sizes, strict=True):
        column[0].set_title(f"B = {batch_size}")
        column[-1].set_xlabel("step t")
    for axis in axes.flat:
        axis.tick_params(labelsize=7)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, fontsize=8)
    return figure


def _draw_landscape_over_time(axis: Axes, audited: Audited) -> None:
    """Draws epsilon step by step: as simulated, by the Gaussian conversion, exact, and the upper bound.

    A constant gradient (Example 1) has mu = 1 / sqrt(sigma^2 + (t - 1) (sigma / B)^2).
    """
    (landscape, _, simulation), result = audited
    steps = np.arange(1, landscape.steps + 1)
    deviations = landscape.noise_multiplier * np.sqrt(1 + (steps - 1) / landscape.batch_size**2)
    constant = [conversions.epsilon_from_mu(1 / x, landscape.delta) for x in deviations]
    exact = result.at_threshold
    words = _describe_simulated(simulation.runs)
    axis.axhline(result.upper, color=UPPER, ls=":", label="upper bound")
    axis.plot(steps, result.in_sample, ".", color=IN, ms=2, label=words)
    words = "exact mu, Gaussian conversion"
    axis.plot(steps, exact.claimed, color=IN, ls="--", lw=1, label=words)
    axis.plot(steps, exact.epsilon, color=OUT, lw=1.2, label="exact epsilon")
    words = "constant gradient (Example 1)"
    axis.plot(steps, constant, color=PURPLE, ls="-.", lw=1, label=words)
    # Panels of a row share their axis: it is only extended, to show this panel's highest estimate too.
    axis.set_ylim(bottom=0, top=max(axis.get_ylim()[1], 1.06 * max(result.in_sample)))


def _describe_simulated(runs: int) -> str:
    """Returns the legend's words for what the paper's procedure claims from simulated runs."""
    return f"Algorithm 4's lower value, {runs:,} simulated runs (no bound)"


def _draw_heat_maps(audits: Sequence[Audited]) -> Figure:
    """Draws heat maps of the amplification rate, epsilon at step T over epsilon at step 1.

    The upper row has what the Gaussian conversion claims, the lower row the exact rates.
    """
    (landscape, _, simulation), _ = audits[0]
    results = [result for _, result in audits]
    # Epsilon at step T and at step 1, which is a Gaussian release: its epsilon is the accountant's.
    simulated = [(result.in_sample[-1], result.in_sample[0]) for result in results]
    claimed = [(result.exact["half"].claimed[-1], result.upper) for result in results]
    panels = {
        f"Gaussian conversion, simulated\n(the paper's; {simulation.runs:,} runs)": simulated,
        "Gaussian conversion of the exact mu\nh = C / 2": claimed,
    }
    for name, words in _EXACT_PANELS.items():
        panels[words] = [(result.exact[name].epsilon[-1], result.upper) for result in results]

    sigmas = sorted({request.landscape.noise_multiplier for request, _ in audits})
    sizes = sorted({request.landscape.batch_size for request, _ in audits})
    figure, axes = plt.subplots(2, 3, figsize=(10, 7.4))
    # The last place of the upper row is left for the note and the colour bar.
    for axis, (title, ends) in zip(axes.flat[[0, 1, 3, 4, 5]], panels.items(), strict=True):
        rates = np.full((len(sigmas), len(sizes)), np.nan)
        for (request, _), (last, first) in zip(audits, ends, strict=True):
            if first > 0:
                row = sigmas.index(request.landscape.noise_multiplier)
                rates[row, sizes.index(request.landscape.batch_size)] = last / first
        sigma_labels = [f"{sigma:g}" for sigma in sigmas]
        image = draw_heat_map(axis, rates, sigma_labels, [str(size) for size in sizes], most=1.0)
        axis.set(xlabel="batch size B", ylabel="noise multiplier sigma")
        axis.set_title(title, fontsize=9)
    axes[0, 2].axis("off")
    delta = show_level(landscape.delta)
    note = _NOTE.format(steps=landscape.steps, delta=delta)
    axes[0, 2].text(0.3, 0.5, note, va="center", fontsize=9, transform=axes[0, 2].transAxes)
    figure.colorbar(image, cax=axes[0, 2].inset_axes((0.05, 0.05, 0.07, 0.9)))
    return figure


def _draw_trade_offs(audits: Sequence[Audited], sigma: float) -> Figure:
    """Draws Figure 6b at the noise multiplier sigma, with a panel for each batch size B."""
    landscapes = [request.landscape for request, _ in audits]
    chosen = [landscape for landscape in landscapes if landscape.noise_multiplier == sigma]
    figsize = (1.5 * len(chosen) + 0.8, 2.9)
    figure, axes = plt.subplots(1, len(chosen), figsize=figsize, sharey=True, squeeze=False)
    for axis, landscape in zip(axes[0], chosen, strict=True):
        _draw_trade_off(axis, landscape)
    axes[0, 0].set_ylabel("false-negative rate\nabove the upper bound's")
    figure.suptitle(f"Trade-off curves, sigma = {sigma:g}, T = {chosen[0].steps}", fontsize=10)
    add_legend(figure, axes[0, :1], 3)
    return figure


def _draw_trade_off(axis: Axes, landscape: Landscape) -> None:
    """Draws a landscape's false-negative rates at h = C / 2, less those of the upper bound.

    The Gaussian curve agrees with the exact one at a single point, the test at the threshold C / 2.
    """
    sigma, size, steps, _ = landscape
    process = law.Process(sigma, size, steps)
    pair = law.last_law(process, law.constant(process, _HALF))
    mu = float(densities.mu_at(pair, _HALF))
    rates = densities.trade_off_curve(pair)
    upper = conversions.gaussian_trade_off(1 / sigma, rates.false_positive)
    exact = rates.false_negative - upper
    axis.plot(rates.false_positive, exact, color=OUT, label="exact")
    grid = np.linspace(0, 1, 401)  # of false-positive rates
    gaussian = conversions.gaussian_trade_off(mu, grid)
    gaussian -= conversions.gaussian_trade_off(1 / sigma, grid)
    axis.plot(grid, gaussian, color=IN, ls="--", label="Gaussian, same mu")
    axis.axhline(0, color=UPPER, ls=":", label="upper bound")
    axis.set_title(f"B = {size}, mu = {mu:.3f}", fontsize=9)
    axis.set(xlabel="false-positive rate", xlim=(0, 1))
    axis.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])


def _draw_loss() -> Figure:
    """Draws Figure 10, the crafted loss -C |theta - C / 2|, which peaks at the threshold h = C / 2."""
    theta = np.linspace(-2, 3, 501)  # in units of C
    figure, axis = plt.subplots(figsize=(5, 3.2))
    axis.plot(theta, -np.abs(theta - _HALF), color=BOUND)
    axis.axvline(_HALF, color=UPPER, ls=":", lw=1, label="h = C / 2")
    # theta_1 has the mean 0 without the canary and C with it, at the same loss.
    axis.plot(0, -_HALF, "o", color=OUT, label=r"$\theta_1$ without the canary, on average")
    axis.plot(1, -_HALF, "s", color=IN, label=r"$\theta_1$ with the canary, on average")
    axis.set(xlabel=r"$\theta$ / C", ylabel="mean loss of a batch", ylim=(None, 0.3))
    axis.set_title("The crafted loss landscape")
    figure.legend(loc="outside lower center", fontsize=8)
    return figure


def _draw_threshold_search(searches: Sequence[Searched]) -> Figure:
    """Draws Algorithm 6 in a panel for each landscape: claimed and exact epsilon after two steps, over h."""
    figsize = (3.5 * len(searches), 3.6)
    figure, axes = plt.subplots(1, len(searches), figsize=figsize, squeeze=False)
    for axis, (request, result) in zip(axes[0], searches, strict=True):
        landscape = request.landscape
        words = _describe_simulated(request.simulation.runs)
        axis.axhline(result.upper, color=UPPER, ls=":", label="upper bound")
        axis.plot(result.thresholds, result.claimed, ".", color=IN, ms=4, label=words)
        axis.plot(result.thresholds, result.epsilon, color=OUT, label="exact epsilon")
        axis.axvline(_HALF, color="0.6", lw=0.8, label="h = C / 2, the paper's")
        title = f"sigma = {landscape.noise_multiplier:g}, B = {landscape.batch_size}"
        axis.set(xlabel="threshold h / C", title=title, ylim=(0, 1.25 * result.upper))
    axes[0, 0].set_ylabel(f"epsilon at delta {show_level(searches[0][0].landscape.delta)}")
    title = "Algorithm 6: which threshold of the crafted landscape leaks most after two steps"
    figure.suptitle(title, fontsize=10)
    add_legend(figure, axes[0, :1], 2)
    return figure
