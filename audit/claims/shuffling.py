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
    """Returns a lower bound on epsilon where the examples are shuffled once an epoch and cut into batches.

    Chua et al. (2024, "How private are DP-SGD implementations?", Section 4): all others' gradients are -C and
    the example's is C, so that the sum of its batch lies 2 C above the rest, or 1 C where it is zeroed out;
    the adversary looks at the largest sum. Epochs compose, since each is shuffled afresh (Chua et al., 2024,
    arXiv 2411.04205). The largest sum is sorted into buckets, and an optimistic grid keeps it a lower bound.

    Args:
      noise_multiplier: sigma.
      batches: of an epoch.
      epochs: of training.
      delta: at which epsilon is bounded.
    """
    # In units of C, above the rest: the largest noise of b sums is about sigma sqrt(2 log b).
    sigma = noise_multiplier
    highest = 2 + sigma * (6 + np.sqrt(2 * np.log(batches)))
    edges = np.linspace(-2 * sigma, highest, _BUCKETS)

    def compute_log_masses(shift: float) -> NDArray[np.float64]:
        """Returns the log probability of each bucket, where a single sum is shifted."""
        log_cdf = special.log_ndtr((edges - shift) / sigma)
        log_cdf += (batches - 1) * special.log_ndtr(edges / sigma)
        cdf = np.concatenate([[0.0], np.exp(log_cdf), [1.0]])
        with np.errstate(divide="ignore"):
            return np.log(np.diff(cdf))

    return compute_least_epsilon(compute_log_masses(2.0), compute_log_masses(1.0), epochs, delta)


def compute_least_epsilon(
    inside: NDArray[np.float64],
    outside: NDArray[np.float64],
    compositions: int,
    delta: float,
    grid: float = LEAST_GRID,
) -> float:
    """Returns a lower bound on epsilon of a mechanism, composed with itself, whose output is a bucket.

    An optimistic grid of privacy losses makes it a lower bound. So do leaving out buckets that only one world
    has, and looking only along the direction in which the example is added.

    Args:
      inside, outside: (buckets,) log probabilities of each bucket with the example and without it.
      compositions: how often the mechanism runs.
      delta: at which epsilon is bounded.
      grid: of privacy losses.
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
    with np.errstate(over="ignore"):
        epsilon = privacy_loss.self_compose(compositions).get_epsilon_for_delta(delta)
    return float(max(0.0, epsilon))
