"""Colours, fonts and file formats of every figure, and matplotlib without a screen."""

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
if not {"IPython", "matplotlib.pyplot"} & set(
    sys.modules
):  # a notebook or script keeps its backend
    matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.text import Text  # noqa: E402
from matplotlib.ticker import FixedFormatter  # noqa: E402

# Okabe and Ito's colours, which colour-blind readers can distinguish.
BLUE = "#0072B2"
VERMILION = "#D55E00"
GREEN = "#009E73"
BLACK = "#000000"
PURPLE = "#CC79A7"
ORANGE = "#E69F00"
FADED = "0.55"  # grey, for invalid bounds and in-sample values
PALETTE = {  # colours by their names in methods' marks
    "blue": BLUE,
    "vermilion": VERMILION,
    "green": GREEN,
    "black": BLACK,
    "purple": PURPLE,
    "orange": ORANGE,
    "grey": FADED,
}
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

_SAVED: dict[Any, Any] = {"svg.hashsalt": "audit", "pdf.fonttype": 42}  # a PDF has its fonts
_GREEK = re.compile(r"(?<![\w\\$])(epsilon|delta|mu|sigma)(?!\w)")


def insert_symbols(text: str) -> str:
    """Returns a figure's text with symbols for names, in TeX: Greek letters, "10^-5" for "1e-05"."""
    text = re.sub(r"\bdelta (?=\d)", "delta = ", text)
    text = _GREEK.sub(r"$\\\1$", text).replace(r"$\epsilon$", r"$\varepsilon$")  # the field's form
    return re.sub(r"(?<![\w.])1e-0?(\d+)\b", r"$10^{-\1}$", text)


def set_symbols(figure: Figure) -> None:
    """Replaces names of quantities, such as "epsilon", by symbols in a figure's texts and tick labels."""
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        text.set_text(insert_symbols(text.get_text()))
    # Formatters set tick labels again.
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            formatter = axis.get_major_formatter()
            if isinstance(formatter, FixedFormatter):
                formatter.seq = [insert_symbols(label) for label in formatter.seq]


def _encode(figure: Figure, **options: Any) -> bytes:
    """Returns the bytes of `Figure.savefig` with symbols for names, and closes the figure."""
    set_symbols(figure)
    buffer = io.BytesIO()
    with plt.rc_context(_SAVED):
        figure.savefig(buffer, **options)
    plt.close(figure)
    return buffer.getvalue()


# Equal figures give equal bits.
png = partial(_encode, format="png", dpi=150, metadata={"Software": None})
svg = partial(_encode, format="svg", metadata={"Date": None, "Creator": None})
pdf = partial(_encode, format="pdf", metadata={"CreationDate": None, "Creator": None})
FORMATS: dict[str, Callable[[Figure], bytes]] = {".png": png, ".pdf": pdf, ".svg": svg}


def find_format(field: str, path: Path) -> Callable[[Figure], bytes]:
    """Returns the function that encodes a figure for a file; raises InputError for other suffixes.

    `field` is the field or flag with the path, for the message.
    """
    suffix = path.suffix.lower()
    require(suffix in FORMATS, f"`{field}={path}`: end it in {', '.join(FORMATS)}")
    return FORMATS[suffix]
