"""Draws the crafted landscape: the exact epsilon next to the Gaussian conversion's claim.

It computes only the curves of the paper's Example 1 and Figure 6b. Other values are stored.
"""

from collections.abc import Iterator, Sequence
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
from experiments.hidden_state.landscape import HALF, Answer, Process, Result, Study
from experiments.sweeps.panels import draw_panels, plot_lines
from experiments.sweeps.records import Record, field

_EPSILONS = {  # by field: label, color, and format of the line
    "claimed": ("exact mu, Gaussian conversion", IN, "--"),
    "epsilon": ("exact epsilon", OUT, "-"),
    "constant": ("constant gradient (Example 1)", PURPLE, "-."),
}
_DARK_RATE = 0.55  # cells with lower rates are dark, so their numbers are white
_EXACT_PANELS = {  # titles of heat maps, by adversary
    "half": "exact, h = C / 2",
    "best_constant": "exact, best constant threshold",
    "optimal": "exact, optimal adversary",
}


def draw(audits: Sequence[Result], searches: Sequence[Result]) -> Iterator[tuple[str, Figure]]:
    """Yields the names and drawings of the paper's Figures 3a, 14, 3b and 6b, and of Algorithm 6.

    `audits` are studies of kind AUDIT, and `searches` are studies of kind SEARCH, each with its answer.
    """
    processes = [study.process for study, _ in audits]
    sigmas = sorted({process.noise_multiplier for process in processes})
    first, _ = audits[0]  # all studies have the same delta and number of steps
    label = f"epsilon at delta {show_level(first.delta)}"
    # Figure 14 has all noise multipliers, and Figure 3a only the smallest and the largest.
    for name, shown in (("figure_3a", (sigmas[0], sigmas[-1])), ("figure_14", sigmas)):
        panels = {}
        for study, answer in audits:
            if study.process.noise_multiplier in shown:
                panels[_name(study.process)] = partial(_draw_steps, study=study, answer=answer)
        yield (
            name,
            draw_panels(
                "",
                panels,
                size=(2.1, 1.4),
                across=len({process.batch_size for process in processes}),
                ylabel=label,
                sharex=True,
                sharey="row",
            ),
        )
    yield "figure_3b", _draw_heat_maps(audits)
    sigma = sigmas[(len(sigmas) - 1) // 2]  # the middle sigma: by default 4, as in the paper
    panels = {}
    for process in processes:
        if process.noise_multiplier == sigma:
            panels[f"B = {process.batch_size}"] = partial(_draw_trade_off, process=process)
    title = f"Trade-off curves, sigma = {sigma:g}, T = {first.process.steps}"
    yield (
        "figure_6b",
        draw_panels(
            title,
            panels,
            size=(1.7, 1.7),
            across=len(panels),
            ylabel="false-negative rate\nabove the upper bound's",
            legend_columns=3,
            sharey=True,
        ),
    )
    panels = {}
    for study, answer in searches:
        panels[_name(study.process)] = partial(_draw_search, study=study, answer=answer)
    title = "Algorithm 6: epsilon after two steps, by the threshold of the crafted landscape"
    yield "algorithm_6", draw_panels(title, panels, size=(3.5, 2.6), ylabel=label)


def make_table(audits: Sequence[Result]) -> Table[Record]:
    """Returns a table of epsilons after the last step, with a row for each landscape and adversary.

    `audits` are studies of kind AUDIT with their answers. The column eps_gaussian is the claim of a
    conversion that assumes a Gaussian trade-off curve, and eps_upper is the accountant's epsilon.
    """
    rows = []
    for study, answer in audits:
        for adversary, exact in answer["exact"].items():
            rows.append(
                {
                    **study.process._asdict(),
                    "adversary": adversary,
                    "epsilon_gaussian": exact["claimed"][-1],
                    "epsilon_exact": exact["epsilon"][-1],
                    "epsilon_upper": answer["upper"],
                }
            )
    columns = [
        field("noise_multiplier", "sigma", "g")._replace(key="sigma"),
        field("batch_size", "batch_size"),
        field("steps", "steps"),
        field("adversary", "adversary"),
    ]
    for name in ("gaussian", "exact", "upper"):
        columns.append(field(f"epsilon_{name}", f"eps_{name}", ".6g"))
    return Table(columns, rows)


def _name(process: Process) -> str:
    """Returns the title of a landscape's panel."""
    return f"sigma = {process.noise_multiplier:g}, B = {process.batch_size}"


def _draw_epsilons(axis: Axes, study: Study, upper: float, epsilons: Record) -> None:
    """Plots epsilons as lines, and the accountant's epsilon `upper` as a horizontal line.

    `epsilons` has the positions on the horizontal axis ("x"), the values of any lines in _EPSILONS, and
    "simulated", the claims of the paper's procedure from simulated runs.
    """
    axis.axhline(upper, color=UPPER, ls=":", label="upper bound")
    label = f"Algorithm 4's lower value, {study.runs:,} simulated runs (not a bound)"
    simulated = (label, IN, ".")  # label, color, marker
    plot_lines(axis, epsilons, {"simulated": simulated, **_EPSILONS})


def _draw_steps(axis: Axes, study: Study, answer: Answer) -> None:
    """Plots the epsilon after each step t for the threshold C / 2, and for a constant gradient.

    The constant gradient (the paper's Example 1) has mu = 1 / sqrt(sigma^2 + (t - 1) (sigma / B)^2).
    """
    sigma, batch_size, num_steps = study.process
    steps = np.arange(1, num_steps + 1)
    deviations = sigma * np.sqrt(1 + (steps - 1) / batch_size**2)
    constant = [conversions.epsilon_from_mu(1 / deviation, study.delta) for deviation in deviations]
    epsilons = {
        "x": steps,
        "simulated": answer["in_sample"],
        **answer["exact"]["half"],
        "constant": constant,
    }
    _draw_epsilons(axis, study, answer["upper"], epsilons)
    # The panels of a row share this axis, so its limit must never decrease.
    highest = 1.06 * max(answer["in_sample"])
    axis.set_ylim(bottom=0, top=max(axis.get_ylim()[1], highest))
    axis.set_xlabel("step t")


def _draw_heat_maps(audits: Sequence[Result]) -> Figure:
    """Draws heat maps of the amplification rate: epsilon after step T divided by epsilon after step 1.

    The first two panels show rates of a Gaussian conversion's claims, and the others show exact rates. At a
    rate of 1, hiding the earlier steps does not help. The rate is NaN if the first epsilon is 0. `audits` are
    studies of kind AUDIT, each with its answer (`landscape.audit`).
    """
    study, _ = audits[0]
    simulated = f"Gaussian conversion, simulated\n(the paper's; {study.runs:,} runs)"
    converted = "Gaussian conversion of the exact mu\nh = C / 2"
    titles = (simulated, converted, *_EXACT_PANELS.values())
    records = []
    for audited, answer in audits:
        upper = answer["upper"]  # the exact epsilon after step 1
        exact = answer["exact"]
        first_simulated = answer["in_sample"][0] or np.nan  # instead of a division by 0
        record = {
            **audited.process._asdict(),
            simulated: answer["in_sample"][-1] / first_simulated,
            converted: exact["half"]["claimed"][-1] / upper,
        }
        for name, title in _EXACT_PANELS.items():
            record[title] = exact[name]["epsilon"][-1] / upper
        records.append(record)
    rates = pd.DataFrame(records).pivot(index="noise_multiplier", columns="batch_size")
    panels = {title: partial(_draw_rates, rates=rates[title]) for title in titles}
    rate = f"epsilon (T = {study.process.steps}) / epsilon (1)"
    return draw_panels(
        f"Amplification rate, {rate} at delta {show_level(study.delta)}",
        panels,
        size=(3.3, 3.3),
        ylabel="noise multiplier sigma",
    )


def _draw_rates(axis: Axes, rates: pd.DataFrame) -> None:
    """Draws amplification rates as a heat map, with a number in each cell, or "-" for NaN.

    Rows are noise multipliers, and columns are batch sizes. Colors range from a rate of 0 (dark) to 1.
    """
    values = rates.to_numpy()
    axis.imshow(values, vmin=0, vmax=1, cmap="cividis", aspect="auto")
    for (row, column), rate in np.ndenumerate(values):
        color = "white" if rate < _DARK_RATE else "black"
        text = "-" if np.isnan(rate) else f"{rate:.2f}"
        axis.text(column, row, text, ha="center", va="center", color=color, fontsize=8)
    axis.set_xticks(range(len(rates.columns)), list(map(str, rates.columns)))
    axis.set_yticks(range(len(rates)), list(map("{:g}".format, rates.index)))
    axis.spines[:].set_visible(False)
    axis.set_xlabel("batch size B")


def _draw_trade_off(axis: Axes, process: Process) -> None:
    """Plots trade-off curves of the landscape with h = C / 2, minus the upper bound's curve (Figure 6b).

    The exact curve and the Gaussian curve agree only at the error rates of the test with threshold C / 2,
    which determine the Gaussian curve's mu.
    """
    pair = landscape.compute_last_densities(process, landscape.constant(process, HALF))
    mu = float(densities.mu_at(pair, HALF))
    exact = densities.trade_off_curve(pair)
    rates = np.linspace(0, 1, 401)
    gaussian = (rates, conversions.gaussian_trade_off(mu, rates))
    curves = (("exact", exact, OUT, "-"), ("Gaussian, same mu", gaussian, IN, "--"))
    for label, (false_positive, false_negative), color, line in curves:
        upper = conversions.gaussian_trade_off(1 / process.noise_multiplier, false_positive)
        axis.plot(false_positive, false_negative - upper, line, color=color, label=label)
    axis.axhline(0, color=UPPER, ls=":", label="upper bound")
    axis.set_title(f"{axis.get_title()}, mu = {mu:.3f}", fontsize=9)
    axis.set(xlabel="false-positive rate", xlim=(0, 1))


def _draw_search(axis: Axes, study: Study, answer: Answer) -> None:
    """Plots the claimed and exact epsilons after two steps against the threshold h (Algorithm 6)."""
    epsilons = {
        "x": answer["thresholds"],
        "simulated": answer["claimed"],
        "epsilon": answer["epsilon"],
    }
    _draw_epsilons(axis, study, answer["upper"], epsilons)
    axis.axvline(HALF, color="0.6", lw=0.8, label="h = C / 2, the paper's")
    axis.set(xlabel="threshold h / C", ylim=(0, 1.25 * answer["upper"]))
