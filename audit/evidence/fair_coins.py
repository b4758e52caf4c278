"""Rejects a user's unfair or dependent coins before a bound uses them.

Bounds from a single run need an independent fair coin for each canary. Bounds from several runs need
independent coins with the same probability, which these bounds estimate (`canaries.Coins.widen`). Each test
is exact or conservative for fair coins.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import scipy
from scipy import special

from audit.errors import InputError
from audit.evidence.arrays import Array, Bits, Integers
from audit.written import counted

ERROR = 1e-6  # the largest probability of rejecting fair coins
# The values of t for the Chernoff bound on a chi-squared-like sum X. E[exp(t X)] is finite for t below 1/2.
_TILTS = np.concatenate([-np.geomspace(100.0, 1e-4, 100), np.geomspace(1e-4, 0.45, 100)])


class _Test(NamedTuple):
    """The natural log of a test's p-value, and the error message for a p-value that is too small."""

    log_p: float
    message: str


_PLURAL = {"run": "runs", "canary": "canaries"}


def require_fair(presence: Bits) -> None:
    """Raises InputError if independent fair coins are very unlikely to produce the bits (R, K).

    Fair coins are rejected with probability at most ERROR = 1e-6, split among the tests (Bonferroni).
    """
    tests = list(_tests(presence))
    worst = min(tests)  # the smallest p-value
    if worst.log_p < np.log(ERROR / len(tests)):
        raise InputError(
            f"{worst.message} (p = {np.exp(worst.log_p):.1g} for fair coins): presence must be drawn with "
            "independent fair coins"
        )


def _tests(presence: Bits) -> Iterator[_Test]:
    """Yields the results of the tests that apply to coins (R, K).

    They test the overall total, totals per run and per canary, the spread of these totals, and coins a fixed
    distance apart.
    """
    total = int(presence.sum())
    message = f"{total:,} of {presence.size:,} canaries are in"
    yield _Test(float(_log_binomial(total, presence.size)), message)
    for bits, row, column in ((presence, "run", "canary"), (presence.T, "canary", "run")):
        totals = bits.sum(1)
        rows, width = bits.shape
        yield _test_totals(totals, width, row)
        if rows > 1 and width > 1:
            yield _test_dispersion(totals, width, row)
        if width > 1:
            yield _test_lags(bits, column)


def _log_binomial(counts: Integers | int, coins: int) -> Array:
    """Returns the natural log of the two-sided p-value for each number of heads among `coins` fair coins.

    A p-value is twice the smaller binomial tail, capped at 1.
    """
    tail = special.bdtr(np.minimum(counts, coins - counts), coins, 0.5)
    with np.errstate(divide="ignore"):  # the log of a tail that underflows to 0 is -inf
        log_p = np.log(2 * tail)
    return np.minimum(log_p, 0.0)


def _test_totals(totals: Integers, coins: int, row: str) -> _Test:
    """Tests whether any row has too many or too few heads among its `coins` coins, given the totals.

    We multiply the smallest p-value by the number of rows (Bonferroni).
    """
    log_ps = _log_binomial(totals, coins)
    worst = int(np.argmin(log_ps))
    message = f"{row} {worst} has {totals[worst]:,} heads among {coins:,} coins"
    return _Test(float(log_ps[worst] + np.log(len(totals))), message)


def _test_lags(bits: Bits, column: str) -> _Test:
    """Tests whether bits (rows, columns) at any fixed distance within a row agree or differ too often.

    Pairs at the same distance never form a cycle, so the differences of independent fair coins are also
    independent and fair. Distances range from 1 to 64 columns, up to half a row, to keep enough pairs. We
    multiply the smallest p-value by the number of distances (Bonferroni).
    """
    num_lags = min(64, bits.shape[1] // 2)
    compared = []
    for lag in range(1, num_lags + 1):
        differs = bits[:, lag:] != bits[:, :-lag]
        changes = int(differs.sum())
        log_p = float(_log_binomial(changes, differs.size))
        compared.append((log_p, lag, changes, differs.size))

    log_p, lag, changes, pairs = min(compared)
    distance = counted(lag, column, _PLURAL[column])
    message = f"coins {distance} apart differ in {changes:,} of {pairs:,} cases"
    return _Test(log_p + np.log(num_lags), message)


def _test_dispersion(totals: Integers, width: int, row: str) -> _Test:
    """Tests whether row totals vary too much or too little for rows of K = `width` fair coins.

    The statistic X is the sum of (2 S_r - K)^2 / K over rows r with totals S_r. The p-value of an observed x
    is twice the Chernoff bound, the minimum over t in _TILTS of exp(-t x) E[exp(t X)]. Positive t bound the
    upper tail and negative t the lower.
    """
    # Row totals more than 40 standard deviations from the mean have negligible probability.
    middle = width // 2
    fair_deviation = np.sqrt(width) / 2
    reach = int(40 * fair_deviation) + 1
    values = np.arange(max(middle - reach, 0), min(middle + reach, width) + 1)
    log_probabilities = scipy.stats.binom.logpmf(values, width, 0.5)
    squares = (2 * values - width) ** 2 / width
    # The log of E[exp(t X)] for a single row and each t of _TILTS: a sum over `values`, the second axis.
    log_moments = special.logsumexp(log_probabilities + _TILTS[:, None] * squares, axis=1)

    rows = len(totals)
    observed = ((2 * totals - width) ** 2 / width).sum()
    log_bounds = rows * log_moments - _TILTS * observed
    log_p = float(log_bounds.min()) + np.log(2)  # two sides
    deviation = np.sqrt(observed / rows * width) / 2
    message = (
        f"the number of heads per {row} has a standard deviation of {deviation:.3g}, "
        f"but {fair_deviation:.3g} for fair coins"
    )
    return _Test(min(log_p, 0.0), message)
