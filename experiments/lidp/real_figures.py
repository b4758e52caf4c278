"""Table 1 and Figure 5 of the LiDP paper, from kept scores; nothing here trains."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from audit.statistics.accounting import Composition, sampled_upper_bound
from audit.storage.index import Holdings
from audit.storage.scores import Scores
from experiments.cells.cell import Audited, Levels
from experiments.lidp import gains
from experiments.lidp.comparison import Comparison
from experiments.plots.points import Evidence
from experiments.plots.style import BLACK, BLUE, FADED, GREEN, PURPLE, STYLE, VERMILION
from experiments.plots.sweep import Drawn, Sweep
from experiments.settings.setting import identity

_SINGLE, _ORDER_2, _ORDER_4 = "lidp_wilson_1", "lidp_wilson_2", "lidp_wilson_4"
_LEAST_CANARIES = {_ORDER_2: 2, _ORDER_4: 4}
_LOOKS = {  # of methods: label, colour, marker, line
    _SINGLE: ("order 1", BLUE, "o", ":"),
    _ORDER_2: ("order 2", VERMILION, "s", "-"),
    _ORDER_4: ("order 4", PURPLE, "^", "--"),
    "lifted": ("lifted (finite sample)", GREEN, "D", "-"),
}


class Gain(NamedTuple):
    """An entry of Table 1: how many times fewer runs each order needs; None where one side proves nothing."""

    label: str
    by_order: dict[str, float | None]


def draw_gains(sweep: Sweep, evidence: Evidence, asked: Sequence[Comparison]) -> Drawn:
    """Table 1: the gain of every entry whose scores are there, and the harmonic means."""
    missing = sum(_read(evidence.held, one) is None for cell in asked for one in (cell.single, cell.several))
    read = [_gain(evidence, one) for one in asked]
    found = [entry for entry in read if entry is not None]
    return Drawn([(sweep.name, gains_figure(sweep.title, found))] if found else [], missing, [])


def draw_epsilons(sweep: Sweep, evidence: Evidence) -> Drawn:
    """Figure 5: a row an attack, epsilon over the runs and over the canaries."""
    read = [(one, _read(evidence.held, one)) for one in sweep.audits()]
    found = [(one, scores) for one, scores in read if scores is not None]
    attacks = list(dict.fromkeys(one.series for one, _ in found))
    if not attacks:
        return Drawn([], len(read), [])
    with plt.rc_context(STYLE):
        size = (8, 2.6 * len(attacks) + 0.6)
        figure, rows = plt.subplots(len(attacks), 2, figsize=size, sharey="row", squeeze=False)
        for attack, (over_runs, over_canaries) in zip(attacks, rows, strict=True):
            own = [(one, scores) for one, scores in found if one.series == attack]
            _draw_over_runs(over_runs, own, evidence.levels)
            _draw_over_canaries(over_canaries, own, evidence.levels)
            over_runs.set(title=attack, ylabel="lower bound on epsilon")
        for axis, name in zip(rows[-1], ("runs n", "canaries K"), strict=True):
            axis.set_xlabel(name)
        figure.suptitle(f"{found[0][0].panel}; upper bound {_upper(found[0][0], evidence.levels):.2f}")
        _legend(figure, list(rows.ravel()))
    return Drawn([(sweep.name, figure)], len(read) - len(found), [])


def gains_figure(title: str, found: Sequence[Gain]) -> Figure:
    """Every entry's gains on a logarithmic axis, and their harmonic means."""
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(7, 0.3 * len(found) + 1.8))
        for method, shift in ((_ORDER_2, -0.15), (_ORDER_4, 0.15)):
            label, color, marker, _ = _LOOKS[method]
            known = [
                (place + shift, gain)
                for place, entry in enumerate(found)
                if (gain := entry.by_order.get(method)) is not None
            ]
            mean = f", mean {gains.harmonic_mean([gain for _, gain in known]):.2f}" if known else ""
            axis.plot([gain for _, gain in known], [place for place, _ in known], marker, color=color)
            axis.plot([], [], marker, color=color, label=label + mean)
        for place, entry in enumerate(found):
            if not any(entry.by_order.values()):
                axis.annotate("proves nothing", (1, place), color=FADED, va="center", ha="left", fontsize=8)
        axis.axvline(1, color=BLACK, lw=0.8, ls=":")
        axis.set(
            xscale="log",
            xlim=(1 / 16, 16),
            yticks=range(len(found)),
            yticklabels=[entry.label for entry in found],
        )
        axis.set(xlabel="times fewer runs than with one canary", title=title)
        axis.invert_yaxis()
        figure.legend(loc="outside lower center", ncols=2)
        return figure


def _gain(evidence: Evidence, asked: Comparison) -> Gain | None:
    """The entry, where both audits are there."""
    single, several = (_read(evidence.held, one) for one in (asked.single, asked.several))
    if single is None or several is None:
        return None
    runs, levels = gains.places(asked.single.runs), evidence.levels
    alone = gains.curve(_SINGLE, single, runs, levels)
    orders = (order for order, least in _LEAST_CANARIES.items() if asked.several.x >= least)
    label = f"{asked.single.panel}, {asked.single.series}"
    return Gain(label, {o: gains.gain(runs, alone, gains.curve(o, several, runs, levels)) for o in orders})


def _read(held: Holdings, asked: Audited) -> Scores | None:
    """The scores of an audit, where all are there."""
    return held.scores(identity(asked.setting), asked.runs)


def _draw_over_runs(axis: Axes, found: list[tuple[Audited, Scores]], levels: Levels) -> None:
    """One canary beside the number of canaries that is nearest to the root of the runs."""
    runs = gains.places(found[0][0].runs)
    single = [scores for one, scores in found if one.x == 1]
    if single:
        values = gains.curve(_SINGLE, single[0], runs, levels)
        axis.plot(runs, values, "x-", color=BLACK, label="one canary, order 1")
    several = [(one, scores) for one, scores in found if one.x > 1]
    if several:
        one, scores = min(several, key=lambda pair: abs(pair[0].x - runs[-1] ** 0.5))
        for method, (label, color, marker, dash) in _LOOKS.items():
            if one.x >= _LEAST_CANARIES.get(method, 1):
                values = gains.curve(method, scores, runs, levels)
                axis.plot(runs, values, marker + dash, color=color, ms=4, label=label)
        axis.set_title(f"K = {one.x:g}", loc="right", fontsize=8)
    axis.set(xscale="log", ylim=(0, None))


def _draw_over_canaries(axis: Axes, found: list[tuple[Audited, Scores]], levels: Levels) -> None:
    """All runs, any number of canaries."""
    for method, (_, color, marker, dash) in _LOOKS.items():
        own = [(one, scores) for one, scores in found if one.x >= _LEAST_CANARIES.get(method, 1)]
        values = [gains.curve(method, scores, [one.runs], levels)[0] for one, scores in own]
        axis.plot([one.x for one, _ in own], values, marker + dash, color=color, ms=4)
    axis.set_xscale("log", base=2)
    axis.set_title(f"n = {found[0][0].runs:,}", loc="right", fontsize=8)


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
