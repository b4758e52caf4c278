"""The hidden-state paper's sweeps, drawn from what the store holds; nothing here trains or solves.

The landscape's figures show the exact epsilon beside what the Gaussian conversion claims. Only curves that
follow from a cell in an instant are computed here: Example 1's and Figure 6b's.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from audit.laws import conversions, densities
from audit.methods.level import show_level
from audit.report.style import (
    BLUE,
    BOUND,
    GREEN,
    IN,
    ORANGE,
    OUT,
    PURPLE,
    STYLE,
    UPPER,
    VERMILION,
)
from audit.settings.setting import Setting
from experiments.hidden_state import bracket, landscape, network_bracket, proven
from experiments.hidden_state import cells as own_cells
from experiments.hidden_state import landscape_law as law
from experiments.hidden_state.landscape import (
    CellResults,
    LandscapeCell,
    SearchResults,
    StudyResults,
)
from experiments.hidden_state.landscape_process import Process, constant
from experiments.hidden_state.sweep import CLAIMS
from experiments.sweeps import estimates, points, table
from experiments.sweeps.panels import add_legend, draw_heat_map
from experiments.sweeps.points import Evidence, Spread
from experiments.sweeps.sweep import Drawn, Row, Seeds, Sweep
from models.catalogue import task

_Ends = list[tuple[float, float]]  # for each cell, epsilon at the last step and at the first
_LINE_LOOKS = (
    (VERMILION, "-"),
    (BLUE, "--"),
    (GREEN, "-."),
    (PURPLE, (0, (5, 1))),
    (ORANGE, ":"),
)


def draw(sweep: Sweep, evidence: Evidence) -> Drawn:
    """Draws a sweep's figures from those of its cells that the store holds."""
    match sweep.name:
        case "figure_8":
            return _draw_norms(sweep, evidence)
        case "landscape":
            return _draw_landscape(sweep, evidence)
    return _draw_audits(sweep, evidence)


def _draw_audits(sweep: Sweep, evidence: Evidence) -> Drawn:
    """Draws a figure of audits of trained models, and makes the rows of its table.

    The figures `proven` and `bracket...` have tables of their own in place of rows.

    Args:
      sweep: The audits, and the figure's name.
      evidence: What the store holds, and conclusions from it.
    """
    levels = evidence.levels
    all_points = points.points(sweep.audits(), evidence.audits)
    stored_points = [point for point in all_points if point.conclusions]
    missing = sum(len(point.cells) - len(point.conclusions) for point in all_points)
    if sweep.name in ("bracket", "bracket_rates"):
        missing += network_bracket.count_unmeasured(sweep, evidence)
    if not stored_points:
        return Drawn(figures=[], missing=missing, rows=[])

    # Functions that are given all points leave out those without a conclusion.
    own_table = None
    rows = []
    match sweep.name:
        case "proven":
            figure, own_table = proven.draw(sweep, stored_points, evidence)
        case "bracket_k" | "bracket_steps":
            figure, own_table = bracket.draw(sweep, stored_points, levels)
        case "bracket" | "bracket_rates":
            figure, own_table = network_bracket.draw(sweep, all_points, evidence)
        case "figure_6a":
            figure = estimates.trade_off_figure(sweep.title, all_points)
        case "figure_11":
            figure = estimates.profile_figure(sweep.title, all_points, levels.delta)
        case _:
            figure = estimates.epsilon_figure(sweep.title, sweep.axis, all_points, levels.delta)
    if own_table is None:
        rows = list(table.make_rows(sweep.name, stored_points, CLAIMS, levels.delta))
    return Drawn([(sweep.name, figure)], missing, rows, table=own_table)


def _draw_norms(sweep: Sweep, evidence: Evidence) -> Drawn:
    """Draws Figure 8: the norms of L's canaries before clipping, for the models whose norms are stored.

    L is the adversary that inserts the gradient of an example with a wrong label.
    """
    norms = {}
    for cell in sweep.cells:
        assert isinstance(cell.request, Setting)
        stored_norms = own_cells.read_norms(evidence.held, cell.request, cell.runs)
        if stored_norms is not None:
            norms[task(cell.request.model).label] = stored_norms
            clipping_norm = cell.request.mechanism.clipping_norm  # the same for all
    missing = len(sweep.cells) - len(norms)
    if not norms:
        return Drawn(figures=[], missing=missing, rows=[])
    return Drawn([(sweep.name, norms_figure(norms, clipping_norm))], missing, rows=[])


def norms_figure(norms: Mapping[str, own_cells.Norms], clipping_norm: float) -> Figure:
    """Draws the mean of norms over the runs, and 2 standard deviations about it, step by step.

    Args:
      norms: Norms (runs, steps) by the model's label; the first five models are drawn, since there
        are looks for five lines.
      clipping_norm: C, which is drawn as a line.
    """
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(6, 3.6))
        for (model, run_norms), (color, dash) in zip(norms.items(), _LINE_LOOKS, strict=False):
            steps = np.arange(run_norms.shape[1])
            mean = run_norms.mean(0)  # over the runs
            spread = 2 * run_norms.std(0, ddof=1)
            low = np.maximum(mean - spread, 0)  # no norm is below 0
            high = mean + spread
            axis.plot(steps, mean, color=color, ls=dash, label=f"{model} ({len(run_norms)} runs)")
            axis.fill_between(steps, low, high, color=color, alpha=0.2, lw=0)

        axis.axhline(clipping_norm, color=UPPER, ls=":", lw=1)
        # C is written at the right end of its line: x as a share of the axis, y in units of the norms.
        beside_axis: dict[str, Any] = {
            "xycoords": ("axes fraction", "data"),
            "textcoords": "offset points",
        }
        axis.annotate("$C$", (1, clipping_norm), (3, 0), ha="left", va="center", **beside_axis)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set(xlabel="step", ylabel="norm of the canary's gradient", ylim=(0, None))
        axis.set_title("L's canary before clipping: mean and 2 standard deviations")
        figure.legend(loc="outside lower center", ncols=3, fontsize=8)
        return figure


def _draw_landscape(sweep: Sweep, evidence: Evidence) -> Drawn:
    """Draws the crafted landscape's figures, and makes the rows of its simulated audits."""
    (grid,) = (cell.request for cell in sweep.cells if isinstance(cell.request, landscape.Grid))
    held = landscape.with_cells(evidence.held)
    results = landscape.results(held, landscape.study(grid, *evidence.levels))
    figures = list(landscape_figures(results, grid.runs, landscape.CLIPPING_NORM))
    return Drawn(figures, results.missing, landscape_rows(sweep.name, results.cells, grid.runs))


def landscape_figures(
    results: StudyResults, runs: int, norm: float
) -> Iterator[tuple[str, Figure]]:
    """Yields each figure's name and the figure: those of the cells, and Algorithm 6's, as far as stored.

    Args:
      results: What is stored of a study.
      runs: The number of simulated runs.
      norm: The clipping norm C, the unit of Figure 10's and Algorithm 6's axes.
    """
    cells = results.cells
    if cells:
        sigmas = sorted({result.cell.noise_multiplier for result in cells})
        # Figure 6b is drawn at a single sigma: 4 among the usual noise multipliers 1, 2, ..., 8.
        below_middle = max(len(sigmas) // 2 - 1, 0)
        with plt.rc_context(STYLE):
            yield "figure_3a", _draw_over_time(cells, [sigmas[0], sigmas[-1]], runs)
            yield "figure_14", _draw_over_time(cells, sigmas, runs)
            yield "figure_3b", _draw_heat_maps(cells, runs)
            yield "figure_6b", _draw_trade_offs(cells, sigmas[below_middle])
            yield "figure_10", _draw_loss(norm)
    if results.searches:
        with plt.rc_context(STYLE):
            figure = _draw_threshold_search(results.searches, norm, runs)
        yield "algorithm_6", figure


def landscape_rows(name: str, cells: Sequence[CellResults], runs: int) -> list[Row]:
    """Makes the landscape's rows of the table of all sweeps, one for each cell.

    A row has the bounds of the simulated audit at the last step. The exact epsilon at the simulated threshold
    is in the column of predictions. A cell has a single simulation, so that its epsilons have no range.

    Args:
      name: The sweep's name.
      cells: The results of the cells.
      runs: The number of simulated runs.
    """
    rows = []
    for cell, _, at_threshold, simulated in cells:
        series = f"B = {cell.batch_size}"
        epsilons = {}
        for bound in simulated.last:
            epsilon = bound["epsilon"]
            epsilons[bound["method"]] = Spread(epsilon, epsilon, epsilon)
        row = Row(
            figure=name,
            panel=f"sigma = {cell.noise_multiplier:g}",
            series=series,
            x=cell.batch_size,
            seeds=Seeds(runs, stored=1, missing=0),
            epsilons=epsilons,
            interval=None,
            predicted=at_threshold.epsilon_exact[-1],
            upper_bound=at_threshold.epsilon_upper,
            claim=table.claim(CLAIMS, name, series, cell.batch_size),
        )
        rows.append(row)
    return rows


def _draw_over_time(cells: Sequence[CellResults], sigmas: list[float], runs: int) -> Figure:
    """Draws epsilon over the steps, a row for each of the noise multipliers and a column for each B.

    Args:
      cells: Results of the cells, of which those with these noise multipliers are drawn.
      sigmas: The noise multipliers.
      runs: The number of simulated runs.
    """
    sigmas = list(dict.fromkeys(sigmas))  # the least and the largest may be the same
    sizes = sorted({result.cell.batch_size for result in cells})
    shape = (len(sigmas), len(sizes))
    figsize = (1.35 * len(sizes) + 0.4, 1.05 * len(sigmas) + 1.1)
    figure, axes = plt.subplots(*shape, figsize=figsize, sharex=True, sharey="row", squeeze=False)

    for result in cells:
        if result.cell.noise_multiplier in sigmas:
            row = sigmas.index(result.cell.noise_multiplier)
            column = sizes.index(result.cell.batch_size)
            _draw_cell_over_time(axes[row, column], result, runs)

    for row, sigma in enumerate(sigmas):
        axes[row, 0].set_ylabel(f"epsilon (sigma = {sigma:g})", fontsize=8)
    for column, batch_size in enumerate(sizes):
        axes[0, column].set_title(f"B = {batch_size}")
        axes[-1, column].set_xlabel("step t")
    for axis in axes.flat:
        axis.tick_params(labelsize=7)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, fontsize=8)
    return figure


def _simulated_label(runs: int) -> str:
    """Returns the legend's words for what the paper's procedure claims from a number of simulated runs."""
    return f"Algorithm 4's lower value, {runs:,} simulated runs (no bound)"


def _draw_cell_over_time(axis: Axes, results: CellResults, runs: int) -> None:
    """Draws epsilon step by step: as simulated, by the Gaussian conversion, exact, and the upper bound.

    A constant gradient (Example 1) has mu = 1 / sqrt(sigma^2 + (t - 1) (sigma / B)^2).

    Args:
      axis: The panel.
      results: The results of a cell, which has a noise multiplier sigma and a batch size B.
      runs: The number of simulated runs, for the legend.
    """
    sigma, batch_size, last, delta = results.cell
    exact = results.at_threshold
    in_sample = results.simulated.in_sample
    steps = range(1, last + 1)
    variances = [sigma**2 * (1 + (step - 1) / batch_size**2) for step in steps]
    constant_gradient = [
        conversions.epsilon_from_mu(variance**-0.5, delta) for variance in variances
    ]

    axis.axhline(exact.epsilon_upper, color=UPPER, ls=":", label="upper bound")
    axis.plot(steps, in_sample, ".", color=IN, ms=2, label=_simulated_label(runs))
    axis.plot(
        steps,
        exact.epsilon_gaussian,
        color=IN,
        ls="--",
        lw=1,
        label="exact mu, Gaussian conversion",
    )
    axis.plot(steps, exact.epsilon_exact, color=OUT, lw=1.2, label="exact epsilon")
    label = "constant gradient (Example 1)"
    axis.plot(steps, constant_gradient, color=PURPLE, ls="-.", lw=1, label=label)
    # Panels of a row share their axis: it is only extended, to show this panel's highest estimate too.
    axis.set_ylim(bottom=0, top=max(axis.get_ylim()[1], 1.06 * max(in_sample)))


def _draw_heat_maps(cells: Sequence[CellResults], runs: int) -> Figure:
    """Draws heat maps of the amplification rate, epsilon at step T over epsilon at step 1.

    The upper row has what the Gaussian conversion claims, the lower row the exact rates. The conversion takes
    mu at a single threshold, and treats the whole trade-off curve as Gaussian with that mu.

    Args:
      cells: The results of the cells, all with the same number of steps T and the same delta.
      runs: The number of simulated runs.
    """
    steps = cells[0].cell.steps
    delta = cells[0].cell.delta
    # Pairs of epsilon at step T and at step 1. Step 1 is a Gaussian release, whose exact epsilon is the
    # accountant's.
    simulated: _Ends = []
    gaussian: _Ends = []
    for result in cells:
        in_sample = result.simulated.in_sample
        simulated.append((in_sample[-1], in_sample[0]))
        half = result.exact["half"]  # at the paper's threshold h = C / 2
        gaussian.append((half.epsilon_gaussian[-1], half.epsilon_upper))
    panels = [
        (f"Gaussian conversion, simulated\n(the paper's; {runs:,} runs)", simulated),
        ("Gaussian conversion of the exact mu\nh = C / 2", gaussian),
        ("exact epsilon, h = C / 2", _list_exact_ends(cells, "half")),
        (
            "exact epsilon, best constant threshold",
            _list_exact_ends(cells, "best_constant"),
        ),
        ("exact epsilon, optimal adversary", _list_exact_ends(cells, "optimal")),
    ]

    figure, axes = plt.subplots(2, 3, figsize=(10, 7.4))
    # The last place of the upper row, number 2, is left for the note and the colour bar.
    for axis, (title, ends) in zip(axes.flat[[0, 1, 3, 4, 5]], panels, strict=True):
        image = _draw_heat_map(axis, [result.cell for result in cells], ends)
        axis.set_title(title, fontsize=9)

    note_axis = axes[0, 2]
    note_axis.axis("off")
    note = (
        f"amplification rate\nepsilon (T = {steps}) / epsilon (1)\nat delta = {show_level(delta)}\n\n"
        "1: hiding the earlier steps\nhides nothing\n\nThe upper row is what converting\n"
        "mu claims, the lower one what\nthe process really loses."
    )
    note_axis.text(0.3, 0.5, note, va="center", fontsize=9, transform=note_axis.transAxes)
    # All maps have the same scale of colours, so that the last image's bar serves for all.
    figure.colorbar(image, cax=note_axis.inset_axes((0.05, 0.05, 0.07, 0.9)))
    return figure


def _list_exact_ends(cells: Sequence[CellResults], adversary: str) -> _Ends:
    """Returns, for each cell, an adversary's exact epsilon at the last step and at the first."""
    ends = []
    for result in cells:
        exact = result.exact[adversary]
        last = exact.epsilon_exact[-1]
        # The first step is a Gaussian release, which leaks exactly the accountant's bound.
        first = exact.epsilon_upper
        ends.append((last, first))
    return ends


def _draw_heat_map(axis: Axes, cells: Sequence[LandscapeCell], ends: _Ends) -> AxesImage:
    """Draws the ratio of the last step's epsilon to the first step's, with sigma down and B across.

    The ratio is written into each entry of the map: "-" where nothing leaks at step 1.

    Args:
      axis: The panel.
      cells: The cells, with sigma and B of each entry.
      ends: Epsilon at the last step and at the first, in the order of `cells`.
    """
    sigmas = sorted({cell.noise_multiplier for cell in cells})
    sizes = sorted({cell.batch_size for cell in cells})
    rates = np.full((len(sigmas), len(sizes)), np.nan)
    for cell, (last, first) in zip(cells, ends, strict=True):
        if first > 0:
            rates[sigmas.index(cell.noise_multiplier), sizes.index(cell.batch_size)] = last / first

    size_labels = [str(size) for size in sizes]
    sigma_labels = [f"{sigma:g}" for sigma in sigmas]
    # The brightest colour is a rate of 1, where the last step leaks as much as the first.
    image = draw_heat_map(axis, rates, sigma_labels, size_labels, most=1.0)
    axis.set(xlabel="batch size B", ylabel="noise multiplier sigma")
    return image


def _draw_trade_offs(cells: Sequence[CellResults], sigma: float) -> Figure:
    """Draws Figure 6b at the noise multiplier sigma, with a panel for each batch size B.

    It shows how far the exact and the Gaussian trade-off curves lie above that of the upper bound.
    """
    chosen = [result.cell for result in cells if result.cell.noise_multiplier == sigma]
    figsize = (1.5 * len(chosen) + 0.8, 2.9)
    figure, axes = plt.subplots(1, len(chosen), figsize=figsize, sharey=True, squeeze=False)
    for axis, cell in zip(axes[0], chosen, strict=True):
        _draw_trade_off(axis, cell)
    axes[0, 0].set_ylabel("false-negative rate\nabove the upper bound's")
    figure.suptitle(f"Trade-off curves, sigma = {sigma:g}, T = {chosen[0].steps}", fontsize=10)
    add_legend(figure, axes[0, :1], 3)
    return figure


def _draw_trade_off(axis: Axes, cell: LandscapeCell) -> None:
    """Draws a cell's false-negative rates, exact and Gaussian, less those of the upper bound.

    The exact rates are those of the last iterate, where every step moves theta up if it is above h = C / 2
    and down if not. The Gaussian curve agrees with them at a single point, the test at the threshold C / 2.

    Args:
      axis: The panel.
      cell: The noise multiplier, the batch size and the number of steps.
    """
    process = Process(cell.noise_multiplier, cell.batch_size, cell.steps)
    pair = law.last_law(process, constant(process, 0.5))  # C / 2, in units of C
    # mu of the Gaussian curve through the error rates of the test at C / 2.
    mu = float(densities.mu_at(pair, 0.5))
    # The canary is inserted in the first step alone: all iterates together leak one Gaussian step.
    mu_upper = 1 / cell.noise_multiplier

    rates = densities.trade_off_curve(pair)
    upper_rates = conversions.gaussian_trade_off(mu_upper, rates.false_positive)
    exact_excess = rates.false_negative - upper_rates
    axis.plot(rates.false_positive, exact_excess, color=OUT, label="exact")
    grid = np.linspace(0, 1, 401)  # of false-positive rates
    gaussian_rates = conversions.gaussian_trade_off(mu, grid)
    gaussian_excess = gaussian_rates - conversions.gaussian_trade_off(mu_upper, grid)
    axis.plot(grid, gaussian_excess, color=IN, ls="--", label="Gaussian, same mu")
    axis.axhline(0, color=UPPER, ls=":", label="upper bound")

    axis.set_title(f"B = {cell.batch_size}, mu = {mu:.3f}", fontsize=9)
    axis.set(xlabel="false-positive rate", xlim=(0, 1))
    axis.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])


def _draw_loss(norm: float) -> Figure:
    """Draws Figure 10, the crafted loss -C |theta - C / 2|, which peaks at the threshold h = C / 2.

    Args:
      norm: The clipping norm C. Lengths below are C times a number, losses C^2 times a number.
    """
    theta = np.linspace(-2, 3, 501) * norm
    figure, axis = plt.subplots(figsize=(5, 3.2))
    axis.plot(theta, -norm * np.abs(theta - norm / 2), color=BOUND)
    axis.axvline(norm / 2, color=UPPER, ls=":", lw=1)
    axis.annotate(
        "$h = C / 2$",
        (norm / 2, -2.2 * norm**2),  # near the lower end of the vertical line, below the loss
        xytext=(4, 0),
        textcoords="offset points",
    )

    # theta_1 has the mean 0 without the canary and C with it, at the same loss.
    height = -(norm**2) / 2
    axis.plot(0, height, "o", color=OUT, label=r"$\theta_1$ without the canary, on average")
    axis.plot(norm, height, "s", color=IN, label=r"$\theta_1$ with the canary, on average")

    # Steps of SGD move down the loss, away from the threshold on either side: an arrow of length 1 for each
    # side, in units of C.
    arrow = {"arrowstyle": "->", "color": "0.4"}
    for start, end in ((-0.4, -1.4), (1.4, 2.4)):
        tail = _place_above_loss(start, norm)
        tip = _place_above_loss(end, norm)
        axis.annotate("", tip, tail, arrowprops=arrow)

    axis.set(
        xlabel=r"$\theta$",
        ylabel="mean loss of a batch",
        title="The crafted loss landscape",
    )
    axis.set_ylim(top=0.3 * norm**2)
    figure.legend(loc="outside lower center", fontsize=8)
    return figure


def _place_above_loss(at: float, norm: float) -> tuple[float, float]:
    """Returns a place (theta, loss) C^2 / 4 above the crafted loss; `at` is theta in units of C."""
    return at * norm, -(norm**2) * abs(at - 0.5) + 0.25 * norm**2


def _draw_threshold_search(searches: Sequence[SearchResults], norm: float, runs: int) -> Figure:
    """Draws Algorithm 6 in a panel for each cell: claimed and exact epsilon after two steps, over h.

    Args:
      searches: The results of the cells, each of two steps.
      norm: The clipping norm C, the unit of thresholds.
      runs: The number of simulated runs.
    """
    figsize = (3.5 * len(searches), 3.6)
    figure, axes = plt.subplots(1, len(searches), figsize=figsize, squeeze=False)
    for axis, (cell, thresholds, laws, claimed) in zip(axes[0], searches, strict=True):
        upper = laws[0].epsilon_upper  # the same for all thresholds
        exact = [result.epsilon_exact[-1] for result in laws]
        places = np.array(thresholds) * norm
        axis.axhline(upper, color=UPPER, ls=":", label="upper bound")
        axis.plot(places, claimed, ".", color=IN, ms=4, label=_simulated_label(runs))
        axis.plot(places, exact, color=OUT, label="exact epsilon")
        axis.axvline(norm / 2, color="0.6", lw=0.8, label="h = C / 2, the paper's")
        axis.set(
            xlabel="threshold h",
            title=f"sigma = {cell.noise_multiplier:g}, B = {cell.batch_size}",
        )
        axis.set_ylim(bottom=0, top=1.25 * upper)
    axes[0, 0].set_ylabel(f"epsilon at delta {show_level(searches[0].cell.delta)}")
    title = "Algorithm 6: which threshold of the crafted landscape leaks most after two steps"
    figure.suptitle(title, fontsize=10)
    add_legend(figure, axes[0, :1], 2)
    return figure
