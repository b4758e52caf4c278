"""Table 1 and Figures 3, 4 and 5 of the LiDP paper, from what the store holds; nothing here simulates or
trains."""

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from audit.report.style import BLACK, BLUE, FADED, GREEN, ORANGE, PURPLE, STYLE, UPPER, VERMILION
from audit.settings.setting import identity
from audit.statistics.accounting import Composition, sampled_upper_bound
from audit.storage.store import Scores
from experiments.cells.cell import Audited
from experiments.lidp import cells, gains, tables
from experiments.lidp.cells import LIFTED, PlacedAudit
from experiments.lidp.gains import METHODS, ORDER_2, ORDER_4, Gain, Lifted
from experiments.lidp.tables import MechanismPoint
from experiments.sweeps.points import Evidence
from experiments.sweeps.sweep import Drawn, Sweep

Points = list[MechanismPoint]
_X = {"over n": r"runs n a world; $K = \sqrt{n}$", "over K": "canaries K", "over d": "dimension d"}
_LOOKS = {  # of methods: label, colour, marker, line
    "wilson_1": ("LiDP + order-1 Wilson", BLUE, "o", ":"),
    "wilson_2": ("LiDP + order-2 Wilson", VERMILION, "s", "-"),
    "wilson_4": ("LiDP + order-4 Wilson", PURPLE, "^", "--"),
    LIFTED: ("lifted (finite sample)", GREEN, "D", "-"),
}


def draw(sweep: Sweep, evidence: Evidence) -> Drawn:
    """A sweep's figure of the cells that are there, and its table."""
    drawings = {"lidp_table_1": _draw_gains, "lidp_figure_5": _draw_lifted}
    return drawings.get(sweep.name, _draw_mechanism)(sweep, evidence)


def _draw_mechanism(sweep: Sweep, evidence: Evidence) -> Drawn:
    """Figure 3: epsilon over n, K and d; Figure 4: gains, costs and dependence of bits (Errata L6)."""
    points = []
    for panel, audit in (one.request for one in sweep.cells if isinstance(one.request, PlacedAudit)):
        at_levels = audit._replace(**evidence.levels._asdict())
        if (found := cells.read(evidence.held, at_levels)) is not None:
            points.append(MechanismPoint(panel, at_levels, found))
    missing = len(sweep.cells) - len(points)
    if not points:
        return Drawn([], missing, [])
    if sweep.name == "lidp_figure_3":
        figure, table = epsilons_figure(points), tables.of_epsilons(sweep.name, points)
    else:
        figure, table = correlations_figure(points), tables.of_correlations(sweep.name, points)
    return Drawn([(sweep.name, figure)], missing, [], table)


def epsilons_figure(points: Points) -> Figure:
    """Figure 3."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, 3, figsize=(11, 4.2))
        for axis, (panel, name) in zip(axes, _X.items(), strict=True):
            own = [point for point in points if point.panel == panel]
            single = [point for point in own if panel == "over n" and point.audit.canaries == 1]
            for method, (label, color, marker, dash) in _LOOKS.items():
                look = {"color": color, "marker": marker, "ms": 4, "ls": dash, "label": label}
                _draw_line(axis, [one for one in own if one not in single], method, **look)
            _log_axis(axis, own)
            if panel == "over n":
                _draw_line(axis, single, "wilson_1", color=BLACK, marker="x", label="DP + Wilson (K = 1)")
                _draw_line(axis, single, LIFTED, color=ORANGE, marker="v", ls="--", label="lifted, K = 1")
                axis.set(ylabel="lower bound on epsilon")
            if own:
                exact, cap = own[0].limits()
                axis.axhline(exact, color=UPPER, ls=":", label="exact epsilon")
                axis.axhline(cap, color=FADED, ls="-.", label="limit of the paper's window")
                axis.set_title(f"epsilon = {own[0].audit.epsilon:g} by RDP, {exact:.2f} exact", fontsize=9)
            axis.set(xlabel=name)
        figure.suptitle("Audits of the Gaussian mechanism (LiDP paper, Figure 3)")
        _legend(figure, axes, 4)
        return figure


def correlations_figure(points: Points) -> Figure:
    """Figure 4."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, 3, figsize=(11, 4.2))
        _draw_gains_in_variance(axes[0], [point for point in points if point.panel == "over K"])
        for axis, panel in zip(axes[1:], ("over K", "over d"), strict=True):
            _draw_moments(axis, panel, [point for point in points if point.panel == panel])
        figure.suptitle("Bias, variance and correlation (LiDP paper, Figure 4)")
        return figure


def _draw_line(axis: Axes, points: Points, method: str, **look: Any) -> None:
    own = [point for point in points if method in point.found.epsilons]
    values = (point.found.epsilons[method] for point in own)
    errors = [float(np.std(one) / np.sqrt(len(one))) for one in values]
    axis.errorbar([one.x() for one in own], [one.mean(method) for one in own], errors, **look)


def _log_axis(axis: Axes, points: Points) -> None:
    if points:
        xs = [point.x() for point in points]
        axis.set_xscale("log")
        axis.set_xlim(min(xs) / 1.4, max(xs) * 1.4)


def _draw_gains_in_variance(axis: Axes, points: Points) -> None:
    """Figure 4, left: bias, and gain in variance, against one canary and order 1 (equation 10)."""
    single = [point for point in points if point.audit.canaries == 1]
    if single:
        many = [point for point in points if point.audit.canaries > 1]
        biases = [point.mean("wilson_1") - single[0].mean("wilson_1") for point in many]
        axis.plot([point.x() for point in many], biases, "o:", color=BLUE, label="bias")
        for method in ("wilson_2", "wilson_4"):
            label, color, marker, dash = _LOOKS[method]
            name = f"variance gain, {label.removeprefix('LiDP + ')}"
            _plot(axis, [(one.x(), one.gain(method)) for one in many], marker + dash, color=color, label=name)
    axis.axhline(0, color=FADED, lw=0.8)
    _log_axis(axis, points)
    axis.set(xlabel="canaries K", ylabel="change of epsilon")
    if single:
        axis.legend(fontsize=8, frameon=True, edgecolor="none")


def _draw_moments(axis: Axes, panel: str, points: Points) -> None:
    second = [(point.x(), point.found.second) for point in points]
    fourth = [(point.x(), point.found.fourth) for point in points]
    drawn = _plot(axis, second, "s-", color=VERMILION, label="|mu_2 - mu_1²|", ms=4)
    _plot(axis, fourth, "^--", color=PURPLE, label="|mu_4 - mu_2²|", ms=4)
    if drawn:
        slope = [(x, drawn[0][1] * drawn[0][0] / x) for x, _ in drawn]
        _plot(axis, slope, ":", color=BLACK, label="slope -1")
    _log_axis(axis, points)
    axis.set(yscale="log" if drawn else "linear", xlabel=_X[panel])
    axis.legend(fontsize=8)


def _plot(
    axis: Axes, pairs: Sequence[tuple[int, float | None]], form: str, **look: Any
) -> list[tuple[int, float]]:
    drawn = [(x, y) for x, y in pairs if y is not None]
    axis.plot([x for x, _ in drawn], [y for _, y in drawn], form, **look)
    return drawn


def _stored(sweep: Sweep, evidence: Evidence) -> list[tuple[Audited, Scores | None]]:
    return [(one, evidence.held.scores(identity(one.setting), one.runs)) for one in sweep.audits()]


def _draw_gains(sweep: Sweep, evidence: Evidence) -> Drawn:
    read, found = _stored(sweep, evidence), []
    missing = sum(scores is None for _, scores in read)
    for (audit, single), (_, several) in zip(read[::2], read[1::2], strict=True):
        if single is not None and several is not None:
            label = f"{audit.series}, {audit.panel}"
            found.append(gains.entry(label, single, several, evidence.levels))
    if not found:
        return Drawn([], missing, [])
    table = tables.of_gains(sweep.name, sweep.title, found)
    return Drawn([(sweep.name, gains_figure(sweep.title, found))], missing, [], table)


def gains_figure(title: str, found: Sequence[Gain]) -> Figure:
    """Every entry's gains on a logarithmic axis, and their harmonic means."""
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(7, 0.3 * len(found) + 1.8))
        for method, shift in ((ORDER_2, -0.15), (ORDER_4, 0.15)):
            color, marker, _ = _look(method)
            mean = gains.mean(found, method)
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


def _draw_lifted(sweep: Sweep, evidence: Evidence) -> Drawn:
    read = _stored(sweep, evidence)
    there = [(one, scores) for one, scores in read if scores is not None]
    if not there:
        return Drawn([], len(read), [])
    attacks: dict[str, dict[int, Scores]] = {}
    for one, scores in there:
        attacks.setdefault(one.series, {})[int(one.x)] = scores
    found = [gains.over_runs_and_canaries(*one, evidence.levels) for one in attacks.items()]
    first = there[0][0]
    sigma, insertions, rate = Composition(*first.setting.composition)
    upper = sampled_upper_bound(sigma, insertions, evidence.levels.delta, rate)
    title = f"{first.panel}, upper bound {upper:.2f}, n = {first.runs:,}"
    table = tables.of_lifted(sweep.name, title, found)
    return Drawn([(sweep.name, lifted_figure(title, found))], len(read) - len(there), [], table)


def lifted_figure(title: str, found: Sequence[Lifted]) -> Figure:
    """A row an attack."""
    with plt.rc_context(STYLE):
        size = (8, 2.4 * len(found) + 0.8)
        figure, rows = plt.subplots(len(found), 2, figsize=size, sharey="row", squeeze=False)
        for one, (over_runs, over_canaries) in zip(found, rows, strict=True):
            if one.single is not None:
                over_runs.plot(one.runs, one.single, "x-", color=BLACK, label="one canary, order 1")
            for method, values in one.several.items():
                color, marker, dash = _look(method)
                over_runs.plot(one.runs, values, marker + dash, color=color, ms=4, label=METHODS[method])
            if one.canaries is not None:
                over_runs.set_title(f"K = {one.canaries}", loc="right", fontsize=8)
            for method in METHODS:
                color, marker, dash = _look(method)
                own = {k: epsilons[method] for k, epsilons in one.over_canaries.items() if method in epsilons}
                over_canaries.plot(list(own), list(own.values()), marker + dash, color=color, ms=4)
            for axis, places in ((over_runs, one.runs[::2]), (over_canaries, list(one.over_canaries))):
                axis.set(xscale="log", xticks=places, xticklabels=list(map(str, places)))
                axis.minorticks_off()
            over_runs.set(ylabel=f"{one.attack}\nlower bound on epsilon", ylim=(0, None))
        rows[-1, 0].set_xlabel("runs")
        rows[-1, 1].set_xlabel("canaries K")
        figure.suptitle(title)
        _legend(figure, list(rows.ravel()), 5)
        return figure


def _look(method: str) -> tuple[str, str, str]:
    return _LOOKS[method.removeprefix("lidp_")][1:]


def _legend(figure: Figure, axes: Sequence[Axes], columns: int) -> None:
    labels: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            labels.setdefault(label, handle)
    figure.legend(list(labels.values()), list(labels), loc="outside lower center", ncols=columns, fontsize=8)
