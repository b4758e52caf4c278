"""How a threshold is chosen, and what that leaves valid.

A bound is a confidence bound only for a threshold that does not depend on the scores it counts. The
functions here choose on a set of scores; it is up to `estimate` that others are then counted. Everywhere, a
score above the threshold is a guess of "in".
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from audit.laws import intervals

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
Worlds = tuple[Array, Array]
# The constants of the choice on a pilot are tuned; no bound's validity depends on them.
_PRIOR = 5.0  # scores of normal distributions that are added to the pilot's, as a prior
# Over the root of the pilot's size, it is the share by which limits predicted from its counts err.
_DOUBT = 1.7
_STEADY = (
    8  # the least number of the pilot's scores beyond a rank for its counts to be trusted there
)
# Standard deviations between the counts and normal distributions that refute the latter.
_MISFIT = 1.8
_CLEAR = 1.5  # standard deviations by which counted rates are raised
_LATENT = np.linspace(-12.0, 12.0, 4801)  # scores of normal distributions
_MOST_THRESHOLDS = 200_000  # that are tried on the scores on which their errors are counted


# Maps false-positive and false-negative rates, arrays that broadcast, to the privacy parameter, such as mu,
# of the trade-off curve through both.
Parameter = Callable[[Array, Array], Array]


class ErrorCounts(NamedTuple):
    """Error counts at thresholds, (k,) each.

    Attributes:
      false_positives: The numbers of scores out that are guessed in.
      false_negatives: The numbers of scores in that are guessed out.
    """

    false_positives: Counts
    false_negatives: Counts


def midpoints(scores_in: Array, scores_out: Array) -> Array:
    """Returns every midpoint between neighbouring distinct scores (hidden-state paper, Algorithm 4)."""
    ordered = np.sort(np.concatenate([scores_in, scores_out]))
    distinct = ordered[np.append(True, ordered[1:] != ordered[:-1])]  # faster than `np.unique`
    return np.asarray(distinct[:-1] / 2 + distinct[1:] / 2)


def count_errors(scores_in: Array, scores_out: Array, thresholds: Array) -> ErrorCounts:
    """Counts the errors of guessing "in" above each of the thresholds (k,), from scores (n,) and (m,)."""
    not_above_out = np.searchsorted(np.sort(scores_out), thresholds, side="right")
    not_above_in = np.searchsorted(np.sort(scores_in), thresholds, side="right")
    return ErrorCounts(len(scores_out) - not_above_out, not_above_in)


def best_empirical(
    scores_in: Array, scores_out: Array, parameter: Parameter, error: float
) -> tuple[float, float]:
    """Returns the threshold at which the scores show the largest privacy parameter, and that parameter.

    The thresholds are midpoints between neighbouring distinct scores, all of them up to 200,000; at least two
    scores must differ.
    At each, both error rates have Clopper-Pearson upper limits, and the privacy parameter, such as mu, is
    that of the trade-off curve through both limits (Errata H12 of experiments/hidden_state/README.md). The
    largest is no confidence bound, since the threshold is chosen on the same scores on which its errors are
    counted.

    Args:
      scores_in: (n,) scores with the canary.
      scores_out: (m,) scores without it.
      parameter: Maps false-positive and false-negative rates to the privacy parameter.
      error: The probability with which each rate's upper limit may miss.
    """
    points = _thin(midpoints(scores_in, scores_out))
    counts = count_errors(scores_in, scores_out, points)
    fpr = _find_limits(counts.false_positives, len(scores_out), error)
    fnr = _find_limits(counts.false_negatives, len(scores_in), error)
    limits = parameter(fpr, fnr)
    best = int(np.argmax(limits))
    return float(points[best]), float(limits[best])


def _thin(points: Array) -> Array:
    """Returns ascending thresholds, but of more than 200,000 only some, fewer in the middle than at the ends.

    Between two neighbours of those that are left error counts differ by a thousandth at most.
    """
    if len(points) <= _MOST_THRESHOLDS:
        return points
    steps = np.geomspace(1, len(points), _MOST_THRESHOLDS // 2).astype(np.int64) - 1
    from_both_ends = np.concatenate([steps, len(points) - 1 - steps])
    return np.asarray(points[np.unique(from_both_ends)])


def _find_limits(counts: Counts, trials: int, error: float) -> Array:
    """Returns the upper limits of the rates of some error counts (k,), of which many are equal."""
    distinct, places = np.unique(counts, return_inverse=True)
    return np.asarray(intervals.clopper_pearson_upper(distinct, trials, error)[places])


class Rank(NamedTuple):
    """A threshold for scores to come: the rank-th lowest of those in, or the rank-th highest of those out."""

    is_in: bool
    rank: int


def choose_on_pilot(
    pilot: Worlds, n_in: int, n_out: int, parameter: Parameter, error: float, any_shape: bool
) -> Rank:
    """Chooses, on a pilot's scores, the rank of the further score that should be the best threshold.

    The best threshold gives the largest lower limit of a privacy parameter, such as mu. Rank r of the scores
    in means a threshold at the r-th lowest of them; rank r of the scores out, at the r-th highest. Ranks
    1, 2, 4, ... of either world are tried. Each rank's limit is predicted in two ways: from normal
    distributions with the pilot's area under the ROC curve, and from the pilot's error counts.

    The usual choice is the best rank for the normal distributions, since it varies little between pilots.
    With `any_shape`, the counts overrule it where they clearly contradict normal distributions, or clearly
    predict a larger limit at another rank. The choice depends on the order of the scores alone.

    Args:
      pilot: (scores in, scores out) of the pilot.
      n_in: The number of further scores in.
      n_out: The number of further scores out.
      parameter: Maps false-positive and false-negative rates to the privacy parameter.
      error: The probability with which each rate's upper limit may miss.
      any_shape: Whether scores may be far from normal.
    """
    pilot_in, pilot_out = pilot
    if not len(pilot_in) or not len(pilot_out):  # nothing to choose by: any rank will do
        return Rank(is_in=True, rank=1)

    mu = _estimate_separation(pilot_in, pilot_out)
    # Ranks are judged from the lowest score: for the highest scores out, all scores are negated, and the
    # worlds change places.
    by_in = _judge_ranks(pilot_in, pilot_out, n_in, n_out, mu, parameter, error)
    by_out = _judge_ranks(-pilot_out, -pilot_in, n_out, n_in, mu, parameter, error)

    ranks = [*map(partial(Rank, True), by_in.ranks.tolist())]
    ranks += map(partial(Rank, False), by_out.ranks.tolist())
    # The limits predicted at these ranks, from normal distributions and from counts. They are rounded, so
    # that the last digits of a platform's functions do not decide between equal ranks.
    normal = np.round(np.concatenate([by_in.normal, by_out.normal]), 9)
    counted = np.round(np.concatenate([by_in.counted, by_out.counted]), 9)
    best_if_normal = int(np.argmax(normal))
    if not any_shape:
        return ranks[best_if_normal]

    # Where the counts are too many standard deviations away from normal distributions, the counts alone
    # decide. Ranks at which the pilot has too few scores to trust its counts (not steady) are left out.
    if max(by_in.misfit, by_out.misfit) > _MISFIT:
        steady = np.concatenate([by_in.steady, by_out.steady])
        trusted = np.where(steady, counted, -np.inf)
        return ranks[int(np.argmax(trusted))]

    # Otherwise the counts must predict more by a margin, their error, which falls with the pilot's size. This
    # margin takes the place of the test for steady ranks, so that all ranks compete. (A poor choice makes the
    # bound weaker, but not wrong.) A predicted limit below 0 is worth no more than 0.
    best_counted = int(np.argmax(counted))
    margin = 1 + _DOUBT / np.sqrt(min(len(pilot_in), len(pilot_out)))
    if counted[best_counted] > margin * max(counted[best_if_normal], 0.0):
        return ranks[best_counted]
    return ranks[best_if_normal]


class _Judgement(NamedTuple):
    """What a pilot predicts for thresholds at R ranks of a world.

    Attributes:
      ranks: (R,) 1, 2, 4, ...
      normal: (R,) the lower limit of the parameter, predicted from normal distributions.
      counted: (R,) the lower limit of the parameter, predicted from the pilot's counts.
      steady: (R,) whether the pilot has enough scores of this world up to the rank for its counts to be
        trusted.
      misfit: The largest deviation of the counts from normal distributions, in standard deviations, over
        steady ranks; 0 without any.
    """

    ranks: Counts
    normal: Array
    counted: Array
    steady: NDArray[np.bool_]
    misfit: float


def _judge_ranks(
    own: Array,
    other: Array,
    n_own: int,
    n_other: int,
    mu: float,
    parameter: Parameter,
    error: float,
) -> _Judgement:
    """Predicts what thresholds at the scores of ranks 1, 2, 4, ... of a world will prove.

    A threshold is the score of rank r, from the lowest, of its own world. Lower scores are guessed to be of
    the other world. So r - 1 guesses on its own world are wrong. On the other world, the guesses on scores
    above the threshold are wrong. Their number is predicted in two ways: from normal distributions and from
    the pilot's counts. The upper limits of both error rates then prove a lower limit of a privacy parameter,
    such as mu. Ranks end at half of the scores: beyond, most guesses on the own world are wrong.

    Args:
      own: The pilot's scores of the threshold's own world.
      other: The pilot's scores of the other world, most of which should be lower.
      n_own: The number of further scores of the threshold's own world.
      n_other: The number of further scores of the other world.
      mu: The distance of both worlds in standard deviations, if they are normal.
      parameter: Maps false-positive and false-negative rates to the privacy parameter. It is symmetric, so
        that it does not matter which world is "in".
      error: The probability with which each rate's upper limit may miss.
    """
    # Powers of 2 up to half of the scores, and 1 in any case.
    ranks = 2 ** np.arange(max(n_own // 2, 1).bit_length())
    levels = ranks / (n_own + 1)  # the expected share of its own world below the threshold

    # The share of the other world below each threshold, in two rows: by normal distributions, by counts.
    shares, places, misfits = _estimate_share_below(levels, mu, own, other)
    shares_below = np.stack([special.ndtr(mu + special.ndtri(levels)), shares])

    # Upper limits of both error rates, and the parameter that follows from them.
    own_limit = intervals.clopper_pearson_upper(ranks - 1, n_own, error)
    other_errors = n_other * (1 - shares_below)
    other_limits = intervals.clopper_pearson_upper(other_errors, n_other, error)
    normal, counted = parameter(other_limits, own_limit)

    # How far the counts are from normal distributions, where the pilot has enough scores to tell.
    steady = places >= _STEADY
    misfit = float(np.abs(misfits[steady]).max(initial=0.0))
    return _Judgement(ranks, normal, counted, steady, misfit)


def _estimate_separation(pilot_in: Array, pilot_out: Array) -> float:
    """Returns the distance mu, in standard deviations, of two normal laws with the pilot's AUC.

    The AUC is the share of pairs of a score in and a score out in which the score in is larger; ties count
    half. That of N(mu, 1) against N(0, 1) is Phi(mu / sqrt(2)). A tied pair is added to the pilot's pairs, so
    that the AUC is never 0 or 1.

    Args:
      pilot_in: (n,) scores with the canary.
      pilot_out: (m,) scores without it.
    """
    ordered = np.sort(pilot_out)
    # Pairs in which the score out is below the score in, and pairs in which it is not above it.
    below = np.searchsorted(ordered, pilot_in, side="left").sum()
    not_above = np.searchsorted(ordered, pilot_in, side="right").sum()
    pairs = len(pilot_in) * len(pilot_out)
    area = ((below + not_above) / 2 + 0.5) / (pairs + 1)
    return float(np.sqrt(2) * special.ndtri(area))


def _estimate_share_below(
    levels: Array, mu: float, own: Array, other: Array
) -> tuple[Array, Array, Array]:
    """Estimates, from a pilot, which share of a world lies below each quantile of the other world.

    The quantiles are of the world `own`, the shares of the world `other`. The pilot has a score near each
    quantile. Its scores of `other` below this score are counted, and 5 scores (_PRIOR) of a normal
    distribution are added to them as a prior.

    Args:
      levels: (R,) the quantiles' levels p.
      mu: The distance of both worlds in standard deviations, if they are normal. Below the p-quantile of
        N(mu, 1) lies the share Phi(mu + Phi^-1(p)) of N(0, 1).
      own: The pilot's scores of the world whose quantiles are taken.
      other: The pilot's scores of the world whose shares are estimated.

    Returns:
      (R,) each: the estimated shares, the ranks of the pilot's scores near the quantiles, and by how many
      standard deviations the counts differ from those of normal distributions.
    """
    size = len(other)
    # The rank, from 1, of the own score nearest to each quantile. Of n scores, the k-th lowest is near the
    # quantile of level k / (n + 1).
    places = np.maximum(np.rint(levels * (len(own) + 1)), 1.0)
    score_at_place = np.sort(own)[places.astype(int) - 1]
    counted = np.searchsorted(np.sort(other), score_at_place)
    # The shares below that score and below the quantile itself, if both worlds are normal.
    normal_at_place = special.ndtr(mu + special.ndtri(places / (len(own) + 1)))
    normal_at_level = special.ndtr(mu + special.ndtri(levels))

    shares = (counted + _PRIOR * normal_at_place) / (size + _PRIOR)
    # From the score to the quantile, the share changes by the factor by which the normal share does.
    shares = np.minimum(shares * normal_at_level / normal_at_place, 1.0)

    # A count varies for two reasons: the other scores are random, which is binomial; and so is the position
    # of the own score, which moves the count by a share of about 1 / sqrt(place).
    expected = size * normal_at_place
    deviation = np.sqrt(expected * (1 - normal_at_place) + expected**2 / places)
    return shares, places, (counted - expected) / deviation


class Candidates(NamedTuple):
    """A pilot's distinct scores as thresholds, with estimated (false-positive, false-negative) rates.

    Attributes:
      thresholds: (T,) the distinct scores, ascending.
      normal: The rates of normal distributions, (T,) each.
      counted: The rates as counted, with a few scores of normal distributions added, (T,) each.
      raised: `counted`, raised by 1.5 standard deviations, (T,) each.
    """

    thresholds: Array
    normal: Worlds
    counted: Worlds
    raised: Worlds


def candidates(pilot_in: Array, pilot_out: Array) -> Candidates:
    """Returns each distinct score of a pilot as a threshold, with three estimates of its error rates.

    All three depend on the order of the scores alone.

    Args:
      pilot_in: (n,) scores with the canary.
      pilot_out: (m,) scores without it.

    Returns:
      The thresholds (T,), ascending, each with three pairs of a false-positive and a false-negative rate.
      `normal` has the rates of two normal distributions with the pilot's area under the ROC curve. `counted`
      has the shares of the pilot's errors. `raised` has these raised by 1.5 standard deviations, so that a
      threshold that is good by chance alone looks no better than others.
    """
    n_in = len(pilot_in)
    n_out = len(pilot_out)
    size = n_in + n_out
    distinct, counts = np.unique(np.concatenate([pilot_in, pilot_out]), return_counts=True)

    # As normal distributions, scores out are N(0, 1) and scores in N(mu, 1). A threshold stands for the
    # number z below which the same share of their mixture lies as of the pilot's scores. It is read off
    # the mixture's distribution function on a grid, _LATENT.
    mu = 0.0
    if n_in and n_out:  # else there is no separation to estimate
        mu = _estimate_separation(pilot_in, pilot_out)
    mixture = (n_in * special.ndtr(_LATENT - mu) + n_out * special.ndtr(_LATENT)) / size
    z = np.interp(np.cumsum(counts) / (size + 1), mixture, _LATENT)
    normal_out = special.ndtr(-z)  # false positives are scores out above z
    normal_in = special.ndtr(z - mu)  # false negatives are scores in below z

    errors = count_errors(pilot_in, pilot_out, distinct)
    counted_out, raised_out = _estimate_rates(errors.false_positives, normal_out, n_out)
    counted_in, raised_in = _estimate_rates(errors.false_negatives, normal_in, n_in)
    return Candidates(
        thresholds=distinct,
        normal=(normal_out, normal_in),
        counted=(counted_out, counted_in),
        raised=(raised_out, raised_in),
    )


def _estimate_rates(errors: Counts, normal: Array, size: int) -> Worlds:
    """Estimates a world's error rates at T thresholds from a pilot's counts.

    Returns (the rates (T,), the rates raised by 1.5 standard deviations (T,)). The raised rates allow for
    counts that are low by chance.

    Args:
      errors: (T,) the numbers of errors among the pilot's scores of a world.
      normal: (T,) the rates of normal distributions, which count as 5 scores more (_PRIOR).
      size: The number of the pilot's scores of the world.
    """
    rates = (errors + _PRIOR * normal) / (size + _PRIOR)
    deviations = np.sqrt(rates * (1 - rates) / (size + _PRIOR))
    return rates, np.asarray(np.minimum(rates + _CLEAR * deviations, 1.0))
