"""An exact test at an order statistic, inverted into a lower bound on a privacy parameter.

The null hypothesis H(t) says that the mechanism is f_t-DP, for a family of symmetric trade-off functions f_t
that decrease in t (Gaussian: t = mu; approximate DP: t = epsilon at a fixed delta).

Evidence. The threshold is the r-th lowest of n scores in, for an r that these scores did not choose, and the
x of m scores out that lie above it are counted. Whatever the scores' distribution, the false-negative rate
there is distributed as U ~ Beta(r, n - r + 1), or lies below. Given the threshold, x is Binomial(m, a) with
a >= f_t(U). So under H(t) so few false positives have at most the probability

    p_t(x) = E[ P(Binomial(m, f_t(U)) <= x) ],

an integral over a law without unknowns: no rate has to be estimated, and nothing is maximised over. It rises
with t, and the bound is the t at which it passes the error. The same holds with the worlds exchanged: for the
r-th highest score out, and the scores in below it.

The integral is a sum over cells of U, on each with the largest probability, which is at the upper end: the
bound is conservative by construction, not by the error of a quadrature. Equal scores are put in random order:
a threshold among them is a randomised test, whose rates obey the trade-off function as well.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit.laws import conversions
from audit.laws.intervals import find_bracket

Array = NDArray[np.float64]
# The upper ends of U's cells, as quantiles.
_LEVELS = np.append(special.ndtr(np.linspace(-6.0, 6.0, 481)), 1.0)
_MASSES = np.diff(_LEVELS, prepend=0.0)
_STEP = 1e-5  # of the root, which then moves down until the p-value confirms it
_MIN = 1e-300  # in place of 0, whose logarithm is infinite


class Family(NamedTuple):
    """A family of symmetric trade-off functions f_t that decrease in their parameter t.

    Attributes:
      trade_off: Maps (parameter, false-positive rates) to the least false-negative rates.
      parameter: Maps (false-positive rates, false-negative rates) to the parameter of the curve through them.
    """

    trade_off: Callable[[float, Array], Array]
    parameter: Callable[[ArrayLike, ArrayLike], Array]


GAUSSIAN = Family(conversions.gaussian_trade_off, conversions.mu_from_rates)


def approximate_dp(delta: float) -> Family:
    """Returns the trade-off functions of (epsilon, delta)-DP at a delta, with epsilon as the parameter."""

    def compute_trade_off(epsilon: float, fpr: Array) -> Array:
        return conversions.approximate_dp_trade_off(epsilon, delta, fpr)

    return Family(compute_trade_off, functools.partial(conversions.epsilon_from_rates, delta=delta))


class Counts(NamedTuple):
    """The errors at a threshold that is itself a score of one of the worlds, the near world.

    The rank is counted from the end where the near world's errors lie: from its lowest score if that is the
    world in, from its highest if it is the world out.

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
    """Returns the largest t at which enough audits reject that the mechanism is f_t-DP.

    The audits may depend on each other in any way. Each rejects at the level error * rejecting / len(audits),
    so that by Markov's inequality `rejecting` of them reject a true hypothesis at once with a probability of
    at most `error`.

    Args:
      family: The trade-off functions f_t.
      audits: The counts of each audit.
      rejecting: How many audits must reject.
      error: The probability with which the limit may exceed the truth.

    Returns:
      (the lower limit of the parameter, at least 0; the index of the audit that decides it, whose p-value at
      this limit is the `rejecting`-th lowest)
    """
    level = error * rejecting / len(audits)

    def compute_p_values(parameter: float) -> Array:
        """Returns the p-value (audits,) of each audit at a parameter."""
        p_values = []
        for counts in audits:
            p_values.append(_compute_p_value(family, parameter, counts))
        return np.array(p_values)

    def find_deciding_audit(parameter: float) -> int:
        """Returns the index of the audit with the `rejecting`-th lowest p-value, which decides."""
        return int(np.argsort(compute_p_values(parameter), kind="stable")[rejecting - 1])

    def compute_excess(parameter: float) -> float:
        """Returns by how much the log of the deciding audit's p-value exceeds the log of the level."""
        # A p-value of 0 would have the log -inf, which the root search cannot use.
        deciding = np.sort(compute_p_values(parameter))[rejecting - 1]
        return float(np.log(max(deciding, _MIN)) - np.log(level))

    if compute_excess(0.0) > 0:  # not even the parameter 0 is rejected
        return 0.0, find_deciding_audit(0.0)
    # p-values rise with the parameter. Doubling gives an interval in which the audits cease to reject.
    bracket = find_bracket(lambda parameter: compute_excess(parameter) <= 0, 0.0, 1.0)
    root = float(scipy.optimize.brentq(compute_excess, bracket.low, bracket.high, xtol=_STEP))
    # The search may end just above the root: go down until the audits do reject.
    while root > 0 and compute_excess(root) > 0:
        root = max(root - _STEP, 0.0)
    return root, find_deciding_audit(root)


@functools.lru_cache(maxsize=128)
def _compute_rates(rank: int, scores: int) -> Array:
    """Returns quantiles (482,) of U ~ Beta(rank, scores - rank + 1), the error rate at an order statistic.

    The threshold is itself a score of one of the worlds (in or out), here called the near world. Its error
    rate at this threshold is distributed as U. p-values are means over U, computed as sums over cells of U.
    The quantiles are the upper ends of these cells. Their levels are Phi(x) at 481 values of x from -6 to 6,
    and 1.

    Args:
      rank: The rank r of the threshold among the near world's scores, from the end where its errors lie.
      scores: The number of scores of the near world.
    """
    return np.asarray(special.betaincinv(rank, scores - rank + 1, _LEVELS))


def _compute_p_value(family: Family, parameter: float, counts: Counts) -> float:
    """Returns the p-value of x errors among m scores: the mean of P(Binomial(m, f_t(U)) <= x) over U.

    The threshold is itself a score of one of the worlds, here called the near world. U is that world's error
    rate at the threshold, which has a beta law. The other world has x errors, at a rate of at least f_t(U) if
    the mechanism is f_t-DP. The mean is a sum over cells of U, with the probability at each cell's upper end,
    where it is largest.

    Args:
      family: The trade-off functions f_t.
      parameter: t, the privacy parameter of the hypothesis.
      counts: The errors at a threshold, with x and m.
    """
    # The upper ends of the cells of U.
    rates = _compute_rates(counts.rank, counts.scores)
    other_rates = np.clip(family.trade_off(parameter, rates), 0.0, 1.0)
    # P(Binomial(m, rate) <= x) at each cell's end, weighted by the cell's probability.
    probabilities = special.bdtr(float(counts.errors), counts.trials, other_rates)
    return float(_MASSES @ probabilities)
