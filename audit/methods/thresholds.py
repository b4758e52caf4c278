"""The choice of a threshold.

A bound is a confidence bound only for a threshold that does not depend on the counted scores. The functions
here choose on a set of scores; `estimate` must count others. A score above the threshold is a guess of "in".
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from audit.laws import conversions, intervals
from audit.methods.exact import GAUSSIAN, Family

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
# The constants of the choice on a pilot are tuned; no bound's validity depends on them.
_PRIOR = 5.0  # scores of normal distributions that are added to the pilot's, as a prior
_DOUBT = (
    1.7  # over the root of the pilot's size, the relative error of limits predicted from its counts
)
_STEADY = (
    8  # counts at a rank are trusted with at least this number of the pilot's scores beyond it
)
_MISFIT = (
    1.8  # standard deviations between the counts and normal distributions that refute the latter
)
_CLEAR = 1.5  # standard deviations by which counted rates are raised
_LATENT = np.linspace(-12.0, 12.0, 4801)  # scores of normal distributions
_MAX_THRESHOLDS = 200_000  # of `best_empirical`


class ErrorCounts(NamedTuple):
    """Error counts at thresholds, (k,) each.

    Attributes:
      false_positives: The numbers of scores out that are guessed in.
      false_negatives: The numbers of scores in that are guessed out.
    """

    false_positives: Counts
    false_negatives: Counts


def count_errors(scores_in: Array, scores_out: Array, thresholds: Array) -> ErrorCounts:
    """Counts the errors of guessing "in" above each of the thresholds (k,), from scores (n,) and (m,)."""
    not_above_out = np.searchsorted(np.sort(scores_out), thresholds, side="right")
    not_above_in = np.searchsorted(np.sort(scores_in), thresholds, side="right")
    return ErrorCounts(len(scores_out) - not_above_out, not_above_in)


def best_empirical(scores_in: Array, scores_out: Array, error: float) -> tuple[float, float]:
    """Returns the threshold with the largest mu on the scores, and that mu.

    The thresholds are the midpoints between neighbouring distinct scores (hidden-state paper, Algorithm 4),
    thinned out evenly from 200,000 on. At each, mu is that of the Gaussian trade-off curve through
    Clopper-Pearson upper limits of both error rates (Errata H12 of experiments/hidden_state/README.md). The
    largest is not a confidence bound because the same scores choose the threshold.

    Args:
      scores_in: (n,) scores with the canary.
      scores_out: (m,) scores without it; at least two scores must differ.
      error: The error probability of each rate's upper limit.
    """
    distinct = np.unique(np.concatenate([scores_in, scores_out]))
    points = distinct[:-1] / 2 + distinct[1:] / 2
    points = points[:: 1 + len(points) // _MAX_THRESHOLDS]
    counts = count_errors(scores_in, scores_out, points)
    fpr = intervals.clopper_pearson_upper(counts.false_positives, len(scores_out), error)
    fnr = intervals.clopper_pearson_upper(counts.false_negatives, len(scores_in), error)
    mus = conversions.mu_from_rates(fpr, fnr)
    best = int(np.argmax(mus))
    return float(points[best]), float(mus[best])


class Rank(NamedTuple):
    """A threshold for further scores: the rank-th lowest of those in, or the rank-th highest of those out."""

    is_in: bool
    rank: int


def choose_on_pilot(
    pilot: tuple[Array, Array], n_in: int, n_out: int, family: Family, error: float
) -> Rank:
    """Chooses, on a pilot's scores, the rank of the further score that should be the best threshold.

    The best threshold gives the largest lower limit of a privacy parameter. Ranks 1, 2, 4, ... of either
    world are tried. The usual choice is the best rank for normal distributions with the pilot's area under
    the ROC curve, which varies little between pilots. Under a Gaussian curve scores are normal, up to an
    increasing map. In other families, the pilot's error counts overrule the usual choice if they clearly
    contradict normal distributions, or clearly predict a larger limit at another rank. The choice depends
    only on the order of the scores.

    Args:
      pilot: (scores in, scores out) of the pilot.
      n_in, n_out: The numbers of further scores.
      family: The trade-off functions, with the privacy parameter.
      error: The error probability of each rate's upper limit.
    """
    pilot_in, pilot_out = pilot
    if not len(pilot_in) or not len(pilot_out):  # any rank is valid
        return Rank(is_in=True, rank=1)

    mu = _estimate_separation(pilot_in, pilot_out)
    # For the highest scores out, all scores are negated, and the worlds change places.
    by_in = _judge_ranks(pilot_in, pilot_out, n_in, n_out, mu, family, error)
    by_out = _judge_ranks(-pilot_out, -pilot_in, n_out, n_in, mu, family, error)
    normal, counted, places, misfits = np.hstack([by_in, by_out])
    best = int(np.argmax(normal))
    if family is not GAUSSIAN:
        steady = places >= _STEADY
        best_counted = int(np.argmax(counted))
        # The margin is the error of the counts. A poor choice makes the bound weaker, but not wrong.
        smaller_pilot = min(len(pilot_in), len(pilot_out))
        margin = 1 + _DOUBT / np.sqrt(smaller_pilot)
        steady_misfits = np.abs(misfits[steady])
        if steady_misfits.max(initial=0.0) > _MISFIT:
            steady_limits = np.where(steady, counted, -np.inf)
            best = int(np.argmax(steady_limits))
        elif counted[best_counted] > margin * max(counted[best], 0.0):
            best = best_counted
    ranks_in = by_in.shape[1]
    if best < ranks_in:
        return Rank(is_in=True, rank=2**best)
    return Rank(is_in=False, rank=2 ** (best - ranks_in))


def _judge_ranks(
    own: Array,
    other: Array,
    n_own: int,
    n_other: int,
    mu: float,
    family: Family,
    error: float,
) -> Array:
    """Predicts the limits that thresholds at the scores of ranks 1, 2, 4, ... of a world will prove.

    A threshold is the score of rank r, from the lowest, of the near world. Lower scores are guessed to be of
    the other world: the errors are r - 1 guesses on the near world, and scores of the other world above the
    threshold. Ranks end at half of the scores.

    Args:
      own: The pilot's scores of the near world.
      other: The pilot's scores of the other world, most of them lower.
      n_own, n_other: The numbers of further scores of both worlds.
      mu: The distance of both worlds in standard deviations, if they are normal.
      family: The trade-off functions, which are symmetric, with the privacy parameter.
      error: The error probability of each rate's upper limit.

    Returns:
      (4, R), for each rank: the lower limit of the parameter predicted from normal distributions; that from
        the pilot's counts; how many scores of the pilot's near world reach up to the rank; and by how many
        standard deviations the counts differ from normal distributions. Limits are rounded to give the same
        choice on all platforms.
    """
    ranks = 2 ** np.arange(max(n_own // 2, 1).bit_length())
    levels = ranks / (n_own + 1)  # the expected share of the near world below the threshold
    # The rank, from 1, of the pilot's score nearest to each quantile: of n scores, the k-th lowest is near
    # the quantile of level k / (n + 1).
    gaps = len(own) + 1
    places = np.maximum(np.rint(levels * gaps), 1.0)
    score_at_place = np.sort(own)[places.astype(int) - 1]
    below = np.searchsorted(np.sort(other), score_at_place)
    normal_at_place = special.ndtr(mu + special.ndtri(places / gaps))
    normal_at_level = special.ndtr(mu + special.ndtri(levels))
    # The normal distribution is a prior of the counts. From the score to the quantile, the share changes by
    # the same factor as the normal share.
    size = len(other)
    shares = (below + _PRIOR * normal_at_place) / (size + _PRIOR)
    shares = np.minimum(shares * normal_at_level / normal_at_place, 1.0)

    own_limit = intervals.clopper_pearson_upper(ranks - 1, n_own, error)
    other_errors = n_other * (1 - np.stack([normal_at_level, shares]))
    other_limits = intervals.clopper_pearson_upper(other_errors, n_other, error)
    limits = np.round(family.parameter(other_limits, own_limit), 9)

    # A count varies binomially with the other scores, and with the score's position by about 1 / sqrt(place).
    expected = size * normal_at_place
    from_other = expected * (1 - normal_at_place)
    from_own = expected**2 / places
    misfits = (below - expected) / np.sqrt(from_other + from_own)
    return np.stack([*limits, places, misfits])


def _estimate_separation(pilot_in: Array, pilot_out: Array) -> float:
    """Returns the distance mu, in standard deviations, of two normal laws with the pilot's AUC.

    The AUC of N(mu, 1) against N(0, 1) is Phi(mu / sqrt(2)). A tied pair is added to avoid an AUC of 0 or 1.
    """
    pairs = len(pilot_in) * len(pilot_out)
    area = (count_ordered_pairs(pilot_in, pilot_out) + 0.5) / (pairs + 1)
    return float(np.sqrt(2) * special.ndtri(area))


def count_ordered_pairs(scores_in: Array, scores_out: Array) -> float:
    """Returns the number of pairs of scores (n,) and (m,) with a larger score in; ties count half.

    This is the Mann-Whitney statistic.
    """
    ordered = np.sort(scores_out)
    looked_up = np.sort(scores_in)  # sorted scores are found much faster
    below = np.searchsorted(ordered, looked_up, "left").sum()
    below_or_equal = np.searchsorted(ordered, looked_up, "right").sum()
    return float(below + below_or_equal) / 2


class Candidates(NamedTuple):
    """A pilot's distinct scores as thresholds, with three estimates of their error rates.

    Attributes:
      thresholds: (T,) the distinct scores, ascending.
      normal: (2, T) the false-positive and false-negative rates of two normal distributions with the pilot's
        area under the ROC curve.
      counted: (2, T) the counted rates, with a few scores of the normal distributions added.
      raised: (2, T) `counted` plus 1.5 standard deviations, against thresholds that are good by chance.
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

    # As normal distributions, scores out are N(0, 1) and scores in N(mu, 1). A threshold is mapped to the
    # number z with the same share of their mixture below it as of the pilot's scores.
    mu = 0.0
    if n_in and n_out:
        mu = _estimate_separation(pilot_in, pilot_out)
    total = counts.sum()
    below_in = special.ndtr(_LATENT - mu)
    below_out = special.ndtr(_LATENT)
    mixture = (n_in * below_in + n_out * below_out) / total
    levels = np.cumsum(counts) / (total + 1)
    z = np.interp(levels, mixture, _LATENT)
    false_positive = special.ndtr(-z)
    false_negative = special.ndtr(z - mu)
    normal = np.stack([false_positive, false_negative])

    sizes = np.array([[n_out], [n_in]]) + _PRIOR
    errors = np.stack(count_errors(pilot_in, pilot_out, distinct))
    counted = (errors + _PRIOR * normal) / sizes
    deviations = np.sqrt(counted * (1 - counted) / sizes)
    raised = np.minimum(counted + _CLEAR * deviations, 1.0)
    return Candidates(distinct, normal, counted, raised)
