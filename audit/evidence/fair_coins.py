"""Tests that refuse coins which are not fair and independent, before a bound rests on a caller's coins.

Bounds of one run hold where each canary is in by a fair coin of its own; those of several runs where all
coins have the same probability, whose limits are computed from the coins (`canaries.Coins.limits`). Coins of
several probabilities, a single draw for all runs, or canaries sorted by world look alike in a file, and the
bounds are wrong then: a caller's coins have to look fair. Each test here is exact or conservative for fair
coins (R, K), and all of them together refuse such coins with probability ERROR at most:

    totals       all, each row's and each column's: Binomial(n, 1/2), two-sided
    lags         how many bits differ from the bit L places on, for L = 1, 2, ..: for each L the differences
                 form paths without a circle, so that they are fair coins themselves
    copies       the most frequent row, up to its complement: of R rows, c are equal with probability
                 C(R, c) 2^-((c - 1)(K - 1)) at most, by the union over c rows
    kinds        the number of different rows, up to complement: R balls in 2^(K - 1) bins
    dispersion   sum_r (2 S_r - K)^2 of the rows' totals S_r: Chernoff's bound by the exact law of one

and so for columns. What passes can still be unfair by what that many coins do not show.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit.errors import InputError

Bits = NDArray[np.bool_]
Array = NDArray[np.float64]

ERROR = 1e-6  # with at most this probability fair coins are refused
_MOST_LAGS = 64
_MOST_KINDS = 4000  # rows, beyond which the exact law takes too long
# The t of Chernoff's bound on a chi-squared-like sum, whose E[exp(t X)] is finite below t = 1/2.
_TILTS = np.concatenate([-np.geomspace(100.0, 1e-4, 100), np.geomspace(1e-4, 0.45, 100)])
_FAR = 40  # standard deviations of a total, beyond which nothing counts at these tilts
_MOST_LOG2_BINS = 1000  # 2^1000 still is a float64
_REMEDY = "presence has to be drawn by fair independent coins"


class _Test(NamedTuple):
    """The result of one test.

    Attributes:
      log_p: log of the p-value.
      message: what is wrong if the p-value is small.
      of_order: whether that is the order of the coins alone.
    """

    log_p: float
    message: str
    of_order: bool = False


class _RowWords(NamedTuple):
    """What the rows of a table of coins are called in messages."""

    singular: str
    plural: str


_RUN = _RowWords("run", "runs")
_CANARY = _RowWords("canary", "canaries")


def require_fair(presence: Bits) -> None:
    """Raises InputError for bits (R, K) that fair independent coins hardly give.

    Fair coins are refused with probability ERROR at most, by Bonferroni over all tests. The message comes
    from the failed test that readers understand best: a test that counts coins before a test of their order,
    and of several the test with the smallest p-value.
    """
    tests = list(_tests(presence))
    threshold = np.log(ERROR / len(tests))
    failed = [test for test in tests if test.log_p < threshold]
    if failed:
        plainest = min(failed, key=lambda test: (test.of_order, test.log_p))
        raise InputError(f"{plainest.message}; {_REMEDY}")


def _tests(presence: Bits) -> Iterator[_Test]:
    """Yields the results of tests of coins (R, K): of their total, and of the rows, by run and by canary."""
    total = int(presence.sum())
    message = f"{total:,} of {presence.size:,} canaries are in: {_describe_expected(presence.size)}"
    yield _Test(float(_log_binomial(np.array(total), presence.size)), message)
    yield from _test_rows(presence, _RUN, _CANARY)
    yield from _test_rows(presence.T, _CANARY, _RUN)


def _test_rows(bits: Bits, row: _RowWords, column: _RowWords) -> Iterator[_Test]:
    """Yields the results of the tests of a table's rows, as many as its shape allows.

    These are: the rows' totals, always; copies of rows, the number of different rows and the dispersion of
    totals, where there are several rows and columns; and lags, bits a few columns from each other, where
    there are several columns.

    Args:
      bits: the coins, a row a run or a row a canary.
      row: what a row is called.
      column: what a column is called.
    """
    totals = bits.sum(1)
    rows, width = bits.shape
    yield _test_totals(totals, width, row)
    if rows > 1 and width > 1:
        yield _test_copies(bits, row)
        yield _test_kinds(bits, row)
        yield _test_dispersion(totals, width, row)
    if width > 1:
        yield _test_lags(bits, column)


def _describe_expected(coins: int) -> str:
    """Returns how many of a number of fair coins are in, in words: "fair coins would give 50 +- 5"."""
    deviation = np.sqrt(coins) / 2
    rounded = f"{deviation:,.0f}" if deviation >= 10 else f"{deviation:.2g}"
    return f"fair coins would give {coins / 2:,.10g} +- {rounded}"


def _log_binomial(counts: NDArray[np.int64], coins: int) -> Array:
    """Returns logs of the two-sided p-values, at most 0, of counts of heads among fair coins.

    Args:
      counts: how many coins are in, any shape.
      coins: of how many each.
    """
    tail = special.bdtr(np.minimum(counts, coins - counts), coins, 0.5)
    with np.errstate(divide="ignore"):
        return np.asarray(np.minimum(np.log(2 * tail), 0.0))


def _log_binomial_coefficients(number: int, chosen: ArrayLike) -> Array:
    """Returns logs of the binomial coefficients C(number, chosen), of the shape of `chosen`."""
    chosen = np.asarray(chosen)
    log_orders = special.gammaln(chosen + 1)  # log chosen!
    log_orders_of_rest = special.gammaln(number - chosen + 1)
    return np.asarray(special.gammaln(number + 1) - log_orders - log_orders_of_rest)


def _test_totals(totals: NDArray[np.int64], coins: int, row: _RowWords) -> _Test:
    """Tests the most extreme of the rows' totals, by Bonferroni over rows.

    Args:
      totals: (rows,) how many coins of each row are in.
      coins: how many coins a row has.
      row: what a row is called.
    """
    log_ps = _log_binomial(totals, coins)
    worst = int(np.argmin(log_ps))
    expected = _describe_expected(coins)
    message = f"{row.singular} {worst} has {totals[worst]:,} of {coins:,} coins in: {expected}"
    return _Test(float(log_ps[worst] + np.log(len(totals))), message)


def _test_lags(bits: Bits, column: _RowWords) -> _Test:
    """Tests whether bits (rows, columns) a few columns from each other are equal, or different, too often.

    For each lag of 1 to 64 columns the differences of fair coins are fair coins themselves; the most extreme
    lag is reported, by Bonferroni over lags.
    """
    most_lags = min(_MOST_LAGS, bits.shape[1] // 2)
    changes = []
    pairs = []
    log_ps = []
    for lag in range(1, most_lags + 1):
        differs = bits[:, lag:] != bits[:, :-lag]
        changes.append(int(np.count_nonzero(differs)))
        pairs.append(differs.size)
        log_ps.append(float(_log_binomial(np.array(changes[-1]), pairs[-1])))

    worst = int(np.argmin(log_ps))
    lag = worst + 1
    unit = column.singular if lag == 1 else column.plural
    message = (
        f"coins that lie {lag} {unit} apart differ {changes[worst]:,} times of {pairs[worst]:,}: "
        f"{_describe_expected(pairs[worst])}"
    )
    return _Test(log_ps[worst] + np.log(most_lags), message, of_order=True)


def _count_equal_rows(bits: Bits) -> NDArray[np.int64]:
    """Counts, for each different row of bits, the rows that equal it or its complement."""
    without_complements = bits ^ bits[:, :1]  # a row whose first bit is 1 is flipped
    # Each row as one value of bytes, which NumPy can sort.
    packed = np.ascontiguousarray(np.packbits(without_complements, axis=1))
    rows = packed.view(np.dtype((np.void, packed.shape[1]))).ravel()
    return np.unique(rows, return_counts=True)[1]


def _test_copies(bits: Bits, row: _RowWords) -> _Test:
    """Tests whether the most frequent row of bits, up to complement, occurs too often.

    The p-value is a union bound over all choices of that many rows: of c given rows, the other c - 1 equal
    the first up to complement with probability 2^-((c - 1)(width - 1)).
    """
    rows, width = bits.shape
    copies = int(_count_equal_rows(bits).max())
    log_choices = _log_binomial_coefficients(rows, copies)
    log_p = log_choices - (copies - 1) * (width - 1) * np.log(2)
    message = (
        f"{copies:,} of {rows:,} {row.plural} have the same {width:,} coins, or their complement"
    )
    return _Test(float(log_p), message)


def _test_kinds(bits: Bits, row: _RowWords) -> _Test:
    """Tests whether too few rows of bits are different, up to complement.

    Uses the exact law of the number of different rows, or, where there are many rows, Chernoff's bound on the
    number of repeats by a Poisson law with their mean.
    """
    rows, width = bits.shape
    kinds = len(_count_equal_rows(bits))
    bins = 2.0 ** min(width - 1, _MOST_LOG2_BINS)  # different rows, up to complement
    message = f"{rows:,} {row.plural} have only {kinds:,} different rows of {width:,} coins"
    if rows <= _MOST_KINDS:
        probability = _law_of_kinds(rows, bins)[: kinds + 1].sum()
        with np.errstate(divide="ignore"):
            return _Test(float(np.log(probability)), message)

    # A row repeats an earlier one with at most the probability that its bin was taken before.
    mean = rows * (rows - 1) / 2 / bins
    repeats = rows - kinds
    if repeats <= mean:
        return _Test(0.0, message)
    return _Test(float(repeats - mean + repeats * (np.log(mean) - np.log(repeats))), message)


def _law_of_kinds(balls: int, bins: float) -> Array:
    """Returns the probabilities (balls + 1,) that 0, 1, ..., `balls` bins hold a ball.

    Balls are thrown in turn, each into a bin at random.
    """
    law = np.zeros(balls + 1)
    law[0] = 1.0
    taken_shares = np.arange(balls + 1) / bins
    for _ in range(balls):
        # A ball falls into an empty bin, or into one that has a ball already.
        into_empty_bin = np.maximum(1 - taken_shares[:-1], 0.0) * law[:-1]
        law *= np.minimum(taken_shares, 1.0)
        law[1:] += into_empty_bin
    return law


def _test_dispersion(totals: NDArray[np.int64], width: int, row: _RowWords) -> _Test:
    """Tests whether the rows' totals differ too much, or too little.

    Chernoff's bound on either side, min over t of exp(-t x) E[exp(t X)], of the sum X of (2 S_r - K)^2 / K
    over the rows' totals S_r, by the exact binomial law of a total.

    Args:
      totals: S_r, (rows,) how many coins of each row are in.
      width: K, how many coins a row has.
      row: what a row is called.
    """
    middle = width // 2
    reach = int(_FAR * np.sqrt(width) / 2) + 1
    values = np.arange(max(middle - reach, 0), min(middle + reach, width) + 1)
    log_choices = _log_binomial_coefficients(width, values)
    log_law = log_choices - width * np.log(2)
    squares = (2 * values - width) ** 2 / width
    log_moments = special.logsumexp(log_law + _TILTS[:, None] * squares, axis=1)

    observed = ((2 * totals - width) ** 2 / width).sum()
    log_p = float((len(totals) * log_moments - _TILTS * observed).min()) + np.log(2)  # two sides
    deviation = np.sqrt(observed / len(totals) * width) / 2
    fair_deviation = np.sqrt(width) / 2
    message = (
        f"how many coins of a {row.singular} are in varies by {deviation:.3g}, "
        f"fair coins' by {fair_deviation:.3g}"
    )
    return _Test(min(log_p, 0.0), message)
