"""Confidence bounds for the mean of exchangeable bits, from their higher moments.

LiDP paper (Pillutla et al., NeurIPS 2023), Section 4 and Appendix: a run gives K exchangeable bits x_1..x_K,
of which only the sum S matters. With m_l = C(S, l) / C(K, l), the share of l-tuples that are all ones, and
mu_l = E m_l, the mean over n runs of m_l estimates mu_l, and two random l-subsets overlap in i places with
probability h_l(i), so that

    Var(m_l) = sum_i h_l(i) mu_(2l - i) - mu_l^2.

A bound of order 1 uses the variance mu_1 - mu_1^2, as for one bit a run. A bound of order L = 2, 4, 8, ...
first bounds mu_j for L/2 < j <= L likewise, then goes down to mu_1: each variance is bounded by upper limits
of higher moments and by the unknown itself. With L invocations each has an L-th of the error.

The term of order 4 that the authors' code has in a wrong form (mu_4 less the square of the bound on mu_3) is
the identity's here (Errata L1 in experiments/lidp/README.md).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from audit.errors import require

Array = NDArray[np.float64]


class _Variance(NamedTuple):
    """The bound a x + b - x^2 on the variance of a moment whose mean is x."""

    a: float
    b: float


_FIRST = _Variance(1.0, 0.0)
Limits = tuple[float, float]
Interval = Callable[[float, int, float, _Variance], Limits]


def wilson(mean: float, n: int, error: float, variance: _Variance = _FIRST) -> Limits:
    """Limits whose one-sided normal test at level `error` does not reject, for the mean of n values in
    [0, 1]: (x - mean)^2 <= z^2 / n * variance(x). Asymptotic in n."""
    z = float(-special.ndtri(error))
    a, b, c = n + z * z, 2 * n * mean + z * z * variance.a, n * mean**2 - z * z * variance.b
    root = np.sqrt(max(b * b - 4 * a * c, 0.0))
    capped = z / (2 * np.sqrt(n))  # the variance is at most 1/4
    low, high = (b - root) / (2 * a), (b + root) / (2 * a)
    return float(np.clip(max(low, mean - capped), 0, 1)), float(np.clip(min(high, mean + capped), 0, 1))


def bernstein(mean: float, n: int, error: float, variance: _Variance = _FIRST) -> Limits:
    """Limits by Bernstein's inequality, each missed with probability at most `error`, whatever n: the x with
    |x - mean| = sqrt(2 L / n * variance(x)) + 2 L / (3 n), L = log(1 / error)."""
    depth = np.log(1 / error) / n
    slack = 2 * depth / 3
    return (
        1 - _bernstein_upper(1 - mean, depth, slack, _mirrored(variance)),
        _bernstein_upper(mean, depth, slack, variance),
    )


def _mirrored(variance: _Variance) -> _Variance:
    """The bound on the variance in terms of 1 - x."""
    return _Variance(2 - variance.a, variance.a + variance.b - 1)


def _bernstein_upper(mean: float, depth: float, slack: float, variance: _Variance) -> float:
    """The largest x in [0, 1] that Bernstein's inequality allows."""
    shifted = mean + slack
    a, b = 1 + 2 * depth, 2 * (shifted + depth * variance.a)
    c = shifted**2 - 2 * depth * variance.b
    root = (b + np.sqrt(max(b * b - 4 * a * c, 0.0))) / (2 * a)
    capped = min(root, shifted + np.sqrt(depth / 2))  # the variance is at most 1/4
    return float(np.clip(max(capped, shifted), 0, 1))  # and at least 0


def limits(sums: Array, canaries: int, order: int, error: float, interval: Interval) -> Limits:
    """(lower, upper) limits of mu_1 from the sums (n,) of K bits a run: each is missed with probability at
    most `error`, as far as the interval holds. Orders 1, 2, 4, ... need that many canaries.

    Source: LiDP paper, Algorithm 2 and Appendix; orders from 8 on follow the recursion.
    """
    require(order >= 1 and order & (order - 1) == 0, f"`order={order}`: give a power of two")
    require(order <= canaries, f"order {order} needs {order} canaries a run, here are {canaries}")
    require(np.all((sums >= 0) & (sums <= canaries)), "sums of bits lie between 0 and K")
    means, n = moments(sums, canaries, order), len(sums)
    level = error / order
    if order == 1:
        return interval(means[1], n, level, _FIRST)
    above = {j: interval(means[j], n, level, _FIRST)[1] for j in range(order // 2 + 1, order + 1)}
    for j in range(order // 2, 1, -1):
        above[j] = interval(means[j], n, level, _variance(j, canaries, above))[1]
    return interval(means[1], n, level, _variance(1, canaries, above))


def moments(sums: Array, canaries: int, order: int) -> list[float]:
    """The estimates of mu_0 = 1, mu_1, .., mu_order: means over runs of C(S, l) / C(K, l)."""
    shares, means = np.ones_like(sums, np.float64), [1.0]
    for j in range(order):
        shares = shares * np.maximum(sums - j, 0) / (canaries - j)
        means.append(float(shares.mean()))
    return means


def _variance(j: int, canaries: int, above: dict[int, float]) -> _Variance:
    """The bound on Var(m_j) from upper limits of higher moments."""
    shares = _overlaps(j, canaries)
    return _Variance(shares[j], sum(shares[i] * above[2 * j - i] for i in range(j) if shares[i]))


def _overlaps(size: int, canaries: int) -> list[float]:
    """h(i): the probability that two random subsets of this size share i canaries."""
    choose = special.comb
    total = choose(canaries, size)
    return [float(choose(size, i) * choose(canaries - size, size - i) / total) for i in range(size + 1)]
