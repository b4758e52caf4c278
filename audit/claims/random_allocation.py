"""The leak of training if each epoch uses an example in a single, random step.

Balls in bins and random allocation do so. All models together show an epoch's b noisy sums, and the example
is in an unknown one. The ratio of their density with the example to that without it is

    X = (1 / b) sum_i exp((2 z_i - 1) / (2 sigma^2)),   z_i ~ N(0, sigma^2) without the example,

with mean 1; delta(epsilon) is E[(X - e^epsilon)+] for adding the example, and E[(1 - e^epsilon X)+] for
removing it. Both are means of a convex function of X, and so of each factor of a product of such ratios (as
for several epochs), and of each term of a sum. Hence spreading a law's mass about its mean raises delta, and
concentrating it at its mean lowers delta. Each sum of two terms is put on a grid in either way, and the error
is of second order in the grid's width.

Source: Chua et al., "Balls-and-Bins Sampling for DP-SGD" (2024, arXiv 2412.16802), simulate this ratio;
Feldman and Shenfeld, "Efficient Privacy Loss Accounting for Subsampling and Random Allocation" (2026, arXiv
2602.17284), bound it differently in their package pld-accounting.
"""

import functools
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.laws import conversions

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

Array = NDArray[np.float64]

_CELLS = 1500  # of a law's grid
_FAR = 8.0  # standard deviations of a term's logarithm, beyond both means
_LEAST_MASS = 1e-8  # at each end of both terms; grids of sums do not resolve smaller masses
_LOSS_ERROR = 5e-3  # of the rounded losses of all epochs, in a lower bound
_MOST_LOSSES = 2**17  # of an epoch
_COARSEST = 1e-3  # the widest grid of losses


class _Law(NamedTuple):
    """A discrete law of the ratio X of the densities with and without the example.

    Attributes:
      values: (n,) values of X, ascending, at least 0.
      masses: (n,) their probabilities without the example.
      beyond: The part of the mean above the last value; 0 in a lower bound.
    """

    values: Array
    masses: Array
    beyond: float


@functools.lru_cache(maxsize=32)
def account_allocation(
    noise_multiplier: float, batches: int, epochs: int, above: bool, cells: int = _CELLS
) -> "PrivacyLossDistribution":
    """Returns a privacy loss distribution that bounds delta of training with random allocation.

    The adversary sees all models. The law of the mean X of an epoch's terms (module docstring) gives the
    privacy loss of an epoch, and composition that of all epochs.

    Args:
      noise_multiplier: sigma.
      batches: b, the number of steps in an epoch, at least 1.
      epochs: The number of epochs.
      above: Whether delta is bounded from above rather than from below.
      cells: The number of cells of each grid; more are slower and tighter.
    """
    # Doubling gives the laws of means of 1, 2, 4, ... terms. The binary digits of b select laws: for b = 5,
    # the means of 1 and of 4 terms.
    doubled = _discretise_term(noise_multiplier, above, cells)
    parts = []  # laws of means, with their numbers of terms
    for digit in range(batches.bit_length()):
        terms = 2**digit
        if digit:
            doubled = _average(doubled, terms // 2, doubled, terms // 2, above, cells)
        if batches & terms:
            parts.append((doubled, terms))
    law, terms = parts[0]
    for other, other_terms in parts[1:]:
        law = _average(law, terms, other, other_terms, above, cells)
        terms += other_terms
    return _find_losses(law, epochs, above).self_compose(epochs)


def _discretise_term(sigma: float, above: bool, cells: int) -> _Law:
    """Returns the law of a single term of the density ratio X, as atoms on a grid.

    The term is exp((2 z - 1) / (2 sigma^2)). Its logarithm is N(-1 / (2 sigma^2), 1 / sigma^2) without the
    example, and N(1 / (2 sigma^2), 1 / sigma^2) with it. If `above`, the grid raises delta, by spreading each
    cell's mass to its ends. Otherwise it lowers delta, by concentrating the mass at the cell's mean.
    """
    # Equal steps in the term's logarithm, and an open cell at either end.
    log_mean = 1 / (2 * sigma**2)  # with the example; without it, minus that
    reach = log_mean + _FAR / sigma
    logs = np.linspace(-reach, reach, cells + 1)
    points = np.exp(logs)
    ends = np.concatenate([[-np.inf], logs, [np.inf]])

    # Without and with the example. The probability with it is that without it times the term's mean in the
    # cell.
    masses = conversions.mass_between((ends + log_mean) * sigma)
    masses_times_mean = conversions.mass_between((ends - log_mean) * sigma)
    # Far cells that underflow to 0 are left out, which lowers delta. An upper bound keeps their part of the
    # mean.
    grid = np.append(0.0, points)
    is_possible = masses > 0
    if not above:
        is_possible &= masses_times_mean > 0
    means = masses_times_mean[is_possible] / masses[is_possible]
    if not above:
        return _Law(means, masses[is_possible], 0.0)
    beyond = float(masses_times_mean[~is_possible].sum())
    return _spread(means, masses[is_possible], grid, beyond)


def _average(
    first: _Law, first_terms: int, second: _Law, second_terms: int, above: bool, cells: int
) -> _Law:
    """Returns the law of the mean of all terms of two independent means, on a geometric grid.

    The two laws are of means of `first_terms` and `second_terms` terms. `above` is as in `_discretise_term`.
    """
    # The weighted mean of every pair of atoms, from the first law (rows) and the second (columns).
    share = first_terms / (first_terms + second_terms)
    values = (share * first.values)[:, None] + (1 - share) * second.values
    masses = first.masses[:, None] * second.masses
    beyond = share * first.beyond + (1 - share) * second.beyond

    # Two more cells are beyond the ends of the grid. The factor 1.001 separates equal ends.
    low = share * _find_low(first) + (1 - share) * _find_low(second)
    high = share * _find_high(first) + (1 - share) * _find_high(second)
    edges = np.geomspace(low, max(high, 1.001 * low), cells + 1)

    values = values.ravel()
    masses = masses.ravel()
    if not above:  # each cell's mass is concentrated at its mean
        places = np.searchsorted(
            edges, values, side="right"
        )  # 0 is below the grid, cells + 1 above it
        totals = _sum_by_place(places, masses, cells + 2)
        totals_times_mean = _sum_by_place(places, masses * values, cells + 2)
        is_possible = totals > 0
        means = totals_times_mean[is_possible] / totals[is_possible]
        return _Law(means, totals[is_possible], 0.0)
    return _spread(values, masses, np.append(0.0, edges), beyond)


def _spread(values: Array, masses: Array, grid: Array, beyond: float) -> _Law:
    """Returns the law with each atom's mass split between the two adjacent grid points, at the same mean.

    Atoms above the grid move to its last point, and their mean excess is added to `beyond`. The first of the
    ascending points is not above any atom.
    """
    last = len(grid) - 1
    places = np.searchsorted(grid, values, side="right") - 1
    below = np.clip(places, 0, last - 1)
    # An atom above the grid moves to the last point.
    upper_shares = (values - grid[below]) / (grid[below + 1] - grid[below])
    upper = masses * np.clip(upper_shares, 0.0, 1.0)
    atoms = _sum_by_place(below, masses - upper, last + 1)
    atoms += _sum_by_place(below + 1, upper, last + 1)
    excess = float(np.maximum(values - grid[-1], 0.0) @ masses)
    return _Law(grid, atoms, beyond + excess)


def _sum_by_place(places: NDArray[np.intp], weights: Array, size: int) -> Array:
    """Returns the sum of the weights (n,) at each place from 0 to size - 1."""
    return np.asarray(np.bincount(places, weights, size), np.float64)


def _find_low(law: _Law) -> float:
    """Returns the lower end of a grid: a positive value with almost no mass below it."""
    place = int(np.searchsorted(np.cumsum(law.masses), _LEAST_MASS))
    first_positive = int(np.flatnonzero(law.values > 0)[0])
    return float(law.values[max(place, first_positive)])


def _find_high(law: _Law) -> float:
    """Returns the upper end of a grid: a value with almost no part of the mean above it."""
    means_from_above = np.cumsum((law.values * law.masses)[::-1])
    place = int(np.searchsorted(means_from_above, _LEAST_MASS**2))
    return float(law.values[::-1][place])


def _find_losses(law: _Law, epochs: int, above: bool) -> "PrivacyLossDistribution":
    """Returns the distribution of an epoch's privacy loss on a grid of losses, for dp-accounting to compose.

    With the example the loss is log X, and masses are X times those without it. Without the example the loss
    is -log X. A lower bound on delta rounds both losses down. An upper bound splits each atom of X between
    adjacent grid points, at the same mean of X.
    """
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    positive = law.values > 0  # X = 0 has no logarithm; its mass is counted below, if at all
    logs = np.log(law.values[positive])
    masses = law.masses[positive]

    # The grid has the `size` values first * grid, (first + 1) * grid, ... of log X. The rounding errors of
    # epochs add up and determine the spacing, up to a limited number of values.
    grid = max(min(_COARSEST, _LOSS_ERROR / epochs), float(np.ptp(logs)) / _MOST_LOSSES)
    first = math.floor(logs[0] / grid) - 1
    size = math.ceil(logs[-1] / grid) + 2 - first

    # The masses with the example (in) and without it (out), and of infinite losses.
    if not above:
        below = np.floor(logs / grid).astype(np.intp) - first
        masses_in = _sum_by_place(below, masses * np.exp(logs), size)
        masses_out = _sum_by_place(below + 1, masses, size)  # rounds log X up and -log X down
        infinite_in = infinite_out = 0.0  # left out, which lowers delta too
    else:
        points = np.exp(grid * (first + np.arange(size)))  # values of X
        masses_out = _spread(np.exp(logs), masses, points, 0.0).masses
        masses_in = masses_out * points
        # With the example, mass without an atom counts as an infinite loss: `law.beyond`, or 1 minus the
        # masses. Rounding makes them differ; the larger is safe. Without it, -log X is infinite at X = 0.
        infinite_in = max(1.0 - float(masses_in.sum()), law.beyond)
        infinite_out = float(law.masses[~positive].sum())

    # Without the example the losses are -log X, in reverse order.
    least_loss_out = -(first + size - 1)
    losses_in = pld_pmf.DensePLDPmf(grid, first, masses_in, infinite_in, above)
    losses_out = pld_pmf.DensePLDPmf(grid, least_loss_out, masses_out[::-1], infinite_out, above)
    return PrivacyLossDistribution(losses_in, losses_out)
