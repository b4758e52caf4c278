"""Ranks of canaries among fresh draws, whose law is known exactly where a canary is out.

K canaries are drawn independently from a generator and inserted; M further ones are drawn afterwards from the
same generator, and all are scored on the released model by one function. Without canary k, it and the M fresh
draws are exchangeable given the model, so that with ties broken at random

    P_out(rank of canary k among itself and the fresh draws <= r) = r / (M + 1)    exactly,

whatever the scores are and however a run's canaries depend on each other.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from audit.errors import require
from audit.evidence.arrays import floats

Array = NDArray[np.float64]


def rank_among(scores: ArrayLike, fresh: ArrayLike, seed: int = 0) -> NDArray[np.int64]:
    """Returns the rank of each canary among itself and its run's fresh draws, from 1, the highest score.

    Args:
      scores: (R, K) of canaries; higher means in.
      fresh: (R, M) of fresh draws on the same models.
      seed: of the random order of ties; a run's depends on the seed and its row alone.

    Raises:
      InputError: the shapes do not fit, or a value is NaN.
    """
    canary_scores = floats("the canaries' scores", scores)
    fresh_scores = floats("the fresh scores", fresh)
    shapes = f"scores {canary_scores.shape} and fresh scores {fresh_scores.shape}"
    fits = canary_scores.ndim == fresh_scores.ndim == 2 and len(canary_scores) == len(fresh_scores)
    require(fits, f"{shapes}: give (runs, canaries) and (runs, fresh draws)")
    require(
        canary_scores.size > 0 and fresh_scores.size > 0, f"{shapes}: give at least one of each"
    )
    missing = int(np.isnan(canary_scores).sum() + np.isnan(fresh_scores).sum())
    require(
        not missing, f"{missing} scores are NaN: score canaries and fresh draws by one function"
    )

    ranks = np.empty(canary_scores.shape, np.int64)
    for run, (of_canaries, of_fresh) in enumerate(zip(canary_scores, fresh_scores, strict=True)):
        ordered = np.sort(of_fresh)
        below = np.searchsorted(ordered, of_canaries, side="left")
        not_above = np.searchsorted(ordered, of_canaries, side="right")
        above = len(ordered) - not_above
        rng = np.random.default_rng([seed, run])
        ranks[run] = 1 + above + rng.integers(0, not_above - below, endpoint=True)
    return ranks


def log_rates_of_ranks(fresh: int, normal: Array) -> tuple[NDArray[np.int64], Array]:
    """Returns the largest rank at each threshold, and log of the probability of a rank up to it.

    Args:
      fresh: M.
      normal: (T,) thresholds on the scale of normal deviates.

    Returns:
      (T,) the largest rank whose probability is at most that of a normal deviate above the threshold, at
      least 1, and (T,) log of that rank's probability where the canary is out.
    """
    from scipy import special

    ranks = np.floor(np.exp(special.log_ndtr(-normal)) * (fresh + 1)).astype(np.int64)
    ranks = np.maximum(ranks, 1)
    return ranks, np.log(ranks / (fresh + 1))
