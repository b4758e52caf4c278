"""The LiDP paper's Gaussian mechanism (Section 4, Appendix E), simulated exactly at any dimension.

The mechanism releases the sum of its records plus sigma * N(0, I_d); canaries are uniform on the unit sphere
of R^d, and a score is the inner product of a canary with the release.

Inserted: only the span of the K canaries matters, in which a rotation makes them a lower-triangular K x K
matrix with chi-distributed diagonal, rows normalised (Bartlett's decomposition): O(n K^2) whatever d.
Fresh, on releases of their own with K - 1 canaries: given the release they are independent, and only its
length matters. A sum of length r and one more unit vector at the angle t have length^2 r^2 + 1 + 2 r cos t:
O(n K).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.errors import require
from audit.statistics.canaries import Sets

Array = NDArray[np.float64]
_ENTRIES = 4_000_000  # of a block's matrices


class GaussianMechanism(NamedTuple):
    """n runs of K canaries in R^d with noise of standard deviation sigma; sensitivity 1."""

    runs: int
    canaries: int
    dimension: int
    sigma: float


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


def _inserted(rng: np.random.Generator, setting: GaussianMechanism) -> Array:
    """Scores (n, K) of canaries on releases that hold them."""
    runs, canaries, dimension, sigma = setting
    rows = np.tril(rng.standard_normal((runs, canaries, canaries)), -1)
    diagonal = np.arange(canaries)
    rows[:, diagonal, diagonal] = np.sqrt(rng.chisquare(dimension - diagonal, (runs, canaries)))
    rows /= np.linalg.norm(rows, axis=2, keepdims=True)
    released = rows.sum(1) + sigma * rng.standard_normal((runs, canaries))
    scores: Array = np.matmul(rows, released[:, :, None])[:, :, 0]
    return scores


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
    """Cosines of independent uniform directions with a given one."""
    along = rng.standard_normal(shape)
    across = rng.chisquare(dimension - 1, shape)
    cosines: Array = along / np.sqrt(along**2 + across)
    return cosines
