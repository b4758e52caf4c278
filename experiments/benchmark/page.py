"""Draws the benchmark's figure, makes its page, and writes all files of a run."""

import math
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from audit.json_text import write_json
from audit.report import page, style
from audit.report.style import BLUE, GREEN, STYLE, VERMILION
from audit.runtime.machine import cores
from audit.storage import files
from experiments.benchmark.cells import MeasuredCell
from experiments.benchmark.contract import DESIGNS, OURS, PAPER, PEER
from experiments.benchmark.false_claims import MeasuredClaim
from experiments.benchmark.mechanisms import MECHANISMS
from experiments.benchmark.registry import ESTIMATORS
from experiments.benchmark.tables import (
    LEVEL,
    MeasuredEstimator,
    make_cell_table,
    make_summary_table,
    summarise_estimators,
)

Point = tuple[float, float]  # in the figure's data coordinates

_COLORS = {OURS: BLUE, PEER: VERMILION, PAPER: GREEN}
_LABELS = {OURS: "ours", PEER: "a package's", PAPER: "a paper's"}
_TITLE = "How often an estimator claims too much, and how much of the truth it proves"
_PANEL = (257.0, 157.0)  # a panel's width and height, in points of typography
_MARKER = 7.0  # the size of a mark, in points of typography
_LABEL_SIZE = 7  # the size of a label's letters, in points of typography
_MOST_SHARE = 1.3  # the right edge: larger shares of the truth are drawn here, as arrows


def write_files(
    folder: Path, cells: Sequence[MeasuredCell], claims: Sequence[MeasuredClaim] = ()
) -> list[Path]:
    """Writes the table, the figure, the page, and all cells as CSV and JSON; returns their paths."""
    summary = make_summary_table(cells, claims)
    content = {
        "machine": describe_machine(),
        "cells": [cell._asdict() for cell in cells],
        "claims": [claim._asdict() for claim in claims],
    }
    contents = {
        "estimators.csv": summary.csv(),
        "benchmark.csv": make_cell_table(cells).csv(),
        "benchmark.json": (write_json(content, indent=1) + "\n").encode(),
        "benchmark.txt": (summary.text() + "\n").encode(),
        "benchmark.png": style.png(draw_figure(summarise_estimators(cells))),
        "benchmark.html": make_page(cells, claims),
    }
    paths = []
    for name, encoded in contents.items():
        paths.append(files.write_whole(folder / name, encoded))
    return paths


def describe_machine() -> dict[str, str]:
    """Returns the machine and the software of a run: Python, platform, processor, cores, NumPy and SciPy."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": str(cores()),
        "numpy": metadata.version("numpy"),
        "scipy": metadata.version("scipy"),
    }


def draw_figure(estimators: Sequence[MeasuredEstimator]) -> Figure:
    """Draws a panel for each design, with a point for each estimator, filled if it claims a level.

    Estimators without a worst share, and designs without estimators, are left out. Panels are in two columns.
    """
    panels: dict[str, list[MeasuredEstimator]] = {}
    for design in DESIGNS:
        shown = [row for row in estimators if row.design == design and row.worst_share is not None]
        if shown:
            panels[design] = shown

    rows = (len(panels) + 1) // 2
    columns = min(len(panels), 2)
    with plt.rc_context(STYLE):
        figure, grid = plt.subplots(rows, columns, figsize=(9, 4.75 * rows), squeeze=False)
        axes = list(grid.flat)
        for axis, (design, shown) in zip(axes, panels.items(), strict=False):
            _draw_panel(axis, design, shown)
        # With three panels, the fourth place of the two columns stays empty.
        for axis in axes[len(panels) :]:
            axis.set_axis_off()

        # Lines without points, for the legend alone.
        first = axes[0]
        for kind, color in _COLORS.items():
            first.plot([], [], "o", color=color, label=_LABELS[kind])
        first.plot([], [], "o", color="0.4", mfc="white", label="says no level")
        handles, labels = first.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4)
        figure.suptitle(_TITLE, fontsize=11)
        return figure


def _draw_panel(axis: Axes, design: str, estimators: list[MeasuredEstimator]) -> None:
    """Draws a numbered point for each estimator of a design, and lists the names by number below the panel.

    The horizontal axis shows the share of the truth that an estimator proves, the vertical axis the share of
    audits that claim too much, on a scale of square roots. A dashed line marks the level. Points beyond the
    right edge are drawn at the edge, as arrows. Colours tell the kind of estimator, and a hollow point claims
    no level.
    """
    axis.set_yscale("function", functions=(_scale_root, np.square))
    axis.axhline(LEVEL, color="0.3", lw=1, ls=(0, (4, 2)))
    # x as a share of the panel's width, y in data coordinates.
    right_edge = axis.get_yaxis_transform()
    axis.text(1.0, LEVEL, f" {LEVEL:.0%}", va="center", fontsize=8, transform=right_edge)

    points = []
    names = []
    for place, row in enumerate(estimators, start=1):
        # A share is None where no cell shows it: the point lies at 0.
        x = min(row.proven_share or 0.0, _MOST_SHARE)
        y = row.worst_share or 0.0
        marker = "o" if x < _MOST_SHARE else ">"
        color = _COLORS[row.kind]
        fill = color if row.claims_level else "white"
        axis.plot(x, y, marker, color=color, mfc=fill, clip_on=False, zorder=3)
        points.append((x, y))
        names.append(f"{place}  {row.estimator}")
    _number_points(axis, points)

    axis.set_title(design, pad=20)
    axis.set(xlim=(0, _MOST_SHARE), ylim=(0, 1), yticks=(0, 0.01, 0.05, 0.2, 0.5, 1))
    axis.set_yticklabels(["0", "1%", "5%", "20%", "50%", "100%"])
    axis.set_xlabel("mean share of the truth that it proves")
    axis.set_ylabel("claims too much, in its worst cell")
    # Below the axis's label: transAxes counts in heights of the panel.
    axis.text(0.0, -0.2, "\n".join(names), va="top", fontsize=7, transform=axis.transAxes)


def _scale_root(y: np.ndarray) -> np.ndarray:
    """Returns the square root of y; on this scale of the vertical axis small shares are spread out."""
    root: np.ndarray = np.sqrt(np.maximum(y, 0))
    return root


def _number_points(axis: Axes, points: Sequence[Point]) -> None:
    """Writes a point's number beside each point, where possible without covering a point, a label or a line.

    Points that nearly coincide share a label. Several offsets are tried for each label, and the one with the
    least cost is taken. The cost is the number of rectangles that the label overlaps, plus the number of
    other labels' points that are nearer to it than its own point.
    """
    # The numbers in each label, by the point at which the label is placed. Points are taken from left to
    # right, so that a label is placed at the leftmost of its points.
    labels: dict[Point, list[int]] = {}
    numbered = enumerate(points, start=1)
    for number, point in sorted(numbered, key=lambda pair: pair[1]):
        labelled_point = point
        for earlier in labels:
            if _are_near(earlier, point, width=0.04):
                labelled_point = earlier
                break
        labels.setdefault(labelled_point, []).append(number)

    # What labels must not cover: the points, the line at the level, and the horizontal axis with its tick
    # labels below it. From here on lengths are in points of typography, from the panel's lower left corner.
    panel_width = _PANEL[0]
    level_height = _to_points((0, LEVEL))[1]
    covered = [_Box(*_to_points(point), _MARKER, _MARKER) for point in points]
    covered.append(_Box(panel_width / 2, level_height, panel_width, 1))
    covered.append(_Box(panel_width / 2, -8, 2 * panel_width, 16))
    all_places = [_to_points(labelled_point) for labelled_point in labels]

    # Each label in turn takes its place, which later labels must not cover.
    for labelled_point, numbers in labels.items():
        text = ", ".join(map(str, numbers))
        x, y = _to_points(labelled_point)
        offsets = _list_offsets(len(text))
        boxes = [_Box(x + dx, y + dy, *_measure(text)) for dx, dy in offsets]
        costs = []
        for box in boxes:
            overlapped = sum(box.overlaps(obstacle) for obstacle in covered)
            nearer = sum(box.distance(place) < box.distance((x, y)) for place in all_places)
            costs.append(overlapped + nearer)
        best = int(np.argmin(costs))  # of equal costs the first, which is the preferred offset
        covered.append(boxes[best])
        axis.annotate(
            text,
            labelled_point,
            offsets[best],
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=_LABEL_SIZE,
        )


class _Box(NamedTuple):
    """A rectangle with its middle at (x, y); all lengths are in points of typography."""

    x: float
    y: float
    width: float
    height: float

    def overlaps(self, other: "_Box") -> bool:
        """Returns whether two rectangles overlap."""
        across = abs(self.x - other.x) < (self.width + other.width) / 2
        return across and abs(self.y - other.y) < (self.height + other.height) / 2

    def distance(self, place: Point) -> float:
        """Returns the distance of a place (x, y) from the rectangle; 0 inside."""
        across = max(abs(self.x - place[0]) - self.width / 2, 0)
        up = max(abs(self.y - place[1]) - self.height / 2, 0)
        return math.hypot(across, up)


def _to_points(point: Point) -> Point:
    """Converts data coordinates to points of typography, from a panel's lower left corner."""
    return point[0] / _MOST_SHARE * _PANEL[0], point[1] ** 0.5 * _PANEL[1]


def _measure(text: str) -> Point:
    """Estimates the width and the height of a label, in points of typography."""
    # A letter is about 0.62 of its size wide.
    return 0.62 * _LABEL_SIZE * len(text), float(_LABEL_SIZE)


def _list_offsets(letters: int) -> list[Point]:
    """Returns the offsets (x, y), in points of typography, that a label's middle may have from its point.

    The preferred come first: above, beside, below, then diagonally, then farther away.

    Args:
      letters: The number of letters in the label.
    """
    beside = 0.31 * _LABEL_SIZE * letters + 6  # half of the label's estimated width, and a gap
    near = [(0, 9), (beside, 0), (-beside, 0), (0, -9)]
    diagonal = [(beside, 7), (-beside, 7), (beside, -7), (-beside, -7)]
    far = [(0, 17), (beside, 14), (-beside, 14), (0, 25), (0, -17)]
    return [*near, *diagonal, *far]


def _are_near(first: Point, second: Point, width: float) -> bool:
    """Returns whether two points, in data coordinates, are so close that they share a label.

    They are less than `width` apart horizontally. Vertically, on the axis's scale of square roots, they are
    less than 0.07 apart, about the height of a line of text.
    """
    distance_across = abs(first[0] - second[0])
    distance_up = abs(first[1] ** 0.5 - second[1] ** 0.5)
    return distance_across < width and distance_up < 0.07


def make_page(cells: Sequence[MeasuredCell], claims: Sequence[MeasuredClaim] = ()) -> bytes:
    """Returns the HTML page: figure, table, descriptions of estimators and mechanisms, and every cell."""
    summary = make_summary_table(cells, claims)
    summary_head = [head.replace("\n", " ").strip() for head in summary.header()]
    cell_table = make_cell_table(cells)
    figure = style.svg(draw_figure(summarise_estimators(cells)))
    caption = f"{_TITLE}. The numbers are in the tables."
    seed = str(cells[0].seed)  # the same in all cells
    return page.document(
        _TITLE,
        page.element("h1", _TITLE),
        page.element("p", " ".join(summary.after)),
        page.figure(figure, caption, _TITLE, "wide"),
        page.table("Estimators over all their cells", summary_head, summary.cells()),
        page.table(
            "What they are",
            ["estimator", "source", "takes", "assumes, as documented"],
            _describe_estimators(cells),
        ),
        page.table(
            "Mechanisms",
            ["mechanism", "scores", "what it is", "true epsilon", "at delta"],
            _describe_mechanisms(cells),
        ),
        page.table("Every cell", cell_table.header(), cell_table.cells()),
        page.terms({**describe_machine(), "seed": seed}),
    )


def _describe_estimators(cells: Sequence[MeasuredCell]) -> list[list[str]]:
    """Returns a row for each estimator in the cells: name, source, design and assumption."""
    versions = {cell.estimator: cell.version for cell in cells}
    rows = []
    for name, version in versions.items():
        estimator = ESTIMATORS[name]
        source = f"{estimator.source} {version}"
        if estimator.remark:
            source += f"; {estimator.remark}"
        rows.append([name, source, estimator.design, estimator.assumption])
    return rows


def _describe_mechanisms(cells: Sequence[MeasuredCell]) -> list[list[str]]:
    """Returns a row for each mechanism in the cells: name, design, description, true epsilon and delta."""
    rows = []
    for name in dict.fromkeys(cell.mechanism for cell in cells):
        mechanism = MECHANISMS[name]
        # Any seed and size will do: the true epsilon depends on neither.
        setting = mechanism.make_known(0, mechanism.sizes[0])
        truth = setting.law.truth(setting).epsilon
        row = [
            name,
            mechanism.design,
            mechanism.description,
            f"{truth:.3f}",
            f"{mechanism.delta:g}",
        ]
        rows.append(row)
    return rows
