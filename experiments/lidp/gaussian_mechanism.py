"""The LiDP paper's Gaussian mechanism (Section 4, Appendix E), simulated exactly at any dimension, and
audited as the paper's curves need it.

The mechanism releases the sum of its records plus sigma * N(0, I_d); canaries are uniform on the unit sphere
of R^d, and a score is the inner product of a canary with the release.

Inserted: only the span of the K canaries matters, in which a rotation makes them a lower-triangular K x K
matrix with chi-distributed diagonal, rows normalised (Bartlett's decomposition): O(n K^2) whatever d.
Fresh, on releases of their own with K - 1 canaries: given the release they are independent, and only its
length matters. A sum of length r and one more unit vector at the angle t have length^2 r^2 + 1 + 2 r cos t:
O(n K).

The audit's thresholds are chosen on runs of their own, which nobody counts, from 500 between the least 10%
quantile and the largest 90% quantile of the two worlds' scores, one an order. That window caps the curves
(Errata L2). epsilon is the inequality's first direction alone (Errata L3), below 0 where the limits say so.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from audit.errors import require
from audit.statistics import lifted
from audit.statistics.canaries import Sets

Array = NDArray[np.float64]
ORDERS = (1, 2, 4)
_ENTRIES = 4_000_000  # of a block's matrices
_THRESHOLDS, _QUANTILE = 500, 0.1


class GaussianMechanism(NamedTuple):
    """n runs of K canaries in R^d with noise of standard deviation sigma; sensitivity 1."""

    runs: int
    canaries: int
    dimension: int
    sigma: float


class Found(NamedTuple):
    """One order's epsilon, |mu_2 - mu_1^2| and |mu_4 - mu_2^2| of bits; None for too few canaries."""

    epsilon: float
    second: float | None
    fourth: float | None


def simulate(setting: GaussianMechanism, seed: int) -> Sets:
    """Scores (n, K) of inserted canaries and, of n further runs with K - 1 canaries, (n, K) of fresh ones
    (LiDP paper, Algorithm 1; Errata L5). Raises InputError for K > d, or d < 2."""
    runs, canaries, dimension, _ = setting
    require(2 <= dimension >= canaries, f"`dimension={dimension}`: give at least 2, and as many as canaries")
    rng = np.random.default_rng(seed)
    block = max(_ENTRIES // canaries**2, 1)
    sizes = [min(block, runs - start) for start in range(0, runs, block)]
    inserted = np.concatenate([_inserted(rng, setting._replace(runs=size)) for size in sizes])
    return Sets(inserted, _fresh(rng, setting))


def choose(design: Sets, delta: float, confidence: float) -> dict[int, float]:
    """The best threshold on some runs of every order that their number of canaries allows."""
    worlds, canaries = design.pooled(), design.inserted.shape[1]
    low = min(np.quantile(world, _QUANTILE) for world in worlds)
    high = max(np.quantile(world, 1 - _QUANTILE) for world in worlds)
    grid, best = np.linspace(low, high, _THRESHOLDS), {}
    for order in (order for order in ORDERS if order <= canaries):
        values = [_epsilon(design, threshold, order, delta, confidence) for threshold in grid]
        best[order] = float(grid[int(np.argmax(values))])
    return best


def examine(design: Sets, threshold: float, order: int, delta: float, confidence: float) -> Found:
    """What one order finds at a threshold."""
    canaries = design.inserted.shape[1]
    means = lifted.moments(_present(design.inserted, threshold), canaries, min(canaries, 4))
    second = abs(means[2] - means[1] ** 2) if canaries >= 2 else None
    fourth = abs(means[4] - means[2] ** 2) if canaries >= 4 else None
    return Found(_epsilon(design, threshold, order, delta, confidence), second, fourth)


def limit(sigma: float, delta: float) -> float:
    """epsilon that no number of runs with one canary exceeds: at the window's upper end, where the worlds'
    scores are normal with means 1 and 0 and standard deviation sigma."""
    end = 1 + sigma * special.ndtri(1 - _QUANTILE)
    return float(np.log((_QUANTILE - delta) / special.ndtr(-end / sigma)))


def _inserted(rng: np.random.Generator, setting: GaussianMechanism) -> Array:
    """Scores (n, K) of canaries on releases that hold them."""
    runs, canaries, dimension, sigma = setting
    rows = np.tril(rng.standard_normal((runs, canaries, canaries)), -1)
    diagonal = np.arange(canaries)
    rows[:, diagonal, diagonal] = np.sqrt(rng.chisquare(dimension - diagonal, (runs, canaries)))
    rows /= np.linalg.norm(rows, axis=2, keepdims=True)
    released = rows.sum(1) + sigma * rng.standard_normal((runs, canaries))
    return np.asarray(np.matmul(rows, released[:, :, None])[:, :, 0])


def _fresh(rng: np.random.Generator, setting: GaussianMechanism) -> Array:
    """Scores (n, K) of canaries on releases that hold K - 1 others."""
    runs, canaries, dimension, sigma = setting
    length = np.zeros(runs)
    for _ in range(canaries - 1):
        length = np.sqrt(np.maximum(length**2 + 1 + 2 * length * _cosines(rng, (runs,), dimension), 0.0))
    along = length + sigma * rng.standard_normal(runs)
    released = np.sqrt(along**2 + sigma**2 * rng.chisquare(dimension - 1, runs))
    return released[:, None] * _cosines(rng, (runs, canaries), dimension)


def _cosines(rng: np.random.Generator, shape: tuple[int, ...], dimension: int) -> Array:
    along = rng.standard_normal(shape)
    across = rng.chisquare(dimension - 1, shape)
    return np.asarray(along / np.sqrt(along**2 + across))


def _present(scores: Array, threshold: float) -> Array:
    return np.asarray((scores >= threshold).sum(1), np.float64)


def _epsilon(design: Sets, threshold: float, order: int, delta: float, confidence: float) -> float:
    """log((p_1 - delta) / p_0) from Wilson's limits, each at half the error; 0 where p_1 is at most delta."""
    error, wilson = (1 - confidence) / 2, lifted.wilson
    canaries = design.inserted.shape[1]
    p_1 = lifted.exchangeable_limits(_present(design.inserted, threshold), canaries, order, error, wilson)[0]
    p_0 = lifted.exchangeable_limits(_present(design.fresh, threshold), canaries, order, error, wilson)[1]
    return float(np.log((p_1 - delta) / p_0)) if p_1 > delta else 0.0
