"""Trade-off curves, drawn."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from audit.statistics import conversions, curves
from audit.statistics.conclusion import Conclusion
from audit.statistics.estimate import IF_GAUSSIAN
from experiments.plots.style import BOUND, OUT, PREDICTED, UPPER


def draw_trade_off(
    axis: Axes,
    conclusion: Conclusion,
    grid: NDArray[np.float64],
    *,
    opacity: float,
    predicted_mu: float | None = None,
) -> None:
    """The empirical curve in its band, and Gaussian curves at the mu of `if_gaussian`, the predicted one and
    the upper bound's, where they are known, over false-positive rates (n,)."""
    _draw_empirical(axis, conclusion, grid, opacity)
    mu, upper = conclusion.bound(IF_GAUSSIAN).mu or 0.0, conclusion.mu_upper_bound
    _draw_gaussian(axis, "lower bound", mu, grid, color=BOUND, ls="--")
    if predicted_mu is not None:
        _draw_gaussian(axis, "predicted", predicted_mu, grid, color=PREDICTED, ls="-", lw=4, alpha=0.55)
    if upper is not None and np.isfinite(upper):
        _draw_gaussian(axis, "upper bound", upper, grid, color=UPPER, ls=":")
    axis.set(xlabel="false-positive rate", ylabel="false-negative rate")


def _draw_empirical(axis: Axes, conclusion: Conclusion, grid: NDArray[np.float64], opacity: float) -> None:
    """The curve of the scores in a band at the conclusion's confidence."""
    curve = curves.trade_off_curve(conclusion.scores_in, conclusion.scores_out, conclusion.confidence)
    (low_x, low_y), (high_x, high_y) = curve.lower(), curve.upper()
    low = np.interp(grid, low_x[::-1], low_y[::-1])
    high = np.interp(grid, high_x[::-1], high_y[::-1], left=1.0)
    axis.fill_between(grid, low, high, color=OUT, alpha=opacity, lw=0, label=f"{curve.confidence:.0%} band")
    axis.plot(curve.false_positive_rate, curve.false_negative_rate, color=OUT, label="empirical")


def _draw_gaussian(axis: Axes, name: str, mu: float, grid: NDArray[np.float64], **look: Any) -> None:
    """G_mu and its label."""
    rates = conversions.gaussian_trade_off(mu, grid)
    axis.plot(grid, rates, label=f"Gaussian, {name} mu = {mu:.2f}", **look)
