"""A self-contained HTML page from the template page.html, with escaped text."""

import hashlib
import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from audit.conclusions import verdicts
from audit.written import show_level, show_percent

_ENVIRONMENT = Environment(
    autoescape=True, loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined
)
_ENVIRONMENT.filters |= {
    "at_least": verdicts.at_least,
    "at_most": verdicts.at_most,
    "level": show_level,
    "percent": show_percent,
}
macros: Any = _ENVIRONMENT.get_template("page.html").module  # by name; each returns markup

# Parts of an SVG file that must not be inline: size, styles for a whole page, and metadata.
_NOT_INLINE = re.compile(
    r'\s(?:width|height)="[\d.]+pt"|<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->',
    re.DOTALL,
)


def document(title: str, *content: str) -> bytes:
    """Returns a page in UTF-8, with a title and content: markup, or text that is escaped."""
    page: str = macros.document(title, Markup().join(content))
    return page.encode(errors="replace")


def figure(image: bytes, caption: str) -> Markup:
    """Returns a figure with an SVG file of matplotlib inside the page.

    White and black become the page's background and text colours. All ids get a prefix for each figure, since
    matplotlib uses the same ids in each file.

    Args:
      image: the SVG file.
      caption: the text below the image, also its alternative text.
    """
    text = image.decode(errors="replace")
    # Without the XML declaration; `find` gives -1 without a tag.
    text = text[max(text.find("<svg"), 0) :]
    text = _NOT_INLINE.sub("", text)

    # Definitions of ids and references: id="...", href="#..." and url(#...). A hash as their prefix keeps
    # pages reproducible. It starts with a letter, since a digit would extend the group number in \1.
    digest = hashlib.sha256(image + caption.encode()).hexdigest()
    text = re.sub(r"""(\bid="|href="#|url\(#)""", rf"\1f{digest[:8]}-", text)

    text = text.replace("#000000", "currentColor").replace("#ffffff", "var(--ground)")
    label = escape(caption)
    drawing = Markup(text.replace("<svg", f'<svg role="img" aria-label="{label}"', 1))
    return Markup(macros.figure(drawing, caption))
