"""Drawings of trade-off curves, and what the test of a Gaussian curve says, in figures' words and colours."""

from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray
from scipy import special

from audit.conclusions.conclusion import Conclusion, assumption_of
from audit.laws import conversions
from audit.methods import curves
from audit.methods.estimate import Finding
from audit.methods.level import show_percent
from audit.methods.method import GIVEN
from audit.report.style import BLACK, BOUND, FADED, OUT, PREDICTED, UPPER, VERMILION
from audit.report.table import at_least, at_most

Array = NDArray[np.float64]

_POINTS = 801  # false-positive rates at which a curve is drawn
_LONGEST_LABEL = 3  # decades below 1 down to which a label is written out, as 0.001
_MOST_DECADES = 4  # with more decades, only every second one has a tick


class CurveStatus(NamedTuple):
    """How figures show the result of the test of a Gaussian curve.

    Attributes:
      message: the result in words; empty where no test was made.
      color: the message's colour.
      mark: the words added to bounds that assume a Gaussian curve; empty where nothing speaks against it.
      faded: whether such bounds and curves are drawn in grey.
    """

    message: str
    color: str
    mark: str
    faded: bool = False


def describe_curve(conclusion: Conclusion) -> CurveStatus:
    """Returns how figures show what the test of whether the trade-off curve is Gaussian has shown.

    These are a message and its colour, and how bounds are drawn that assume such a curve: with a mark after
    the name, and in grey or not. Without a test, message and mark are empty.
    """
    curve = conclusion.curve
    if curve is None:  # no test
        return CurveStatus(message="", color=BLACK, mark="")
    p_value = curve.show_p_value()
    if curve.is_refuted:
        message = f"Gaussian curve refuted, {p_value}"
        return CurveStatus(message, color=VERMILION, mark="(refuted)", faded=True)
    result = f"{p_value}, power {curve.power:.0%}"
    if curve.is_doubted:  # the test has too little power
        # No mark is needed where the mechanism itself is a reason for a Gaussian curve.
        mark = "" if conclusion.reason else "(not confirmed)"
        return CurveStatus(f"Gaussian curve not confirmed, {result}", color=BLACK, mark=mark)
    return CurveStatus(f"no evidence against Gaussian, {result}", color=BLACK, mark="")


def find_mark(finding: Finding, conclusion: Conclusion) -> str:
    """Returns the mark of a bound or estimate that assumes a Gaussian curve, such as "(refuted)".

    Figures print it after the name. Empty for other bounds and estimates, and where nothing speaks against
    the curve.
    """
    if not assumption_of(finding).gaussian:
        return ""
    return describe_curve(conclusion).mark


def draw_trade_off(
    axis: Axes, conclusion: Conclusion, grid: Array, predicted_mu: float | None = None
) -> None:
    """Draws the empirical trade-off curve with its band, up to three Gaussian curves, and the claim's.

    The Gaussian curves have the lower bound on mu, the predicted mu and the smallest upper bound on mu, as
    far as these are known. A claim of epsilon and delta, which gives no mu, has a curve of its own.

    Args:
      axis: the panel to draw into.
      conclusion: the conclusion with the scores and the bounds on mu.
      grid: (n,), ascending false-positive rates at which curves are drawn.
      predicted_mu: mu as theory predicts it; None without a prediction.
    """
    _draw_empirical(axis, conclusion, grid)
    status = describe_curve(conclusion)
    color = FADED if status.faded else BOUND
    mu = conclusion.gaussian.mu
    if mu is not None:
        label = f"mu ≥ {at_least(mu, 2)} {status.mark}".strip()
        _draw_gaussian(axis, label, mu, grid, color=color, ls="--")
    if predicted_mu is not None:
        label = f"predicted mu = {predicted_mu:.2f}"
        _draw_gaussian(axis, label, predicted_mu, grid, color=PREDICTED, ls="-", lw=4, alpha=0.55)
    upper = conclusion.tightest_mu
    if upper is not None and np.isfinite(upper):
        _draw_gaussian(axis, f"mu ≤ {at_most(upper, 2)}", upper, grid, color=UPPER, ls=":")
    if is_claim_drawn(conclusion):
        assert conclusion.claim is not None
        # The least false-negative rates that the claim allows. Axes of normal deviates cannot show 0.
        allowed = np.clip(1 - conclusion.claim.power(grid), grid[0] / 2, None)
        axis.plot(grid, allowed, color=UPPER, ls=":", label="claim")
    axis.set(xlabel="false-positive rate", ylabel="false-negative rate")


def is_claim_drawn(conclusion: Conclusion) -> bool:
    """Returns whether the claim has a trade-off curve of its own among the curves that are drawn.

    It does for a claim of epsilon and delta whose curve axes of normal deviates show; that of a large epsilon
    lies below them. Where mu is bounded, the Gaussian curve of mu takes its place.
    """
    claim = conclusion.claim
    if claim is None or claim.assumes != GIVEN or conclusion.tightest_mu is not None:
        return False
    least = _find_least_rate(conclusion)
    highest = 1 - float(claim.power(least))  # of the curve within the panel, since curves descend
    return highest > least


def draw_on_deviates(axis: Axes, conclusion: Conclusion, predicted_mu: float | None = None) -> None:
    """Draws trade-off curves on axes of normal deviates, where Gaussian curves are lines of slope -1.

    The axes reach from the rate of half an error (at most 0.1) to 1 minus that. The result of the Gaussian
    curve's test is written above the panel.

    Args:
      axis: the panel to draw into.
      conclusion: the conclusion with the scores and the bounds on mu.
      predicted_mu: mu as theory predicts it; None without a prediction.
    """
    least = _find_least_rate(conclusion)
    end = special.ndtri(least)
    # Rates that are evenly spaced as normal deviates, as they are on the axes.
    grid = special.ndtr(np.linspace(end, -end, _POINTS))
    draw_trade_off(axis, conclusion, grid, predicted_mu)

    axis.set_xscale("function", functions=(special.ndtri, special.ndtr))
    axis.set_yscale("function", functions=(special.ndtri, special.ndtr))
    axis.set(xlim=(least, 1 - least), ylim=(least, 1 - least))
    ticks, labels = _make_ticks(least)
    axis.set_xticks(ticks, labels, fontsize=8)
    axis.set_yticks(ticks, labels, fontsize=8)

    status = describe_curve(conclusion)
    look = {"fontsize": 8, "color": status.color, "ha": "center", "va": "bottom"}
    axis.text(0.5, 1.01, status.message, look, transform=axis.transAxes)


def _find_least_rate(conclusion: Conclusion) -> float:
    """Returns the rate at which axes of normal deviates begin: that of half an error, and at most 0.1."""
    most_scores = max(len(conclusion.scores_in), len(conclusion.scores_out))
    return min(0.5 / most_scores, 0.1)


def _make_ticks(least: float) -> tuple[list[float], list[str]]:
    """Returns the ticks of an axis of normal deviates, rates from `least` to 1 - `least`, and their labels.

    Ticks are at 1/2, at powers of 10, and at 1 minus these powers. Over more than four decades only every
    second power has ticks.
    """
    count = int(np.floor(-np.log10(least)))  # powers of 10 below 1 that are not below `least`
    step = 1 if count <= _MOST_DECADES else 2
    rates = [0.5]
    labels = ["0.5"]
    for decade in range(1, count + 1, step):
        rate = 10.0**-decade
        rates = [rate, *rates, 1 - rate]
        if decade <= _LONGEST_LABEL:
            labels = [f"{rate:g}", *labels, f"{1 - rate:g}"]
        else:  # 1 minus so small a rate is too long to write out
            labels = [f"1e-{decade}", *labels, ""]
    return rates, labels


def _draw_empirical(axis: Axes, conclusion: Conclusion, grid: Array) -> None:
    """Draws the scores' empirical trade-off curve, with a band at the conclusion's confidence.

    Axes of normal deviates cannot show 0 and 1. Therefore the curve's rates keep at least half an error from
    them, and the band at least half of the grid's first rate. There is no band where runs have several
    canaries.

    Args:
      axis: the panel to draw into.
      conclusion: the conclusion with the scores.
      grid: (n,), ascending false-positive rates at which the band is drawn.
    """
    curve = curves.trade_off_curve(
        conclusion.scores_in, conclusion.scores_out, conclusion.confidence
    )
    if conclusion.has_one_canary:  # the band is for independent scores
        band = curve.band(grid)
        low = np.clip(band.lower, grid[0] / 2, None)
        high = np.clip(band.upper, None, 1 - grid[0] / 2)
        label = f"{show_percent(curve.confidence)} band"
        axis.fill_between(grid, low, high, color=OUT, alpha=0.25, lw=0, label=label)
    false_positives = _clip_rates(curve.false_positive_rate, len(conclusion.scores_out))
    false_negatives = _clip_rates(curve.false_negative_rate, len(conclusion.scores_in))
    # Reversed, so that false-positive rates ascend.
    axis.step(
        false_positives[::-1], false_negatives[::-1], where="post", color=OUT, label="empirical"
    )


def _clip_rates(rates: Array, scores: int) -> Array:
    """Returns error rates among a number of scores, clipped to at least half an error from 0 and 1."""
    return np.clip(rates, 0.5 / scores, 1 - 0.5 / scores)


def _draw_gaussian(axis: Axes, name: str, mu: float, grid: Array, **look: Any) -> None:
    """Draws the Gaussian trade-off curve of mu over a grid of false-positive rates.

    `name` goes into the legend, and `look` to matplotlib's `plot`.
    """
    axis.plot(grid, conversions.gaussian_trade_off(mu, grid), label=f"Gaussian, {name}", **look)
