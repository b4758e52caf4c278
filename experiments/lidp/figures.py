"""Figures 3 and 4 of the LiDP paper, from what the store holds; nothing here simulates."""

from collections.abc import Callable, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from audit.report.style import BLACK, BLUE, FADED, GREEN, ORANGE, PURPLE, STYLE, UPPER, VERMILION
from audit.statistics import conversions
from audit.storage.index import Holdings
from experiments.lidp import audits, protocol, table
from experiments.lidp.audits import LIFTED, MechanismAudit, Panels
from experiments.lidp.table import MechanismPoint
from experiments.sweeps.sweep import Drawn

_SINGLE = "DP + Wilson (K = 1)"
_LOOKS = {  # of methods: label, colour, marker, line
    "wilson_1": ("LiDP + order-1 Wilson", BLUE, "o", ":"),
    "wilson_2": ("LiDP + order-2 Wilson", VERMILION, "s", "-"),
    "wilson_4": ("LiDP + order-4 Wilson", PURPLE, "^", "--"),
    LIFTED: ("lifted (finite sample)", GREEN, "D", "-"),
}


def draw_epsilons(name: str, held: Holdings, asked: Panels) -> Drawn:
    """Figure 3: epsilon over n, K and d."""
    over_n, over_k, over_d = (_there(held, panel) for panel in asked)
    missing = sum(map(len, asked)) - len(over_n) - len(over_k) - len(over_d)
    panels = [("over n", over_n), ("over K", over_k), ("over d", over_d)]
    if not any(points for _, points in panels):
        return Drawn([], missing, [])
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, 3, figsize=(11, 4.2))
        _draw_over_n(axes[0], over_n)
        _draw_epsilons(axes[1], over_k, "canaries K", lambda one: one.canaries)
        _draw_epsilons(axes[2], over_d, "dimension d", lambda one: one.dimension)
        figure.suptitle("Audits of the Gaussian mechanism (LiDP paper, Figure 3)")
        _legend(figure, axes)
    own = table.epsilons(name, "audits of the Gaussian mechanism", panels)
    return Drawn([(name, figure)], missing, [], own)


def draw_correlations(name: str, held: Holdings, asked: Panels) -> Drawn:
    """Figure 4: what canaries cost and gain, and how dependent their bits are (Errata L6)."""
    over_k, over_d = _there(held, asked.over_k), _there(held, asked.over_d)
    missing = len(asked.over_k) + len(asked.over_d) - len(over_k) - len(over_d)
    if not over_k and not over_d:
        return Drawn([], missing, [])
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, 3, figsize=(11, 4.2))
        _draw_gains(axes[0], over_k)
        _draw_moments(axes[1], over_k, "canaries K", lambda one: one.canaries)
        _draw_moments(axes[2], over_d, "dimension d", lambda one: one.dimension)
        figure.suptitle("Bias, variance and correlation (LiDP paper, Figure 4)")
    own = table.correlations(name, "bias, variance and correlation", [("over K", over_k), ("over d", over_d)])
    return Drawn([(name, figure)], missing, [], own)


def _there(held: Holdings, asked: Sequence[MechanismAudit]) -> list[MechanismPoint]:
    """The audits whose findings are stored."""
    found = [(one, audits.read(held, one)) for one in asked]
    return [MechanismPoint(one, findings) for one, findings in found if findings is not None]


def _draw_over_n(axis: Axes, points: list[MechanismPoint]) -> None:
    """Figure 3, left: one canary against sqrt(n)."""
    single = [point for point in points if point.asked.canaries == 1]
    _draw_lines(axis, [p for p in points if p.asked.canaries > 1], lambda one: one.runs)
    _log_axis(axis, [point.asked.runs for point in points])
    xs = [point.asked.runs for point in single]
    values = [point.found.epsilons["wilson_1"] for point in single]
    axis.errorbar(xs, *_mean_and_error(values), color=BLACK, marker="x", ls="-", label=_SINGLE)
    values = [point.found.epsilons[LIFTED] for point in single]
    axis.errorbar(xs, *_mean_and_error(values), color=ORANGE, marker="v", ls="--", label="lifted, K = 1")
    _draw_limits(axis, points)
    axis.set(xlabel=r"runs n a world; $K = \sqrt{n}$", ylabel="lower bound on epsilon")


def _draw_epsilons(
    axis: Axes, points: list[MechanismPoint], name: str, x: Callable[[MechanismAudit], int]
) -> None:
    """Figure 3, middle and right."""
    _draw_lines(axis, points, x)
    _draw_limits(axis, points)
    axis.set(xlabel=name)


def _draw_lines(axis: Axes, points: list[MechanismPoint], x: Callable[[MechanismAudit], int]) -> None:
    """A line a method, with standard errors over seeds."""
    for method, (label, color, marker, dash) in _LOOKS.items():
        own = [point for point in points if method in point.found.epsilons]
        values = [point.found.epsilons[method] for point in own]
        xs = [x(point.asked) for point in own]
        ends = _mean_and_error(values)
        axis.errorbar(xs, *ends, color=color, marker=marker, ms=4, ls=dash, label=label)
    _log_axis(axis, [x(point.asked) for point in points])


def _log_axis(axis: Axes, xs: Sequence[int]) -> None:
    """A logarithmic x axis with some room at its ends, be there one x or many."""
    if xs:
        axis.set_xscale("log")
        axis.set_xlim(min(xs) / 1.4, max(xs) * 1.4)


def _mean_and_error(values: list[list[float]]) -> tuple[list[float], list[float]]:
    """Means and standard errors."""
    means = [float(np.mean(one)) for one in values]
    return means, [float(np.std(one) / np.sqrt(len(one))) for one in values]


def _draw_limits(axis: Axes, points: list[MechanismPoint]) -> None:
    """The exact epsilon, and what the paper's window of thresholds allows."""
    if not points:
        return
    asked = points[0].asked
    one = asked._replace(canaries=1).mechanism()
    exact = conversions.epsilon_from_mu(1 / one.sigma, asked.delta)
    axis.axhline(exact, color=UPPER, ls=":", label="exact epsilon")
    axis.axhline(protocol.limit(one, asked.delta), color=FADED, ls="-.", label="limit of the paper's window")
    axis.set_title(f"epsilon = {asked.epsilon:g} by RDP, {exact:.2f} exact", fontsize=9)


def _draw_gains(axis: Axes, points: list[MechanismPoint]) -> None:
    """Figure 4, left: bias, and gain in variance, against one canary and order 1 (equation 10)."""
    single = [point for point in points if point.asked.canaries == 1]
    if single:
        alone = float(np.mean(single[0].found.epsilons["wilson_1"]))
        many = [point for point in points if point.asked.canaries > 1]
        first = {p.asked.canaries: float(np.mean(p.found.epsilons["wilson_1"])) for p in many}
        axis.plot(list(first), [one - alone for one in first.values()], "o:", color=BLUE, label="bias")
        for method in ("wilson_2", "wilson_4"):
            own = [p for p in many if method in p.found.epsilons]
            gains = [float(np.mean(p.found.epsilons[method])) - first[p.asked.canaries] for p in own]
            label, color, marker, dash = _LOOKS[method]
            xs = [p.asked.canaries for p in own]
            name = f"variance gain, {label.removeprefix('LiDP + ')}"
            axis.plot(xs, gains, marker + dash, color=color, label=name)
    axis.axhline(0, color=FADED, lw=0.8)
    _log_axis(axis, [point.asked.canaries for point in points])
    axis.set(xlabel="canaries K", ylabel="change of epsilon")
    if single:
        axis.legend(fontsize=8, frameon=True, edgecolor="none")


def _draw_moments(
    axis: Axes, points: list[MechanismPoint], name: str, x: Callable[[MechanismAudit], int]
) -> None:
    """Figure 4, middle and right: correlations of the inserted canaries' bits."""
    second = [(x(p.asked), p.found.second) for p in points if p.found.second is not None]
    fourth = [(x(p.asked), p.found.fourth) for p in points if p.found.fourth is not None]
    for values, label, color, style in (
        (second, "|mu_2 - mu_1²|", VERMILION, "s-"),
        (fourth, "|mu_4 - mu_2²|", PURPLE, "^--"),
    ):
        xs, heights = [place for place, _ in values], [height for _, height in values]
        axis.plot(xs, heights, style, color=color, label=label, ms=4)
    if second:
        (first, height), places = second[0], [place for place, _ in second]
        axis.plot(places, [height * first / place for place in places], color=BLACK, ls=":", label="slope -1")
    _log_axis(axis, [x(point.asked) for point in points])
    axis.set(yscale="log" if second else "linear", xlabel=name)
    axis.legend(fontsize=8)


def _legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend below, of all that any panel has."""
    labels: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            labels.setdefault(label, handle)
    figure.legend(list(labels.values()), list(labels), loc="outside lower center", ncols=4, fontsize=8)
