"""Figure 8 of the hidden-state paper: the gradient norms of L's canary during training."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from audit.report import style
from audit.report.style import BLUE, GREEN, ORANGE, PURPLE, VERMILION

_LOOKS = ((VERMILION, "-"), (BLUE, "--"), (GREEN, "-."), (PURPLE, (0, (5, 1))), (ORANGE, ":"))


def norms_figure(norms: dict[str, NDArray[np.float64]], clipping_norm: float) -> bytes:
    """`draw_norms` as PNG bytes."""
    return style.png(draw_norms(norms, clipping_norm))


def draw_norms(norms: dict[str, NDArray[np.float64]], clipping_norm: float) -> Figure:
    """Mean and 2 standard deviations of norms (runs, steps) by model, at most five of them."""
    with plt.rc_context(style.STYLE):
        figure, axis = plt.subplots(figsize=(6, 3.6))
        for (model, values), (color, dash) in zip(norms.items(), _LOOKS, strict=False):
            mean, spread = values.mean(0), 2 * values.std(0, ddof=1)
            steps = np.arange(values.shape[1])
            axis.plot(steps, mean, color=color, ls=dash, label=f"{model} ({len(values)} runs)")
            low, high = np.maximum(mean - spread, 0), mean + spread
            axis.fill_between(steps, low, high, color=color, alpha=0.2, lw=0)
        axis.axhline(clipping_norm, color=style.UPPER, ls=":", lw=1)
        beside: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
        axis.annotate("$C$", (1, clipping_norm), (3, 0), ha="left", va="center", **beside)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set(xlabel="step", ylabel="norm of the canary's gradient", ylim=(0, None))
        axis.set_title("L's canary before clipping: mean and 2 standard deviations")
        figure.legend(loc="outside lower center", ncols=3, fontsize=8)
        return figure
