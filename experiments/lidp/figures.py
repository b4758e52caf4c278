"""Table 1 and Figures 3, 4 and 5 of the LiDP paper, from what the store holds.

Figures and tables show the same records. Nothing here simulates or trains.
"""

from collections.abc import Sequence
from typing import Any

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
from audit.settings.setting import identity
from audit.storage.store import Scores
from audit.written import at_most
from experiments.cells.cell import Audited
from experiments.lidp import cells, gains, tables
from experiments.lidp.cells import LIFTED, PlacedAudit
from experiments.lidp.tables import HEADS
from experiments.sweeps.panels import add_legend
from experiments.sweeps.points import Evidence
from experiments.sweeps.records import Record
from experiments.sweeps.sweep import Drawn, Sweep

Records = Sequence[Record]
_X_LABELS = {
    "over n": r"runs n a world; $K = \sqrt{n}$",
    "over K": "canaries K",
    "over d": "dimension d",
}
# The lines that show a field of records: matplotlib's arguments.
_FIRST: dict[str, Any] = {"color": BLUE, "marker": "o", "ls": ":"}
_SECOND: dict[str, Any] = {"color": VERMILION, "marker": "s", "ls": "-"}
_FOURTH: dict[str, Any] = {"color": PURPLE, "marker": "^", "ls": "--"}
_LINES: dict[str, dict[str, Any]] = {
    "single": {"label": "K = 1, order 1", "color": BLACK, "marker": "x", "ls": "-"},
    "wilson_1": {"label": "order 1", **_FIRST},
    "wilson_2": {"label": "order 2", **_SECOND},
    "wilson_4": {"label": "order 4", **_FOURTH},
    LIFTED: {"label": "lifted", "color": GREEN, "marker": "D", "ls": "-"},
    "single_lifted": {"label": "K = 1, lifted", "color": ORANGE, "marker": "v", "ls": "--"},
    "bias": {"label": "bias", **_FIRST},
    "gain_2": {"label": "variance gain, order 2", **_SECOND},
    "gain_4": {"label": "variance gain, order 4", **_FOURTH},
    "second": {"label": "|mu_2 - mu_1²|", **_SECOND},
    "fourth": {"label": "|mu_4 - mu_2²|", **_FOURTH},
}


def draw(sweep: Sweep, evidence: Evidence) -> Drawn:
    """Draws a sweep's figure from those of its cells that the store holds, and makes its table."""
    read, draw_figure, make_table = _DRAWINGS[sweep.name]
    records, missing = read(sweep, evidence)
    figures = []
    table = None
    if records:
        table = make_table(sweep.name, sweep.title, records)
        if draw_figure is not None:
            with plt.rc_context(STYLE):
                figures.append((sweep.name, draw_figure(sweep.title, records)))
    return Drawn(figures, missing, rows=[], table=table)


def _read_findings(sweep: Sweep, evidence: Evidence) -> tuple[Records, int]:
    """Returns the records of the stored audits of the Gaussian mechanism, and how many are missing."""
    records = []
    for cell in sweep.cells:
        assert isinstance(cell.request, PlacedAudit)
        audit = cell.request.audit._replace(**evidence.levels._asdict())
        findings = cells.read(evidence.held, audit)
        if findings is not None:
            records.append(tables.describe(cell.request.panel, audit, findings))
    return records, len(sweep.cells) - len(records)


def _read_scores(sweep: Sweep, evidence: Evidence) -> list[tuple[Audited, Scores | None]]:
    """Returns a sweep's audits of trained models, each with its scores; None if these are not stored."""
    pairs = []
    for audit in sweep.audits():
        pairs.append((audit, evidence.held.scores(identity(audit.setting), audit.runs)))
    return pairs


def _read_gains(sweep: Sweep, evidence: Evidence) -> tuple[Records, int]:
    """Returns Table 1's entries, of which both audits are stored, and how many audits are missing."""
    pairs = _read_scores(sweep, evidence)
    records = []
    # Audits with a single canary are at even places of the sweep, each before its counterpart with several.
    for (audit, single), (_, several) in zip(pairs[::2], pairs[1::2], strict=True):
        if single is not None and several is not None:
            entry = f"{audit.series}, {audit.panel}"
            record = gains.compare_with_single(entry, single, several, evidence.levels)
            records.append({"heading": "", **record})
    return records, sum(scores is None for _, scores in pairs)


def _read_bounds(sweep: Sweep, evidence: Evidence) -> tuple[Records, int]:
    """Returns the bounds of Figure 5's attacks, and how many audits are missing."""
    stored = [(audit, scores) for audit, scores in _read_scores(sweep, evidence) if scores]
    by_attack: dict[str, dict[int, Scores]] = {}
    for audit, scores in stored:
        by_attack.setdefault(audit.series, {})[int(audit.x)] = scores
    records = []
    for attack, by_canaries in by_attack.items():
        # All audits of the figure share the model, the noise and the number of runs.
        first, _ = stored[0]
        composition = Composition(*first.setting.composition)
        upper = at_most(participant_upper_bound(composition, evidence.levels.delta), 2)
        heading = f"{first.panel}, upper bound {upper}, n = {first.runs:,}"
        for record in gains.compare_canaries(by_canaries, evidence.levels):
            records.append({"heading": heading, "attack": attack, **record})
    return records, len(sweep.cells) - len(stored)


def epsilons_figure(title: str, records: Records) -> Figure:
    """Draws Figure 3: epsilon over runs n, canaries K and dimension d, in a panel each.

    Each panel has the exact epsilon, and the largest that a single canary shows at the paper's thresholds.
    In the panel over n, audits with a single canary have separate lines.
    """
    figure, axes = plt.subplots(1, 3, figsize=(11, 4.2))
    for axis, (panel, x_label) in zip(axes, _X_LABELS.items(), strict=True):
        of_panel = _select(records, panel)
        single = []
        if panel == "over n":
            single = [record for record in of_panel if record["canaries"] == 1]
        for method in HEADS:
            _plot(axis, [record for record in of_panel if record not in single], method)
        _plot(axis, single, "wilson_1", "single")
        _plot(axis, single, LIFTED, "single_lifted")
        axis.set(xlabel=x_label, xscale="log")
        # All audits of a panel have the same noise and delta, and so the same limits.
        for record in of_panel[:1]:
            axis.axhline(record["exact"], color=UPPER, ls=":", label="exact epsilon")
            axis.axhline(
                record["window"], color=FADED, ls="-.", label="limit of the paper's window"
            )
            axis.set_title(f"epsilon = {record['epsilon']:g} by RDP, {record['exact']:.2f} exact")
    axes[0].set_ylabel("lower bound on epsilon")
    figure.suptitle(title)
    add_legend(figure, axes, 4)
    return figure


def correlations_figure(title: str, records: Records) -> Figure:
    """Draws Figure 4: gains over canaries K, and the dependence of detections over K and over dimension d.

    The bias is order 1's mean epsilon with K canaries less that with a single canary (equation 10). The gaps
    of moments have a line of slope -1 beside them: the paper's decay as 1/K and as 1/d (Errata L6).
    """
    for single in _select(records, "over K"):
        if single["canaries"] == 1:
            records = [
                {**record, "bias": record["wilson_1"] - single["wilson_1"]} for record in records
            ]
    figure, axes = plt.subplots(1, 3, figsize=(11, 4.2))
    several = [record for record in _select(records, "over K") if record["canaries"] > 1]
    for name in ("bias", "gain_2", "gain_4"):
        _plot(axes[0], several, name)
    axes[0].axhline(0, color=FADED, lw=0.8)
    axes[0].set(ylabel="change of epsilon", xlabel=_X_LABELS["over K"], xscale="log")
    for axis, panel in zip(axes[1:], ("over K", "over d"), strict=True):
        of_panel = _select(records, panel)
        _plot(axis, of_panel, "second")
        _plot(axis, of_panel, "fourth")
        present = [record for record in of_panel if record["second"] is not None]
        if present:
            xs = np.array([record["x"] for record in present])
            slope = present[0]["second"] * xs[0] / xs
            axis.plot(xs, slope, ":", color=BLACK, label="slope -1")
            axis.set_yscale("log")  # an empty logarithmic axis would have no range
        axis.set(xlabel=_X_LABELS[panel], xscale="log")
    for axis in axes:
        if axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize=8)
    figure.suptitle(title)
    return figure


def lifted_figure(title: str, records: Records) -> Figure:
    """Draws Figure 5: in a row for each attack, epsilon over runs next to epsilon over canaries K."""
    attacks = list(dict.fromkeys(record["attack"] for record in records))
    size = (8, 2.4 * len(attacks) + 0.8)
    figure, rows = plt.subplots(len(attacks), 2, figsize=size, sharey="row", squeeze=False)
    for attack, row in zip(attacks, rows, strict=True):
        of_attack = [record for record in records if record["attack"] == attack]
        # Every second number of runs has a tick, which leaves room for the labels.
        for axis, panel, step in zip(row, ("over n", "over K"), (2, 1), strict=True):
            of_panel = _select(of_attack, panel)
            for name in ("single", *HEADS):
                _plot(axis, of_panel, name)
            ticks = [record["x"] for record in of_panel[::step]]
            axis.set(xscale="log", xticks=ticks, xticklabels=ticks)
            axis.minorticks_off()
        row[0].set(ylabel=f"{attack}\nlower bound on epsilon", ylim=(0, None))
        row[0].set_title(f"K = {of_attack[-1]['canaries']}", loc="right", fontsize=8)
    rows[-1, 0].set_xlabel("runs")
    rows[-1, 1].set_xlabel("canaries K")
    figure.suptitle(records[0]["heading"])
    add_legend(figure, rows.ravel(), 5)
    return figure


def _select(records: Records, panel: str) -> list[Record]:
    """Returns a panel's records."""
    return [record for record in records if record["panel"] == panel]


def _find_values(records: Records, name: str) -> Any:
    """Returns a field of each record, NaN for records without it."""
    return np.array([record.get(name) for record in records], float)


def _plot(axis: Axes, records: Records, name: str, line: str | None = None) -> None:
    """Plots a field of the records over x, with its standard error if they have it, if any has the field.

    `line` is a key of _LINES, by default the field's name.
    """
    values = _find_values(records, name)
    if np.isfinite(values).any():
        errors = _find_values(records, f"{name}_error")
        bars = errors if np.isfinite(errors).any() else None
        xs = [record["x"] for record in records]
        axis.errorbar(xs, values, bars, ms=4, **_LINES[line or name])


# The functions that read a sweep's records, that draw them, and that make their table. Table 1 is no figure.
_DRAWINGS: dict[str, tuple[Any, Any, Any]] = {
    "lidp_figure_3": (_read_findings, epsilons_figure, tables.make_epsilons_table),
    "lidp_figure_4": (_read_findings, correlations_figure, tables.make_correlations_table),
    "lidp_table_1": (_read_gains, None, tables.make_gains_table),
    "lidp_figure_5": (_read_bounds, lifted_figure, tables.make_lifted_table),
}
