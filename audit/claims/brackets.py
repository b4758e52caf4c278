"""Lower and upper bounds on epsilon for samplers, against an adversary who sees every model."""

import dataclasses
import math

import numpy as np
from scipy import special

from audit.claims import accounting
from audit.claims.accounting import LEAST_PARTICIPANT_NOISE, LEAST_SAMPLED_DELTA
from audit.claims.random_allocation import account_allocation
from audit.evidence.arrays import Array

ZERO_OUT = "the example replaced by one whose gradient is zero (zero-out)"
# The smallest noise multiplier for which `account_allocation` is precise.
LEAST_ALLOCATION_NOISE = 0.1
_NUM_EDGES = 400  # bucket edges for an epoch's largest sum


@dataclasses.dataclass(frozen=True)
class EveryModel:
    """Bounds on epsilon for an adversary who sees every model.

    Attributes:
      upper: An upper bound.
      accountant: The method that computed the bounds.
      lower: A lower bound on epsilon for the worst data; None if there is only an upper bound.
    """

    upper: float
    accountant: str
    lower: float | None = None


def bracket_allocation(
    noise_multiplier: float, batches: int, epochs: int, delta: float
) -> EveryModel:
    """Returns bounds on epsilon at delta for training that uses an example in one random step per epoch.

    Balls in bins and random allocation keep the step secret. `account_allocation` bounds delta from below and
    from above. The composition of epochs is another upper bound, valid even if the adversary knows the step.
    We use only composition for noise multipliers below 0.1, which make `account_allocation` imprecise, and
    for delta below 1e-12, which is close to rounding errors.
    """
    composed = accounting.epsilon_upper_bound(noise_multiplier, epochs, delta)
    if noise_multiplier < LEAST_ALLOCATION_NOISE:
        return EveryModel(composed, "composition of epochs: noise is below 0.1")
    if delta < LEAST_SAMPLED_DELTA:
        return EveryModel(
            composed, f"composition of epochs: delta is below {LEAST_SAMPLED_DELTA:g}"
        )
    below = account_allocation(noise_multiplier, batches, epochs, pessimistic=False)
    above = account_allocation(noise_multiplier, batches, epochs, pessimistic=True)
    lower = float(below.get_epsilon_for_delta(delta))
    upper = min(float(above.get_epsilon_for_delta(delta)), composed)
    # The module `random_allocation` explains the convex order and cites pld-accounting.
    accountant = "our bounds (convex order), which lie within pld-accounting's"
    if math.isinf(lower):  # dp-accounting may count rounding errors as an infinite loss
        return EveryModel(upper, accountant)
    return EveryModel(upper, accountant, lower=min(lower, upper))  # rounding may swap them


def bracket_shuffled(
    noise_multiplier: float, batches: int, epochs: int, delta: float
) -> EveryModel:
    """Returns bounds on epsilon at delta if each epoch shuffles the examples into batches.

    The lower bound comes from `compute_shuffled_epsilon`. We omit it if it is 0 or infinite (perhaps due to
    rounding). The upper bound is the composition of epochs, which is valid even if the adversary knows the
    order of examples.
    """
    lower = compute_shuffled_epsilon(noise_multiplier, batches, epochs, delta)
    upper = accounting.epsilon_upper_bound(noise_multiplier, epochs, delta)
    if lower == 0 or math.isinf(lower):
        return EveryModel(upper, "composition of epochs")
    accountant = "lower bound by Chua et al. (2024), upper bound by composition of epochs"
    return EveryModel(upper, accountant, lower=min(lower, upper))  # rounding may swap them


def compute_shuffled_epsilon(
    noise_multiplier: float, batches: int, epochs: int, delta: float
) -> float:
    """Returns a lower bound on epsilon at delta if each epoch shuffles the examples into batches.

    The bound is the epsilon of an unfavourable case (Chua et al., 2024, arXiv 2403.17673, Section 4): the
    example's gradient is C, and all other gradients are -C. The sum of the example's batch thus exceeds the
    other sums by 2 C, or by only C if we replace the example's gradient with 0. The adversary uses only the
    largest noisy sum of each epoch, rounded to a bucket. Epochs compose, since each is shuffled independently
    (Chua et al., 2024, arXiv 2411.04205).

    The bound is 0 for noise multipliers below 0.05, which make privacy losses too large, and for delta below
    1e-12, which is close to dp-accounting's rounding errors.
    """
    from dp_accounting.pld import privacy_loss_distribution

    sigma = noise_multiplier
    if sigma < LEAST_PARTICIPANT_NOISE or delta < LEAST_SAMPLED_DELTA:
        return 0.0
    # Sums are in units of C, shifted to give the other sums mean 0. Any bucket edges yield a valid lower
    # bound. Ours cover nearly all of the largest sum's distribution. The largest noise value in an epoch is
    # about m = sigma * sqrt(2 log(batches)), and is rarely above m + 6 sigma or below -2 sigma.
    highest = 2 + sigma * (6 + np.sqrt(2 * np.log(batches)))
    edges = np.linspace(-2 * sigma, highest, _NUM_EDGES)
    # The largest sum is below an edge if every sum is, including the example's.
    log_others = (batches - 1) * special.log_ndtr(edges / sigma)
    with_example = _compute_log_masses(special.log_ndtr((edges - 2) / sigma) + log_others)
    without_example = _compute_log_masses(special.log_ndtr((edges - 1) / sigma) + log_others)

    # Three simplifications can only lower epsilon: we round losses down to the grid, drop buckets that are
    # impossible with or without the example, and ignore the losses without the example.
    possible = np.isfinite(with_example) & np.isfinite(without_example)
    privacy_loss = privacy_loss_distribution.from_two_probability_mass_functions(
        # Both arguments map buckets to log probabilities. A bucket's loss is upper - lower.
        log_probability_mass_function_lower=dict(enumerate(without_example[possible])),
        log_probability_mass_function_upper=dict(enumerate(with_example[possible])),
        pessimistic_estimate=False,
        value_discretization_interval=1e-4,
    )
    with np.errstate(over="ignore"):  # exponentials of large losses overflow to infinity
        epsilon = privacy_loss.self_compose(epochs).get_epsilon_for_delta(delta)
    return float(max(0.0, epsilon))


def _compute_log_masses(log_cdf: Array) -> Array:
    """Returns the log probability of each bucket, (n + 1,), from the log CDF at the n edges between them."""
    cdf = np.concatenate([[0.0], np.exp(log_cdf), [1.0]])
    with np.errstate(divide="ignore"):  # the log of an impossible bucket is -inf
        return np.log(np.diff(cdf))
