"""Two crafted landscapes with laws in closed form: a convex one, and the latch.

The convex one is gradient descent on a quadratic whose curvature changes in time. Steps theta_t = c'_t
theta_(t-1) + s_t b + n_t z_t in one dimension, b = 1 in the world with the canary and z_t ~ N(0, 1), are the
noisy gradient steps of a convex quadratic as long as 0 <= c'_t <= 1. The quadratic is smooth and strongly
convex as long as c'_t is at most c_t, the Lipschitz constant of such a step. The last iterate is Gaussian in
both worlds. With the slopes c'_t of the accountant's certificate (`HiddenStateBound.attained_by`) it leaks
all that `hidden_state_bound` allows: no better bound holds of all losses with these constants. It is curved
where that sheds more noise than signal, as just before the last step where that inserts, and else as little
as the constants allow.

The latch shows in its last iterate the largest sum of a shuffled training run. All others' gradients are -C
along a direction v, the target's is C where it takes part and zero where it is replaced. The sum of the
target's batch then lies 2 C or 1 C above those of other batches, and theta, in units of C and less the push
of all others, is that height and noise. The others cancel theta at each step, which begins at 0, unless theta
exceeds a threshold c. Then they push it on, further in every step than noise brings it back. The last iterate
exceeds c if any sum did: the max test of an adversary who sees all models.

Losses with such gradients exist. Along v their slope is -C (1 - eta) and what cancels or pushes on, which B
examples share and which is at most eta C of each; it is periodic with the period B C (1 - eta) that a step
goes: the push leaves no trace. Heights are then 2 - eta and 1 - eta, and eta is as small as 1 / B.

Such a landscape is not Lipschitz with constant 1: it separates models at c. "The last model alone" hides
nothing of a shuffled training run in general, and only where steps are Lipschitz is there a bound for it.
"""

import itertools
import math
from functools import partial

import numpy as np
import scipy
from numpy.typing import NDArray

from audit.claims import accounting
from audit.claims.accounting import FIRST, LAST, Composition, insert_step
from audit.claims.hidden_state import hidden_state_bound
from audit.report.table import Table, at_least, at_most, number
from audit.written import show_level
from experiments.sweeps.records import Record, field

INSERTIONS = 250  # as in the paper's training runs
NOISE_MULTIPLIER = 4.0  # as in the paper's training runs
# k: an insertion in every k steps; at the first or the last of them; the steps' Lipschitz constant.
SCHEDULES = tuple(itertools.product((1, 2, 5, 10, 25), (FIRST, LAST), (1.0, 0.99)))
TRAININGS = ((0.7, 500, 1), (0.5, 1000, 1), (0.8, 100, 3), (1.0, 100, 10))  # sigma, batches, epochs
# How far the sum of the target's batch lies above other batches' sums, in units of C, with and without it.
HEIGHT_IN = 2.0
HEIGHT_OUT = 1.0
_GRID = 1e-3  # the spacing of privacy losses where Poisson sampling's epsilon is computed
Array = NDArray[np.float64]


def exact_mu(shifts: Array, slopes: Array, noise: Array) -> float:
    """Returns mu of a quadratic's last iterate, which is Gaussian with and without the canary.

    What a step inserts, and its noise, reach the last iterate multiplied by the slopes of all later steps.

    Args:
      shifts: (T,) s_t, what each step inserts in the world with the canary.
      slopes: (T,) c'_t, by which each step shrinks the parameter.
      noise: (T,) n_t, each step's standard deviation, in the units of the shifts.
    """
    remaining = np.append(np.cumprod(slopes[:0:-1])[::-1], 1.0)  # (T,) shares in the last iterate
    return float(abs(remaining @ shifts) / np.linalg.norm(remaining * noise))


def make_convex_row(k: int, insert: str, lipschitz: float, delta: float) -> Record:
    """Returns what a schedule leaks: mu of a constant direction, of the convex landscape and of the bound.

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


def make_convex_table(delta: float) -> Table[Record]:
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
    rows = [make_convex_row(*schedule, delta) for schedule in SCHEDULES]
    return Table(columns, rows, before=before)


def compute_latch_rate(
    sigma: float, batches: int, epochs: int, threshold: float, height: float
) -> float:
    """Returns the probability that a latch's last iterate exceeds the threshold c.

    Once theta exceeds c, a latch pushes it further up in every step. So the last iterate exceeds c if theta
    did after any step. Until then, every step sets theta to noise of deviation sigma, and the step of the
    target's batch, which comes once in each epoch, adds a height h. The probability in E epochs of b batches
    is 1 - (Phi((c - h) / sigma) Phi(c / sigma)^(b - 1))^E. Logs and expm1 keep small results accurate.

    Args:
      sigma: The standard deviation of a step's noise in units of C.
      batches: b, the number of batches in an epoch.
      epochs: E, the number of epochs.
      threshold: c, the threshold in units of C.
      height: h, HEIGHT_IN with the target and HEIGHT_OUT without it.
    """
    log_unlatched = scipy.special.log_ndtr((threshold - height) / sigma)
    log_unlatched += (batches - 1) * scipy.special.log_ndtr(threshold / sigma)
    return float(-np.expm1(epochs * log_unlatched))


def make_latch_row(training: tuple[float, int, int], delta: float) -> Record:
    """Returns what a latch leaks at least, by the best of many thresholds, next to what Poisson would claim.

    The thresholds are the multiples of 0.01 C below 2 C plus 8 standard deviations of the noise.

    Args:
      training: sigma, the number of batches and the number of epochs.
      delta: The delta of every epsilon.
    """
    sigma, batches, epochs = training
    best = 0.0
    for threshold in np.arange(0.0, HEIGHT_IN + 8 * sigma, 0.01):
        excess = compute_latch_rate(*training, threshold, HEIGHT_IN) - delta
        false_positives = compute_latch_rate(*training, threshold, HEIGHT_OUT)
        if excess > 0 and false_positives > 0:
            best = max(best, math.log(excess / false_positives))
    # The same steps, if batches were Poisson-sampled: each takes the target with probability 1 / b.
    steps = Composition(sigma, batches * epochs, 1 / batches)
    poisson = accounting.account_sampled(steps, _GRID).get_epsilon(delta)
    values = {"sigma": sigma, "batches": batches, "epochs": epochs}
    return {**values, "epsilon": best, "poisson": float(poisson)}


def make_latch_table(delta: float) -> Table[Record]:
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
    rows = [make_latch_row(training, delta) for training in TRAININGS]
    return Table(columns, rows, before=before)
