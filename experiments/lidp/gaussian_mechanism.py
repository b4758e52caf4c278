"""The LiDP paper's Gaussian mechanism (Section 4, Appendix E), simulated exactly at any dimension.

The mechanism releases the sum of its canaries, uniform on the unit sphere of R^d, plus sigma * N(0, I_d). A
score is the inner product of a canary with the release. n runs of K canaries cost O(n K^2) for any d.

The paper's bounds use Wilson's intervals of order 1, 2 or 4, the highest moment of a run's detections.
Separate runs choose their thresholds, in a window of scores that limits epsilon (Errata L2). Epsilon uses
only the first direction of the inequality (Errata L3), and may be below 0.
"""

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special

from audit.evidence.canaries import Sets
from audit.methods import lifted
from audit.runtime.machine import Progress
from audit.runtime.processes import in_order
from audit.written import Level
from experiments.lidp.mechanism_audit import LIFTED, TUNING_SEED, MechanismAudit

Array = NDArray[np.float64]
ORDERS = (1, 2, 4)
_MAX_BLOCK_ENTRIES = 4_000_000  # the most entries of all K x K matrices of a block of runs
_NUM_THRESHOLDS = 500
_QUANTILE = 0.1  # the share of scores outside each end of the window of thresholds


def find_epsilons(audit: MechanismAudit, processes: int, progress: Progress) -> dict[str, Any]:
    """Audits the mechanism with each seed, by Wilson's intervals and by `lifted`.

    Separate runs choose a threshold for each order. `progress` is called with the number of runs when a seed
    is done.

    Returns:
      epsilons: A lower bound on epsilon for each seed, by method.
      second, fourth: The means over seeds of `moment_gaps` at order 2's threshold, if defined.
    """
    tuning = simulate(audit, TUNING_SEED)
    thresholds = choose_thresholds(tuning, Level(audit.delta, audit.confidence))
    audit_seed = partial(_audit_seed, audit, thresholds)
    seeds = []
    for by_seed in in_order(audit_seed, range(audit.seeds), processes):
        seeds.append(by_seed)
        progress(audit.runs)
    epsilons, gaps = map(pd.DataFrame, zip(*seeds, strict=True))
    return {"epsilons": epsilons.to_dict("list"), **gaps.mean().to_dict()}


def _audit_seed(
    audit: MechanismAudit, thresholds: dict[int, float], seed: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Returns epsilon by method from the runs of a seed, and the gaps of moments at order 2's threshold."""
    levels = Level(audit.delta, audit.confidence)
    design = simulate(audit, seed)
    epsilons = {}
    for order, threshold in thresholds.items():
        epsilons[f"wilson_{order}"] = wilson_epsilon(design, threshold, order, levels)
    epsilons[LIFTED] = lifted.METHODS[LIFTED].bound(design, *levels).epsilon
    # A single canary has neither order 2 nor gaps.
    return epsilons, moment_gaps(design.inserted, thresholds.get(2, thresholds[1]))


def simulate(audit: MechanismAudit, seed: int) -> Sets:
    """Simulates the scores of inserted and of fresh canaries (LiDP paper, Algorithm 1; Errata L5).

    Returns the scores (n, K) of inserted canaries, and those of fresh canaries in n other runs that insert K
    - 1 others, so the two worlds are neighbours.
    """
    rng = np.random.default_rng(seed)
    # Blocks of runs limit the memory of their K x K matrices.
    block = max(_MAX_BLOCK_ENTRIES // audit.canaries**2, 1)
    inserted = []
    for start in range(0, audit.runs, block):
        size = min(block, audit.runs - start)
        inserted.append(_draw_inserted_scores(rng, audit._replace(runs=size)))
    return Sets(np.concatenate(inserted), _draw_fresh_scores(rng, audit))


def choose_thresholds(design: Sets, levels: Level) -> dict[int, float]:
    """Returns the threshold with the largest epsilon on these runs, for each order up to K.

    As in the paper's code, thresholds are between the lower 10% quantile and the higher 90% quantile of both
    worlds (Errata L2).
    """
    worlds = design.pooled()
    low = min(np.quantile(world, _QUANTILE) for world in worlds)
    high = max(np.quantile(world, 1 - _QUANTILE) for world in worlds)
    grid = np.linspace(low, high, _NUM_THRESHOLDS)
    best = {}
    for order in ORDERS:
        if order <= design.inserted.shape[1]:
            epsilons = [wilson_epsilon(design, threshold, order, levels) for threshold in grid]
            best[order] = float(grid[np.argmax(epsilons)])
    return best


def wilson_epsilon(design: Sets, threshold: float, order: int, levels: Level) -> float:
    """Returns the lower bound log((p_1 - delta) / p_0) on epsilon; 0 if p_1 <= delta.

    p_1 is Wilson's lower limit, of order 1, 2 or 4, of the rate at which scores of inserted canaries reach
    the threshold. p_0 is the upper limit for fresh canaries.
    """
    error = (1 - levels.confidence) / 2  # of each limit
    limits = []
    for scores in (design.inserted, design.fresh):
        detected = (scores >= threshold).sum(1)
        limits.append(
            lifted.exchangeable_limits(detected, scores.shape[1], order, error, lifted.wilson)
        )
    p_1 = limits[0][0]
    p_0 = limits[1][1]
    if p_1 <= levels.delta:
        return 0.0
    return float(np.log((p_1 - levels.delta) / p_0))


def moment_gaps(inserted: Array, threshold: float) -> dict[str, float]:
    """Returns two gaps between moments, which are 0 if detections of canaries are independent.

    mu_j is the probability that the scores (n, K) of j distinct inserted canaries of a run all reach the
    threshold. Smaller gaps give narrower intervals of orders 2 and 4 (Pillutla et al., 2023, Section 4).

    Returns:
      second: |mu_2 - mu_1^2|, for at least 2 canaries.
      fourth: |mu_4 - mu_2^2|, for at least 4 canaries.
    """
    canaries = inserted.shape[1]
    detected = (inserted >= threshold).sum(1)
    means = lifted.moments(detected, canaries, min(canaries, 4))
    gaps = {}
    if canaries >= 2:
        gaps["second"] = abs(means[2] - means[1] ** 2)
    if canaries >= 4:
        gaps["fourth"] = abs(means[4] - means[2] ** 2)
    return gaps


def window_limit(sigma: float, delta: float) -> float:
    """Returns the limit of the paper's epsilon with a single canary, for many runs.

    Scores are N(1, sigma^2) with the canary and N(0, sigma^2) without it. The best threshold is the highest,
    the 90% quantile of the scores with the canary (Errata L2).
    """
    highest_threshold = 1 + sigma * special.ndtri(1 - _QUANTILE)
    p_0 = special.ndtr(-highest_threshold / sigma)
    return float(np.log((_QUANTILE - delta) / p_0))


def _draw_inserted_scores(rng: np.random.Generator, audit: MechanismAudit) -> Array:
    """Draws scores (n, K) of K canaries in the n runs that insert them.

    K coordinates are enough, in the Gram-Schmidt basis of the canaries' span. There the canaries are the
    normalized rows of a lower-triangular K x K matrix with standard normal entries below the diagonal. The
    diagonal is chi-distributed with d, d - 1, ... degrees of freedom (Bartlett's decomposition).
    """
    runs, canaries, dimension, *_ = audit
    rows = np.tril(rng.standard_normal((runs, canaries, canaries)), -1)
    diagonal = np.arange(canaries)  # row i has d - i degrees of freedom
    rows[:, diagonal, diagonal] = np.sqrt(rng.chisquare(dimension - diagonal, (runs, canaries)))
    rows /= np.linalg.norm(rows, axis=2, keepdims=True)  # a canary is a row, a unit vector
    # (n, K): each run's release within the span.
    released = rows.sum(1) + audit.sigma * rng.standard_normal((runs, canaries))
    # (n, K, K) times (n, K, 1): the inner product of each canary with its run's release.
    scores = np.matmul(rows, released[:, :, None])[:, :, 0]
    return np.asarray(scores)


def _draw_fresh_scores(rng: np.random.Generator, audit: MechanismAudit) -> Array:
    """Draws scores (n, K) of fresh canaries in n runs that insert K - 1 other canaries.

    A fresh canary has a uniform direction, independent of the release. So its score is the release's length
    times a uniform direction's cosine. The length is drawn in three steps:

    1. Add K - 1 unit vectors. One at an angle with cosine c turns the sum's length r into sqrt(r^2 + 1 + 2 r
    c).
    2. Add the noise along the sum, sigma times a normal draw.
    3. Add the noise across the sum. Its squared length is sigma^2 times a chi-squared draw with d - 1 degrees
    of freedom.
    """
    runs, canaries, dimension, *_ = audit
    # Step 1.
    length = np.zeros(runs)
    for _ in range(canaries - 1):
        squared = length**2 + 1 + 2 * length * _draw_cosines(rng, (runs,), dimension)
        length = np.sqrt(np.maximum(squared, 0.0))  # rounding may give a square below 0
    along = length + audit.sigma * rng.standard_normal(runs)  # step 2
    across_squared = audit.sigma**2 * rng.chisquare(dimension - 1, runs)  # step 3
    released_length = np.sqrt(along**2 + across_squared)
    # The K fresh canaries of a run share its release.
    return released_length[:, None] * _draw_cosines(rng, (runs, canaries), dimension)


def _draw_cosines(rng: np.random.Generator, shape: tuple[int, ...], dimension: int) -> Array:
    """Draws an array of cosines of the angles between a fixed and a uniform direction in R^dimension."""
    along = rng.standard_normal(shape)
    across_squared = rng.chisquare(dimension - 1, shape)
    return along / np.sqrt(along**2 + across_squared)
