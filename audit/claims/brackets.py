"""What all models of a training run leak at least and at most, by how its batches are drawn."""

import math
from typing import NamedTuple

from audit.claims import accounting
from audit.claims.accounting import LEAST_SAMPLED_DELTA, Composition
from audit.claims.random_allocation import account_allocation
from audit.claims.shuffling import compute_shuffled_epsilon

ZERO_OUT = "the example replaced by one whose gradient is zero (zero-out)"
LEAST_ALLOCATION_NOISE = 0.1  # noise multiplier from which on random allocation is accounted for


class EveryModel(NamedTuple):
    """The bracket of epsilon where an adversary sees every model of a training run.

    Attributes:
      lower: The least that is leaked in the worst case; None where only an upper bound is computed.
      upper: The most that is leaked.
      accountant: What computed the bounds, in words.
    """

    lower: float | None
    upper: float
    accountant: str


def bracket_poisson(composition: Composition, delta: float) -> EveryModel:
    """Returns the bracket for Poisson-sampled batches: dp-accounting's epsilon as `upper`, and no `lower`."""
    epsilon = accounting.participant_upper_bound(composition, delta)
    return EveryModel(None, epsilon, "dp-accounting (PLD)")


def bracket_allocation(
    noise_multiplier: float, batches: int, epochs: int, delta: float
) -> EveryModel:
    """Returns a lower and an upper bound on epsilon where an example takes part in one random step an epoch.

    That is so for balls in bins and for random allocation. The adversary sees the model after every step, but
    not in which steps the example takes part.

    Another upper bound is the composition of epochs, which lets the adversary know these steps. With a noise
    multiplier below 0.1, or a delta below 1e-12, which is near the rounding of probabilities, it is the only
    bound that is computed, and the lower bound is None.

    Args:
      noise_multiplier: sigma.
      batches: The number of steps in an epoch.
      epochs: The number of epochs.
      delta: The delta of epsilon.
    """
    composed = accounting.epsilon_upper_bound(noise_multiplier, epochs, delta)
    if noise_multiplier < LEAST_ALLOCATION_NOISE:
        return EveryModel(None, composed, "composition of epochs: noise is below 0.1")
    if delta < LEAST_SAMPLED_DELTA:
        why = f"delta is below {LEAST_SAMPLED_DELTA:g}"
        return EveryModel(None, composed, f"composition of epochs: {why}")
    # Distributions of the privacy loss that bound delta from below and from above, and so epsilon.
    below = account_allocation(noise_multiplier, batches, epochs, above=False)
    above = account_allocation(noise_multiplier, batches, epochs, above=True)
    lower = float(below.get_epsilon_for_delta(delta))
    upper = min(float(above.get_epsilon_for_delta(delta)), composed)
    # In words: these bounds follow from the convex order of laws, and lie within those that the package
    # pld-accounting gives.
    accountant = "ours (convex order), within pld-accounting's bracket"
    return EveryModel(_limit_lower(lower, upper), upper, accountant)


def bracket_shuffled(
    noise_multiplier: float, batches: int, epochs: int, delta: float
) -> EveryModel:
    """Returns a lower and an upper bound on epsilon where each epoch shuffles the examples into batches.

    The adversary sees the model after every step. The lower bound is that of Chua et al. (2024). The upper
    bound is the composition of epochs, which lets the adversary know the order of examples, too. The lower
    bound is None where none above 0 is computed, as with a noise multiplier below 0.05 or a delta below
    1e-12.

    Args:
      noise_multiplier: sigma.
      batches: The number of batches in an epoch.
      epochs: The number of epochs.
      delta: The delta of epsilon.
    """
    lower = compute_shuffled_epsilon(noise_multiplier, batches, epochs, delta)
    upper = accounting.epsilon_upper_bound(noise_multiplier, epochs, delta)
    if lower == 0:
        return EveryModel(None, upper, "composition of epochs")
    accountant = "at least Chua et al. (2024), at most composition of epochs"
    return EveryModel(_limit_lower(lower, upper), upper, accountant)


def _limit_lower(lower: float, upper: float) -> float | None:
    """Returns a lower bound on epsilon, at most the upper bound on it; None if it is infinite.

    Rounding alone may put a finite lower bound above the upper. An infinite one is the mass that
    dp-accounting counts as an infinite loss, and shows nothing.
    """
    return min(lower, upper) if math.isfinite(lower) else None


def bracket_fixed_order(noise_multiplier: float, epochs: int, delta: float) -> EveryModel:
    """Returns a lower and an upper bound on epsilon where batches come in a fixed order.

    An example then takes part once in each epoch. The adversary sees the model after every step and knows the
    order, so that the composition of epochs is exact: it is both bounds.

    Args:
      noise_multiplier: sigma.
      epochs: The number of epochs.
      delta: The delta of epsilon.
    """
    epsilon = accounting.epsilon_upper_bound(noise_multiplier, epochs, delta)
    return EveryModel(epsilon, epsilon, "composition of epochs, exact")
