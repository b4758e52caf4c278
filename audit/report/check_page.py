"""The page of a check: its table and findings, and a picture of each violation."""

import textwrap
from collections.abc import Mapping
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes

from audit.report import page, style

_MAX_BARS = 24  # in a figure; the largest are drawn
_WIDTH = 40  # characters of a line of a bar's name


class _Figure(NamedTuple):
    """The figure of a violation.

    Attributes:
      check: the check that is violated.
      key: the name of the drawn values among the report's figures.
      caption: the caption.
      unit: the label of the axis.
      most: the largest right value.
    """

    check: str
    key: str
    caption: str
    unit: str
    most: float


_FIGURES = (
    _Figure(
        check="sensitivity",
        key="movements",
        caption="How far an example moves the step, added or replacing a row, in units of eta C / B; at most "
        "1 is allowed.",
        unit="eta C / B",
        most=1.02,  # 2% for rounding
    ),
    _Figure(
        check="noise",
        key="noise",
        caption="The noise's deviation by layer, over the stated one; 1 is right.",
        unit="stated deviations",
        most=1.1,
    ),
)


def check_page(report: Mapping[str, Any]) -> bytes:
    """Returns the HTML page of a check of DP-SGD, in UTF-8.

    `report` is a check's report from `to_dict`. Of its figures, "movements" has how far each example moves
    the step, by its name, and "noise" the ratio of the noise's deviation to the stated one, by layer.
    """
    subject = "a step" if report["subject"] == "step" else report["subject"]
    title = f"Check of {subject} of DP-SGD"
    violated = {check["name"] for check in report["checks"] if check["result"] == "failed"}
    figures: list[Markup] = []
    with plt.rc_context(style.STYLE):
        for drawn in _FIGURES:
            values = report["figures"].get(drawn.key)
            if drawn.check in violated and values:
                figure, axes = plt.subplots(figsize=(5.2, 3.2))
                draw_bars(axes, values, drawn.most)
                axes.set(xlabel=drawn.unit)
                figures.append(page.figure(style.svg(figure), drawn.caption))
    return page.document(title, page.macros.check(title, report, figures))


def draw_bars(axes: Axes, values: Mapping[str, float], most: float) -> None:
    """Draws the 24 largest values as horizontal bars with their names, and a line at 1.

    Values that are not finite come first, as wide as the largest other; they and those above `most` are red.
    """
    names = list(values)
    sizes = np.nan_to_num(list(values.values()), nan=np.inf, posinf=np.inf)
    largest = np.argsort(-sizes, kind="stable")[:_MAX_BARS]
    widest = np.max(sizes, initial=1.0, where=np.isfinite(sizes))
    colors = np.where(sizes[largest] > most, style.VERMILION, style.OUT)
    places = range(len(largest))
    axes.barh(places, np.minimum(sizes[largest], widest), color=colors)
    labels = [textwrap.fill(f"{names[i]} {sizes[i]:.3g}", _WIDTH) for i in largest]
    axes.set_yticks(places, labels, fontsize=6.5)
    axes.invert_yaxis()
    axes.axvline(1, color=style.BLACK, lw=1)
