"""A self-contained HTML page from the template page.html, which escapes what it shows."""

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

# Parts of an SVG file that an SVG element in a page must not have: its size, styles for a whole page,
# and who made it.
_NOT_INLINE = re.compile(
    r'\s(?:width|height)="[\d.]+pt"|<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->',
    re.DOTALL,
)


def document(title: str, *content: str) -> bytes:
    """Returns a whole page in UTF-8, with question marks for characters that UTF-8 cannot encode.

    Args:
      title: the page's title.
      content: the pieces of the page's content: markup, or text that is escaped.
    """
    page: str = macros.document(title, Markup().join(content))
    return page.encode(errors="replace")


def figure(image: bytes, caption: str) -> Markup:
    """Returns a figure with an SVG file of matplotlib inside the page.

    White and black become the page's background and text colours. All ids get a prefix that differs from
    figure to figure, since matplotlib uses the same ids in each file.

    Args:
      image: the SVG file.
      caption: the text below the image, and in place of an image that cannot be seen.
    """
    text = image.decode(errors="replace")
    # Without the XML declaration before the first tag. Where the tag is missing, `find` gives -1.
    text = text[max(text.find("<svg"), 0) :]
    text = _NOT_INLINE.sub("", text)

    # The places that define an id or refer to it: id="...", href="#..." and url(#...).
    # A hash as their prefix makes the same page from the same audits. A letter, f, comes before it: after
    # the group's number, \1, a digit would be read as a part of that number.
    digest = hashlib.sha256(image + caption.encode()).hexdigest()
    text = re.sub(r"""(\bid="|href="#|url\(#)""", rf"\1f{digest[:8]}-", text)

    text = text.replace("#000000", "currentColor").replace("#ffffff", "var(--ground)")
    label = escape(caption)
    drawing = Markup(text.replace("<svg", f'<svg role="img" aria-label="{label}"', 1))
    return Markup(macros.figure(drawing, caption))
