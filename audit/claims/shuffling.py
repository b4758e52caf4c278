"""What examples leak at least where they are shuffled once an epoch, and all models are seen."""

import numpy as np
from numpy.typing import NDArray
from scipy import special

from audit.claims.accounting import LEAST_PARTICIPANT_NOISE, LEAST_SAMPLED_DELTA

LEAST_GRID = 1e-4  # of privacy losses
_BUCKETS = 400  # of the largest sum of an epoch, by their edges


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
