"""The page about a check of DP-SGD: its table and findings, and a figure for each failed check."""

import textwrap
from collections.abc import Mapping
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from audit.report import page, style

_MAX_BARS = 24
_LABEL_WIDTH = 40  # characters per line of a bar's label


class _Figure(NamedTuple):
    """The figure for a failed check.

    Attributes:
      key: The key of the plotted values in the report's "figures".
      unit: The axis label.
      limit: The largest value that counts as correct: 1 plus a tolerance.
    """

    key: str
    caption: str
    unit: str
    limit: float


_FIGURE_OF_CHECK = {
    "sensitivity": _Figure(
        key="movements",
        caption="How much the step changes if an example is added or replaces a row, in units of eta C / B; "
        "at most 1 is allowed.",
        unit="eta C / B",
        limit=1.02,  # 2% for rounding
    ),
    "noise": _Figure(
        key="noise",
        caption="Standard deviation of the noise in each layer, divided by the stated value; 1 is correct.",
        unit="stated deviations",
        limit=1.1,
    ),
}


def check_page(report: Mapping[str, Any]) -> bytes:
    """Returns the HTML page about a check of DP-SGD, in UTF-8.

    `report` is the dict from `CheckReport.to_dict`. Each item of "figures" maps names to values.
    """
    subject = report["subject"]
    if subject == "step":
        subject = "a step"
    title = f"Check of {subject} of DP-SGD"
    figures = []
    with plt.rc_context(style.STYLE):
        for check in report["checks"]:
            drawn = _FIGURE_OF_CHECK.get(check["name"])
            if drawn is None or check["result"] != "failed":
                continue
            values = report["figures"].get(drawn.key)
            if values:
                figure, axes = plt.subplots(figsize=(5.2, 3.2))
                draw_bars(axes, values, drawn.limit)
                axes.set_xlabel(drawn.unit)
                figures.append(page.figure(style.svg(figure), drawn.caption))
    return page.document(title, page.macros.check(title, report, figures))


def draw_bars(axes: Axes, values: Mapping[str, float], limit: float) -> None:
    """Draws the 24 largest values as labelled horizontal bars, and a line at 1, the stated value.

    Values above `limit` are red. Infinite and NaN values come first, with bars as wide as the largest finite
    value or 1, whichever is larger.
    """
    names = list(values)
    sizes = np.nan_to_num(list(values.values()), nan=np.inf, posinf=np.inf)
    largest = np.argsort(-sizes, kind="stable")[:_MAX_BARS]
    widest = np.max(sizes, initial=1.0, where=np.isfinite(sizes))
    colors = np.where(sizes[largest] > limit, style.VERMILION, style.OUT)
    places = range(len(largest))
    axes.barh(places, np.minimum(sizes[largest], widest), color=colors)
    labels = [textwrap.fill(f"{names[i]} {sizes[i]:.3g}", _LABEL_WIDTH) for i in largest]
    axes.set_yticks(places, labels, fontsize=6.5)
    axes.invert_yaxis()
    axes.axvline(1, color=style.BLACK, lw=1)
