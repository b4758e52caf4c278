"""Betting tests for the mean of independent values in [0, 1], valid for every n and any distribution.

A gambler bets that the mean is below m, and stakes lambda on each value. The capital grows from 1 to

    C(m) = prod_i (1 + lambda (m - x_i)),    0 <= lambda <= 1 / (1 - m).

If the mean is at least m, the expected capital is at most 1, so it reaches 1 / error with probability at most
`error` (Markov). The same is true for mixtures of stakes, and for products over independent values. Source:
Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting" (JRSS B, 2023).

*From means to a privacy parameter.* The null hypothesis H(t) states that the average rates (a, b) of false
positives and false negatives satisfy b >= f_t(a) (`audit.evidence.canaries`), for a family f_t that decreases
in t. We reject it if the capital is large enough everywhere on the curve b = f_t(a). The bets depend on the
design:

    sets     misses and false alarms come from different runs: the capital is C_in(b) C_out(a)
    coins    both come from one run: bets on z = w FN + (1 - w) FP for a weight w, with mean w b + (1 - w) a
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
_SINGLE_INDICES = np.arange(1, STAKES.size, 3)

# The capital on the best bet for the pilot, on each of its neighbours, and on each bet on a single error
# rate. Any split is valid.
_CAPITAL_ON_BEST = 0.7
_CAPITAL_ON_NEIGHBOUR = 0.2 / _NEIGHBOUR_OFFSETS.size
_CAPITAL_ON_SINGLE = 0.1 / (2 * _SINGLE_INDICES.size)
CAPITAL = np.repeat(
    [_CAPITAL_ON_BEST, _CAPITAL_ON_NEIGHBOUR, _CAPITAL_ON_SINGLE],
    [1, _NEIGHBOUR_OFFSETS.size, 2 * _SINGLE_INDICES.size],
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
    for row, stake in zip(growth, stakes, strict=True):  # `row` is a view of `growth`
        allowed = stake * (most - means) <= 1  # a value of `most` costs no more than the capital
        with np.errstate(divide="ignore"):
            # A return of -1 means losing the entire capital. Rounding may give a lower value.
            returns = np.maximum(stake * gains[allowed], -1.0)
            row[allowed] = np.log1p(returns) @ counts
    return growth


def mix_bets(growth: Array, capital: Array) -> Array:
    """Returns the log of the total capital (G,) of L bets.

    `capital` (L,) is what each bet starts with, and `growth` (L, G) the log of the factor by which it grows.
    """
    return np.logaddexp.reduce(growth + np.log(capital)[:, None])


def lower_bound(family: Family, counted: Counted, error: float) -> float:
    """Returns the largest parameter that the betting test rejects, a lower bound on the privacy parameter.

    It rejects a parameter if the gambler's capital reaches 1 / error at every point of the parameter's curve.
    The bound is 0 if the curve through the observed error rates has a parameter of at most 0.

    Args:
      family: The trade-off functions f_t.
      counted: The errors at a threshold, in the pilot (runs used to choose bets) and in the counted runs.
      error: The probability that the bound exceeds the truth.
    """
    target = -np.log(error)  # the log capital needed to reject a parameter
    errors = counted.rest  # those of the counted runs
    # same_runs: every run yields both kinds of errors, since a coin decides whether each canary is in.
    choose_bets = _bet_on_coins if errors.same_runs else _bet_on_sets
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
    """Chooses bets, and returns a function from a parameter to their smallest log capital on its curve.

    The design has two sets of runs: runs without canaries give false positives, and runs with them give false
    negatives. A bet is a pair of stakes, on both rates. Using the pilot, we choose bets whose log capital
    should reach `target` in the counted runs.
    """
    # The log growth for each of STAKES and each level: first for false positives, then for false negatives.
    predicted = []  # for the counted runs, by scaling the pilot's growth to their number
    observed = []  # in the counted runs
    for pilot, rest in zip(counted.pilot.rates(), counted.rest.rates(), strict=True):
        runs_per_pilot_run = len(rest) / len(pilot)
        predicted.append(runs_per_pilot_run * compute_log_growth(pilot, _COARSE_LEVELS, STAKES))
        observed.append(compute_log_growth(rest, _LEVELS, STAKES))
    growth_out, growth_in = observed
    predicted_out, predicted_in = predicted
    # Bet k stakes STAKES[stakes_out[k]] on false positives and STAKES[stakes_in[k]] on false negatives.
    stakes_out, stakes_in = _choose_pairs(family, predicted_out, predicted_in, target)

    def find_least_capital(parameter: float) -> float:
        """Returns a lower bound on the bets' total log capital at every point of a parameter's curve.

        In cell j, false-positive rates are at least _LEVELS[j], and false-negative rates at least
        _LEVELS[corners[j]]. The capital grows with both rates, so it is smallest at these corners.
        """
        corners = _find_corners(family, parameter, _LEVELS)
        # Each bet's log growth at the corner of each cell, (bets, cells).
        from_false_positives = growth_out[stakes_out, :-1]
        from_false_negatives = growth_in[stakes_in[:, None], corners]
        return mix_bets(from_false_positives + from_false_negatives, CAPITAL).min()

    return find_least_capital


def _choose_pairs(
    family: Family, growth_out: Array, growth_in: Array, target: float
) -> tuple[Integers, Integers]:
    """Returns the pair of stakes that should reject the largest parameter, followed by alternative pairs.

    The alternatives multiply both stakes by a common factor, or bet on a single error rate.

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
        """Returns each pair's margin (S, S): its least log capital on a parameter's curve minus the target.

        The first axis is for the stakes on false positives. Pairs need not bet on cells of the curve where a
        bet on a single rate should reach the target.
        """
        # The log growth of each stake at the lowest rates in each cell, (S, cells).
        at_lowest_out = growth_out[:, :-1]
        at_lowest_in = growth_in[:, _find_corners(family, parameter, _COARSE_LEVELS)]
        # The log growth of the best bet on a single rate, (cells,).
        best_single = np.maximum(
            at_lowest_out[_SINGLE_INDICES].max(0), at_lowest_in[_SINGLE_INDICES].max(0)
        )
        remaining = best_single + np.log(_CAPITAL_ON_SINGLE) < target
        # The log growth of each pair, (S, S, remaining cells).
        sums = at_lowest_out[:, None, remaining] + at_lowest_in[None, :, remaining]
        least = sums.min(-1, initial=np.inf)  # infinite if no cell remains
        return least + np.log(_CAPITAL_ON_BEST) - target

    # The first pair that suffices. If no pair does, `argmax` returns the first one, with stakes of 0.
    is_sufficient = _find_margins_at_largest_parameter(find_margins) >= 0
    best_out, best_in = np.unravel_index(is_sufficient.argmax(), is_sufficient.shape)
    # Stakes above 0 form a geometric grid, so adding an offset to both indices multiplies both stakes by the
    # same factor. Index 0 is the stake 0.
    neighbours_out = np.clip(best_out + _NEIGHBOUR_OFFSETS, 1, STAKES.size - 1)
    neighbours_in = np.clip(best_in + _NEIGHBOUR_OFFSETS, 1, STAKES.size - 1)
    no_stake = np.zeros_like(_SINGLE_INDICES)
    stakes_out = np.concatenate([[best_out], neighbours_out, _SINGLE_INDICES, no_stake])
    stakes_in = np.concatenate([[best_in], neighbours_in, no_stake, _SINGLE_INDICES])
    return stakes_out, stakes_in


def _find_margins_at_largest_parameter(find_margins: Callable[[float], Array]) -> Array:
    """Returns the margins of bets, of any shape, at the largest parameter that one of them should reject.

    `find_margins` maps a parameter to margins: by how much each bet should exceed what rejection requires.
    """
    largest = find_largest_refuted(
        lambda parameter: find_margins(parameter).max() >= 0,
        first=16.0,  # larger than most parameters
        halvings=12,  # to 1/256, precise enough to choose bets
    )
    return find_margins(largest)


def _find_corners(family: Family, parameter: float, levels: Array) -> Integers:
    """Returns the index in `levels` (cells,) of a lower limit on each cell's false-negative rates.

    `levels`, (cells + 1,), are the ascending ends of cells of false-positive rates. The curve decreases, so
    its value is lowest at a cell's upper end. We round it down to one of `levels`.
    """
    lowest_rates = family.trade_off(parameter, levels[1:])
    indices = np.searchsorted(levels, lowest_rates, side="right") - 1
    return np.maximum(indices, 0)  # rounding may give a rate below 0


def _bet_on_coins(family: Family, counted: Counted, target: float) -> Callable[[float], float]:
    """Chooses bets, and returns a function from a parameter to their smallest log capital on its curve.

    A coin decides whether each canary is in, so a run gives both error rates. A bet is on z = weight * FN +
    (1 - weight) * FP, a mean of a run's false-negative and false-positive rates. Using the pilot, we choose
    bets whose log capital should reach `target` in the counted runs.
    """
    weights, stakes = _choose_coin_bets(family, counted, target)  # (bets,) each
    growth_of_bets = []
    for weight, stake in zip(weights, stakes, strict=True):
        growth_of_bets.append(_compute_coin_growth(counted.rest, weight, _MEANS, np.array([stake])))
    growth = np.concatenate(growth_of_bets)  # log growth at each mean of z, (bets, _MEANS)

    def find_least_capital(parameter: float) -> float:
        """Returns a lower bound on the bets' total log capital at every point of a parameter's curve.

        We use the smallest rates in each cell of the curve. The capital grows with both rates.
        """
        false_positive = _LEVELS[:-1]  # (cells,)
        false_negative = family.trade_off(parameter, _LEVELS[1:])
        # The mean of each bet's z at these rates, (bets, cells). Rounding it down to one of _MEANS never
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

    We predict the log growth in the counted runs by scaling the pilot's to their number. A bet's *critical*
    mean is the smallest mean of z at which its log capital should reach `target`. The bet should reject a
    parameter if the mean of z is at least critical along the whole curve, except at points that bets on a
    single rate should reject.

    Returns:
      (the weights in z (L,), the stakes (L,)), in the order of CAPITAL, the bets' starting capital
    """
    stakes = STAKES[1:]  # above 0
    single_stakes = STAKES[_SINGLE_INDICES]
    runs_per_pilot_run = len(counted.rest.misses) / len(counted.pilot.misses)

    def find_critical_means(weight: float, tried: Array, capital: float) -> Array:
        """Returns the critical mean of z for each stake in `tried`, of shape (stakes,).

        At the critical mean, a bet that starts with `capital` should just reach the target. It is one of
        _COARSE_MEANS, or 2, which no mean reaches.
        """
        growth = _compute_coin_growth(counted.pilot, weight, _COARSE_MEANS, tried)
        predicted = runs_per_pilot_run * growth
        is_sufficient = predicted >= target - np.log(capital)  # (stakes, means)
        first_means = _COARSE_MEANS[is_sufficient.argmax(1)]
        return np.where(is_sufficient.any(1), first_means, 2.0)

    # Bets on a single error rate should reject all points of a curve where that rate is at least critical.
    critical_fpr = find_critical_means(0.0, single_stakes, _CAPITAL_ON_SINGLE).min()
    critical_fnr = find_critical_means(1.0, single_stakes, _CAPITAL_ON_SINGLE).min()
    critical_means = np.array(
        [find_critical_means(weight, stakes, _CAPITAL_ON_BEST) for weight in _WEIGHTS]
    )

    def find_margins(parameter: float) -> Array:
        """Returns each bet's smallest mean of z on the curve minus its critical mean, (weights, stakes)."""
        fpr = _COARSE_LEVELS[:-1]  # the smallest rates in each cell of the curve
        fnr = family.trade_off(parameter, _COARSE_LEVELS[1:])
        # Bets on a single rate should reject the other points.
        remaining = (fpr < critical_fpr) & (fnr < critical_fnr)
        # The mean of z for each weight at each point, (weights, points).
        means = np.outer(_WEIGHTS, fnr[remaining]) + np.outer(1 - _WEIGHTS, fpr[remaining])
        least_means = means.min(1, initial=1.0)  # 1, the largest mean, if no point remains
        return least_means[:, None] - critical_means

    margins = _find_margins_at_largest_parameter(find_margins)
    best_weight, best_stake = np.unravel_index(margins.argmax(), margins.shape)
    neighbours = np.clip(best_stake + np.append(0, _NEIGHBOUR_OFFSETS), 0, stakes.size - 1)
    # Bets on the best z, on false positives alone, and on false negatives alone.
    repeats = [neighbours.size, single_stakes.size, single_stakes.size]
    weights = np.repeat([_WEIGHTS[best_weight], 0.0, 1.0], repeats)
    return weights, np.concatenate([stakes[neighbours], single_stakes, single_stakes])


def _compute_coin_growth(errors: RunErrors, weight: float, means: Array, stakes: Array) -> Array:
    """Returns the log growth of bets on z = weight * FN + (1 - weight) * FP in each run, (stakes, means).

    A run's rates are estimates: FN is scale_in times its fraction of misses, and FP is scale_out times its
    fraction of false alarms. Each canary causes at most one of these errors, so z is largest if all canaries
    cause the error with the larger weighted scale.
    """
    false_positive, false_negative = errors.rates()
    z = weight * false_negative + (1 - weight) * false_positive
    largest = max(weight * errors.scale_in, (1 - weight) * errors.scale_out)
    return compute_log_growth(z, means, stakes, most=largest)
