"""Table 1 and Figure 5 of the LiDP paper, from kept scores; nothing here trains."""

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from audit.report.style import BLACK, BLUE, FADED, GREEN, PURPLE, STYLE, VERMILION
from audit.settings.setting import identity
from audit.statistics.accounting import Composition, sampled_upper_bound
from audit.storage.index import Holdings
from audit.storage.scores import Scores
from experiments.cells.cell import Audited, Levels
from experiments.lidp import gains, real_table
from experiments.lidp.comparison import Comparison
from experiments.lidp.real_table import LIFTED, METHODS, ORDER_2, ORDER_4, SINGLE, Gain, Lifted
from experiments.sweeps.points import Evidence
from experiments.sweeps.sweep import Drawn, Sweep

_LEAST_CANARIES = {ORDER_2: 2, ORDER_4: 4}
_LOOKS = {  # of methods: colour, marker, line
    SINGLE: (BLUE, "o", ":"),
    ORDER_2: (VERMILION, "s", "-"),
    ORDER_4: (PURPLE, "^", "--"),
    LIFTED: (GREEN, "D", "-"),
}


def draw_gains(sweep: Sweep, evidence: Evidence, asked: Sequence[Comparison]) -> Drawn:
    """Table 1: the gain of every entry whose scores are there, and the harmonic means."""
    missing = sum(_read(evidence.held, one) is None for cell in asked for one in (cell.single, cell.several))
    read = [_gain(evidence, one) for one in asked]
    found = [entry for entry in read if entry is not None]
    if not found:
        return Drawn([], missing, [])
    table = real_table.of_gains(sweep.name, sweep.title, found)
    return Drawn([(sweep.name, gains_figure(sweep.title, found))], missing, [], table)


def draw_epsilons(sweep: Sweep, evidence: Evidence) -> Drawn:
    """Figure 5: a row an attack, epsilon over the runs and over the canaries."""
    read = [(one, _read(evidence.held, one)) for one in sweep.audits()]
    there = [(one, scores) for one, scores in read if scores is not None]
    attacks = list(dict.fromkeys(one.series for one, _ in there))
    if not attacks:
        return Drawn([], len(read), [])
    found = [_lifted([pair for pair in there if pair[0].series == one], evidence.levels) for one in attacks]
    first = there[0][0]
    title = f"{first.panel}, upper bound {_upper(first, evidence.levels):.2f}, n = {first.runs:,}"
    table = real_table.of_epsilons(sweep.name, title, found)
    return Drawn([(sweep.name, epsilons_figure(title, found))], len(read) - len(there), [], table)


def gains_figure(title: str, found: Sequence[Gain]) -> Figure:
    """Every entry's gains on a logarithmic axis, and their harmonic means."""
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(7, 0.3 * len(found) + 1.8))
        for method, shift in ((ORDER_2, -0.15), (ORDER_4, 0.15)):
            (color, marker, _), mean = _LOOKS[method], real_table.mean(found, method)
            for place, entry in enumerate(found):
                if (gain := entry.by_order.get(method)) is not None:
                    axis.plot(gain, place + shift, marker, color=color)
            label = METHODS[method] + ("" if mean is None else f", mean {mean:.2f}")
            axis.plot([], [], marker, color=color, label=label)
        for place, entry in enumerate(found):
            if not any(entry.by_order.values()):
                axis.annotate("proves nothing", (1.1, place), color=FADED, va="center", fontsize=8)
        axis.axvline(1, color=BLACK, lw=0.8, ls=":")
        axis.set(yticks=range(len(found)), yticklabels=[entry.label for entry in found], title=title)
        axis.set(xscale="log", xlim=(1 / 16, 16), xlabel="times fewer runs than with one canary")
        axis.invert_yaxis()
        figure.legend(loc="outside lower center", ncols=2)
        return figure


def epsilons_figure(title: str, found: Sequence[Lifted]) -> Figure:
    """A row an attack."""
    with plt.rc_context(STYLE):
        size = (8, 2.4 * len(found) + 0.8)
        figure, rows = plt.subplots(len(found), 2, figsize=size, sharey="row", squeeze=False)
        for one, (over_runs, over_canaries) in zip(found, rows, strict=True):
            _draw_over_runs(over_runs, one)
            _draw_over_canaries(over_canaries, one)
            over_runs.set(ylabel=f"{one.attack}\nlower bound on epsilon", ylim=(0, None))
        for axis, name in zip(rows[-1], ("runs", "canaries K"), strict=True):
            axis.set_xlabel(name)
        figure.suptitle(title)
        _legend(figure, list(rows.ravel()))
        return figure


def _gain(evidence: Evidence, asked: Comparison) -> Gain | None:
    """The entry, where both audits are there."""
    single, several = (_read(evidence.held, one) for one in (asked.single, asked.several))
    if single is None or several is None:
        return None
    runs, levels = gains.places(asked.single.runs), evidence.levels
    alone = gains.curve(SINGLE, single, runs, levels)
    orders = [order for order, least in _LEAST_CANARIES.items() if asked.several.x >= least]
    curves = {order: gains.curve(order, several, runs, levels) for order in orders}
    return Gain(
        f"{asked.single.series}, {asked.single.panel}",
        max(alone),
        {order: max(curve) for order, curve in curves.items()},
        {order: gains.gain(runs, alone, curve) for order, curve in curves.items()},
    )


def _lifted(found: list[tuple[Audited, Scores]], levels: Levels) -> Lifted:
    """An attack's audits; over the runs with the number of canaries nearest to the root of all runs."""
    all_runs = found[0][0].runs
    runs, by_canaries = gains.places(all_runs), {int(one.x): scores for one, scores in found}
    over = {
        k: {m: gains.curve(m, scores, [all_runs], levels)[0] for m in _usable(k)}
        for k, scores in sorted(by_canaries.items())
    }
    single = gains.curve(SINGLE, by_canaries[1], runs, levels) if 1 in by_canaries else None
    root = all_runs**0.5
    nearest = min((k for k in by_canaries if k > 1), key=lambda k: abs(k - root), default=None)
    if nearest is None:
        return Lifted(found[0][0].series, over, runs, single, None, {})
    several = {m: gains.curve(m, by_canaries[nearest], runs, levels) for m in _usable(nearest)}
    return Lifted(found[0][0].series, over, runs, single, nearest, several)


def _usable(canaries: int) -> list[str]:
    """The methods for so many canaries."""
    return [method for method in METHODS if canaries >= _LEAST_CANARIES.get(method, 1)]


def _read(held: Holdings, asked: Audited) -> Scores | None:
    """The scores of an audit, where all are there."""
    return held.scores(identity(asked.setting), asked.runs)


def _draw_over_runs(axis: Axes, found: Lifted) -> None:
    """One canary beside several."""
    if found.single is not None:
        axis.plot(found.runs, found.single, "x-", color=BLACK, label="one canary, order 1")
    for method, values in found.several.items():
        color, marker, dash = _LOOKS[method]
        axis.plot(found.runs, values, marker + dash, color=color, ms=4, label=METHODS[method])
    if found.canaries is not None:
        axis.set_title(f"K = {found.canaries}", loc="right", fontsize=8)
    axis.set(xscale="log", xticks=found.runs[::2], xticklabels=[str(n) for n in found.runs[::2]])
    axis.minorticks_off()


def _draw_over_canaries(axis: Axes, found: Lifted) -> None:
    """All runs, any number of canaries."""
    for method, (color, marker, dash) in _LOOKS.items():
        own = {k: epsilons[method] for k, epsilons in found.over_canaries.items() if method in epsilons}
        axis.plot(list(own), list(own.values()), marker + dash, color=color, ms=4)
    places = list(found.over_canaries)
    axis.set(xscale="log", xticks=places, xticklabels=list(map(str, places)))
    axis.minorticks_off()


def _upper(asked: Audited, levels: Levels) -> float:
    """The accountant's epsilon."""
    sigma, insertions, rate = Composition(*asked.setting.composition)
    return sampled_upper_bound(sigma, insertions, levels.delta, rate)


def _legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend below, of all that any panel has."""
    labels: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            labels.setdefault(label, handle)
    figure.legend(list(labels.values()), list(labels), loc="outside lower center", ncols=5, fontsize=8)
