"""The LiDP paper's audit of the Gaussian mechanism (Section 4, Appendix E), as its curves need it.

Thresholds are chosen on runs of their own, which nobody counts, from 500 between the least 10% quantile and
the largest 90% quantile of the two worlds' scores, one an order. That window caps the curves (Errata L2).
epsilon is the inequality's first direction alone (Errata L3), below 0 where the limits say so.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from audit.statistics import exchangeable
from audit.statistics.canaries import Sets
from experiments.lidp.gaussian_mechanism import GaussianMechanism, simulate

Array = NDArray[np.float64]

ORDERS = (1, 2, 4)
TUNING_SEED = 1000
_THRESHOLDS, _QUANTILE = 500, 0.1


class Found(NamedTuple):
    """One order's epsilon, and |mu_2 - mu_1^2| and |mu_4 - mu_2^2| of the inserted canaries' bits, None where
    a run has too few canaries."""

    epsilon: float
    second: float | None
    fourth: float | None


def usable_orders(canaries: int) -> tuple[int, ...]:
    """The orders for so many canaries a run."""
    return tuple(order for order in ORDERS if order <= canaries)


def choose(setting: GaussianMechanism, delta: float, confidence: float) -> dict[int, float]:
    """The threshold of every usable order, the best one on runs for that alone."""
    design, orders = simulate(setting, TUNING_SEED), usable_orders(setting.canaries)
    grid, best = _window(design), {}
    for order in orders:
        values = [_epsilon(design, threshold, order, delta, confidence) for threshold in grid]
        best[order] = float(grid[int(np.argmax(values))])
    return best


def examine(design: Sets, threshold: float, order: int, delta: float, confidence: float) -> Found:
    """What one order finds at a threshold."""
    canaries = design.inserted.shape[1]
    means = exchangeable.moments(_present(design.inserted, threshold), canaries, min(canaries, 4))
    second = abs(means[2] - means[1] ** 2) if canaries >= 2 else None
    fourth = abs(means[4] - means[2] ** 2) if canaries >= 4 else None
    return Found(_epsilon(design, threshold, order, delta, confidence), second, fourth)


def limit(setting: GaussianMechanism, delta: float) -> float:
    """epsilon that no number of runs exceeds: at the window's upper end, where the worlds' scores are normal
    with means 1 and 0 and variance sigma^2 + (K - 1) / d."""
    spread = np.sqrt(setting.sigma**2 + (setting.canaries - 1) / setting.dimension)
    end = 1 + spread * special.ndtri(1 - _QUANTILE)
    return float(np.log((_QUANTILE - delta) / special.ndtr(-end / spread)))


def _window(design: Sets) -> Array:
    """The thresholds that are tried."""
    worlds = design.pooled()
    low = min(np.quantile(world, _QUANTILE) for world in worlds)
    high = max(np.quantile(world, 1 - _QUANTILE) for world in worlds)
    return np.linspace(low, high, _THRESHOLDS)


def _present(scores: Array, threshold: float) -> Array:
    """How many canaries of each run are declared present (n,)."""
    found: Array = (scores >= threshold).sum(1).astype(np.float64)
    return found


def _epsilon(design: Sets, threshold: float, order: int, delta: float, confidence: float) -> float:
    """log((p_1 - delta) / p_0) from Wilson's limits, each at half the error; 0 where p_1 is at most delta."""
    error, wilson = (1 - confidence) / 2, exchangeable.wilson
    canaries = design.inserted.shape[1]
    p_1 = exchangeable.limits(_present(design.inserted, threshold), canaries, order, error, wilson)[0]
    p_0 = exchangeable.limits(_present(design.fresh, threshold), canaries, order, error, wilson)[1]
    return float(np.log((p_1 - delta) / p_0)) if p_1 > delta else 0.0
