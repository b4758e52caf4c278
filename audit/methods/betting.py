"""Tests of the mean of independent values in [0, 1] by betting, valid for every n and any distribution.

A gambler who bets that the mean is below m stakes lambda on each value. The capital grows from 1 to

    C(m) = prod_i (1 + lambda (m - x_i)),    0 <= lambda <= 1 / (1 - m).

If the mean is at least m, the expected capital is at most 1, so it reaches 1 / error with probability at most
`error` (Markov). This is also true for a mixture of stakes with fixed shares of the capital, and for the
product of the capitals of independent values. Source: Waudby-Smith and Ramdas, "Estimating means of bounded
random variables by betting" (JRSS B, 2023).

The best stake on a pilot, other runs of the same kind, gets most of the capital. The rest is spread over
other stakes in case the pilot was misleading. For values that hardly vary, no test can exclude a share of
about log(1 / error) / n of different runs, and the bound is as tight as that allows.

From means to a privacy parameter: `canaries` explains why average error rates satisfy the trade-off
inequality. The null hypothesis H(t) states that the average rates (a, b) of false positives and negatives
satisfy b >= f_t(a), for a family f_t that decreases in t. It is rejected if the capital is large enough
everywhere on the curve b = f_t(a). The bound is the least t that is not rejected. The bets depend on the
design:

    sets     misses and false alarms come from different runs: the capital is C_in(b) C_out(a)
    coins    both come from one run: bets on z = part FN + (1 - part) FP, with mean part b + (1 - part) a

The curve is cut into cells of a. The capital grows with both rates, so its minimum in a cell is at the corner
(a_j, f_t(a_(j + 1))): the lowest false-positive rate, and the false-negative rate of the curve at the cell's
upper end. The capital is evaluated there, so the grid never increases a bound.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import special

from audit.evidence.canaries import Counted, RunErrors
from audit.laws.intervals import find_largest_refuted
from audit.methods.exact import Family

Array = NDArray[np.float64]


# Grids of rates and of means: 0, the probabilities below evenly spaced normal scores, and 1.
_LEVELS = np.concatenate([[0.0], special.ndtr(np.linspace(-8.0, 8.0, 3201)), [1.0]])
_COARSE_LEVELS = np.concatenate([[0.0], special.ndtr(np.linspace(-6.0, 6.0, 241)), [1.0]])
_MEANS = np.concatenate([[0.0], special.ndtr(np.linspace(-6.0, 6.0, 1601)), [1.0]])
_COARSE_MEANS = _MEANS[::2]
# Weights of the false negatives.
_PARTS = 1 / (1 + np.geomspace(1 / 64, 64.0, 25))
_POSITIVE_STAKES = np.geomspace(0.02, 64.0, 36)
STAKES = np.concatenate([[0.0], _POSITIVE_STAKES])
# Neighbours of the best stake, as offsets in STAKES.
_NEIGHBOURS = np.array([-12, -8, -5, -3, -2, -1, 1, 2, 3, 5])

_BEST_SHARE = 0.7  # of the capital, on the bet that the pilot recommends
# Of the capital, on bets on a single error rate, which gain most at the ends of a curve.
_ALONE_SHARE = 0.1
_FIRST_PARAMETER = (
    16.0  # the first upper end of a search for the epsilon or mu that a pilot predicts
)
_HALVINGS = 24  # of an interval of the parameter, for the bound
_COARSE_HALVINGS = 12  # for the choice of bets
# Indices in STAKES of bets on a single error rate: every third that is not 0.
_ALONE = np.arange(1, len(STAKES), 3)
_SHARE_ALONE = _ALONE_SHARE / (2 * len(_ALONE))  # of each such bet
_NEIGHBOUR_SHARE = (1 - _BEST_SHARE - _ALONE_SHARE) / len(_NEIGHBOURS)
# Of the capital, on the pilot's best bet, its neighbours, and the bets on each single error rate.
SHARES = np.repeat(
    [_BEST_SHARE, _NEIGHBOUR_SHARE, _SHARE_ALONE], [1, len(_NEIGHBOURS), 2 * len(_ALONE)]
)


def compute_log_growth(values: Array, means: Array, stakes: Array, most: float = 1.0) -> Array:
    """Returns the log capital of a gambler who bets that the mean is below m, for each stake and each m.

    Args:
      values: (n,) independent values x_i in [0, most].
      means: (G,) hypothetical means m.
      stakes: (L,) stakes lambda, at least 0.
      most: The largest possible value.

    Returns:
      (L, G) log capital, which grows with m; -inf if the stake might lose more than the capital.
    """
    # Equal values are computed once and weighted by their number.
    distinct, counts = np.unique(values, return_counts=True)
    gains = means[:, None] - distinct
    shape = (len(stakes), len(means))
    growth = np.full(shape, -np.inf)
    for row, stake in zip(growth, stakes, strict=True):
        allowed = stake * (most - means) <= 1  # the largest value loses no more than the capital
        with np.errstate(divide="ignore"):
            # A loss of the whole capital is -1; rounding may leave it below.
            returns = np.maximum(stake * gains[allowed], -1.0)
            row[allowed] = np.log1p(returns) @ counts
    return growth


def mix_bets(growth: Array, shares: Array) -> Array:
    """Returns the log capital (G,) of a capital of 1 with shares (L,) on bets of log growth (L, G)."""
    weights = shares[:, None]
    with np.errstate(divide="ignore"):
        return np.asarray(special.logsumexp(growth, axis=0, b=weights))


def lower_bound(family: Family, counted: Counted, error: float) -> float:
    """Returns the lower limit of the privacy parameter by the betting test, at least 0.

    The limit is 0 if the curve through the observed error rates has a parameter of 0 or less.

    Args:
      family: The trade-off functions f_t.
      counted: The errors at a threshold, in the pilot's runs and in the counted runs.
      error: The probability that the limit exceeds the truth.
    """
    target = float(-np.log(error))  # log(1 / error)
    errors = counted.rest
    if errors.paired:
        find_least_capital = _bet_on_coins(family, counted, target)
    else:
        find_least_capital = _bet_on_sets(family, counted, target)
    # The average rates, never 0: posterior means under Jeffreys' prior.
    guesses_in, guesses_out = errors.guesses()
    fpr = (errors.scale_out * errors.alarms.sum() + 0.5) / (guesses_out + 1)
    fnr = (errors.scale_in * errors.misses.sum() + 0.5) / (guesses_in + 1)
    observed = float(family.parameter(min(fpr, 1.0), min(fnr, 1.0)))
    if observed <= 0:
        return 0.0
    return find_largest_refuted(
        lambda parameter: find_least_capital(parameter) >= target, observed, _HALVINGS
    )


def _bet_on_sets(family: Family, counted: Counted, target: float) -> Callable[[float], float]:
    """Returns a function from a parameter to the least log capital on its curve, for two sets of runs.

    A bet is a pair of stakes, one on each set, and its capital is the product of both. Pairs are chosen by
    the pilot's log growth, times the ratio of the numbers of runs.
    """
    rates_out, rates_in = counted.rest.rates()
    pilot_out, pilot_in = counted.pilot.rates()
    # The log growth (stakes, coarse levels) that the pilot predicts for the counted runs.
    runs_per_pilot_run_out = len(rates_out) / len(pilot_out)
    runs_per_pilot_run_in = len(rates_in) / len(pilot_in)
    predicted_out = compute_log_growth(pilot_out, _COARSE_LEVELS, STAKES) * runs_per_pilot_run_out
    predicted_in = compute_log_growth(pilot_in, _COARSE_LEVELS, STAKES) * runs_per_pilot_run_in
    stakes_out, stakes_in = _choose_pairs(family, predicted_out, predicted_in, target)
    growth_out = compute_log_growth(rates_out, _LEVELS, STAKES)
    growth_in = compute_log_growth(rates_in, _LEVELS, STAKES)

    def find_least_capital(parameter: float) -> float:
        corners = _find_corners(family, parameter, _LEVELS)  # indices of the false-negative rates
        # (L, cells)
        of_alarms = growth_out[stakes_out, :-1]
        of_misses = growth_in[stakes_in[:, None], corners]
        return float(mix_bets(of_alarms + of_misses, SHARES).min())

    return find_least_capital


def _choose_pairs(
    family: Family, growth_out: Array, growth_in: Array, target: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the pair of stakes that should reject the largest parameter, and others in case it does not.

    The others are pairs of larger or smaller stakes by a common factor, and bets on a single set of runs. The
    result has the indices in STAKES of the L stakes on false positives and on false negatives, in the order
    of SHARES. `growth_out` and `growth_in` are the predicted log
    growth (S, levels) of STAKES at _COARSE_LEVELS, on false positives and on false negatives.
    """
    size = len(STAKES)

    def find_margins(parameter: float) -> Array:
        """Returns by how much each pair of stakes (S, S) exceeds the target on a parameter's curve.

        Cells count only if no bet on a single set of runs reaches the target there. The first axis is that of
        stakes on false positives.
        """
        # (S, cells)
        at_corners_out = growth_out[:, :-1]
        at_corners_in = growth_in[:, _find_corners(family, parameter, _COARSE_LEVELS)]
        best_out = at_corners_out[_ALONE].max(0)
        best_in = at_corners_in[_ALONE].max(0)
        best_alone = np.maximum(best_out, best_in)
        is_left = best_alone + np.log(_SHARE_ALONE) < target
        # (S, S, cells that are left)
        sums = at_corners_out[:, None, is_left] + at_corners_in[None, :, is_left]
        least = sums.min(-1, initial=np.inf)
        return np.asarray(least + np.log(_BEST_SHARE) - target)

    # The first pair that suffices. If none does, it is the pair with stakes of 0.
    is_sufficient = _find_margins_at_largest(find_margins) >= 0
    first = int(is_sufficient.argmax())
    best_out, best_in = np.unravel_index(first, (size, size))
    # Stakes above 0 are a geometric grid, so an offset in indices is a factor. A bet on a single set of runs
    # has stake 0 on the other.
    neighbours_out = np.clip(best_out + _NEIGHBOURS, 1, size - 1)
    neighbours_in = np.clip(best_in + _NEIGHBOURS, 1, size - 1)
    no_stake = np.zeros_like(_ALONE)
    stakes_out = np.concatenate([[best_out], neighbours_out, _ALONE, no_stake])
    stakes_in = np.concatenate([[best_in], neighbours_in, no_stake, _ALONE])
    return stakes_out, stakes_in


def _find_margins_at_largest(find_margins: Callable[[float], Array]) -> Array:
    """Returns the margins of bets, of any shape, at the largest parameter that some bet should reject.

    A bet with a margin of at least 0 should reject the parameter.
    """
    largest = find_largest_refuted(
        lambda parameter: bool(find_margins(parameter).max() >= 0),
        _FIRST_PARAMETER,
        _COARSE_HALVINGS,
    )
    return find_margins(largest)


def _find_corners(family: Family, parameter: float, levels: Array) -> NDArray[np.int64]:
    """Returns, for each cell of false-positive rates, the index in `levels` of a rate below its curve.

    It is the curve's false-negative rate at the cell's upper end, rounded down to one of the levels (cells +
    1,), the ascending ends of cells.
    """
    rates_in = family.trade_off(parameter, levels[1:])
    places = np.searchsorted(levels, rates_in, side="right") - 1
    return np.clip(places, 0, None)  # only rounding gives a rate below 0


def _bet_on_coins(family: Family, counted: Counted, target: float) -> Callable[[float], float]:
    """Returns a function from a parameter to the least log capital on its curve, for runs with coins.

    A bet is on z = part * FN + (1 - part) * FP, a weighted average of a run's error rates.
    """
    parts, stakes = _choose_coin_bets(family, counted, target)
    # The log growth of each bet at each mean of z, (bets, means).
    rows = []
    for part, stake in zip(parts, stakes[:, None], strict=True):
        rows.append(_compute_coin_growth(counted.rest, part, _MEANS, stake))
    growth = np.concatenate(rows)

    def find_least_capital(parameter: float) -> float:
        false_positive = _LEVELS[:-1]
        false_negative = family.trade_off(parameter, _LEVELS[1:])
        # (bets, cells)
        means = np.outer(parts, false_negative) + np.outer(1 - parts, false_positive)
        # Rounding means down to _MEANS never increases the capital.
        below = np.searchsorted(_MEANS, means, side="right") - 1
        # Only rounding gives a mean below 0.
        growth_on_curve = np.where(below >= 0, np.take_along_axis(growth, below, 1), -np.inf)
        return float(mix_bets(growth_on_curve, SHARES).min())

    return find_least_capital


def _choose_coin_bets(family: Family, counted: Counted, target: float) -> tuple[Array, Array]:
    """Returns the bet that should reject the largest parameter, and others in case it does not.

    The others are larger and smaller stakes on the same z, and bets on a single error rate (part 0 or 1). The
    result has the parts and the stakes (L,), in the order of SHARES.

    The pilot's log growth, scaled to the number of counted runs, gives each bet a critical mean of z that
    should suffice for `target`. The bet should reject a parameter if z has at least this mean everywhere on
    the parameter's curve, except at points that bets on a single error rate should reject.
    """
    stakes = STAKES[1:]  # without the stake 0
    stakes_alone = STAKES[_ALONE]
    runs_per_pilot_run = len(counted.rest.misses) / len(counted.pilot.misses)

    def find_critical_means(part: float, tried: Array, share: float) -> Array:
        """Returns the smallest mean of z, (stakes,), that should suffice for each stake.

        It is one of _COARSE_MEANS, or 2 if no mean suffices. `share` is each stake's share of the capital.
        """
        growth = _compute_coin_growth(counted.pilot, part, _COARSE_MEANS, tried)
        predicted = runs_per_pilot_run * growth
        sufficient = predicted >= target - np.log(share)  # (stakes, means)
        first_means = _COARSE_MEANS[sufficient.argmax(1)]
        return np.where(sufficient.any(1), first_means, 2.0)

    # Bets on a single rate should reject the points of a curve at these rates or above them.
    critical_rate_out = find_critical_means(0.0, stakes_alone, _SHARE_ALONE).min()
    critical_rate_in = find_critical_means(1.0, stakes_alone, _SHARE_ALONE).min()
    critical_means = np.array([find_critical_means(part, stakes, _BEST_SHARE) for part in _PARTS])

    def find_margins(parameter: float) -> Array:
        """Returns the margins (parts, stakes): the least mean of z minus each bet's critical mean."""
        fpr = _COARSE_LEVELS[:-1]
        fnr = family.trade_off(parameter, _COARSE_LEVELS[1:])
        remaining = (fpr < critical_rate_out) & (fnr < critical_rate_in)
        # (parts, points)
        means = np.outer(_PARTS, fnr[remaining]) + np.outer(1 - _PARTS, fpr[remaining])
        least_means = means.min(1, initial=1.0)  # 1 if no point remains
        return np.asarray(least_means[:, None] - critical_means)

    best = int(_find_margins_at_largest(find_margins).argmax())
    best_part, best_stake = np.unravel_index(best, critical_means.shape)
    offsets = np.concatenate([[0], _NEIGHBOURS])
    neighbours = np.clip(best_stake + offsets, 0, len(stakes) - 1)
    numbers = [len(neighbours), len(_ALONE), len(_ALONE)]
    parts = np.repeat([_PARTS[best_part], 0.0, 1.0], numbers)
    all_stakes = np.concatenate([stakes[neighbours], stakes_alone, stakes_alone])
    return parts, all_stakes


def _compute_coin_growth(errors: RunErrors, part: float, means: Array, stakes: Array) -> Array:
    """Returns the log growth (stakes, means) of bets on z = part * FN + (1 - part) * FP, a value of each run.

    FN and FP are a run's estimated error rates. A canary gives at most one error, so z is at most the larger
    of part * scale_in and (1 - part) * scale_out.
    """
    false_positive, false_negative = errors.rates()
    part_out = 1 - part
    most = max(part * errors.scale_in, part_out * errors.scale_out)
    z = part * false_negative + part_out * false_positive
    return compute_log_growth(z, means, stakes, most)
