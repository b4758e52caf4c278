"""The colours, fonts and file formats of figures."""

import io
import logging
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib

from audit.errors import require

for chatty in ("matplotlib", "fontTools"):
    logging.getLogger(chatty).setLevel(logging.WARNING)
# Agg needs no display. Notebooks, and scripts that have imported pyplot, keep their backend.
if {"IPython", "matplotlib.pyplot"}.isdisjoint(sys.modules):
    matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.text import Text  # noqa: E402

# Okabe and Ito's colours, which colour-blind readers can distinguish.
BLUE = "#0072B2"
VERMILION = "#D55E00"
GREEN = "#009E73"
BLACK = "#000000"
PURPLE = "#CC79A7"
ORANGE = "#E69F00"
FADED = "0.55"  # grey, for invalid bounds and in-sample values
OUT = BLUE
IN = VERMILION
BOUND = GREEN
UPPER = BLACK
PREDICTED = PURPLE
FREE = ORANGE
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}

# A fixed salt makes the ids in SVG files reproducible. Type 42 embeds fonts in PDF files.
_SAVE_STYLE: dict[Any, Any] = {**STYLE, "svg.hashsalt": "audit", "pdf.fonttype": 42}
_GREEK = re.compile(r"(?<![\w\\$])(epsilon|delta|mu|sigma)(?!\w)")


def insert_symbols(text: str) -> str:
    """Writes Greek letters and powers of ten, such as 1e-05, in a figure's text as TeX."""
    text = re.sub(r"\bdelta (?=\d)", "delta = ", text)
    text = _GREEK.sub(r"$\\\1$", text)
    text = text.replace(r"$\epsilon$", r"$\varepsilon$")  # as in papers
    return re.sub(r"(?<![\w.])1e-0?(\d+)\b", r"$10^{-\1}$", text)


def set_symbols(figure: Figure) -> None:
    """Replaces names such as "epsilon" with symbols in all of a figure's text except tick labels."""
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        text.set_text(insert_symbols(text.get_text()))


def _encode(figure: Figure, **options: Any) -> bytes:
    """Encodes a figure with symbols instead of names, and closes the figure."""
    set_symbols(figure)
    buffer = io.BytesIO()
    with plt.rc_context(_SAVE_STYLE):
        figure.savefig(buffer, **options)
    plt.close(figure)
    return buffer.getvalue()


# Files contain no dates or versions, so identical figures produce identical files.
png = partial(_encode, format="png", dpi=150, metadata={"Software": None})
svg = partial(_encode, format="svg", metadata={"Date": None, "Creator": None})
pdf = partial(_encode, format="pdf", metadata={"CreationDate": None, "Creator": None})
FORMATS = {".png": png, ".pdf": pdf, ".svg": svg}


def find_format(path: Path) -> Callable[[Figure], bytes]:
    """Returns the function that encodes a figure in the format indicated by a path's suffix.

    Raises InputError if the suffix is not .png, .pdf or .svg.
    """
    suffix = path.suffix.lower()
    require(suffix in FORMATS, f"`path={path}`: end the name in {', '.join(FORMATS)}")
    return FORMATS[suffix]
