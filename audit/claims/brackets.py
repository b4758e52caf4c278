"""What all models of a training run leak at least and at most, by how its batches are drawn."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from audit.claims import accounting
from audit.claims.accounting import LEAST_PARTICIPANT_NOISE, LEAST_SAMPLED_DELTA
from audit.claims.random_allocation import account_allocation

ZERO_OUT = "the example replaced by one whose gradient is zero (zero-out)"
LEAST_ALLOCATION_NOISE = 0.1  # noise multiplier from which on random allocation is accounted for
LEAST_GRID = 1e-4  # of privacy losses
_BUCKETS = 400  # of the largest sum of an epoch, by their edges


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
    why = f"delta is below {LEAST_SAMPLED_DELTA:g}"
    if noise_multiplier < LEAST_ALLOCATION_NOISE:
        why = "noise is below 0.1"
    if noise_multiplier < LEAST_ALLOCATION_NOISE or delta < LEAST_SAMPLED_DELTA:
        return EveryModel(None, composed, f"composition of epochs: {why}")
    # Distributions of the privacy loss that bound delta from below and from above, and so epsilon.
    below = account_allocation(noise_multiplier, batches, epochs, above=False)
    above = account_allocation(noise_multiplier, batches, epochs, above=True)
    lower = float(below.get_epsilon_for_delta(delta))
    upper = min(float(above.get_epsilon_for_delta(delta)), composed)
    # In words: these bounds follow from the convex order of laws, and lie within those that the package
    # pld-accounting gives.
    accountant = "ours (convex order), within pld-accounting's bracket"
    # Only rounding may put a finite lower bound above the upper. An infinite one is the mass that
    # dp-accounting counts as an infinite loss, and shows nothing.
    least = min(lower, upper) if math.isfinite(lower) else None
    return EveryModel(least, upper, accountant)


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
    if lower == 0 or math.isinf(lower):
        return EveryModel(None, upper, "composition of epochs")
    accountant = "at least Chua et al. (2024), at most composition of epochs"
    return EveryModel(min(lower, upper), upper, accountant)


def compute_shuffled_epsilon(
    noise_multiplier: float,
    batches: int,
    epochs: int,
    delta: float,
) -> float:
    """Returns a lower bound on epsilon where examples are shuffled in each epoch and cut into batches.

    The adversary sees all models. The bound is the epsilon of a bad case, that of Chua et al. (2024, "How
    private are DP-SGD implementations?", Section 4): the example's gradient is C, and all others are -C. So
    the sum of its batch lies 2 C above the other sums. In the world without the example its gradient is 0
    instead, and the sum lies 1 C above the others. The adversary looks only at which bucket has the largest
    noisy sum of an epoch. Epochs compose, since each is shuffled afresh (Chua et al., 2024, arXiv
    2411.04205). Privacy losses are rounded down, so that the result stays a lower bound.

    It is 0, which is always true, with a noise multiplier below 0.05, whose privacy losses are too large to
    compute with, and with a delta below 1e-12.

    Args:
      noise_multiplier: sigma.
      batches: The number of batches in an epoch.
      epochs: The number of epochs.
      delta: The delta of epsilon.
    """
    # The edges of buckets; a bucket without an end lies below the first edge, and another above the last.
    # Sums are in units of C, above the mean of the other batches' sums. Any edges give a lower bound, since
    # buckets only hide where in them the largest sum lies. These edges lie where it mostly is: it is seldom
    # below -2 sigma. The largest noise of b sums is about sigma sqrt(2 log b), and 6 sigma more leave next to
    # nothing above the last edge.
    sigma = noise_multiplier
    if sigma < LEAST_PARTICIPANT_NOISE:
        return 0.0
    highest = 2 + sigma * (6 + np.sqrt(2 * np.log(batches)))
    edges = np.linspace(-2 * sigma, highest, _BUCKETS)

    def compute_log_masses(shift: float) -> NDArray[np.float64]:
        """Returns (buckets,) the log probability that the largest of b noisy sums lies in each bucket.

        The sums are independent and normal, of deviation sigma. The largest is below an edge if all of them
        are, so that its distribution function is a product. Buckets lie between neighbouring `edges`, below
        the first and above the last.

        Args:
          shift: The mean of the sum of the example's batch. The other b - 1 sums have mean 0.
        """
        log_cdf = special.log_ndtr((edges - shift) / sigma)
        log_cdf += (batches - 1) * special.log_ndtr(edges / sigma)
        cdf = np.concatenate([[0.0], np.exp(log_cdf), [1.0]])
        with np.errstate(divide="ignore"):  # the log of an impossible bucket is -inf
            return np.log(np.diff(cdf))

    with_example = compute_log_masses(2.0)
    without_example = compute_log_masses(1.0)
    return compute_least_epsilon(with_example, without_example, epochs, delta)


def compute_least_epsilon(
    inside: NDArray[np.float64],
    outside: NDArray[np.float64],
    compositions: int,
    delta: float,
    grid: float = LEAST_GRID,
) -> float:
    """Returns a lower bound on epsilon of compositions of a mechanism whose output is one of some buckets.

    Three simplifications can only lower epsilon. Privacy losses are rounded down to a grid. Buckets that are
    possible in a single world only are left out. And only the direction counts in which a loss is the log of
    a bucket's probability with the example over that without it.

    The result is 0, which is always true, with a delta below 1e-12. dp-accounting counts up to 1e-15 of
    probability as an infinite loss, even where it rounds losses down, and its Fourier transforms err by about
    1e-14. A smaller delta would let this pass for a leak.

    Args:
      inside: (buckets,) the log probability of each bucket with the example.
      outside: (buckets,) the log probability of each bucket without it.
      compositions: The number of times that the mechanism runs.
      delta: The delta of epsilon.
      grid: The spacing of privacy losses.
    """
    from dp_accounting.pld import privacy_loss_distribution

    if delta < LEAST_SAMPLED_DELTA:
        return 0.0

    # The buckets that are possible in both worlds, in dp-accounting's form {bucket: log probability}.
    common_inside = {}
    common_outside = {}
    for bucket in np.flatnonzero(np.isfinite(inside) & np.isfinite(outside)):
        common_inside[int(bucket)] = float(inside[bucket])
        common_outside[int(bucket)] = float(outside[bucket])
    privacy_loss = privacy_loss_distribution.from_two_probability_mass_functions(
        log_probability_mass_function_lower=common_outside,  # losses are log(upper / lower)
        log_probability_mass_function_upper=common_inside,
        pessimistic_estimate=False,  # losses are rounded down
        value_discretization_interval=grid,
    )
    with np.errstate(over="ignore"):  # exponentials of large losses become infinite
        epsilon = privacy_loss.self_compose(compositions).get_epsilon_for_delta(delta)
    return float(max(0.0, epsilon))
