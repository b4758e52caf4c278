"""Draws the benchmark's figure."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from audit.report.style import BLUE, GREEN, STYLE, VERMILION
from experiments.benchmark.contract import OURS, PAPER, PEER
from experiments.benchmark.tables import LEVEL
from experiments.sweeps.records import Record

# The color and the label of each kind of estimator.
_LOOKS = {OURS: (BLUE, "this project"), PEER: (VERMILION, "package"), PAPER: (GREEN, "paper")}
_MAX_SHARE = 1.3  # larger shares of the true epsilon are drawn as arrows at this edge


def draw_figure(estimators: Sequence[Record]) -> Figure:
    """Draws each estimator's share of wrong audits and its mean epsilon over the true epsilon.

    The first axis has a square-root scale, which spreads small shares. Filled points mark estimators that
    claim a confidence level. Lines separate designs.
    """
    with plt.rc_context(STYLE):
        figure, (wrong, proven) = plt.subplots(1, 2, sharey=True, figsize=(9, 9))
        for place, row in enumerate(estimators):
            color, _ = _LOOKS[row["kind"]]
            style = {"color": color, "clip_on": False}
            style["mfc"] = color if row["claims_level"] else "white"
            share = row["proven"] or 0.0
            if row["too_much"] is not None:
                wrong.plot(row["too_much"], place, "o", **style)
                shape = "o" if share < _MAX_SHARE else ">"
                proven.plot(min(share, _MAX_SHARE), place, shape, **style)
            if place and row["design"] != estimators[place - 1]["design"]:
                wrong.axhline(place - 0.5, color="0.6", lw=0.8)
                proven.axhline(place - 0.5, color="0.6", lw=0.8)
        for color, label in _LOOKS.values():
            wrong.plot([], [], "o", color=color, label=label)
        wrong.plot([], [], "o", color="0.4", mfc="white", label="without a confidence level")
        wrong.axvline(LEVEL, color="0.3", lw=1, ls=(0, (4, 2)))
        roots = (lambda share: np.sqrt(np.maximum(share, 0)), np.square)
        wrong.set_xscale("function", functions=roots)
        ticks = [0, 0.01, 0.05, 0.2, 0.5, 1]
        wrong.set_xticks(ticks, ["0", "1%", "5%", "20%", "50%", "100%"])
        wrong.set(xlim=(0, 1), xlabel="audits above the true epsilon, in the worst cell")
        names = [row["estimator"] for row in estimators]
        wrong.set_yticks(range(len(names)), names, fontsize=8)
        wrong.set_ylim(len(estimators) - 0.5, -0.5)
        proven.set(xlim=(0, _MAX_SHARE), xlabel="mean epsilon over the true epsilon")
        figure.legend(loc="outside lower center", ncols=4)
        return figure
