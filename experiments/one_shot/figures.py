"""The paper's figures from stored cosines: a mechanism's beside the law where nothing leaks, Figures 1 to 4,
and what Tables 2 and 5 rest on; nothing here trains."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import scipy
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from audit.progress import counted
from audit.report import style
from audit.report.style import BLACK, BLUE, FADED, GREEN, ORANGE, PURPLE, VERMILION
from audit.statistics import cosine_law
from audit.statistics.accounting import epsilon_upper_bound
from experiments.cells.cell import DataSets
from experiments.one_shot import estimates, tables
from experiments.one_shot.estimates import QUANTILES, FederatedRun, Observation, SplitQuantiles
from experiments.one_shot.sweep import RepeatedSweep, SplitSweep
from experiments.one_shot.tables import Audits
from experiments.sweeps.points import Evidence
from experiments.sweeps.sweep import Drawn, OwnTable, Sweep

Array = NDArray[np.float64]
_BINS, _POINTS = 40, 600
_COLORS = (BLUE, GREEN, ORANGE, VERMILION, PURPLE)
_UNITS = r"cosine, in units of $1/\sqrt{d}$"


class Panel(NamedTuple):
    """The cosines (n,) of canaries in R^dimension, and a title."""

    title: str
    cosines: Array
    dimension: int


def draw(sweep: Sweep, evidence: Evidence) -> Drawn:
    """A federated sweep's figure and table of what is stored; neither where nothing is."""
    missing = sum(not cell.is_done(evidence.held, DataSets({})) for cell in sweep.cells)
    drawn = _split(sweep, evidence) if isinstance(sweep, SplitSweep) else _repeated(sweep, evidence)
    return Drawn([], missing, []) if drawn is None else Drawn([(sweep.name, drawn[0])], missing, [], drawn[1])


def _repeated(sweep: Sweep, evidence: Evidence) -> tuple[Figure, OwnTable] | None:
    assert isinstance(sweep, RepeatedSweep)
    held, levels = evidence.held, evidence.levels
    read = [(asked, list(estimates.audits(held, asked, levels, sweep.plain))) for asked in sweep.trainings]
    found = [(asked, audits) for asked, audits in read if audits]
    if not found:
        return None
    if len(sweep.trainings) > 1:
        return densities(found), tables.of_densities(sweep.name, found)
    (audits,) = found
    if sweep.plain:
        return histograms(audits), tables.of_observations(sweep.name, audits, levels.delta)
    return repeated(audits), tables.of_repetitions(sweep.name, audits, levels.delta)


def _split(sweep: SplitSweep, evidence: Evidence) -> tuple[Figure, OwnTable] | None:
    asked, delta = sweep.splits, evidence.levels.delta
    found = list(estimates.splits(evidence.held, asked, delta))
    if not found:
        return None
    canaries = asked.trainings.setting.canaries
    words = f"{asked.experiments} experiments, {canaries:,} canaries in 1 or {asked.runs} runs"
    return quantiles(words, found, delta), tables.of_splits(sweep.name, found, words, delta)


def simulated(panels: Sequence[Panel]) -> Figure:
    """A panel a mechanism: histogram, the exact null, and the normal fit, in units of 1/sqrt(d)."""
    with plt.rc_context(style.STYLE):
        figure, axes = plt.subplots(1, len(panels), figsize=(3.3 * len(panels), 3.2), squeeze=False)
        for axis, panel in zip(axes[0], panels, strict=True):
            root = np.sqrt(panel.dimension)
            units = panel.cosines * root
            x = np.linspace(min(-4.0, units.min()), max(4.0, units.max()), 801)
            mean, deviation = units.mean(), units.std()
            fit = np.exp(-(((x - mean) / deviation) ** 2) / 2) / (deviation * np.sqrt(2 * np.pi))
            axis.hist(units, 36, density=True, color=style.IN, alpha=0.35, label="canaries")
            axis.plot(x, _null_density(x, panel.dimension), color=style.OUT, label="nothing leaks")
            axis.plot(x, fit, "--", color=style.IN, label="normal fit")
            tested = cosine_law.anderson_darling(units)
            axis.set_title(f"{panel.title}\n$A^2$ = {tested.statistic:.2f} (5%: {tested.critical[2]:.2f})")
            axis.set_xlabel(_UNITS)
        axes[0][0].set_ylabel("density")
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def histograms(audits: Audits) -> Figure:
    """A column a noise multiplier: cosines with all iterates above, with the final model below."""
    asked, found = audits
    with plt.rc_context(style.STYLE):
        size = (2.6 * len(found) + 0.6, 4.8)
        figure, axes = plt.subplots(2, len(found), figsize=size, squeeze=False)
        for (above, below), one in zip(axes.T, found, strict=True):
            _histogram(above, one.every)
            _histogram(below, one.final)
            above.set_title(_noise(one))
            below.set_xlabel(_UNITS)
        axes[0][0].set_ylabel("largest over all rounds\ndensity")
        axes[1][0].set_ylabel("with the final model\ndensity")
        figure.suptitle(f"{asked.label}: cosines of canaries")
        _legend(figure, axes.ravel())
    return figure


def densities(found: Sequence[Audits]) -> Figure:
    """A row a kind of clients, a panel a noise multiplier, a line a number of repetitions."""
    with plt.rc_context(style.STYLE):
        columns = max(len(_by_noise(audits)) for _, audits in found)
        size = (2.6 * columns + 0.6, 2.4 * len(found) + 0.6)
        figure, axes = plt.subplots(len(found), columns, figsize=size, squeeze=False)
        for row, (asked, audits) in zip(axes, found, strict=True):
            panels = _by_noise(audits)
            for axis, panel in zip(row, panels, strict=False):
                _draw_densities(axis, panel)
                axis.set_title(_noise(panel[0]))
            for axis in row[len(panels) :]:
                axis.set_axis_off()
            row[0].set_ylabel(f"{asked.label}\ndensity")
        for axis in axes[-1]:
            axis.set_xlabel(_UNITS)
        _legend(figure, axes.ravel())
    return figure


def repeated(audits: Audits) -> Figure:
    """A column a noise multiplier: estimates over repetitions, from the final model and from all iterates."""
    asked, found = audits
    with plt.rc_context(style.STYLE):
        panels = _by_noise(found)
        size = (2.3 * len(panels) + 0.6, 4.8)
        figure, axes = plt.subplots(2, len(panels), figsize=size, squeeze=False)
        for (above, below), panel in zip(axes.T, panels, strict=True):
            _draw_bars(above, panel, [one.final for one in panel])
            _draw_bars(below, panel, [one.every for one in panel])
            upper = [one.accounted for one in panel]
            if np.isfinite(upper).all():
                below.plot(range(len(panel)), upper, "_", color=BLACK, ms=14, label="accounted")
            above.set_title(_noise(panel[0]))
            below.set_xlabel("repetitions")
        axes[0][0].set_ylabel("final model\nepsilon")
        axes[1][0].set_ylabel("all iterates\nepsilon")
        figure.suptitle(f"{asked.label}: estimates of epsilon, which are no bounds")
        _legend(figure, axes.ravel())
    return figure


def quantiles(title: str, found: Sequence[SplitQuantiles], delta: float) -> Figure:
    """A panel a noise multiplier and observation: quantiles over experiments, one run beside several."""
    with plt.rc_context(style.STYLE):
        figure, axes = plt.subplots(1, len(found), figsize=(2.4 * len(found) + 0.6, 3.0), squeeze=False)
        for axis, one in zip(axes[0], found, strict=True):
            looks = (("one run", one.one, BLUE, "o-"), ("several runs", one.several, VERMILION, "s--"))
            for name, values, color, look in looks:
                axis.plot(QUANTILES, values, look, color=color, ms=4, label=name)
            upper = epsilon_upper_bound(one.noise, 1, delta)
            observed = "final model" if one.observe == "final" else "all iterates"
            axis.set_title(f"{observed}\nanalytical $\\varepsilon$ = {upper:.3g}")
            axis.set(xticks=QUANTILES, xlabel="quantile")
            axis.set_ylim(0, 1.1 * max(*one.one, *one.several))
        axes[0][0].set_ylabel("estimate of epsilon")
        figure.suptitle(title)
        _legend(figure, axes.ravel())
    return figure


def _histogram(axis: Axes, found: Observation) -> None:
    observed, unobserved, dimension = found.cosines
    root = np.sqrt(dimension)
    both = np.concatenate([observed, unobserved]) * root
    if not len(unobserved):
        both = np.concatenate([both, [-4.0, 4.0]])
    bins = np.linspace(both.min(), both.max(), _BINS).tolist()
    if len(unobserved):
        axis.hist(unobserved * root, bins, density=True, color=style.OUT, alpha=0.45, label="out")
    else:
        _null(axis, (bins[0], bins[-1]), dimension)
    axis.hist(observed * root, bins, density=True, color=style.IN, alpha=0.45, label="in")


def _draw_densities(axis: Axes, panel: Sequence[FederatedRun]) -> None:
    root = np.sqrt(panel[0].final.cosines.dimension)
    every = [one.final.cosines.observed * root for one in panel]
    low, high = (pick([pick(values) for values in every]) for pick in (min, max))
    ends = min(-4.0, low - 1), max(4.0, high + 1)
    x = np.linspace(*ends, _POINTS)
    _null(axis, ends, panel[0].final.cosines.dimension)
    for one, values, color in zip(panel, every, _COLORS, strict=False):
        axis.plot(
            x, scipy.stats.gaussian_kde(values)(x), color=color, label=counted(one.repetitions, "repetition")
        )


def _null(axis: Axes, ends: tuple[float, float], dimension: int) -> None:
    x = np.linspace(*ends, _POINTS)
    axis.plot(x, _null_density(x, dimension), color=BLACK, lw=1, label="nothing leaks")


def _null_density(x: Array, dimension: int) -> Array:
    root = np.sqrt(dimension)
    inside = np.clip(x / root, -1 + 1e-12, 1 - 1e-12)
    return np.asarray(np.exp(cosine_law.log_density(inside, dimension)) / root)


def _draw_bars(axis: Axes, panel: Sequence[FederatedRun], views: Sequence[Observation]) -> None:
    places = range(len(panel))
    values = [view.fitted.epsilon for view in views]
    errors = [view.fitted.standard_error for view in views]
    look: dict[str, Any] = {"color": BLUE, "alpha": 0.5, "ecolor": BLACK, "capsize": 3}
    axis.bar(places, values, 0.6, yerr=errors, label="estimate, standard error", **look)
    lower = [view.in_sample for view in views]
    axis.plot(places, lower, "_", color=VERMILION, ms=14, mew=2, label="in-sample lower value")
    floor = views[0].fitted.noise_floor.quantile_95
    axis.axhline(floor, color=FADED, ls=":", label="95% of estimates without a leak")
    axis.set_xticks(list(places), [f"{one.repetitions}" for one in panel])


def _by_noise(found: Sequence[FederatedRun]) -> list[list[FederatedRun]]:
    noises = dict.fromkeys(one.noise for one in found)
    return [[one for one in found if one.noise == noise] for noise in noises]


def _noise(one: FederatedRun) -> str:
    """A panel's title: the noise, and the analytical epsilon that the paper names it by."""
    epsilon = f"{one.analytical:.3g}" if np.isfinite(one.analytical) else r"$\infty$"
    return f"$\\sigma$ = {one.noise:.3g}\nanalytical $\\varepsilon$ = {epsilon}"


def _legend(figure: Figure, axes: Sequence[Axes] | NDArray[np.object_]) -> None:
    labels: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            labels.setdefault(label, handle)
    columns = max(2, int(figure.get_size_inches()[0] // 2))
    figure.legend(list(labels.values()), list(labels), loc="outside lower center", ncols=columns, fontsize=8)
