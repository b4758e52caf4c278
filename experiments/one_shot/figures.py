"""The paper's Figures 1 to 4 and the cosines of Tables 2 and 5, from stored cosines; nothing here trains."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import scipy
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from audit.laws import cosine_law
from audit.report.style import (
    BLACK,
    BLUE,
    FADED,
    GREEN,
    IN,
    ORANGE,
    OUT,
    PURPLE,
    VERMILION,
)
from audit.written import counted
from experiments.cells.cell import DataSets
from experiments.one_shot import estimates, tables
from experiments.one_shot.estimates import QUANTILES
from experiments.one_shot.sweep import PlannedSweep, Simulations, SplitPlan
from experiments.sweeps.panels import draw_panels
from experiments.sweeps.points import Evidence
from experiments.sweeps.records import Record
from experiments.sweeps.sweep import Drawn, Sweep

_BINS = 40
_CURVE_POINTS = 600
_COLORS = (BLUE, GREEN, ORANGE, VERMILION, PURPLE)
_OBSERVED = {"all": "all iterates", "final": "final model"}
_SIZE = (2.6, 2.4)  # of a panel, in inches
_X_LABEL = r"cosine, in units of $1/\sqrt{d}$"


def draw(sweep: Sweep, evidence: Evidence) -> Drawn:
    """Draws a sweep's figure and makes its table, from those of its runs that are stored."""
    assert isinstance(sweep, PlannedSweep)
    plan = sweep.plan
    if isinstance(plan, Simulations):
        table = tables.make_simulated_table(plan, estimates.simulate(plan))
        return Drawn(figures=[], missing=0, rows=[], table=table)
    # `is_done` takes the user's data sets. A federated cell does not look at them.
    missing = sum(not cell.is_done(evidence.held, DataSets({})) for cell in sweep.cells)
    delta = evidence.levels.delta
    stored: list[Record] = []
    if isinstance(plan, SplitPlan):
        stored += estimates.read_splits(evidence.held, plan, delta)
    else:
        for one in plan:
            stored += estimates.read_runs(evidence.held, one, evidence.levels)
    if not stored:
        return Drawn(figures=[], missing=missing, rows=[])
    draw_figure, make_table = _DRAWINGS[sweep.name]
    figures = [(sweep.name, draw_figure(sweep.title, stored))]
    title = f"{sweep.name}, delta {delta:.3g}: {sweep.title}"
    return Drawn(figures, missing, rows=[], table=make_table(title, stored))


def draw_histograms(title: str, runs: Sequence[Record]) -> Figure:
    """Draws histograms of the canaries' cosines (Tables 2 and 5), a column for each run."""
    panels = {}
    for name, words in _OBSERVED.items():
        for run in runs:
            heading = f"{words}\n{_describe(run)}"
            panels[heading] = partial(_draw_histogram, cosines=run[f"{name}_cosines"])
    return draw_panels(title, panels, _SIZE, len(runs), "density")


def draw_densities(title: str, runs: Sequence[Record]) -> Figure:
    """Draws Figure 1, densities of cosines with the final model: a panel for clients and noise multiplier."""
    panels = {}
    for group in _group_by_noise(runs):
        heading = f"{group[0]['plan'].label}\n{_describe(group[0])}"
        panels[heading] = partial(_draw_densities, runs=group)
    return draw_panels(title, panels, _SIZE, 4, "density")


def draw_repetitions(title: str, runs: Sequence[Record]) -> Figure:
    """Draws Figure 2 or 3: estimates of epsilon over the number of repetitions, and accounted epsilons."""
    groups = _group_by_noise(runs)
    panels = {}
    for name, words in reversed(_OBSERVED.items()):
        for group in groups:
            heading = f"{words}\n{_describe(group[0])}"
            panels[heading] = partial(_draw_bars, runs=group, observed=name)
    return draw_panels(f"{title}; estimates are no bounds", panels, _SIZE, len(groups), "epsilon")


def draw_quantiles(title: str, splits: Sequence[Record]) -> Figure:
    """Draws Figure 4: the estimates' quantiles over experiments, of a single run next to several runs."""

    def draw_split(axis: Axes, split: Record) -> None:
        """Draws the quantiles of an observer's estimates."""
        for name, color, line in (("one run", BLUE, "o-"), ("several runs", VERMILION, "s--")):
            axis.plot(QUANTILES, split[name], line, color=color, ms=4, label=name)
        highest = max(*split["one run"], *split["several runs"])
        axis.set(xticks=QUANTILES, ylim=(0, 1.1 * highest), xlabel="quantile")

    panels = {}
    for split in splits:
        heading = f"{_OBSERVED[split['observe']]}\n{_describe(split)}"
        panels[heading] = partial(draw_split, split=split)
    return draw_panels(title, panels, _SIZE, 4, "estimate of epsilon")


def _draw_histogram(axis: Axes, cosines: Any) -> None:
    """Draws a histogram of the cosines of canaries that are in, next to the null.

    The null is a histogram of the canaries that are out or, without any, the law of uniform directions.
    """
    root = np.sqrt(cosines.dimension)
    observed = cosines.observed * root
    unobserved = cosines.unobserved * root
    ends = np.concatenate([observed, unobserved])
    if not len(unobserved):
        ends = np.append(ends, [-4.0, 4.0])  # deviations of that law
    bins = np.linspace(ends.min(), ends.max(), _BINS).tolist()
    if len(unobserved):
        axis.hist(unobserved, bins, density=True, color=OUT, alpha=0.45, label="out")
    else:
        _draw_null(axis, bins[0], bins[-1], cosines.dimension)
    axis.hist(observed, bins, density=True, color=IN, alpha=0.45, label="in")
    axis.set_xlabel(_X_LABEL)


def _draw_densities(axis: Axes, runs: Sequence[Record]) -> None:
    """Draws a kernel estimate of the density of the final model's cosines, for each of at most five runs."""
    dimension = runs[0]["plan"].dimension
    cosines = [run["final_cosines"].observed * np.sqrt(dimension) for run in runs]
    # Four deviations of the law without a leak, and a margin of 1 for the tails of the kernel estimates.
    low = min(-4.0, min(map(np.min, cosines)) - 1)
    high = max(4.0, max(map(np.max, cosines)) + 1)
    _draw_null(axis, low, high, dimension)
    x = np.linspace(low, high, _CURVE_POINTS)
    for run, values, color in zip(runs, cosines, _COLORS, strict=False):
        density = scipy.stats.gaussian_kde(values)(x)
        axis.plot(x, density, color=color, label=counted(run["repetitions"], "repetition"))
    axis.set_xlabel(_X_LABEL)


def _draw_null(axis: Axes, low: float, high: float, dimension: int) -> None:
    """Draws the density of cosines without a leak, from `low` to `high` in units of 1/sqrt(d)."""
    root = np.sqrt(dimension)
    x = np.linspace(low, high, _CURVE_POINTS)
    inside = np.clip(x / root, -1 + 1e-12, 1 - 1e-12)
    density = np.exp(cosine_law.log_density(inside, dimension)) / root
    axis.plot(x, density, color=BLACK, lw=1, label="nothing leaks")


def _draw_bars(axis: Axes, runs: Sequence[Record], observed: str) -> None:
    """Draws fitted estimates as bars with standard errors, the paper's lower values and the noise floor.

    Args:
      axis: The panel.
      runs: Runs that differ in their numbers of repetitions, which label the bars.
      observed: "all" iterates, with the accounted epsilons if they are finite, or the "final" model.
    """
    places = list(range(len(runs)))

    def take(name: str) -> list[float]:
        """Returns a field of each run."""
        return [run[name] for run in runs]

    look: dict[str, Any] = {"color": BLUE, "alpha": 0.5, "ecolor": BLACK, "capsize": 3}
    look |= {"yerr": take(f"{observed}_error"), "label": "estimate, standard error"}
    axis.bar(places, take(observed), 0.6, **look)
    look = {"color": VERMILION, "ms": 14, "mew": 2, "label": "in-sample lower value"}
    axis.plot(places, take(f"{observed}_in_sample"), "_", **look)
    # The floor depends on the numbers of canaries, which hardly differ: the first run's stands for all.
    floor = runs[0][f"{observed}_floor"].quantile_95
    axis.axhline(floor, color=FADED, ls=":", label="95% of estimates without a leak")
    if observed == "all" and np.isfinite(take("accounted")).all():
        axis.plot(places, take("accounted"), "_", color=BLACK, ms=14, label="accounted")
    axis.set_xticks(places, [f"{number}" for number in take("repetitions")])
    axis.set_xlabel("repetitions")


def _group_by_noise(runs: Sequence[Record]) -> list[list[Record]]:
    """Groups runs by clients and noise multiplier, in the order in which these first come."""
    groups: dict[tuple[str, float], list[Record]] = {}
    for run in runs:
        groups.setdefault((run["plan"].label, run["noise"]), []).append(run)
    return list(groups.values())


def _describe(record: Record) -> str:
    """Returns a panel's title: the noise multiplier, and its analytical epsilon."""
    analytical = record["analytical"]
    epsilon = f"{analytical:.3g}" if np.isfinite(analytical) else r"$\infty$"
    return f"$\\sigma$ = {record['noise']:.3g}\nanalytical $\\varepsilon$ = {epsilon}"


# The functions that draw what is stored of a sweep, and that make its table.
_TABLE = (draw_histograms, partial(tables.make_runs_table, shows_accuracy=True))
_FIGURE = (draw_repetitions, partial(tables.make_runs_table, shows_accuracy=False))
_DRAWINGS: dict[str, tuple[Any, Any]] = {
    "one_shot_table_2": _TABLE,
    "one_shot_table_5": _TABLE,
    "one_shot_figure_1": (draw_densities, tables.make_densities_table),
    "one_shot_figure_2": _FIGURE,
    "one_shot_figure_3": _FIGURE,
    "one_shot_figure_4": (draw_quantiles, tables.make_splits_table),
}
