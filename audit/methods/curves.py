"""The empirical trade-off curve of scores with a simultaneous confidence band, the AUC, and ROC points."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from audit.errors import require
from audit.evidence.arrays import Array, Integers
from audit.laws.intervals import Interval
from audit.methods import thresholds


class TradeOffCurve(NamedTuple):
    """Observed error rates at k ascending thresholds, and confidence limits for the true rates.

    All arrays, including the limits, have shape (k,).
    """

    false_positive_rate: Array
    false_negative_rate: Array
    false_positive_limits: Interval
    false_negative_limits: Interval

    def band(self, false_positive_rates: ArrayLike) -> Interval:
        """Returns limits (n,) on the lowest false-negative rate of threshold tests at n false-positive rates.

        At a rate a, the best threshold is the lowest one whose actual false-positive rate is at most a.
        """
        # Thresholds ascend, so false-positive limits descend. We negate them for `searchsorted`.
        negated = -np.asarray(false_positive_rates, float)
        # A threshold with a lower limit above a is too low. The best threshold is higher, so it has at least
        # as many false negatives as the last threshold that is too low (0 if there is none).
        num_too_low = np.searchsorted(-self.false_positive_limits.lower, negated)
        lower = np.append(0.0, self.false_negative_limits.lower)[num_too_low]
        # A threshold with an upper limit of at most a is high enough. The best threshold is at or below the
        # first of these. If there is none, the limit is 1.
        first_high_enough = np.searchsorted(-self.false_positive_limits.upper, negated)
        upper = np.append(self.false_negative_limits.upper, 1.0)[first_high_enough]
        return Interval(lower, upper)


def trade_off_curve(scores_in: Array, scores_out: Array, confidence: float) -> TradeOffCurve:
    """Returns the empirical trade-off curve of threshold tests, with simultaneous confidence limits.

    In-scores have shape (n,) and out-scores (m,). The worlds are independent, so the confidence of each
    world's limits is the square root of `confidence`.
    """
    error = 1 - np.sqrt(confidence)
    # Up to 100 scores of each world, at the ranks used by `limit_rates`.
    chosen = [np.sort(scores)[_choose_ranks(len(scores)) - 1] for scores in (scores_in, scores_out)]
    ascending = np.unique(np.concatenate([[-np.inf], *chosen]))
    false_positives, false_negatives = thresholds.count_errors(scores_in, scores_out, ascending)
    return TradeOffCurve(
        false_positive_rate=false_positives / len(scores_out),
        false_negative_rate=false_negatives / len(scores_in),
        false_positive_limits=limit_rates(false_positives, len(scores_out), error),
        false_negative_limits=limit_rates(false_negatives, len(scores_in), error),
    )


def _choose_ranks(trials: int) -> Integers:
    """Returns up to 100 ranks from 1 to `trials`, more closely spaced in both tails.

    The ranks correspond to evenly spaced normal quantiles.
    """
    lowest = special.ndtri(0.5 / trials)  # so the first rank is 1
    quantiles = np.linspace(lowest, -lowest, min(100, trials))
    return np.unique(np.ceil(trials * special.ndtr(quantiles)).astype(np.int64))


def limit_rates(counts: ArrayLike, trials: int, error: float) -> Interval:
    """Returns limits on a distribution function at k points, given the counts (k,) of scores below them.

    With probability at least 1 - error, all limits are valid simultaneously, for any number of points. The
    `trials` scores must be independent. We bound the function at up to 100 of the scores. Since the function
    is monotone, a score's lower limit is valid at all higher points, and its upper limit at all lower points.
    """
    # At the r-th smallest of n scores, the distribution function follows Beta(r, n + 1 - r).
    ranks = _choose_ranks(trials)
    ranks_from_top = trials + 1 - ranks
    error_of_limit = error / len(ranks) / 2  # Bonferroni; limits are two-sided
    lower = np.append(0.0, special.betaincinv(ranks, ranks_from_top, error_of_limit))
    upper = np.append(special.betaincinv(ranks, ranks_from_top, 1 - error_of_limit), 1.0)
    num_below = np.searchsorted(ranks, counts, side="right")  # of the chosen scores
    return Interval(lower[num_below], upper[num_below])


class Auc(NamedTuple):
    """The area under the ROC curve.

    Attributes:
      value: P(in-score > out-score) + P(equal) / 2 over all pairs.
      standard_error: The standard deviation of the value under the null hypothesis of no leakage.
    """

    value: float
    standard_error: float

    @property
    def deviations(self) -> float:
        """Returns the value minus 1/2, in standard errors."""
        return (self.value - 0.5) / self.standard_error


def auc(scores_in: Array, scores_out: Array) -> Auc:
    """Returns the AUC of scores of shape (n_in,) and (n_out,), with its standard error.

    The standard error is sqrt((n_in + n_out + 1) / (12 n_in n_out)), for independent scores with the same
    distribution in both worlds (Mann and Whitney, 1947, Section 4). With ties, this value is an upper bound.
    The standard error is positive even if a few scores happen to be perfectly separated.
    """
    n_in = len(scores_in)
    n_out = len(scores_out)
    value = thresholds.count_ordered_pairs(scores_in, scores_out) / n_in / n_out
    standard_error = np.sqrt((n_in + n_out + 1) / (12 * n_in * n_out))
    return Auc(value, float(standard_error))


def true_positive_rate(scores_in: Array, scores_out: Array, false_positive_rate: float) -> float:
    """Returns the true-positive rate at a given false-positive rate: a point on the ROC curve.

    The threshold is the smallest out-score exceeded by at most a fraction `false_positive_rate` of the
    out-scores (n_out,). The result is not a bound, because the same scores are used to choose and to evaluate
    the threshold. Source: Carlini et al., 2022.
    """
    require(
        0 <= false_positive_rate < 1,
        f"`false_positive_rate` must be at least 0 and below 1, got {false_positive_rate}",
    )
    # The number of out-scores that may exceed the threshold, rounded down. The last factor corrects products
    # that floating-point errors put just below a whole number.
    allowed = int(false_positive_rate * len(scores_out) * (1 + 1e-12))
    threshold = np.sort(scores_out)[-1 - allowed]
    return float((scores_in > threshold).mean())


class Attack(NamedTuple):
    """The in-sample performance of an attack: the same scores are used to choose the thresholds.

    Attributes:
      accuracy: The fraction of correct guesses if both worlds are equally likely.
      found_at_1_percent: The true-positive rate at a false-positive rate of 1%; None for fewer than 100
        out-scores.
      found_at_01_percent: The same at 0.1%; None for fewer than 1,000 out-scores.
    """

    accuracy: float
    found_at_1_percent: float | None
    found_at_01_percent: float | None


def attack(scores_in: Array, scores_out: Array) -> Attack:
    """Returns an attack's accuracy, and its true-positive rates at false-positive rates of 1% and 0.1%.

    For the accuracy, we guess "in" for scores above the median of an equal mixture of both worlds, "out" for
    scores below it, and at random for scores equal to it. In-scores have shape (n,) and out-scores (m,).
    """
    middle = _find_median_of_mixture(scores_in, scores_out)
    right_in = (scores_in > middle).mean() + (scores_in == middle).mean() / 2
    right_out = (scores_out < middle).mean() + (scores_out == middle).mean() / 2
    return Attack(
        accuracy=float(right_in + right_out) / 2,
        found_at_1_percent=_find_point(scores_in, scores_out, 0.01),
        found_at_01_percent=_find_point(scores_in, scores_out, 0.001),
    )


def _find_point(scores_in: Array, scores_out: Array, false_positive_rate: float) -> float | None:
    """Returns `true_positive_rate`, or None if the rate does not allow a single false positive."""
    if false_positive_rate * len(scores_out) < 1:
        return None
    return true_positive_rate(scores_in, scores_out, false_positive_rate)


def _find_median_of_mixture(scores_in: Array, scores_out: Array) -> float:
    """Returns the median of in-scores (n,) and out-scores (m,), with equal total weight for both worlds.

    If exactly half of the weight is below a gap between scores, the median is the gap's midpoint.
    """
    scores = np.concatenate([scores_in, scores_out])
    n_in = len(scores_in)
    n_out = len(scores_out)
    weights = np.repeat([n_out, n_in], [n_in, n_out])  # proportional to 1 / n_in and 1 / n_out
    # The lower and upper medians, which differ if there is a gap. Negating the scores swaps the two medians.
    low = np.quantile(scores, 0.5, weights=weights, method="inverted_cdf")
    high = -np.quantile(-scores, 0.5, weights=weights, method="inverted_cdf")
    return float(low / 2 + high / 2)  # the sum might overflow
