"""Colours, type and file formats of every figure; matplotlib without a screen."""

import io
import logging
import re
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
from matplotlib.text import Text  # noqa: E402
from matplotlib.ticker import FixedFormatter  # noqa: E402

# Okabe and Ito's colours: told apart by colour-blind readers; hatches and dashes tell them in grey.
BLUE, VERMILION, GREEN, BLACK = "#0072B2", "#D55E00", "#009E73", "#000000"
PURPLE, ORANGE = "#CC79A7", "#E69F00"
PALETTE = {  # by the names that a method's mark gives
    "blue": BLUE,
    "vermilion": VERMILION,
    "green": GREEN,
    "black": BLACK,
    "purple": PURPLE,
    "orange": ORANGE,
}
OUT, IN, BOUND, UPPER, PREDICTED, FREE = BLUE, VERMILION, GREEN, BLACK, PURPLE, ORANGE
FADED = "0.55"  # what does not hold
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}


_GREEK = re.compile(r"(?<![\w\\$])(epsilon|delta|mu|sigma)(?!\w)")


def in_symbols(text: str) -> str:
    """A figure's text with the papers' symbols: "epsilon at delta 1e-05" has Greek letters."""
    text = re.sub(r"\bdelta (?=\d)", "delta = ", text)
    text = _GREEK.sub(lambda found: rf"$\{'var' if found[1] == 'epsilon' else ''}{found[1]}$", text)
    return re.sub(r"(?<![\w.])1e-0?(\d+)\b", r"$10^{-\1}$", text)


def set_symbols(figure: Figure) -> None:
    """Names of quantities, spelt out in tables, are symbols in figures."""
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        shown = in_symbols(text.get_text())
        if shown != text.get_text():
            text.set_text(shown)
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            named = axis.get_major_formatter()
            if isinstance(named, FixedFormatter):
                named.seq = [in_symbols(label) for label in named.seq]


def png(figure: Figure) -> bytes:
    """The figure's PNG; closes it."""
    return _encoded(figure, format="png", dpi=150, metadata={"Software": None})


def svg(figure: Figure) -> bytes:
    """The figure's SVG, the same bits for the same figure; closes it."""
    with plt.rc_context({"svg.hashsalt": "audit"}):
        return _encoded(figure, format="svg", metadata={"Date": None, "Creator": None})


def pdf(figure: Figure) -> bytes:
    """The figure's PDF with its fonts inside, the same bits for the same figure; closes it."""
    with plt.rc_context({"pdf.fonttype": 42}):
        return _encoded(figure, format="pdf", metadata={"CreationDate": None, "Creator": None})


def _encoded(figure: Figure, **how: Any) -> bytes:
    set_symbols(figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, **how)
    plt.close(figure)
    return buffer.getvalue()


FORMATS: dict[str, Callable[[Figure], bytes]] = {".png": png, ".pdf": pdf, ".svg": svg}
