"""Betting tests for the mean of independent values in [0, 1], valid for every n and any distribution.

A gambler bets that the mean is below m, and stakes lambda on each value. The capital grows from 1 to

    C(m) = prod_i (1 + lambda (m - x_i)),    0 <= lambda <= 1 / (1 - m).

If the mean is at least m, the expected capital is at most 1, so it reaches 1 / error with probability at most
`error` (Markov). The same is true for mixtures of stakes, and for products over independent values. Source:
Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting" (JRSS B, 2023).

We choose the bets using a *pilot*: runs that are then not counted.

*From means to a privacy parameter.* The null hypothesis H(t) states that the average rates (a, b) of false
positives and false negatives satisfy b >= f_t(a) (`audit.evidence.canaries`), for a family f_t that decreases
in t. We reject it if the capital is large enough everywhere on the curve b = f_t(a). The bound is the
smallest t that is not rejected. The bets depend on the design:

    sets     misses and false alarms come from different runs: the capital is C_in(b) C_out(a)
    coins    both come from one run: bets on z = w FN + (1 - w) FP for a weight w, with mean w b + (1 - w) a

We divide the curve into cells [a_j, a_(j+1)]. The capital grows with both rates, so its value at the corner
(a_j, f_t(a_(j+1))), which is below the curve, is a lower bound in the cell.
"""

from collections.abc import Callable

import numpy as np
from scipy import special

from audit.evidence.arrays import Array, Integers
from audit.evidence.canaries import Counted, RunErrors
from audit.laws.intervals import find_largest_refuted
from audit.methods.exact import Family


def _make_grid(end: float, points: int) -> Array:
    """Returns a grid (points + 2,): 0, the values of Phi at `points` numbers from -end to end, and 1."""
    return special.ndtr([-np.inf, *np.linspace(-end, end, points), np.inf])


# Grids of error rates, at the ends of cells, and of means of z. We choose bets using the coarse grids.
_LEVELS = _make_grid(8.0, 3201)
_COARSE_LEVELS = _make_grid(6.0, 241)
_MEANS = _make_grid(6.0, 1601)
_COARSE_MEANS = _MEANS[::2]
_WEIGHTS = 1 / (1 + np.geomspace(1 / 64, 64.0, 25))  # w, the weights of false negatives in z
STAKES = np.append(0.0, np.geomspace(0.02, 64.0, 36))
# Neighbours of the best stake, as offsets in STAKES.
_NEIGHBOUR_OFFSETS = np.array([-12, -8, -5, -3, -2, -1, 1, 2, 3, 5])
# The indices in STAKES of the bets on a single error rate: every third stake above 0. These bets gain the
# most at the ends of a curve.
_SINGLE_PLACES = np.arange(1, STAKES.size, 3)

# The capital on the best bet for the pilot, on each of its neighbours, and on each bet on a single error
# rate. Any split is valid.
_CAPITAL_ON_BEST = 0.7
_CAPITAL_ON_NEIGHBOUR = 0.2 / _NEIGHBOUR_OFFSETS.size
_CAPITAL_ON_SINGLE = 0.1 / (2 * _SINGLE_PLACES.size)
CAPITAL = np.repeat(
    [_CAPITAL_ON_BEST, _CAPITAL_ON_NEIGHBOUR, _CAPITAL_ON_SINGLE],
    [1, _NEIGHBOUR_OFFSETS.size, 2 * _SINGLE_PLACES.size],
)


def compute_log_growth(values: Array, means: Array, stakes: Array, most: float = 1.0) -> Array:
    """Returns the log capital of a gambler who bets that the mean is below m, for each stake and each m.

    The capital starts at 1. Each value x_i multiplies it by 1 + lambda (m - x_i).

    Args:
      values: (n,) independent values x_i in [0, most].
      means: (G,) hypothetical means m.
      stakes: (L,) stakes lambda, at least 0.
      most: The largest possible value.

    Returns:
      (L, G) log capital, which grows with m; -inf if a stake could lose more than the capital.
    """
    distinct, counts = np.unique(values, return_counts=True)
    gains = means[:, None] - distinct
    growth = np.full((stakes.size, means.size), -np.inf)
    for row, stake in zip(growth, stakes, strict=True):
        allowed = stake * (most - means) <= 1  # a value of `most` costs no more than the capital
        with np.errstate(divide="ignore"):
            # A return of -1 means losing the entire capital. Rounding may give a lower value.
            returns = np.maximum(stake * gains[allowed], -1.0)
            row[allowed] = np.log1p(returns) @ counts
    return growth


def mix_bets(growth: Array, capital: Array) -> Array:
    """Returns the log of the total capital (G,) of L bets.

    The bets start with `capital` (L,). `growth` (L, G) is the log of each bet's growth factor.
    """
    return np.logaddexp.reduce(growth + np.log(capital)[:, None])


def lower_bound(family: Family, counted: Counted, error: float) -> float:
    """Returns the lower bound on the privacy parameter from the betting test.

    It is 0 if the curve through the observed error rates has a parameter of at most 0.

    Args:
      family: The trade-off functions f_t.
      counted: The errors at a threshold, in the pilot's runs and in the counted runs.
      error: The probability that the bound exceeds the truth.
    """
    target = -np.log(error)  # the log capital needed to reject a parameter
    errors = counted.rest
    choose_bets = _bet_on_coins if errors.paired else _bet_on_sets  # paired: from the same runs
    find_least_capital = choose_bets(family, counted, target)
    # The search starts at the parameter of the observed rates: posterior means under Jeffreys' prior, which
    # are never 0. With fair coins, each canary is in only half of the runs, so the scale of a rate is 2.
    guesses_in, guesses_out = errors.guesses()
    fpr = (errors.scale_out * errors.alarms.sum() + 0.5) / (guesses_out + 1)
    fnr = (errors.scale_in * errors.misses.sum() + 0.5) / (guesses_in + 1)
    observed = float(family.parameter(min(fpr, 1.0), min(fnr, 1.0)))
    if observed <= 0:
        return 0.0
    return find_largest_refuted(
        lambda parameter: find_least_capital(parameter) >= target,
        first=observed,
        halvings=24,  # to 1e-7 of the search interval
    )


def _bet_on_sets(family: Family, counted: Counted, target: float) -> Callable[[float], float]:
    """Returns a function from a parameter to the smallest log capital on its curve, for two sets of runs.

    A bet is a pair of stakes: on the false positives of runs without canaries, and on the false negatives of
    runs with them. We choose bets that should reach a log capital of `target`.
    """
    predicted = []  # for runs without, then with canaries: the growth predicted for the counted runs
    growth = []  # for runs without, then with canaries: the log growth, (STAKES, _LEVELS)
    for pilot, rates in zip(counted.pilot.rates(), counted.rest.rates(), strict=True):
        runs_per_pilot_run = len(rates) / len(pilot)
        predicted.append(runs_per_pilot_run * compute_log_growth(pilot, _COARSE_LEVELS, STAKES))
        growth.append(compute_log_growth(rates, _LEVELS, STAKES))
    growth_out, growth_in = growth
    predicted_out, predicted_in = predicted
    # Bet k stakes STAKES[stakes_out[k]] on false positives and STAKES[stakes_in[k]] on false negatives.
    stakes_out, stakes_in = _choose_pairs(family, predicted_out, predicted_in, target)

    def find_least_capital(parameter: float) -> float:
        """Returns the smallest total log capital of the bets over the corners of the curve's cells.

        The corner of cell j is at the false-positive rate _LEVELS[j] and the false-negative rate
        _LEVELS[corners[j]]. It is below the curve, so this is a lower bound on the capital there.
        """
        corners = _find_corners(family, parameter, _LEVELS)
        of_alarms = growth_out[stakes_out, :-1]  # each bet's log growth, (bets, cells)
        of_misses = growth_in[stakes_in[:, None], corners]
        return mix_bets(of_alarms + of_misses, CAPITAL).min()

    return find_least_capital


def _choose_pairs(
    family: Family, growth_out: Array, growth_in: Array, target: float
) -> tuple[Integers, Integers]:
    """Returns the pair of stakes that should reject the largest parameter, followed by alternative pairs.

    The alternatives multiply both stakes by a common factor, or bet on a single set of runs.

    Args:
      family: The trade-off functions f_t.
      growth_out: (S, levels) the predicted log growth of STAKES on false positives, at _COARSE_LEVELS.
      growth_in: (S, levels) the same for false negatives.
      target: The log capital needed to reject a parameter.

    Returns:
      (the indices in STAKES (L,) of the stakes on false positives, those on false negatives), in the order of
        CAPITAL, the bets' starting capital
    """

    def find_margins(parameter: float) -> Array:
        """Returns by how much each pair's lowest log capital exceeds the target, of shape (S, S).

        The first axis is for the stakes on false positives. The lowest is over the cells of the parameter's
        curve. We skip a cell if a bet on a single set of runs reaches the target there.
        """
        # The log growth of each stake at the corner of each cell, (S, cells).
        at_corners_out = growth_out[:, :-1]
        at_corners_in = growth_in[:, _find_corners(family, parameter, _COARSE_LEVELS)]
        # The log growth of the best bet on a single set of runs, at each cell's corner.
        best_single = np.maximum(
            at_corners_out[_SINGLE_PLACES].max(0), at_corners_in[_SINGLE_PLACES].max(0)
        )
        remaining = best_single + np.log(_CAPITAL_ON_SINGLE) < target
        # The log growth of each pair, (S, S, remaining cells).
        sums = at_corners_out[:, None, remaining] + at_corners_in[None, :, remaining]
        least = sums.min(-1, initial=np.inf)  # infinite if no cell remains
        return least + np.log(_CAPITAL_ON_BEST) - target

    # The first pair that suffices. If no pair does, `argmax` returns the first one, with stakes of 0.
    is_sufficient = _find_margins_at_largest_parameter(find_margins) >= 0
    best_out, best_in = np.unravel_index(is_sufficient.argmax(), is_sufficient.shape)
    # Stakes above 0 form a geometric grid, so adding an offset to both indices multiplies both stakes by the
    # same factor.
    neighbours_out = np.clip(best_out + _NEIGHBOUR_OFFSETS, 1, STAKES.size - 1)
    neighbours_in = np.clip(best_in + _NEIGHBOUR_OFFSETS, 1, STAKES.size - 1)
    no_stake = np.zeros_like(_SINGLE_PLACES)
    stakes_out = np.concatenate([[best_out], neighbours_out, _SINGLE_PLACES, no_stake])
    stakes_in = np.concatenate([[best_in], neighbours_in, no_stake, _SINGLE_PLACES])
    return stakes_out, stakes_in


def _find_margins_at_largest_parameter(find_margins: Callable[[float], Array]) -> Array:
    """Returns the margins of bets, of any shape, at the largest parameter that one of them should reject.

    `find_margins` maps a parameter to margins. A bet should reject the parameter if its margin is at least 0.
    """
    largest = find_largest_refuted(
        lambda parameter: find_margins(parameter).max() >= 0,
        first=16.0,  # larger than most parameters
        halvings=12,  # to 1/256, precise enough to choose bets
    )
    return find_margins(largest)


def _find_corners(family: Family, parameter: float, levels: Array) -> Integers:
    """Returns, for each cell of false-positive rates, the index in `levels` of its false-negative rate.

    `levels`, (cells + 1,), are the ascending ends of cells. The false-negative rate is the curve's value at
    a cell's upper end, rounded down to one of `levels`, so the corner is below the curve.
    """
    rates_in = family.trade_off(parameter, levels[1:])
    corners = np.searchsorted(levels, rates_in, side="right") - 1
    return np.maximum(corners, 0)  # rounding may give a rate below 0


def _bet_on_coins(family: Family, counted: Counted, target: float) -> Callable[[float], float]:
    """Returns a function from a parameter to the smallest log capital on its curve, for runs with coins.

    A bet is on z = weight * FN + (1 - weight) * FP, a mean of a run's false-negative and false-positive
    rates. We choose bets that should reach a log capital of `target`.
    """
    weights, stakes = _choose_coin_bets(family, counted, target)  # (bets,) each
    # Each stake is an array (1,).
    rows = [
        _compute_coin_growth(counted.rest, weight, _MEANS, stake)
        for weight, stake in zip(weights, stakes[:, None], strict=True)
    ]
    growth = np.concatenate(rows)  # the log growth of each bet at each mean of z, (bets, _MEANS)

    def find_least_capital(parameter: float) -> float:
        """Returns the smallest total log capital of the bets over the corners of the curve's cells.

        Corners are below the curve, so this is a lower bound on the capital there.
        """
        # The rates at the corners, (cells,).
        false_positive = _LEVELS[:-1]
        false_negative = family.trade_off(parameter, _LEVELS[1:])
        # The mean of each bet's z at each corner, (bets, cells). Rounding it down to one of _MEANS never
        # increases the capital.
        means = np.outer(weights, false_negative) + np.outer(1 - weights, false_positive)
        below = np.searchsorted(_MEANS, means, side="right") - 1
        # Only rounding errors give a mean below 0, with index -1.
        growth_on_curve = np.where(below >= 0, np.take_along_axis(growth, below, 1), -np.inf)
        return mix_bets(growth_on_curve, CAPITAL).min()

    return find_least_capital


def _choose_coin_bets(family: Family, counted: Counted, target: float) -> tuple[Array, Array]:
    """Returns the bet that should reject the largest parameter, followed by alternative bets.

    A bet is a stake on z = weight * FN + (1 - weight) * FP, a mean of a run's error rates. The alternatives
    are other stakes on the same z, and bets on a single error rate, with weight 0 or 1.

    We scale the pilot's log growth to the number of counted runs. A bet's *critical* mean is the smallest
    mean of z at which its log capital reaches `target`. The bet should reject a parameter if the mean of z is
    at least critical along the whole curve, except at points that bets on a single rate should reject.

    Returns:
      (the weights in z (L,), the stakes (L,)), in the order of CAPITAL, the bets' starting capital
    """
    stakes = STAKES[1:]  # above 0
    single_stakes = STAKES[_SINGLE_PLACES]
    runs_per_pilot_run = len(counted.rest.misses) / len(counted.pilot.misses)

    def find_critical_means(weight: float, tried: Array, capital: float) -> Array:
        """Returns the critical mean of z for each stake in `tried`, of shape (stakes,).

        A bet starts with `capital`. The result is one of _COARSE_MEANS, or 2, which no mean reaches.
        """
        growth = _compute_coin_growth(counted.pilot, weight, _COARSE_MEANS, tried)
        predicted = runs_per_pilot_run * growth
        sufficient = predicted >= target - np.log(capital)  # (stakes, means)
        first_means = _COARSE_MEANS[sufficient.argmax(1)]
        return np.where(sufficient.any(1), first_means, 2.0)

    # Bets on a single error rate should reject all points of a curve where that rate is at least critical.
    critical_rate_out = find_critical_means(0.0, single_stakes, _CAPITAL_ON_SINGLE).min()
    critical_rate_in = find_critical_means(1.0, single_stakes, _CAPITAL_ON_SINGLE).min()
    critical_means = np.array(
        [find_critical_means(weight, stakes, _CAPITAL_ON_BEST) for weight in _WEIGHTS]
    )

    def find_margins(parameter: float) -> Array:
        """Returns the smallest mean of z on the curve minus each bet's critical mean, (weights, stakes)."""
        fpr = _COARSE_LEVELS[:-1]  # the smallest rates in each cell of the curve
        fnr = family.trade_off(parameter, _COARSE_LEVELS[1:])
        # Bets on a single rate reject the other points.
        remaining = (fpr < critical_rate_out) & (fnr < critical_rate_in)
        # The mean of z for each weight at each point, (weights, points).
        means = np.outer(_WEIGHTS, fnr[remaining]) + np.outer(1 - _WEIGHTS, fpr[remaining])
        least_means = means.min(1, initial=1.0)  # 1 if no point remains
        return least_means[:, None] - critical_means

    margins = _find_margins_at_largest_parameter(find_margins)
    best_weight, best_stake = np.unravel_index(margins.argmax(), margins.shape)
    neighbours = np.clip(best_stake + np.append(0, _NEIGHBOUR_OFFSETS), 0, stakes.size - 1)
    repeats = [neighbours.size, _SINGLE_PLACES.size, _SINGLE_PLACES.size]
    weights = np.repeat([_WEIGHTS[best_weight], 0.0, 1.0], repeats)
    return weights, np.concatenate([stakes[neighbours], single_stakes, single_stakes])


def _compute_coin_growth(errors: RunErrors, weight: float, means: Array, stakes: Array) -> Array:
    """Returns the log growth of bets on z = weight * FN + (1 - weight) * FP in each run, (stakes, means).

    Each canary causes at most one error, a miss or a false alarm. So z is at most the larger of
    weight * scale_in and (1 - weight) * scale_out.
    """
    false_positive, false_negative = errors.rates()
    most = max(weight * errors.scale_in, (1 - weight) * errors.scale_out)
    z = weight * false_negative + (1 - weight) * false_positive
    return compute_log_growth(z, means, stakes, most)
