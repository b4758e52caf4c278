"""Chooses thresholds.

If a score is above the threshold, we guess that its canary was inserted ("in"). A bound is a confidence bound
only if the threshold does not depend on the counted scores. So we choose it on a *pilot*: scores that we do
not count.
"""

from typing import NamedTuple

import numpy as np
from scipy import special

from audit.evidence.arrays import Array, Integers
from audit.laws import intervals
from audit.methods.exact import GAUSSIAN, Family

# The number of scores of normal distributions that we add to a pilot's counts, as a prior. This constant and
# others in this module are tuned. No bound's validity depends on them.
_PRIOR = 5.0


class ErrorCounts(NamedTuple):
    """Error counts at k thresholds.

    Attributes:
      false_positives: (k,) the numbers of scores out above each threshold.
      false_negatives: (k,) the numbers of scores in that are not above it.
    """

    false_positives: Integers
    false_negatives: Integers


def count_errors(scores_in: Array, scores_out: Array, thresholds: Array) -> ErrorCounts:
    """Counts the errors of guessing "in" above each of the thresholds (k,), for scores (n,) and (m,)."""
    not_above_out = np.searchsorted(np.sort(scores_out), thresholds, side="right")
    not_above_in = np.searchsorted(np.sort(scores_in), thresholds, side="right")
    return ErrorCounts(len(scores_out) - not_above_out, not_above_in)


class Rank(NamedTuple):
    """A threshold for other scores than the pilot's: one of these scores itself, by its rank.

    Attributes:
      is_in: True if the threshold is a score in, False if it is a score out.
      rank: The threshold is the `rank`-th lowest of the scores in, or the `rank`-th highest of those out.
    """

    is_in: bool
    rank: int


def choose_on_pilot(
    pilot_in: Array, pilot_out: Array, n_in: int, n_out: int, family: Family, error: float
) -> Rank:
    """Chooses, on a pilot's scores, the rank of the other score that should be the best threshold.

    The best threshold gives the largest lower bound on a privacy parameter. We try the ranks 1, 2, 4, ... of
    either world. The usual choice is the best rank for normal distributions with the pilot's area under the
    ROC curve, which varies little between pilots. Under a Gaussian curve, the scores are normal, up to an
    increasing map. In other families, the pilot's error counts overrule the usual choice if they clearly
    contradict normal distributions, or clearly predict a larger bound at another rank. The choice depends
    only on the order of the scores. A poor choice makes the bound weaker, but not wrong.

    Args:
      pilot_in, pilot_out: The pilot's scores in and out, of shape (n,) and (m,).
      n_in, n_out: The numbers of other scores, which will be counted.
      family: The trade-off functions, with the privacy parameter.
      error: The error probability of each rate's upper limit.
    """
    if not len(pilot_in) or not len(pilot_out):  # any rank is valid
        return Rank(is_in=True, rank=1)

    mu = _estimate_separation(pilot_in, pilot_out)
    # For the highest scores out, we negate all scores and exchange the worlds.
    by_in = _judge_ranks(pilot_in, pilot_out, n_in, n_out, mu, family, error)
    by_out = _judge_ranks(-pilot_out, -pilot_in, n_out, n_in, mu, family, error)
    normal, counted, places, misfits = np.hstack([by_in, by_out])
    best = np.argmax(normal)
    if family is not GAUSSIAN:
        # Ranks with enough of the pilot's scores beyond them to trust the counts.
        is_steady = places >= 8
        # The relative error of bounds that we predict from the counts.
        doubt = 1.7 / np.sqrt(min(len(pilot_in), len(pilot_out)))
        if np.abs(misfits[is_steady]).max(initial=0.0) > 1.8:  # standard deviations
            best = np.argmax(np.where(is_steady, counted, -np.inf))
        elif counted.max() > (1 + doubt) * max(counted[best], 0.0):
            best = np.argmax(counted)
    ranks_in = by_in.shape[1]
    if best < ranks_in:
        return Rank(is_in=True, rank=2 ** int(best))
    return Rank(is_in=False, rank=2 ** int(best - ranks_in))


def _judge_ranks(
    own: Array,
    other: Array,
    n_own: int,
    n_other: int,
    mu: float,
    family: Family,
    error: float,
) -> Array:
    """Predicts the bounds proven by thresholds at ranks 1, 2, 4, ... among the scores of one world, "own".

    A threshold is the score of rank r, from the lowest, of the own world. We guess that lower scores are from
    the other world. So the errors are the r - 1 lower scores of the own world, and the scores of the other
    world above the threshold. Ranks end at half of the scores.

    Args:
      own: The pilot's scores of the own world.
      other: The pilot's scores of the other world, most of them lower.
      n_own, n_other: The numbers of scores of both worlds that will be counted.
      mu: The distance between the means of both worlds in standard deviations, if they are normal.
      family: The trade-off functions, which are symmetric, with the privacy parameter.
      error: The error probability of each rate's upper limit.

    Returns:
      (4, R), for each of R ranks: the bound predicted from normal distributions; the bound predicted from the
        pilot's counts; the number of the pilot's own scores up to the rank; and by how many standard
        deviations the counts differ from normal distributions. Bounds are rounded to give the same choice on
        all platforms.
    """
    ranks = 2 ** np.arange(max(n_own // 2, 1).bit_length())  # 1, 2, 4, ... up to n_own / 2
    levels = ranks / (n_own + 1)  # the expected fraction of the own world below the threshold
    # The rank, from 1, of the pilot's score nearest to each threshold: of n scores, the k-th lowest is near
    # the quantile of level k / (n + 1).
    gaps = len(own) + 1
    places = np.maximum(np.rint(levels * gaps), 1.0)
    score_at_place = np.sort(own)[places.astype(int) - 1]
    below = np.searchsorted(np.sort(other), score_at_place)
    normal_at_place = special.ndtr(mu + special.ndtri(places / gaps))
    normal_at_level = special.ndtr(mu + special.ndtri(levels))
    # The normal distribution is a prior of the counts. From the pilot's score to the threshold, the fraction
    # of lower scores of the other world changes by the same factor as under the normal distribution.
    size = len(other)
    fractions = (below + _PRIOR * normal_at_place) / (size + _PRIOR)
    fractions = np.minimum(fractions * normal_at_level / normal_at_place, 1.0)

    own_limit = intervals.clopper_pearson_upper(ranks - 1, n_own, error)
    other_errors = n_other * (1 - np.stack([normal_at_level, fractions]))
    other_limits = intervals.clopper_pearson_upper(other_errors, n_other, error)
    limits = np.round(family.parameter(other_limits, own_limit), 9)

    # A count varies binomially with the other scores. It also varies because the position of the pilot's
    # score has a relative error of about 1 / sqrt(place).
    expected = size * normal_at_place
    from_other = expected * (1 - normal_at_place)
    from_own = expected**2 / places
    misfits = (below - expected) / np.sqrt(from_other + from_own)
    return np.stack([*limits, places, misfits])


def _estimate_separation(pilot_in: Array, pilot_out: Array) -> float:
    """Returns the mu such that N(mu, 1) and N(0, 1) have the area under the ROC curve (AUC) of the pilot.

    Their AUC is Phi(mu / sqrt(2)). We add a tied pair of scores to avoid an AUC of 0 or 1.
    """
    pairs = len(pilot_in) * len(pilot_out)
    area = (count_ordered_pairs(pilot_in, pilot_out) + 0.5) / (pairs + 1)
    return np.sqrt(2) * special.ndtri(area)


def count_ordered_pairs(scores_in: Array, scores_out: Array) -> float:
    """Returns the number of pairs of scores, of shape (n,) and (m,), with a larger score in; ties count half.

    This is the Mann-Whitney statistic.
    """
    ordered = np.sort(scores_out)
    looked_up = np.sort(scores_in)  # lookups of sorted scores are much faster
    below = np.searchsorted(ordered, looked_up, "left").sum()
    below_or_equal = np.searchsorted(ordered, looked_up, "right").sum()
    return float(below + below_or_equal) / 2  # each tie is in one of the two sums


class Candidates(NamedTuple):
    """A pilot's distinct scores as thresholds, with three estimates of their error rates.

    Attributes:
      thresholds: (T,) the distinct scores, ascending.
      normal: (2, T) the false-positive and false-negative rates of two normal distributions with the pilot's
        area under the ROC curve.
      counted: (2, T) the counted rates, with a few scores of the normal distributions added as a prior.
      raised: (2, T) `counted` plus 1.5 standard deviations, because the best of many counts may be lucky.
    """

    thresholds: Array
    normal: Array
    counted: Array
    raised: Array


def candidates(pilot_in: Array, pilot_out: Array) -> Candidates:
    """Returns each distinct score of a pilot, (n,) in and (m,) out, as a threshold with its error rates.

    The estimates depend only on the order of the scores.
    """
    n_in = len(pilot_in)
    n_out = len(pilot_out)
    pooled = np.concatenate([pilot_in, pilot_out])
    distinct, counts = np.unique(pooled, return_counts=True)

    # We model scores out as N(0, 1) and scores in as N(mu, 1). Each threshold is mapped to a number z: the
    # same fraction of their mixture is below z as of the pilot's scores below the threshold.
    mu = _estimate_separation(pilot_in, pilot_out)
    total = n_in + n_out
    grid = np.linspace(-12.0, 12.0, 4801)  # of z
    mixture = (n_in * special.ndtr(grid - mu) + n_out * special.ndtr(grid)) / total
    z = np.interp(np.cumsum(counts) / (total + 1), mixture, grid)
    normal = np.stack([special.ndtr(-z), special.ndtr(z - mu)])

    # We add _PRIOR scores of the normal distributions to each world's counts.
    sizes = np.array([[n_out], [n_in]]) + _PRIOR
    errors = np.stack(count_errors(pilot_in, pilot_out, distinct))
    counted = (errors + _PRIOR * normal) / sizes
    deviations = np.sqrt(counted * (1 - counted) / sizes)
    raised = np.minimum(counted + 1.5 * deviations, 1.0)
    return Candidates(distinct, normal, counted, raised)
