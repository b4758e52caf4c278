"""An audit's figure: its scores, trade-off curve, bounds and privacy profile."""

import math
import textwrap
from collections.abc import Callable
from typing import Any, Literal

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter
from numpy.typing import NDArray

from audit.conclusions.conclusion import Conclusion, UpperBound, method_of
from audit.laws import conversions, cosine_law
from audit.methods.estimate import Bound, Finding
from audit.methods.exact_null import EXACT_NULL_GDP
from audit.methods.level import show_level
from audit.methods.method import COINS, NO_BOUND, NOTHING, OTHERS_IN
from audit.report import curves, style
from audit.report.curves import describe_curve, find_mark
from audit.report.style import BOUND, FADED, FREE, IN, OUT, STYLE, UPPER
from audit.report.table import at_least, at_most

_BINS = 40  # of a histogram of cosines
_POINTS = 401  # at which the cosines' law is drawn
_FAR = 4.0  # the cosines' axis reaches at least so far, in units of 1/sqrt(d)
_HEADROOM = 1.35  # factor on the height of the scores' axis, to leave room for the legend
_LIGHT = 0.3  # opacity of the bar of a bound that assumes something
_LABEL_WIDTH = 26  # characters of a line of a bar's name
_LEGEND_LINE = 0.09  # the height of a line of a legend, as a share of an axis
_PATH_HEADROOM = 1.5  # factor on the height of the path's axis, to leave room for the legend

_Draw = Callable[[Axes, Conclusion], None]


def audit_figure(
    conclusion: Conclusion, audited: str = "", encode: Callable[[Figure], bytes] = style.png
) -> bytes:
    """Returns an image file with all panels of an audit.

    Args:
      conclusion: the conclusion of the audit.
      audited: what was audited, for a line above the panels; empty for no line.
      encode: the function that writes the file, one of `style.FORMATS`.
    """
    with plt.rc_context(STYLE):
        return encode(audit_drawing(conclusion, audited))


def audit_drawing(conclusion: Conclusion, audited: str = "") -> Figure:
    """Returns a figure with all panels of an audit.

    pyplot does not keep the figure, so that a notebook shows it only once.

    Args:
      conclusion: the conclusion of the audit.
      audited: what was audited, for a line above the panels; empty for no line.
    """
    panels = _choose_panels(conclusion)
    columns = min(len(panels), 2)
    rows = -(-len(panels) // 2)  # rounded up
    with plt.rc_context(STYLE):
        figure = plt.figure(figsize=(4.5 * columns, 3.3 * rows))
        if conclusion.is_one_run:  # a legend above a panel needs a subfigure of the panel's own
            subfigures = figure.subfigures(rows, columns, squeeze=False)
            axes = [subfigure.subplots() for subfigure in subfigures.flat]
        else:
            axes = list(figure.subplots(rows, columns).flat)
        # There are 1, 2 or 4 panels, so that they fill the grid.
        for axis, draw in zip(axes, panels.values(), strict=True):
            draw(axis, conclusion)
        if audited:
            # A caller's name may have dollars, between which Matplotlib would read formulas.
            title = textwrap.fill(audited, 120).replace("$", r"\$")
            figure.suptitle(title, fontsize=9)
        style.set_symbols(figure)
        plt.close(figure)
        return figure


def audit_panels(conclusion: Conclusion) -> dict[str, bytes]:
    """Returns an SVG file for each panel of an audit, by the panel's name.

    For several runs the panels are "scores", "trade_off", "bounds", and "profile" (with fresh directions
    "path" instead). For a single run they are "cosines", where it has any, and "epsilons". If it was measured
    how much steps stretch distances, "expansion" comes last.
    """
    draws = _choose_panels(conclusion)
    state = conclusion.hidden_state
    if state is not None and state.runs:
        draws = {**draws, "expansion": _draw_expansion}
    panels = {}
    with plt.rc_context(STYLE):
        for name, draw in draws.items():
            figure, axis = plt.subplots(figsize=(4.2, 3.4))
            draw(axis, conclusion)
            panels[name] = style.svg(figure)
    return panels


def _set_title(axis: Axes, title: str, subtitle: str = "") -> None:
    """Sets a panel's title, at the same height in all panels, and below it a subtitle in small print."""
    axis.set_title(title, pad=16)
    axis.text(0.5, 1.02, subtitle, transform=axis.transAxes, ha="center", va="bottom", fontsize=8)


def _draw_scores(axis: Axes, conclusion: Conclusion) -> None:
    """Draws histograms of both worlds' scores, and the thresholds of the bounds that verdicts rest on."""
    scores_in = conclusion.scores_in
    scores_out = conclusion.scores_out
    unit = "runs" if conclusion.has_one_canary else "scores"
    all_scores = np.concatenate([scores_in, scores_out])
    # About the root of the number of scores; more than 60 bars would be too thin.
    bin_count = min(math.isqrt(len(all_scores)) + 1, 60)
    bins = _find_bins(all_scores, bin_count)
    out_label = "out (the known law)"
    if not conclusion.law_is_known:
        out_label = f"out ({len(scores_out)} {unit})"
    in_label = f"in ({len(scores_in)} {unit})"
    axis.hist(scores_out, bins, color=OUT, alpha=0.6, label=out_label)
    axis.hist(scores_in, bins, color=IN, alpha=0.6, hatch="///", label=in_label)

    free = conclusion.assumption_free
    gaussian = conclusion.gaussian
    _draw_threshold(axis, conclusion, free, dashes="-")
    if gaussian.method != free.method:  # with fresh directions one bound is both
        _draw_threshold(axis, conclusion, gaussian, dashes="--")
    axis.set(xlabel="score of the final model", ylabel=f"number of {unit}")
    _set_title(axis, "Scores")
    axis.locator_params(axis="x", nbins=6)
    axis.set_ylim(top=axis.get_ylim()[1] * _HEADROOM)
    axis.legend(loc="upper left", ncols=2, fontsize=8)


def _draw_threshold(axis: Axes, conclusion: Conclusion, bound: Bound, dashes: str) -> None:
    """Draws a line at the threshold of a bound; it is grey if the scores refute what the bound assumes."""
    if bound.threshold is None:
        return
    label = f"threshold, {method_of(bound).label}"
    color = BOUND
    if not bound.holds:
        label += f" {find_mark(bound, conclusion)}"
        color = FADED
    # The line ends below the room that the legend gets.
    axis.axvline(bound.threshold, ymax=1 / _HEADROOM, color=color, ls=dashes, label=label)


def _find_bins(scores: NDArray[np.float64], count: int) -> list[float]:
    """Returns the edges of a histogram's bins, of equal width, from the least score to the largest.

    Scores that are equal, or so close that floats leave no room for so many bins between them, share a bin of
    a wider range.

    Args:
      scores: (n,), all scores of the histogram.
      count: the number of bins.
    """
    low = float(scores.min())
    high = float(scores.max())
    narrowest = 2 * count * float(np.spacing(max(abs(low), abs(high))))  # of two floats a bin
    if high - low < narrowest:
        margin = max(0.5, narrowest)
        low -= margin
        high += margin
    edges: list[float] = np.linspace(low, high, count + 1).tolist()
    return edges


def _draw_trade_off(axis: Axes, conclusion: Conclusion) -> None:
    """Draws trade-off curves, with the legend in a corner without curves."""
    curves.draw_on_deviates(axis, conclusion)
    axis.set_title("Trade-off curve", pad=16)  # above the line on the Gaussian curve's test
    # Curves lie below the diagonal, or above it where scores are lower with the canary.
    is_reversed = conclusion.guesses is not None and conclusion.guesses.auc.value < 0.5
    corner: Literal["lower left", "upper right"] = "lower left" if is_reversed else "upper right"
    axis.legend(loc=corner, fontsize=8, frameon=True, edgecolor="none")


def _draw_bounds(axis: Axes, conclusion: Conclusion) -> None:
    """Draws a bar with its value for each lower bound and estimate, and a line at each upper bound.

    The bar of a bound with assumptions is light, that of a refuted bound is grey and crossed out, and that of
    an estimate is hatched.
    """
    # In the order of the printed table.
    rows: tuple[Finding, ...] = (*conclusion.ranked(), *conclusion.estimates)
    labels = []
    for row in rows:
        mark = NO_BOUND if not isinstance(row, Bound) else find_mark(row, conclusion)
        name = f"{method_of(row).label} {mark}".strip()
        labels.append(textwrap.fill(f"{name} {at_least(row.epsilon, 2)}", _LABEL_WIDTH))
    epsilons = [row.epsilon for row in rows]
    bars = axis.barh(range(len(rows)), epsilons, color=BOUND, alpha=0.8, height=0.7)
    axis.set_yticks(range(len(rows)), labels, fontsize=8)

    uppers = _list_finite(conclusion)
    # The first bar is on top, below the room for the legend.
    legend = _LEGEND_LINE * len(uppers)
    bottom, top = axis.get_ylim()
    axis.set_ylim(top, bottom - legend / (1 - legend) * (top - bottom))
    largest = max([*epsilons, *(upper.epsilon for upper in uppers)])
    axis.set_xlim(0, 1.15 * max(largest, 0.1))
    axis.set_xlabel(f"epsilon at delta {show_level(conclusion.delta)}")
    for upper in uppers:
        # The line ends below the legend.
        axis.axvline(upper.epsilon, ymax=1 - legend, **_describe_line(upper))
    if uppers:
        axis.legend(loc="upper left", fontsize=8, borderpad=0)

    light = []  # what the light bars assume
    for bar, row in zip(bars, rows, strict=True):
        if not isinstance(row, Bound):
            # An estimate: hatched.
            bar.set(facecolor="white", edgecolor=BOUND, hatch="///")
        elif not row.holds:
            # A bound whose assumption the scores refute: faded, and crossed out.
            bar.set(facecolor="white", edgecolor=FADED, hatch="xxx")
        elif row.assumes.text not in (NOTHING.text, COINS.text, OTHERS_IN.text):
            # A bound that assumes more than the audit itself ensures: light. All others stay solid. Without
            # an alpha of its own, the bar takes the face's opacity.
            bar.set(alpha=None, facecolor=(BOUND, _LIGHT), edgecolor=BOUND, linewidth=1.2)
            light.append(row.assumes.word)
    subtitle = ""
    if light:
        subtitle = f"light bars assume: {'; '.join(dict.fromkeys(light))}"
    _set_title(axis, "Lower bounds on epsilon", subtitle)


def _list_finite(conclusion: Conclusion) -> list[UpperBound]:
    """Returns the finite upper bounds, each epsilon once."""
    finite = {}
    for upper in conclusion.upper_bounds:
        if math.isfinite(upper.epsilon):
            finite[upper.epsilon] = upper
    return list(finite.values())


def _describe_line(upper: UpperBound) -> dict[str, Any]:
    """Returns the look of the line at an upper bound, with its name and value for the legend."""
    label = f"{upper.name} {at_most(upper.epsilon, 2)}"
    return {"color": UPPER, "ls": "-." if upper.hidden else ":", "label": label}


def _draw_profile(axis: Axes, conclusion: Conclusion) -> None:
    """Draws privacy profiles, delta against epsilon, at the lower bound on mu and at the upper bounds."""
    mu = conclusion.gaussian.mu or 0.0
    uppers = []
    for upper in conclusion.upper_bounds:
        if upper.mu is not None and np.isfinite(upper.mu):
            uppers.append((upper, upper.mu))
    # The epsilons reach to where the widest profile leaves the panel, at delta = 1e-10. A mu of at least
    # 0.05 keeps the axis from having no length.
    largest = max(mu, 0.05, *(upper_mu for _, upper_mu in uppers))
    grid = np.linspace(0, conversions.epsilon_from_mu(largest, 1e-10), 400)
    status = describe_curve(conclusion)
    with np.errstate(over="ignore"):  # e^epsilon of a large epsilon
        if mu:
            delta = conversions.delta_from_mu(mu, grid)
            label = f"lower bound, if Gaussian {status.mark}".strip()
            color = FADED if status.faded else BOUND
            axis.plot(grid, delta, color=color, ls="--", label=label)
        for upper, upper_mu in uppers:
            delta = conversions.delta_from_mu(upper_mu, grid)
            dashes = "-." if upper.hidden else ":"
            axis.plot(grid, delta, color=UPPER, ls=dashes, label=upper.name)

    axis.axhline(conclusion.delta, color="0.7", lw=0.8)
    axis.annotate(
        f"delta {show_level(conclusion.delta)}",
        (1, conclusion.delta),
        (0, 1),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        ha="right",
        va="bottom",
        fontsize=8,
        color="0.4",
    )
    # The space above delta = 1 is for the legend.
    axis.set(xlabel="epsilon", ylabel="delta", yscale="log", ylim=(1e-10, 1e3))
    _set_title(axis, "Privacy profile")
    axis.set_yticks([1e-10, 1e-8, 1e-6, 1e-4, 1e-2, 1])
    if mu or uppers:
        axis.legend(loc="upper right", fontsize=8)


def _draw_path(axis: Axes, conclusion: Conclusion) -> None:
    """Draws the epsilon that was proven after each run, or by all runs if their order is unknown.

    The solid line is proven for any mechanism. A dashed line, if any, shows the least epsilon that a GDP
    guarantee may state without being refuted. Horizontal lines show the upper bounds. A vertical line shows
    after how many runs the claim was refuted.
    """
    path = conclusion.path or (conclusion.epsilon,)  # without an order only the last value exists
    last = conclusion.count_runs()
    runs = range(last + 1 - len(path), last + 1)  # 1 to `last`, or `last` alone
    marker = "o" if len(path) < 4 else ""  # a path of a few runs is hard to see as a line alone
    axis.step(runs, path, where="post", color=BOUND, marker=marker, label="proven")
    path_of_gdp = conclusion.bound(EXACT_NULL_GDP).path
    if path_of_gdp:
        axis.step(runs, path_of_gdp, where="post", color=FREE, ls="--", label="any GDP guarantee")
    test = conclusion.claim_test
    # A line beyond the last run would stretch the axis: the comparison is a guard against it.
    if test is not None and test.refuted and test.runs <= last:
        # The line ends below the room that the legend gets.
        axis.axvline(
            test.runs,
            ymax=1 / _PATH_HEADROOM,
            color=BOUND,
            lw=0.8,
            ls=":",
            label=f"claim refuted: {test.runs}",
        )
    for upper in _list_finite(conclusion):
        axis.axhline(upper.epsilon, **_describe_line(upper))
    axis.set(xlabel="training runs", ylabel=f"epsilon at delta {show_level(conclusion.delta)}")
    _set_title(axis, "Proven, whatever the curve")
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_ylim(0, _PATH_HEADROOM * axis.get_ylim()[1])
    axis.legend(loc="upper left", ncols=2, fontsize=8)


def _draw_expansion(axis: Axes, conclusion: Conclusion) -> None:
    """Draws the measured expansion of each step: by how many percent it stretches distances at most.

    The panel is for an audit with measured Lipschitz constants of its steps.
    """
    state = conclusion.hidden_state
    assert state is not None
    # The constants of all steps, or a single constant for all.
    constants = np.atleast_1d(np.asarray(state.periods.lipschitz, np.float64))
    percent = 100 * (constants - 1)
    steps = np.arange(1, len(percent) + 1)
    axis.step(steps, percent, where="mid", color=UPPER, lw=1)
    axis.axhline(percent.mean(), color=FADED, ls="--", label=f"mean {percent.mean():.3g}%")
    axis.set(
        xlabel="step of the training",
        ylabel="distances grow by at most, in percent",
        title=f"Expansion along {state.runs} rehearsed runs",
    )
    axis.legend(loc="upper right", fontsize=8)


def _draw_cosines(axis: Axes, conclusion: Conclusion) -> None:
    """Draws the histogram of a single run's observed cosines in units of 1/sqrt(d), d being the dimension.

    Beside it is the histogram of the unobserved cosines; without any, the exact law where nothing leaks.
    """
    cosines = conclusion.one_run.cosines
    assert cosines is not None
    observed, unobserved, dimension = cosines
    root = np.sqrt(dimension)
    units = np.concatenate([observed, unobserved]) * root
    # The axis shows all cosines, and at least _FAR units to either side of 0: nearly all of the law where
    # nothing leaks, which is about N(0, 1).
    low = min(-_FAR, units.min())
    high = max(_FAR, units.max())
    bins = np.linspace(low, high, _BINS + 1).tolist()
    axis.hist(
        observed * root,
        bins,
        density=True,
        color=IN,
        alpha=0.5,
        label=f"observed ({len(observed):,})",
    )
    if len(unobserved):
        label = f"unobserved ({len(unobserved):,})"
        axis.hist(
            unobserved * root, bins, density=True, color=OUT, alpha=0.5, hatch="///", label=label
        )
    else:
        grid = np.linspace(low, high, _POINTS)
        within = np.clip(grid / root, -1 + 1e-12, 1 - 1e-12)  # the density is finite there
        density = np.exp(cosine_law.log_density(within, dimension)) / root
        axis.plot(grid, density, color=OUT, label="no leak")
    axis.set(xlabel=r"cosine, in units of $1/\sqrt{d}$", ylabel="density")
    _set_legend_above(axis)


def _draw_epsilons(axis: Axes, conclusion: Conclusion) -> None:
    """Draws a single run's epsilons by method, and the upper bound.

    Lower bounds are bars; estimates are points with two standard errors, over grey bars up to the 95%
    quantile of what they show where nothing leaks.
    """
    names = []
    # Only the first of each kind has a label, so that the legend lists each label once.
    floor_label: str | None = "no leak: up to 95%"
    estimate_label: str | None = "estimate, 2 errors"
    for place, estimate in enumerate(conclusion.estimates):
        axis.barh(
            place, estimate.noise_floor.quantile_95, color=FADED, alpha=0.4, label=floor_label
        )
        axis.errorbar(
            estimate.epsilon,
            place,
            xerr=2 * estimate.standard_error,
            fmt="o",
            ms=4,
            color=IN,
            mfc="white",
            label=estimate_label,
        )
        names.append(estimate.method)
        floor_label = None
        estimate_label = None
    bound_label: str | None = "lower bound"
    for place, bound in enumerate(conclusion.bounds, start=len(conclusion.estimates)):
        axis.barh(place, bound.epsilon, color=BOUND, height=0.6, label=bound_label)
        names.append(bound.method)
        bound_label = None
    upper = conclusion.upper_bound
    if upper is not None and np.isfinite(upper):
        axis.axvline(upper, color=UPPER, ls=":", label="upper bound")
    axis.set_yticks(range(len(names)), [name.removeprefix("one_shot_") for name in names])
    # The first name on top, as in the tables.
    axis.set(xlabel=r"$\varepsilon$", ylim=(len(names) - 0.4, -0.6))
    axis.set_xlim(left=0)
    _set_legend_above(axis)


def _set_legend_above(axis: Axes) -> None:
    """Puts a panel's legend above the panel; the panel must be alone in its figure or subfigure."""
    axis.figure.legend(loc="outside upper center", ncols=2, fontsize=8)


def _choose_panels(conclusion: Conclusion) -> dict[str, _Draw]:
    """Returns the functions that draw an audit's panels, by the panels' names, in order.

    For fresh directions no Gaussian curve is assumed: the path of what was proven after each run takes the
    place of the Gaussian privacy profile.
    """
    if conclusion.is_one_run:
        if conclusion.one_run.cosines is None:
            return {"epsilons": _draw_epsilons}
        return {"cosines": _draw_cosines, "epsilons": _draw_epsilons}
    if not conclusion.law_is_known:
        return _PANELS
    panels = {name: draw for name, draw in _PANELS.items() if name != "profile"}
    return {**panels, "path": _draw_path}


_PANELS: dict[str, _Draw] = {
    "scores": _draw_scores,
    "trade_off": _draw_trade_off,
    "bounds": _draw_bounds,
    "profile": _draw_profile,
}
