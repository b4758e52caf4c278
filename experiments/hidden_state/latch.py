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
from collections.abc import Sequence
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

SIMULATED = 20_000  # runs, half of them with the target
# How far the sum of the target's batch lies above other batches' sums, in units of C, with and without it.
_HEIGHT_IN, _HEIGHT_OUT = 2.0, 1.0
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
    """How often the last iterate exceeds the threshold.

    Attributes:
      true_positive: The share of runs with the target.
      false_positive: The share of runs without the target.
    """

    true_positive: float
    false_positive: float


class LatchRow(NamedTuple):
    """What a latch leaks, beside what Poisson sampling would claim.

    Attributes:
      latch: the latch, at the threshold of `find_threshold_to_simulate`.
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


TRAININGS = ((0.7, 500, 1), (0.5, 1000, 1), (0.8, 100, 3), (1.0, 100, 10))  # sigma, batches, epochs


def compute_rates(latch: Latch) -> Rates:
    """Returns the probabilities that the last iterate exceeds the threshold c, with and without the target.

    Once theta exceeds c, a latch pushes it further up in every step. So the last iterate exceeds c if theta
    did after any step. Until then, every step sets theta to noise of deviation sigma. The step of the
    target's batch, which comes once in each epoch, adds a height h above other batches, in units of C. It is
    2 with the target, whose gradient is C where every other example's is -C, and 1 where a gradient of 0
    replaces the target's. As the noise of each step is independent, the probability in E epochs of b batches
    is 1 - (Phi((c - h) / sigma) Phi(c / sigma)^(b - 1))^E, where Phi is the standard normal distribution
    function.
    """
    sigma, batches, epochs, threshold = latch

    def compute_rate(height: float) -> float:
        """Returns the probability that the last iterate exceeds c, the threshold.

        Args:
          height: What the step of the target's batch adds to theta once in each epoch.
        """
        # The log probability that theta does not exceed c in an epoch: in the step of the target's batch, nor
        # in the steps of the other batches. Logs and expm1 keep small results accurate.
        log_unlatched = scipy.special.log_ndtr((threshold - height) / sigma)
        log_unlatched += (batches - 1) * scipy.special.log_ndtr(threshold / sigma)
        return float(-np.expm1(epochs * log_unlatched))

    return Rates(compute_rate(_HEIGHT_IN), compute_rate(_HEIGHT_OUT))


def simulate(latch: Latch, has_target: bool, runs: int, rng: np.random.Generator) -> Array:
    """Returns the last iterates theta (R,) of simulated runs, in units of the clipping norm C.

    A step takes theta back to 0, or, where theta exceeds the threshold, pushes it further up. The step then
    adds noise of deviation sigma. The step of the target's batch also adds a height above other batches. It
    is 2 with the target, whose gradient is C where every other example's is -C, and 1 where a gradient of 0
    replaces the target's.

    Args:
      latch: The latch.
      has_target: Whether the runs have the target.
      runs: R, the number of runs.
      rng: The generator of shuffles and noise.
    """
    sigma, batches, epochs, threshold = latch
    height = _HEIGHT_IN if has_target else _HEIGHT_OUT
    theta = np.zeros(runs)
    for _ in range(epochs):
        places = rng.integers(0, batches, runs)  # each run's batch that has the target
        for step in range(batches):
            # What the batch's other examples add to theta.
            others = np.where(theta > threshold, _PUSH * sigma, -theta)
            theta += others + height * (places == step) + sigma * rng.standard_normal(runs)
    return theta


def simulate_rates(latch: Latch, runs: int, seed: int) -> Rates:
    """Returns how often the last iterate exceeds the threshold in simulated runs.

    Args:
      latch: The latch, which has the threshold.
      runs: The number of runs, half of them with the target.
      seed: The seed of shuffles and noise.
    """
    rng = np.random.default_rng(seed)
    rates = []
    for has_target in (True, False):
        latched = simulate(latch, has_target, runs // 2, rng) > latch.threshold
        rates.append(float(latched.mean()))
    return Rates(*rates)


def find_epsilon(noise_multiplier: float, batches: int, epochs: int, delta: float) -> float:
    """Returns the largest epsilon at delta that the last iterate proves with any of the tried thresholds c.

    The thresholds are the multiples of 0.01 C below 2 C plus 8 standard deviations of the noise. 2 C is the
    most that a step adds besides noise, so that a step exceeds the end with probability below 1e-15.

    Args:
      noise_multiplier: sigma, the standard deviation of a step's noise in units of C.
      batches: The number of batches in an epoch.
      epochs: The number of epochs.
      delta: The delta of epsilon.
    """
    epsilons = []
    for threshold in np.arange(0.0, 2 + 8 * noise_multiplier, 0.01):
        rates = compute_rates(Latch(noise_multiplier, batches, epochs, float(threshold)))
        epsilons.append(_compute_epsilon(rates, delta))
    return max(epsilons)


def find_threshold_to_simulate(noise_multiplier: float, batches: int, epochs: int) -> float:
    """Returns the threshold, a multiple of 0.01 C, that about 1 in 60 runs without the target exceeds.

    A rate of 1/60 is frequent enough to be estimated from simulated runs. The threshold that proves most is
    not: fewer than 1 in 10,000 runs exceed it. The tried thresholds are those of `find_epsilon`.

    Args:
      noise_multiplier: sigma, the standard deviation of a step's noise in units of C.
      batches: The number of batches in an epoch.
      epochs: The number of epochs.
    """
    thresholds = np.arange(0.0, 2 + 8 * noise_multiplier, 0.01)
    rates = []
    for threshold in thresholds:
        latch = Latch(noise_multiplier, batches, epochs, float(threshold))
        rates.append(compute_rates(latch).false_positive)
    return float(thresholds[int(np.argmin(np.abs(np.array(rates) - 1 / 60)))])


def _compute_epsilon(rates: Rates, delta: float) -> float:
    """Returns the epsilon that error rates prove at delta: log((true positives - delta) / false positives).

    It is 0 where the logarithm is negative. It is also 0 where the fraction is not positive or would divide
    by 0.
    """
    excess = rates.true_positive - delta
    if excess <= 0 or rates.false_positive <= 0:
        return 0.0
    return max(math.log(excess / rates.false_positive), 0.0)


def make_rows(delta: float, seed: int, runs: int = SIMULATED) -> list[LatchRow]:
    """Returns a row for each of the study's TRAININGS.

    Args:
      delta: The delta of every epsilon.
      seed: The seed of the simulations.
      runs: The number of simulated runs, half of them with the target.
    """
    rows = []
    for sigma, batches, epochs in TRAININGS:
        latch = Latch(sigma, batches, epochs, find_threshold_to_simulate(sigma, batches, epochs))
        # The same steps, if batches were Poisson-sampled: each takes the target with probability 1 / b.
        poisson_steps = Composition(sigma, batches * epochs, 1 / batches)
        accountant = accounting.account_sampled(poisson_steps, _GRID)
        rows.append(
            LatchRow(
                latch,
                exact=compute_rates(latch),
                simulated=simulate_rates(latch, runs, seed),
                epsilon=find_epsilon(sigma, batches, epochs, delta),
                poisson=float(accountant.get_epsilon(delta)),
            )
        )
    return rows


def make_table(rows: Sequence[LatchRow], delta: float) -> Table[LatchRow]:
    """Returns a table with a row for each latch: its rates, exact and simulated, and epsilons.

    Args:
      rows: The rows.
      delta: The delta of every epsilon.
    """
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
