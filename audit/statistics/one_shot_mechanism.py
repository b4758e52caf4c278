"""Algorithm 1 of the one-shot paper, simulated exactly: cosines of k uniform canaries with a noisy sum.

rho = sum of k unit vectors + sigma N(0, I_d) + data; the cosines are those of the canaries and rho. Only
the span of the canaries matters: a rotation makes them a lower-triangular k x k matrix with chi-distributed
diagonal, rows normalised (Bartlett's decomposition), and what lies outside of the span has a chi-squared
length. That is O(k^2) for any d.
"""

import numpy as np
from numpy.typing import NDArray

from audit.errors import require

Array = NDArray[np.float64]


def simulate(rng: np.random.Generator, canaries: int, dimension: int, sigma: float) -> Array:
    """The cosines (k,) of one audit without data; raises InputError unless 1 <= k < d and sigma >= 0."""
    return released(rng, rotated(rng, canaries, dimension), dimension, sigma)


def rotated(rng: np.random.Generator, canaries: int, dimension: int) -> Array:
    """k uniform canaries (k, k) in coordinates of their span; raises InputError unless 1 <= k < d."""
    fits = 1 <= canaries < dimension
    require(fits, f"`canaries={canaries}`: give at least 1, and fewer than the dimension, {dimension}")
    rows = np.zeros((canaries, canaries))
    for i in range(canaries):
        rows[i, :i] = rng.standard_normal(i)
        rows[i, i] = np.sqrt(rng.chisquare(dimension - i))
        rows[i, : i + 1] /= np.linalg.norm(rows[i, : i + 1])
    return rows


def released(rng: np.random.Generator, canaries: Array, dimension: int, sigma: float) -> Array:
    """The cosines (k,) of `rotated` canaries with one release; raises InputError for a negative sigma."""
    _require_noise(sigma)
    inside = canaries.sum(0) + sigma * rng.standard_normal(len(canaries))
    outside = sigma**2 * rng.chisquare(dimension - len(canaries))
    cosines: Array = canaries @ inside / np.sqrt(inside @ inside + outside)
    return cosines


def _require_noise(sigma: float) -> None:
    """In range, or InputError."""
    require(0 <= sigma < np.inf, f"sigma is {sigma}: give a finite number, at least 0")
