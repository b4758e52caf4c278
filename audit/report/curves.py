"""Trade-off curves, drawn, and what the scores say of a Gaussian one, in the words and colours of figures."""

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
_LABELLED = 3  # decades below 1 whose label is short


class Standing(NamedTuple):
    """What the test found and the colour of that; a mark for what assumes a Gaussian curve, empty where
    nothing speaks against the assumption, and whether such is faded."""

    found: str
    color: str
    mark: str
    faded: bool = False


def standing(conclusion: Conclusion) -> Standing:
    """How a Gaussian curve stands after its test; nothing is said where it was not made."""
    if conclusion.curve is None:
        return Standing("", BLACK, "")
    if conclusion.refutes_gaussian:
        return Standing(f"Gaussian curve refuted, {conclusion.p_value()}", VERMILION, "(refuted)", True)
    tested = f"{conclusion.p_value()}, power {conclusion.curve_power:.0%}"
    if conclusion.doubts_gaussian:
        return Standing(
            f"Gaussian curve not confirmed, {tested}", BLACK, "" if conclusion.reason else "(not confirmed)"
        )
    return Standing(f"no evidence against Gaussian, {tested}", BLACK, "")


def mark(finding: Finding, conclusion: Conclusion) -> str:
    """The mark of a bound that assumes a Gaussian curve; empty for other findings."""
    return standing(conclusion).mark if assumption_of(finding).gaussian else ""


def draw_trade_off(
    axis: Axes, conclusion: Conclusion, grid: Array, predicted_mu: float | None = None
) -> None:
    """The empirical curve in its band, and Gaussian curves at the mu of `if_gaussian`, the predicted one and
    the tightest upper bound's, where they are known, over false-positive rates (n,)."""
    _draw_empirical(axis, conclusion, grid)
    mu, upper = conclusion.gaussian.mu or 0.0, conclusion.tightest_mu
    state = standing(conclusion)
    color = FADED if state.faded else BOUND
    if conclusion.gaussian.mu is not None:
        proven = f"mu ≥ {at_least(mu, 2)} {state.mark}".strip()
        _draw_gaussian(axis, proven, mu, grid, color=color, ls="--")
    if predicted_mu is not None:
        label = f"predicted mu = {predicted_mu:.2f}"
        _draw_gaussian(axis, label, predicted_mu, grid, color=PREDICTED, ls="-", lw=4, alpha=0.55)
    if upper is not None and np.isfinite(upper):
        _draw_gaussian(axis, f"mu ≤ {at_most(upper, 2)}", upper, grid, color=UPPER, ls=":")
    axis.set(xlabel="false-positive rate", ylabel="false-negative rate")


def draw_on_deviates(axis: Axes, conclusion: Conclusion, predicted_mu: float | None = None) -> None:
    """`draw_trade_off` on axes of normal deviates, where a Gaussian curve is a straight line of slope -1.

    They reach from half a run's rate to its mirror image; above the panel stands what the test found.
    """
    least = min(0.5 / max(len(conclusion.scores_in), len(conclusion.scores_out)), 0.1)
    end = special.ndtri(least)
    draw_trade_off(axis, conclusion, special.ndtr(np.linspace(end, -end, _POINTS)), predicted_mu)
    axis.set_xscale("function", functions=(special.ndtri, special.ndtr))
    axis.set_yscale("function", functions=(special.ndtri, special.ndtr))
    axis.set(xlim=(least, 1 - least), ylim=(least, 1 - least))
    ticks, labels = _ticks(least)
    axis.set_xticks(ticks, labels, fontsize=8)
    axis.set_yticks(ticks, labels, fontsize=8)
    state = standing(conclusion)
    look = {"fontsize": 8, "color": state.color, "ha": "center", "va": "bottom"}
    axis.text(0.5, 1.01, state.found, look, transform=axis.transAxes)


def _ticks(least: float) -> tuple[list[float], list[str]]:
    decades = range(1, int(np.floor(-np.log10(least))) + 1)
    shown = decades[:: 1 if len(decades) <= 4 else 2]
    low = [(10.0**-d, f"{10.0**-d:g}" if d <= _LABELLED else f"1e-{d}") for d in reversed(shown)]
    high = [(1 - 10.0**-d, f"{1 - 10.0**-d:g}" if d <= _LABELLED else "") for d in shown]
    rates, labels = zip(*low, (0.5, "0.5"), *high, strict=True)
    return list(rates), list(labels)


def _draw_empirical(axis: Axes, conclusion: Conclusion, grid: Array) -> None:
    """The scores' curve, never nearer to 0 or 1 than half a run, in a band at the conclusion's confidence;
    without a band where runs have several canaries."""
    n_in, n_out = len(conclusion.scores_in), len(conclusion.scores_out)
    curve = curves.trade_off_curve(conclusion.scores_in, conclusion.scores_out, conclusion.confidence)
    if conclusion.design is None:  # the band counts on independent scores
        band = curve.band(grid)
        low, high = np.clip(band.lower, grid[0] / 2, None), np.clip(band.upper, None, 1 - grid[0] / 2)
        label = f"{100 * curve.confidence:.10g}% band"
        axis.fill_between(grid, low, high, color=OUT, alpha=0.25, lw=0, label=label)
    rates = _inside(curve.false_positive_rate, n_out), _inside(curve.false_negative_rate, n_in)
    axis.step(*(one[::-1] for one in rates), where="post", color=OUT, label="empirical")


def _inside(rates: Array, runs: int) -> Array:
    """Rates at least half a run away from 0 and 1."""
    return np.clip(rates, 0.5 / runs, 1 - 0.5 / runs)


def _draw_gaussian(axis: Axes, name: str, mu: float, grid: Array, **look: Any) -> None:
    axis.plot(grid, conversions.gaussian_trade_off(mu, grid), label=f"Gaussian, {name}", **look)
