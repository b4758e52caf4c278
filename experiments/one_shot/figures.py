"""The paper's figures from cosines; nothing here trains.

They show a simulated mechanism's cosines beside the law where nothing leaks and, from stored cosines,
Figures 1 to 4 and the cosines of Tables 2 and 5.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import scipy
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from audit.claims.accounting import epsilon_upper_bound
from audit.laws import cosine_law
from audit.report import style
from audit.report.style import BLACK, BLUE, FADED, GREEN, ORANGE, PURPLE, VERMILION
from audit.runtime.progress import counted
from experiments.cells.cell import DataSets
from experiments.one_shot import estimates, tables
from experiments.one_shot.estimates import (
    QUANTILES,
    FederatedRun,
    Observation,
    SplitQuantiles,
)
from experiments.one_shot.sweep import DELTA, RepeatedSweep, SimulatedSweep, SplitSweep
from experiments.one_shot.tables import PlannedRuns
from experiments.sweeps.panels import add_legend
from experiments.sweeps.points import Evidence
from experiments.sweeps.sweep import Drawn, OwnTable, Sweep

Array = NDArray[np.float64]
_BINS = 40
_FIGURE_DIMENSION = 10**6
_SEED = 0
_CURVE_POINTS = 600
_COLORS = (BLUE, GREEN, ORANGE, VERMILION, PURPLE)
_X_LABEL = r"cosine, in units of $1/\sqrt{d}$"


class Panel(NamedTuple):
    """A panel of the simulated figure.

    Attributes:
      title: The panel's title.
      cosines: (n,), the cosines of the canaries.
      dimension: The dimension of the canaries.
    """

    title: str
    cosines: Array
    dimension: int


def draw(sweep: Sweep, evidence: Evidence) -> Drawn:
    """Draws a sweep's figure and makes its table, from those of its runs that are stored.

    Args:
      sweep: Simulations, training runs at some noise multipliers, or experiments of one run against several.
      evidence: The store's holdings, and the delta and confidence of estimates.

    Returns:
      The figure and the table, unless no run is stored, and how many of the sweep's cells are not done.
    """
    if isinstance(sweep, SimulatedSweep):
        return _draw_simulations(sweep)
    # `is_done` takes the user's data sets. A federated cell does not look at them, so that any will do.
    any_data = DataSets({})
    missing = sum(not cell.is_done(evidence.held, any_data) for cell in sweep.cells)
    if isinstance(sweep, SplitSweep):
        drawing = _draw_splits(sweep, evidence)
    else:
        drawing = _draw_repeated(sweep, evidence)
    if drawing is None:
        return Drawn(figures=[], missing=missing, rows=[])
    figure, table = drawing
    return Drawn([(sweep.name, figure)], missing, rows=[], table=table)


def _draw_simulations(sweep: SimulatedSweep) -> Drawn:
    """Simulates Table 1's mechanism, and draws the cosines of an audit for each sigma.

    The canaries of the figure are sqrt(d) directions in R^d, d = 10^6, the same for all sigmas.
    """
    cells = []
    for dimension in sweep.dimensions:
        cells += estimates.simulate_cells(sweep.sigmas, dimension, sweep.simulations, DELTA, _SEED)
    cells.sort(key=lambda cell: (cell.sigma, cell.dimension))
    floors = estimates.floors(sweep.floors, DELTA)
    table = tables.make_simulated_table(cells, floors, sweep.simulations)

    rng = np.random.default_rng([_SEED, 1])  # other draws than those of the table
    count = int(np.sqrt(_FIGURE_DIMENSION))
    canaries = cosine_law.draw_canaries(rng, count, _FIGURE_DIMENSION)
    panels = []
    for sigma in sweep.sigmas:
        cosines = cosine_law.draw_cosines(rng, canaries, _FIGURE_DIMENSION, sigma)
        title = rf"$\sigma$ = {sigma:g}, k = {count:,}, d = $10^6$"
        panels.append(Panel(title, cosines, _FIGURE_DIMENSION))
    return Drawn([(sweep.name, simulated_figure(panels))], missing=0, rows=[], table=table)


def _draw_repeated(sweep: Sweep, evidence: Evidence) -> tuple[Figure, OwnTable] | None:
    """Draws a sweep of single training runs and makes its table; returns None where none is stored.

    A sweep of several kinds of clients shows densities. A sweep of a single kind shows histograms if it has
    training runs without canaries, else estimates over repetitions.
    """
    # For the type checker: a federated sweep is this or a `SplitSweep`, which `draw` has ruled out.
    assert isinstance(sweep, RepeatedSweep)
    all_planned = []
    for plan in sweep.plans:
        runs = list(estimates.read_runs(evidence.held, plan, evidence.levels, sweep.with_plain))
        if runs:
            all_planned.append(PlannedRuns(plan, runs))
    if not all_planned:
        return None

    if len(sweep.plans) > 1:
        figure = densities_figure(all_planned)
        return figure, tables.make_densities_table(sweep.name, all_planned)
    (planned,) = all_planned  # a plan is the training of a single kind of clients
    delta = evidence.levels.delta
    if sweep.with_plain:
        return histograms_figure(planned), tables.make_observations_table(
            sweep.name, planned, delta
        )
    return repetitions_figure(planned), tables.make_repetitions_table(sweep.name, planned, delta)


def _draw_splits(sweep: SplitSweep, evidence: Evidence) -> tuple[Figure, OwnTable] | None:
    """Draws a sweep of a single run against several and makes its table; returns None where none is stored.

    Args:
      sweep: Experiments with all canaries in a single run, and with as many spread over several.
      evidence: The store's holdings, and delta.
    """
    plan = sweep.plan
    delta = evidence.levels.delta
    splits = list(estimates.read_splits(evidence.held, plan, delta))
    if not splits:
        return None
    canaries = plan.training.setting.canaries
    title = f"{plan.experiments} experiments, {canaries:,} canaries in 1 or {plan.runs} runs"
    table = tables.make_splits_table(sweep.name, splits, title, delta)
    return quantiles_figure(title, splits, delta), table


def simulated_figure(panels: Sequence[Panel]) -> Figure:
    """Draws a panel for each simulated mechanism: its cosines, a normal fit, and their law without leaks."""
    with plt.rc_context(style.STYLE):
        size = (3.3 * len(panels), 3.2)
        figure, axes = plt.subplots(1, len(panels), figsize=size, squeeze=False)
        for axis, panel in zip(axes[0], panels, strict=True):
            _draw_simulated(axis, panel)
        axes[0][0].set_ylabel("density")
        # All panels have the same labels: the first panel's are the legend.
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def _draw_simulated(axis: Axes, panel: Panel) -> None:
    """Draws a mechanism's cosines in units of 1/sqrt(d), their law without a leak and a normal fit.

    The title has Anderson and Darling's statistic A^2 of normality, and its critical value at 5%.
    """
    # In these units the law without a leak has deviation 1: the axis shows four deviations at least.
    cosines = panel.cosines * np.sqrt(panel.dimension)
    x = np.linspace(min(-4.0, cosines.min()), max(4.0, cosines.max()), 801)
    mean = cosines.mean()
    deviation = cosines.std()
    # The density of the normal law with the cosines' mean and deviation.
    fit = np.exp(-(((x - mean) / deviation) ** 2) / 2) / (deviation * np.sqrt(2 * np.pi))
    axis.hist(cosines, 36, density=True, color=style.IN, alpha=0.35, label="canaries")
    axis.plot(x, _null_density(x, panel.dimension), color=style.OUT, label="nothing leaks")
    axis.plot(x, fit, "--", color=style.IN, label="normal fit")
    test = cosine_law.anderson_darling(cosines)
    five_percent = test.critical[2]  # the levels are 15%, 10%, 5%, 2.5% and 1%
    axis.set_title(f"{panel.title}\n$A^2$ = {test.statistic:.2f} (5%: {five_percent:.2f})")
    axis.set_xlabel(_X_LABEL)


def histograms_figure(planned: PlannedRuns) -> Figure:
    """Draws histograms of the canaries' cosines, a column for each run (noise multiplier).

    The upper row shows the largest cosine over all rounds, the lower row that with the final model.
    """
    plan, runs = planned
    with plt.rc_context(style.STYLE):
        size = (2.6 * len(runs) + 0.6, 4.8)
        figure, axes = plt.subplots(2, len(runs), figsize=size, squeeze=False)
        for (above, below), run in zip(axes.T, runs, strict=True):
            _draw_histogram(above, run.all_iterates)
            _draw_histogram(below, run.final_model)
            above.set_title(_format_noise(run))
            below.set_xlabel(_X_LABEL)
        axes[0][0].set_ylabel("largest over all rounds\ndensity")
        axes[1][0].set_ylabel("with the final model\ndensity")
        figure.suptitle(f"{plan.label}: cosines of canaries")
        _draw_legend(figure, axes.ravel())
    return figure


def densities_figure(every: Sequence[PlannedRuns]) -> Figure:
    """Draws densities of the canaries' cosines with the final model.

    There is a row for each kind of clients, in it a panel for each noise multiplier, and in that a line for
    each number of repetitions.
    """
    with plt.rc_context(style.STYLE):
        columns = max(len(_group_by_noise(planned.runs)) for planned in every)
        size = (2.6 * columns + 0.6, 2.4 * len(every) + 0.6)
        figure, axes = plt.subplots(len(every), columns, figsize=size, squeeze=False)
        for row, planned in zip(axes, every, strict=True):
            groups = _group_by_noise(planned.runs)
            for axis, runs in zip(row, groups, strict=False):
                _draw_densities(axis, runs)
                axis.set_title(_format_noise(runs[0]))
            # Kinds of clients may have fewer noise multipliers than others: their last panels stay empty.
            for axis in row[len(groups) :]:
                axis.set_axis_off()
            row[0].set_ylabel(f"{planned.plan.label}\ndensity")
        for axis in axes[-1]:
            axis.set_xlabel(_X_LABEL)
        _draw_legend(figure, axes.ravel())
    return figure


def repetitions_figure(planned: PlannedRuns) -> Figure:
    """Draws estimates of epsilon over the number of repetitions, a column for each noise multiplier.

    The upper row has estimates from the final model, the lower row those from all iterates, beside the
    accounted epsilon where that is finite.
    """
    plan, runs = planned
    with plt.rc_context(style.STYLE):
        groups = _group_by_noise(runs)
        size = (2.3 * len(groups) + 0.6, 4.8)
        figure, axes = plt.subplots(2, len(groups), figsize=size, squeeze=False)
        for (above, below), group in zip(axes.T, groups, strict=True):
            _draw_bars(above, group, [run.final_model for run in group])
            _draw_bars(below, group, [run.all_iterates for run in group])
            accounted = [run.accounted for run in group]
            if np.isfinite(accounted).all():
                below.plot(
                    range(len(group)),
                    accounted,
                    "_",
                    color=BLACK,
                    ms=14,
                    label="accounted",
                )
            above.set_title(_format_noise(group[0]))
            below.set_xlabel("repetitions")
        axes[0][0].set_ylabel("final model\nepsilon")
        axes[1][0].set_ylabel("all iterates\nepsilon")
        figure.suptitle(f"{plan.label}: estimates of epsilon, which are no bounds")
        _draw_legend(figure, axes.ravel())
    return figure


def quantiles_figure(title: str, splits: Sequence[SplitQuantiles], delta: float) -> Figure:
    """Draws the estimates' quantiles over experiments: of a single run, beside several runs.

    There is a panel for each noise multiplier and observation.

    Args:
      title: The figure's title.
      splits: The quantiles, a panel each.
      delta: The delta of the analytical epsilon in the panels' titles.
    """
    with plt.rc_context(style.STYLE):
        size = (2.4 * len(splits) + 0.6, 3.0)
        figure, axes = plt.subplots(1, len(splits), figsize=size, squeeze=False)
        for axis, split in zip(axes[0], splits, strict=True):
            axis.plot(QUANTILES, split.one_run, "o-", color=BLUE, ms=4, label="one run")
            axis.plot(
                QUANTILES,
                split.several_runs,
                "s--",
                color=VERMILION,
                ms=4,
                label="several runs",
            )
            analytical = epsilon_upper_bound(split.noise, 1, delta)
            observed = "final model" if split.observe == "final" else "all iterates"
            axis.set_title(f"{observed}\nanalytical $\\varepsilon$ = {analytical:.3g}")
            axis.set(xticks=QUANTILES, xlabel="quantile")
            axis.set_ylim(0, 1.1 * max(*split.one_run, *split.several_runs))
        axes[0][0].set_ylabel("estimate of epsilon")
        figure.suptitle(title)
        _draw_legend(figure, axes.ravel())
    return figure


def _draw_histogram(axis: Axes, observation: Observation) -> None:
    """Draws a histogram of the cosines of canaries that are in, in units of 1/sqrt(d).

    Beside it stands the null: a histogram of the canaries that are out or, if the observation has none of
    those, the exact law of uniform directions.
    """
    root = np.sqrt(observation.cosines.dimension)
    observed = observation.cosines.observed * root
    unobserved = observation.cosines.unobserved * root
    null_is_known = not len(unobserved)
    shown = np.concatenate([observed, unobserved])
    if null_is_known:
        # In these units the exact law has deviation 1: the axis shows four deviations at least.
        shown = np.concatenate([shown, [-4.0, 4.0]])
    bins = np.linspace(shown.min(), shown.max(), _BINS).tolist()
    if null_is_known:
        _draw_null(axis, bins[0], bins[-1], observation.cosines.dimension)
    else:
        axis.hist(unobserved, bins, density=True, color=style.OUT, alpha=0.45, label="out")
    axis.hist(observed, bins, density=True, color=style.IN, alpha=0.45, label="in")


def _draw_densities(axis: Axes, runs: Sequence[FederatedRun]) -> None:
    """Draws a kernel estimate of the density of the final model's cosines, for each of at most five runs.

    The density where nothing leaks is drawn too. There are five colors: further runs are left out.
    """
    dimension = runs[0].final_model.cosines.dimension
    root = np.sqrt(dimension)
    cosines = [run.final_model.cosines.observed * root for run in runs]
    # In units of 1/sqrt(d) the law without a leak has deviation 1: show four deviations at least, and a
    # margin of 1 beyond the cosines for the tails of their kernel estimates.
    low = min(-4.0, min(min(values) for values in cosines) - 1)
    high = max(4.0, max(max(values) for values in cosines) + 1)
    _draw_null(axis, low, high, dimension)
    x = np.linspace(low, high, _CURVE_POINTS)
    for run, values, color in zip(runs, cosines, _COLORS, strict=False):
        density = scipy.stats.gaussian_kde(values)(x)
        axis.plot(x, density, color=color, label=counted(run.repetitions, "repetition"))


def _draw_null(axis: Axes, low: float, high: float, dimension: int) -> None:
    """Draws the density of cosines where nothing leaks, from `low` to `high` in units of 1/sqrt(d)."""
    x = np.linspace(low, high, _CURVE_POINTS)
    axis.plot(x, _null_density(x, dimension), color=BLACK, lw=1, label="nothing leaks")


def _null_density(x: Array, dimension: int) -> Array:
    """Returns the density of cosines where nothing leaks, at x in units of 1/sqrt(d)."""
    root = np.sqrt(dimension)
    inside = np.clip(x / root, -1 + 1e-12, 1 - 1e-12)
    return np.asarray(np.exp(cosine_law.log_density(inside, dimension)) / root)


def _draw_bars(
    axis: Axes, runs: Sequence[FederatedRun], observations: Sequence[Observation]
) -> None:
    """Draws fitted estimates as bars with standard errors, the paper's lower values and the noise floor.

    The paper's lower value (`in_sample`) is the largest epsilon over all thresholds, and no bound. The floor
    is the 95% quantile of estimates where nothing leaks. It depends on the numbers of canaries that are in
    and out, which hardly differ between the runs; the first run's is drawn for all.

    Args:
      axis: The panel.
      runs: Runs that differ in their numbers of repetitions, which label the bars.
      observations: One observation of each of these runs, in the same order.
    """
    places = range(len(runs))
    epsilons = [observation.fitted.epsilon for observation in observations]
    errors = [observation.fitted.standard_error for observation in observations]
    look: dict[str, Any] = {"color": BLUE, "alpha": 0.5, "ecolor": BLACK, "capsize": 3}
    axis.bar(places, epsilons, 0.6, yerr=errors, label="estimate, standard error", **look)
    in_sample = [observation.in_sample for observation in observations]
    axis.plot(
        places,
        in_sample,
        "_",
        color=VERMILION,
        ms=14,
        mew=2,
        label="in-sample lower value",
    )
    # The first run's floor stands for all.
    floor = observations[0].fitted.noise_floor.quantile_95
    axis.axhline(floor, color=FADED, ls=":", label="95% of estimates without a leak")
    axis.set_xticks(list(places), [f"{run.repetitions}" for run in runs])


def _group_by_noise(runs: Sequence[FederatedRun]) -> list[list[FederatedRun]]:
    """Groups runs by noise multiplier, in the order in which the multipliers first come."""
    groups: dict[float, list[FederatedRun]] = {}
    for run in runs:
        groups.setdefault(run.noise, []).append(run)
    return list(groups.values())


def _format_noise(run: FederatedRun) -> str:
    """Returns a panel's title: the run's noise multiplier, and its analytical epsilon."""
    epsilon = f"{run.analytical:.3g}" if np.isfinite(run.analytical) else r"$\infty$"
    return f"$\\sigma$ = {run.noise:.3g}\nanalytical $\\varepsilon$ = {epsilon}"


def _draw_legend(figure: Figure, axes: Iterable[Axes]) -> None:
    """Draws a legend of all axes' labels below the figure, in columns of two inches each."""
    columns = max(2, int(figure.get_size_inches()[0] // 2))
    add_legend(figure, axes, columns)
