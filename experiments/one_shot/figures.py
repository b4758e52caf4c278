"""The density of the canaries' cosines beside the law where nothing leaks."""

from collections.abc import Sequence
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from audit.report import style
from audit.statistics import cosine_law, normality

Array = NDArray[np.float64]
_BINS, _POINTS = 36, 801


class Panel(NamedTuple):
    """The cosines (n,) of canaries in R^dimension, and a title."""

    title: str
    cosines: Array
    dimension: int


def densities(panels: Sequence[Panel]) -> Figure:
    """A panel a mechanism: histogram, the exact null, and the normal fit, in units of 1/sqrt(d)."""
    with plt.rc_context(style.STYLE):
        figure, axes = plt.subplots(1, len(panels), figsize=(3.3 * len(panels), 3.2), squeeze=False)
        for axis, panel in zip(axes[0], panels, strict=True):
            root = np.sqrt(panel.dimension)
            units = panel.cosines * root
            ends = min(-4.0, units.min()), max(4.0, units.max())
            x = np.linspace(*ends, _POINTS)
            inside = np.clip(x / root, -1 + 1e-12, 1 - 1e-12)
            null = np.exp(cosine_law.log_density(inside, panel.dimension)) / root
            mean, deviation = units.mean(), units.std()
            fit = np.exp(-(((x - mean) / deviation) ** 2) / 2) / (deviation * np.sqrt(2 * np.pi))
            axis.hist(units, _BINS, density=True, color=style.IN, alpha=0.35, label="canaries")
            axis.plot(x, null, color=style.OUT, label="nothing leaks")
            axis.plot(x, fit, "--", color=style.IN, label="normal fit")
            tested = normality.anderson_darling(units)
            axis.set_title(f"{panel.title}\n$A^2$ = {tested.statistic:.2f} (5%: {tested.critical[2]:.2f})")
            axis.set_xlabel(r"cosine, in units of $1/\sqrt{d}$")
        axes[0][0].set_ylabel("density")
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure
