"""The convex crafted landscape: gradient descent on a quadratic whose curvature changes in time.

Steps theta_t = c'_t theta_(t-1) + s_t b + n_t z_t in one dimension, b = 1 in the world with the canary and
z_t ~ N(0, 1), are the noisy gradient steps of a convex quadratic as long as 0 <= c'_t <= 1. The quadratic is
smooth and strongly convex as long as c'_t is at most c_t, the Lipschitz constant of such a step. The last
iterate is Gaussian in both worlds. With the slopes c'_t of the accountant's certificate
(`HiddenStateBound.attained_by`) it leaks all that `hidden_state_bound` allows: no better bound holds of all
losses with these constants. It is curved where that sheds more noise than signal, as just before the last
step where that inserts, and else as little as the constants allow.

The study has the accountant's bound, the exact leak and audits of it, in 20 schedules.
"""

import itertools
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from audit.claims import accounting
from audit.claims.hidden_state import (
    FIRST,
    LAST,
    HiddenStateBound,
    hidden_state_bound,
    insert_step,
)
from audit.conclusions.concluded import conclude
from audit.conclusions.conclusion import Conclusion
from audit.evidence import canaries
from audit.methods.level import Level, show_level
from audit.report.style import BOUND, FREE, OUT, STYLE, UPPER
from audit.report.table import Column, Table, at_least, at_most, number
from experiments.hidden_state.landscape import Simulation
from experiments.sweeps.panels import add_legend

INSERTIONS = 250  # as in the paper's training runs
NOISE_MULTIPLIER = 4.0  # as in the paper's training runs
PERIODS = (1, 2, 5, 10, 25)
CONSTANTS = (1.0, 0.99)
_NUM_DRAWN = 40  # of the last steps, whose slopes are drawn
Array = NDArray[np.float64]


class ConvexLandscape(NamedTuple):
    """A one-dimensional convex landscape, by its steps theta_t = c'_t theta_(t-1) + s_t b + n_t z_t.

    Here b is 1 in the world with the canary and 0 without it, and z_t ~ N(0, 1).

    Attributes:
      shifts: (T,) s_t, what each step inserts in the world with the canary.
      slopes: (T,) c'_t, by which each step shrinks the parameter.
      noise: (T,) n_t, each step's standard deviation, in the units of the shifts.
    """

    shifts: Array
    slopes: Array
    noise: Array


def make_landscape(shifts: Array, lipschitz: Array, noise: Array) -> ConvexLandscape:
    """Returns the convex landscape whose last iterate leaks all that the hidden-state bound allows.

    Args:
      shifts: (T,) s_t, what each step inserts in the world with the canary.
      lipschitz: (T,) c_t, the steps' Lipschitz constants, up to 1.
      noise: (T,) n_t, the steps' standard deviations.
    """
    delta = 0.5  # any delta will do: it does not decide the slopes
    slopes = hidden_state_bound(shifts, lipschitz, noise, delta).attained_by
    return ConvexLandscape(shifts, slopes, noise)


def exact_mu(landscape: ConvexLandscape) -> float:
    """Returns mu of the last iterate, which is Gaussian with and without the canary.

    What a step inserts, and its noise, reach the last iterate multiplied by the slopes of all later steps.
    """
    later_slopes = np.cumprod(landscape.slopes[:0:-1])[::-1]
    remaining = np.append(later_slopes, 1.0)  # (T,) the share of each step in the last iterate
    signal = remaining @ landscape.shifts
    return float(abs(signal) / np.linalg.norm(remaining * landscape.noise))


def simulate(
    landscape: ConvexLandscape, presence: NDArray[np.bool_], rng: np.random.Generator
) -> Array:
    """Returns theta_T (R,) of simulated runs from theta_0 = 0, computed in float32 as training does.

    Args:
      landscape: the shifts s_t, slopes c'_t and deviations n_t of T steps.
      presence: (R,) b, whether the canary is in each run.
      rng: the generator of the noise z_t.
    """
    is_in = presence.astype(np.float32)
    theta = np.zeros(len(presence), np.float32)
    for shift, slope, deviation in np.stack(landscape, axis=1).astype(np.float32):
        theta *= slope
        theta += shift * is_in
        theta += deviation * rng.standard_normal(len(theta), np.float32)
    return theta.astype(np.float64)


class ConvexSchedule(NamedTuple):
    """A schedule that inserts the canary once in every k steps.

    Attributes:
      k: The periodicity, in steps.
      insert: The step of each period that inserts: FIRST or LAST.
      lipschitz: The Lipschitz constant of every step.
    """

    k: int
    insert: str
    lipschitz: float

    def landscape(self) -> ConvexLandscape:
        """Returns the convex landscape that attains this schedule's hidden-state bound, in units of C."""
        steps = np.arange(INSERTIONS * self.k)
        place_in_period = insert_step(self.insert, self.k) - 1  # counted from 0
        shifts = (steps % self.k == place_in_period).astype(np.float64)
        ones = np.ones(len(steps))
        return make_landscape(shifts, self.lipschitz * ones, NOISE_MULTIPLIER * ones)

    def constant_direction(self) -> float:
        """Returns mu of a canary along a constant direction, where every slope is `lipschitz`."""
        landscape = self.landscape()
        return exact_mu(landscape._replace(slopes=np.full(len(landscape.shifts), self.lipschitz)))


class AuditedSchedule(NamedTuple):
    """A schedule's bounds and audits.

    Attributes:
      schedule: The schedule.
      bound: The accountant's hidden-state bound.
      mu_exact: mu of the landscape.
      mu_constant: mu that a constant direction reaches.
      conclusion: What simulated runs prove.
    """

    schedule: ConvexSchedule
    bound: HiddenStateBound
    mu_exact: float
    mu_constant: float
    conclusion: Conclusion


def schedules() -> list[ConvexSchedule]:
    """Returns all schedules of the study."""
    values = itertools.product(PERIODS, (FIRST, LAST), CONSTANTS)
    return [ConvexSchedule(*schedule) for schedule in values]


def audited(schedule: ConvexSchedule, simulation: Simulation, delta: float) -> AuditedSchedule:
    """Audits a schedule's landscape with simulated runs, half of which insert the canary.

    Args:
      schedule: The schedule, which has noise of its own.
      simulation: The number of runs, the seed, and the confidence of the lower bounds.
      delta: The delta of every epsilon.
    """
    landscape = schedule.landscape()
    rng = np.random.default_rng([simulation.seed, schedules().index(schedule)])
    present = np.arange(simulation.runs) % 2 == 1
    scores = simulate(landscape, present, rng)
    design = canaries.make_sets(scores[present], scores[~present])
    return AuditedSchedule(
        schedule=schedule,
        bound=hidden_state_bound(landscape.shifts, schedule.lipschitz, NOISE_MULTIPLIER, delta),
        mu_exact=exact_mu(landscape),
        mu_constant=schedule.constant_direction(),
        conclusion=conclude(design, level=Level(delta, simulation.confidence)),
    )


def table(rows: Sequence[AuditedSchedule], delta: float) -> Table[AuditedSchedule]:
    """Makes a table with a row for each schedule: exact mu, bounds on mu, epsilons at delta and audits."""
    four_decimals = number(".4f")
    rounded_up = partial(at_most, decimals=4)
    columns = [
        Column("k", lambda row: row.schedule.k, "k"),
        Column("insert", lambda row: row.schedule.insert, "insert", left=True),
        Column("lipschitz", lambda row: row.schedule.lipschitz, "c", number("g")),
        Column("mu_constant_direction", lambda row: row.mu_constant, "constant", four_decimals),
        Column("mu_exact", lambda row: row.mu_exact, "landscape", four_decimals),
        Column("mu_bound", lambda row: row.bound.mu, "bound", rounded_up),
        Column("epsilon_bound", lambda row: row.bound.epsilon, "epsilon", rounded_up),
        Column("if_gaussian", lambda row: row.conclusion.gaussian.epsilon, "if_gaussian", at_least),
        Column(
            "assumption_free", lambda row: row.conclusion.assumption_free.epsilon, "free", at_least
        ),
    ]
    scope = f"sigma = {NOISE_MULTIPLIER:g}, {INSERTIONS} insertions, steps c-Lipschitz"
    before = [
        f"the convex landscape: {scope}",
        "mu: of a constant direction, of the landscape and of the hidden-state bound",
        f"epsilon at delta {show_level(delta)}: of the bound, and audits of simulated runs",
    ]
    return Table(columns, rows, before=before)


def figure(rows: Sequence[AuditedSchedule], delta: float) -> Figure:
    """Draws epsilon against k, a panel for each Lipschitz constant, and slopes that attain the bound."""
    with plt.rc_context(STYLE):
        drawing, axes = plt.subplots(1, 3, figsize=(9.6, 3.6))
        for axis, constant in zip(axes, CONSTANTS, strict=False):
            _draw_epsilons(axis, [row for row in rows if row.schedule.lipschitz == constant], delta)
            axis.set_title(f"steps Lipschitz {constant:g}")
        axes[0].set_ylabel(f"epsilon at delta {show_level(delta)}")
        _draw_slopes(axes[2])
        add_legend(drawing, axes, 3, size=7)
        return drawing


def _draw_epsilons(axis: Axes, rows: Sequence[AuditedSchedule], delta: float) -> None:
    """Draws upper bounds and audits over k, for schedules with the same Lipschitz constant."""
    for insert, marker, dashes in ((LAST, "o", "-."), (FIRST, "s", ":")):
        own = [row for row in rows if row.schedule.insert == insert]
        k = [row.schedule.k for row in own]
        bounds = [row.bound.epsilon for row in own]
        gaussian = [row.conclusion.gaussian.epsilon for row in own]
        free = [row.conclusion.assumption_free.epsilon for row in own]
        axis.plot(k, bounds, color=UPPER, ls=dashes, label=f"upper, insert {insert}")
        label = f"lower, Gaussian curve, insert {insert}"
        axis.plot(k, gaussian, marker, color=BOUND, ms=4, label=label)
        label = f"lower, nothing assumed, insert {insert}"
        axis.plot(k, free, marker, color=FREE, ms=4, label=label)
    composition = accounting.epsilon_upper_bound(NOISE_MULTIPLIER, INSERTIONS, delta)
    axis.axhline(composition, color="0.6", lw=1, label="composition")
    axis.set(xscale="log", xlabel="k", ylim=(0, 1.1 * composition))
    axis.set_xticks(PERIODS, [str(k) for k in PERIODS])
    axis.minorticks_off()


def _draw_slopes(axis: Axes) -> None:
    """Draws the slopes of the last steps of two schedules with k = 5."""
    for color, insert in ((OUT, LAST), (BOUND, FIRST)):
        slopes = ConvexSchedule(5, insert, 0.99).landscape().slopes[-_NUM_DRAWN:]
        steps = np.arange(1 - len(slopes), 1)  # the last step is 0
        look = {"color": color, "drawstyle": "steps-mid"}
        axis.plot(steps, slopes, label=f"slope, insert {insert}", **look)
    axis.set(title="k = 5, steps Lipschitz 0.99", xlabel="steps before the end", ylim=(0, 1.1))
    axis.set_ylabel("slope")
