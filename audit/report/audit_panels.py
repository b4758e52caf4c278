"""An audit's figure: its scores, trade-off curve and bounds, and the proven epsilon after each run."""

import math
import textwrap
from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter
from numpy.typing import NDArray
from scipy import special

from audit.conclusions.conclusion import Conclusion
from audit.laws import conversions
from audit.methods import curves
from audit.methods.estimate import Bound
from audit.methods.exact_null import EXACT_NULL_GDP
from audit.methods.method import COINS, GIVEN, NO_BOUND, NOTHING, OTHERS_IN
from audit.report import style
from audit.report.bounds_table import BoundRow, list_rows
from audit.report.style import (
    BOUND,
    FADED,
    FREE,
    IN,
    OUT,
    PREDICTED,
    STYLE,
    UPPER,
)
from audit.report.table import at_least, at_most
from audit.written import show_level, show_percent

Array = NDArray[np.float64]
_Draw = Callable[[Axes, Conclusion], None]

_LIGHT = 0.3  # opacity of a bar with assumptions
_LABEL_WIDTH = 26  # characters of a line in a bar's name
_POINTS = 801  # false-positive rates of a drawn curve
_MAX_DECADES = 4  # with more decades, every second one has a tick


def audit_figure(conclusion: Conclusion, audited: str = "") -> Figure:
    """Returns a figure with all panels of an audit, under the title `audited`.

    pyplot does not keep the figure, and a notebook shows it only once.
    """
    draws = choose_panels(conclusion).values()
    columns = len(draws)
    if columns == 4:
        columns = 2
    rows = len(draws) // columns
    with plt.rc_context(STYLE):
        figure = plt.figure(figsize=(4.5 * columns, 3.7 * rows))
        subfigures = figure.subfigures(rows, columns, squeeze=False)
        for subfigure, draw in zip(subfigures.flat, draws, strict=True):
            _draw_panel(subfigure.subplots(), draw, conclusion)
        if audited:
            # Matplotlib would read formulas between dollars.
            title = textwrap.fill(audited, 60 * columns).replace("$", r"\$")
            figure.suptitle(title, fontsize=9)
        style.set_symbols(figure)
        plt.close(figure)
        return figure


def audit_panels(conclusion: Conclusion) -> dict[str, bytes]:
    """Returns an SVG file for each panel of an audit, by the panel's name (`choose_panels`)."""
    panels = {}
    with plt.rc_context(STYLE):
        for name, draw in choose_panels(conclusion).items():
            figure, axis = plt.subplots(figsize=(4.2, 3.8))
            _draw_panel(axis, draw, conclusion)
            panels[name] = style.svg(figure)
    return panels


def choose_panels(conclusion: Conclusion) -> dict[str, _Draw]:
    """Returns the functions that draw an audit's panels, by the panels' names, in order."""
    panels: dict[str, _Draw] = {
        "scores": _draw_scores,
        "trade_off": draw_on_deviates,
        "bounds": _draw_bounds,
    }
    if conclusion.is_one_run:
        del panels["trade_off"]
    if conclusion.law_is_known:
        panels["path"] = _draw_path
    return panels


def _draw_panel(axis: Axes, draw: _Draw, conclusion: Conclusion) -> None:
    """Draws the only panel of a figure or subfigure, with its legend above."""
    draw(axis, conclusion)
    if axis.get_legend_handles_labels()[1]:
        axis.figure.legend(loc="outside upper center", ncols=2, fontsize=8)


def _draw_uppers(draw_line: Callable[..., Any], conclusion: Conclusion) -> None:
    """Draws a line at each finite upper bound on epsilon with a function such as `axis.axvline`."""
    for upper in conclusion.upper_bounds:
        if math.isfinite(upper.epsilon):
            label = f"{upper.name} {at_most(upper.epsilon, 2)}"
            style_of_line = ":"
            if upper.hidden:
                style_of_line = "-."
            draw_line(upper.epsilon, color=UPPER, ls=style_of_line, label=label)


def mark_gaussian(conclusion: Conclusion) -> str:
    """Returns the mark for bounds with a Gaussian curve that is rejected or not confirmed, or empty."""
    curve = conclusion.curve
    if conclusion.refutes_gaussian:
        return " (rejected)"
    # No mark if the mechanism should have a Gaussian curve.
    if curve is not None and curve.is_doubted and not conclusion.reason:
        return " (not confirmed)"
    return ""


def describe_curve(conclusion: Conclusion) -> str:
    """Returns the result of the test of the Gaussian curve; empty without a test."""
    curve = conclusion.curve
    if curve is None:
        return ""
    if curve.is_refuted or curve.is_doubted:
        return f"Gaussian curve {curve.show()}"
    return f"no evidence against Gaussian ({curve.show_test()})"


def _name(row: BoundRow, conclusion: Conclusion) -> str:
    """Returns a row's name, with a mark if it is not a bound or its assumption lacks support."""
    if row.assumes.gaussian:
        return row.label + mark_gaussian(conclusion)
    if not row.sign:
        return f"{row.label} {NO_BOUND}"
    return row.label


def _draw_scores(axis: Axes, conclusion: Conclusion) -> None:
    """Draws histograms of both worlds' scores, and the thresholds of the verdict's bounds."""
    scores_in, scores_out = conclusion.worlds
    unit = "scores"
    if conclusion.has_one_canary:
        unit = "runs"
    all_scores = np.concatenate(conclusion.worlds)
    low = all_scores.min()
    high = all_scores.max()
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # too close for bins
        low -= max(0.5, 1e-6 * abs(low))
        high += max(0.5, 1e-6 * abs(high))
    # About the root of the number of scores, at most 60 bars.
    bins = np.linspace(low, high, min(math.isqrt(len(all_scores)) + 2, 61)).tolist()
    out = f"{len(scores_out)} {unit}"
    if conclusion.law_is_known:
        out = "known law"
    axis.hist(scores_out, bins, color=OUT, alpha=0.6, label=f"out ({out})")
    in_label = f"in ({len(scores_in)} {unit})"
    axis.hist(scores_in, bins, color=IN, alpha=0.6, hatch="///", label=in_label)
    for row in list_rows(conclusion):
        bound = row.finding
        is_shown = conclusion.pair is not None and row.name in conclusion.pair
        if isinstance(bound, Bound) and is_shown and bound.threshold is not None:
            look: dict[str, Any] = {"color": BOUND, "ls": "-"}
            if not bound.holds:
                look["color"] = FADED
            if bound.assumes.gaussian:
                look["ls"] = "--"
            label = f"threshold, {_name(row, conclusion)}"
            axis.axvline(bound.threshold, label=label, **look)
    axis.set(xlabel="score of the final model", ylabel=f"number of {unit}")
    axis.locator_params(axis="x", nbins=6)
    axis.set_title("Scores")


def _draw_bounds(axis: Axes, conclusion: Conclusion) -> None:
    """Draws a bar with its value for each lower bound and estimate, and a line at each upper bound.

    Light bars have assumptions, grey crossed-out bars are refuted, and grey hatched bars are estimates. The
    estimates of a single run are points with two standard errors, over grey bars up to their 95% quantile
    without a leak.
    """
    labels: list[str] = []
    assumed = {}  # of light bars
    if conclusion.is_one_run:
        for estimate in conclusion.estimates:
            axis.barh(len(labels), estimate.noise_floor.quantile_95, color=FADED, alpha=0.4)
            error = 2 * estimate.standard_error
            axis.errorbar(estimate.epsilon, len(labels), xerr=error, fmt="o", ms=4, color=IN)
            labels.append(f"{estimate.method.removeprefix('one_shot_')} {estimate.epsilon:.2f}")
    for row in list_rows(conclusion):
        if row.finding is None:
            continue
        # Its assumption is not ensured by the audit itself.
        look: dict[str, Any] = {"color": BOUND, "alpha": 0.8}
        if not isinstance(row.finding, Bound):
            look = {"facecolor": "white", "edgecolor": FADED, "hatch": "///"}
        elif not row.finding.holds:
            look = {"facecolor": "white", "edgecolor": FADED, "hatch": "xxx"}
        elif row.assumes.text not in (NOTHING.text, COINS.text, OTHERS_IN.text):
            look = {"facecolor": (BOUND, _LIGHT), "edgecolor": BOUND, "linewidth": 0.8}
            assumed[row.assumes.word] = True
        axis.barh(len(labels), row.epsilon, height=0.7, **look)
        label = f"{_name(row, conclusion)} {at_least(row.epsilon, 2)}"
        labels.append(textwrap.fill(label, _LABEL_WIDTH))
    axis.set_yticks(range(len(labels)), labels, fontsize=8)
    axis.invert_yaxis()  # the first bar on top
    _draw_uppers(axis.axvline, conclusion)
    axis.set_xlim(0, max(axis.get_xlim()[1], 0.1))
    axis.set_xlabel(f"epsilon at delta {show_level(conclusion.delta)}")
    title = "Lower bounds on epsilon"
    if assumed:
        title += f"\nlight bars assume: {'; '.join(assumed)}"
    axis.set_title(title, fontsize=9)


def _draw_path(axis: Axes, conclusion: Conclusion) -> None:
    """Draws the proven epsilon after each run, or by all runs if their order is unknown.

    A dashed line shows the least epsilon of an unrefuted GDP guarantee, a vertical line the number of runs
    that refuted the claim.
    """
    path = conclusion.path or (conclusion.epsilon,)
    runs = range(conclusion.runs + 1 - len(path), conclusion.runs + 1)
    marker = "o" if len(path) < 4 else ""  # a short line is hard to see
    axis.step(runs, path, where="post", color=BOUND, marker=marker, label="proven")
    path_of_gdp = conclusion.bound(EXACT_NULL_GDP).path
    if path_of_gdp:
        axis.step(runs, path_of_gdp, where="post", color=FREE, ls="--", label="any GDP guarantee")
    test = conclusion.claim_test
    if test is not None and test.refuted:
        label = f"claim rejected: {test.runs}"
        axis.axvline(test.runs, color=BOUND, lw=0.8, ls=":", label=label)
    _draw_uppers(axis.axhline, conclusion)
    axis.set(xlabel="training runs", ylabel=f"epsilon at delta {show_level(conclusion.delta)}")
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_ylim(bottom=0)
    axis.set_title("Proven for any curve")


def draw_trade_off(
    axis: Axes, conclusion: Conclusion, grid: Array, predicted_mu: float | None = None
) -> None:
    """Draws the empirical trade-off curve with its band, up to three Gaussian curves, and the claim's.

    The Gaussian curves have the lower bound on mu, the predicted mu and the smallest upper bound on mu, if
    known. A claim of epsilon and delta has a separate curve. `grid` (n,) has ascending false-positive rates.
    """
    _draw_empirical(axis, conclusion, grid)

    def draw_gaussian(mu: float, label: str, **look: Any) -> None:
        """Draws the Gaussian curve of a mu."""
        axis.plot(
            grid, conversions.gaussian_trade_off(mu, grid), label=f"Gaussian, {label}", **look
        )

    mu = conclusion.gaussian.mu
    if mu is not None:
        color = BOUND
        if conclusion.refutes_gaussian:
            color = FADED
        draw_gaussian(
            mu, f"mu ≥ {at_least(mu, 2)}{mark_gaussian(conclusion)}", color=color, ls="--"
        )
    if predicted_mu is not None:
        label = f"predicted mu = {predicted_mu:.2f}"
        draw_gaussian(predicted_mu, label, color=PREDICTED)
    upper = conclusion.tightest_mu
    if upper is not None and math.isfinite(upper):
        draw_gaussian(upper, f"mu ≤ {at_most(upper, 2)}", color=UPPER, ls=":")
    claim = conclusion.claim
    if claim is not None and claim.assumes == GIVEN and upper is None:
        # Axes of normal deviates cannot show 0 or the curve of a large epsilon, which is below them.
        allowed = 1 - claim.power(grid)
        if allowed.max() > grid[0]:
            axis.plot(grid, np.clip(allowed, grid[0] / 2, None), color=UPPER, ls=":", label="claim")
    axis.set(xlabel="false-positive rate", ylabel="false-negative rate")


def draw_on_deviates(axis: Axes, conclusion: Conclusion, predicted_mu: float | None = None) -> None:
    """Draws trade-off curves on axes of normal deviates, which show Gaussian curves as lines of slope -1.

    The axes reach from the rate of half an error (at most 0.1) to 1 minus that rate. The subtitle has the
    result of the Gaussian curve's test.
    """
    least = min(0.5 / max(map(len, conclusion.worlds)), 0.1)
    end = special.ndtri(least)
    # Rates with even spacing on the axes.
    grid = special.ndtr(np.linspace(end, -end, _POINTS))
    draw_trade_off(axis, conclusion, grid, predicted_mu)

    count = int(-np.log10(least))  # powers of 10 from `least` to below 1
    step = 1
    if count > _MAX_DECADES:
        step = 2
    low = 0.1 ** np.arange(1, count + 1, step)
    ticks = np.concatenate([low[::-1], [0.5], 1 - low])
    labels = [*map("{:g}".format, ticks)]
    deviates = {"functions": (special.ndtri, special.ndtr)}
    axis.set_xscale("function", **deviates)
    axis.set_yscale("function", **deviates)
    axis.set(xlim=(least, 1 - least), ylim=(least, 1 - least))
    axis.set_xticks(ticks, labels, fontsize=8)
    axis.set_yticks(ticks, labels, fontsize=8)
    axis.set_title(f"Trade-off curve\n{describe_curve(conclusion)}".rstrip(), fontsize=9)


def _draw_empirical(axis: Axes, conclusion: Conclusion, grid: Array) -> None:
    """Draws the scores' empirical trade-off curve, with a band if runs have a single canary.

    Axes of normal deviates cannot show 0 and 1, so the rates are at least half an error away from them.
    """
    curve = curves.trade_off_curve(*conclusion.worlds, conclusion.confidence)
    if conclusion.has_one_canary:  # the band is for independent scores
        low, high = np.clip(curve.band(grid), grid[0] / 2, 1 - grid[0] / 2)
        label = f"{show_percent(conclusion.confidence)} band"
        axis.fill_between(grid, low, high, color=OUT, alpha=0.25, lw=0, label=label)
    rates = []
    worlds = (curve.false_positive_rate, curve.false_negative_rate)
    for rate, scores in zip(worlds, reversed(conclusion.worlds), strict=True):
        half_an_error = 0.5 / len(scores)
        # Reversed: false-positive rates ascend.
        rates.append(np.clip(rate, half_an_error, 1 - half_an_error)[::-1])
    axis.step(*rates, where="post", color=OUT, label="empirical")
