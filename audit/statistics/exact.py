"""One exact test at an order statistic, inverted into a lower bound on a privacy parameter.

The null hypothesis H(t) says that the mechanism is f_t-DP, for a family of symmetric trade-off functions f_t
that decrease in t (Gaussian: t = mu; approximate DP: t = epsilon at a fixed delta).

Evidence. The threshold is the r-th lowest of n scores in, for an r that these scores did not choose, and the
x of m scores out that lie above it are counted. Whatever the scores' distribution, the false-negative rate
there is distributed as U ~ Beta(r, n - r + 1), or lies below. Given the threshold, x is Binomial(m, a) with
a >= f_t(U). So under H(t) so few false positives have at most the probability

    p_t(x) = E[ P(Binomial(m, f_t(U)) <= x) ],

an integral over one known law: no rate is left unknown, and nothing is maximised over. It rises with t, and
the bound is the t at which it passes the error. The same with the worlds exchanged: the r-th highest score
out, and the scores in below it.

The integral is a sum over cells of U, on each with the largest probability, which is at the upper end: the
bound is conservative by construction, not by the error of a quadrature. Equal scores stand in random order: a
threshold among them is a randomised test, whose rates obey the trade-off function as well.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit.statistics import conversions

Array = NDArray[np.float64]
_LEVELS = np.append(special.ndtr(np.linspace(-6.0, 6.0, 481)), 1.0)  # upper ends of U's cells, as quantiles
_MASSES = np.diff(_LEVELS, prepend=0.0)
_STEP = 1e-5  # of the root, which is then moved down until the p-value confirms it
_LEAST = 1e-300


class Family(NamedTuple):
    """Symmetric trade-off functions that decrease in their parameter.

    trade_off(t, false-positive rates) are the least false-negative rates;
    parameter(false-positive rates, false-negative rates) the t of the curve through them.
    """

    trade_off: Callable[[float, Array], Array]
    parameter: Callable[[ArrayLike, ArrayLike], Array]


GAUSSIAN = Family(conversions.gaussian_trade_off, conversions.mu_from_rates)


def approximate_dp(delta: float) -> Family:
    """The trade-off functions of (epsilon, delta)-DP, with epsilon as the parameter."""
    return Family(
        lambda epsilon, rate: conversions.approximate_dp_trade_off(epsilon, delta, rate),
        lambda fpr, fnr: conversions.epsilon_from_rates(fpr, fnr, delta),
    )


class Counts(NamedTuple):
    """The errors of a threshold that is the `rank`-th score from the far end of one world, of `of` scores:
    rank - 1 of these, and `errors` of the other world's `trials`."""

    rank: int
    of: int
    errors: int
    trials: int


def p_value(family: Family, parameter: float, counts: Counts) -> float:
    """The largest probability of so few errors under H(parameter)."""
    return _p_value(family, parameter, counts, _rates(counts.rank, counts.of))


def lower_bound(family: Family, audits: Sequence[Counts], rejecting: int, error: float) -> tuple[float, int]:
    """(The lower limit of the parameter, at least 0; which of the audits decides it), of audits that may
    depend on each other in any way: the largest t up to which so many of them reject H(t).

    Each rejects at rejecting / len(audits) * error: by Markov's inequality so many do at once with
    probability at most `error` where H(t) is true.
    """
    level, rates = error * rejecting / len(audits), [_rates(counts.rank, counts.of) for counts in audits]

    def p_values(parameter: float) -> Array:
        return np.array([_p_value(family, parameter, *one) for one in zip(audits, rates, strict=True)])

    def excess(parameter: float) -> float:
        deciding = np.sort(p_values(parameter))[rejecting - 1]
        return float(np.log(max(deciding, _LEAST)) - np.log(level))

    low, high = 0.0, 1.0
    if excess(low) > 0:
        return low, int(np.argsort(p_values(low), kind="stable")[rejecting - 1])
    while excess(high) <= 0:
        low, high = high, 2 * high
    root = float(scipy.optimize.brentq(excess, low, high, xtol=_STEP))
    while root > 0 and excess(root) > 0:
        root = max(root - _STEP, 0.0)
    return root, int(np.argsort(p_values(root), kind="stable")[rejecting - 1])


@functools.lru_cache(maxsize=128)
def _rates(rank: int, of: int) -> Array:
    """Upper ends of the cells of the rate at the threshold in the world that it is a score of."""
    return np.asarray(special.betaincinv(rank, of - rank + 1, _LEVELS))


def _p_value(family: Family, parameter: float, counts: Counts, rates: Array) -> float:
    others = np.clip(family.trade_off(parameter, rates), 0.0, 1.0)
    return float(_MASSES @ special.bdtr(float(counts.errors), counts.trials, others))
