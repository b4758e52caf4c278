"""The LiDP paper's Gaussian mechanism (Section 4, Appendix E), simulated exactly at any dimension.

It is audited as the paper's curves need it. The mechanism releases the sum of its records plus
sigma * N(0, I_d); canaries are uniform on the unit sphere of R^d, and a score is the inner product of a
canary with the release.

Inserted canaries: only the span of the K canaries matters, in which a rotation makes them a lower-triangular
K x K matrix with chi-distributed diagonal, rows normalised (Bartlett's decomposition): O(n K^2) whatever d.
Fresh canaries, on releases of their own with K - 1 canaries: given the release they are independent, and only
its length matters. A sum of length r and one more unit vector at the angle t have length^2
r^2 + 1 + 2 r cos t: O(n K).

The audit's thresholds are chosen on runs of their own, which no bound counts, from 500 between the least
10% quantile and the largest 90% quantile of the two worlds' scores, one for each order. (An order, 1, 2 or 4,
says up to which moments of a run's bits, "canary detected", Wilson's intervals use.) That window caps the
curves (Errata L2). epsilon is the inequality's first direction alone (Errata L3), below 0 where the limits
say so.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from audit.errors import require
from audit.evidence.canaries import Sets
from audit.methods import lifted

Array = NDArray[np.float64]
ORDERS = (1, 2, 4)
_BLOCK_ENTRIES = 4_000_000  # entries of all K x K matrices of a block of runs, at most
_THRESHOLDS = 500  # the number of thresholds that are tried
_QUANTILE = 0.1  # the share of scores beyond either end of the window of thresholds


class GaussianMechanism(NamedTuple):
    """Runs of the Gaussian mechanism, which releases the sum of unit vectors plus sigma * N(0, I_d).

    Attributes:
      runs: n, the number of runs in each world.
      canaries: K, the number of canaries in each run, which are unit vectors.
      dimension: d.
      sigma: The standard deviation of the noise.
    """

    runs: int
    canaries: int
    dimension: int
    sigma: float


class OrderFindings(NamedTuple):
    """What an order of Wilson's intervals finds at its threshold.

    mu_j is the probability that j distinct canaries of a run are all detected.

    Attributes:
      epsilon: The order's lower bound on epsilon.
      second: |mu_2 - mu_1^2|, near 0 if detections are independent; None for fewer than two canaries.
      fourth: |mu_4 - mu_2^2|, near 0 if detections are independent; None for fewer than four canaries.
    """

    epsilon: float
    second: float | None
    fourth: float | None


def simulate(setting: GaussianMechanism, seed: int) -> Sets:
    """Simulates the scores of inserted and of fresh canaries (LiDP paper, Algorithm 1; Errata L5).

    A run releases the sum of its canaries plus noise. A score is the inner product of a canary with the
    release. Fresh canaries are drawn like the others, but are not in the release.

    The two worlds are neighbours: of K canaries, one is taken out. So a fresh canary is scored on a release
    of K - 1 other canaries.

    Args:
      setting: The number of runs n and of canaries K, the dimension d, and the noise.
      seed: The seed of all draws.

    Returns:
      The scores (n, K) of canaries that are inserted in n runs, and the scores (n, K) of fresh canaries on
        n further runs, whose releases hold K - 1 other canaries.

    Raises:
      InputError: K > d, or d < 2.
    """
    canaries = setting.canaries
    dimension = setting.dimension
    message = f"`dimension={dimension}`: give at least 2, and as many as canaries"
    # In fewer dimensions the draws would need chi-squared laws with less than one degree of freedom.
    require(dimension >= max(2, canaries), message)
    rng = np.random.default_rng(seed)
    # Each run of inserted canaries draws a K x K matrix: blocks of runs bound the memory of all matrices.
    block = max(_BLOCK_ENTRIES // canaries**2, 1)
    inserted = []
    for start in range(0, setting.runs, block):
        size = min(block, setting.runs - start)
        inserted.append(_draw_inserted_scores(rng, setting._replace(runs=size)))
    return Sets(np.concatenate(inserted), _draw_fresh_scores(rng, setting))


def choose_thresholds(design: Sets, delta: float, confidence: float) -> dict[int, float]:
    """Returns the threshold with the largest epsilon on the given runs, by the order of Wilson's intervals.

    An order is the highest moment of a run's detections that the intervals use: 1, 2 or 4, but at most the
    number of canaries in a run. Thresholds are tried between the lower of both worlds' 10% quantiles and the
    higher of their 90% quantiles, as in the paper's code (Errata L2).

    Args:
      design: Scores (n, K) of inserted and of fresh canaries, from runs that serve for this choice alone.
      delta: The delta of epsilon.
      confidence: The confidence of epsilon.
    """
    canaries = design.inserted.shape[1]
    worlds = design.pooled()  # the scores of all inserted and of all fresh canaries, flat
    low = min(np.quantile(world, _QUANTILE) for world in worlds)
    high = max(np.quantile(world, 1 - _QUANTILE) for world in worlds)
    grid = np.linspace(low, high, _THRESHOLDS)
    best = {}
    for order in ORDERS:
        if order <= canaries:
            epsilons = [_epsilon(design, threshold, order, delta, confidence) for threshold in grid]
            best[order] = float(grid[int(np.argmax(epsilons))])
    return best


def examine_order(
    design: Sets, threshold: float, order: int, delta: float, confidence: float
) -> OrderFindings:
    """Computes epsilon from Wilson's intervals at a threshold, and how correlated canaries' detections are.

    A canary is detected if its score is at least the threshold. mu_j is the probability that j distinct
    inserted canaries of a run are all detected. The order of Wilson's intervals is the highest j whose mu_j
    they use.

    If detections were independent, |mu_2 - mu_1^2| and |mu_4 - mu_2^2| would be 0. The smaller they are, the
    narrower are the intervals of orders 2 and 4 (Pillutla et al., 2023, Section 4).

    Args:
      design: Scores (n, K) of inserted and of fresh canaries.
      threshold: The score from which on a canary counts as detected.
      order: The order of Wilson's intervals: 1, 2 or 4.
      delta: The delta of epsilon.
      confidence: The confidence of epsilon.

    Returns:
      Epsilon, |mu_2 - mu_1^2| and |mu_4 - mu_2^2|; a difference is None where a run has too few canaries.
    """
    canaries = design.inserted.shape[1]
    detected = _count_detected(design.inserted, threshold)
    means = lifted.moments(detected, canaries, min(canaries, 4))  # means[j] is mu_j
    second_gap = None
    if canaries >= 2:
        second_gap = abs(means[2] - means[1] ** 2)
    fourth_gap = None
    if canaries >= 4:
        fourth_gap = abs(means[4] - means[2] ** 2)
    epsilon = _epsilon(design, threshold, order, delta, confidence)
    return OrderFindings(epsilon, second_gap, fourth_gap)


def window_limit(sigma: float, delta: float) -> float:
    """Returns the epsilon that the paper's audit with a single canary approaches with ever more runs.

    Scores are normal with standard deviation sigma. Their mean is 1 where the canary is inserted, else 0. A
    threshold proves epsilon = log((p_1 - delta) / p_0), where p_1 and p_0 are the shares of scores above it
    with and without the canary.

    With a small delta, the higher the threshold, the larger is this epsilon. But the paper tries no threshold
    above the 90% quantile of the scores with the canary, where p_1 is 10%. Epsilon there is the limit
    (Errata L2).

    Args:
      sigma: The standard deviation of the noise.
      delta: The delta of epsilon.
    """
    highest_threshold = 1 + sigma * special.ndtri(1 - _QUANTILE)
    p_0 = special.ndtr(-highest_threshold / sigma)
    return float(np.log((_QUANTILE - delta) / p_0))


def _draw_inserted_scores(rng: np.random.Generator, setting: GaussianMechanism) -> Array:
    """Draws scores (n, K) of K canaries on the releases of n runs that hold these canaries.

    A score is the inner product of a canary, a uniform direction in R^d, with its run's release. Only the
    span of the K canaries matters to it, so that K coordinates are drawn instead of d.

    In an orthonormal basis of the span (Gram and Schmidt's), the canaries are the rows of a lower-triangular
    K x K matrix, normalised. Its entries below the diagonal are standard normal. Those on the diagonal are
    chi-distributed with d, d - 1, ... degrees of freedom (Bartlett's decomposition).
    """
    runs, canaries, dimension, sigma = setting
    rows = np.tril(rng.standard_normal((runs, canaries, canaries)), -1)
    diagonal = np.arange(canaries)  # row i has d - i degrees of freedom
    rows[:, diagonal, diagonal] = np.sqrt(rng.chisquare(dimension - diagonal, (runs, canaries)))
    rows /= np.linalg.norm(rows, axis=2, keepdims=True)  # a canary is a row, a unit vector
    # (n, K): each run's release, which is the sum of its canaries and noise, within the span.
    released = rows.sum(1) + sigma * rng.standard_normal((runs, canaries))
    # (n, K, K) times (n, K, 1): in each run, the inner product of each canary with the release.
    scores = np.matmul(rows, released[:, :, None])[:, :, 0]
    return np.asarray(scores)


def _draw_fresh_scores(rng: np.random.Generator, setting: GaussianMechanism) -> Array:
    """Draws scores (n, K) of fresh canaries on releases that hold K - 1 other canaries.

    A score is the inner product of a canary with its run's release. A fresh canary has a uniform direction,
    independent of the release. So only the release's length matters, which is drawn in three steps:

    1. Add K - 1 unit vectors, one after the other. A unit vector whose angle to the sum has the cosine c
       turns the sum's length r into sqrt(r^2 + 1 + 2 r c).
    2. Add the noise along the sum, sigma times a normal draw, to the sum's length.
    3. Add the noise across the sum, in d - 1 dimensions. Its squared length is sigma^2 times a chi-squared
       draw with d - 1 degrees of freedom.

    A score is that length times the cosine of the angle between release and canary.
    """
    runs, canaries, dimension, sigma = setting
    # Step 1.
    length = np.zeros(runs)
    for _ in range(canaries - 1):
        squared = length**2 + 1 + 2 * length * _draw_cosines(rng, (runs,), dimension)
        length = np.sqrt(np.maximum(squared, 0.0))  # rounding may give a square below 0
    along = length + sigma * rng.standard_normal(runs)  # step 2
    across_squared = sigma**2 * rng.chisquare(dimension - 1, runs)  # step 3
    released_length = np.sqrt(along**2 + across_squared)
    # A run's K fresh canaries share its release.
    return released_length[:, None] * _draw_cosines(rng, (runs, canaries), dimension)


def _draw_cosines(rng: np.random.Generator, shape: tuple[int, ...], dimension: int) -> Array:
    """Draws an array of cosines of the angles between a fixed and a uniform direction in R^dimension."""
    along = rng.standard_normal(shape)
    across_squared = rng.chisquare(dimension - 1, shape)
    return np.asarray(along / np.sqrt(along**2 + across_squared))


def _count_detected(scores: Array, threshold: float) -> Array:
    """Returns how many canaries of each run (n,) have scores (n, K) at or above the threshold."""
    return np.asarray((scores >= threshold).sum(1), np.float64)


def _epsilon(design: Sets, threshold: float, order: int, delta: float, confidence: float) -> float:
    """Returns the lower bound log((p_1 - delta) / p_0) on epsilon; 0 where p_1 <= delta.

    p_1 is a lower confidence limit of the rate at which inserted canaries are detected. p_0 is an upper
    confidence limit of the rate at which fresh canaries are detected. Both are Wilson's limits.

    Args:
      design: Scores (n, K) of inserted and of fresh canaries.
      threshold: The score from which on a canary counts as detected.
      order: The highest moment of detections that Wilson's limits use: 1, 2 or 4.
      delta: The delta of epsilon.
      confidence: The probability with which both limits are to hold.
    """
    error = (1 - confidence) / 2  # of each limit
    canaries = design.inserted.shape[1]
    inserted = _count_detected(design.inserted, threshold)
    fresh = _count_detected(design.fresh, threshold)
    p_1, _ = lifted.exchangeable_limits(inserted, canaries, order, error, lifted.wilson)
    _, p_0 = lifted.exchangeable_limits(fresh, canaries, order, error, lifted.wilson)
    if p_1 <= delta:
        return 0.0
    return float(np.log((p_1 - delta) / p_0))
