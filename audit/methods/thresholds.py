"""Chooses thresholds using a *pilot*: scores that are set aside and not counted.

We guess that a canary was inserted ("in") if its score is above the threshold. A bound is valid only if the
threshold does not depend on the counted scores.
"""

from typing import NamedTuple

import numpy as np
from scipy import special

from audit.evidence.arrays import Array, Integers
from audit.laws import intervals
from audit.methods.exact import GAUSSIAN, Family

# These constants are tuned to give large bounds. Bounds are valid for any values.
_PRIOR = 5.0  # the number of normal pseudo-scores added to a pilot's counts
# A count is reliable if at least this many of the pilot's own scores are at or below the threshold.
_MIN_RELIABLE = 8
_MAX_Z_SCORE = 1.8  # a count with a larger |z-score| contradicts normal distributions
_RELATIVE_ERROR = 1.7  # of a bound predicted from the counts of n scores per world, times sqrt(n)
_RAISE = 1.5  # standard deviations added to rates


class ErrorCounts(NamedTuple):
    """Error counts at k thresholds.

    Attributes:
      false_positives: (k,) the number of out-scores above each threshold.
      false_negatives: (k,) the number of in-scores at or below it.
    """

    false_positives: Integers
    false_negatives: Integers


def count_errors(scores_in: Array, scores_out: Array, thresholds: Array) -> ErrorCounts:
    """Counts errors when guessing "in" above each threshold (k,), for in-scores (n,) and out-scores (m,)."""
    not_above_out = np.searchsorted(np.sort(scores_out), thresholds, side="right")
    not_above_in = np.searchsorted(np.sort(scores_in), thresholds, side="right")
    return ErrorCounts(len(scores_out) - not_above_out, not_above_in)


class Rank(NamedTuple):
    """A threshold that is one of the scores outside the pilot, given by its rank among them.

    Attributes:
      is_in: True if the threshold is an in-score, False if it is an out-score.
      rank: The threshold is the `rank`-th lowest in-score, or the `rank`-th highest out-score.
    """

    is_in: bool
    rank: int


def choose_on_pilot(
    pilot_in: Array, pilot_out: Array, n_in: int, n_out: int, family: Family, error: float
) -> Rank:
    """Chooses a threshold's rank among the scores outside the pilot, using only the pilot's scores.

    The aim is the largest possible lower bound on a privacy parameter. We predict the bound for the ranks 1,
    2, 4, ... of each world in two ways: from normal distributions with the pilot's area under the ROC curve,
    which varies little between pilots, and from the pilot's error counts. We choose the rank that is best for
    normal distributions. Unless we assume a Gaussian curve, `_prefer_counts` may replace this rank.

    Args:
      pilot_in, pilot_out: The pilot's scores (n,) and (m,).
      n_in, n_out: The numbers of scores that will be counted.
      error: The error probability of each rate's upper limit.
    """
    if not len(pilot_in) or not len(pilot_out):  # any rank is valid
        return Rank(is_in=True, rank=1)

    mu = _estimate_separation(pilot_in, pilot_out)
    # `_predict_bounds` counts from the lowest score, so we negate the scores to count out-scores from the
    # highest.
    by_in = _predict_bounds(pilot_in, pilot_out, n_in, n_out, mu, family, error)
    by_out = _predict_bounds(-pilot_out, -pilot_in, n_out, n_in, mu, family, error)
    predictions = _Predictions(*np.hstack([by_in, by_out]))
    best = np.argmax(predictions.from_normal)
    if family is not GAUSSIAN:
        best = _prefer_counts(best, predictions, min(len(pilot_in), len(pilot_out)))
    # The ranks of in-scores come first.
    return Rank(is_in=bool(best < by_in.ranks.size), rank=int(predictions.ranks[best]))


class _Predictions(NamedTuple):
    """The predicted bounds for thresholds at R ranks.

    Attributes:
      ranks: (R,) 1, 2, 4, ...
      from_normal: (R,) the bound for normal distributions.
      from_counts: (R,) the bound for the pilot's counts.
      pilot_ranks: (R,) the number of the pilot's own scores at or below each threshold.
      z_scores: (R,) the z-scores of the pilot's counts if both worlds are normal.
    """

    ranks: Integers
    from_normal: Array
    from_counts: Array
    pilot_ranks: Array
    z_scores: Array


def _prefer_counts(best: np.intp, predictions: _Predictions, pilot_size: int) -> np.intp:
    """Returns `best`, or the index of the rank for which counts predict the largest bound.

    Each rank is a threshold's rank among in-scores or out-scores. `best` is the choice for normal
    distributions. We replace it if a large z-score of the pilot's counts contradicts normality, or if the
    counts predict a clearly larger bound. `pilot_size` is the number of pilot scores in the smaller world.
    """
    from_counts = predictions.from_counts
    is_reliable = predictions.pilot_ranks >= _MIN_RELIABLE  # enough pilot scores up to a threshold
    if np.abs(predictions.z_scores[is_reliable]).max(initial=0.0) > _MAX_Z_SCORE:  # not normal
        return np.argmax(np.where(is_reliable, from_counts, -np.inf))
    relative_error = _RELATIVE_ERROR / np.sqrt(pilot_size)  # of a bound predicted from counts
    if from_counts.max() > (1 + relative_error) * max(from_counts[best], 0.0):
        return np.argmax(from_counts)
    return best


def _predict_bounds(
    own: Array, other: Array, n_own: int, n_other: int, mu: float, family: Family, error: float
) -> _Predictions:
    """Predicts the bounds for thresholds at ranks 1, 2, 4, ... among the scores of a world, in or out.

    A threshold of rank r is the r-th lowest score of its own world. We guess that lower scores are from the
    other world. So the errors are the r - 1 lower scores, and the other world's scores above the threshold.
    We predict the number of the latter in two ways: from normal distributions, and from the counts in a pilot
    of other scores. Large `z_scores` contradict normality.

    Args:
      own: The pilot's scores in the threshold's own world.
      other: The pilot's scores in the other world, which are mostly lower.
      n_own, n_other: The numbers of scores that will be counted.
      mu: The distance between the two worlds' means, in standard deviations, if both are normal.
      family: The trade-off functions, which must be symmetric.
      error: The error probability of each rate's upper limit.
    """
    ranks = 2 ** np.arange(max(n_own // 2, 1).bit_length())  # 1, 2, 4, ... up to n_own / 2
    levels = ranks / (n_own + 1)  # the expected fraction of its own world below the threshold
    # The pilot's own score nearest to each threshold. The k-th lowest of n is near the quantile of level k /
    # (n + 1).
    gaps = len(own) + 1
    pilot_ranks = np.maximum(np.rint(levels * gaps), 1.0)
    pilot_scores = np.sort(own)[pilot_ranks.astype(int) - 1]
    below = np.searchsorted(np.sort(other), pilot_scores)
    # The fractions of the other world's scores below the pilot's score and the threshold, if both worlds are
    # normal.
    normal_at_pilot = special.ndtr(mu + special.ndtri(pilot_ranks / gaps))
    normal_at_threshold = special.ndtr(mu + special.ndtri(levels))
    # The same fractions from counts. Normal pseudo-scores make them vary less.
    size = len(other)
    counted_at_pilot = (below + _PRIOR * normal_at_pilot) / (size + _PRIOR)
    counted_at_threshold = counted_at_pilot * normal_at_threshold / normal_at_pilot

    own_limit = intervals.clopper_pearson_upper(ranks - 1, n_own, error)
    # Expected errors (2, R): from normal distributions, and from counts.
    fractions = np.stack([normal_at_threshold, np.minimum(counted_at_threshold, 1.0)])
    other_limits = intervals.clopper_pearson_upper(n_other * (1 - fractions), n_other, error)
    # Rounding the bounds makes all platforms choose the same rank.
    from_normal, from_counts = np.round(family.parameter(other_limits, own_limit), 9)

    # The z-score of the count `below` if both worlds are normal. The variance of the count is the sum of a
    # binomial variance and one due to the random position of the pilot's own score. This position has a
    # relative error of about 1 / sqrt(rank), as for a Poisson count.
    expected = size * normal_at_pilot
    from_other = expected * (1 - normal_at_pilot)
    from_own = expected**2 / pilot_ranks
    z_scores = (below - expected) / np.sqrt(from_other + from_own)
    return _Predictions(ranks, from_normal, from_counts, pilot_ranks, z_scores)


def _estimate_separation(pilot_in: Array, pilot_out: Array) -> float:
    """Returns the mu such that N(mu, 1) and N(0, 1) have the pilot's area under the ROC curve (AUC).

    The AUC is Phi(mu / sqrt(2)). Adding a tied pair of scores avoids an AUC of 0 or 1.
    """
    pairs = len(pilot_in) * len(pilot_out)
    area = (count_ordered_pairs(pilot_in, pilot_out) + 0.5) / (pairs + 1)
    return np.sqrt(2) * special.ndtri(area)


def count_ordered_pairs(scores_in: Array, scores_out: Array) -> float:
    """Returns the Mann-Whitney statistic of in-scores (n,) and out-scores (m,).

    The statistic is the number of pairs in which the in-score is larger. Ties count as half.
    """
    ordered = np.sort(scores_out)
    looked_up = np.sort(scores_in)  # looking up sorted scores is much faster
    below = np.searchsorted(ordered, looked_up, "left").sum()
    below_or_equal = np.searchsorted(ordered, looked_up, "right").sum()
    return float(below + below_or_equal) / 2  # only the second sum includes ties


class Candidates(NamedTuple):
    """A pilot's distinct scores as thresholds, with the three estimates of `candidates`.

    Attributes:
      thresholds: (T,) the distinct scores, ascending.
      normal, counted, raised: (2, T) the false-positive rates, then the false-negative rates.
    """

    thresholds: Array
    normal: Array
    counted: Array
    raised: Array


def candidates(pilot_in: Array, pilot_out: Array) -> Candidates:
    """Estimates error rates at a pilot's distinct scores, given in-scores (n,) and out-scores (m,).

    There are three estimates, which depend only on the order of the scores:

        normal     from two normal distributions with the pilot's area under the ROC curve
        counted    from counts, pulled towards `normal` by a few pseudo-scores, because counts vary
        raised     `counted` plus 1.5 standard deviations, because the best of many counts may be lucky
    """
    n_in = len(pilot_in)
    n_out = len(pilot_out)
    distinct, counts = np.unique(np.concatenate([pilot_in, pilot_out]), return_counts=True)

    # We model out-scores as N(0, 1) and in-scores as N(mu, 1). A threshold with k scores at or below it
    # corresponds to the z below which the mixture has probability k / (total + 1).
    mu = _estimate_separation(pilot_in, pilot_out)
    total = n_in + n_out
    grid = np.linspace(-12.0, 12.0, 4801)  # of z
    mixture = (n_in * special.ndtr(grid - mu) + n_out * special.ndtr(grid)) / total
    fractions = np.cumsum(counts) / (total + 1)
    z = np.interp(fractions, mixture, grid)
    # Rates (2, T): of false positives, then of false negatives.
    normal = np.stack([special.ndtr(-z), special.ndtr(z - mu)])
    errors = np.stack(count_errors(pilot_in, pilot_out, distinct))
    sizes = np.array([[n_out], [n_in]]) + _PRIOR  # with pseudo-scores
    counted = (errors + _PRIOR * normal) / sizes
    deviations = np.sqrt(counted * (1 - counted) / sizes)
    raised = np.minimum(counted + _RAISE * deviations, 1.0)
    return Candidates(distinct, normal, counted, raised)
