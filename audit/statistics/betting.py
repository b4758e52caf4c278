"""Tests of the mean of independent values in [0, 1] by betting, valid at every n and for any distribution.

A gambler who doubts that the mean is at least m stakes lambda on each value: from 1 the capital grows to

    C(m) = prod_i (1 + lambda (m - x_i)),    0 <= lambda <= 1 / (1 - m).

If the mean is at least m, the expected capital is at most 1, so that it reaches 1 / error with probability at
most `error` (Markov). Capitals of a mixture of stakes, and products of capitals of independent values, keep
that. Source: Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting" (JRSS B,
2023).

The best stake is chosen on a pilot, other runs of the same kind, and gets most of the mixture; what is left
is spread, in case the pilot misled. Where values hardly vary, what no test can rule out is a share of about
log(1 / error) / n of runs in which all is different, and the bound is as tight as that allows.
"""

import numpy as np
from numpy.typing import NDArray
from scipy import special

Array = NDArray[np.float64]

STAKES = np.concatenate([[0.0], np.geomspace(0.02, 64.0, 36)])  # among which the best is sought


def log_growth(values: Array, means: Array, stakes: Array, most: float = 1.0) -> Array:
    """log C(m) (L, G) after independent values (n,) in [0, most], for stakes (L,) and means (G,). It grows
    with the mean; -inf below the mean that a stake needs."""
    distinct, counts = np.unique(values, return_counts=True)
    gains = means[:, None] - distinct
    growth = np.full((len(stakes), len(means)), -np.inf)
    for row, stake in zip(growth, stakes, strict=True):
        allowed = stake * (most - means) <= 1
        with np.errstate(divide="ignore"):
            row[allowed] = np.log1p(np.maximum(stake * gains[allowed], -1.0)) @ counts
    return growth


def mixed(growth: Array, shares: Array) -> Array:
    """log capital (G,) of a mixture: capital split by shares (L,) over bets with log growth (L, G)."""
    with np.errstate(divide="ignore"):
        capital: Array = special.logsumexp(growth, axis=0, b=shares[:, None])
    return capital
