"""One run's figures: its cosines beside what they are where nothing leaks, and every epsilon."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from audit.report import style
from audit.report.style import BOUND, FADED, IN, OUT, STYLE, UPPER
from audit.statistics import cosine_law
from audit.statistics.one_run_conclusion import OneRunConclusion

_BINS, _POINTS, _FAR = 40, 401, 4.0  # of a histogram; of a curve; in units of 1/sqrt(d)


def one_run_panels(conclusion: OneRunConclusion, upper_bound: float | None) -> dict[str, bytes]:
    """Each panel of one run apart, as SVG bytes: "cosines", "epsilons"."""
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(4.2, 3.4))
        _draw_cosines(axis, conclusion)
        cosines = style.svg(figure)
        figure, axis = plt.subplots(figsize=(4.2, 3.4))
        _draw_epsilons(axis, conclusion, upper_bound)
        return {"cosines": cosines, "epsilons": style.svg(figure)}


def _draw_cosines(axis: Axes, conclusion: OneRunConclusion) -> None:
    """The density of the observed cosines, and of the unobserved or of the exact null."""
    observed, unobserved, dimension = conclusion.cosines
    root = np.sqrt(dimension)
    seen = np.concatenate([observed, unobserved]) * root
    ends = min(-_FAR, seen.min()), max(_FAR, seen.max())
    bins = np.linspace(*ends, _BINS + 1).tolist()
    axis.hist(observed * root, bins, density=True, color=IN, alpha=0.5, label=f"observed ({len(observed):,})")
    if len(unobserved):
        label = f"unobserved ({len(unobserved):,})"
        axis.hist(unobserved * root, bins, density=True, color=OUT, alpha=0.5, hatch="///", label=label)
    else:
        x = np.linspace(*ends, _POINTS)
        inside = np.clip(x / root, -1 + 1e-12, 1 - 1e-12)
        axis.plot(x, np.exp(cosine_law.log_density(inside, dimension)) / root, color=OUT, label="no leak")
    axis.set(xlabel=r"cosine, in units of $1/\sqrt{d}$", ylabel="density")
    _legend_above(axis)


def _draw_epsilons(axis: Axes, conclusion: OneRunConclusion, upper_bound: float | None) -> None:
    """A bar a bound; a point an estimate, with two standard errors, over the range that it shows without a
    leak; a line at the upper bound."""
    names = [*(row.method for row in conclusion.estimates), *(row.method for row in conclusion.bounds)]
    for place, row in enumerate(conclusion.estimates):
        floor = "no leak: up to 95%" if place == 0 else None
        axis.barh(place, row.noise_floor.quantile_95, color=FADED, alpha=0.4, label=floor)
        error = 2 * row.standard_error
        label = "estimate, 2 errors" if place == 0 else None
        axis.errorbar(row.epsilon, place, xerr=error, fmt="o", ms=4, color=IN, mfc="white", label=label)
    for place, bound in enumerate(conclusion.bounds, len(conclusion.estimates)):
        label = "lower bound" if place == len(conclusion.estimates) else None
        axis.barh(place, bound.epsilon, color=BOUND, height=0.6, label=label)
    if upper_bound is not None and np.isfinite(upper_bound):
        axis.axvline(upper_bound, color=UPPER, ls=":", label="upper bound")
    axis.set_yticks(range(len(names)), [name.removeprefix("one_shot_") for name in names])
    axis.set(xlabel=r"$\varepsilon$", ylim=(len(names) - 0.4, -0.6))
    axis.set_xlim(left=0)
    _legend_above(axis)


def _legend_above(axis: Axes) -> None:
    """The legend of a figure's only panel, above it."""
    figure = axis.get_figure(root=True)
    assert figure is not None
    figure.legend(loc="outside upper center", ncols=2, fontsize=8)
