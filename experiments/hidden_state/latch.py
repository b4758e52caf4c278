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

from audit.claims import accounting
from audit.claims.accounting import Composition
from audit.report.table import Table, at_least, at_most, number
from audit.written import show_level
from experiments.sweeps.records import Record, field

TRAININGS = ((0.7, 500, 1), (0.5, 1000, 1), (0.8, 100, 3), (1.0, 100, 10))  # sigma, batches, epochs
# How far the sum of the target's batch lies above other batches' sums, in units of C, with and without it.
HEIGHT_IN = 2.0
HEIGHT_OUT = 1.0
_GRID = 1e-3  # the spacing of privacy losses where Poisson sampling's epsilon is computed


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


def compute_rate(latch: Latch, height: float) -> float:
    """Returns the probability that the last iterate exceeds the threshold c.

    Once theta exceeds c, a latch pushes it further up in every step. So the last iterate exceeds c if theta
    did after any step. Until then, every step sets theta to noise of deviation sigma, and the step of the
    target's batch, which comes once in each epoch, adds a height h. The probability in E epochs of b batches
    is 1 - (Phi((c - h) / sigma) Phi(c / sigma)^(b - 1))^E. Logs and expm1 keep small results accurate.

    Args:
      latch: The latch.
      height: h, HEIGHT_IN with the target and HEIGHT_OUT without it.
    """
    sigma, batches, epochs, threshold = latch
    log_unlatched = scipy.special.log_ndtr((threshold - height) / sigma)
    log_unlatched += (batches - 1) * scipy.special.log_ndtr(threshold / sigma)
    return float(-np.expm1(epochs * log_unlatched))


def make_row(training: tuple[float, int, int], delta: float) -> Record:
    """Returns what a latch leaks at least, by the best of many thresholds, next to what Poisson would claim.

    The thresholds are the multiples of 0.01 C below 2 C plus 8 standard deviations of the noise.

    Args:
      training: sigma, the number of batches and the number of epochs.
      delta: The delta of every epsilon.
    """
    sigma, batches, epochs = training
    best = 0.0
    for threshold in np.arange(0.0, HEIGHT_IN + 8 * sigma, 0.01):
        latch = Latch(*training, float(threshold))
        excess = compute_rate(latch, HEIGHT_IN) - delta
        false_positives = compute_rate(latch, HEIGHT_OUT)
        if excess > 0 and false_positives > 0:
            best = max(best, math.log(excess / false_positives))
    # The same steps, if batches were Poisson-sampled: each takes the target with probability 1 / b.
    steps = Composition(sigma, batches * epochs, 1 / batches)
    poisson = accounting.account_sampled(steps, _GRID).get_epsilon(delta)
    values = {"sigma": sigma, "batches": batches, "epochs": epochs}
    return {**values, "epsilon": best, "poisson": float(poisson)}


def make_table(rows: list[Record], delta: float) -> Table[Record]:
    """Returns a table with a row for each latch: its training run, and epsilons at delta."""
    columns = [
        field("sigma", "sigma", number("g")),
        field("batches", "b"),
        field("epochs", "E"),
        field("epsilon", "epsilon", partial(at_least, decimals=2)),
        field("poisson", "Poisson's", partial(at_most, decimals=2)),
    ]
    before = [
        f"the latch: the last iterate of a shuffled training run, at delta {show_level(delta)}",
        "epsilon: leaked at least, by the best threshold; Poisson's: what it would claim",
    ]
    return Table(columns, rows, before=before)
