"""What examples leak at least where they are shuffled once an epoch, and all models are seen."""

import numpy as np
from numpy.typing import NDArray
from scipy import special

LEAST_GRID = 1e-4  # of privacy losses
_BUCKETS = 400  # of the largest sum of an epoch, by their edges


def compute_shuffled_epsilon(
    noise_multiplier: float,
    batches: int,
    epochs: int,
    delta: float,
) -> float:
    """Returns a lower bound on epsilon where examples are shuffled in each epoch and cut into batches.

    The adversary sees all models. The worst case is that of Chua et al. (2024, "How private are DP-SGD
    implementations?", Section 4): the example's gradient is C, and all others are -C. So the sum of its batch
    lies 2 C above the other sums, or 1 C above them where the example is zeroed out. The adversary looks at
    the largest sum of the epoch, which is sorted into buckets. Epochs compose, since each is shuffled afresh
    (Chua et al., 2024, arXiv 2411.04205). An optimistic grid of privacy losses keeps the result a lower
    bound.

    Args:
      noise_multiplier: sigma.
      batches: The number of batches in an epoch.
      epochs: The number of epochs.
      delta: The delta of epsilon.
    """
    # Sums are in units of C, above those of the other batches. The largest noise of b sums is about
    # sigma sqrt(2 log b), and 6 sigma more leave next to nothing above the last bucket's edge.
    sigma = noise_multiplier
    highest = 2 + sigma * (6 + np.sqrt(2 * np.log(batches)))
    edges = np.linspace(-2 * sigma, highest, _BUCKETS)

    def compute_log_masses(shift: float) -> NDArray[np.float64]:
        """Returns the log probability of each bucket of the largest of b sums, of which one is shifted.

        The sums are independent and normal, of deviation sigma. Their largest is below an edge if all of them
        are, so that its cdf is a product.

        Args:
          shift: The mean of the sum of the example's batch. The other b - 1 sums have mean 0.
        """
        log_cdf = special.log_ndtr((edges - shift) / sigma)
        log_cdf += (batches - 1) * special.log_ndtr(edges / sigma)
        cdf = np.concatenate([[0.0], np.exp(log_cdf), [1.0]])
        with np.errstate(divide="ignore"):  # the log of an impossible bucket is -inf
            return np.log(np.diff(cdf))

    return compute_least_epsilon(compute_log_masses(2.0), compute_log_masses(1.0), epochs, delta)


def compute_least_epsilon(
    inside: NDArray[np.float64],
    outside: NDArray[np.float64],
    compositions: int,
    delta: float,
    grid: float = LEAST_GRID,
) -> float:
    """Returns a lower bound on epsilon of compositions of a mechanism whose output is a bucket.

    Three simplifications can only lower epsilon: privacy losses are rounded down to a grid, buckets that only
    one world has are left out, and only the direction in which the example is added counts.

    Args:
      inside: (buckets,) the log probability of each bucket with the example.
      outside: (buckets,) the log probability of each bucket without it.
      compositions: The number of times that the mechanism runs.
      delta: The delta of epsilon.
      grid: The spacing of privacy losses.
    """
    from dp_accounting.pld import privacy_loss_distribution

    common_inside = {}
    common_outside = {}
    for bucket in np.flatnonzero(np.isfinite(inside) & np.isfinite(outside)):
        common_inside[int(bucket)] = float(inside[bucket])
        common_outside[int(bucket)] = float(outside[bucket])
    privacy_loss = privacy_loss_distribution.from_two_probability_mass_functions(
        common_outside,
        common_inside,
        pessimistic_estimate=False,
        value_discretization_interval=grid,
    )
    with np.errstate(over="ignore"):  # exponentials of large losses become infinite
        epsilon = privacy_loss.self_compose(compositions).get_epsilon_for_delta(delta)
    return float(max(0.0, epsilon))
