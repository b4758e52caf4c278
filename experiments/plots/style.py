"""Colours, type and file formats of every figure; matplotlib without a screen."""

import io
import logging
import sys
from collections.abc import Callable
from typing import Any

import matplotlib

for chatty in ("matplotlib", "fontTools"):
    logging.getLogger(chatty).setLevel(logging.WARNING)
if not {"IPython", "matplotlib.pyplot"} & set(sys.modules):  # a notebook's or a script's own backend stays
    matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

# Okabe and Ito's colours: told apart by colour-blind readers; hatches and dashes tell them in grey.
BLUE, VERMILION, GREEN, BLACK = "#0072B2", "#D55E00", "#009E73", "#000000"
PURPLE, ORANGE = "#CC79A7", "#E69F00"
OUT, IN, BOUND, UPPER, PREDICTED, FREE = BLUE, VERMILION, GREEN, BLACK, PURPLE, ORANGE
FADED = "0.55"  # what does not hold
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}


def png(figure: Figure) -> bytes:
    """The figure's PNG; closes it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150, metadata={"Software": None})
    plt.close(figure)
    return buffer.getvalue()


def svg(figure: Figure) -> bytes:
    """The figure's SVG, the same bits for the same figure; closes it."""
    buffer = io.BytesIO()
    with plt.rc_context({"svg.hashsalt": "audit"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(figure)
    return buffer.getvalue()


def pdf(figure: Figure) -> bytes:
    """The figure's PDF with its fonts inside, the same bits for the same figure; closes it."""
    buffer = io.BytesIO()
    with plt.rc_context({"pdf.fonttype": 42}):
        figure.savefig(buffer, format="pdf", metadata={"CreationDate": None, "Creator": None})
    plt.close(figure)
    return buffer.getvalue()


FORMATS: dict[str, Callable[[Figure], bytes]] = {".png": png, ".pdf": pdf, ".svg": svg}
