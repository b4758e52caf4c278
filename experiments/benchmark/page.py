"""The benchmark's figure and page, and the files of a run."""

import json
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from audit.machine import cores
from audit.report import page, style
from audit.report.style import BLUE, GREEN, STYLE, VERMILION
from audit.storage import files
from experiments.benchmark.contract import DESIGNS, OURS, PAPER, PEER
from experiments.benchmark.measured import MeasuredCell
from experiments.benchmark.mechanisms import MECHANISMS
from experiments.benchmark.registry import ESTIMATORS
from experiments.benchmark.shown import LEVEL, MeasuredEstimator, details, rows, summary

_COLORS = {OURS: BLUE, PEER: VERMILION, PAPER: GREEN}
_TITLE = "How often an estimator claims too much, and how much of the truth it proves"
_MOST_SHARE = 1.3  # of the truth; more is drawn here


def write(folder: Path, found: Sequence[MeasuredCell]) -> list[Path]:
    """Writes the table, the figure, the page and all cells as CSV and JSON; the paths."""
    cells = details(found)
    whole = {"machine": machine(), "cells": [one._asdict() for one in found]}
    contents = {
        "benchmark.csv": cells.csv(),
        "benchmark.json": (json.dumps(whole, indent=1) + "\n").encode(),
        "benchmark.txt": (summary(found).text() + "\n").encode(),
        "benchmark.png": style.png(figure(rows(found))),
        "benchmark.html": html(found),
    }
    return [files.write_whole(folder / name, content) for name, content in contents.items()]


def machine() -> dict[str, str]:
    """What a run was made on and with."""
    libraries = {name: metadata.version(name) for name in ("numpy", "scipy")}
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": str(cores()),
    } | libraries


def figure(found: Sequence[MeasuredEstimator]) -> Figure:
    """A panel a design; points filled where the estimator says a level."""
    shown = [row for row in found if row.worst is not None]
    designs = [design for design in DESIGNS if any(row.design == design for row in shown)]
    down, across = (len(designs) + 1) // 2, min(len(designs), 2)
    with plt.rc_context(STYLE):
        drawn, axes = plt.subplots(down, across, figsize=(9, 4.75 * down), squeeze=False)
        for axis, design in zip(axes.flat, designs, strict=False):
            _panel(axis, design, [row for row in shown if row.design == design])
        for axis in axes.flat[len(designs) :]:
            axis.set_axis_off()
        for kind, color in _COLORS.items():
            axes.flat[0].plot([], [], "o", color=color, label={OURS: "ours"}.get(kind, f"a {kind}'s"))
        axes.flat[0].plot([], [], "o", color="0.4", mfc="white", label="says no level")
        drawn.suptitle(_TITLE, fontsize=11)
        drawn.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
        return drawn


def _panel(axis: Axes, design: str, found: list[MeasuredEstimator]) -> None:
    axis.set_yscale("function", functions=(lambda y: np.sqrt(np.maximum(y, 0)), np.square))
    axis.axhline(LEVEL, color="0.3", lw=1, ls=(0, (4, 2)))
    axis.text(1.0, LEVEL, f" {LEVEL:.0%}", va="center", fontsize=8, transform=axis.get_yaxis_transform())
    points = [(min(row.proven or 0.0, _MOST_SHARE), row.worst or 0.0) for row in found]
    for row, (x, y) in zip(found, points, strict=True):
        marker, color = "o" if x < _MOST_SHARE else ">", _COLORS[row.kind]
        axis.plot(x, y, marker, color=color, mfc=color if row.level else "white", clip_on=False, zorder=3)
    _number(axis, points)
    axis.set_title(design, pad=20)
    axis.set(xlim=(0, _MOST_SHARE), ylim=(0, 1), yticks=(0, 0.01, 0.05, 0.2, 0.5, 1))
    axis.set_yticklabels(["0", "1%", "5%", "20%", "50%", "100%"])
    axis.set(xlabel="mean share of the truth that it proves", ylabel="claims too much, in its worst cell")
    names = "\n".join(f"{place}  {row.estimator}" for place, row in enumerate(found, 1))
    axis.text(0.0, -0.2, names, va="top", fontsize=7, transform=axis.transAxes)


def _number(axis: Axes, points: Sequence[tuple[float, float]]) -> None:
    """Numbers above points: those that nearly coincide share a label, neighbours' stand at other heights."""
    groups: dict[tuple[float, float], list[int]] = {}
    for place, point in sorted(enumerate(points, 1), key=lambda numbered: numbered[1]):
        coincide = (at for at in groups if _near(at, point, 0.04))
        groups.setdefault(next(coincide, point), []).append(place)
    heights: dict[tuple[float, float], int] = {}
    for at, places in groups.items():
        taken = {height for other, height in heights.items() if _near(at, other, 0.13)}
        heights[at] = min(set(range(len(groups))) - taken)
        offset, text = (0, 5 + 8 * heights[at]), ", ".join(map(str, places))
        axis.annotate(text, at, offset, textcoords="offset points", ha="center", fontsize=7)


def _near(one: tuple[float, float], other: tuple[float, float], across: float) -> bool:
    return abs(one[0] - other[0]) < across and abs(one[1] ** 0.5 - other[1] ** 0.5) < 0.07


def html(found: Sequence[MeasuredCell]) -> bytes:
    """The page: figure, table, what each estimator and mechanism is, and every cell."""
    table, cells = summary(found), details(found)
    header = [head.replace("\n", " ").strip() for head in table.header()]
    used = dict.fromkeys(one.estimator for one in found)
    known = [ESTIMATORS[name] for name in used]
    versions = {one.estimator: one.version for one in found}
    about = [[one.name, f"{one.source} {versions[one.name]}", one.design, one.says] for one in known]
    laws = [MECHANISMS[name] for name in dict.fromkeys(one.mechanism for one in found)]
    mechanisms = [
        [law.name, law.design, law.says, f"{law.truth(law.delta):.3f}", f"{law.delta:g}"] for law in laws
    ]
    return page.document(
        _TITLE,
        page.element("h1", _TITLE),
        page.element("p", " ".join(table.after)),
        page.figure(
            style.svg(figure(rows(found))), f"{_TITLE}. The numbers are in the tables.", _TITLE, "wide"
        ),
        page.table("Estimators over all their cells", header, table.cells()),
        page.table("What they are", ["estimator", "source", "takes", "assumes, as documented"], about),
        page.table(
            "Mechanisms", ["mechanism", "scores", "what it is", "true epsilon", "at delta"], mechanisms
        ),
        page.table("Every cell", cells.header(), cells.cells()),
        page.terms({**machine(), "seed": str(found[0].seed)}),
    )
