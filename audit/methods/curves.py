"""The empirical trade-off curve of a set of scores, with a band that holds everywhere at once; the area under
the ROC curve, and single points of it.

The band is made of limits of both worlds' distribution functions, as precise in the tails as in the centre.
Of n draws from F, F at the i-th smallest has a beta law, Beta(i, n + 1 - i). Each gets two-sided limits of a
common local level, such that all of them hold together with the confidence that is requested (Berk and Jones,
1979; Aldor-Noiman et al., "The power to see", 2013). A band of constant width says nothing of the tails,
where rates are far smaller.

The joint coverage is computed, not approximated: uniform draws are a Poisson process given its number of
points, and the law of its count is carried from each limit to the next (after Moscovich and Nadler, 2017). Of
many draws only a few hundred get limits, which is as fine as a picture; their coverage is exact, and between
them F is monotone.
"""

import functools
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit.errors import require
from audit.laws import conversions, intervals
from audit.laws.intervals import Interval
from audit.methods import estimate, thresholds

Array = NDArray[np.float64]
Ranks = NDArray[np.int64]

_MOST_RANKS = 300  # order statistics that get limits
_DEVIATIONS = (
    8.0  # standard deviations to which a Poisson law is computed on each side of its mean,
)
_FEW = 12  # and this many counts beyond, for a small mean
_DIRECT = 150  # entries of the shorter law from which on a convolution is computed by FFT
_TOLERANCE = 1e-5  # relative, of the local level


class TradeOffCurve(NamedTuple):
    """Error rates at k thresholds, from the lowest to the highest, and their confidence limits.

    With probability at least `confidence`, all true error rates lie within their limits at once.

    Attributes:
      false_positive_rate: (k,) the observed rate at each threshold.
      false_negative_rate: (k,) the observed rate at each threshold.
      false_positive_limits: The limits of the true false-positive rates, (k,) each.
      false_negative_limits: The limits of the true false-negative rates, (k,) each.
      confidence: The confidence of all limits together.
    """

    false_positive_rate: Array
    false_negative_rate: Array
    false_positive_limits: Interval
    false_negative_limits: Interval
    confidence: float

    def band(self, false_positive_rates: ArrayLike) -> Interval:
        """Returns limits of threshold tests' least false-negative rate at false-positive rates (n,).

        The limits cover the whole curve with at least the probability `confidence`. False-positive rates fall
        and false-negative rates rise with the threshold. So the best test at a rate a has the lowest
        threshold whose true false-positive rate is at most a.

        The first threshold whose false-positive rate has an upper limit of at most a is surely high enough:
        its upper false-negative limit is the upper limit at a. The last threshold whose false-positive rate
        has a lower limit above a is surely too low: its lower false-negative limit is the lower limit at a.
        """
        rates = np.asarray(false_positive_rates, np.float64)
        # The index of the first threshold whose upper (lower) limit is at most the rate. Limits fall as
        # thresholds rise; negated they ascend, as searchsorted needs them.
        first_sure = np.searchsorted(-self.false_positive_limits.upper, -rates, side="left")
        first_possible = np.searchsorted(-self.false_positive_limits.lower, -rates, side="left")
        # With 0.0 in front, lower[i] is that of threshold i - 1, the last that surely exceeds the rate. The
        # limit is 0 where none surely exceeds it, and 1 where none surely keeps to it.
        lower = np.append(0.0, self.false_negative_limits.lower)
        upper = np.append(self.false_negative_limits.upper, 1.0)
        return Interval(lower[first_possible], upper[first_sure])


def trade_off_curve(
    scores_in: ArrayLike, scores_out: ArrayLike, confidence: float
) -> TradeOffCurve:
    """Returns threshold tests' empirical trade-off curve, with limits that hold for all rates at once.

    Thresholds are all scores or, of more than 300 in a world, about 300 of them. The worlds are independent,
    so that each gets limits with the square root of the confidence. With continuous scores all rates lie
    within their limits with probability `confidence`, and with ties at least as often.

    Args:
      scores_in: (n,) scores of runs with the canary, higher meaning in.
      scores_out: (m,) scores of runs without it.
      confidence: The confidence of all limits together.

    Raises:
      InputError: A bad confidence, or scores that `estimate.check_scores` refuses.
    """
    conversions.require_confidence(confidence)
    s_in, s_out = estimate.check_scores(scores_in, scores_out)
    # 1 - sqrt(confidence), the error of each world.
    error = -float(np.expm1(np.log(confidence) / 2))
    limits_in = compute_limits(len(s_in), error)
    limits_out = compute_limits(len(s_out), error)

    # Each world's thresholds are its order statistics at the ranks, which count from 1. The threshold -inf,
    # which all scores exceed, begins the curve.
    scores_at_ranks_in = np.sort(s_in)[limits_in.ranks - 1]
    scores_at_ranks_out = np.sort(s_out)[limits_out.ranks - 1]
    scores = np.unique(np.concatenate([[-np.inf], scores_at_ranks_in, scores_at_ranks_out]))
    errors = thresholds.count_errors(s_in, s_out, scores)
    # `enclose` takes numbers of draws below a point. False positives lie above their threshold: they are
    # draws below a point if the scores out are negated, which changes none of the limits.
    return TradeOffCurve(
        errors.false_positives / len(s_out),
        errors.false_negatives / len(s_in),
        limits_out.enclose(errors.false_positives),
        limits_in.enclose(errors.false_negatives),
        confidence,
    )


class Auc(NamedTuple):
    """The area under the ROC curve.

    Attributes:
      value: P(score in > score out) + P(equal) / 2 over all pairs.
      standard_error: The standard deviation that the value has where nothing leaks.
    """

    value: float
    standard_error: float

    @property
    def deviations(self) -> float:
        """Returns how many standard errors the value is above 1/2; negative below."""
        return (self.value - 0.5) / self.standard_error


def auc(scores_in: ArrayLike, scores_out: ArrayLike) -> Auc:
    """Returns the AUC of scores (n_in,) and (n_out,); raises InputError for scores that no estimator can use.

    The AUC is the probability that a score in exceeds a score out; a tie counts half. The standard error is
    that of n_in + n_out independent scores of a common distribution, whatever it is, and no more with ties:
    sqrt((n_in + n_out + 1) / (12 n_in n_out)) (Mann and Whitney, 1947, Section 4). Unlike those of Hanley and
    McNeil or DeLong it does not vanish where chance separates a few scores.
    """
    s_in, s_out = estimate.check_scores(scores_in, scores_out)
    n_in = len(s_in)
    n_out = len(s_out)
    ordered = np.sort(s_out)
    looked_up = np.sort(s_in)  # of millions of scores, sorted ones are found much faster
    below = np.searchsorted(ordered, looked_up, "left")
    below_or_equal = np.searchsorted(ordered, looked_up, "right")
    # The mean of both counts takes a tie as half a score below.
    value = (below + below_or_equal).mean() / (2 * n_out)
    standard_error = np.sqrt((n_in + n_out + 1) / (12 * n_in * n_out))
    return Auc(float(value), float(standard_error))


def true_positive_rate(
    scores_in: ArrayLike, scores_out: ArrayLike, false_positive_rate: float
) -> float:
    """Returns the true-positive rate at a false-positive rate (Carlini et al., 2022).

    It is the share of scores in (n_in,) above a threshold, a point of the ROC curve. The threshold is the
    least of the scores out (n_out,) for which the share of scores out above it is at most
    `false_positive_rate`. It is chosen on the scores that it is used on, so that the result is no bound. A
    rate below 1 / n_out allows no false positive.

    Raises:
      InputError: A rate out of range, or scores that no estimator can use.
    """
    rate = false_positive_rate
    require(0 <= rate < 1, f"`false_positive_rate={rate}`: give 0 to below 1")
    s_in, s_out = estimate.check_scores(scores_in, scores_out)
    # How many scores out may exceed the threshold. The factor keeps a whole number, which rounding left
    # slightly too small, from losing 1.
    allowed = int(rate * len(s_out) * (1 + 1e-12))
    threshold = np.sort(s_out)[len(s_out) - 1 - allowed]
    return float((s_in > threshold).mean())


class Rate(NamedTuple):
    """A share of guesses, and its 95% limits by Clopper and Pearson, as if the threshold were given."""

    value: float
    lower: float
    upper: float


class Attack(NamedTuple):
    """How well an attack guesses, in plain figures.

    Attributes:
      accuracy: The share of right guesses where both worlds are equally likely.
      found_at_1_percent: The true-positive rate at a false-positive rate of 1%; None with fewer than 100
        scores out, of which 1% is not one false positive.
      found_at_01_percent: The same at 0.1%; None with fewer than 1,000 scores out.
    """

    accuracy: Rate
    found_at_1_percent: Rate | None
    found_at_01_percent: Rate | None


def attack(scores_in: ArrayLike, scores_out: ArrayLike) -> Attack:
    """Returns an attack's accuracy and its true-positive rates at 1% and 0.1% false positives.

    The attack guesses "in" for a score above the median of both worlds' even mixture, "out" below it, and at
    random at the median itself. None of these figures is a bound.

    Args:
      scores_in: (n,) scores with the canary.
      scores_out: (m,) scores without it.

    Raises:
      InputError: Scores that no estimator can use.
    """
    s_in, s_out = estimate.check_scores(scores_in, scores_out)
    middle = _find_median_of_mixture(s_in, s_out)
    right_in = (s_in > middle).mean() + (s_in == middle).mean() / 2
    right_out = (s_out < middle).mean() + (s_out == middle).mean() / 2
    # Each world's limits miss with probability 2.5%, so that the averages of both hold with 95%.
    rates = (
        _limit_rate(float(right_in), len(s_in), 0.975),
        _limit_rate(float(right_out), len(s_out), 0.975),
    )
    found: list[Rate | None] = []
    for rate in (0.01, 0.001):
        if rate * len(s_out) < 1:  # it allows no false positive
            found.append(None)
        else:
            found.append(_limit_rate(true_positive_rate(s_in, s_out, rate), len(s_in), 0.95))
    return Attack(Rate(*np.mean(rates, axis=0).tolist()), *found)


def _find_median_of_mixture(s_in: Array, s_out: Array) -> float:
    """Returns the median of all scores, where the scores of each world weigh a half together.

    Where exactly half of the weight lies below a gap between scores, it is the middle of the gap.

    Args:
      s_in: (n,) scores.
      s_out: (m,) scores.
    """
    values, indices = np.unique(np.concatenate([s_in, s_out]), return_inverse=True)
    weights = np.repeat([0.5 / len(s_in), 0.5 / len(s_out)], [len(s_in), len(s_out)])
    cumulated = np.bincount(indices, weights).cumsum()
    # Both are the same score unless a cumulated weight is 1/2, up to rounding.
    low = values[np.searchsorted(cumulated, 0.5 - 1e-12)]
    high = values[np.searchsorted(cumulated, 0.5 + 1e-12)]
    return float(low / 2 + high / 2)  # the sum of both might be too large for a float


def _limit_rate(value: float, guesses: int, confidence: float) -> Rate:
    """Returns a share of right guesses with its two-sided Clopper-Pearson limits.

    A guess at a tie counts as half right, so that the number of right guesses is rounded for the limits.
    """
    limits = intervals.clopper_pearson(round(value * guesses), guesses, confidence)
    return Rate(value, float(limits.lower), float(limits.upper))


class Limits(NamedTuple):
    """Lower and upper limits of a distribution function F at m order statistics.

    Attributes:
      ranks: (m,) the ranks of the order statistics, from 1, ascending.
      lower: (m,) the lower limit of F at each of them.
      upper: (m,) the upper limit of F at each of them.
    """

    ranks: Ranks
    lower: Array
    upper: Array

    def enclose(self, counts: ArrayLike) -> Interval:
        """Returns limits of the distribution function F at points, from how many draws lie below each point.

        Since F is monotone, a point has the lower limit of the last of `ranks` that is not above its number
        of draws, and the upper limit of the next rank. Before the first rank the lower limit is 0, and after
        the last the upper limit is 1.

        Args:
          counts: (k,) how many draws lie below each point.
        """
        place = np.searchsorted(self.ranks, np.asarray(counts), side="right")
        lower = np.append(0.0, self.lower)
        upper = np.append(self.upper, 1.0)
        return Interval(lower[place], upper[place])


@functools.lru_cache(maxsize=64)
def compute_limits(trials: int, error: float) -> Limits:
    """Returns a confidence band of a distribution function, as its limits at some of the order statistics.

    With independent draws of any continuous law all limits hold at once with probability 1 - error; with ties
    they hold at least as often. It takes 0.06 s for 10,000 draws, and 0.8 s for ten million.

    Args:
      trials: The number of draws from the distribution.
      error: The probability that not all limits hold.
    """
    ranks = _choose_ranks(trials)
    # The error of each rank's two limits, at which all limits together have the error `error`.
    local = find_local_level(trials, ranks, error)
    lower = _compute_lower_limits(trials, ranks, local)
    # By symmetry the upper limit of rank r mirrors the lower one of rank trials + 1 - r.
    return Limits(ranks, lower, 1 - lower[::-1])


def find_local_level(trials: int, ranks: Ranks, error: float) -> float:
    """Returns the local level: the error of each rank's limits, at which all together have the error `error`.

    The error of all together is 1 minus their coverage, which `compute_coverage` gives. The local level is
    right to 1e-5 of itself. For errors below 1e-8 it is the error over the number m of ranks (Bonferroni),
    which is less. An error above 0.99 is taken for 0.99: the search takes the log of the coverage, which must
    not be 0.

    Args:
      trials: The number of draws.
      ranks: (m,) ranks of order statistics, as `compute_coverage` needs them.
      error: The probability that not all limits hold.
    """
    if error < 1e-8:  # it would be lost in the rounding of a coverage, a number near 1
        return error / len(ranks)
    error = min(error, 0.99)
    target = np.log(-np.log1p(-error))  # log(-log coverage) for the coverage 1 - error

    def compute_excess(log_local: float) -> float:
        """Returns by how much log(-log coverage) of the limits exceeds that of a coverage of 1 - error.

        It is 0 at the level that is sought. Its form makes the search quick: log(-log coverage) is nearly
        linear in the log of the local level.

        Args:
          log_local: The log of the local level, the error of each rank's limits.
        """
        coverage = compute_coverage(trials, ranks, float(np.exp(log_local)))
        coverage = max(coverage, 1e-300)  # a coverage of 0 has no log
        return float(np.log(-np.log(coverage)) - target)

    # The local level lies between Bonferroni's, error / m, and `error`. With a single rank it equals both. So
    # the search begins a little beyond each end.
    least = np.log(error / (len(ranks) + 1))
    most = 0.99 * np.log(error)
    return float(np.exp(scipy.optimize.brentq(compute_excess, least, most, xtol=_TOLERANCE)))


def compute_coverage(trials: int, ranks: Ranks, local: float) -> float:
    """Returns the probability that uniform order statistics all lie within their limits, to about 1e-12.

    This is a band's coverage (after Moscovich and Nadler, 2017). The r-th smallest of n draws is above its
    lower limit if fewer than r draws lie below that limit. It is below its upper limit if at least r draws
    lie below that limit. So all order statistics lie within their limits if the number of draws below each
    limit lies in a range.

    The draws are a Poisson process of mean n on [0, 1], given that it has n points. Its numbers of points
    between limits are independent. So the law of the number of points below a limit is carried from each
    limit to the next, by a convolution, and is cut to the range there. In the end it is divided by the
    probability of n points.

    Args:
      trials: The number n of draws.
      ranks: (m,) ranks of the order statistics, ascending, with 1 and n, and with n + 1 - r for each rank r.
      local: The level of each rank's two-sided limits.
    """
    lower = _compute_lower_limits(trials, ranks, local)
    limits = np.concatenate(
        [lower, 1 - lower[::-1]]
    )  # the ranks are symmetric, and so are their limits
    order = np.argsort(limits, kind="stable")  # from the lowest limit to the highest

    # The mean number of points between neighbouring limits, and the least and the largest number
    # of points that may lie below each limit: 0 to r - 1 below a lower limit, r to n below an upper limit.
    means = trials * np.diff(limits[order], prepend=0.0, append=1.0)
    least = np.concatenate([np.zeros_like(ranks), ranks])[order]
    most = np.concatenate([ranks - 1, np.full_like(ranks, trials)])[order]
    # log 0!, log 1!, ..., to beyond the largest number of points that lies between neighbours.
    largest_count = means.max() + _compute_reach(means.max())
    log_factorials = special.gammaln(np.arange(1.0, largest_count + 3))

    # law[i] is the probability that first + i points lie below the limits so far, which all hold.
    law = np.ones(1)
    first = 0
    for mean, fewest, largest in zip(
        means[:-1].tolist(), least.tolist(), most.tolist(), strict=True
    ):
        first_step, step_law = _compute_poisson_law(mean, log_factorials)
        law = _convolve(law, step_law)
        first += first_step
        # Cut to the counts from `fewest` to `largest`; entry 0 of the law is that of the count `first`.
        law = law[max(fewest - first, 0) : max(largest + 1 - first, 0)]
        first = max(first, fewest)
    # All n points lie below the last limit, the upper limit of rank n, and so none beyond it, which has the
    # probability exp(-means[-1]). A Poisson count of mean n is n with probability exp(log_all).
    log_all = special.xlogy(trials, trials) - trials - special.gammaln(trials + 1.0)
    return float(law.sum() * np.exp(-means[-1] - log_all))


def _choose_ranks(trials: int) -> Ranks:
    """Returns the ranks of the order statistics at which a distribution function gets limits.

    Of up to 300 draws they are all ranks. Of more they are about 300 ranks at evenly spaced normal quantiles,
    which are dense in the tails and include both ends. They are symmetric about the median.
    """
    if trials <= _MOST_RANKS:
        return np.arange(1, trials + 1)
    # From the quantile at 0.5 / n, near which the first of n draws lies, to the median. The other half is
    # mirrored.
    end = special.ndtri(0.5 / trials)
    shares = special.ndtr(np.linspace(end, 0, _MOST_RANKS // 2))
    below_median = np.unique(np.ceil(trials * shares).astype(np.int64))
    return np.unique(np.concatenate([below_median, trials + 1 - below_median]))


def _compute_lower_limits(trials: int, ranks: Ranks, local: float) -> Array:
    """Returns the lower limits (m,) of F at order statistics: quantiles of Beta(rank, trials + 1 - rank).

    Each misses with half the probability `local`, the error of both limits of a rank.
    """
    return np.asarray(special.betaincinv(ranks, trials + 1 - ranks, local / 2))


def _compute_reach(mean: float) -> float:
    """Returns how far from its mean a Poisson law is computed: 8 standard deviations and 12 counts.

    The mass beyond is lost in rounding.
    """
    return float(_DEVIATIONS * np.sqrt(mean) + _FEW)


def _compute_poisson_law(mean: float, log_factorials: Array) -> tuple[int, Array]:
    """Returns (the least count with mass that matters, the Poisson probabilities from that count on).

    Args:
      mean: The mean of the Poisson law.
      log_factorials: log 0!, log 1!, ..., to beyond the largest count that matters.
    """
    reach = _compute_reach(mean)
    first = max(int(mean - reach), 0)
    end = int(mean + reach) + 1
    counts = np.arange(first, end)
    law: Array = np.exp(special.xlogy(counts, mean) - log_factorials[first:end] - mean)
    return first, law


def _convolve(first: Array, second: Array) -> Array:
    """Returns the law of the sum of two independent counts, directly or by FFT, whichever is faster.

    Args:
      first: (a,) probabilities of consecutive counts.
      second: (b,) probabilities of consecutive counts.

    Returns:
      (a + b - 1,) probabilities of consecutive sums.
    """
    if min(len(first), len(second)) < _DIRECT:
        return np.convolve(first, second)
    size = len(first) + len(second) - 1
    padded = scipy.fft.next_fast_len(size, real=True)
    product = scipy.fft.rfft(first, padded) * scipy.fft.rfft(second, padded)
    return np.asarray(scipy.fft.irfft(product, padded)[:size])
