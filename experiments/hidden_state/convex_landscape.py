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
from audit.claims.hidden_state import FIRST, LAST, hidden_state_bound, insert_step
from audit.conclusions.concluded import conclude
from audit.errors import require
from audit.evidence import canaries
from audit.laws import conversions
from audit.methods.level import Level, show_level
from audit.report.style import BOUND, FREE, OUT, STYLE, UPPER
from audit.report.table import Column, Table, at_least, at_most, number
from experiments.sweeps.panels import add_legend

INSERTIONS = 250  # as in the paper's training runs
NOISE_MULTIPLIER = 4.0  # as in the paper's training runs
PERIODS = (1, 2, 5, 10, 25)
CONSTANTS = (1.0, 0.99)
_DRAWN_STEPS = 40  # the last steps, whose slopes are drawn
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

    A step multiplies the parameter by its slope, which lies between 0 and the step's Lipschitz constant.
    The bound comes with slopes that attain it, and the landscape has these.

    Args:
      shifts: (T,) s_t, what each step inserts in the world with the canary.
      lipschitz: (T,) c_t, the steps' Lipschitz constants, up to 1.
      noise: (T,) n_t, the steps' standard deviations.

    Raises:
      InputError: a constant is above 1, so that the loss need not be convex, or `hidden_state_bound` refuses
        the schedule.
    """
    largest = float(np.max(lipschitz, initial=0.0))  # 0 for no steps
    require(
        largest <= 1, f"`lipschitz={largest:g}`: steps of a convex loss have constants of at most 1"
    )
    delta = 0.5  # any delta will do: it decides the bound's epsilon, but not the slopes
    slopes = hidden_state_bound(shifts, lipschitz, noise, delta).attained_by
    return ConvexLandscape(shifts, slopes, noise)


def exact_mu(landscape: ConvexLandscape) -> float:
    """Returns mu of the last iterate, which is Gaussian in both worlds, with and without the canary.

    mu is the distance of the two worlds' means over their common deviation. What a step inserts, and its
    noise, reach the last iterate multiplied by the slopes of all later steps.
    """
    # For each step but the last, the product of the slopes after it: cumulated from the last step backwards.
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
    """Simulates runs step by step: theta_t = c'_t theta_(t-1) + s_t b + n_t z_t, from theta_0 = 0.

    Computes in float32, as training does.

    Args:
      landscape: the shifts s_t, slopes c'_t and deviations n_t of T steps.
      presence: (R,) b, whether the canary is in each run.
      rng: the generator of the noise z_t.

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
        """Returns the convex landscape that attains this schedule's hidden-state bound, in units of C.

        A step shifts theta by 1 if it inserts the canary, else by 0. Its noise has deviation sigma, the noise
        multiplier.
        """
        steps = np.arange(INSERTIONS * self.k)  # an insertion in each k steps
        # Counted from 0, while `insert_step` counts a period's steps from 1.
        place_in_period = insert_step(self.insert, self.k) - 1
        shifts = (steps % self.k == place_in_period).astype(np.float64)
        lipschitz = np.full(len(steps), self.lipschitz)
        noise = np.full(len(steps), NOISE_MULTIPLIER)
        return make_landscape(shifts, lipschitz, noise)

    def constant_direction(self) -> float:
        """Returns mu of a canary along a constant direction, where every slope is `lipschitz`."""
        shifts, _, noise = self.landscape()
        slopes = np.full(len(shifts), self.lipschitz)
        return exact_mu(ConvexLandscape(shifts, slopes, noise))


class AuditedSchedule(NamedTuple):
    """A schedule's bounds and audits.

    Attributes:
      schedule: The schedule.
      mu_bound: mu of the accountant's hidden-state bound.
      mu_exact: mu of the landscape.
      mu_constant: mu that a constant direction reaches.
      mu_composition: mu of composition.
      epsilon_bound: epsilon of the hidden-state bound.
      if_gaussian: The lower bound on epsilon from simulated runs, if the trade-off curve is Gaussian.
      assumption_free: The lower bound on epsilon from simulated runs, without an assumption.
    """

    schedule: ConvexSchedule
    mu_bound: float
    mu_exact: float
    mu_constant: float
    mu_composition: float
    epsilon_bound: float
    if_gaussian: float
    assumption_free: float


def schedules() -> list[ConvexSchedule]:
    """Returns all schedules of the study."""
    return [
        ConvexSchedule(*values) for values in itertools.product(PERIODS, (FIRST, LAST), CONSTANTS)
    ]


def audited(
    schedule: ConvexSchedule, runs: int, seed: int, delta: float, confidence: float
) -> AuditedSchedule:
    """Audits a schedule's landscape with simulated runs, half of which insert the canary.

    Args:
      schedule: The schedule.
      runs: The number of runs in both worlds together.
      seed: The seed of the simulated noise; each schedule has noise of its own.
      delta: The delta of every epsilon.
      confidence: The confidence of the lower bounds.

    Returns:
      The exact mu of the last iterate, upper bounds on it, and the mu that a canary along a constant
      direction reaches. Of the audit, two lower bounds on epsilon: without an assumption, and if the
      trade-off curve is Gaussian.
    """
    landscape = schedule.landscape()
    bound = hidden_state_bound(landscape.shifts, schedule.lipschitz, NOISE_MULTIPLIER, delta)
    rng = np.random.default_rng([seed, schedules().index(schedule)])
    present = np.arange(runs) % 2 == 1  # every second run
    scores = simulate(landscape, present, rng)
    design = canaries.make_sets(scores[present], scores[~present])
    conclusion = conclude(design, level=Level(delta, confidence))
    return AuditedSchedule(
        schedule=schedule,
        mu_bound=bound.mu,
        mu_exact=exact_mu(landscape),
        mu_constant=schedule.constant_direction(),
        mu_composition=accounting.mu_upper_bound(NOISE_MULTIPLIER, INSERTIONS),
        epsilon_bound=bound.epsilon,
        if_gaussian=conclusion.gaussian.epsilon,
        assumption_free=conclusion.assumption_free.epsilon,
    )


def table(rows: Sequence[AuditedSchedule], delta: float) -> Table[AuditedSchedule]:
    """Makes a table with a row for each schedule: exact mu, bounds on mu, epsilons and audits.

    Args:
      rows: The schedules' bounds and audits.
      delta: The delta of every epsilon.
    """
    four_decimals = number(".4f")
    rounded_up = partial(at_most, decimals=4)
    columns = [
        Column("k", lambda row: row.schedule.k, "k"),
        Column("insert", lambda row: row.schedule.insert, "insert", left=True),
        Column("lipschitz", lambda row: row.schedule.lipschitz, "c", number("g")),
        Column(
            "mu_constant_direction",
            lambda row: row.mu_constant,
            "constant",
            four_decimals,
        ),
        Column("mu_exact", lambda row: row.mu_exact, "landscape", four_decimals),
        Column("mu_bound", lambda row: row.mu_bound, "bound", rounded_up),
        Column("epsilon_bound", lambda row: row.epsilon_bound, "epsilon", rounded_up),
        Column("if_gaussian", lambda row: row.if_gaussian, "if_gaussian", at_least),
        Column("assumption_free", lambda row: row.assumption_free, "free", at_least),
    ]
    scope = f"sigma = {NOISE_MULTIPLIER:g}, {INSERTIONS} insertions, steps c-Lipschitz"
    title = f"the convex landscape: {scope}"
    mu_columns = "mu: of a constant direction, of the landscape and of the hidden-state bound"
    epsilon_columns = (
        f"epsilon at delta {show_level(delta)}: of the bound, and audits of simulated runs"
    )
    return Table(columns, rows, before=(title, mu_columns, epsilon_columns))


def figure(rows: Sequence[AuditedSchedule], delta: float) -> Figure:
    """Draws epsilon against k, in a panel for each Lipschitz constant, and the slopes that attain the bound.

    Args:
      rows: The schedules' bounds and audits.
      delta: The delta of every epsilon.
    """
    with plt.rc_context(STYLE):
        drawing, axes = plt.subplots(1, 3, figsize=(9.6, 3.6))
        # The first two panels have the two constants, the third has the slopes.
        for axis, constant in zip(axes, CONSTANTS, strict=False):
            _draw_epsilons(axis, [row for row in rows if row.schedule.lipschitz == constant], delta)
            axis.set_title(f"steps Lipschitz {constant:g}")
        axes[0].set_ylabel(f"epsilon at delta {show_level(delta)}")
        _draw_slopes(axes[2])

        add_legend(drawing, axes, 3, size=7)
        return drawing


def _draw_epsilons(axis: Axes, rows: Sequence[AuditedSchedule], delta: float) -> None:
    """Draws upper bounds and audits over k, for schedules with the same Lipschitz constant.

    Args:
      axis: The panel.
      rows: The schedules' bounds and audits.
      delta: The delta at which composition is drawn, which is that of the rows.
    """
    methods = (  # field of a row, words for the legend, color
        ("if_gaussian", "lower, Gaussian curve", BOUND),
        ("assumption_free", "lower, nothing assumed", FREE),
    )
    # Once for schedules that insert last in each period of k steps, once for those that insert first.
    for insert, marker, dashes in ((LAST, "o", "-."), (FIRST, "s", ":")):
        own = [row for row in rows if row.schedule.insert == insert]
        k = [row.schedule.k for row in own]
        bounds = [row.epsilon_bound for row in own]
        axis.plot(k, bounds, color=UPPER, ls=dashes, label=f"upper, insert {insert}")
        for method, words, color in methods:
            epsilons = [getattr(row, method) for row in own]
            axis.plot(k, epsilons, marker, color=color, ms=4, label=f"{words}, insert {insert}")

    # The accountant's epsilon is the same for all schedules, which have the same number of insertions.
    composition = conversions.epsilon_from_mu(rows[0].mu_composition, delta)
    axis.axhline(composition, color="0.6", lw=1, label="composition")
    axis.set(xscale="log", xlabel="k", ylim=(0, 1.1 * composition))
    axis.set_xticks(PERIODS, [str(k) for k in PERIODS])
    axis.minorticks_off()


def _draw_slopes(axis: Axes) -> None:
    """Draws the slopes of the last steps of two schedules with k = 5, which insert first or last in a period.

    These slopes attain the hidden-state bound.
    """
    for color, insert in ((OUT, LAST), (BOUND, FIRST)):
        slopes = ConvexSchedule(5, insert, 0.99).landscape().slopes[-_DRAWN_STEPS:]
        steps = np.arange(-len(slopes) + 1, 1)  # ..., -1, 0: the last step is 0
        axis.plot(
            steps, slopes, color=color, drawstyle="steps-mid", label=f"slope, insert {insert}"
        )
    axis.set(
        title="k = 5, steps Lipschitz 0.99",
        xlabel="steps before the end",
        ylabel="slope",
        ylim=(0, 1.1),
    )
