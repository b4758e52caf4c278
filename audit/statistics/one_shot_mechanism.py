"""Algorithm 1 of the one-shot paper, simulated exactly: cosines of k uniform canaries and a noisy sum of them.

rho = sum of k unit vectors + sigma N(0, I_d) + data; the cosines are those of the canaries and rho. Only the span
of the canaries matters: a rotation makes them a lower-triangular k x k matrix with chi-distributed diagonal, rows
normalised (Bartlett's decomposition), and what lies outside of the span has a chi-squared length. That is O(k^2)
for any d; `directly` draws everything, O(k d).
"""

import numpy as np
from numpy.typing import NDArray

from audit.errors import require

Array = NDArray[np.float64]
_BLOCK = 64  # canaries of `directly` that are in memory at once


def simulate(rng: np.random.Generator, canaries: int, dimension: int, sigma: float) -> Array:
    """The cosines (k,) of one audit without data; raises InputError unless 1 <= k < d and sigma >= 0."""
    _require(canaries, dimension, sigma)
    rows = np.tril(rng.standard_normal((canaries, canaries)), -1)
    np.fill_diagonal(rows, np.sqrt(rng.chisquare(dimension - np.arange(canaries))))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    inside = rows.sum(0) + sigma * rng.standard_normal(canaries)
    outside = sigma**2 * rng.chisquare(dimension - canaries)
    cosines: Array = rows @ inside / np.sqrt(inside @ inside + outside)
    return cosines


def directly(rng: np.random.Generator, canaries: int, dimension: int, sigma: float) -> Array:
    """The same law by drawing canaries and noise in R^d, the former twice, block by block."""
    _require(canaries, dimension, sigma)
    seeds = rng.integers(2**63, size=-(-canaries // _BLOCK))
    released = sigma * rng.standard_normal(dimension)

    def blocks() -> list[tuple[int, int]]:
        return [
            (int(seed), min(_BLOCK, canaries - i * _BLOCK)) for i, seed in enumerate(seeds)
        ]

    for seed, size in blocks():
        released += _directions(seed, size, dimension).sum(0)
    length = np.linalg.norm(released)
    return np.concatenate([_directions(seed, size, dimension) @ released for seed, size in blocks()]) / length


def _directions(seed: int, size: int, dimension: int) -> Array:
    """Uniform unit vectors (size, d)."""
    rows = np.random.default_rng(seed).standard_normal((size, dimension))
    unit: Array = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


def _require(canaries: int, dimension: int, sigma: float) -> None:
    """Numbers in range, or InputError."""
    fits = 1 <= canaries < dimension
    require(fits, f"`canaries={canaries}`: give at least 1, and fewer than the dimension, {dimension}")
    require(0 <= sigma < np.inf, f"sigma is {sigma}: give a finite number, at least 0")
