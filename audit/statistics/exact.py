"""One exact test for a pair of error counts, inverted into a lower bound on a privacy parameter.

The null hypothesis H(t) says that the mechanism is f_t-DP, for a family of trade-off functions f_t
that decrease in t (Gaussian: t = mu; approximate DP: t = epsilon at a fixed delta). Under H(t) the
false positives are Binomial(n_out, a) and the false negatives Binomial(n_in, b), independent, with
b >= f_t(a), and a is a nuisance that nobody knows.

Evidence. The counts (x, y) are ordered by the t of the curve through the smoothed rates
((x + 1/2) / (n_out + 1), (y + 1/2) / (n_in + 1)). "At least as extreme as what was seen" is then a
set that is closed downwards in both counts, so its probability is largest on the curve b = f_t(a).

The nuisance. The p-value is the largest probability over the rates a in a Clopper-Pearson interval
that misses with probability at most GAMMA * error, plus GAMMA * error (Berger and Boos, 1994). The
interval is cut into cells [a_i, a_(i+1)]; on a cell the probability is at most that at the corner
(a_i, f_t(a_(i+1))), since both counts shrink stochastically with their rates. So the p-value is never
too small: the bound is conservative by construction, not by sampling error of a simulation.

The bound is the smallest t that is not rejected. It exceeds the truth only if the true t is rejected,
which happens with probability at most `error`.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit.statistics import conversions, intervals

Array = NDArray[np.float64]
GAMMA = 0.02
_SEARCH_POINTS = 33  # rates on the curve, to find the root
_PROOF_CELLS = 400  # cells beside it, to prove it
_NEGLIGIBLE = 1e-12  # probability left out of a sum, and added to it


class Family(NamedTuple):
    """Trade-off functions that decrease in their parameter.

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
    """The errors of a threshold on scores that it was not chosen on."""

    false_positives: int
    false_negatives: int
    n_in: int
    n_out: int


def lower_bound(family: Family, counts: Counts, error: float) -> float:
    """The lower limit of the parameter, at least 0, that exceeds it with probability at most `error`.

    The root is found with the p-value at points of the curve, then moved down until the p-value over
    the cells confirms it: never above the exact limit, and below it by about 0.01 at most.
    """
    fpr = (counts.false_positives + 0.5) / (counts.n_out + 1)
    fnr = (counts.false_negatives + 0.5) / (counts.n_in + 1)
    observed = float(family.parameter(fpr, fnr))
    if not observed > 0:
        return 0.0
    boundary = _extreme_set(family, counts, observed)
    budget = (1 - GAMMA) * error
    edges = _nuisance_edges(counts, GAMMA * error, _SEARCH_POINTS)
    fine_edges = _nuisance_edges(counts, GAMMA * error, _PROOF_CELLS)

    def on_curve(parameter: float) -> float:
        rates_in = family.trade_off(parameter, edges)
        return float(_log_largest(edges, rates_in, boundary, counts) - np.log(budget))

    def rejected(parameter: float) -> bool:
        rates_in = family.trade_off(parameter, fine_edges[1:])
        return bool(_log_largest(fine_edges[:-1], rates_in, boundary, counts) <= np.log(budget))

    root = _root(on_curve, observed)
    step = 1e-3 * max(observed, 0.1)
    while root > 0 and not rejected(root):
        root = max(root - step, 0.0)
    return root


def _root(function: Callable[[float], float], start: float) -> float:
    """Where an increasing function of a parameter >= 0 crosses 0, sought around `start`; 0 if above."""
    high = start
    while function(high) <= 0:
        high *= 1.5
    width = 0.1 * high
    while high - width > 0 and function(high - width) > 0:
        width *= 2
    low = max(high - width, 0.0)
    if function(low) > 0:
        return 0.0
    return float(scipy.optimize.brentq(function, low, high, xtol=1e-4 * start, rtol=1e-12))


def _nuisance_edges(counts: Counts, error: float, cells: int) -> Array:
    """Cell edges over the false-positive rate's interval, even in normal quantiles."""
    interval = intervals.clopper_pearson(counts.false_positives, counts.n_out, 1 - error)
    low, high = float(interval.lower), float(interval.upper)
    tiny = 1e-3 / counts.n_out
    inner_low, inner_high = max(low, tiny), min(high, 1 - tiny)
    inner = special.ndtr(np.linspace(special.ndtri(inner_low), special.ndtri(inner_high), cells + 1))
    inner[0], inner[-1] = inner_low, inner_high
    return np.concatenate([[low] if low < tiny else [], inner, [high] if high > 1 - tiny else []])


def _extreme_set(family: Family, counts: Counts, observed: float) -> NDArray[np.int64]:
    """For each number of false positives, the most false negatives that are as extreme; -1 for none."""
    rates = (np.arange(counts.n_out + 1) + 0.5) / (counts.n_out + 1)
    most = np.floor((counts.n_in + 1) * family.trade_off(observed, rates) - 0.5 + 1e-6)
    return np.clip(most, -1, counts.n_in).astype(np.int64)


def _log_largest(rates_out: Array, rates_in: Array, boundary: NDArray[np.int64], counts: Counts) -> float:
    """log of the largest, over pairs of rates, P(false negatives <= boundary[false positives]).

    False positives outside a window that Bernstein's inequality gives all but _NEGLIGIBLE of the
    probability count as extreme.
    """
    n_in, n_out = counts.n_in, counts.n_out
    depth = np.log(2 / _NEGLIGIBLE)
    reach = depth / 3 + np.sqrt(depth**2 / 9 + 2 * depth * n_out * rates_out * (1 - rates_out))
    first = int(max(np.min(n_out * rates_out - reach), 0))
    last = int(min(np.ceil(np.max(n_out * rates_out + reach)), n_out))
    weights = np.exp(_log_binomial(np.arange(first, last + 1), n_out, rates_out))
    most = boundary[first : last + 1]
    possible = most >= 0
    tails = _cumulative(most[possible], n_in, rates_in)
    return float(np.log(np.max(np.einsum("ck,ck->c", weights[:, possible], tails)) + _NEGLIGIBLE))


def _cumulative(most: NDArray[np.int64], n_in: int, rates_in: Array) -> Array:
    """P(Binomial(n_in, rate) <= most), shape (rates, most): by summing one range of probabilities, or
    one by one where the range is much longer than `most`."""
    if not most.size or np.ptp(most) > 8 * most.size:
        return np.asarray(special.bdtr(most[None, :], n_in, rates_in[:, None]))
    least = int(most.min())
    steps = np.exp(_log_binomial(np.arange(least, int(most.max()) + 1), n_in, rates_in))
    if least > 0:
        steps[:, 0] += special.bdtr(least - 1, n_in, rates_in)
    return np.cumsum(steps, axis=1)[:, most - least]


def _log_binomial(ks: NDArray[np.int64], trials: int, rates: Array) -> Array:
    """log P(Binomial(trials, rate) = k), shape (rates, ks)."""
    choose = special.gammaln(trials + 1) - special.gammaln(ks + 1) - special.gammaln(trials - ks + 1)
    with np.errstate(divide="ignore"):
        log_rates, log_rest = np.log(rates)[:, None], np.log1p(-rates)[:, None]
    yes = np.where(ks > 0, ks * np.maximum(log_rates, -1e300), 0.0)
    no = np.where(ks < trials, (trials - ks) * np.maximum(log_rest, -1e300), 0.0)
    return np.asarray(choose + yes + no)
