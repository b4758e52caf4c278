"""The empirical trade-off curve of a set of scores, with a band that holds everywhere at once."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from audit.statistics import conversions, equal_levels, estimate, thresholds
from audit.statistics.intervals import Interval

Array = NDArray[np.float64]


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
        return Interval(
            np.append(0.0, self.false_negative_limits.lower)[highest],
            np.append(self.false_negative_limits.upper, 1.0)[best],
        )


def trade_off_curve(scores_in: ArrayLike, scores_out: ArrayLike, confidence: float) -> TradeOffCurve:
    """The trade-off curve of tests of a threshold: at each score or, of many, at a few hundred a world.

    The limits are `equal_levels.limits`. The worlds are independent and share the error, so that with
    continuous scores all rates lie within their limits with probability `confidence`, and with ties at least
    as often. Raises InputError for a bad confidence and for scores that `estimate.check_scores` refuses.
    """
    conversions.require_confidence(confidence)
    s_in, s_out = estimate.check_scores(scores_in, scores_out)
    error = -float(np.expm1(np.log(confidence) / 2))
    limits_in, limits_out = (equal_levels.limits(len(world), error) for world in (s_in, s_out))
    looked_at = [np.sort(s_in)[limits_in.ranks - 1], np.sort(s_out)[limits_out.ranks - 1]]
    errors = thresholds.count_errors(s_in, s_out, np.unique(np.concatenate([[-np.inf], *looked_at])))
    return TradeOffCurve(
        errors.false_positives / len(s_out),
        errors.false_negatives / len(s_in),
        limits_out.at(errors.false_positives),
        limits_in.at(errors.false_negatives),
        confidence,
    )
