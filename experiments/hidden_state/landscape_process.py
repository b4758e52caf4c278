"""The crafted loss landscape as a process: one parameter, whose gradients the adversary decides.

Hidden-state paper, Section 6 and Equation 3 (Errata H5), in units of C:

    theta_1 ~ N(0, sigma^2) out, N(1, sigma^2) in
    theta_(t+1) = theta_t + s_t(theta_t) + N(0, (sigma / B)^2),   s_t = +1 above h_t and -1 below
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.errors import require
from audit.laws import conversions

Array = NDArray[np.float64]


class Process(NamedTuple):
    """The process of a crafted landscape; lengths are in units of C.

    Attributes:
      noise_multiplier: sigma > 0.
      batch_size: B >= 1.
      steps: T >= 1.
    """

    noise_multiplier: float
    batch_size: int
    steps: int

    @property
    def step_deviation(self) -> float:
        """Standard deviation of a later step's noise, sigma / B."""
        return self.noise_multiplier / self.batch_size


def validate(process: Process) -> None:
    """Raises InputError for a process out of range."""
    sigma, batch_size, steps = process
    require(
        0 < sigma < np.inf,
        f"`noise_multiplier={sigma:g}`: without noise nothing is private, give a positive finite number",
    )
    require(batch_size >= 1, f"`batch_size={batch_size}`: give at least 1")
    require(steps >= 1, f"`steps={steps}`: give at least 1")


def constant(process: Process, threshold: float) -> Array:
    """Returns thresholds (T - 1,) that are the same at every step after the first.

    Args:
      process: The process, of T steps.
      threshold: The threshold, in units of C; the paper's is 1/2.
    """
    validate(process)
    return np.full(process.steps - 1, float(threshold))


def upper_bound(process: Process, delta: float) -> float:
    """Returns the accountant's epsilon at delta: that of the first step, where mu = 1 / sigma.

    Later steps see theta_1 alone and not the canary, so that they are post-processing and cannot raise it.
    """
    validate(process)
    return conversions.epsilon_from_mu(1 / process.noise_multiplier, delta)
