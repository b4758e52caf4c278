"""The empirical trade-off curve of a set of scores, with a band that holds everywhere at once."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from audit.statistics import conversions, estimate, thresholds

Array = NDArray[np.float64]


class TradeOffCurve(NamedTuple):
    """Error rates at every threshold, from the lowest threshold to the highest, and their limits.

    With probability at least `confidence` all true error rates lie within their limits together.
    """

    false_positive_rate: Array
    false_negative_rate: Array
    half_width_out: float  # of the false-positive rates
    half_width_in: float  # of the false-negative rates
    confidence: float

    def lower(self) -> tuple[Array, Array]:
        """The band's side nearer the origin, (false-positive, false-negative) rates."""
        return (
            np.maximum(self.false_positive_rate - self.half_width_out, 0),
            np.maximum(self.false_negative_rate - self.half_width_in, 0),
        )

    def upper(self) -> tuple[Array, Array]:
        """The band's far side, (false-positive, false-negative) rates."""
        return (
            np.minimum(self.false_positive_rate + self.half_width_out, 1),
            np.minimum(self.false_negative_rate + self.half_width_in, 1),
        )


def trade_off_curve(scores_in: ArrayLike, scores_out: ArrayLike, confidence: float) -> TradeOffCurve:
    """The trade-off curve of threshold tests, by the Dvoretzky-Kiefer-Wolfowitz inequality with
    Massart's constant (1990), half of the error for each world. Raises InputError for a bad confidence
    and for scores that `estimate.check_scores` refuses."""
    conversions.require_confidence(confidence)
    s_in, s_out = estimate.check_scores(scores_in, scores_out)
    inner = thresholds.midpoints(s_in, s_out)
    errors = thresholds.count_errors(s_in, s_out, np.concatenate([[-np.inf], inner, [np.inf]]))
    depth = np.log(4 / (1 - confidence)) / 2
    return TradeOffCurve(
        errors.false_positives / len(s_out),
        errors.false_negatives / len(s_in),
        float(np.sqrt(depth / len(s_out))),
        float(np.sqrt(depth / len(s_in))),
        confidence,
    )
