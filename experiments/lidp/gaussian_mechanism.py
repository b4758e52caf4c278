"""The LiDP paper's Gaussian mechanism (Section 4, Appendix E), simulated exactly at any dimension.

The mechanism releases the sum of its records plus sigma * N(0, I_d); canaries are uniform on the unit sphere
of R^d, and a score is the inner product of a canary with the release. Only the span of the K canaries
matters, in which a rotation makes them a lower-triangular K x K matrix with chi-distributed diagonal, rows
normalised (Bartlett's decomposition): O(n K^2) whatever d.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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
    """Scores (n, K) of inserted canaries and (n, K) of fresh ones, on outputs with K - 1 of the same canaries
    and the same noise (the authors' code; Algorithm 1 allows either). Needs K <= d."""
    rng = np.random.default_rng(seed)
    block = max(_ENTRIES // setting.canaries**2, 1)
    sizes = [min(block, setting.runs - start) for start in range(0, setting.runs, block)]
    parts = [_block(rng, setting._replace(runs=size)) for size in sizes]
    return Sets(
        np.concatenate([part.inserted for part in parts]), np.concatenate([part.fresh for part in parts])
    )


def _block(rng: np.random.Generator, setting: GaussianMechanism) -> Sets:
    """Some runs at once."""
    runs, canaries, dimension, sigma = setting
    rows = np.tril(rng.standard_normal((runs, canaries, canaries)), -1)
    freedom = dimension - np.arange(canaries)
    diagonal = np.arange(canaries)
    rows[:, diagonal, diagonal] = np.sqrt(rng.chisquare(freedom, (runs, canaries)))
    rows /= np.linalg.norm(rows, axis=2, keepdims=True)
    noise = sigma * rng.standard_normal((runs, canaries))
    released = rows.sum(1) + noise
    inserted = np.einsum("rkj,rj->rk", rows, released)
    outside = sigma**2 * rng.chisquare(dimension - canaries, runs) if dimension > canaries else 0.0
    length = np.sqrt(((released - rows[:, 0]) ** 2).sum(1) + outside)
    return Sets(inserted, length[:, None] * _cosines(rng, (runs, canaries), dimension))


def _cosines(rng: np.random.Generator, shape: tuple[int, int], dimension: int) -> Array:
    """Cosines of independent uniform directions with a given one."""
    along = rng.standard_normal(shape)
    across = rng.chisquare(dimension - 1, shape)
    cosines: Array = along / np.sqrt(along**2 + across)
    return cosines
