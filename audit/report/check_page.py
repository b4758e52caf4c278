"""The page of a check: its table and findings, and a picture of each violation."""

import textwrap
from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes

from audit.report import page, style

_MAX_BARS = 24  # in a figure; the largest are drawn
_WIDTH = 40  # characters of a line of a bar's name
# By the violated row: the figures that are drawn, the caption, the axis, and the largest right number.
# Movements may exceed 1 by 2%, for rounding.
_FIGURES = {
    "sensitivity": (
        "movements",
        "How far an example moves the step, added or replacing a row, in units of eta C / B; at most 1 is "
        "allowed.",
        "eta C / B",
        1.02,
    ),
    "noise": (
        "noise",
        "The noise's deviation by layer, over the stated one; 1 is right.",
        "stated deviations",
        1.1,
    ),
}


def check_page(report: Mapping[str, Any]) -> bytes:
    """Returns the HTML page of a check of DP-SGD, in UTF-8.

    Args:
      report: the fields of a check's report, as its `to_dict` returns them. Of its figures, "movements" has
        how far each example moves the step, by its name, and "noise" the noise's deviation divided by
        the stated deviation, by the name of the layer.
    """
    subject = "a step" if report["subject"] == "step" else report["subject"]
    title = f"Check of {subject} of DP-SGD"
    violated = {check["name"] for check in report["checks"] if check["result"] == "failed"}
    figures: list[Markup] = []
    with plt.rc_context(style.STYLE):
        for row, (key, caption, unit, most) in _FIGURES.items():
            values = report["figures"].get(key)
            if row in violated and values:
                figure, axes = plt.subplots(figsize=(5.2, 3.2))
                draw_bars(axes, values, most)
                axes.set(xlabel=unit)
                figures.append(page.figure(style.svg(figure), caption))
    return page.document(title, page.macros.check(title, report, figures))


def draw_bars(axes: Axes, values: Mapping[str, float], most: float) -> None:
    """Draws the 24 largest values as horizontal bars next to their names, and a line at 1.

    Values that are not finite come first, as wide as the largest other; they and those above `most` are red.
    """
    names = np.array(list(values))
    sizes = np.nan_to_num(list(values.values()), nan=np.inf, posinf=np.inf)
    is_finite = np.isfinite(sizes)
    widest = np.max(sizes[is_finite], initial=0.0) or 1.0
    labels = []
    for place, i in enumerate(np.argsort(-sizes, kind="stable")[:_MAX_BARS]):
        color = style.OUT
        if sizes[i] > most:
            color = style.VERMILION
        axes.barh(place, min(sizes[i], widest), color=color)
        name = names[i]
        if not is_finite[i]:
            name = f"{name} (not finite)"
        labels.append(textwrap.fill(name, _WIDTH, break_long_words=False))
    axes.set_yticks(range(len(labels)), labels, fontsize=6.5)
    axes.invert_yaxis()
    axes.axvline(1, color=style.BLACK, lw=1)
