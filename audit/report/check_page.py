"""The page of a check: its table and findings, the movements of single examples and the noise, drawn."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from scipy import stats

from audit.report import page, style
from audit.report.page import Html

_MOST_BARS = 24


def check_page(report: Mapping[str, Any], pictures: Mapping[str, Any]) -> bytes:
    """The page, of a report's `to_dict` and its pictures."""
    title = f"Check of {'a step' if report['subject'] == 'step' else report['subject']} of DP-SGD"
    kind = "nothing" if report["passed"] else "violated"
    verdict = page.element("p", page.element("strong", report["verdict"]), class_=f"verdict {kind}")
    rows = [tuple(check.values()) for check in report["checks"]]
    table = page.table("Checks", ("check", "result", "what was seen"), rows)
    found = [
        page.join(
            (
                page.element("h3", f"{one['check']}: {one['name']}"),
                page.element("p", one["meaning"]),
                page.element("p", f"Mend: {one['mend']}"),
            )
        )
        for one in report["findings"]
    ]
    level = f"All statistical tests together are at level {report['level']:g} (Holm)."
    tests = sorted(report["p_values"].items(), key=lambda one: one[1])
    p_values = page.table(level, ("test", "p-value"), [(name, f"{p:.2g}") for name, p in tests])
    drawn = page.element("div", *_figures(pictures), class_="figures")
    return page.document(title, page.element("h1", title), verdict, table, *found, drawn, p_values)


def _figures(pictures: Mapping[str, Any]) -> list[Html]:
    found = []
    if pictures.get("movements"):
        said = "How far one more example moves the step, in units of eta C / B; at most 1 is allowed."
        found.append(_figure(lambda axes: _bars(axes, pictures["movements"], log=True), said, tall=True))
    if len(pictures.get("sample", ())) > 1:
        said = "The noise of many seeds in stated deviations, beside the normal law."
        found.append(_figure(lambda axes: _noise(axes, pictures["sample"]), said))
    for name, of in (("layers", "layer"), ("batches", "batch")):
        if pictures.get(name):
            said = f"The noise's deviation by {of}, in stated ones; 1 is right."
            found.append(_figure(lambda axes, name=name: _bars(axes, pictures[name]), said))
    if "sizes" in pictures:
        said = "Sizes of the batches that were drawn; the line is the expected size."
        found.append(_figure(lambda axes: _sizes(axes, pictures), said))
    return found


def _figure(draw: Any, said: str, tall: bool = False) -> Html:
    with plt.rc_context(style.STYLE):
        figure, axes = plt.subplots(figsize=(5.2, 5.2 if tall else 3.2))
        draw(axes)
        return page.figure(style.svg(figure), said, said)


def _bars(axes: Axes, values: Mapping[str, float], log: bool = False) -> None:
    shown = sorted(values.items(), key=lambda one: -one[1] if np.isfinite(one[1]) else 0)[:_MOST_BARS]
    sizes = [value if np.isfinite(value) else 0.0 for _, value in shown]
    right = [size <= 1.02 for size in sizes] if log else [abs(size - 1) < 0.1 for size in sizes]
    colors = [style.OUT if fine else style.VERMILION for fine in right]
    axes.barh(range(len(shown)), [max(size, 1e-3) for size in sizes], color=colors)
    axes.set_yticks(range(len(shown)), [name[:48] for name, _ in shown], fontsize=7)
    axes.invert_yaxis()
    axes.axvline(1, color=style.BLACK, lw=1)
    axes.set_xscale("log" if log else "linear")
    axes.set_xlabel("eta C / B" if log else "stated deviations")


def _noise(axes: Axes, sample: Any) -> None:
    edges = np.linspace(-5, 5, 61)
    axes.hist(np.clip(sample, -5, 5), list(edges), density=True, color=style.OUT)
    axes.plot(edges, stats.norm.pdf(edges), color=style.BLACK)
    axes.set_xlabel("stated deviations")
    axes.set_ylabel("density")


def _sizes(axes: Axes, pictures: Mapping[str, Any]) -> None:
    axes.hist(pictures["sizes"], 30, color=style.OUT)
    axes.axvline(pictures["expected"], color=style.BLACK)
    axes.set_xlabel("examples in a batch")
    axes.set_ylabel("batches")
