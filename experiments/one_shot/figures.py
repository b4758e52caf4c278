"""The paper's Figures 1 to 4 and the cosines of Tables 2 and 5, from stored cosines; nothing here trains."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import scipy
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from audit.laws import cosine_law
from audit.report import style
from audit.report.style import BLACK, BLUE, FADED, GREEN, ORANGE, PURPLE, VERMILION
from audit.written import counted
from experiments.cells.cell import DataSets
from experiments.one_shot import estimates, tables
from experiments.one_shot.estimates import QUANTILES, FederatedRun, Observation, SplitQuantiles
from experiments.one_shot.sweep import DELTA, PlannedSweep, Simulations, SplitPlan
from experiments.sweeps.panels import add_legend
from experiments.sweeps.points import Evidence
from experiments.sweeps.sweep import Drawn, OwnTable, Sweep

Runs = Sequence[FederatedRun]
# A panel's title, and the function that draws it.
Panel = tuple[str, Callable[[Axes], object]]
_BINS = 40
_SEED = 0
_CURVE_POINTS = 600
_COLORS = (BLUE, GREEN, ORANGE, VERMILION, PURPLE)
_X_LABEL = r"cosine, in units of $1/\sqrt{d}$"


def draw(sweep: Sweep, evidence: Evidence) -> Drawn:
    """Draws a sweep's figure and makes its table, from those of its runs that are stored."""
    assert isinstance(sweep, PlannedSweep)
    if isinstance(sweep.plan, Simulations):
        return Drawn(figures=[], missing=0, rows=[], table=_simulate(sweep.plan))
    # `is_done` takes the user's data sets. A federated cell does not look at them.
    missing = sum(not cell.is_done(evidence.held, DataSets({})) for cell in sweep.cells)
    delta = evidence.levels.delta
    stored: Sequence[Any]
    if isinstance(sweep.plan, SplitPlan):
        stored = list(estimates.read_splits(evidence.held, sweep.plan, delta))
    else:
        stored = []
        for plan in sweep.plan:
            stored += estimates.read_runs(evidence.held, plan, evidence.levels)
    if not stored:
        return Drawn(figures=[], missing=missing, rows=[])
    draw_figure, make_table = _DRAWINGS[sweep.name]
    title = f"{sweep.name}, delta {delta:.3g}: {sweep.title}"
    with plt.rc_context(style.STYLE):
        figures = [(sweep.name, draw_figure(sweep.title, stored))]
    return Drawn(figures, missing, rows=[], table=make_table(title, stored))


def _simulate(plan: Simulations) -> OwnTable:
    """Simulates Table 1's mechanism."""
    cells = []
    for dimension in plan.dimensions:
        cells += estimates.simulate_cells(plan.sigmas, dimension, plan.simulations, DELTA, _SEED)
    cells.sort(key=lambda cell: (cell.sigma, cell.dimension))
    return tables.make_simulated_table(cells, plan.floors)


def histograms_figure(title: str, runs: Runs) -> Figure:
    """Draws histograms of the canaries' cosines (Tables 2 and 5), a column for each run."""
    above: list[Panel] = []
    below: list[Panel] = []
    for run in runs:
        above.append((_format_noise(run), partial(_draw_histogram, observation=run.all_iterates)))
        below.append(("", partial(_draw_histogram, observation=run.final_model)))
    rows = {"largest over all rounds\ndensity": above, "with the final model\ndensity": below}
    return _draw_panels(title, rows, _X_LABEL)


def densities_figure(title: str, runs: Runs) -> Figure:
    """Draws Figure 1, densities of cosines with the final model: a row for each kind of clients."""
    rows: dict[str, list[Panel]] = {}
    for group in _group_by_noise(runs):
        panel = (_format_noise(group[0]), partial(_draw_densities, runs=group))
        rows.setdefault(f"{group[0].plan.label}\ndensity", []).append(panel)
    return _draw_panels(title, rows, _X_LABEL)


def repetitions_figure(title: str, runs: Runs) -> Figure:
    """Draws Figure 2 or 3: estimates of epsilon over the number of repetitions, and accounted epsilons."""
    above: list[Panel] = []
    below: list[Panel] = []
    for group in _group_by_noise(runs):
        finals = [run.final_model for run in group]
        alls = [run.all_iterates for run in group]
        above.append((_format_noise(group[0]), partial(_draw_bars, runs=group, seen=finals)))
        below.append(("", partial(_draw_bars, runs=group, seen=alls, accounted=True)))
    rows = {"final model\nepsilon": above, "all iterates\nepsilon": below}
    return _draw_panels(f"{title}; estimates are no bounds", rows, "repetitions")


def quantiles_figure(title: str, splits: Sequence[SplitQuantiles]) -> Figure:
    """Draws Figure 4: the estimates' quantiles over experiments, of a single run next to several runs."""
    panels: list[Panel] = []
    for split in splits:
        observed = "final model" if split.observe == "final" else "all iterates"
        heading = f"{observed}\nanalytical $\\varepsilon$ = {split.analytical:.3g}"
        panels.append((heading, partial(_draw_quantiles, split=split)))
    return _draw_panels(title, {"estimate of epsilon": panels}, "quantile")


def _draw_panels(title: str, rows: dict[str, list[Panel]], x_label: str) -> Figure:
    """Draws rows of panels by their vertical labels, with a legend below all of them."""
    columns = max(map(len, rows.values()))
    size = (2.6 * columns + 0.6, 2.4 * len(rows) + 0.6)
    figure, axes = plt.subplots(len(rows), columns, figsize=size, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()  # rows may have fewer panels than others
    for row, (y_label, panels) in zip(axes, rows.items(), strict=True):
        row[0].set_ylabel(y_label)
        for axis, (heading, draw_panel) in zip(row, panels, strict=False):
            axis.set_axis_on()
            axis.set_title(heading)
            draw_panel(axis)
    for axis in axes[-1]:
        axis.set_xlabel(x_label)
    figure.suptitle(title)
    add_legend(figure, axes.flat, max(2, int(size[0] // 2)))
    return figure


def _draw_histogram(axis: Axes, observation: Observation) -> None:
    """Draws a histogram of the cosines of canaries that are in, next to the null.

    The null is a histogram of the canaries that are out or, without any, the law of uniform directions.
    """
    root = np.sqrt(observation.cosines.dimension)
    observed = observation.cosines.observed * root
    unobserved = observation.cosines.unobserved * root
    shown = np.concatenate([observed, unobserved])
    if not len(unobserved):
        shown = np.concatenate([shown, [-4.0, 4.0]])  # deviations of that law
    bins = np.linspace(shown.min(), shown.max(), _BINS).tolist()
    if len(unobserved):
        axis.hist(unobserved, bins, density=True, color=style.OUT, alpha=0.45, label="out")
    else:
        _draw_null(axis, bins[0], bins[-1], observation.cosines.dimension)
    axis.hist(observed, bins, density=True, color=style.IN, alpha=0.45, label="in")


def _draw_densities(axis: Axes, runs: Runs) -> None:
    """Draws a kernel estimate of the density of the final model's cosines, for each of at most five runs."""
    dimension = runs[0].plan.dimension
    cosines = [run.final_model.cosines.observed * np.sqrt(dimension) for run in runs]
    # Four deviations of the law without a leak, and a margin of 1 for the tails of the kernel estimates.
    low = min(-4.0, min(map(np.min, cosines)) - 1)
    high = max(4.0, max(map(np.max, cosines)) + 1)
    _draw_null(axis, low, high, dimension)
    x = np.linspace(low, high, _CURVE_POINTS)
    for run, values, color in zip(runs, cosines, _COLORS, strict=False):
        density = scipy.stats.gaussian_kde(values)(x)
        axis.plot(x, density, color=color, label=counted(run.repetitions, "repetition"))


def _draw_null(axis: Axes, low: float, high: float, dimension: int) -> None:
    """Draws the density of cosines without a leak, from `low` to `high` in units of 1/sqrt(d)."""
    root = np.sqrt(dimension)
    x = np.linspace(low, high, _CURVE_POINTS)
    inside = np.clip(x / root, -1 + 1e-12, 1 - 1e-12)
    density = np.exp(cosine_law.log_density(inside, dimension)) / root
    axis.plot(x, density, color=BLACK, lw=1, label="nothing leaks")


def _draw_bars(
    axis: Axes, runs: Runs, seen: Sequence[Observation], accounted: bool = False
) -> None:
    """Draws fitted estimates as bars with standard errors, the paper's lower values and the noise floor.

    Args:
      axis: The panel.
      runs: Runs that differ in their numbers of repetitions, which label the bars.
      seen: One observation of each of these runs.
      accounted: Whether to draw the accounted epsilons, if they are finite.
    """
    places = range(len(runs))
    epsilons = [observation.fitted.epsilon for observation in seen]
    errors = [observation.fitted.standard_error for observation in seen]
    look: dict[str, Any] = {"color": BLUE, "alpha": 0.5, "ecolor": BLACK, "capsize": 3}
    axis.bar(places, epsilons, 0.6, yerr=errors, label="estimate, standard error", **look)
    lower = [observation.in_sample for observation in seen]
    axis.plot(places, lower, "_", color=VERMILION, ms=14, mew=2, label="in-sample lower value")
    # The floor depends on the numbers of canaries, which hardly differ: the first run's stands for all.
    floor = seen[0].fitted.noise_floor.quantile_95
    axis.axhline(floor, color=FADED, ls=":", label="95% of estimates without a leak")
    upper = [run.accounted for run in runs]
    if accounted and np.isfinite(upper).all():
        axis.plot(places, upper, "_", color=BLACK, ms=14, label="accounted")
    axis.set_xticks(list(places), [str(run.repetitions) for run in runs])


def _draw_quantiles(axis: Axes, split: SplitQuantiles) -> None:
    """Draws the quantiles of the estimates of a single run and of several runs."""
    axis.plot(QUANTILES, split.one_run, "o-", color=BLUE, ms=4, label="one run")
    axis.plot(QUANTILES, split.several_runs, "s--", color=VERMILION, ms=4, label="several runs")
    axis.set(xticks=QUANTILES, ylim=(0, 1.1 * max(*split.one_run, *split.several_runs)))


def _group_by_noise(runs: Runs) -> list[list[FederatedRun]]:
    """Groups runs by clients and noise multiplier, in the order in which these first come."""
    groups: dict[tuple[str, float], list[FederatedRun]] = {}
    for run in runs:
        groups.setdefault((run.plan.label, run.noise), []).append(run)
    return list(groups.values())


def _format_noise(run: FederatedRun) -> str:
    """Returns a panel's title: the run's noise multiplier, and its analytical epsilon."""
    epsilon = f"{run.analytical:.3g}" if np.isfinite(run.analytical) else r"$\infty$"
    return f"$\\sigma$ = {run.noise:.3g}\nanalytical $\\varepsilon$ = {epsilon}"


# The functions that draw what is stored of a sweep, and that make its table.
_DRAWINGS: dict[str, tuple[Any, Any]] = {
    "one_shot_table_2": (histograms_figure, tables.make_observations_table),
    "one_shot_table_5": (histograms_figure, tables.make_observations_table),
    "one_shot_figure_1": (densities_figure, tables.make_densities_table),
    "one_shot_figure_2": (repetitions_figure, tables.make_repetitions_table),
    "one_shot_figure_3": (repetitions_figure, tables.make_repetitions_table),
    "one_shot_figure_4": (quantiles_figure, tables.make_splits_table),
}
