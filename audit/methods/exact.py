"""An exact test at an order statistic, inverted into a lower bound on a privacy parameter.

The null hypothesis H(t) states that the mechanism is f_t-DP, for a family of symmetric trade-off functions
f_t that decrease in the parameter t, such as mu or epsilon.

The threshold is the r-th lowest in-score (of inserted canaries), and the errors are the x out-scores (of
left-out canaries) above it, or vice versa. The rank r must not depend on the scores. `_compute_p_value`
derives a p-value from x. The p-value increases with t, so the bound is the largest t whose p-value is at most
the error probability.

The caller puts equal scores in random order. If the threshold is one of them, the test is randomised, and the
trade-off function still limits its error rates.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike
from scipy import special

from audit.evidence.arrays import Array
from audit.laws import conversions
from audit.laws.intervals import find_bracket

# The probabilities that U (`_compute_p_value`) is below each cell's upper end, and that it is in the cell.
_LEVELS = np.append(special.ndtr(np.linspace(-6.0, 6.0, 481)), 1.0)
_CELL_PROBABILITIES = np.diff(_LEVELS, prepend=0.0)


class Family(NamedTuple):
    """A family of symmetric trade-off functions f_t that decrease in their parameter t.

    Attributes:
      trade_off: Maps (parameter, false-positive rates) to the lowest false-negative rates, in [0, 1].
      parameter: Maps (false-positive rates, false-negative rates) to the parameter of the curve through each
        pair.
    """

    trade_off: Callable[[float, Array], Array]
    parameter: Callable[[ArrayLike, ArrayLike], Array]


GAUSSIAN = Family(conversions.gaussian_trade_off, conversions.mu_from_rates)


def approximate_dp(delta: float) -> Family:
    """Returns the trade-off functions of (epsilon, delta)-DP for a fixed delta; the parameter is epsilon."""
    return Family(
        functools.partial(conversions.approximate_dp_trade_off, delta=delta),
        functools.partial(conversions.epsilon_from_rates, delta=delta),
    )


class Counts(NamedTuple):
    """The errors at a threshold that is a score of one world, called the threshold's "own" world.

    Attributes:
      rank: r, the threshold's rank in its own world, counted from the lowest in-score or the highest
        out-score. The rank - 1 scores before the threshold are the errors in its own world.
      scores: n, the number of scores in the threshold's own world.
      errors: x, the number of errors in the other world.
      trials: m, the number of scores in the other world.
    """

    rank: int
    scores: int
    errors: int
    trials: int


def lower_bound(
    family: Family, audits: Sequence[Counts], rejecting: int, error: float
) -> tuple[float, int]:
    """Returns the largest t such that `rejecting` audits reject the hypothesis that the mechanism is f_t-DP.

    Each audit is a test at level error * rejecting / len(audits). Audits may depend on each other: by
    Markov's inequality, at least `rejecting` of them reject a true hypothesis with probability at most
    `error`.

    Returns:
      (the lower bound on the parameter t, at least 0; the index of the deciding audit, which has the
        `rejecting`-th lowest p-value at the bound)
    """
    level = error * rejecting / len(audits)

    def find_deciding_audit(parameter: float) -> tuple[float, int]:
        """Returns the `rejecting`-th lowest p-value at a parameter, and the index of its audit."""
        p_values = [_compute_p_value(family, parameter, counts) for counts in audits]
        deciding = int(np.argsort(p_values, kind="stable")[rejecting - 1])
        return p_values[deciding], deciding

    def compute_excess(parameter: float) -> float:
        """Returns log(p / level) for the deciding audit's p-value p; at most 0 if enough audits reject."""
        p_value, _ = find_deciding_audit(parameter)
        # The root search needs a finite logarithm.
        return np.log(max(p_value, 1e-300)) - np.log(level)

    bound = 0.0
    if compute_excess(0.0) <= 0:
        low, high = find_bracket(lambda parameter: compute_excess(parameter) <= 0, first=1.0)
        tolerance = 1e-5  # absolute
        bound = scipy.optimize.brentq(compute_excess, low, high, xtol=tolerance)
        # The root search may end just above the root. We then step down until enough audits reject.
        while bound > 0 and compute_excess(bound) > 0:
            bound = max(bound - tolerance, 0.0)
    _, deciding = find_deciding_audit(bound)
    return bound, deciding


@functools.lru_cache(maxsize=128)
def _compute_rates(rank: int, scores: int) -> Array:
    """Returns quantiles, at _LEVELS, of U ~ Beta(rank, scores - rank + 1)."""
    return special.betaincinv(rank, scores - rank + 1, _LEVELS)


def _compute_p_value(family: Family, parameter: float, counts: Counts) -> float:
    """Returns the p-value of the errors in one world, under the hypothesis that the mechanism is f-DP.

    The threshold is the score with a fixed rank in the other world. So its error rate in that world is at
    most a random value U ~ Beta(rank, scores - rank + 1). Given U, f-DP implies an error rate of at least
    f(U) in the tested world. The p-value is the mean of P(Binomial(trials, f(U)) <= errors) over U.

    To be conservative, we divide the range of U into cells with probabilities _CELL_PROBABILITIES, and use
    the largest P in each cell (at the upper end, because f decreases).
    """
    rates = family.trade_off(parameter, _compute_rates(counts.rank, counts.scores))
    return _CELL_PROBABILITIES @ special.bdtr(float(counts.errors), counts.trials, rates)
