"""Table 1 and Figures 3, 4 and 5 of the LiDP paper, from what the store holds.

Nothing here simulates or trains.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from audit.claims.accounting import Composition, participant_upper_bound
from audit.report.style import (
    BLACK,
    BLUE,
    FADED,
    GREEN,
    ORANGE,
    PURPLE,
    STYLE,
    UPPER,
    VERMILION,
)
from audit.rounding import at_most
from audit.settings.setting import identity
from audit.storage.store import Scores
from experiments.cells.cell import Audited
from experiments.lidp import cells, gains, tables
from experiments.lidp.cells import LIFTED, PlacedAudit
from experiments.lidp.gains import METHODS, ORDER_2, ORDER_4, Gain, Lifted
from experiments.lidp.tables import MechanismPoint
from experiments.sweeps.panels import add_legend
from experiments.sweeps.points import Evidence
from experiments.sweeps.sweep import Drawn, Sweep


class _Look(NamedTuple):
    """A method's label, and the color, marker, dashes and marker size of its lines."""

    label: str
    color: str
    marker: str
    dash: str
    size: int = 4

    def style(self) -> dict[str, Any]:
        """Returns the keyword arguments of matplotlib's `plot` for the method's lines."""
        return {"color": self.color, "marker": self.marker, "ls": self.dash, "ms": self.size}


Points = list[MechanismPoint]
_X_LABELS = {
    "over n": r"runs n a world; $K = \sqrt{n}$",
    "over K": "canaries K",
    "over d": "dimension d",
}
_LOOKS = {
    "wilson_1": _Look("LiDP + order-1 Wilson", BLUE, "o", ":"),
    "wilson_2": _Look("LiDP + order-2 Wilson", VERMILION, "s", "-"),
    "wilson_4": _Look("LiDP + order-4 Wilson", PURPLE, "^", "--"),
    LIFTED: _Look("lifted (finite sample)", GREEN, "D", "-"),
}
_SINGLE_LOOKS = {  # of one canary, in the panel over n
    "wilson_1": _Look("DP + Wilson (K = 1)", BLACK, "x", "-", 6),
    LIFTED: _Look("lifted, K = 1", ORANGE, "v", "--", 6),
}


def draw(sweep: Sweep, evidence: Evidence) -> Drawn:
    """Draws a sweep's figure from those of its cells that the store holds, and makes its table.

    Args:
      sweep: The sweep of Table 1 (lidp_table_1) or of a figure (lidp_figure_3, lidp_figure_4, lidp_figure_5).
      evidence: What the store holds, and the delta and confidence of bounds.
    """
    match sweep.name:
        case "lidp_table_1":
            return _draw_gains(sweep, evidence)
        case "lidp_figure_5":
            return _draw_lifted(sweep, evidence)
    # Figures 3 and 4 audit the Gaussian mechanism; the others audit trained models.
    return _draw_mechanism(sweep, evidence)


def _draw_mechanism(sweep: Sweep, evidence: Evidence) -> Drawn:
    """Draws Figure 3 or Figure 4, audits of the Gaussian mechanism; the sweep's name says which.

    Figure 3 shows epsilon over n, K and d. Figure 4 shows bias, gain in variance, and how dependent the
    detections of canaries are (Errata L6).
    """
    points = []
    for cell in sweep.cells:
        if isinstance(cell.request, PlacedAudit):
            panel, audit = cell.request
            # Findings are stored by setting, which includes delta and confidence.
            at_levels = audit._replace(**evidence.levels._asdict())
            findings = cells.read(evidence.held, at_levels)
            if findings is not None:
                points.append(MechanismPoint(panel, at_levels, findings))
    missing = len(sweep.cells) - len(points)
    if not points:
        return Drawn(figures=[], missing=missing, rows=[])

    if sweep.name == "lidp_figure_3":
        figure = epsilons_figure(points)
        table = tables.make_epsilons_table(sweep.name, points)
    else:
        figure = correlations_figure(points)
        table = tables.make_correlations_table(sweep.name, points)
    return Drawn([(sweep.name, figure)], missing, rows=[], table=table)


def epsilons_figure(points: Points) -> Figure:
    """Draws Figure 3: epsilon over runs n, canaries K and dimension d, in a panel each."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, 3, figsize=(11, 4.2))
        for axis, panel in zip(axes, _X_LABELS, strict=True):
            _draw_epsilons(axis, panel, [point for point in points if point.panel == panel])
        figure.suptitle("Audits of the Gaussian mechanism (LiDP paper, Figure 3)")
        add_legend(figure, axes, 4)
        return figure


def _draw_epsilons(axis: Axes, panel: str, points: Points) -> None:
    """Draws a panel of Figure 3: methods' epsilons, the exact epsilon, and the limit of the paper's window.

    The paper looks for thresholds in a window of scores; its limit is the largest epsilon that a single
    canary shows there. In the panel over n, audits with a single canary have separate lines.

    Args:
      axis: The panel's axes.
      panel: The panel's name, a key of _X_LABELS.
      points: The panel's audits.
    """
    single = []
    if panel == "over n":
        single = [point for point in points if point.audit.canaries == 1]
        axis.set(ylabel="lower bound on epsilon")  # of all panels; this panel is the leftmost
    several = [point for point in points if point not in single]
    for method, look in _LOOKS.items():
        _draw_means(axis, several, method, look)
    _set_log_axis(axis, points)
    if panel == "over n":
        for method, look in _SINGLE_LOOKS.items():
            _draw_means(axis, single, method, look)
    if points:
        # All audits of a panel have the same noise and delta, and so the same limits.
        exact, window_limit = points[0].limits()
        axis.axhline(exact, color=UPPER, ls=":", label="exact epsilon")
        axis.axhline(window_limit, color=FADED, ls="-.", label="limit of the paper's window")
        title = f"epsilon = {points[0].audit.epsilon:g} by RDP, {exact:.2f} exact"
        axis.set_title(title, fontsize=9)
    axis.set(xlabel=_X_LABELS[panel])


def correlations_figure(points: Points) -> Figure:
    """Draws Figure 4: gains over canaries K, and the dependence of detections over K and over dimension d."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, 3, figsize=(11, 4.2))
        over_canaries = [point for point in points if point.panel == "over K"]
        over_dimension = [point for point in points if point.panel == "over d"]
        _draw_gains_in_variance(axes[0], over_canaries)
        _draw_moments(axes[1], "over K", over_canaries)
        _draw_moments(axes[2], "over d", over_dimension)
        figure.suptitle("Bias, variance and correlation (LiDP paper, Figure 4)")
        return figure


def _draw_means(axis: Axes, points: Points, method: str, look: _Look) -> None:
    """Draws a method's mean epsilon over seeds, against x, with the means' standard errors as bars.

    Args:
      axis: The panel.
      points: The audits; those without the method are left out.
      method: The method, a key of _LOOKS.
      look: The label, color, marker and dashes of the method's line.
    """
    with_method = [point for point in points if method in point.findings.epsilons]
    xs = [point.x() for point in with_method]
    means = [point.mean(method) for point in with_method]
    errors = []
    for point in with_method:
        epsilons = point.findings.epsilons[method]
        errors.append(float(np.std(epsilons) / np.sqrt(len(epsilons))))
    axis.errorbar(xs, means, errors, label=look.label, **look.style())


def _set_log_axis(axis: Axes, points: Points) -> None:
    """Makes x logarithmic, with room by a factor of 1.4 on either side; does nothing without points."""
    if points:
        xs = [point.x() for point in points]
        axis.set_xscale("log")
        axis.set_xlim(min(xs) / 1.4, max(xs) * 1.4)


def _draw_gains_in_variance(axis: Axes, points: Points) -> None:
    """Draws the left panel of Figure 4: bias and gain in variance over canaries K (equation 10).

    The bias is order 1's mean epsilon with K canaries minus its mean epsilon with a single canary. The gain
    is the mean epsilon of order 2 or 4 minus that of order 1, with the same number of canaries. Nothing is
    compared unless an audit with a single canary is stored.
    """
    single = [point for point in points if point.audit.canaries == 1]
    if single:
        many = [point for point in points if point.audit.canaries > 1]
        xs = [point.x() for point in many]
        biases = [point.mean("wilson_1") - single[0].mean("wilson_1") for point in many]
        axis.plot(xs, biases, "o:", color=BLUE, label="bias")
        for method in ("wilson_2", "wilson_4"):
            look = _LOOKS[method]._replace(size=6)
            # A gain is None where the audit has too few canaries for the order.
            label = f"variance gain, {look.label.removeprefix('LiDP + ')}"
            pairs = [(point.x(), point.gain(method)) for point in many]
            _plot_present(axis, pairs, label=label, **look.style())
    axis.axhline(0, color=FADED, lw=0.8)
    _set_log_axis(axis, points)
    axis.set(xlabel="canaries K", ylabel="change of epsilon")
    if single:
        axis.legend(fontsize=8, frameon=True, edgecolor="none")


def _draw_moments(axis: Axes, panel: str, points: Points) -> None:
    """Draws how dependent the detections of a run's canaries are, over K or d, beside a slope of -1.

    mu_m is the probability that m canaries of a run are all detected. If detections were independent,
    mu_2 - mu_1^2 and mu_4 - mu_2^2 would be 0. The paper says that both decay roughly as 1/K and as 1/d,
    which is the slope of -1 on logarithmic axes.

    Args:
      axis: The panel's axes.
      panel: The panel's name, "over K" or "over d".
      points: The panel's audits.
    """
    second = [(point.x(), point.findings.second) for point in points]
    fourth = [(point.x(), point.findings.fourth) for point in points]
    drawn = _plot_present(axis, second, label="|mu_2 - mu_1²|", **_LOOKS["wilson_2"].style())
    _plot_present(axis, fourth, label="|mu_4 - mu_2²|", **_LOOKS["wilson_4"].style())
    if drawn:
        first_x, first_y = drawn[0]  # the slope passes through the first point of mu_2
        slope = [first_y * first_x / x for x, _ in drawn]
        axis.plot([x for x, _ in drawn], slope, ":", color=BLACK, label="slope -1")
    _set_log_axis(axis, points)
    scale = "log" if drawn else "linear"  # an empty logarithmic axis would have no range
    axis.set(yscale=scale, xlabel=_X_LABELS[panel])
    axis.legend(fontsize=8)


def _plot_present(
    axis: Axes, pairs: Iterable[tuple[int, float | None]], **look: Any
) -> list[tuple[int, float]]:
    """Plots the pairs (x, y) whose y is not None, and returns them.

    Args:
      axis: The panel.
      pairs: The pairs.
      **look: Keyword arguments of matplotlib's `plot`.
    """
    present = [(x, y) for x, y in pairs if y is not None]
    axis.plot([x for x, _ in present], [y for _, y in present], **look)
    return present


def _read_scores(sweep: Sweep, evidence: Evidence) -> list[tuple[Audited, Scores | None]]:
    """Returns a sweep's audits of trained models, each with its scores; None where these are not stored."""
    pairs = []
    for audit in sweep.audits():
        scores = evidence.held.scores(identity(audit.setting), audit.runs)
        pairs.append((audit, scores))
    return pairs


def _draw_gains(sweep: Sweep, evidence: Evidence) -> Drawn:
    """Draws Table 1: how many times fewer runs several canaries need than a single canary."""
    pairs = _read_scores(sweep, evidence)
    missing = sum(scores is None for _, scores in pairs)
    entries = []
    # Audits with a single canary are at even places of the sweep, each before its counterpart with several.
    for (audit, single), (_, several) in zip(pairs[::2], pairs[1::2], strict=True):
        if single is not None and several is not None:
            label = f"{audit.series}, {audit.panel}"
            entry = gains.compare_with_single(label, single, several, evidence.levels)
            entries.append(entry)
    if not entries:
        return Drawn(figures=[], missing=missing, rows=[])

    table = tables.make_gains_table(sweep.name, sweep.title, entries)
    figure = gains_figure(sweep.title, entries)
    return Drawn([(sweep.name, figure)], missing, rows=[], table=table)


def gains_figure(title: str, entries: Sequence[Gain]) -> Figure:
    """Draws how many times fewer runs several canaries need than a single canary, in a row for each entry.

    The gains by orders 2 and 4 of Wilson's intervals stand on a logarithmic axis. The legend gives each
    order's harmonic mean.
    """
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(7, 0.3 * len(entries) + 1.8))
        # Shifted, so that the two marks of a row do not overlap.
        for method, shift in ((ORDER_2, -0.15), (ORDER_4, 0.15)):
            look = _get_look(method)
            for place, entry in enumerate(entries):
                gain = entry.by_order.get(method)
                if gain is not None:
                    axis.plot(gain, place + shift, look.marker, color=look.color)
            # A line without points gives the method an entry in the legend.
            label = METHODS[method]
            mean = gains.compute_mean(entries, method)
            if mean is not None:
                label += f", mean {mean:.2f}"
            axis.plot([], [], look.marker, color=look.color, label=label)

        for place, entry in enumerate(entries):
            # A gain is None where a curve of epsilons is 0 throughout.
            if not any(entry.by_order.values()):
                axis.annotate("proves nothing", (1.1, place), color=FADED, va="center", fontsize=8)
        axis.axvline(1, color=BLACK, lw=0.8, ls=":")
        labels = [entry.label for entry in entries]
        axis.set(yticks=range(len(entries)), yticklabels=labels, title=title)
        axis.set(xscale="log", xlim=(1 / 16, 16), xlabel="times fewer runs than with one canary")
        axis.invert_yaxis()
        figure.legend(loc="outside lower center", ncols=2)
        return figure


def _draw_lifted(sweep: Sweep, evidence: Evidence) -> Drawn:
    """Draws Figure 5 from the stored audits: each attack's bounds over runs and over canaries."""
    pairs = _read_scores(sweep, evidence)
    stored_audits = []
    # Scores by the attack's name, then by the number of canaries.
    by_attack: dict[str, dict[int, Scores]] = {}
    for audit, scores in pairs:
        if scores is not None:
            stored_audits.append(audit)
            canaries = int(audit.x)
            by_attack.setdefault(audit.series, {})[canaries] = scores
    missing = len(pairs) - len(stored_audits)
    if not stored_audits:
        return Drawn(figures=[], missing=missing, rows=[])

    attacks = []
    for attack, by_canaries in by_attack.items():
        attacks.append(gains.compare_canaries(attack, by_canaries, evidence.levels))
    # All audits of the figure share the model, the noise and the number of runs.
    first = stored_audits[0]
    composition = Composition(*first.setting.composition)
    upper = participant_upper_bound(composition, evidence.levels.delta)
    title = f"{first.panel}, upper bound {at_most(upper, 2)}, n = {first.runs:,}"
    table = tables.make_lifted_table(sweep.name, title, attacks)
    return Drawn([(sweep.name, lifted_figure(title, attacks))], missing, rows=[], table=table)


def lifted_figure(title: str, attacks: Sequence[Lifted]) -> Figure:
    """Draws Figure 5: in a row for each attack, epsilon over runs beside epsilon over canaries K."""
    with plt.rc_context(STYLE):
        size = (8, 2.4 * len(attacks) + 0.8)
        figure, rows = plt.subplots(len(attacks), 2, figsize=size, sharey="row", squeeze=False)
        for attack, (over_runs, over_canaries) in zip(attacks, rows, strict=True):
            _draw_over_runs(over_runs, attack)
            _draw_over_canaries(over_canaries, attack)
            # Every second number of runs has a tick, which leaves room for the labels.
            _set_ticks(over_runs, attack.runs[::2])
            _set_ticks(over_canaries, list(attack.over_canaries))
            over_runs.set(ylabel=f"{attack.attack}\nlower bound on epsilon", ylim=(0, None))
        rows[-1, 0].set_xlabel("runs")
        rows[-1, 1].set_xlabel("canaries K")
        figure.suptitle(title)
        add_legend(figure, rows.ravel(), 5)
        return figure


def _draw_over_runs(axis: Axes, attack: Lifted) -> None:
    """Draws an attack's bounds over the number of runs, with a single canary and with several.

    The panel's title gives K, the number of the several canaries in each run.
    """
    if attack.single is not None:
        axis.plot(attack.runs, attack.single, "x-", color=BLACK, label="one canary, order 1")
    for method, epsilons in attack.several.items():
        look = _get_look(method).style()
        axis.plot(attack.runs, epsilons, label=METHODS[method], **look)
    if attack.canaries is not None:
        axis.set_title(f"K = {attack.canaries}", loc="right", fontsize=8)


def _draw_over_canaries(axis: Axes, attack: Lifted) -> None:
    """Draws an attack's bounds over the number of canaries."""
    for method in METHODS:
        pairs = [(k, by_method.get(method)) for k, by_method in attack.over_canaries.items()]
        _plot_present(axis, pairs, **_get_look(method).style())


def _set_ticks(axis: Axes, places: Sequence[int]) -> None:
    """Makes x logarithmic, with ticks at these places alone."""
    axis.set(xscale="log", xticks=places, xticklabels=[str(place) for place in places])
    axis.minorticks_off()


def _get_look(method: str) -> _Look:
    """Returns the look of a method of `gains`; some of their names have a prefix that _LOOKS does not."""
    return _LOOKS[method.removeprefix("lidp_")]
