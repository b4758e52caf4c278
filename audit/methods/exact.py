"""An exact test at an order statistic, inverted into a lower bound on a privacy parameter.

The null hypothesis H(t) states that the mechanism is f_t-DP, for a family of symmetric trade-off functions
f_t that decrease in t (Gaussian: t = mu; approximate DP: t = epsilon at a fixed delta).

The threshold is the r-th lowest of n scores in, for an r that does not depend on these scores, and x of m
scores out are above it. For any distribution of scores, the false-negative rate at the threshold has the
distribution of U ~ Beta(r, n - r + 1), or is lower. Given the threshold, x is Binomial(m, a) with a >=
f_t(U). So under H(t), the probability of at most x false positives is at most

    p_t(x) = E[ P(Binomial(m, f_t(U)) <= x) ],

an integral over a known distribution. p_t(x) increases with t, and the bound solves p_t(x) = error. The same
is true with the worlds exchanged.

We compute the integral as a sum over cells of U. We use the largest probability in each cell, at its upper
end, so the bound is always conservative. The caller puts equal scores in random order. A threshold among them
is a randomised test, and its rates satisfy the trade-off function too.
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

# The probabilities of U below the upper ends of its cells, and in each cell.
_LEVELS = np.append(special.ndtr(np.linspace(-6.0, 6.0, 481)), 1.0)
_MASSES = np.diff(_LEVELS, prepend=0.0)


class Family(NamedTuple):
    """A family of symmetric trade-off functions f_t that decrease in their parameter t.

    Attributes:
      trade_off: Maps (parameter, false-positive rates) to the least false-negative rates, in [0, 1].
      parameter: Maps (false-positive rates, false-negative rates) to the parameter of the curve through them.
    """

    trade_off: Callable[[float, Array], Array]
    parameter: Callable[[ArrayLike, ArrayLike], Array]


GAUSSIAN = Family(conversions.gaussian_trade_off, conversions.mu_from_rates)


def approximate_dp(delta: float) -> Family:
    """Returns the trade-off functions of (epsilon, delta)-DP at a delta, with epsilon as the parameter."""
    return Family(
        functools.partial(conversions.approximate_dp_trade_off, delta=delta),
        functools.partial(conversions.epsilon_from_rates, delta=delta),
    )


class Counts(NamedTuple):
    """The errors at a threshold that is itself a score of one of the worlds, the near world.

    Ranks count from the lowest score if the near world is "in", and from the highest if it is "out".

    Attributes:
      rank: r, the threshold's rank; the rank - 1 scores of the near world before it are errors.
      scores: n, the number of scores of the near world.
      errors: x, the number of errors in the other world.
      trials: m, the number of scores of the other world.
    """

    rank: int
    scores: int
    errors: int
    trials: int


def lower_bound(
    family: Family, audits: Sequence[Counts], rejecting: int, error: float
) -> tuple[float, int]:
    """Returns the largest t such that enough audits reject the hypothesis that the mechanism is f_t-DP.

    The audits may be dependent. Each is a test at level error * rejecting / len(audits). By Markov's
    inequality, the probability that `rejecting` of them reject a true hypothesis is at most `error`.

    Args:
      family: The trade-off functions f_t.
      audits: The counts of each audit.
      rejecting: How many audits must reject.
      error: The probability that the bound exceeds the truth.

    Returns:
      (the lower bound on the parameter, at least 0; the index of the deciding audit, which has the
        `rejecting`-th lowest p-value there)
    """
    level = error * rejecting / len(audits)

    def find_deciding_audit(parameter: float) -> tuple[float, int]:
        """Returns the `rejecting`-th lowest p-value at a parameter and its audit's index."""
        p_values = [_compute_p_value(family, parameter, counts) for counts in audits]
        deciding = int(np.argsort(p_values, kind="stable")[rejecting - 1])
        return p_values[deciding], deciding

    def compute_excess(parameter: float) -> float:
        """Returns the excess of the deciding audit's log p-value over the log of the level."""
        p_value, _ = find_deciding_audit(parameter)
        # The root search cannot use the log of 0, -inf.
        return np.log(max(p_value, 1e-300)) - np.log(level)

    bound = 0.0
    if compute_excess(0.0) <= 0:
        low, high = find_bracket(lambda parameter: compute_excess(parameter) <= 0, first=1.0)
        bound = scipy.optimize.brentq(compute_excess, low, high, xtol=1e-5)
        # The search may end just above the root. Go down until the audits reject.
        while bound > 0 and compute_excess(bound) > 0:
            bound = max(bound - 1e-5, 0.0)
    _, deciding = find_deciding_audit(bound)
    return bound, deciding


@functools.lru_cache(maxsize=128)
def _compute_rates(rank: int, scores: int) -> Array:
    """Returns 482 quantiles of the near world's error rate, Beta(rank, scores - rank + 1), at _LEVELS."""
    return special.betaincinv(rank, scores - rank + 1, _LEVELS)


def _compute_p_value(family: Family, parameter: float, counts: Counts) -> float:
    """Returns the p-value of the errors in the other world, under the trade-off function f of a parameter.

    It is the mean of P(Binomial(trials, f(U)) <= errors), where U is the error rate of the near world. We sum
    over cells of U with the probabilities _MASSES, and use the upper end of each.
    """
    rates = _compute_rates(counts.rank, counts.scores)
    other_rates = family.trade_off(parameter, rates)
    probabilities = special.bdtr(float(counts.errors), counts.trials, other_rates)
    return _MASSES @ probabilities
