"""The convex crafted landscape: gradient descent on a quadratic whose curvature changes in time.

Steps theta_t = c'_t theta_(t-1) + s_t b + n_t z_t in one dimension, b = 1 in the world with the canary and
z_t ~ N(0, 1), are the noisy gradient steps of a convex quadratic as long as 0 <= c'_t <= 1. The quadratic is
smooth and strongly convex as long as c'_t is at most c_t, the Lipschitz constant of such a step. The last
iterate is Gaussian in both worlds. With the slopes c'_t of the accountant's certificate
(`HiddenStateBound.attained_by`) it leaks all that `hidden_state_bound` allows: no better bound holds of all
losses with these constants. It is curved where that sheds more noise than signal, as just before the last
step where that inserts, and else as little as the constants allow.
"""

import itertools
from functools import partial

import numpy as np
from numpy.typing import NDArray

from audit.claims.accounting import FIRST, LAST, insert_step
from audit.claims.hidden_state import hidden_state_bound
from audit.report.table import Table, at_most, number
from audit.written import show_level
from experiments.sweeps.records import Record, field

INSERTIONS = 250  # as in the paper's training runs
NOISE_MULTIPLIER = 4.0  # as in the paper's training runs
# k: an insertion in every k steps; at the first or the last of them; the steps' Lipschitz constant.
SCHEDULES = tuple(itertools.product((1, 2, 5, 10, 25), (FIRST, LAST), (1.0, 0.99)))
Array = NDArray[np.float64]


def exact_mu(shifts: Array, slopes: Array, noise: Array) -> float:
    """Returns mu of the last iterate, which is Gaussian with and without the canary.

    What a step inserts, and its noise, reach the last iterate multiplied by the slopes of all later steps.

    Args:
      shifts: (T,) s_t, what each step inserts in the world with the canary.
      slopes: (T,) c'_t, by which each step shrinks the parameter.
      noise: (T,) n_t, each step's standard deviation, in the units of the shifts.
    """
    later_slopes = np.cumprod(slopes[:0:-1])[::-1]
    remaining = np.append(later_slopes, 1.0)  # (T,) the share of each step in the last iterate
    return float(abs(remaining @ shifts) / np.linalg.norm(remaining * noise))


def make_row(k: int, insert: str, lipschitz: float, delta: float) -> Record:
    """Returns what a schedule leaks: mu of a constant direction, of the landscape and of the bound.

    Args:
      k: The periodicity, in steps.
      insert: The step of each period that inserts: FIRST or LAST.
      lipschitz: The Lipschitz constant of every step.
      delta: The delta of the bound's epsilon.
    """
    steps = np.arange(INSERTIONS * k)
    shifts = (steps % k == insert_step(insert, k) - 1).astype(np.float64)
    noise = np.full(len(steps), NOISE_MULTIPLIER)
    bound = hidden_state_bound(shifts, lipschitz, NOISE_MULTIPLIER, delta)
    return {
        "k": k,
        "insert": insert,
        "lipschitz": lipschitz,
        "mu_constant_direction": exact_mu(shifts, np.full(len(steps), lipschitz), noise),
        "mu_exact": exact_mu(shifts, bound.attained_by, noise),
        "mu_bound": bound.mu,
        "epsilon_bound": bound.epsilon,
    }


def make_table(rows: list[Record], delta: float) -> Table[Record]:
    """Returns a table with a row for each schedule: mu, bounds on mu, and epsilon at delta."""
    exact = number(".4f")
    rounded_up = partial(at_most, decimals=4)
    columns = [
        field("k", "k", number("g")),
        field("insert", "insert", left=True),
        field("lipschitz", "c", number("g")),
        field("mu_constant_direction", "constant", exact),
        field("mu_exact", "landscape", exact),
        field("mu_bound", "bound", rounded_up),
        field("epsilon_bound", "epsilon", rounded_up),
    ]
    before = [
        f"the convex landscape: sigma = {NOISE_MULTIPLIER:g}, {INSERTIONS} insertions, steps c-Lipschitz",
        "mu: of a constant direction, of the landscape and of the hidden-state bound; "
        f"epsilon at delta {show_level(delta)}",
    ]
    return Table(columns, rows, before=before)
