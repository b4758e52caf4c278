"""Betting tests for the mean of independent values in [0, 1], valid for any sample size and distribution.

A gambler bets that the mean is below m, and stakes lambda on each value. The capital starts at 1 and becomes

    C(m) = prod_i (1 + lambda (m - x_i)),    0 <= lambda <= 1 / (1 - m).

If the mean is at least m, the expected capital is at most 1, so the capital reaches 1 / error with
probability at most `error` (Markov). The same limit applies to mixtures of stakes, and to products over
independent values. Source: Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting"
(JRSS B, 2023).
"""

from collections.abc import Callable

import numpy as np
from scipy import special

from audit.evidence.arrays import Array, Integers
from audit.evidence.canaries import Counted, RunErrors
from audit.laws.intervals import find_largest_refuted
from audit.methods.exact import Family


def _make_grid(end: float, points: int) -> Array:
    """Returns a grid (points + 2,): 0, then Phi at `points` evenly spaced values from -end to end, then 1."""
    return special.ndtr([-np.inf, *np.linspace(-end, end, points), np.inf])


# Grids of error rates (cell boundaries) and of means of z. To save time, we choose bets on the coarse grids.
_LEVELS = _make_grid(8.0, 3201)
_COARSE_LEVELS = _make_grid(6.0, 241)
_MEANS = _make_grid(6.0, 1601)
_COARSE_MEANS = _MEANS[::2]
_WEIGHTS = 1 / (1 + np.geomspace(1 / 64, 64.0, 25))  # of false negatives in z
STAKES = np.append(0.0, np.geomspace(0.02, 64.0, 36))
# Neighbours of the best stake, as offsets in STAKES.
_NEIGHBOUR_OFFSETS = np.array([-12, -8, -5, -3, -2, -1, 1, 2, 3, 5])
# Indices into STAKES for bets on a single error rate, which gain the most at the ends of a curve.
_SINGLE_INDICES = np.arange(1, STAKES.size, 3)

# We split a capital of 1 among the best bet in the pilot, its neighbours, and bets on a single error rate.
# Any split is valid.
_CAPITAL_ON_BEST = 0.7
_CAPITAL_ON_NEIGHBOUR = 0.2 / _NEIGHBOUR_OFFSETS.size
_CAPITAL_ON_SINGLE = 0.1 / (2 * _SINGLE_INDICES.size)
STARTING_CAPITAL = np.repeat(
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
      The log capital (L, G), which grows with m; -inf if a stake could lose more than the capital.
    """
    distinct, counts = np.unique(values, return_counts=True)
    gains = means[:, None] - distinct
    growth = np.full((stakes.size, means.size), -np.inf)
    for row, stake in zip(growth, stakes, strict=True):  # `row` is a view of `growth`
        allowed = stake * (most - means) <= 1  # a value of `most` costs no more than the capital
        with np.errstate(divide="ignore"):
            # A return of -1 loses the entire capital. Rounding may produce lower values.
            returns = np.maximum(stake * gains[allowed], -1.0)
            row[allowed] = np.log1p(returns) @ counts
    return growth


def mix_bets(growth: Array, capital: Array) -> Array:
    """Returns the log of the total capital (G,) of L bets.

    Each bet starts with its share of `capital` (L,). `growth` (L, G) is the log of each bet's growth factor.
    """
    return np.logaddexp.reduce(growth + np.log(capital)[:, None])


def lower_bound(family: Family, counted: Counted, error: float) -> float:
    """Returns a lower bound on the privacy parameter: the largest parameter t that a betting test rejects.

    Under f_t-DP, the average error rates lie on or above the curve f_t. At each point of the curve, a gambler
    starts with a capital of 1 and bets that the rates are lower. We reject t if the capital reaches 1 / error
    at every point. The bound is 0 if the observed rates show no leakage.

    Args:
      counted: The errors at a threshold, in the pilot (runs used to choose bets) and in the other runs.
      error: The probability that the bound exceeds the truth.
    """
    target = -np.log(error)  # the log capital needed to reject a parameter
    errors = counted.rest  # in the runs outside the pilot
    # same_runs: every run yields both kinds of error, since coins decide which canaries are inserted.
    choose_bets = _bet_on_weighted_rates if errors.same_runs else _bet_on_independent_rates
    find_least_capital = choose_bets(family, counted, target)
    observed = _estimate_parameter(family, errors)
    if observed <= 0:
        return 0.0
    return find_largest_refuted(
        lambda parameter: find_least_capital(parameter) >= target,
        first=observed,
        halvings=24,  # to 1e-7 of the search interval
    )


def _estimate_parameter(family: Family, errors: RunErrors) -> float:
    """Returns the parameter of the trade-off curve through the observed error rates."""
    guesses_in, guesses_out = errors.guesses()  # possible misses and false alarms
    # A rate is scale * errors / guesses. With coins, all canaries count as guesses, so the scale is about 2.
    # Adding half an error (Jeffreys' prior) avoids rates of 0.
    fpr = (errors.scale_out * errors.alarms.sum() + 0.5) / (guesses_out + 1)
    fnr = (errors.scale_in * errors.misses.sum() + 0.5) / (guesses_in + 1)
    return float(family.parameter(min(fpr, 1.0), min(fnr, 1.0)))


def _bet_on_independent_rates(
    family: Family, counted: Counted, target: float
) -> Callable[[float], float]:
    """Returns a function from a parameter t to the smallest log capital of bets on the trade-off curve f_t.

    If the capital reaches `target`, the data reject t. At each point of the curve, we bet that both error
    rates are lower. Some runs measure false positives, and the others measure false negatives. So each bet
    has a stake on each rate, and its growth is the product of two factors.
    """
    stakes_fpr, stakes_fnr = _choose_stake_pairs(family, counted, target)
    fpr, fnr = counted.rest.rates()  # of each run outside the pilot
    # The log growth (bets, _LEVELS). In column i, we bet that a rate is below _LEVELS[i].
    growth_fpr = compute_log_growth(fpr, _LEVELS, stakes_fpr)
    growth_fnr = compute_log_growth(fnr, _LEVELS, stakes_fnr)

    def find_least_capital(parameter: float) -> float:
        """Returns a lower bound on the total log capital of the bets along a parameter's curve.

        _LEVELS divide the false-positive rates into cells. In each cell, we use the lowest false-positive
        rate (the lower end) and the lowest false-negative rate, because the capital grows with both rates.
        """
        lowest_fnrs = _find_lowest_fnrs(family, parameter, _LEVELS)  # columns of `growth_fnr`
        growth = growth_fpr[:, :-1] + growth_fnr[:, lowest_fnrs]  # (bets, cells)
        return mix_bets(growth, STARTING_CAPITAL).min()

    return find_least_capital


def _choose_stake_pairs(family: Family, counted: Counted, target: float) -> tuple[Array, Array]:
    """Chooses bets, each with a stake on the false-positive rate and one on the false-negative rate.

    Most of the capital goes to the pair of stakes that should reject the largest parameter. The rest goes to
    multiples of this pair and to bets on a single rate (`_list_stake_pairs`). A parameter is rejected if the
    bets' total log capital reaches `target` at every point of its trade-off curve.

    Returns:
      (stakes (L,) on false positives, stakes (L,) on false negatives); STARTING_CAPITAL lists their capital
    """
    fpr, fnr = counted.pilot.rates()
    growth_fpr = _predict_log_growth(fpr, num_rest=len(counted.rest.alarms))
    growth_fnr = _predict_log_growth(fnr, num_rest=len(counted.rest.misses))

    def find_margins(parameter: float) -> Array:
        """Returns a margin for each pair: its smallest log capital on a parameter's curve minus the target.

        A pair with a margin of at least 0 should reject the parameter. Rows of the margins (S, S) correspond
        to stakes on false positives. _COARSE_LEVELS divide the false-positive rates into cells. We skip cells
        in which a bet on a single rate should suffice.
        """
        # The log growth of each stake at the lowest rates in each cell, (S, cells).
        lowest_fpr = growth_fpr[:, :-1]
        lowest_fnr = growth_fnr[:, _find_lowest_fnrs(family, parameter, _COARSE_LEVELS)]
        # The log growth of the best bet on a single rate, (cells,).
        best_single = np.maximum(
            lowest_fpr[_SINGLE_INDICES].max(0), lowest_fnr[_SINGLE_INDICES].max(0)
        )
        needs_pair = best_single + np.log(_CAPITAL_ON_SINGLE) < target
        # The log growth of each pair, (S, S, cells that need it).
        growth = lowest_fpr[:, None, needs_pair] + lowest_fnr[None, :, needs_pair]
        least = growth.min(-1, initial=np.inf)  # infinite if no cell needs a pair
        return least + np.log(_CAPITAL_ON_BEST) - target

    margins = _find_margins_at_largest_parameter(find_margins)
    best_pair = (margins >= 0).argmax()  # any True suffices; if none, the pair with stakes of 0
    return _list_stake_pairs(*np.unravel_index(best_pair, margins.shape))


def _predict_log_growth(pilot_rates: Array, num_rest: int) -> Array:
    """Predicts the log growth (S, levels) in `num_rest` runs, for STAKES on rates below _COARSE_LEVELS."""
    growth = compute_log_growth(pilot_rates, _COARSE_LEVELS, STAKES)
    return growth * (num_rest / len(pilot_rates))


def _list_stake_pairs(best_fpr: np.intp, best_fnr: np.intp) -> tuple[Array, Array]:
    """Returns each bet's stake on false positives (L,), and on false negatives (L,).

    The first bet is the best pair, given as indices into STAKES. Multiples of this pair and bets on a single
    error rate follow.
    """
    # Stakes above 0 form a geometric grid, so adding an offset to both indices multiplies both stakes by the
    # same factor.
    neighbours_fpr = np.clip(best_fpr + _NEIGHBOUR_OFFSETS, 1, STAKES.size - 1)
    neighbours_fnr = np.clip(best_fnr + _NEIGHBOUR_OFFSETS, 1, STAKES.size - 1)
    no_stake = np.zeros_like(_SINGLE_INDICES)
    indices_fpr = np.concatenate([[best_fpr], neighbours_fpr, _SINGLE_INDICES, no_stake])
    indices_fnr = np.concatenate([[best_fnr], neighbours_fnr, no_stake, _SINGLE_INDICES])
    return STAKES[indices_fpr], STAKES[indices_fnr]


def _find_margins_at_largest_parameter(find_margins: Callable[[float], Array]) -> Array:
    """Returns the margins of all bets at the largest parameter that at least one bet should reject.

    `find_margins` maps a parameter to margins. A bet with a margin of at least 0 should reject the parameter.
    """
    largest = find_largest_refuted(
        lambda parameter: find_margins(parameter).max() >= 0,
        first=16.0,  # larger than most parameters
        halvings=12,  # to 1/256, precise enough to choose bets
    )
    return find_margins(largest)


def _find_lowest_fnrs(family: Family, parameter: float, levels: Array) -> Integers:
    """Returns the lowest false-negative rate in each cell as an index (cells,) into `levels`.

    The ascending `levels` (cells + 1,) divide the false-positive rates into cells. The trade-off curve
    decreases, so it is lowest at the upper end of each cell. We round its value down to one of `levels`.
    """
    lowest_rates = family.trade_off(parameter, levels[1:])
    return np.searchsorted(levels, lowest_rates, side="right") - 1


def _bet_on_weighted_rates(
    family: Family, counted: Counted, target: float
) -> Callable[[float], float]:
    """Returns a function from a parameter t to the smallest log capital of bets on the trade-off curve f_t.

    If the capital reaches `target`, the data reject t. Since coins decide which canaries are inserted, each
    run yields dependent estimates of both error rates (FP and FN). At each point of the curve, we bet that
    the mean of z = weight * FN + (1 - weight) * FP is lower than z at that point.
    """
    weights, stakes = _choose_weighted_bets(family, counted, target)  # (bets,) each
    # growth[b, i] is the log growth of bet b's capital outside the pilot if the mean of its z is _MEANS[i].
    growth = np.concatenate(
        [
            _compute_weighted_growth(counted.rest, weight, _MEANS, np.array([stake]))
            for weight, stake in zip(weights, stakes, strict=True)
        ]
    )

    def find_least_capital(parameter: float) -> float:
        """Returns a lower bound on the total log capital of the bets along a parameter's curve.

        Each bet's capital grows with the hypothetical mean of its z = weight * FN + (1 - weight) * FP. In
        each cell of the curve, we combine the smallest FP with the smallest FN, so this mean is never too
        large.
        """
        fpr = _LEVELS[:-1]  # (cells,)
        fnr = family.trade_off(parameter, _LEVELS[1:])
        means = np.outer(weights, fnr) + np.outer(1 - weights, fpr)  # (bets, cells)
        # Rounding a mean down to one of _MEANS never increases the capital.
        indices = np.searchsorted(_MEANS, means, side="right") - 1
        growth_on_curve = np.take_along_axis(growth, indices, axis=1)  # (bets, cells)
        return mix_bets(growth_on_curve, STARTING_CAPITAL).min()

    return find_least_capital


def _choose_weighted_bets(family: Family, counted: Counted, target: float) -> tuple[Array, Array]:
    """Chooses bets on a weighted mean of a run's error rates, z = weight * FN + (1 - weight) * FP.

    Most of the capital goes to the bet that should reject the largest parameter. The rest goes to nearby
    stakes and to bets on a single rate (`_list_weighted_bets`). A bet should reject a parameter if, at every
    point of the parameter's curve, the pilot runs in `counted` predict a log capital of at least `target`.

    Returns:
      (the weights in z (L,), the stakes (L,)); STARTING_CAPITAL lists the capital of these bets
    """
    positive_stakes = STAKES[1:]  # the first stake is 0
    single_stakes = STAKES[_SINGLE_INDICES]
    # The log growth that raises a bet's starting capital to the target.
    needed_from_best = target - np.log(_CAPITAL_ON_BEST)
    needed_from_single = target - np.log(_CAPITAL_ON_SINGLE)
    # The smallest rates that bets on a single rate should reject.
    rejected_fpr = _predict_rejected_means(counted, 0.0, single_stakes, needed_from_single).min()
    rejected_fnr = _predict_rejected_means(counted, 1.0, single_stakes, needed_from_single).min()
    rejected_means = np.array(
        [_predict_rejected_means(counted, w, positive_stakes, needed_from_best) for w in _WEIGHTS]
    )

    def find_margins(parameter: float) -> Array:
        """Returns each bet's margin, (weights, stakes); a bet with a margin >= 0 should reject the parameter.

        A margin is the smallest mean of z = weight * FN + (1 - weight) * FP on the parameter's trade-off
        curve, minus the smallest mean that the bet should reject (`rejected_means`). We skip points that bets
        on a single rate should reject: at or above `rejected_fpr` or `rejected_fnr`.
        """
        fpr = _COARSE_LEVELS[:-1]  # the smallest rates in each cell of the curve
        fnr = family.trade_off(parameter, _COARSE_LEVELS[1:])
        remaining = (fpr < rejected_fpr) & (fnr < rejected_fnr)
        # The mean of z for each weight at each point, (weights, points).
        means = np.outer(_WEIGHTS, fnr[remaining]) + np.outer(1 - _WEIGHTS, fpr[remaining])
        least_means = means.min(1, initial=1.0)  # 1, the largest mean, if no point remains
        return least_means[:, None] - rejected_means

    margins = _find_margins_at_largest_parameter(find_margins)
    return _list_weighted_bets(*np.unravel_index(margins.argmax(), margins.shape))


def _list_weighted_bets(best_weight: np.intp, best_stake: np.intp) -> tuple[Array, Array]:
    """Returns the weights of false negatives (L,) and the stakes (L,) of L bets on weighted error rates.

    The first bet is the best one in the pilot, given as indices into _WEIGHTS and the STAKES above 0. Nearby
    stakes follow; they may be better for the other runs, and may repeat at an end of the grid. The last bets,
    on false positives only (weight 0) and on false negatives only (weight 1), gain the most at the ends of a
    curve.
    """
    positive_stakes = STAKES[1:]
    nearby = np.clip(best_stake + np.append(0, _NEIGHBOUR_OFFSETS), 0, positive_stakes.size - 1)
    single_stakes = STAKES[_SINGLE_INDICES]
    weights = np.repeat(
        [_WEIGHTS[best_weight], 0.0, 1.0], [nearby.size, single_stakes.size, single_stakes.size]
    )
    return weights, np.concatenate([positive_stakes[nearby], single_stakes, single_stakes])


def _predict_rejected_means(counted: Counted, weight: float, stakes: Array, needed: float) -> Array:
    """Returns the smallest mean of z = weight * FN + (1 - weight) * FP that each bet should reject.

    A bet with one of the `stakes` (S,) rejects a mean and all larger ones if its log capital grows by
    `needed`. We scale the pilot's growth to the number of other runs. The results (S,) are values of
    _COARSE_MEANS, or 2 (larger than any mean) for a bet that should reject none.
    """
    growth = _compute_weighted_growth(counted.pilot, weight, _COARSE_MEANS, stakes)
    runs_per_pilot_run = len(counted.rest.misses) / len(counted.pilot.misses)
    is_rejected = runs_per_pilot_run * growth >= needed  # (S, means)
    smallest = _COARSE_MEANS[is_rejected.argmax(1)]
    return np.where(is_rejected.any(1), smallest, 2.0)


def _compute_weighted_growth(
    errors: RunErrors, weight: float, means: Array, stakes: Array
) -> Array:
    """Returns the log growth (stakes, means) from betting on z = weight * FN + (1 - weight) * FP.

    In each run, a stake lambda multiplies the capital by 1 + lambda (mean - z). With fair coins, only half of
    the canaries are in. So FN is twice the fraction of all canaries that are missed (`scale_in` is 2), and FP
    is twice the fraction that cause false alarms.
    """
    fp, fn = errors.rates()
    z = weight * fn + (1 - weight) * fp
    # Each canary causes at most one error, so z is largest if all canaries cause the error that adds more to
    # z.
    largest = max(weight * errors.scale_in, (1 - weight) * errors.scale_out)
    return compute_log_growth(z, means, stakes, most=largest)
