"""Drawings of trade-off curves, and what the test of a Gaussian curve says, in figures' words and colours."""

from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray
from scipy import special

from audit.conclusions.conclusion import Conclusion
from audit.laws import conversions
from audit.methods import curves
from audit.methods.level import show_percent
from audit.methods.method import GIVEN
from audit.report.style import BLACK, BOUND, FADED, OUT, PREDICTED, UPPER, VERMILION
from audit.report.table import at_least, at_most

Array = NDArray[np.float64]

_POINTS = 801  # false-positive rates at which a curve is drawn
_MAX_DECADES = 4  # with more decades, only every second one has a tick


class CurveStatus(NamedTuple):
    """How figures show the result of the test of a Gaussian curve.

    Attributes:
      message: the result in words; empty where no test was made.
      mark: the words added to bounds that assume a Gaussian curve; empty where nothing speaks against it.
      faded: whether such bounds and curves are drawn in grey.
    """

    message: str
    mark: str
    faded: bool = False


def describe_curve(conclusion: Conclusion) -> CurveStatus:
    """Returns how figures show what the test of whether the trade-off curve is Gaussian has shown."""
    curve = conclusion.curve
    if curve is None:
        return CurveStatus(message="", mark="")
    p_value = curve.show_p_value()
    if curve.is_refuted:
        return CurveStatus(f"Gaussian curve refuted, {p_value}", mark="(refuted)", faded=True)
    result = f"{p_value}, power {curve.power:.0%}"
    if curve.is_doubted:  # the test has too little power
        # No mark is needed where the mechanism itself is a reason for a Gaussian curve.
        mark = "(not confirmed)"
        if conclusion.reason:
            mark = ""
        return CurveStatus(f"Gaussian curve not confirmed, {result}", mark)
    return CurveStatus(f"no evidence against Gaussian, {result}", mark="")


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
    gaussian = []  # mu of each Gaussian curve, and its look
    mu = conclusion.gaussian.mu
    if mu is not None:
        label = f"mu ≥ {at_least(mu, 2)} {status.mark}".strip()
        look: dict[str, Any] = {"color": FADED if status.faded else BOUND, "ls": "--"}
        gaussian.append((mu, label, look))
    if predicted_mu is not None:
        look = {"color": PREDICTED, "ls": "-", "lw": 4, "alpha": 0.55}
        gaussian.append((predicted_mu, f"predicted mu = {predicted_mu:.2f}", look))
    upper = conclusion.tightest_mu
    if upper is not None and np.isfinite(upper):
        gaussian.append((upper, f"mu ≤ {at_most(upper, 2)}", {"color": UPPER, "ls": ":"}))
    for mu, label, look in gaussian:
        power = conversions.gaussian_trade_off(mu, grid)
        axis.plot(grid, power, label=f"Gaussian, {label}", **look)
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

    count = int(-np.log10(least))  # powers of 10 below 1 that are not below `least`
    step = 2
    if count <= _MAX_DECADES:
        step = 1
    low = [10.0**-decade for decade in range(1, count + 1, step)]
    ticks = [*reversed(low), 0.5, *(1 - rate for rate in low)]
    labels = [f"{tick:g}" for tick in ticks]
    deviates = {"functions": (special.ndtri, special.ndtr)}
    axis.set_xscale("function", **deviates)
    axis.set_yscale("function", **deviates)
    axis.set(xlim=(least, 1 - least), ylim=(least, 1 - least))
    axis.set_xticks(ticks, labels, fontsize=8)
    axis.set_yticks(ticks, labels, fontsize=8)

    status = describe_curve(conclusion)
    look = {"fontsize": 8, "ha": "center", "va": "bottom"}
    look["color"] = BLACK
    if status.faded:
        look["color"] = VERMILION
    axis.text(0.5, 1.01, status.message, look, transform=axis.transAxes)


def _find_least_rate(conclusion: Conclusion) -> float:
    """Returns the rate at which axes of normal deviates begin: that of half an error, and at most 0.1."""
    return min(0.5 / max(map(len, conclusion.worlds)), 0.1)


def _draw_empirical(axis: Axes, conclusion: Conclusion, grid: Array) -> None:
    """Draws the scores' empirical trade-off curve, with a band if runs have a single canary.

    Axes of normal deviates cannot show 0 and 1. So the curve's rates keep at least half an error from them,
    and the band at least half of the grid's first rate.
    """
    curve = curves.trade_off_curve(*conclusion.worlds, conclusion.confidence)
    if conclusion.has_one_canary:  # the band is for independent scores
        band = curve.band(grid)
        low, high = np.clip([band.lower, band.upper], grid[0] / 2, 1 - grid[0] / 2)
        label = f"{show_percent(curve.confidence)} band"
        axis.fill_between(grid, low, high, color=OUT, alpha=0.25, lw=0, label=label)
    rates = []
    worlds = (curve.false_negative_rate, curve.false_positive_rate)
    for world, scores in zip(worlds, conclusion.worlds, strict=True):
        half_an_error = 0.5 / len(scores)
        # Reversed, so that false-positive rates ascend.
        rates.append(np.clip(world, half_an_error, 1 - half_an_error)[::-1])
    false_negatives, false_positives = rates
    axis.step(false_positives, false_negatives, where="post", color=OUT, label="empirical")
