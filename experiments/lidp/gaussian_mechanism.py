"""Audits the LiDP paper's Gaussian mechanism (Section 4, Appendix E), simulated exactly in any dimension.

The mechanism releases the sum of its canaries, which are uniform on the unit sphere of R^d, plus
sigma * N(0, I_d). The score of a canary is its inner product with the released vector. Simulating n runs with
K canaries each takes O(n K^2) time, regardless of d.

The paper's bounds use Wilson's intervals of order 1, 2 or 4 (`wilson_epsilon`). They use only one direction
of the DP inequality (Errata L3) and can be negative.
"""

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from scipy import special

from audit.evidence.canaries import Sets
from audit.laws.intervals import Array
from audit.methods import lifted
from audit.runtime.machine import Progress
from audit.runtime.processes import as_completed
from audit.written import Level
from experiments.lidp.mechanism_audit import MechanismAudit

ORDERS = (1, 2, 4)
TUNING_SEED = 1000  # the seed of the runs that choose thresholds for Wilson's intervals
_MAX_BLOCK_ENTRIES = 4_000_000  # in all K x K matrices for a block of runs
_NUM_THRESHOLDS = 500  # as in the paper's code
_QUANTILE = 0.1  # the fraction of scores outside each end of the threshold window


def find_epsilons(audit: MechanismAudit, processes: int, progress: Progress) -> dict[str, Any]:
    """Audits the mechanism for each seed, using Wilson's intervals and our bound for several canaries.

    Up to `processes` seeds are audited in parallel. After each seed, `progress` is called with its number of
    runs.

    Returns:
      A dictionary: `epsilons` has each method's lower bounds on epsilon for all seeds. `second` and `fourth`
      are the means over seeds of the gaps from `moment_gaps`, which measure the dependence between a run's
      canaries.
    """
    tuning = simulate(audit, TUNING_SEED)
    thresholds = choose_thresholds(tuning, Level(audit.delta, audit.confidence))
    audit_seed = partial(_audit_seed, audit, thresholds)
    seeds = range(audit.seeds)
    by_seed = {}  # seed -> epsilons and gaps
    for seed, result in as_completed(audit_seed, seeds, processes):
        by_seed[seed] = result
        progress(audit.runs)
    # One row per seed, and one column per method or gap.
    epsilons = pd.DataFrame([by_seed[seed][0] for seed in seeds])
    gaps = pd.DataFrame([by_seed[seed][1] for seed in seeds])
    return {"epsilons": epsilons.to_dict("list"), **gaps.mean().to_dict()}


def _audit_seed(
    audit: MechanismAudit, thresholds: dict[int, float], seed: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Returns one seed's lower bound on epsilon from each method, and the dependence between its canaries.

    A canary is detected if its score reaches a threshold. `thresholds` maps each order of Wilson's interval
    (its number of moments) to a threshold. Our bound for several canaries, `lifted`, chooses its own
    threshold. The dependence (`moment_gaps`) uses the threshold for order 2, the lowest order that depends on
    several canaries.
    """
    levels = Level(audit.delta, audit.confidence)
    design = simulate(audit, seed)
    epsilons = {
        f"wilson_{order}": wilson_epsilon(design, threshold, order, levels)
        for order, threshold in thresholds.items()
    }
    epsilons[lifted.LIFTED] = lifted.METHODS[lifted.LIFTED].bound(design, *levels).epsilon
    gaps = {}
    if 2 in thresholds:  # a single canary has no order 2 and no gaps
        gaps = moment_gaps(design.inserted, thresholds[2])
    return epsilons, gaps


def simulate(audit: MechanismAudit, seed: int) -> Sets:
    """Simulates scores of inserted canaries and of fresh canaries (LiDP paper, Algorithm 1; Errata L5).

    Returns scores (n, K) of canaries in n runs that insert them, and of fresh canaries in n other runs. The
    other runs insert K - 1 canaries, so the two kinds of runs differ by one canary, like neighboring data
    sets.
    """
    rng = np.random.default_rng(seed)
    # Blocks of runs limit the memory for their K x K matrices.
    block = max(_MAX_BLOCK_ENTRIES // audit.canaries**2, 1)
    inserted = []
    for start in range(0, audit.runs, block):
        size = min(block, audit.runs - start)
        inserted.append(_draw_inserted_scores(rng, audit._replace(runs=size)))
    return Sets(np.concatenate(inserted), _draw_fresh_scores(rng, audit))


def choose_thresholds(design: Sets, levels: Level) -> dict[int, float]:
    """Returns the threshold with the largest epsilon on these runs, for each order up to K.

    The order is the number of moments in Wilson's interval. Moment j involves j different canaries, so the
    number of canaries in a run, K, limits the order. Bounds must come from other runs. `levels` gives delta
    and confidence. As in the LiDP paper's code, thresholds lie in a window of scores: from the smaller of the
    10% quantiles of inserted and fresh canaries to the larger of their 90% quantiles (Errata L2).
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
    """Returns the LiDP paper's lower bound log((p_1 - delta) / p_0) on epsilon, or 0 if p_1 <= delta.

    p_1 is Wilson's lower bound on the probability that an inserted canary's score reaches the threshold. p_0
    is Wilson's upper bound on this probability for a fresh canary. Both use the first `order` (1, 2 or 4)
    moments of the number of such canaries in a run.
    """
    find_limits = partial(
        lifted.exchangeable_limits,
        canaries=design.inserted.shape[1],
        order=order,
        error=(1 - levels.confidence) / 2,  # of each of the two bounds
        compute_limits=lifted.wilson,
    )
    p_1, _ = find_limits((design.inserted >= threshold).sum(axis=1))
    _, p_0 = find_limits((design.fresh >= threshold).sum(axis=1))
    if p_1 <= levels.delta:
        return 0.0
    return float(np.log((p_1 - levels.delta) / p_0))


def moment_gaps(inserted: Array, threshold: float) -> dict[str, float]:
    """Returns two gaps between moments, which are 0 if canaries are detected independently.

    A canary is detected if its score reaches the threshold. mu_j is the probability that j distinct canaries
    in a run are all detected. Smaller gaps give narrower intervals for orders 2 and 4 (Pillutla et al., 2023,
    Section 4). `inserted` are the scores (n, K) of the K inserted canaries in each of n runs.

    Returns:
      second: |mu_2 - mu_1^2|, if K is at least 2.
      fourth: |mu_4 - mu_2^2|, if K is at least 4.
    """
    canaries = inserted.shape[1]
    detected = (inserted >= threshold).sum(axis=1)  # (n,)
    means = lifted.moments(detected, canaries, min(canaries, 4))  # means[j] estimates mu_j
    gaps = {}
    if canaries >= 2:
        gaps["second"] = abs(means[2] - means[1] ** 2)
    if canaries >= 4:
        gaps["fourth"] = abs(means[4] - means[2] ** 2)
    return gaps


def window_limit(sigma: float, delta: float) -> float:
    """Returns the largest epsilon that the paper's window of thresholds allows, however many runs there are.

    Each run has a single canary. Scores are N(1, sigma^2) with the canary and N(0, sigma^2) without it. The
    best threshold is the largest in the window, the 90% quantile of the scores with the canary (Errata L2).
    With the canary, p_1 = 10% of scores exceed this threshold. The fraction without the canary is p_0.
    """
    highest_threshold = 1 + sigma * special.ndtri(1 - _QUANTILE)
    p_0 = special.ndtr(-highest_threshold / sigma)
    return float(np.log((_QUANTILE - delta) / p_0))


def _draw_inserted_scores(rng: np.random.Generator, audit: MechanismAudit) -> Array:
    """Draws the scores (n, K) of the canaries in n runs that insert them.

    In their Gram-Schmidt basis, a run's K canaries are the normalized rows of a lower-triangular K x K
    matrix. Entries below the diagonal are standard normal. Entries on the diagonal are chi-distributed with
    d, d - 1, ... degrees of freedom (Bartlett's decomposition).
    """
    runs, canaries, dimension, *_ = audit
    rows = np.tril(rng.standard_normal((runs, canaries, canaries)), -1)
    i = np.arange(canaries)  # the diagonal entry of row i has d - i degrees of freedom
    rows[:, i, i] = np.sqrt(rng.chisquare(dimension - i, (runs, canaries)))
    rows /= np.linalg.norm(rows, axis=2, keepdims=True)  # each row is a canary, a unit vector
    # (n, K): each run's release, projected onto the span of its canaries.
    released = rows.sum(axis=1) + audit.sigma * rng.standard_normal((runs, canaries))
    # (n, K, K) times (n, K, 1): inner products of each canary with its run's release.
    return np.asarray(np.matmul(rows, released[:, :, None])[:, :, 0])


def _draw_fresh_scores(rng: np.random.Generator, audit: MechanismAudit) -> Array:
    """Draws the scores (n, K) of fresh canaries in n runs that insert K - 1 other canaries.

    A fresh canary's direction is uniform and independent of the release. Therefore, its score is the
    release's length times a cosine from `_draw_cosines`. The length is drawn in three steps:

    1. Add K - 1 unit vectors. If c is the cosine between the sum and the next vector, the sum's length r
       becomes sqrt(r^2 + 1 + 2 r c).
    2. Add the noise along the sum: sigma times a normal draw.
    3. Add the noise orthogonal to the sum. Its squared length is sigma^2 times a chi-squared draw with d - 1
       degrees of freedom.
    """
    runs, canaries, dimension, *_ = audit
    # Step 1.
    length = np.zeros(runs)
    for _ in range(canaries - 1):
        squared = length**2 + 1 + 2 * length * _draw_cosines(rng, (runs,), dimension)
        length = np.sqrt(np.maximum(squared, 0.0))  # rounding may make a square negative
    along = length + audit.sigma * rng.standard_normal(runs)  # step 2
    across_squared = audit.sigma**2 * rng.chisquare(dimension - 1, runs)  # step 3
    released_length = np.sqrt(along**2 + across_squared)
    # The K fresh canaries in a run share its release.
    return released_length[:, None] * _draw_cosines(rng, (runs, canaries), dimension)


def _draw_cosines(rng: np.random.Generator, shape: tuple[int, ...], dimension: int) -> Array:
    """Draws cosines between a fixed direction and uniformly random directions in R^dimension.

    A standard normal vector has a uniform direction. Its coordinate along the fixed direction is `along`, and
    the squares of its other coordinates add up to `across_squared`.
    """
    along = rng.standard_normal(shape)
    across_squared = rng.chisquare(dimension - 1, shape)
    return along / np.sqrt(along**2 + across_squared)
