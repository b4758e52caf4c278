"""Closed forms for the last model's leakage on two crafted losses: the convex landscape and the latch.

The convex landscape is a quadratic whose curvature changes from step to step. In one dimension, noisy
gradient steps compute

    theta_t = c'_t theta_(t-1) + s_t b + n_t z_t,

where z_t ~ N(0, 1), and b is 1 with the canary and 0 without it. The quadratic is convex if 0 <= c'_t <= 1,
and steps have the Lipschitz constant c_t if c'_t <= c_t. For some slopes c'_t, the last iterate leaks exactly
`hidden_state_bound`.

The latch's last iterate records whether a large sum occurred in a shuffled training run. Along a direction v,
the target's gradient is C, or zero if the target is replaced, and all other gradients are -C. So the sum of
the target's batch exceeds other sums by 2 C or by C (`compute_latch_rate`).

Losses with such gradients exist. Their slope along v is -C (1 - eta) plus a term that resets or pushes theta.
Each of a batch's B examples contributes at most eta C to this term. The term is periodic in theta, with
period B C (1 - eta). The heights are then 2 - eta and 1 - eta, and eta can be 1 / B.

The latch's steps are not 1-Lipschitz.
"""

import math
from functools import partial

import numpy as np
import scipy

from audit.claims import accounting
from audit.claims.accounting import Composition
from audit.claims.hidden_state import hidden_state_bound
from audit.errors import insert_step
from audit.laws.intervals import Array
from audit.report.table import Table, at_least, at_most
from audit.written import show_level
from experiments.sweeps.records import Record, field

# These match the paper's training runs.
INSERTIONS = 250
NOISE_MULTIPLIER = 4.0
TRAININGS = ((0.7, 500, 1), (0.5, 1000, 1), (0.8, 100, 3), (1.0, 100, 10))  # sigma, batches, epochs
# How far the sum of the target's batch exceeds other sums, in units of C, if the target is in or out.
HEIGHT_IN = 2.0
HEIGHT_OUT = 1.0
_GRID = 1e-3  # the accountant's grid spacing of privacy losses, for Poisson sampling


def exact_mu(shifts: Array, slopes: Array, noise: Array | float) -> float:
    """Returns the mu of a quadratic's last iterate, which is Gaussian with and without the canary.

    Step t multiplies theta by a slope c'_t, and adds the canary's shift s_t and noise of standard deviation
    n_t. So it contributes to the last iterate with the weight r_t, the product of the slopes after step t.

    Args:
      shifts: s_t, of shape (T,).
      slopes: c'_t, of shape (T,).
      noise: n_t, of shape (T,), or one number for all steps.
    """
    later = slopes[1:]
    products = np.cumprod(later[::-1])[::-1]
    remaining = np.append(products, 1.0)  # r_t, of shape (T,)
    return float(abs(remaining @ shifts) / np.linalg.norm(remaining * noise))


def make_convex_row(k: int, insert: str, lipschitz: float, delta: float) -> Record:
    """Shows that the hidden-state bound is tight for one schedule, with a crafted loss that attains it.

    On a one-dimensional quadratic, step t multiplies theta by a slope that is at most the Lipschitz constant.
    The crafted quadratic uses the slopes from the bound's proof, `worst_slopes`, so `mu_exact` should equal
    `mu_bound`. In this case, no smaller bound is valid for all losses with this Lipschitz constant.

    Args:
      k: The number of steps in a period.
      insert: Which step of each period inserts the canary, "first" or "last".
      lipschitz: Each step's Lipschitz constant.
      delta: The delta of `epsilon_bound`.

    Returns:
      A record with three values of mu: `mu_exact` of the crafted quadratic, `mu_bound`, and
      `mu_same_slopes` of the quadratic with slope `lipschitz` in each step.
    """
    # Training has INSERTIONS periods.
    steps = np.arange(INSERTIONS * k)
    # 1 at insertions, else 0. `insert_step` counts from 1.
    shifts = (steps % k == insert_step(insert, k) - 1).astype(np.float64)
    bound = hidden_state_bound(shifts, lipschitz, NOISE_MULTIPLIER, delta)
    return {
        "mu_same_slopes": exact_mu(shifts, np.full(len(steps), lipschitz), NOISE_MULTIPLIER),
        "mu_exact": exact_mu(shifts, bound.worst_slopes, NOISE_MULTIPLIER),
        "mu_bound": bound.mu,
        "epsilon_bound": bound.epsilon,
    }


def compute_latch_rate(
    sigma: float, batches: int, epochs: int, threshold: float, height: float
) -> float:
    """Returns the probability that a latch's last iterate exceeds the threshold c.

    A latch is a crafted loss that resets theta to 0 if it is below c, and pushes it further up if it is
    above. So the last iterate exceeds c if theta exceeded c after any step. Until then, each step sets theta
    to noise with standard deviation sigma, plus the height h for the target's batch. Batches are shuffled, so
    each epoch has one such batch. The probability is 1 - (Phi((c - h) / sigma) Phi(c / sigma)^(b - 1))^E.

    Args:
      sigma: The noise multiplier.
      batches, epochs: The number of batches b in an epoch, and the number of epochs E.
      threshold: The threshold c, in units of C.
      height: The height h, HEIGHT_IN with the target and HEIGHT_OUT without it.
    """
    log_unlatched = scipy.special.log_ndtr((threshold - height) / sigma)
    log_unlatched += (batches - 1) * scipy.special.log_ndtr(threshold / sigma)
    return float(-np.expm1(epochs * log_unlatched))


def make_latch_row(sigma: float, batches: int, epochs: int, delta: float) -> Record:
    """Compares a latch's epsilon for shuffled batches with the accountant's epsilon for Poisson sampling.

    One step of each epoch raises theta by 2 C (HEIGHT_IN) if the target is present, and by C if it is not.

    Returns:
      A record with sigma, batches and epochs; `epsilon`, a lower bound on the latch's epsilon at delta, from
      the best of many thresholds; and `poisson`, the accountant's epsilon.
    """
    # Let P and Q be the probabilities of exceeding a threshold with and without the target. P is at most
    # e^epsilon Q + delta, so epsilon is at least log((P - delta) / Q).
    compute_rate = partial(compute_latch_rate, sigma, batches, epochs)
    best = 0.0
    # Theta starts at 0, so lower thresholds are useless.
    for threshold in np.arange(0.0, HEIGHT_IN + 8 * sigma, 0.01):
        excess = compute_rate(threshold, HEIGHT_IN) - delta
        false_positives = compute_rate(threshold, HEIGHT_OUT)
        if excess > 0 and false_positives > 0:
            best = max(best, math.log(excess / false_positives))
    # With Poisson sampling, a step includes the target with probability 1 / b.
    steps = Composition(sigma, batches * epochs, 1 / batches)
    poisson = accounting.account_sampled(steps, grid=_GRID).get_epsilon(delta)
    return {
        "sigma": sigma,
        "batches": batches,
        "epochs": epochs,
        "epsilon": best,
        "poisson": float(poisson),
    }


def make_latch_table(delta: float) -> Table[Record]:
    """Tabulates the latch's epsilon and the Poisson claim for each of TRAININGS (see `make_latch_row`)."""
    columns = [
        field("sigma", "sigma", "g"),
        field("batches", "b"),
        field("epochs", "E"),
        field("epsilon", "epsilon", partial(at_least, decimals=2)),
        field("poisson", "Poisson's", partial(at_most, decimals=2)),
    ]
    before = [
        f"the latch: the last iterate of a shuffled training run, at delta {show_level(delta)}",
        "epsilon: lower bound from the best threshold; Poisson's: claim for Poisson sampling",
    ]
    rows = [make_latch_row(sigma, batches, epochs, delta) for sigma, batches, epochs in TRAININGS]
    return Table(columns, rows, before=before)
