"""The comparison as a table, and as a figure: a line a value, bounds filled, estimates hollow, beside the
upper bound."""

from collections.abc import Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from audit.progress import counted
from audit.report.style import BLACK, FADED, FREE, IN, OUT, STYLE
from audit.report.table import Column, Table, at_least, at_most, number
from experiments.compare.compared import FINAL, Compared
from experiments.compare.rows import ESTIMATE, REFUTED, ComparedRow

_LOOKS = {"nothing": FREE, "fair coins": FREE, "fresh directions": FREE}  # other bounds assume more
_NOTES = """\
estimator: bounds hold at confidence {confidence:g} for what they assume.
(no bound): an estimate or a measurement. s: seconds spent now; kept: none.
One mechanism, neighbours (a canary is added) and delta for all: {steps:,} steps of
DP-SGD, each of which takes the canary, sigma = {sigma:g}."""
_REFUTED = "REFUTED: these scores refute a Gaussian curve: such rows do not hold."


def comparison_table(compared: Compared, rows: Sequence[ComparedRow], upper: float) -> Table[ComparedRow]:
    """A row a value; the accountant's below."""

    def epsilon(row: ComparedRow) -> str:
        return f"{row.epsilon:.3f}" if row.assumes == ESTIMATE else at_least(row.epsilon)

    shown = (
        Column(None, lambda row: row.method, "method", width=20, left=True),
        Column(None, lambda row: row.value, "estimator", width=23, left=True),
        Column(None, lambda row: row.runs, "runs", number(","), 5),
        Column(None, lambda row: "kept" if row.seconds is None else f"{row.seconds:.0f}", "s", width=4),
        Column(None, epsilon, "epsilon", width=7),
        Column(None, lambda row: row.assumes, "assumes", left=True),
    )
    plain = (Column(name, attrgetter(name)) for name in ComparedRow._fields)
    notes = _NOTES.format(
        confidence=compared.confidence, steps=compared.steps, sigma=compared.noise_multiplier
    )
    bound = f"{'upper bound':<20} {'accounting':<23} {'':>10} {at_most(upper):>7}"
    refuted = [_REFUTED] if any(row.assumes == REFUTED for row in rows) else []
    return Table(
        (*shown, *plain, Column("upper_bound", lambda row: upper)),
        rows,
        section=lambda row: f"sees the {row.sees}" if row.sees == FINAL else f"sees {row.sees}",
        before=(f"epsilon at delta {compared.delta:g}: {compared.model} on Fashion-MNIST",),
        after=("-" * 80, bound, notes, *refuted),
        gap=" ",
        rule=80,
    )


def comparison_figure(rows: Sequence[ComparedRow], upper: float, delta: float) -> Figure:
    """Values from top to bottom in the order of the table."""
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(7, 0.24 * len(rows) + 1.3))
        shown = min(1.6 * upper, max([upper, *(row.epsilon for row in rows)])) * 1.05
        for place, row in enumerate(rows):
            color = _LOOKS.get(row.assumes, OUT) if row.is_bound else IN
            color = FADED if row.assumes == REFUTED else color
            inside = row.epsilon <= shown
            marker = "o" if inside else ">"
            filled = color if row.is_bound else "white"
            axis.plot(min(row.epsilon, shown), place, marker, color=color, mfc=filled, clip_on=False)
            if not inside:
                beyond = at_least(row.epsilon, 1) if row.is_bound else f"{row.epsilon:.1f}"
                axis.text(0.98 * shown, place, beyond, ha="right", va="center", fontsize=8)
        looks = [
            (FREE, FREE, "bound, whatever the curve"),
            (OUT, OUT, "bound, if what it assumes holds"),
            (IN, "white", "estimate, no bound"),
            (FADED, "white", "refuted: the curve is not Gaussian"),
        ]
        for color, filled, label in looks if any(row.assumes == REFUTED for row in rows) else looks[:-1]:
            axis.plot([], [], "o", color=color, mfc=filled, label=label)
        axis.axvline(upper, color=BLACK, ls=(0, (1, 1)), lw=1.6, label="upper bound (accounting)")
        names = [f"{row.method}: {row.value.replace('_', ' ')}, {counted(row.runs, 'model')}" for row in rows]
        axis.set(yticks=range(len(rows)), xlim=(0, shown), xlabel=f"epsilon at delta {delta:g}")
        axis.set_yticklabels(names, fontsize=8)
        axis.invert_yaxis()
        look: dict[str, Any] = dict(ha="right", fontsize=8, color="0.35")
        for place, (above, below) in enumerate(pairwise(rows), 1):
            if above.sees != below.sees:
                at = axis.get_yaxis_transform()
                axis.axhline(place - 0.5, color="0.7", lw=0.8)
                axis.text(0.99, place - 0.6, f"sees the {above.sees}", va="bottom", transform=at, **look)
                axis.text(0.99, place - 0.4, f"sees {below.sees}", va="top", transform=at, **look)
        figure.suptitle("One mechanism: fresh directions, and the methods of four papers", fontsize=10)
        figure.legend(loc="outside lower center", ncols=2, fontsize=8)
        return figure
