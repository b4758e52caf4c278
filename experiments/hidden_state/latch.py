"""The latch: a crafted landscape whose last iterate shows the largest sum of a shuffled training run.

All others' gradients are -C along a direction v, the target's is C where it takes part and zero where it is
replaced. The sum of the target's batch then lies 2 C or 1 C above those of other batches, and theta, in units
of C and less the push of all others, is that height and noise. The others cancel theta, so that each
step begins at 0, unless theta exceeds a threshold c. Then they push it on, further in every step than noise
brings it back. The last iterate exceeds c if any sum did: the max test of an adversary who sees all models.

Losses with such gradients exist. Along v their slope is -C (1 - eta) and what cancels or pushes on, which B
examples share and which is at most eta C of each; it is periodic with the period B C (1 - eta) that a step
goes, so that the push leaves no trace. Heights are then 2 - eta and 1 - eta, and eta is as small as 1 / B.

Such a landscape is not Lipschitz with constant 1: it separates models at c. "The last model alone" hides
nothing of a shuffled training run in general, and only where steps are Lipschitz is there a bound for it.
"""

import math
from functools import partial
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from audit.claims import accounting
from audit.claims.accounting import Composition
from audit.methods.level import show_level
from audit.report.table import Column, Table, at_least, at_most, number

Array = NDArray[np.float64]

TRAININGS = ((0.7, 500, 1), (0.5, 1000, 1), (0.8, 100, 3), (1.0, 100, 10))  # sigma, batches, epochs
# How far the sum of the target's batch lies above other batches' sums, in units of C, with and without it.
_HEIGHT_IN = 2.0
_HEIGHT_OUT = 1.0
_GRID = 1e-3  # the spacing of privacy losses where Poisson sampling's epsilon is computed
_PUSH = 40.0  # how far the others push theta on in a step, in standard deviations of the noise


class Latch(NamedTuple):
    """A latch: a training run, and the threshold from which on theta is pushed further in every step.

    Attributes:
      noise_multiplier: sigma, the standard deviation of a step's noise in units of C.
      batches: b, the number of batches in an epoch.
      epochs: E, the number of epochs.
      threshold: c, the threshold in units of C.
    """

    noise_multiplier: float
    batches: int
    epochs: int
    threshold: float


class Rates(NamedTuple):
    """The share of runs whose last iterate exceeds the threshold, with the target and without it."""

    true_positive: float
    false_positive: float


class LatchRow(NamedTuple):
    """What a latch leaks, next to what Poisson sampling would claim.

    Attributes:
      latch: the latch, at a threshold that about 1 in 60 runs without the target exceeds.
      exact: its rates in closed form.
      simulated: its rates in simulated runs.
      epsilon: a lower bound on what the last iterate leaks, with the threshold that proves most.
      poisson: epsilon that Poisson sampling would claim.
    """

    latch: Latch
    exact: Rates
    simulated: Rates
    epsilon: float
    poisson: float


def compute_rates(latch: Latch) -> Rates:
    """Returns the probabilities that the last iterate exceeds the threshold c, with and without the target.

    Once theta exceeds c, a latch pushes it further up in every step. So the last iterate exceeds c if theta
    did after any step. Until then, every step sets theta to noise of deviation sigma, and the step of the
    target's batch, which comes once in each epoch, adds a height h. The probability in E epochs of b batches
    is 1 - (Phi((c - h) / sigma) Phi(c / sigma)^(b - 1))^E. Logs and expm1 keep small results accurate.
    """
    sigma, batches, epochs, threshold = latch
    rates = []
    for height in (_HEIGHT_IN, _HEIGHT_OUT):
        log_unlatched = scipy.special.log_ndtr((threshold - height) / sigma)
        log_unlatched += (batches - 1) * scipy.special.log_ndtr(threshold / sigma)
        rates.append(float(-np.expm1(epochs * log_unlatched)))
    return Rates(*rates)


def simulate(latch: Latch, has_target: bool, runs: int, rng: np.random.Generator) -> Array:
    """Returns the last iterates theta (R,) of R simulated runs, in units of the clipping norm C.

    A step takes theta back to 0, or, if theta exceeds the threshold, pushes it further up. Then it adds noise
    of deviation sigma, and in the step of the target's batch a height above other batches.
    """
    sigma, batches, epochs, threshold = latch
    height = _HEIGHT_IN if has_target else _HEIGHT_OUT
    theta = np.zeros(runs)
    for _ in range(epochs):
        places = rng.integers(0, batches, runs)  # each run's batch that has the target
        for step in range(batches):
            others = np.where(theta > threshold, _PUSH * sigma, -theta)
            theta += others + height * (places == step) + sigma * rng.standard_normal(runs)
    return theta


def simulate_rates(latch: Latch, runs: int, seed: int) -> Rates:
    """Returns how often the last iterate exceeds the threshold in simulated runs, half with the target."""
    rng = np.random.default_rng(seed)
    rates = []
    for has_target in (True, False):
        latched = simulate(latch, has_target, runs // 2, rng) > latch.threshold
        rates.append(float(latched.mean()))
    return Rates(*rates)


def make_row(training: tuple[float, int, int], delta: float, seed: int, runs: int) -> LatchRow:
    """Returns what a latch leaks, by the best of the thresholds that are multiples of 0.01 C.

    The thresholds lie below 2 C plus 8 standard deviations of the noise. The simulated threshold is the one
    that about 1 in 60 runs without the target exceeds, which simulations can estimate.

    Args:
      training: sigma, the number of batches and the number of epochs.
      delta: The delta of every epsilon.
      seed: The seed of the simulations.
      runs: The number of simulated runs, half of them with the target.
    """
    sigma, batches, epochs = training
    thresholds = np.arange(0.0, _HEIGHT_IN + 8 * sigma, 0.01)
    latches = [Latch(*training, float(threshold)) for threshold in thresholds]
    rates = [compute_rates(latch) for latch in latches]
    frequent = int(np.argmin([abs(rate.false_positive - 1 / 60) for rate in rates]))
    # The same steps, if batches were Poisson-sampled: each takes the target with probability 1 / b.
    steps = Composition(sigma, batches * epochs, 1 / batches)
    return LatchRow(
        latches[frequent],
        exact=rates[frequent],
        simulated=simulate_rates(latches[frequent], runs, seed),
        epsilon=max(_compute_epsilon(rate, delta) for rate in rates),
        poisson=float(accounting.account_sampled(steps, _GRID).get_epsilon(delta)),
    )


def _compute_epsilon(rates: Rates, delta: float) -> float:
    """Returns the epsilon that rates prove: log((true positives - delta) / false positives), at least 0."""
    excess = rates.true_positive - delta
    if excess <= 0 or rates.false_positive <= 0:
        return 0.0
    return max(math.log(excess / rates.false_positive), 0.0)


def make_table(rows: list[LatchRow], delta: float) -> Table[LatchRow]:
    """Returns a table with a row for each latch: its rates, exact and simulated, and epsilons at delta."""
    rate = number(".4g")
    columns = [
        Column("sigma", lambda row: row.latch.noise_multiplier, "sigma", number("g")),
        Column("batches", lambda row: row.latch.batches, "b"),
        Column("epochs", lambda row: row.latch.epochs, "E"),
        Column("threshold", lambda row: row.latch.threshold, "c", number(".2f")),
        Column("true_positive", lambda row: row.exact.true_positive, "TPR", rate),
        Column("simulated_true", lambda row: row.simulated.true_positive, "simulated", rate),
        Column("false_positive", lambda row: row.exact.false_positive, "FPR", rate),
        Column("simulated_false", lambda row: row.simulated.false_positive, "simulated", rate),
        Column("epsilon", lambda row: row.epsilon, "epsilon", partial(at_least, decimals=2)),
        Column("poisson", lambda row: row.poisson, "Poisson's", partial(at_most, decimals=2)),
    ]
    before = [
        f"the latch: the last iterate of a shuffled training run, at delta {show_level(delta)}",
        "epsilon: leaked at least, by the best threshold; Poisson's: what it would claim",
    ]
    return Table(columns, rows, before=before)
