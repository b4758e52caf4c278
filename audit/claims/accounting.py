"""Upper bounds on epsilon: exact for Gaussian steps, computed by Google's dp-accounting for sampled steps.

Only steps that insert the canary count. For an adversary who knows the batches, the other steps are
post-processing (hidden-state paper, Sections 5.1 and 5.3).
"""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from audit.errors import MAX_NOISE, MIN_NOISE, require
from audit.laws import conversions

if TYPE_CHECKING:
    from dp_accounting.pld import PLDAccountant

MAX_INSERTIONS = 10**12
LEAST_PARTICIPANT_NOISE = 0.05  # for smaller noise multipliers, we ignore sampling
# The spacing of privacy losses (`participant_upper_bound`).
_GRID = 1e-4
_SMALL_NOISE = 0.3
_RELATIVE_GRID = 1e-4

COARSEST_GRID = 100.0  # exp(100) is finite
# Limits for sampled steps.
_MAX_SAMPLED_NOISE = 1e4
MOST_SAMPLED = 10**6
LEAST_SAMPLED_DELTA = 1e-12


class Composition(NamedTuple):
    """A composition of Gaussian steps with sensitivity C.

    Attributes:
      noise_multiplier: The standard deviation of the noise divided by C.
      insertions: The number of steps that may insert the canary.
      sampling_rate: The probability of insertion per step; 1 without sampling.
    """

    noise_multiplier: float
    insertions: int
    sampling_rate: float = 1.0


def epsilon_upper_bound(noise_multiplier: float, insertions: int, delta: float) -> float:
    """Returns epsilon at delta for `insertions` Gaussian steps that all use the example.

    Composed Gaussian steps are mu-GDP (`mu_upper_bound`). Neighbouring relation: add or remove an example.

    Raises:
      InputError: Values out of range.
    """
    return conversions.epsilon_from_mu(mu_upper_bound(noise_multiplier, insertions), delta)


def participant_upper_bound(composition: Composition, delta: float) -> float:
    """Returns an upper bound on epsilon at delta for Poisson-sampled Gaussian steps.

    The result is the smaller of two bounds. One ignores sampling. The other requires `counts_sampling`, uses
    dp-accounting's privacy loss distributions, and assumes that the adversary does not know the batches.

    Privacy losses are rounded up to a grid. For noise multipliers below 0.3, a coarser grid saves time.
    Bounds are loose unless both epsilon and a step's privacy losses are much larger than the grid spacing.

    Args:
      composition: The steps that may include the participant (an example or a client).

    Raises:
      InputError: Values out of range, or so extreme that no grid fits the privacy losses.
    """
    sigma, insertions, rate = composition
    unsampled = epsilon_upper_bound(sigma, insertions, delta)
    require(0 < rate <= 1, f"`sampling_rate={rate}`: give a number above 0 and at most 1")
    if not counts_sampling(composition):
        return unsampled
    require_sampled(composition, delta)
    # Finer grids are slower but tighter. The spacing should be relative_grid * epsilon. Our first guess for
    # epsilon is `unsampled` if the noise is small, and `unsampled` / 100 otherwise. If the guess was too
    # high, we repeat with a finer grid. dp-accounting computes exp(spacing), so we limit the spacing to
    # COARSEST_GRID.
    if sigma < _SMALL_NOISE:
        relative_grid = _RELATIVE_GRID
        least_grid = 1e-3
        first_grid = min(relative_grid * unsampled, COARSEST_GRID)
    else:
        relative_grid = 1e-5
        least_grid = _GRID
        first_grid = max(least_grid, 1e-7 * unsampled)  # 1e-7 is relative_grid / 100
    epsilon = float(account_sampled(composition, first_grid).get_epsilon(delta))
    fine_grid = min(max(least_grid, relative_grid * epsilon), COARSEST_GRID)
    if fine_grid < first_grid:
        fine = float(account_sampled(composition, fine_grid).get_epsilon(delta))
        epsilon = min(epsilon, fine)  # both are upper bounds
    return min(unsampled, epsilon)


def counts_sampling(steps: Composition) -> bool:
    """Returns True if `participant_upper_bound` takes sampling into account.

    For noise multipliers below 0.05, we ignore sampling, since privacy losses would be too large for a grid.
    """
    has_enough_noise = steps.noise_multiplier >= LEAST_PARTICIPANT_NOISE
    return steps.sampling_rate < 1 and steps.insertions > 0 and has_enough_noise


def account_curve(steps: Composition) -> "PLDAccountant":
    """Returns dp-accounting's accountant for Poisson-sampled steps, which computes delta at any epsilon.

    The noise multiplier must be at least 0.05 (`counts_sampling`), and the sampling rate below 1.
    """
    grid = _GRID
    if steps.noise_multiplier < _SMALL_NOISE:
        # Privacy losses are large, so the spacing is relative to epsilon. We estimate epsilon without
        # sampling, at a typical delta.
        unsampled = epsilon_upper_bound(steps.noise_multiplier, steps.insertions, delta=1e-5)
        grid = min(_RELATIVE_GRID * unsampled, COARSEST_GRID)
    return account_sampled(steps, grid)


def noise_beside_count(noise_multiplier: float, count_noise: float) -> float:
    """Returns the noise multiplier z' for the sum in a federated round that also releases a noisy count.

    With z', releasing the sum and the count costs as much privacy as a single sum with noise multiplier z:
    z'^-2 = z^-2 - (2 count_noise)^-2 (Andrew et al., 2021, Theorem 1). The count adds 1/2 for each client
    whose update is within the clipping norm, and -1/2 for every other client. The count thus has sensitivity
    1/2 and noise multiplier 2 count_noise.

    Args:
      noise_multiplier: z, for the whole round; 0 for a round without noise.
      count_noise: The standard deviation of the count's noise, in clients.

    Raises:
      InputError: The count has so little noise that it costs more privacy than the whole round.
    """
    if noise_multiplier == 0:
        return 0.0
    require(
        2 * count_noise > noise_multiplier,  # else z'^-2 would not be positive
        f"`noise_multiplier={noise_multiplier}` must be below {2 * count_noise:g}, twice the noise on the "
        "count: lower it or raise `cohort`",
    )
    return float((noise_multiplier**-2 - (2 * count_noise) ** -2) ** -0.5)


def account_sampled(steps: Composition, grid: float) -> "PLDAccountant":
    """Returns dp-accounting's accountant for `steps.insertions` Poisson-sampled steps.

    `grid` is the spacing of privacy losses.
    """
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    gaussian = dp_accounting.GaussianDpEvent(steps.noise_multiplier)
    step = dp_accounting.PoissonSampledDpEvent(steps.sampling_rate, gaussian)
    relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    return PLDAccountant(relation, grid).compose(step, steps.insertions)


def mu_upper_bound(noise_multiplier: float, insertions: int) -> float:
    """Returns mu = sqrt(insertions) / noise_multiplier. A composition of Gaussian steps is mu-GDP.

    Source: Dong, Roth and Su (2022), Corollary 3.3. The result is 0, infinite, or between 1e-9 and 1e12.

    Raises:
      InputError: Values out of range.
    """
    require(
        noise_multiplier == 0 or MIN_NOISE <= noise_multiplier <= MAX_NOISE,
        f"`noise_multiplier={noise_multiplier}`: give 0, or a number from {MIN_NOISE:g} to {MAX_NOISE:g}",
    )
    require(
        0 <= insertions <= MAX_INSERTIONS and insertions == int(insertions),
        f"`insertions={insertions}`: give a whole number from 0 to {MAX_INSERTIONS:,}",
    )
    if insertions == 0:
        return 0.0
    if noise_multiplier == 0:
        return np.inf
    return float(np.sqrt(insertions) / noise_multiplier)


def require_sampled(steps: Composition, delta: float) -> None:
    """Raises InputError for sampled steps that are too extreme for privacy loss distributions.

    With too many steps, the distributions would need too many values. With too much noise, the losses of a
    step (about 1 / noise_multiplier) would be smaller than the finest spacing, 1e-4. Very small deltas would
    be comparable to rounding errors.
    """
    if not counts_sampling(steps):
        return
    sigma, insertions, _ = steps
    advice = "with `sampling_rate`, give at"
    require(
        sigma <= _MAX_SAMPLED_NOISE,
        f"`noise_multiplier={sigma}`: {advice} most {_MAX_SAMPLED_NOISE:,.0f}",
    )
    require(
        insertions <= MOST_SAMPLED, f"`insertions={insertions}`: {advice} most {MOST_SAMPLED:,}"
    )
    require(
        delta >= LEAST_SAMPLED_DELTA, f"`delta={delta}`: {advice} least {LEAST_SAMPLED_DELTA:g}"
    )
