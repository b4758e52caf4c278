"""What training leaks where each epoch has an example in a single step, drawn by a die of the example's own.

So do balls in bins and random allocation. All models together show an epoch's b noisy sums; the example is in
one of these, nobody knows in which. The ratio of their density with the example to that without it is

    X = (1 / b) sum_i exp((2 z_i - 1) / (2 sigma^2)),   z_i ~ N(0, sigma^2) without the example,

of mean 1; delta(epsilon) is E[(X - e^epsilon)+] where the example joins, and E[(1 - e^epsilon X)+] where it
leaves. Both are means of a convex function of X, and so of each factor of a product of such ratios, which is
what several epochs have, and of each term of a sum. Hence spreading a law's mass about its mean raises
delta, and drawing it together at its mean lowers it. Each sum of two terms is put on a grid in either way,
and the error is of second order in the grid's width.

Source: Chua et al., "Balls-and-Bins Sampling for DP-SGD" (2024, arXiv 2412.16802), simulate this ratio;
Feldman and Shenfeld, "Efficient Privacy Loss Accounting for Subsampling and Random Allocation" (2026, arXiv
2602.17284), bound it in another way in their package pld-accounting.
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
_FAR = 8.0  # deviations of a term's logarithm that its grid reaches beyond both means
_LEAST_MASS = (
    1e-8  # at each end of both terms, below which the grid of a sum need not tell values apart
)
_LOSS_ERROR = 5e-3  # of all epochs' losses that are rounded, in a lower bound
_MOST_LOSSES = 2**17  # of an epoch
_COARSEST = 1e-3  # the widest grid of losses


class _Law(NamedTuple):
    """A law of the ratio X of the densities with and without the example, as atoms.

    Attributes:
      values: (n,) values of X, ascending, at least 0.
      masses: (n,) their probabilities without the example.
      beyond: The mean of what exceeds the last value, which no atom holds; 0 in a lower bound.
    """

    values: Array
    masses: Array
    beyond: float


@functools.lru_cache(maxsize=32)
def account_allocation(
    noise_multiplier: float, batches: int, epochs: int, above: bool, cells: int = _CELLS
) -> "PrivacyLossDistribution":
    """Returns a privacy loss distribution that bounds delta of training with random allocation.

    Each epoch has the example in one random step, and the adversary sees all models. X is the ratio of the
    densities of an epoch's models with the example and without it. It is the mean of b independent terms
    exp((2 z_i - 1) / (2 sigma^2)), a term for each step, with z_i ~ N(0, sigma^2) without the example. From
    the law of X follows the privacy loss of an epoch, and by composition that of all epochs.

    Args:
      noise_multiplier: sigma.
      batches: b, the number of steps in an epoch, at least 1.
      epochs: The number of epochs.
      above: Whether delta is bounded from above; else it is bounded from below.
      cells: The number of cells of each grid; more are slower and tighter.
    """
    # The laws of means of 1, 2, 4, ... terms come from doubling. The mean of b terms is put together from
    # those for which b has a binary digit 1: for b = 5, from means of 1 and of 4 terms.
    doubled = _discretise_term(noise_multiplier, above, cells)
    parts = []  # laws of means, each with its number of terms
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

    The term is exp((2 z - 1) / (2 sigma^2)), the ratio at z of the densities of a step's noisy sum with the
    example, N(1, sigma^2), and without it, N(0, sigma^2). Its logarithm is N(-1 / (2 sigma^2), 1 / sigma^2)
    without the example, and N(1 / (2 sigma^2), 1 / sigma^2) with it.

    Args:
      sigma: The noise multiplier.
      above: Whether the grid raises delta, by spreading each cell's mass to its ends; else it lowers delta,
        by drawing the mass together at the cell's mean.
      cells: The number of cells.
    """
    # The grid has equal steps in the term's logarithm. Two more cells lie beyond its ends.
    log_mean = 1 / (2 * sigma**2)  # of the logarithm with the example; without it, minus that
    reach = log_mean + _FAR / sigma
    logs = np.linspace(-reach, reach, cells + 1)
    points = np.exp(logs)
    ends = np.concatenate([[-np.inf], logs, [np.inf]])

    # The probability of each cell without and with the example. Ends are converted to standard deviations,
    # 1 / sigma, from the logarithm's mean. Since the term is the ratio of both densities, the probability
    # with the example is that without it times the term's mean in the cell.
    masses = conversions.mass_between((ends + log_mean) * sigma)
    masses_times_mean = conversions.mass_between((ends - log_mean) * sigma)
    # Far cells, where either underflows to 0, are left out, which lowers delta. An upper bound leaves out
    # only cells without mass, and keeps what these contribute to the mean.
    grid = np.append(0.0, points)  # the lowest cell begins at 0
    is_possible = masses > 0
    if not above:
        is_possible &= masses_times_mean > 0
    means = masses_times_mean[is_possible] / masses[is_possible]
    if not above:
        return _Law(means, masses[is_possible], 0.0)
    beyond = float(masses_times_mean[~is_possible].sum())
    return _spread(means, masses[is_possible], np.flatnonzero(is_possible), grid, beyond)


def _average(
    first: _Law, first_terms: int, second: _Law, second_terms: int, above: bool, cells: int
) -> _Law:
    """Returns the law of the weighted mean of two independent means, each weighted by its number of terms.

    It is the mean of all terms of the two. The terms are those of the density ratio X, all at least 0. The
    law is put on a grid that ascends geometrically.

    Args:
      first: The law of the first mean.
      first_terms: The number of its terms.
      second: The law of the second mean.
      second_terms: The number of its terms.
      above: Whether the grid raises delta; else it lowers it (`_discretise_term`).
      cells: The number of cells of the grid.
    """
    # The weighted mean of every pair of atoms, from the first law (rows) and the second (columns).
    share = first_terms / (first_terms + second_terms)  # the weight of the first mean
    values = (share * first.values)[:, None] + (1 - share) * second.values
    masses = first.masses[:, None] * second.masses
    beyond = share * first.beyond + (1 - share) * second.beyond

    # Next to no mass lies beyond the ends of the grid. It is counted too, in two more cells. Where both ends
    # are the same, the factor 1.001 keeps them apart.
    low = share * _find_low(first) + (1 - share) * _find_low(second)
    high = share * _find_high(first) + (1 - share) * _find_high(second)
    edges = np.geomspace(low, max(high, 1.001 * low), cells + 1)

    # The cell of each pair: 0 below the grid, cells + 1 above it. In logarithms all cells are equally wide.
    log_width = math.log(edges[1] / edges[0])
    values = values.ravel()
    masses = masses.ravel()
    with np.errstate(divide="ignore"):  # a value of 0, of logarithm -inf, lies below the grid
        places = np.floor(np.log(values / low) / log_width)
    places = np.clip(places, -1, cells).astype(np.intp) + 1

    if not above:  # each cell's mass is drawn together at its mean
        totals = _sum_by_place(places, masses, cells + 2)
        totals_times_mean = _sum_by_place(places, masses * values, cells + 2)
        is_possible = totals > 0
        means = totals_times_mean[is_possible] / totals[is_possible]
        return _Law(means, totals[is_possible], 0.0)
    return _spread(values, masses, places, np.append(0.0, edges), beyond)


def _spread(
    values: Array, masses: Array, places: NDArray[np.intp], grid: Array, beyond: float
) -> _Law:
    """Returns the law that results if each atom's mass is split between the two grid points next to it.

    The split keeps each atom's mean. Atoms above the grid go to its last point, and the mean of what they
    exceed it by is added to `beyond`.

    Args:
      values: (n,) the atoms' values, at least 0.
      masses: (n,) the atoms' masses.
      places: (n,) the index of the grid point below each atom, which rounding may miss by 1.
      grid: (m,) points, ascending, the first not above any atom.
      beyond: The part of the law's mean that no atom holds.
    """
    # The index of the point below each atom: never the last point, so that each atom has a point above it.
    last = len(grid) - 1
    below = np.clip(places, 0, last - 1)

    # Where rounding missed the index by 1, it is lowered, or else raised, but stays in its range.
    below -= values < grid[below]
    below = np.clip(below, 0, last - 1)
    below += (values >= grid[below + 1]) & (below < last - 1)

    # An atom above the grid gives all of its mass to the last point, since its share is cut at 1.
    upper_shares = (values - grid[below]) / (grid[below + 1] - grid[below])
    upper = masses * np.clip(upper_shares, 0.0, 1.0)
    atoms = _sum_by_place(below, masses - upper, last + 1)
    atoms += _sum_by_place(below + 1, upper, last + 1)
    excess = float(np.maximum(values - grid[-1], 0.0) @ masses)
    return _Law(grid, atoms, beyond + excess)


def _sum_by_place(places: NDArray[np.intp], weights: Array, size: int) -> Array:
    """Returns, for each place from 0 to size - 1, the sum of the weights (n,) there."""
    return np.asarray(np.bincount(places, weights, size), np.float64)


def _find_low(law: _Law) -> float:
    """Returns a positive value below which the law has next to no mass: the lower end of a grid."""
    place = int(np.searchsorted(np.cumsum(law.masses), _LEAST_MASS))
    first_positive = int(np.flatnonzero(law.values > 0)[0])
    return float(law.values[max(min(place, len(law.values) - 1), first_positive)])


def _find_high(law: _Law) -> float:
    """Returns a value above which the law has next to nothing of its mean: the upper end of a grid."""
    means_from_above = np.cumsum((law.values * law.masses)[::-1])
    place = int(np.searchsorted(means_from_above, _LEAST_MASS**2))
    return float(law.values[::-1][min(place, len(law.values) - 1)])


def _find_losses(law: _Law, epochs: int, above: bool) -> "PrivacyLossDistribution":
    """Returns the distribution of an epoch's privacy loss on a grid of losses, for dp-accounting to compose.

    X is the ratio of the densities of an epoch's models with the example and without it. Both
    directions count. In training with the example the loss is log X, under X's law with the example, whose
    masses are X times those without. In training without the example the loss is -log X, under X's law
    without it. A lower bound on delta rounds both losses down. An upper bound splits each atom of X between
    the grid's points next to it, at the same mean of X.

    Args:
      law: The law of an epoch's ratio X.
      epochs: The number of epochs, on which the spacing of the grid depends.
      above: Whether delta is bounded from above; else from below.
    """
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    positive = law.values > 0  # X = 0 has no logarithm; its mass is counted below, if at all
    logs = np.log(law.values[positive])
    masses = law.masses[positive]

    # The grid has the values first * grid, (first + 1) * grid, ... of log X, `size` of them. It is as fine as
    # the epochs need, whose rounding errors add up, but has a limited number of values. Atoms ascend, so that
    # the first is the least. `below` is the index of the value below each atom, and leaves room for a value
    # above it.
    grid = max(min(_COARSEST, _LOSS_ERROR / epochs), float(np.ptp(logs)) / _MOST_LOSSES)
    first = math.floor(logs[0] / grid) - 1
    size = math.ceil(logs[-1] / grid) + 2 - first
    below = np.clip(np.floor(logs / grid).astype(np.intp) - first, 0, size - 2)

    # The masses of log X on the grid, with the example (in) and without it (out), and of infinite losses.
    if not above:
        masses_in = _sum_by_place(below, masses * np.exp(logs), size)
        masses_out = _sum_by_place(below + 1, masses, size)  # log X up, so that -log X goes down
        infinite_in = infinite_out = 0.0  # left out, which lowers delta too
    else:
        points = np.exp(grid * (first + np.arange(size)))  # the grid's values of X
        masses_out = _spread(np.exp(logs), masses, below, points, 0.0).masses
        masses_in = masses_out * points  # X times the law without the example
        # With the example, what no atom holds counts as an infinite loss. That is `law.beyond`, and also what
        # the masses lack to 1: only rounding tells these apart, and the larger is safe for an upper bound.
        # Without the example, -log X is infinite at X = 0.
        infinite_in = max(1.0 - float(masses_in.sum()), law.beyond)
        infinite_out = float(law.masses[~positive].sum())

    # Without the example the losses are the negatives, -log X, in reverse order.
    least_loss_out = -(first + size - 1)  # in steps of the grid
    losses_in = pld_pmf.DensePLDPmf(grid, first, masses_in, infinite_in, above)
    losses_out = pld_pmf.DensePLDPmf(grid, least_loss_out, masses_out[::-1], infinite_out, above)
    return PrivacyLossDistribution(losses_in, losses_out)
