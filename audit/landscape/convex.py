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

from audit.errors import require
from audit.statistics import hidden_state

Array = NDArray[np.float64]


class ConvexLandscape(NamedTuple):
    """Shifts s_t, slopes c'_t and noise n_t of each step, (T,), in the units of the shifts."""

    shifts: Array
    slopes: Array
    noise: Array


def of_schedule(shifts: Array, lipschitz: Array, noise: Array) -> ConvexLandscape:
    """The landscape that attains the bound of a schedule, (T,) each, of constants up to 1. Raises InputError
    for constants above 1, of which the loss need not be convex, and as `hidden_state_bound`."""
    steep = float(np.max(lipschitz, initial=0.0))
    require(steep <= 1, f"`lipschitz={steep:g}`: steps of a convex loss have constants of at most 1")
    found = hidden_state.hidden_state_bound(shifts, lipschitz, noise, 0.5)  # mu is the same for every delta
    return ConvexLandscape(shifts, found.attained_by, noise)


def exact_mu(landscape: ConvexLandscape) -> float:
    """mu of the last iterate: what is left of the insertions over the deviation of what is left of the
    noise, each times all slopes after it."""
    kept = np.append(np.cumprod(landscape.slopes[:0:-1])[::-1], 1.0)
    return float(abs(kept @ landscape.shifts) / np.linalg.norm(kept * landscape.noise))


def simulate(landscape: ConvexLandscape, presence: NDArray[np.bool_], rng: np.random.Generator) -> Array:
    """theta_T (R,) of runs with presence (R,), step by step, in float32."""
    theta, present = np.zeros(len(presence), np.float32), presence.astype(np.float32)
    for shift, slope, deviation in zip(*(part.astype(np.float32) for part in landscape), strict=True):
        theta *= slope
        theta += shift * present
        theta += deviation * rng.standard_normal(len(theta), np.float32)
    return theta.astype(np.float64)
