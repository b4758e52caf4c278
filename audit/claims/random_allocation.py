"""The privacy loss of training that uses each example in one random step per epoch.

All models together reveal the b noisy sums z_i of an epoch, in units of C. One of them, unknown to the
adversary, uses the example. Let X be the ratio of their densities with and without the example:

    X = (1 / b) sum_i exp((2 z_i - 1) / (2 sigma^2)),   z_i ~ N(0, sigma^2) without the example.

The mean of X is 1. delta(epsilon) is E[(X - e^epsilon)+] for adding the example, and E[(1 - e^epsilon X)+]
for removing it. Both deltas are convex in X and in each term of the sum. The ratio for several epochs is the
product of their ratios, so both deltas are also convex in each of these. Delta therefore rises if we spread
probability mass around its mean, and falls if we concentrate it there. Whenever we add two terms, we move the
mass to a grid in one of these two ways.

Chua et al. (2024, arXiv 2412.16802) simulate this ratio. Feldman and Shenfeld (2026, arXiv 2602.17284) bound
it differently in their package pld-accounting.
"""

import functools
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.evidence.arrays import Array
from audit.laws import conversions

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

NUM_CELLS = 1500  # per grid; more cells take longer but tighten bounds
_FAR = 8.0  # a term's grid extends this many standard deviations beyond both means
_MAX_MASS_BELOW = 1e-8  # the probability below a mean's grid
_MAX_MEAN_ABOVE = 1e-16  # the part of E[X] above a mean's grid, which adds to delta
_MAX_LOSSES = 2**17  # of an epoch


class _RatioPmf(NamedTuple):
    """The mean of terms of the density ratio X (see the module docstring), as a discrete distribution.

    Attributes:
      values: (n,) the possible values of the mean, non-negative and ascending.
      masses: (n,) their probabilities without the example.
      dropped_mean: 1 minus the expected value: the loss from dropping or lowering large values. Upper bounds
        on delta include it. For lower bounds, it is 0.
      terms: The number of terms.
    """

    values: Array
    masses: Array
    dropped_mean: float
    terms: int


@functools.lru_cache(maxsize=32)
def account_allocation(
    noise_multiplier: float, batches: int, epochs: int, pessimistic: bool
) -> "PrivacyLossDistribution":
    """Returns a privacy loss distribution that bounds delta for training with random allocation.

    The density ratio X of an epoch is the mean of b independent terms (`_discretize_term`). We compose the
    losses of all epochs.

    Args:
      batches: b, the number of steps in an epoch, at least 1.
      pessimistic: True for an upper bound on delta, False for a lower bound.
    """
    # We combine means of 1, 2, 4, ... terms by the binary digits of b: for b = 5, those of 1 and 4 terms.
    doubled = _discretize_term(noise_multiplier, pessimistic)
    ratios = []
    for digit in range(batches.bit_length()):
        if digit > 0:
            doubled = _average(doubled, doubled, pessimistic)
        if batches & doubled.terms:  # the digit is 1
            ratios.append(doubled)
    average = functools.partial(_average, pessimistic=pessimistic)
    return _find_losses(functools.reduce(average, ratios), epochs, pessimistic)


def _discretize_term(sigma: float, pessimistic: bool) -> _RatioPmf:
    """Returns the distribution of a term of the density ratio X, as atoms on a grid.

    The term of a step with noisy sum z is exp((2 z - 1) / (2 sigma^2)). Its logarithm is N(-1 / (2 sigma^2),
    1 / sigma^2) without the example, and N(1 / (2 sigma^2), 1 / sigma^2) with it.
    """
    # A grid for the term's logarithm, with an unbounded cell at each end.
    log_mean = 1 / (2 * sigma**2)  # with the example; without it the mean is -log_mean
    reach = log_mean + _FAR / sigma
    logs = np.linspace(-reach, reach, NUM_CELLS + 1)
    ends = np.concatenate([[-np.inf], logs, [np.inf]])

    # The probabilities of cells, without and with the example. The second is the first times the term's mean
    # in the cell, since the term is a ratio of densities. `mass_between` takes standardized ends.
    masses = conversions.mass_between((ends + log_mean) * sigma)
    masses_times_mean = conversions.mass_between((ends - log_mean) * sigma)
    # We drop far cells whose mass underflows to 0. This lowers delta, so upper bounds add back the cells'
    # mass with the example (`dropped_mean`). A mean that underflows to 0 raises delta for removal,
    # E[(1 - e^epsilon X)+], so a lower bound also drops such cells.
    is_kept = masses > 0
    if not pessimistic:
        is_kept &= masses_times_mean > 0
    means = masses_times_mean[is_kept] / masses[is_kept]
    dropped_mean = float(masses_times_mean[~is_kept].sum())
    return _move_to_grid(
        means, masses[is_kept], np.exp(logs), dropped_mean, terms=1, pessimistic=pessimistic
    )


def _average(first: _RatioPmf, second: _RatioPmf, pessimistic: bool) -> _RatioPmf:
    """Averages two groups of terms of the ratio X and returns the mean's distribution on a geometric grid.

    `first` and `second` are the distributions of the two groups' means.
    """
    terms = first.terms + second.terms
    weight = first.terms / terms
    other_weight = 1 - weight
    # Rows correspond to values of `first`, and columns to values of `second`.
    values = (weight * first.values)[:, None] + other_weight * second.values
    masses = first.masses[:, None] * second.masses

    # The grid covers nearly all of the mass. The factor 1.001 separates equal ends.
    low = weight * _find_low(first) + other_weight * _find_low(second)
    high = weight * _find_high(first) + other_weight * _find_high(second)
    edges = np.geomspace(low, max(high, 1.001 * low), NUM_CELLS + 1)

    dropped_mean = weight * first.dropped_mean + other_weight * second.dropped_mean
    return _move_to_grid(values.ravel(), masses.ravel(), edges, dropped_mean, terms, pessimistic)


def _move_to_grid(
    values: Array, masses: Array, edges: Array, dropped_mean: float, terms: int, pessimistic: bool
) -> _RatioPmf:
    """Moves atoms to a grid: the distribution of the mean of `terms` terms of the density ratio X.

    If `pessimistic`, we raise delta by spreading each atom's mass to the adjacent edges. Otherwise, we lower
    delta by concentrating the mass between two edges at its mean.

    Args:
      values, masses: (n,) the atoms.
      edges: (m,) ascending, above 0.
      dropped_mean: 1 minus the atoms' expected value; ignored for lower bounds.
    """
    if pessimistic:
        grid = np.append(0.0, edges)
        atoms, lost_mean = _spread(values, masses, grid)
        return _RatioPmf(grid, atoms, dropped_mean + lost_mean, terms)
    # The cells are the intervals between 0, the edges and infinity. We move each cell's mass to its mean.
    num_cells = len(edges) + 1
    cells = np.searchsorted(edges, values, side="right")
    totals = _sum_by_place(cells, masses, num_cells)
    totals_times_mean = _sum_by_place(cells, masses * values, num_cells)
    is_kept = totals > 0
    means = totals_times_mean[is_kept] / totals[is_kept]
    return _RatioPmf(means, totals[is_kept], dropped_mean=0.0, terms=terms)


def _spread(values: Array, masses: Array, grid: Array) -> tuple[Array, float]:
    """Splits the mass of each atom between the two adjacent grid points, preserving the mean.

    Atoms above the grid are moved to its last point.

    Args:
      values: (n,) the atoms' values, none below the first grid point.
      masses: (n,) their masses.
      grid: (m,) ascending points.

    Returns:
      (m,) the masses of the grid points, and how much lowering atoms above the grid reduces the mean.
    """
    size = len(grid)
    places = np.searchsorted(grid, values, side="right") - 1
    lower = np.clip(places, 0, size - 2)  # the index of the lower adjacent point
    upper = lower + 1
    fractions = (values - grid[lower]) / (grid[upper] - grid[lower])
    masses_up = masses * np.clip(fractions, 0.0, 1.0)  # includes all mass above the grid
    atoms = _sum_by_place(lower, masses - masses_up, size)
    atoms += _sum_by_place(upper, masses_up, size)
    lost_mean = np.maximum(values - grid[-1], 0.0) @ masses
    return atoms, float(lost_mean)


def _sum_by_place(places: NDArray[np.intp], weights: Array, size: int) -> Array:
    """Returns the sums (size,) of the weights (n,) at each index from 0 to size - 1."""
    return np.asarray(np.bincount(places, weights, size), np.float64)


def _find_low(ratio: _RatioPmf) -> float:
    """Returns the lower end of a grid: a positive value with almost no mass below it."""
    quantile = int(np.searchsorted(np.cumsum(ratio.masses), _MAX_MASS_BELOW))
    first_positive = int(np.flatnonzero(ratio.values > 0)[0])
    return float(ratio.values[max(quantile, first_positive)])


def _find_high(ratio: _RatioPmf) -> float:
    """Returns the upper end of a grid: a value above which the mass contributes little to the mean."""
    means_from_above = np.cumsum((ratio.values * ratio.masses)[::-1])
    num_above = int(np.searchsorted(means_from_above, _MAX_MEAN_ABOVE))
    return float(ratio.values[::-1][num_above])


def _find_losses(ratio: _RatioPmf, epochs: int, pessimistic: bool) -> "PrivacyLossDistribution":
    """Returns the privacy loss distribution of all epochs, given the density ratio X of one epoch.

    With the example, the loss is log X, and its masses are X times the masses without the example. Without
    the example, the loss is -log X. Losses lie on a grid, and dp-accounting composes the epochs. The result
    bounds delta from above if `pessimistic`, else from below.
    """
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    is_positive = ratio.values > 0  # X = 0 has no logarithm; `infinite_out` is its mass
    logs = np.log(ratio.values[is_positive])  # ascending
    masses = ratio.masses[is_positive]

    # The grid points for log X are i * spacing, for i from first to last. Spare points at the ends leave room
    # for rounding. The rounding errors of all epochs add up to at most 0.005, unless this would require more
    # than _MAX_LOSSES points.
    spacing = max(min(0.001, 0.005 / epochs), float(np.ptp(logs)) / _MAX_LOSSES)
    first = math.floor(logs[0] / spacing) - 1
    last = math.ceil(logs[-1] / spacing) + 1
    size = last + 1 - first

    # Masses with the example (in) and without it (out).
    if pessimistic:
        # Splitting each atom of X between adjacent points preserves its mean and raises delta, which is
        # convex in X.
        points = np.exp(spacing * (first + np.arange(size)))  # values of X
        masses_out, _ = _spread(np.exp(logs), masses, points)
        masses_in = masses_out * points
        # We dropped or lowered large values of X, so the masses with the example sum to less than 1. The rest
        # counts as an infinite loss and equals `dropped_mean`, the missing part of E[X] = 1. If rounding
        # makes the two differ, the larger is safe. Without the example, the loss is infinite at X = 0.
        infinite_in = max(1.0 - float(masses_in.sum()), ratio.dropped_mean)
        infinite_out = float(ratio.masses[~is_positive].sum())
    else:  # we round both losses down, which lowers delta
        below = np.floor(logs / spacing).astype(np.intp) - first
        masses_in = _sum_by_place(below, masses * np.exp(logs), size)
        masses_out = _sum_by_place(below + 1, masses, size)  # rounds log X up and -log X down
        infinite_in = infinite_out = 0.0  # dropped, which lowers delta too

    losses_in = pld_pmf.DensePLDPmf(spacing, first, masses_in, infinite_in, pessimistic)
    # The losses without the example are -log X, so their order is reversed.
    losses_out = pld_pmf.DensePLDPmf(spacing, -last, masses_out[::-1], infinite_out, pessimistic)
    return PrivacyLossDistribution(losses_in, losses_out).self_compose(epochs)
