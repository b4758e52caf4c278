"""The convex crafted landscape: the accountant's bound, its exact leak and audits of it, in 20 schedules."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from audit.concluded import conclude
from audit.landscape import convex
from audit.landscape.convex import ConvexLandscape
from audit.report.style import BOUND, FREE, OUT, STYLE, UPPER
from audit.report.table import Column, Table, at_least, number
from audit.statistics import accounting, canaries, conversions
from audit.statistics.hidden_state import FIRST, LAST, hidden_state_bound, insert_step

INSERTIONS, NOISE_MULTIPLIER = 250, 4.0  # as in the paper's trainings
PERIODS, CONSTANTS = (1, 2, 5, 10, 25), (1.0, 0.99)
_SHOWN = 40  # steps of which slopes are drawn


class ConvexSchedule(NamedTuple):
    """A canary at the first or last of every k steps, whose Lipschitz constant is `lipschitz`."""

    k: int
    insert: str
    lipschitz: float

    def landscape(self) -> ConvexLandscape:
        """The convex landscape that attains this schedule's bound, in units of C."""
        steps = np.arange(INSERTIONS * self.k)
        shifts = (steps % self.k == insert_step(self.insert, self.k) - 1).astype(np.float64)
        constants, noise = np.full(len(steps), self.lipschitz), np.full(len(steps), NOISE_MULTIPLIER)
        return convex.of_schedule(shifts, constants, noise)

    def constant_direction(self) -> float:
        """mu of an insertion that every step shrinks by `lipschitz`: what a constant direction reaches."""
        shifts, _, noise = self.landscape()
        return convex.exact_mu(ConvexLandscape(shifts, np.full(len(shifts), self.lipschitz), noise))


class AuditedSchedule(NamedTuple):
    """A schedule: mu of the accountant's bound, of the landscape, of a constant direction, of composition;
    epsilon of the bound, and the lower bounds on it from simulated runs."""

    schedule: ConvexSchedule
    mu_bound: float
    mu_exact: float
    mu_constant: float
    mu_composition: float
    epsilon_bound: float
    if_gaussian: float
    assumption_free: float


def schedules() -> list[ConvexSchedule]:
    """All that are studied."""
    return [ConvexSchedule(*one) for one in itertools.product(PERIODS, (FIRST, LAST), CONSTANTS)]


def audited(
    schedule: ConvexSchedule, runs: int, seed: int, delta: float, confidence: float
) -> AuditedSchedule:
    """The audit of a schedule's landscape from so many simulated runs, half of them in."""
    landscape, present = schedule.landscape(), np.arange(runs) % 2 == 1
    bound = hidden_state_bound(landscape.shifts, schedule.lipschitz, NOISE_MULTIPLIER, delta)
    rng = np.random.default_rng([seed, schedules().index(schedule)])
    scores = convex.simulate(landscape, present, rng)
    design = canaries.of_arrays(scores[present], scores[~present])
    found = conclude(design, delta=delta, confidence=confidence)
    mus = bound.mu, convex.exact_mu(landscape), schedule.constant_direction()
    mu_composition = accounting.mu_upper_bound(NOISE_MULTIPLIER, INSERTIONS)
    lower = found.gaussian.epsilon, found.assumption_free.epsilon
    return AuditedSchedule(schedule, *mus, mu_composition, bound.epsilon, *lower)


def table(rows: Sequence[AuditedSchedule], delta: float) -> Table[AuditedSchedule]:
    """A row a schedule."""
    epsilon = number(".4f")
    columns = [
        Column("k", lambda row: row.schedule.k, "k"),
        Column("insert", lambda row: row.schedule.insert, "insert", left=True),
        Column("lipschitz", lambda row: row.schedule.lipschitz, "c", number("g")),
        Column("mu_constant_direction", lambda row: row.mu_constant, "constant", epsilon),
        Column("mu_exact", lambda row: row.mu_exact, "landscape", epsilon),
        Column("mu_bound", lambda row: row.mu_bound, "bound", epsilon),
        Column("epsilon_bound", lambda row: row.epsilon_bound, "epsilon", epsilon),
        Column("if_gaussian", lambda row: row.if_gaussian, "if_gaussian", at_least),
        Column("assumption_free", lambda row: row.assumption_free, "free", at_least),
    ]
    about = f"sigma = {NOISE_MULTIPLIER:g}, {INSERTIONS} insertions, steps c-Lipschitz"
    title = f"the convex landscape: {about}"
    of_mu = "mu: of a constant direction, of the landscape and of the hidden-state bound"
    of_epsilon = f"epsilon at delta {delta:g}: of the bound, and audits of simulated runs"
    return Table(columns, rows, before=(title, of_mu, of_epsilon))


def figure(rows: Sequence[AuditedSchedule], delta: float) -> Figure:
    """Epsilon against k for each constant, and the slopes that attain the bound."""
    with plt.rc_context(STYLE):
        drawn, axes = plt.subplots(1, 3, figsize=(9.6, 3.6))
        for axis, constant in zip(axes, CONSTANTS, strict=False):
            _draw_epsilons(axis, [row for row in rows if row.schedule.lipschitz == constant], delta)
            axis.set_title(f"c = {constant:g}")
        axes[0].set_ylabel(f"epsilon at delta {delta:g}")
        _draw_slopes(axes[2])
        entries: dict[str, Artist] = {}
        for axis in axes:
            handles, labels = axis.get_legend_handles_labels()
            entries |= dict(zip(labels, handles, strict=True))
        named = list(entries.values()), list(entries)
        drawn.legend(*named, loc="outside lower center", ncols=5, fontsize=7)
        return drawn


def _draw_epsilons(axis: Axes, rows: Sequence[AuditedSchedule], delta: float) -> None:
    for insert, marker, dashes in ((LAST, "o", "-."), (FIRST, "s", ":")):
        some = [row for row in rows if row.schedule.insert == insert]
        k = [row.schedule.k for row in some]
        axis.plot(k, [row.epsilon_bound for row in some], color=UPPER, ls=dashes, label=f"bound, {insert}")
        for color, name in ((BOUND, "if_gaussian"), (FREE, "assumption_free")):
            found = [getattr(row, name) for row in some]
            axis.plot(k, found, marker, color=color, ms=4, label=f"{name}, {insert}")
    composition = conversions.epsilon_from_mu(rows[0].mu_composition, delta)
    axis.axhline(composition, color="0.6", lw=1, label="composition")
    axis.set(xscale="log", xlabel="k", ylim=(0, 1.1 * composition))
    axis.set_xticks(PERIODS, [str(k) for k in PERIODS])
    axis.minorticks_off()


def _draw_slopes(axis: Axes) -> None:
    for color, insert in ((OUT, LAST), (BOUND, FIRST)):
        slopes = ConvexSchedule(5, insert, 0.99).landscape().slopes[-_SHOWN:]
        steps = np.arange(-len(slopes) + 1, 1)
        axis.plot(steps, slopes, color=color, drawstyle="steps-mid", label=f"slope, {insert}")
    axis.set(title="k = 5, c = 0.99", xlabel="steps before the end", ylabel="slope", ylim=(0, 1.1))
