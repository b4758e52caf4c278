"""Draws figures of the crafted landscape: exact epsilons next to those from Gaussian conversions."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from audit.laws import conversions, densities
from audit.report.style import IN, OUT, PURPLE, UPPER
from audit.report.table import Table
from audit.written import show_level
from experiments.hidden_state import landscape
from experiments.hidden_state.landscape import HALF, Process, Study
from experiments.sweeps.panels import draw_panels_of, plot_lines
from experiments.sweeps.records import Record, Records, field, select

_EPSILONS = {  # keyed by field: label, color and line format
    "claimed": ("exact mu, Gaussian conversion", IN, "--"),
    "epsilon": ("exact epsilon", OUT, "-"),
    "constant": ("constant gradient (Example 1)", PURPLE, "-."),
}
_DARK_RATE = 0.55  # cells with lower rates are dark, so their numbers are white
_EXACT_PANELS = {  # adversary -> title of its heat map
    "half": "exact, h = C / 2",
    "optimal": "exact, optimal adversary",
}


def draw(audits: Records, searches: Records, study: Study) -> Iterator[tuple[str, Figure]]:
    """Yields the name and figure for each of the paper's Figures 3a, 14, 3b and 6b, and for Algorithm 6.

    `audits` come from `landscape.audit` for the same number of steps, and `searches` from `landscape.search`.
    """
    sigmas = sorted({audit["noise_multiplier"] for audit in audits})
    across = len({audit["batch_size"] for audit in audits})
    label = f"epsilon at delta {show_level(study.delta)}"
    # Figure 14 shows all noise multipliers, and Figure 3a only the smallest and the largest.
    for name, shown in (("figure_3a", (sigmas[0], sigmas[-1])), ("figure_14", sigmas)):
        figure = draw_panels_of(
            [_add_panel(audit) for audit in audits if audit["noise_multiplier"] in shown],
            "",
            partial(_draw_steps, study=study),
            size=(2.1, 1.4),
            across=across,
            ylabel=label,
            sharex=True,
            sharey="row",
        )
        yield name, figure
    yield "figure_3b", _draw_heat_maps(audits, study)
    sigma = sigmas[(len(sigmas) - 1) // 2]  # the middle sigma: by default 4, as in the paper
    with_sigma = select(audits, noise_multiplier=sigma)
    figure = draw_panels_of(
        [{**audit, "panel": f"B = {audit['batch_size']}"} for audit in with_sigma],
        f"Trade-off curves, sigma = {sigma:g}, T = {audits[0]['steps']}",
        _draw_trade_off,
        size=(1.7, 1.7),
        across=across,
        ylabel="false-negative rate\nabove the upper bound's",
        legend_columns=3,
        sharey=True,
    )
    yield "figure_6b", figure
    figure = draw_panels_of(
        list(map(_add_panel, searches)),
        "Algorithm 6: epsilon after two steps, by the threshold of the crafted landscape",
        partial(_draw_search, study=study),
        size=(3.5, 2.6),
        ylabel=label,
    )
    yield "algorithm_6", figure


def make_table(audits: Records) -> Table[Record]:
    """Returns a table of epsilons after the last step, with a row for each landscape and adversary.

    A landscape is a crafted loss with a sigma, batch size and number of steps. `audits` come from
    `landscape.audit`. eps_exact is exact. eps_gaussian comes from a conversion that assumes a Gaussian
    trade-off curve, and eps_upper from the accountant.
    """
    rows = []
    for audit in audits:
        for adversary, solved in audit["by_adversary"].items():
            rows.append(
                {
                    **audit,
                    "sigma": audit["noise_multiplier"],
                    "adversary": adversary,
                    "epsilon_gaussian": solved["claimed"][-1],
                    "epsilon_exact": solved["epsilon"][-1],
                    "epsilon_upper": audit["upper"],
                }
            )
    columns = [
        field("sigma", "sigma", "g"),
        field("batch_size", "batch_size"),
        field("steps", "steps"),
        field("adversary", "adversary"),
    ]
    for name in ("gaussian", "exact", "upper"):
        columns.append(field(f"epsilon_{name}", f"eps_{name}", ".6g"))
    return Table(columns, rows)


def _add_panel(record: Record) -> Record:
    """Returns a landscape's record with the panel's title added."""
    panel = f"sigma = {record['noise_multiplier']:g}, B = {record['batch_size']}"
    return {**record, "panel": panel}


def _draw_epsilons(axis: Axes, epsilons: Record, study: Study) -> None:
    """Plots epsilons as lines, and the accountant's epsilon `upper` as a horizontal line.

    In `epsilons`, "x" holds the positions, each key of _EPSILONS holds a line's values, and "simulated" holds
    the hidden-state paper's estimates (Algorithm 4) from simulated runs. Missing lines are skipped.
    """
    axis.axhline(epsilons["upper"], color=UPPER, ls=":", label="upper bound")
    label = f"Algorithm 4's lower value, {study.runs:,} simulated runs (not a bound)"
    simulated = (label, IN, ".")  # label, color and marker
    plot_lines(axis, epsilons, {"simulated": simulated, **_EPSILONS})


def _draw_steps(axis: Axes, records: Records, study: Study) -> None:
    """Plots the epsilon after each step t for two losses of one parameter theta; see `landscape.audit`.

    Only step 1 uses the canary. With the adversary `half`, later steps move theta away from C / 2. With a
    constant gradient (Example 1 of the hidden-state paper), they only add noise.
    """
    [audit] = records
    steps = np.arange(1, audit["steps"] + 1)
    # With a constant gradient, theta_t has the noise of t steps: sigma in step 1, which the paper does
    # not divide by B, and sigma / B in later steps, which average B gradients (Errata H5).
    deviations = audit["noise_multiplier"] * np.sqrt(1 + (steps - 1) / audit["batch_size"] ** 2)
    constant = [conversions.epsilon_from_mu(1 / deviation, study.delta) for deviation in deviations]
    epsilons = {
        "x": steps,
        "upper": audit["upper"],
        "simulated": audit["simulated"],
        **audit["by_adversary"]["half"],  # "epsilon" and "claimed"
        "constant": constant,
    }
    _draw_epsilons(axis, epsilons, study)
    # Panels in a row share this axis, and later panels may need to raise its limit.
    axis.set(xlabel="step t", ylim=(0, None), autoscaley_on=True)


def _draw_heat_maps(audits: Records, study: Study) -> Figure:
    """Draws heat maps of the amplification rate: epsilon after step T divided by epsilon after step 1.

    Two panels show exact rates, and two show rates from a conversion that assumes a Gaussian trade-off curve.
    At a rate of 1, hiding the earlier steps does not help. The rate is NaN if the simulated first epsilon is
    0.
    """
    simulated = f"Gaussian conversion, simulated\n(the paper's; {study.runs:,} runs)"
    converted = "Gaussian conversion of the exact mu\nh = C / 2"
    records = []
    for audit in audits:
        upper = audit["upper"]  # step 1 is a Gaussian release, so this is also its exact epsilon
        solved = audit["by_adversary"]
        first_simulated = audit["simulated"][0] or np.nan  # avoids a division by 0
        rates = {
            simulated: audit["simulated"][-1] / first_simulated,
            converted: solved["half"]["claimed"][-1] / upper,
        }
        for name, title in _EXACT_PANELS.items():
            rates[title] = solved[name]["epsilon"][-1] / upper
        for panel, rate in rates.items():
            records.append({**audit, "panel": panel, "rate": rate})
    rate = f"epsilon (T = {audits[0]['steps']}) / epsilon (1)"
    return draw_panels_of(
        records,
        f"Amplification rate, {rate} at delta {show_level(study.delta)}",
        _draw_rates,
        size=(3.3, 3.3),
        across=2,
        ylabel="noise multiplier sigma",
    )


def _draw_rates(axis: Axes, records: Records) -> None:
    """Draws amplification rates as a heat map, with a number in each cell, or "-" for NaN.

    Rows are noise multipliers, and columns are batch sizes.
    """
    rates = pd.DataFrame(records).pivot(
        index="noise_multiplier", columns="batch_size", values="rate"
    )
    values = rates.to_numpy()
    axis.imshow(values, vmin=0, vmax=1, cmap="cividis", aspect="auto")
    for (row, column), rate in np.ndenumerate(values):
        color = "white" if rate < _DARK_RATE else "black"
        text = "-" if np.isnan(rate) else f"{rate:.2f}"
        axis.text(column, row, text, ha="center", va="center", color=color, fontsize=8)
    axis.set_xticks(range(len(rates.columns)), rates.columns)
    axis.set_yticks(range(len(rates)), list(map("{:g}".format, rates.index)))
    axis.spines[:].set_visible(False)
    axis.set_xlabel("batch size B")


def _draw_trade_off(axis: Axes, records: Records) -> None:
    """Plots trade-off curves of the last model, minus the upper bound's curve (Figure 6b).

    The crafted landscape has the threshold h = C / 2 in every step after the first. The Gaussian curve passes
    through the error rates of the test that guesses "with the canary" if theta_T > h. This curve agrees with
    the exact curve only at these rates.
    """
    [audit] = records  # a panel has one landscape
    process = Process(audit["noise_multiplier"], audit["batch_size"], audit["steps"])
    pair = landscape.compute_last_densities(process, landscape.constant(process, HALF))
    mu = float(densities.mu_at(pair, HALF))
    exact = densities.trade_off_curve(pair)
    rates = np.linspace(0, 1, 401)
    gaussian = (rates, conversions.gaussian_trade_off(mu, rates))
    curves = (("exact", exact, OUT, "-"), ("Gaussian, same mu", gaussian, IN, "--"))
    for label, (false_positive, false_negative), color, line in curves:
        # Only step 1 inserts the canary, so all models together are mu-GDP with mu = 1 / sigma.
        upper = conversions.gaussian_trade_off(1 / process.noise_multiplier, false_positive)
        axis.plot(false_positive, false_negative - upper, line, color=color, label=label)
    axis.axhline(0, color=UPPER, ls=":", label="upper bound")
    axis.set_title(f"{axis.get_title()}, mu = {mu:.3f}", fontsize=9)
    axis.set(xlabel="false-positive rate", xlim=(0, 1))


def _draw_search(axis: Axes, records: Records, study: Study) -> None:
    """Plots the epsilon after two steps against the crafted landscape's threshold h.

    Algorithm 6 of the hidden-state paper searches for the best threshold by simulation. The figure adds the
    exact epsilons.
    """
    [search] = records
    _draw_epsilons(axis, {"x": search["thresholds"], **search}, study)
    axis.axvline(HALF, color="0.6", lw=0.8, label="h = C / 2, the paper's")
    axis.set(xlabel="threshold h / C", ylim=(0, 1.25 * search["upper"]))
