"""Figures of an audit: its scores, trade-off curve and bounds."""

import math
import textwrap
from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogitLocator
from numpy.typing import NDArray
from scipy import special

from audit.conclusions.conclusion import Conclusion
from audit.laws import conversions
from audit.methods import curves
from audit.methods.estimate import Bound
from audit.methods.method import COINS, GIVEN, NO_BOUND, NOTHING, OTHERS_IN
from audit.report.bounds_table import BoundRow, list_rows
from audit.report.style import BOUND, FADED, IN, OUT, PREDICTED, STYLE, UPPER, set_symbols, svg
from audit.report.table import at_least, at_most
from audit.written import show_level, show_percent

Array = NDArray[np.float64]
_Draw = Callable[[Axes, Conclusion], None]

_ENSURED_ASSUMPTIONS = (NOTHING, COINS, OTHERS_IN)  # assumptions that an audit itself guarantees
_LIGHT = 0.3  # opacity of bars that need other assumptions
_LABEL_WIDTH = 26  # characters per line of a bar's label
_MAX_BARS = 60  # in the histogram of scores
_POINTS = 801  # false-positive rates along a drawn curve


def audit_figure(conclusion: Conclusion, title: str = "") -> Figure:
    """Returns a figure with all panels of an audit, closed in pyplot so notebooks do not show it twice."""
    draws = choose_panels(conclusion).values()
    columns = len(draws)
    with plt.rc_context(STYLE):
        figure = plt.figure(figsize=(4.5 * columns, 3.7))
        subfigures = figure.subfigures(1, columns, squeeze=False)
        for subfigure, draw in zip(subfigures.flat, draws, strict=True):
            _draw_panel(subfigure.subplots(), draw, conclusion)
        if title:
            # Matplotlib would read text between dollar signs as a formula.
            text = textwrap.fill(title, 60 * columns).replace("$", r"\$")
            figure.suptitle(text, fontsize=9)
        set_symbols(figure)
        plt.close(figure)
        return figure


def audit_panels(conclusion: Conclusion) -> dict[str, bytes]:
    """Returns an SVG file for each panel of an audit, keyed by panel name (`choose_panels`)."""
    panels = {}
    with plt.rc_context(STYLE):
        for name, draw in choose_panels(conclusion).items():
            figure, axis = plt.subplots(figsize=(4.2, 3.8))
            _draw_panel(axis, draw, conclusion)
            panels[name] = svg(figure)
    return panels


def choose_panels(conclusion: Conclusion) -> dict[str, _Draw]:
    """Returns the functions (axes, conclusion) that draw the panels, keyed by panel name in display order.

    A trade-off curve describes a canary's scores over many runs, so a single run does not have one.
    """
    panels: dict[str, _Draw] = {"scores": _draw_scores}
    if not conclusion.is_one_run:
        panels["trade_off"] = draw_on_deviates
    if conclusion.bounds:
        panels["bounds"] = _draw_bounds
    return panels


def _draw_panel(axis: Axes, draw: _Draw, conclusion: Conclusion) -> None:
    """Draws the single panel of a figure or subfigure, with its legend above it."""
    draw(axis, conclusion)
    if axis.get_legend_handles_labels()[1]:
        axis.figure.legend(loc="outside upper center", ncols=2, fontsize=8)


def mark_gaussian(conclusion: Conclusion) -> str:
    """Returns the suffix for bounds that assume a Gaussian curve: " (rejected)", " (not confirmed)" or "".

    If a Gaussian curve is expected (`conclusion.why_gaussian`), only a rejected curve gets a suffix.
    """
    curve = conclusion.curve
    if conclusion.refutes_gaussian:
        return " (rejected)"
    if curve is not None and curve.is_underpowered and not conclusion.why_gaussian:
        return " (not confirmed)"
    return ""


def describe_curve(conclusion: Conclusion) -> str:
    """Returns the result of the Gaussian-curve test in words; empty if untested."""
    curve = conclusion.curve
    if curve is None:
        return ""
    if curve.is_refuted or curve.is_underpowered:
        return f"Gaussian curve {curve.show()}"
    return f"no evidence against Gaussian ({curve.show_test()})"


def _label_row(row: BoundRow, conclusion: Conclusion) -> str:
    """Returns a row's label, with a suffix if the row is not a bound or its Gaussian curve is in doubt."""
    if row.assumes.gaussian:
        return row.name + mark_gaussian(conclusion)
    if isinstance(row.finding, Bound):
        return row.name
    return f"{row.name} {NO_BOUND}"


def _draw_scores(axis: Axes, conclusion: Conclusion) -> None:
    """Draws histograms of in-scores and out-scores, and lines at the thresholds of the verdict's bounds."""
    unit = "runs" if conclusion.has_one_canary else "scores"
    scores_in, scores_out = conclusion.worlds
    all_scores = np.concatenate(conclusion.worlds)
    low = all_scores.min()
    high = all_scores.max()
    if high - low <= 1e-9 * abs(high):  # too narrow for float64 to separate the bars' edges
        margin = max(0.5, 1e-6 * abs(high))
        low -= margin
        high += margin
    bars = min(math.isqrt(len(all_scores)) + 1, _MAX_BARS)
    edges = np.linspace(low, high, bars + 1).tolist()
    if len(scores_out):  # a single run may have none
        out_label = f"out ({len(scores_out)} {unit})"
        if conclusion.law_is_known:
            out_label = "out (known distribution)"
        axis.hist(scores_out, edges, color=OUT, alpha=0.6, label=out_label)
    in_label = f"in ({len(scores_in)} {unit})"
    axis.hist(scores_in, edges, color=IN, alpha=0.6, hatch="///", label=in_label)
    verdict_methods = conclusion.verdict_methods or ()  # none for a single run
    for row in list_rows(conclusion):
        bound = row.finding
        if isinstance(bound, Bound) and bound.method in verdict_methods:
            assert bound.threshold is not None
            color = BOUND if bound.holds else FADED
            dashes = "--" if row.assumes.gaussian else "-"
            label = f"threshold, {_label_row(row, conclusion)}"
            axis.axvline(bound.threshold, color=color, ls=dashes, label=label)
    axis.set(xlabel="score of the final model", ylabel=f"number of {unit}", title="Scores")
    axis.locator_params(axis="x", nbins=6)


def _draw_bounds(axis: Axes, conclusion: Conclusion) -> None:
    """Draws lower bounds and estimates as bars labelled with their values, and upper bounds as lines."""
    labels: list[str] = []
    assumptions: list[str] = []  # of light bars
    for row in list_rows(conclusion):
        if row.finding is None:  # an upper bound, or the epsilon for linear losses
            continue
        look = _choose_look(row)
        if look is _LIGHT_BAR and row.assumes.word not in assumptions:
            assumptions.append(row.assumes.word)
        axis.barh(len(labels), row.epsilon, height=0.7, **look)
        label = f"{_label_row(row, conclusion)} {at_least(row.epsilon, 2)}"
        labels.append(textwrap.fill(label, _LABEL_WIDTH))
    axis.set_yticks(range(len(labels)), labels, fontsize=8)
    axis.set_ylim(max(len(labels), 4), -1)  # downwards, with room for a few bars
    for upper in conclusion.upper_bounds:
        if math.isfinite(upper.epsilon):
            axis.axvline(
                upper.epsilon,
                color=UPPER,
                ls="-." if upper.last_model_only else ":",
                label=f"{upper.name} {at_most(upper.epsilon, 2)}",
            )
    axis.set_xlim(0, max(axis.get_xlim()[1], 0.1))
    axis.set_xlabel(f"epsilon at delta {show_level(conclusion.delta)}")
    title = "Lower bounds on epsilon"
    if assumptions:
        title += f"\nlight bars assume: {'; '.join(assumptions)}"
    axis.set_title(title, fontsize=9)


# The styles of bars, as keyword arguments for `Axes.barh`.
_SOLID_BAR = {"color": BOUND, "alpha": 0.8}
_LIGHT_BAR = {"facecolor": (BOUND, _LIGHT), "edgecolor": BOUND, "linewidth": 0.8}
_NO_BOUND_BAR = {"facecolor": "white", "edgecolor": FADED, "hatch": "///"}


def _choose_look(row: BoundRow) -> dict[str, Any]:
    """Returns a row's bar style: solid if the audit guarantees the bound's assumption, otherwise light.

    Estimates and refuted bounds are hatched.
    """
    if not isinstance(row.finding, Bound) or not row.finding.holds:
        return _NO_BOUND_BAR
    if row.assumes in _ENSURED_ASSUMPTIONS:
        return _SOLID_BAR
    return _LIGHT_BAR


def draw_trade_off(
    axis: Axes, conclusion: Conclusion, grid: Array, predicted_mu: float | None
) -> None:
    """Plots the empirical trade-off curve with its band, up to three Gaussian curves, and a claimed curve.

    Args:
      grid: (n,) ascending false-positive rates at which curves are plotted.
      predicted_mu: The mu of an ideal attack; None if unknown.
    """
    _draw_empirical(axis, conclusion, grid)
    mu = conclusion.gaussian.mu
    if mu is not None:
        color = FADED if conclusion.refutes_gaussian else BOUND
        label = f"mu ≥ {at_least(mu, 2)}{mark_gaussian(conclusion)}"
        _draw_gaussian(axis, grid, mu, label, color=color, ls="--")
    if predicted_mu is not None:
        label = f"predicted mu = {predicted_mu:.2f}"
        _draw_gaussian(axis, grid, predicted_mu, label, color=PREDICTED)
    upper_mu = conclusion.tightest_mu
    if upper_mu is not None and math.isfinite(upper_mu):
        _draw_gaussian(axis, grid, upper_mu, f"mu ≤ {at_most(upper_mu, 2)}", color=UPPER, ls=":")
    claim = conclusion.claim
    # A claim from the user's accountant (GIVEN) without mu is an (epsilon, delta) claim, which is not
    # plotted above.
    if claim is not None and claim.assumes == GIVEN and upper_mu is None:
        false_negative_rates = 1 - claim.power(grid)
        smallest = grid[0]  # the smallest rate that the axes show
        # For a large epsilon, the whole curve may lie below the axes.
        if false_negative_rates.max() > smallest:
            # Normal-deviate axes cannot show 0.
            shown = np.maximum(false_negative_rates, smallest / 2)
            axis.plot(grid, shown, color=UPPER, ls=":", label="claim")
    axis.set(xlabel="false-positive rate", ylabel="false-negative rate")


def _draw_gaussian(axis: Axes, grid: Array, mu: float, label: str, **look: Any) -> None:
    """Plots the mu-GDP trade-off curve at the false-positive rates `grid`; `look` is for `Axes.plot`."""
    rates = conversions.gaussian_trade_off(mu, grid)
    axis.plot(grid, rates, label=f"Gaussian, {label}", **look)


def draw_on_deviates(axis: Axes, conclusion: Conclusion, predicted_mu: float | None = None) -> None:
    """Plots trade-off curves on normal-deviate axes, which show Gaussian curves as lines of slope -1.

    Both axes show a rate r at Phi^-1(r) and extend from s to 1 - s. With n scores in the larger set, s is
    min(0.5 / n, 0.1). `predicted_mu` is the mu of an ideal attack; None if unknown.
    """
    smallest = min(0.5 / max(map(len, conclusion.worlds)), 0.1)
    end = special.ndtri(smallest)

    grid = special.ndtr(np.linspace(end, -end, _POINTS))
    draw_trade_off(axis, conclusion, grid, predicted_mu)

    deviates = (special.ndtri, special.ndtr)
    axis.set_xscale("function", functions=deviates)
    axis.set_yscale("function", functions=deviates)
    ends = (smallest, 1 - smallest)
    axis.set(xlim=ends, ylim=ends)
    for line in (axis.xaxis, axis.yaxis):
        line.set_major_locator(LogitLocator(nbins=6))
        line.set_major_formatter("{x:g}")
    axis.tick_params(labelsize=8)
    axis.set_title(f"Trade-off curve\n{describe_curve(conclusion)}".rstrip(), fontsize=9)


def _draw_empirical(axis: Axes, conclusion: Conclusion, grid: Array) -> None:
    """Plots the scores' empirical trade-off curve, with a band if each run has one canary.

    `grid` contains the false-positive rates of the band, in ascending order. Rates among n scores are clipped
    to [0.5 / n, 1 - 0.5 / n], because normal-deviate axes cannot show 0 and 1.
    """
    scores_in, scores_out = conclusion.worlds
    curve = curves.trade_off_curve(scores_in, scores_out, conclusion.confidence)
    if conclusion.has_one_canary:  # the band is valid only for independent scores
        low, high = np.clip(curve.band(grid), grid[0] / 2, 1 - grid[0] / 2)
        label = f"{show_percent(conclusion.confidence)} band"
        axis.fill_between(grid, low, high, color=OUT, alpha=0.25, lw=0, label=label)
    half_out = 0.5 / len(scores_out)
    half_in = 0.5 / len(scores_in)
    false_positives = np.clip(curve.false_positive_rate, half_out, 1 - half_out)
    false_negatives = np.clip(curve.false_negative_rate, half_in, 1 - half_in)
    # Reversed, so false-positive rates ascend.
    axis.step(
        false_positives[::-1], false_negatives[::-1], where="post", color=OUT, label="empirical"
    )
