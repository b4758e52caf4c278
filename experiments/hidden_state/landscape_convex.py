"""The convex crafted landscape: gradient descent on a quadratic whose curvature changes in time.

Steps theta_t = c'_t theta_(t-1) + s_t b + n_t z_t in one dimension, b = 1 in the world with the canary, are
the noisy gradient steps of a convex quadratic as long as 0 <= c'_t <= 1, and of one that is smooth and
strongly convex as long as c'_t <= c_t. The last iterate is Gaussian in both worlds. With the slopes c'_t of
the accountant's certificate (`HiddenStateBound.attained_by`) it leaks all that `hidden_state_bound` allows:
no better bound holds of all losses with these constants. It is curved where that sheds more noise than
signal, as just before the last step where that inserts, and else as little as the constants allow.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.claims import hidden_state
from audit.errors import require

Array = NDArray[np.float64]


class ConvexLandscape(NamedTuple):
    """A convex landscape.

    Attributes:
      shifts: (T,) s_t, what each step inserts in the world with the canary.
      slopes: (T,) c'_t, by which each step shrinks the parameter.
      noise: (T,) n_t, each step's standard deviation, in the units of the shifts.
    """

    shifts: Array
    slopes: Array
    noise: Array


def make_landscape(shifts: Array, lipschitz: Array, noise: Array) -> ConvexLandscape:
    """Returns the landscape that attains the bound of a schedule.

    Args:
      shifts: (T,) s_t.
      lipschitz: (T,) c_t, constants up to 1.
      noise: (T,) n_t.

    Raises:
      InputError: a constant is above 1, so that the loss need not be convex, or `hidden_state_bound` refuses
        the schedule.
    """
    largest = float(np.max(lipschitz, initial=0.0))
    require(
        largest <= 1, f"`lipschitz={largest:g}`: steps of a convex loss have constants of at most 1"
    )
    delta = 0.5  # any: the slopes are the same for every delta
    bound = hidden_state.hidden_state_bound(shifts, lipschitz, noise, delta)
    return ConvexLandscape(shifts, bound.attained_by, noise)


def exact_mu(landscape: ConvexLandscape) -> float:
    """Returns mu of the last iterate.

    It is what is left of the insertions over the deviation of what is left of the noise, where each step's
    is multiplied by all slopes after it.
    """
    later_slopes = np.cumprod(landscape.slopes[:0:-1])[::-1]
    remaining = np.append(later_slopes, 1.0)  # (T,) the share of each step in the last iterate
    signal = remaining @ landscape.shifts
    deviation = np.linalg.norm(remaining * landscape.noise)
    return float(abs(signal) / deviation)


def simulate(
    landscape: ConvexLandscape,
    presence: NDArray[np.bool_],
    rng: np.random.Generator,
) -> Array:
    """Simulates runs step by step, in float32.

    Args:
      landscape: of T steps.
      presence: (R,) whether the canary is in each run.
      rng: draws the noise.

    Returns:
      theta_T of each run, (R,), as float64.
    """
    shifts = landscape.shifts.astype(np.float32)
    slopes = landscape.slopes.astype(np.float32)
    noise = landscape.noise.astype(np.float32)
    is_in = presence.astype(np.float32)
    theta = np.zeros(len(presence), np.float32)
    for shift, slope, deviation in zip(shifts, slopes, noise, strict=True):
        theta *= slope
        theta += shift * is_in
        theta += deviation * rng.standard_normal(len(theta), np.float32)
    return theta.astype(np.float64)
