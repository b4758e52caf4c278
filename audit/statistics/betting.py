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

A privacy parameter. `canaries` says why average error rates obey the trade-off inequality. A null hypothesis
H(t) says that the average rates (a, b) of false positives and negatives have b >= f_t(a), for a family f_t
that decreases in t. It is rejected where the capital is large enough on all of the curve b = f_t(a); the
bound is the least t that is not rejected, which exceeds the truth with probability at most the error.

    sets     misses and false alarms are of different runs: C_in(b) C_out(a), the least over the curve
    coins    both are of one run: bets on z = part FN + (1 - part) FP, whose mean is part b + (1 - part) a

On the curve, capitals are taken at corners (a_j, f_t(a_(j + 1))) of cells, where they are least, so that the
grid makes no bound too large.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from audit.statistics.canaries import Counted, RunErrors
from audit.statistics.exact import Family

Array = NDArray[np.float64]

_LEVELS = np.concatenate([[0.0], special.ndtr(np.linspace(-8.0, 8.0, 3201)), [1.0]])
_COARSE = np.concatenate([[0.0], special.ndtr(np.linspace(-6.0, 6.0, 241)), [1.0]])
_MEANS = np.concatenate([[0.0], special.ndtr(np.linspace(-6.0, 6.0, 1601)), [1.0]])
_COARSE_MEANS = _MEANS[::2]
_PARTS = 1 / (1 + np.geomspace(1 / 64, 64.0, 25))
_BEST_SHARE, _ALONE_SHARE = 0.7, 0.1  # of the capital on the pilot's pair, and on bets on one world alone
_STEPS = np.array([-12, -8, -5, -3, -2, -1, 1, 2, 3, 5])  # along STAKES
_MOST_PARAMETER = 16.0  # that a pilot promises
_HALVINGS, _COARSE_HALVINGS = 24, 12
STAKES = np.concatenate([[0.0], np.geomspace(0.02, 64.0, 36)])  # among which the best is sought


def log_growth(values: Array, means: Array, stakes: Array, most: float = 1.0) -> Array:
    """log C(m) (L, G) after independent values (n,) in [0, most], for stakes (L,) and means (G,). It grows
    with the mean; -inf below the mean that a stake needs."""
    distinct, counts = np.unique(values, return_counts=True)
    gains, growth = means[:, None] - distinct, np.full((len(stakes), len(means)), -np.inf)
    for row, stake in zip(growth, stakes, strict=True):
        allowed = stake * (most - means) <= 1
        with np.errstate(divide="ignore"):
            row[allowed] = np.log1p(np.maximum(stake * gains[allowed], -1.0)) @ counts
    return growth


def mixed(growth: Array, shares: Array) -> Array:
    """log capital (G,) of a mixture: capital split by shares (L,) over bets with log growth (L, G)."""
    with np.errstate(divide="ignore"):
        return np.asarray(special.logsumexp(growth, axis=0, b=shares[:, None]))


def lower_bound(family: Family, counted: Counted, error: float) -> float:
    """The betting test's lower limit, at least 0: above the truth with probability at most `error`."""
    least = _least_of_coins if counted.rest.paired else _least_of_sets
    log_least = least(family, counted, float(-np.log(error)))
    observed = float(family.parameter(*(min(rate, 1.0) for rate in counted.rest.smoothed())))

    def holds(parameter: float) -> bool:
        return bool(log_least(parameter) >= -np.log(error))

    if not observed > 0 or not holds(0.0):
        return 0.0
    low, high = 0.0, observed
    while holds(high):
        low, high = high, 2 * high
    return _halved(holds, low, high, _HALVINGS)


def _halved(holds: Callable[[float], bool], low: float, high: float, times: int) -> float:
    """The lower end of an interval, halved so often, up to which a monotone condition holds."""
    for _ in range(times):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _cut(growth: Array, shares: Array, target: float) -> float:
    """The least log capital over points of the curve (L, G) of a mixture, cut at the target."""
    alone = (growth + np.log(shares)[:, None]).max(0)  # at most the mixture's
    short = alone < target
    return min(float(mixed(growth[:, short], shares).min(initial=target)), target)


def _shares(alone: int) -> Array:
    """The capital's shares: the pilot's best bet, those beside it, and so many on each world alone."""
    beside = (1 - _BEST_SHARE - _ALONE_SHARE) / len(_STEPS)
    return np.repeat([_BEST_SHARE, beside, _ALONE_SHARE / (2 * alone)], [1, len(_STEPS), 2 * alone])


def _least_of_sets(family: Family, counted: Counted, target: float) -> Callable[[float], float]:
    """parameter -> the least log capital on its curve, cut at the target: pairs of stakes, one a world."""
    rates, stakes = counted.rest.rates(), STAKES
    each = zip(rates, counted.pilot.rates(), strict=True)
    promised = [log_growth(pilot, _COARSE, stakes) * (len(values) / len(pilot)) for values, pilot in each]
    pairs = _pairs(family, promised[0], promised[1], target)
    out, into = (log_growth(values, _LEVELS, stakes) for values in rates)

    def least(parameter: float) -> float:
        corners = _corners(family, parameter, _LEVELS)
        return _cut(out[pairs.out, :-1] + into[pairs.into[:, None], corners], pairs.shares, target)

    return least


class _Pairs(NamedTuple):
    """A mixture of pairs of stakes, as places in STAKES, and the shares (L,) of the capital."""

    out: NDArray[np.int64]
    into: NDArray[np.int64]
    shares: Array


def _pairs(family: Family, out: Array, into: Array, target: float) -> _Pairs:
    """The pair that promises the largest parameter by the log growths (L, G) of the pilot, pairs that are
    larger and smaller by a common factor, and all bets on one world alone."""
    size = len(STAKES)
    alone = np.arange(1, size, 3)
    single = np.log(_ALONE_SHARE / (2 * len(alone)))

    def enough(parameter: float) -> NDArray[np.bool_]:
        first, second = out[:, :-1], into[:, _corners(family, parameter, _COARSE)]
        covered = np.maximum(first[alone].max(0), second[alone].max(0)) + single >= target
        sums = first[:, None, ~covered] + second[None][:, :, ~covered]
        return np.asarray((sums + np.log(_BEST_SHARE) >= target).all(-1))

    promised = _halved(lambda p: bool(enough(p).any()), 0.0, _MOST_PARAMETER, _COARSE_HALVINGS)
    i, j = np.unravel_index(int(enough(promised).argmax()), (size, size))
    scaled = np.clip(np.array([[i], [j]]) + _STEPS, 1, size - 1)
    zeros = np.zeros_like(alone)
    first = np.concatenate([[i], scaled[0], alone, zeros])
    second = np.concatenate([[j], scaled[1], zeros, alone])
    return _Pairs(first, second, _shares(len(alone)))


def _corners(family: Family, parameter: float, levels: Array) -> NDArray[np.int64]:
    """For each cell of false-positive rates the level at or below the curve at its upper end."""
    rates_in = family.trade_off(parameter, levels[1:])
    return np.clip(np.searchsorted(levels, rates_in, side="right") - 1, 0, None)


class _CoinBets(NamedTuple):
    """Bets on z = part * FN + (1 - part) * FP: parts (L,), stakes (L,), shares (L,) of the capital."""

    parts: Array
    stakes: Array
    shares: Array


def _least_of_coins(family: Family, counted: Counted, target: float) -> Callable[[float], float]:
    """parameter -> the least log capital on its curve, cut at the target, where a run gives both rates."""
    bets = _coin_bets(family, counted, target)
    pairs = zip(bets.parts, bets.stakes, strict=True)
    growth = np.concatenate([_growth(counted.rest, part, _MEANS, np.array([stake])) for part, stake in pairs])
    parts, rows = bets.parts[:, None], np.arange(len(bets.parts))[:, None]

    def least(parameter: float) -> float:
        means = parts * family.trade_off(parameter, _LEVELS[1:]) + (1 - parts) * _LEVELS[:-1]
        below = np.searchsorted(_MEANS, means, side="right") - 1
        return _cut(np.where(below >= 0, growth[rows, below], -np.inf), bets.shares, target)

    return least


def _coin_bets(family: Family, counted: Counted, target: float) -> _CoinBets:
    """The bet that promises most by the pilot, larger and smaller ones, and all on one rate alone."""
    stakes, alone = STAKES[1:], STAKES[1::3]
    scale = len(counted.rest.misses) / len(counted.pilot.misses)

    def critical(part: float, of: Array, share: float) -> Array:
        enough = scale * _growth(counted.pilot, part, _COARSE_MEANS, of) >= target - np.log(share)
        return np.where(enough.any(1), _COARSE_MEANS[enough.argmax(1)], 2.0)

    rate_out, rate_in = (critical(part, alone, _ALONE_SHARE / (2 * len(alone))).min() for part in (0.0, 1.0))
    least_means = np.array([critical(part, stakes, _BEST_SHARE) for part in _PARTS])  # (parts, stakes)

    def margins(parameter: float) -> Array:
        out, into = _COARSE[:-1], family.trade_off(parameter, _COARSE[1:])
        short = (out < rate_out) & (into < rate_in)
        means = _PARTS[:, None] * into[short] + (1 - _PARTS[:, None]) * out[short]
        return np.asarray(means.min(1, initial=1.0)[:, None] - least_means)

    promised = _halved(lambda p: bool(margins(p).max() >= 0), 0.0, _MOST_PARAMETER, _COARSE_HALVINGS)
    part, best = np.unravel_index(int(margins(promised).argmax()), least_means.shape)
    scaled = stakes[np.clip(best + np.concatenate([[0], _STEPS]), 0, len(stakes) - 1)]
    parts = np.repeat([_PARTS[part], 0.0, 1.0], [len(scaled), len(alone), len(alone)])
    return _CoinBets(parts, np.concatenate([scaled, alone, alone]), _shares(len(alone)))


def _growth(errors: RunErrors, part: float, means: Array, stakes: Array) -> Array:
    """log growth (stakes, means) of bets on z. A coin gives one error at most: z is at most
    the larger of the rates' parts, part * scale_in and (1 - part) * scale_out."""
    false_positive, false_negative = errors.rates()
    most = max(part * errors.scale_in, (1 - part) * errors.scale_out)
    return log_growth(part * false_negative + (1 - part) * false_positive, means, stakes, most)
