"""Draws the crafted landscape: the exact epsilon next to what the Gaussian conversion claims.

Only curves that follow from a landscape in an instant are computed here: Example 1's and Figure 6b's.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from audit.laws import conversions, densities
from audit.report.style import BOUND, IN, OUT, PURPLE, UPPER
from audit.report.table import Table, number
from audit.written import show_level
from experiments.hidden_state import landscape_law as law
from experiments.hidden_state.landscape import HALF, Process, Result, Study
from experiments.sweeps.panels import draw_heat_map, draw_panels
from experiments.sweeps.records import Record, field

_EXACT_PANELS = {
    "half": "exact, h = C / 2",
    "best_constant": "exact, best constant threshold",
    "optimal": "exact, optimal adversary",
}


def draw(audits: Sequence[Result], searches: Sequence[Result]) -> Iterator[tuple[str, Figure]]:
    """Yields each figure's name and the figure: those of the audits, and Algorithm 6's, as far as stored."""
    if audits:
        sigmas = sorted({study.process.noise_multiplier for study, _ in audits})
        # Figure 6b is drawn at a single sigma: 4 among the usual noise multipliers 1, 2, ..., 8.
        below_middle = max(len(sigmas) // 2 - 1, 0)
        yield "figure_3a", _draw_over_time(audits, [sigmas[0], sigmas[-1]])
        yield "figure_14", _draw_over_time(audits, sigmas)
        yield "figure_3b", _draw_heat_maps(audits)
        yield "figure_6b", _draw_trade_offs(audits, sigmas[below_middle])
        title = "The crafted loss landscape"
        yield "figure_10", draw_panels(title, {"": _draw_loss}, (5, 2.6), legend_columns=1)
    if searches:
        yield "algorithm_6", _draw_searches(searches)


def make_table(audits: Sequence[Result]) -> Table[Record]:
    """Returns the table of epsilons at the last step, with a row for each landscape and adversary.

    A row has the exact epsilon (eps_exact), the one that a conversion claims as if the trade-off curve were
    Gaussian (eps_gaussian), and the accountant's (eps_upper).
    """
    rows = []
    for study, result in audits:
        sigma, batch_size, steps = study.process
        for adversary, exact in result["exact"].items():
            row = {
                "sigma": sigma,
                "batch_size": batch_size,
                "steps": steps,
                "adversary": adversary,
                "epsilon_gaussian": exact["claimed"][-1],
                "epsilon_exact": exact["epsilon"][-1],
                "epsilon_upper": result["upper"],
            }
            rows.append(row)
    columns = [field("sigma", "sigma", number("g"))]
    columns += [field(name, name) for name in ("batch_size", "steps", "adversary")]
    for name in ("gaussian", "exact", "upper"):
        columns.append(field(f"epsilon_{name}", f"eps_{name}", number(".6g")))
    return Table(columns, rows)


def _draw_over_time(audits: Sequence[Result], sigmas: Sequence[float]) -> Figure:
    """Draws epsilon over the steps, a row for each of the noise multipliers and a column for each B."""
    drawn = [audit for audit in audits if audit[0].process.noise_multiplier in sigmas]
    panels = {_name(study.process): partial(_draw_steps, study, result) for study, result in drawn}
    sizes = {study.process.batch_size for study, _ in audits}
    label = f"epsilon at delta {show_level(audits[0][0].delta)}"
    options: dict[str, Any] = {"sharex": True, "sharey": "row"}
    return draw_panels("", panels, (2.1, 1.4), len(sizes), label, **options)


def _name(process: Process) -> str:
    """Returns the title of a landscape's panel."""
    return f"sigma = {process.noise_multiplier:g}, B = {process.batch_size}"


def _draw_steps(study: Study, result: dict[str, Any], axis: Axes) -> None:
    """Draws epsilon step by step: as simulated, by the Gaussian conversion, exact, and the upper bound.

    A constant gradient (Example 1) has mu = 1 / sqrt(sigma^2 + (t - 1) (sigma / B)^2).
    """
    sigma, size, num_steps = study.process
    steps = np.arange(1, num_steps + 1)
    deviations = sigma * np.sqrt(1 + (steps - 1) / size**2)
    constant = [conversions.epsilon_from_mu(1 / x, study.delta) for x in deviations]
    exact = result["exact"]["half"]
    _draw_claimed(axis, study, result["upper"], steps, result["in_sample"])
    label = "exact mu, Gaussian conversion"
    axis.plot(steps, exact["claimed"], color=IN, ls="--", lw=1, label=label)
    axis.plot(steps, exact["epsilon"], color=OUT, lw=1.2, label="exact epsilon")
    label = "constant gradient (Example 1)"
    axis.plot(steps, constant, color=PURPLE, ls="-.", lw=1, label=label)
    # Panels of a row share their axis: it is only extended, to show this panel's highest estimate too.
    axis.set_ylim(bottom=0, top=max(axis.get_ylim()[1], 1.06 * max(result["in_sample"])))
    axis.set_xlabel("step t")


def _draw_claimed(
    axis: Axes, study: Study, upper: float, x: ArrayLike, claimed: Sequence[float]
) -> None:
    """Draws the upper bound, and what the paper's procedure claims from simulated runs."""
    axis.axhline(upper, color=UPPER, ls=":", label="upper bound")
    label = f"Algorithm 4's lower value, {study.simulation.runs:,} simulated runs (no bound)"
    axis.plot(x, claimed, ".", color=IN, ms=3, label=label)


def _draw_heat_maps(audits: Sequence[Result]) -> Figure:
    """Draws heat maps of the amplification rate, epsilon at step T over epsilon at step 1.

    The first panels have what the Gaussian conversion claims, the others the exact rates. A rate of 1 means
    that hiding the earlier steps hides nothing; there is none if the first epsilon is 0.
    """
    study, _ = audits[0]
    results = {study.process[:2]: result for study, result in audits}
    sigmas, sizes = (sorted(set(values)) for values in zip(*results, strict=True))

    def draw_rates(find_rate: Callable[[Any], float], axis: Axes) -> None:
        """Draws the rates of all landscapes."""
        rates = [[find_rate(results[sigma, size]) for size in sizes] for sigma in sigmas]
        labels = [f"{sigma:g}" for sigma in sigmas]
        draw_heat_map(axis, np.array(rates), labels, [f"{size}" for size in sizes], most=1.0)
        axis.set_xlabel("batch size B")

    def find_simulated(result: dict[str, Any]) -> float:
        """Returns the rate of the estimates from simulated runs."""
        last = result["in_sample"][-1]
        return float(last / (result["in_sample"][0] or np.nan))

    def find_solved(adversary: str, field: str, result: dict[str, Any]) -> float:
        """Returns the rate by quadrature; step 1 is a Gaussian release, whose epsilon is the accountant's."""
        return float(result["exact"][adversary][field][-1] / result["upper"])

    title = f"Gaussian conversion, simulated\n(the paper's; {study.simulation.runs:,} runs)"
    panels = {title: partial(draw_rates, find_simulated)}
    title = "Gaussian conversion of the exact mu\nh = C / 2"
    panels[title] = partial(draw_rates, partial(find_solved, "half", "claimed"))
    for name, title in _EXACT_PANELS.items():
        panels[title] = partial(draw_rates, partial(find_solved, name, "epsilon"))
    rate = f"epsilon (T = {study.process.steps}) / epsilon (1)"
    title = f"Amplification rate, {rate} at delta {show_level(study.delta)}"
    return draw_panels(title, panels, (3.3, 3.3), ylabel="noise multiplier sigma")


def _draw_trade_offs(audits: Sequence[Result], sigma: float) -> Figure:
    """Draws Figure 6b at the noise multiplier sigma, with a panel for each batch size B."""
    panels = {}
    for study, _ in audits:
        if study.process.noise_multiplier == sigma:
            name = f"B = {study.process.batch_size}"
            panels[name] = partial(_draw_trade_off, study.process)
    title = f"Trade-off curves, sigma = {sigma:g}, T = {audits[0][0].process.steps}"
    label = "false-negative rate\nabove the upper bound's"
    return draw_panels(title, panels, (1.7, 1.7), len(panels), label, 3, sharey=True)


def _draw_trade_off(process: Process, axis: Axes) -> None:
    """Draws a landscape's false-negative rates at h = C / 2, less those of the upper bound.

    The Gaussian curve agrees with the exact one at a single point, the test at the threshold C / 2.
    """
    mu_upper = 1 / process.noise_multiplier
    pair = law.last_law(process, law.constant(process, HALF))
    mu = float(densities.mu_at(pair, HALF))
    rates = densities.trade_off_curve(pair)
    upper = conversions.gaussian_trade_off(mu_upper, rates.false_positive)
    axis.plot(rates.false_positive, rates.false_negative - upper, color=OUT, label="exact")
    grid = np.linspace(0, 1, 401)  # of false-positive rates
    gaussian = conversions.gaussian_trade_off(mu, grid)
    gaussian -= conversions.gaussian_trade_off(mu_upper, grid)
    axis.plot(grid, gaussian, color=IN, ls="--", label="Gaussian, same mu")
    axis.axhline(0, color=UPPER, ls=":", label="upper bound")
    axis.set_title(f"{axis.get_title()}, mu = {mu:.3f}", fontsize=9)
    axis.set(xlabel="false-positive rate", xlim=(0, 1))


def _draw_loss(axis: Axes) -> None:
    """Draws Figure 10, the crafted loss -C |theta - C / 2|, which peaks at the threshold h = C / 2."""
    theta = np.linspace(-2, 3, 501)  # in units of C
    axis.plot(theta, -np.abs(theta - HALF), color=BOUND)
    axis.axvline(HALF, color=UPPER, ls=":", lw=1, label="h = C / 2")
    # theta_1 has the mean 0 without the canary and C with it, at the same loss.
    axis.plot(0, -HALF, "o", color=OUT, label=r"$\theta_1$ without the canary, on average")
    axis.plot(1, -HALF, "s", color=IN, label=r"$\theta_1$ with the canary, on average")
    axis.set(xlabel=r"$\theta$ / C", ylabel="mean loss of a batch", ylim=(None, 0.3))


def _draw_searches(searches: Sequence[Result]) -> Figure:
    """Draws Algorithm 6 in a panel for each landscape: claimed and exact epsilon after two steps, over h."""

    def draw_search(study: Study, result: dict[str, Any], axis: Axes) -> None:
        """Draws the epsilons of a landscape's thresholds."""
        thresholds = result["thresholds"]
        _draw_claimed(axis, study, result["upper"], thresholds, result["claimed"])
        axis.plot(thresholds, result["epsilon"], color=OUT, label="exact epsilon")
        axis.axvline(HALF, color="0.6", lw=0.8, label="h = C / 2, the paper's")
        axis.set(xlabel="threshold h / C", ylim=(0, 1.25 * result["upper"]))

    panels = {
        _name(study.process): partial(draw_search, study, result) for study, result in searches
    }
    title = "Algorithm 6: which threshold of the crafted landscape leaks most after two steps"
    label = f"epsilon at delta {show_level(searches[0][0].delta)}"
    return draw_panels(title, panels, (3.5, 2.6), ylabel=label)
