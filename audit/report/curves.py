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
from audit.report.style import BLACK, BOUND, FADED, OUT, PREDICTED, UPPER, VERMILION
from audit.report.table import at_least, at_most

Array = NDArray[np.float64]

_POINTS = 801  # of a grid
_LONGEST_LABEL = 3  # decades below 1 that a label writes out, as 0.001
_MOST_DECADES = 4  # that all have a tick; of more, every second one has


class CurveStatus(NamedTuple):
    """What the test says of a Gaussian curve.

    Attributes:
      message: for people; empty where no test was made.
      color: of the message.
      mark: for what assumes a Gaussian curve; empty where nothing speaks against the assumption.
      faded: whether what assumes a Gaussian curve is drawn faded.
    """

    message: str
    color: str
    mark: str
    faded: bool = False


def describe_curve(conclusion: Conclusion) -> CurveStatus:
    """Returns the result of the test of a Gaussian curve, as figures show it."""
    if conclusion.curve is None:
        return CurveStatus("", BLACK, "")
    p_value = conclusion.p_value()
    if conclusion.refutes_gaussian:
        return CurveStatus(f"Gaussian curve refuted, {p_value}", VERMILION, "(refuted)", faded=True)
    result = f"{p_value}, power {conclusion.curve_power:.0%}"
    if conclusion.doubts_gaussian:
        # Nothing needs a mark where the mechanism itself is a reason for a Gaussian curve.
        mark = "" if conclusion.reason else "(not confirmed)"
        return CurveStatus(f"Gaussian curve not confirmed, {result}", BLACK, mark)
    return CurveStatus(f"no evidence against Gaussian, {result}", BLACK, "")


def find_mark(finding: Finding, conclusion: Conclusion) -> str:
    """Returns what a figure adds to a bound's name if it assumes a Gaussian curve: "(refuted)", say.

    Empty for other bounds and estimates, and where nothing speaks against the curve.
    """
    if not assumption_of(finding).gaussian:
        return ""
    return describe_curve(conclusion).mark


def draw_trade_off(
    axis: Axes, conclusion: Conclusion, grid: Array, predicted_mu: float | None = None
) -> None:
    """Draws the empirical curve in its band, and a Gaussian curve for every mu that is not None.

    These are at the mu of `if_gaussian`, at the predicted mu, and at that of the tightest upper bound.

    Args:
      axis: to draw into.
      conclusion: whose scores, bounds and curve are drawn.
      grid: false-positive rates (n,) at which curves are drawn.
      predicted_mu: mu as theory predicts it, if it does.
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
    axis.set(xlabel="false-positive rate", ylabel="false-negative rate")


def draw_on_deviates(axis: Axes, conclusion: Conclusion, predicted_mu: float | None = None) -> None:
    """Draws trade-off curves on axes of normal deviates, where Gaussian curves are lines of slope -1.

    The axes reach from half a run's rate to its mirror image. What the test of the Gaussian curve says is
    written above the panel.

    Args:
      axis: to draw into.
      conclusion: whose scores, bounds and curve are drawn.
      predicted_mu: mu as theory predicts it, if it does.
    """
    most_runs = max(len(conclusion.scores_in), len(conclusion.scores_out))
    least = min(0.5 / most_runs, 0.1)
    end = special.ndtri(least)
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


def _make_ticks(least: float) -> tuple[list[float], list[str]]:
    """Returns ticks of an axis of normal deviates: rates from `least` to 1 - `least`, and their labels.

    They are 1/2, powers of 10, and 1 less these; of more than four decades every second power.
    """
    count = int(np.floor(-np.log10(least)))
    step = 1 if count <= _MOST_DECADES else 2
    rates = [0.5]
    labels = ["0.5"]
    for decade in range(1, count + 1, step):
        rate = 10.0**-decade
        rates = [rate, *rates, 1 - rate]
        if decade <= _LONGEST_LABEL:
            labels = [f"{rate:g}", *labels, f"{1 - rate:g}"]
        else:
            labels = [f"1e-{decade}", *labels, ""]
    return rates, labels


def _draw_empirical(axis: Axes, conclusion: Conclusion, grid: Array) -> None:
    """Draws the scores' empirical trade-off curve, in a band at the confidence.

    Rates are clipped to half a run from 0 and 1, which the axes of deviates cannot show. There is no band
    where runs have several canaries.

    Args:
      axis: to draw into.
      conclusion: whose scores are drawn.
      grid: false-positive rates (n,), ascending, at which the band is drawn.
    """
    curve = curves.trade_off_curve(
        conclusion.scores_in, conclusion.scores_out, conclusion.confidence
    )
    if conclusion.has_one_canary:  # the band counts on independent scores
        band = curve.band(grid)
        low = np.clip(band.lower, grid[0] / 2, None)
        high = np.clip(band.upper, None, 1 - grid[0] / 2)
        label = f"{100 * curve.confidence:.10g}% band"
        axis.fill_between(grid, low, high, color=OUT, alpha=0.25, lw=0, label=label)
    false_positives = _clip_rates(curve.false_positive_rate, len(conclusion.scores_out))
    false_negatives = _clip_rates(curve.false_negative_rate, len(conclusion.scores_in))
    axis.step(
        false_positives[::-1], false_negatives[::-1], where="post", color=OUT, label="empirical"
    )


def _clip_rates(rates: Array, runs: int) -> Array:
    """Returns rates clipped to at least half a run from 0 and 1."""
    return np.clip(rates, 0.5 / runs, 1 - 0.5 / runs)


def _draw_gaussian(axis: Axes, name: str, mu: float, grid: Array, **look: Any) -> None:
    """Draws a Gaussian curve over false-positive rates."""
    axis.plot(grid, conversions.gaussian_trade_off(mu, grid), label=f"Gaussian, {name}", **look)
