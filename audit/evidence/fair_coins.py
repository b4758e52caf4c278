"""Coins that fair and independent ones do not give: a caller's are looked at before a bound rests on them.

Bounds of one run hold where each canary is in by a fair coin of its own; those of several runs where all
coins have one probability, of which limits are read off the coins (`canaries.Coins.limits`). Coins of several
shares, one draw for all runs, or canaries sorted by world look alike in a file, and the bounds are wrong
then: a caller's coins have to pass for fair ones. Each test here is exact or conservative for fair coins
(R, K), and all of them together refuse such with probability ERROR at most:

    totals       all, each row's and each column's: Binomial(n, 1/2), two-sided
    lags         how many bits differ from the one L places on, for L = 1, 2, ..: for each L the differences
                 form paths without a circle, so that they are fair coins themselves
    copies       the most frequent row, up to its complement: of R rows, c are one with probability
                 C(R, c) 2^-((c - 1)(K - 1)) at most, by the union over c rows
    kinds        the number of different rows, up to complement: R balls in 2^(K - 1) bins
    dispersion   sum_r (2 S_r - K)^2 of the rows' totals S_r: Chernoff's bound by the exact law of one

and so for columns. What passes can still be unfair by what that many coins do not show.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from audit.errors import InputError

Bits = NDArray[np.bool_]
Array = NDArray[np.float64]

ERROR = 1e-6  # with at most this probability fair coins are refused
_LAGS = 64
_MOST_KINDS = 4000  # rows, beyond which the exact law takes too long
_TILTS = np.concatenate([-np.geomspace(100.0, 1e-4, 100), np.geomspace(1e-4, 0.45, 100)])
_FAR = 40  # standard deviations of a total, beyond which is nothing at these tilts
_MEND = "presence has to be drawn by fair independent coins"


class _Tested(NamedTuple):
    """log of a p-value, what is wrong if it is small, and whether that is the order of the coins alone."""

    log_p: float
    found: str
    of_order: bool = False


def require_fair(presence: Bits) -> None:
    """Raises InputError for bits (R, K) that fair independent coins give with a probability so small that all
    which are refused have ERROR together."""
    tests = list(_tests(presence))
    failed = [one for one in tests if one.log_p < np.log(ERROR / len(tests))]
    if failed:  # say what is wrong by the plainest of them
        raise InputError(f"{min(failed, key=lambda one: (one.of_order, one.log_p)).found}; {_MEND}")


def _tests(presence: Bits) -> Iterator[_Tested]:
    runs, canaries = presence.shape
    total = int(presence.sum())
    said = f"{total:,} of {presence.size:,} canaries are in: {_expected(presence.size)}"
    yield _Tested(float(_log_binomial(np.array(total), presence.size)), said)
    for bits, one, other in ((presence, "run", "canary"), (presence.T, "canary", "run")):
        counts, width = bits.sum(1), bits.shape[1]
        yield _worst(counts, width, f"{one} {{}} has {{}} of {width:,} coins in: {_expected(width)}")
        if len(bits) > 1 and width > 1:
            yield _copies(bits, one)
            yield _kinds(bits, one)
            yield _dispersion(counts, width, one)
        if width > 1:
            yield _lags(bits, other)


def _expected(coins: int) -> str:
    deviation = np.sqrt(coins) / 2
    return f"fair coins would give {coins / 2:,.10g} +- {deviation:{',.0f' if deviation >= 10 else '.2g'}}"


def _log_binomial(counts: NDArray[np.int64], coins: int) -> Array:
    """log of the two-sided p-values of numbers of fair coins that are in."""
    tail = special.bdtr(np.minimum(counts, coins - counts), coins, 0.5)
    with np.errstate(divide="ignore"):
        return np.asarray(np.minimum(np.log(2 * tail), 0.0))


def _worst(counts: NDArray[np.int64], coins: int, said: str) -> _Tested:
    """The most extreme of many counts, by Bonferroni."""
    each = _log_binomial(counts, coins)
    worst = int(np.argmin(each))
    return _Tested(float(each[worst] + np.log(len(counts))), said.format(worst, f"{counts[worst]:,}"))


def _lags(bits: Bits, what: str) -> _Tested:
    """Bits that are equal, or different, too often a few places apart."""
    lags = range(1, min(_LAGS, bits.shape[1] // 2) + 1)
    changes = [int(np.count_nonzero(bits[:, lag:] != bits[:, :-lag])) for lag in lags]
    pairs = [bits[:, lag:].size for lag in lags]
    each = [float(_log_binomial(np.array(n), of)) for n, of in zip(changes, pairs, strict=True)]
    worst = int(np.argmin(each))
    apart = f"{lags[worst]} {what}{'s' * (lags[worst] > 1)}".replace("canarys", "canaries")
    said = f"coins that lie {apart} apart differ {changes[worst]:,} times of {pairs[worst]:,}"
    return _Tested(each[worst] + np.log(len(lags)), f"{said}: {_expected(pairs[worst])}", of_order=True)


def _sizes(bits: Bits) -> NDArray[np.int64]:
    """How many rows are equal up to complement, for each different one."""
    packed = np.ascontiguousarray(np.packbits(bits ^ bits[:, :1], axis=1))
    rows = packed.view(np.dtype((np.void, packed.shape[1]))).ravel()
    return np.unique(rows, return_counts=True)[1]


def _copies(bits: Bits, one: str) -> _Tested:
    rows, width = bits.shape
    most = int(_sizes(bits).max())
    log_choices = special.gammaln(rows + 1) - special.gammaln(most + 1) - special.gammaln(rows - most + 1)
    log_p = log_choices - (most - 1) * (width - 1) * np.log(2)
    said = f"{most:,} of {rows:,} {_many(one)} have the same {width:,} coins, or their complement"
    return _Tested(float(log_p), said)


def _kinds(bits: Bits, one: str) -> _Tested:
    """Few different rows: by the exact law of their number, or for many by Chernoff's bound on repeats."""
    rows, width = bits.shape
    kinds, bins = len(_sizes(bits)), 2.0 ** min(width - 1, 1000)
    said = f"{rows:,} {_many(one)} have only {kinds:,} different rows of {width:,} coins"
    if rows <= _MOST_KINDS:
        with np.errstate(divide="ignore"):
            return _Tested(float(np.log(_law_of_kinds(rows, bins)[: kinds + 1].sum())), said)
    mean, repeats = rows * (rows - 1) / 2 / bins, rows - kinds  # repeats are rarer than independent bits
    if repeats <= mean:
        return _Tested(0.0, said)
    return _Tested(float(repeats - mean + repeats * (np.log(mean) - np.log(repeats))), said)


def _law_of_kinds(balls: int, bins: float) -> Array:
    """The probabilities (balls + 1,) that so many bins have one of the balls or more."""
    law, taken = np.zeros(balls + 1), np.arange(balls + 1) / bins
    law[0] = 1.0
    for _ in range(balls):
        new = np.maximum(1 - taken[:-1], 0.0) * law[:-1]
        law *= np.minimum(taken, 1.0)
        law[1:] += new
    return law


def _dispersion(counts: NDArray[np.int64], width: int, one: str) -> _Tested:
    """Totals that differ too much, or too little: min over t of exp(-t x) E[exp(t X)] on either side."""
    middle, reach = width // 2, int(_FAR * np.sqrt(width) / 2) + 1
    places = np.arange(max(middle - reach, 0), min(middle + reach, width) + 1)
    law = special.gammaln(width + 1) - special.gammaln(places + 1) - special.gammaln(width - places + 1)
    spread, found = (2 * places - width) ** 2 / width, ((2 * counts - width) ** 2 / width).sum()
    moments = special.logsumexp(law - width * np.log(2) + _TILTS[:, None] * spread, axis=1)
    log_p = float((len(counts) * moments - _TILTS * found).min()) + np.log(2)
    deviation, fair = np.sqrt(found / len(counts) * width) / 2, np.sqrt(width) / 2
    said = f"how many coins of a {one} are in varies by {deviation:.3g}, fair coins' by {fair:.3g}"
    return _Tested(min(log_p, 0.0), said)


def _many(one: str) -> str:
    return {"run": "runs", "canary": "canaries"}[one]
