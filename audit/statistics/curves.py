"""The empirical trade-off curve of a set of scores, with a band that holds everywhere at once; the area under
the ROC curve, and single points of it.

The band is made of limits of both worlds' distribution functions, as precise in the tails as in the centre.
Of n draws from F, F at the i-th smallest has a beta law, Beta(i, n + 1 - i). Each gets the two-sided limits
of one local level, such that all hold together as often as wanted (Berk and Jones, 1979; Aldor-Noiman et
al., "The power to see", 2013). A band of one width says nothing of the tails, where rates are far smaller.

The joint coverage is computed, not approximated: uniform draws are a Poisson process given its number of
points, and the law of its count is carried from one limit to the next (after Moscovich and Nadler, 2017). Of
many draws a few hundred are looked at, which is as fine as a picture; their coverage is exact, and between
them F is monotone.
"""

import functools
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit.errors import require
from audit.statistics import conversions, estimate, intervals, thresholds
from audit.statistics.intervals import Interval

Array = NDArray[np.float64]
Ranks = NDArray[np.int64]

_MOST_RANKS = 300
_DEVIATIONS = 8.0  # of a Poisson count that are followed
_FEW = 12  # counts more, for a small mean
_DIRECT = 150  # entries of the shorter law from which a convolution goes by FFT
_TOLERANCE = 1e-5  # relative, of the local level


class TradeOffCurve(NamedTuple):
    """Error rates (k,) at thresholds, from the lowest to the highest, and their limits.

    With probability at least `confidence` all true error rates lie within their limits together.
    """

    false_positive_rate: Array
    false_negative_rate: Array
    false_positive_limits: Interval
    false_negative_limits: Interval
    confidence: float

    def band(self, false_positive_rates: ArrayLike) -> Interval:
        """Limits of the least false-negative rate at false-positive rates (n,), among tests of a threshold.

        They cover the whole curve at least as often as `confidence`, and mostly more often.
        Above: the best threshold whose false-positive rate is surely no higher. Below: the highest threshold
        whose false-positive rate is surely higher, since a test that keeps to the rate needs a higher one.
        """
        rates = np.asarray(false_positive_rates, np.float64)
        surely, perhaps = self.false_positive_limits.upper, self.false_positive_limits.lower
        best = np.searchsorted(-surely, -rates, side="left")
        highest = np.searchsorted(-perhaps, -rates, side="left")
        lower, upper = self.false_negative_limits
        return Interval(np.append(0.0, lower)[highest], np.append(upper, 1.0)[best])


def trade_off_curve(scores_in: ArrayLike, scores_out: ArrayLike, confidence: float) -> TradeOffCurve:
    """The trade-off curve of tests of a threshold: at each score or, of many, at a few hundred a world.

    The limits are `limits`. The worlds are independent and share the error, so that with
    continuous scores all rates lie within their limits with probability `confidence`, and with ties at least
    as often. Raises InputError for a bad confidence and for scores that `estimate.check_scores` refuses.
    """
    conversions.require_confidence(confidence)
    s_in, s_out = estimate.check_scores(scores_in, scores_out)
    error = -float(np.expm1(np.log(confidence) / 2))
    limits_in, limits_out = (limits(len(world), error) for world in (s_in, s_out))
    looked_at = [np.sort(s_in)[limits_in.ranks - 1], np.sort(s_out)[limits_out.ranks - 1]]
    errors = thresholds.count_errors(s_in, s_out, np.unique(np.concatenate([[-np.inf], *looked_at])))
    rates = errors.false_positives / len(s_out), errors.false_negatives / len(s_in)
    enclosing = limits_out.at(errors.false_positives), limits_in.at(errors.false_negatives)
    return TradeOffCurve(*rates, *enclosing, confidence)


class Auc(NamedTuple):
    """P(score in > score out) + P(equal) / 2 over all pairs, and its standard error where nothing leaks."""

    value: float
    standard_error: float

    @property
    def deviations(self) -> float:
        """Standard errors above 1/2, negative below."""
        return (self.value - 0.5) / self.standard_error


def auc(scores_in: ArrayLike, scores_out: ArrayLike) -> Auc:
    """The AUC of scores (n_in,) and (n_out,); raises InputError for scores that no estimator can use.

    The standard error is that of n_in + n_out independent scores of one distribution, whatever it is, and no
    more with ties: sqrt((n_in + n_out + 1) / (12 n_in n_out)) (Mann and Whitney, 1947, Section 4). Unlike
    those of Hanley and McNeil or DeLong it does not vanish where a few scores lie apart by chance.
    """
    s_in, s_out = estimate.check_scores(scores_in, scores_out)
    ordered = np.sort(s_out)
    below = np.searchsorted(ordered, s_in, "left") + np.searchsorted(ordered, s_in, "right")
    n_in, n_out = len(s_in), len(s_out)
    return Auc(float(below.mean() / (2 * n_out)), float(np.sqrt((n_in + n_out + 1) / (12 * n_in * n_out))))


def true_positive_rate(scores_in: ArrayLike, scores_out: ArrayLike, false_positive_rate: float) -> float:
    """The share of scores in (n_in,) above the least threshold that at most such a share of scores out
    (n_out,) exceeds; raises InputError for scores that no estimator can use.

    No bound, but a point of the ROC curve (Carlini et al., 2022): the threshold is chosen on these scores. A
    rate below 1 / n_out allows no false positive.
    """
    rate = false_positive_rate
    require(0 <= rate < 1, f"`false_positive_rate={rate}`: give 0 to below 1")
    s_in, s_out = estimate.check_scores(scores_in, scores_out)
    allowed = int(rate * len(s_out) * (1 + 1e-12))
    return float((s_in > np.sort(s_out)[len(s_out) - 1 - allowed]).mean())


class Rate(NamedTuple):
    """A share of guesses, and its 95% limits by Clopper and Pearson, as if the threshold were given."""

    value: float
    lower: float
    upper: float


class Attack(NamedTuple):
    """The attack in plain figures: how often a guess is right where both worlds are as likely, and the shares
    of scores in that are found at a false-positive rate of 1% and of 0.1%; None with so few scores out that
    these allow no false positive."""

    accuracy: Rate
    found_at_1_percent: Rate | None
    found_at_01_percent: Rate | None


def attack(scores_in: ArrayLike, scores_out: ArrayLike) -> Attack:
    """The attack's accuracy, guessing "in" above the median of the worlds' even mixture, and its
    true-positive rates; none is a bound. Raises InputError for scores that no estimator can use."""
    s_in, s_out = estimate.check_scores(scores_in, scores_out)
    values, order = np.unique(np.concatenate([s_in, s_out]), return_inverse=True)
    weights = np.repeat([0.5 / len(s_in), 0.5 / len(s_out)], [len(s_in), len(s_out)])
    share = np.bincount(order, weights).cumsum()
    low, high = values[np.searchsorted(share, 0.5 - 1e-12)], values[np.searchsorted(share, 0.5 + 1e-12)]
    middle = low / 2 + high / 2
    equal = np.array([(world == middle).mean() for world in (s_in, s_out)])
    above, below = (s_in > middle).mean() + equal[0] / 2, (s_out < middle).mean() + equal[1] / 2
    each = [_rate(float(share), len(world), 0.975) for share, world in ((above, s_in), (below, s_out))]
    accuracy = Rate(*(float(np.mean(side)) for side in zip(*each, strict=True)))
    found = [
        _rate(true_positive_rate(s_in, s_out, rate), len(s_in)) if rate * len(s_out) >= 1 else None
        for rate in (0.01, 0.001)
    ]
    return Attack(accuracy, *found)


def _rate(value: float, guesses: int, confidence: float = 0.95) -> Rate:
    limits = intervals.clopper_pearson(round(value * guesses), guesses, confidence)
    return Rate(value, float(limits.lower), float(limits.upper))


class Limits(NamedTuple):
    """Limits (m,) of a distribution function at the order statistics of some ranks (m,), from 1."""

    ranks: Ranks
    lower: Array
    upper: Array

    def at(self, counts: ArrayLike) -> Interval:
        """Limits of the rates of counts (k,): those of the nearest ranks that are sure to enclose them."""
        place = np.searchsorted(self.ranks, np.asarray(counts), side="right")
        return Interval(np.append(0.0, self.lower)[place], np.append(self.upper, 1.0)[place])


@functools.lru_cache(maxsize=64)
def limits(trials: int, error: float) -> Limits:
    """Limits that all hold with probability 1 - error for `trials` draws of any continuous law, and at least
    as often with ties. The time grows slowly: 0.06 s for 10,000 draws, 0.8 s for ten million."""
    ranks = _ranks(trials)
    lower = _lower(trials, ranks, local_level(trials, ranks, error))
    found = Limits(ranks, lower, 1 - lower[::-1])
    for array in found:
        array.setflags(write=False)
    return found


def local_level(trials: int, ranks: Ranks, error: float) -> float:
    """The level of each rank's own limits at which one of them misses with probability `error`.

    ranks (m,): as in `coverage`. Right to 1e-5 of itself. For errors below 1e-8 it is error / m (Bonferroni),
    which is less; an error above 0.99 is taken for 0.99.
    """
    if error < 1e-8:  # lost in the rounding of a coverage
        return error / len(ranks)
    error = min(error, 0.99)
    wanted = np.log(-np.log1p(-error))

    def excess(log_local: float) -> float:
        covered = max(coverage(trials, ranks, float(np.exp(log_local))), 1e-300)
        return float(np.log(-np.log(covered)) - wanted)

    least, most = np.log(error / (len(ranks) + 1)), 0.99 * np.log(error)
    return float(np.exp(scipy.optimize.brentq(excess, least, most, xtol=_TOLERANCE)))


def coverage(trials: int, ranks: Ranks, local: float) -> float:
    """The probability that uniform order statistics all lie within their two-sided limits of a local level.

    ranks: ascending from 1 to `trials`, symmetric as `trials + 1 - ranks`. The i-th smallest is above its
    lower limit where fewer than i points are below that, and below its upper limit where at least i are
    below this. Absolute error about 1e-12.
    """
    low = _lower(trials, ranks, local)
    times = np.concatenate([low, 1 - low[::-1]])
    order = np.argsort(times, kind="stable")
    means = trials * np.diff(times[order], prepend=0.0, append=1.0)
    least = np.concatenate([np.zeros_like(ranks), ranks])[order]
    most = np.concatenate([ranks - 1, np.full_like(ranks, trials)])[order]
    log_factorials = special.gammaln(np.arange(1.0, means.max() + _reach(means.max()) + 3))
    law, first = np.ones(1), 0
    for mean, fewest, largest in zip(means[:-1].tolist(), least.tolist(), most.tolist(), strict=True):
        fewest_points, points = _poisson(mean, log_factorials)
        law, first = _convolved(law, points), first + fewest_points
        law = law[max(fewest - first, 0) : max(largest + 1 - first, 0)]
        first = max(first, fewest)
    log_all = special.xlogy(trials, trials) - trials - special.gammaln(trials + 1.0)
    return float(law.sum() * np.exp(-means[-1] - log_all))


def _ranks(trials: int) -> Ranks:
    """All ranks, or a few hundred that are evenly spread in normal deviates, both ends among them."""
    if trials <= _MOST_RANKS:
        return np.arange(1, trials + 1)
    end = special.ndtri(0.5 / trials)
    below = np.unique(np.ceil(trials * special.ndtr(np.linspace(end, 0, _MOST_RANKS // 2))).astype(np.int64))
    return np.unique(np.concatenate([below, trials + 1 - below]))


def _lower(trials: int, ranks: Ranks, local: float) -> Array:
    return np.asarray(special.betaincinv(ranks, trials + 1 - ranks, local / 2))


def _reach(mean: float) -> float:
    return float(_DEVIATIONS * np.sqrt(mean) + _FEW)


def _poisson(mean: float, log_factorials: Array) -> tuple[int, Array]:
    """The least count that is followed, and the probabilities from there on."""
    reach = _reach(mean)
    first, end = max(int(mean - reach), 0), int(mean + reach) + 1
    law: Array = np.exp(special.xlogy(np.arange(first, end), mean) - log_factorials[first:end] - mean)
    return first, law


def _convolved(one: Array, other: Array) -> Array:
    if min(len(one), len(other)) < _DIRECT:
        return np.convolve(one, other)
    size = len(one) + len(other) - 1
    whole = scipy.fft.next_fast_len(size, real=True)
    return np.asarray(
        scipy.fft.irfft(scipy.fft.rfft(one, whole) * scipy.fft.rfft(other, whole), whole)[:size]
    )
