"""Lower and upper bounds on epsilon for samplers, against an adversary who sees every model."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from audit.claims import accounting
from audit.claims.accounting import LEAST_PARTICIPANT_NOISE, LEAST_SAMPLED_DELTA
from audit.claims.random_allocation import account_allocation

ZERO_OUT = "the example replaced by one whose gradient is zero (zero-out)"
LEAST_ALLOCATION_NOISE = 0.1
_LOSS_GRID = 1e-4  # the spacing of privacy losses
_BUCKETS = 400


class EveryModel(NamedTuple):
    """Bounds on epsilon for an adversary who sees every model of a training run.

    Attributes:
      lower: A lower bound on epsilon for the worst data; None if there is only an upper bound.
      upper: An upper bound.
      accountant: The method that computed the bounds.
    """

    lower: float | None
    upper: float
    accountant: str


def bracket_allocation(
    noise_multiplier: float, batches: int, epochs: int, delta: float
) -> EveryModel:
    """Returns bounds on epsilon at delta if each epoch uses an example in one random step.

    Balls in bins and random allocation do so. The adversary sees the model after every step, but does not
    know the example's steps. The composition of epochs, for an adversary who knows them, is another upper
    bound. It is the only one for a noise multiplier below 0.1, and for a delta below 1e-12, which is close to
    the rounding errors of probabilities.
    """
    composed = accounting.epsilon_upper_bound(noise_multiplier, epochs, delta)
    if noise_multiplier < LEAST_ALLOCATION_NOISE:
        return EveryModel(None, composed, "composition of epochs: noise is below 0.1")
    if delta < LEAST_SAMPLED_DELTA:
        why = f"delta is below {LEAST_SAMPLED_DELTA:g}"
        return EveryModel(None, composed, f"composition of epochs: {why}")
    below = account_allocation(noise_multiplier, batches, epochs, pessimistic=False)
    above = account_allocation(noise_multiplier, batches, epochs, pessimistic=True)
    lower = float(below.get_epsilon_for_delta(delta))
    upper = min(float(above.get_epsilon_for_delta(delta)), composed)
    bounds = EveryModel(None, upper, "ours (convex order), within pld-accounting's bracket")
    # dp-accounting may count rounding errors as an infinite loss, which gives no lower bound. Rounding may
    # also raise a finite lower bound above the upper one.
    if math.isinf(lower):
        return bounds
    return bounds._replace(lower=min(lower, upper))


def bracket_shuffled(
    noise_multiplier: float, batches: int, epochs: int, delta: float
) -> EveryModel:
    """Returns bounds on epsilon at delta if each epoch shuffles the examples into batches.

    The adversary sees the model after every step. The lower bound is `compute_shuffled_epsilon`, or None if
    that is 0 or infinite. The upper bound is the composition of epochs, for an adversary who also knows the
    order of examples.
    """
    lower = compute_shuffled_epsilon(noise_multiplier, batches, epochs, delta)
    upper = accounting.epsilon_upper_bound(noise_multiplier, epochs, delta)
    if lower == 0 or math.isinf(lower):
        return EveryModel(None, upper, "composition of epochs")
    accountant = "at least Chua et al. (2024), at most composition of epochs"
    return EveryModel(min(lower, upper), upper, accountant)


def compute_shuffled_epsilon(
    noise_multiplier: float, batches: int, epochs: int, delta: float
) -> float:
    """Returns a lower bound on epsilon at delta if each epoch shuffles the examples into batches.

    The adversary sees all models. It is the epsilon of a bad case (Chua et al., 2024, "How private are
    DP-SGD implementations?", Section 4): the example's gradient is C, and all others are -C. So the sum of
    its batch is 2 C above the other sums. In the other world its gradient is 0, and the sum is only C above.
    We use only the bucket of the largest noisy sum of an epoch. Epochs compose, since each has its own
    shuffle (Chua et al., 2024, arXiv 2411.04205). Privacy losses are rounded down.

    The bound is 0 for a noise multiplier below 0.05, which makes privacy losses too large, and for a delta
    below 1e-12: dp-accounting counts up to 1e-15 of probability as an infinite loss, and its Fourier
    transforms have errors of about 1e-14.
    """
    from dp_accounting.pld import privacy_loss_distribution

    sigma = noise_multiplier
    if sigma < LEAST_PARTICIPANT_NOISE or delta < LEAST_SAMPLED_DELTA:
        return 0.0
    # Any edges give a lower bound; these cover nearly all of the distribution of the largest sum. Sums are in
    # units of C, above the mean of the other batches' sums. The largest of b noises is about sigma sqrt(2 log
    # b), and seldom below -2 sigma.
    highest = 2 + sigma * (6 + np.sqrt(2 * np.log(batches)))
    edges = np.linspace(-2 * sigma, highest, _BUCKETS)

    def compute_log_masses(shift: float) -> NDArray[np.float64]:
        """Returns the log probability (buckets,) that the largest of b noisy sums is in each bucket.

        The sum of the example's batch has the mean `shift`, and the others have the mean 0.
        """
        log_cdf = special.log_ndtr((edges - shift) / sigma)
        log_cdf += (batches - 1) * special.log_ndtr(edges / sigma)
        cdf = np.concatenate([[0.0], np.exp(log_cdf), [1.0]])
        with np.errstate(divide="ignore"):  # the log of an impossible bucket is -inf
            return np.log(np.diff(cdf))

    # Three simplifications can only lower epsilon: we round losses down to the grid, drop buckets that are
    # possible in only one world, and use only the losses of training with the example.
    with_example = compute_log_masses(2.0)
    without_example = compute_log_masses(1.0)
    possible = np.flatnonzero(np.isfinite(with_example) & np.isfinite(without_example)).tolist()
    privacy_loss = privacy_loss_distribution.from_two_probability_mass_functions(
        # Each maps buckets to log probabilities; losses are log(upper / lower).
        log_probability_mass_function_lower=dict(
            zip(possible, without_example[possible], strict=True)
        ),
        log_probability_mass_function_upper=dict(
            zip(possible, with_example[possible], strict=True)
        ),
        pessimistic_estimate=False,  # losses are rounded down
        value_discretization_interval=_LOSS_GRID,
    )
    with np.errstate(over="ignore"):  # exponentials of large losses become infinite
        epsilon = privacy_loss.self_compose(epochs).get_epsilon_for_delta(delta)
    return float(max(0.0, epsilon))
