"""A self-contained HTML page from the template page.html, which escapes what it shows."""

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup, escape

_ENVIRONMENT = Environment(autoescape=True, loader=FileSystemLoader(Path(__file__).parent))
macros: Any = _ENVIRONMENT.get_template("page.html").module  # by name; each returns markup

# Parts of an SVG file that an SVG element in a page must not have: its size, styles for a whole page,
# and who made it.
_NOT_INLINE = re.compile(
    r'\s(?:width|height)="[\d.]+pt"|<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->',
    re.DOTALL,
)


class PageTable(NamedTuple):
    """A table of a page.

    Attributes:
      caption: the text above the table.
      header: the columns' names.
      rows: the cells of each row; a row's first cell is its header.
    """

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


def document(title: str, *content: str) -> bytes:
    """Returns a whole page in UTF-8, with question marks for characters that UTF-8 cannot encode.

    Args:
      title: the page's title.
      content: the pieces of the page's content: markup, or text that is escaped.
    """
    page: str = macros.document(title, Markup().join(content))
    return page.encode(errors="replace")


def table(caption: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    """Returns a table as markup, with its fields as `PageTable` has them."""
    return Markup(macros.table(PageTable(caption, header, list(rows))))


def figure(image: bytes, alternative: str, caption: str, kind: str = "") -> Markup:
    """Returns a figure with its image inside the page.

    Args:
      image: an SVG file, which takes the page's colours, or a PNG file.
      alternative: the text in place of an image that cannot be seen.
      caption: the text below the image.
      kind: the figure's class in the page's style, if it has any.
    """
    if image.startswith(b"\x89PNG"):  # the first bytes of every PNG file
        source = f"data:image/png;base64,{base64.b64encode(image).decode()}"
        drawing = macros.image(source, alternative)
    else:
        drawing = _embed_svg(image, alternative)
    return Markup(macros.figure(drawing, caption, kind))


def _embed_svg(image: bytes, alternative: str) -> Markup:
    """Returns an SVG file written by matplotlib as an element of the page.

    White and black become the page's background and text colours. All ids get a prefix that differs from
    figure to figure, since matplotlib uses the same ids in each file.

    Args:
      image: the content of the SVG file.
      alternative: the text in place of an image that cannot be seen.
    """
    text = image.decode(errors="replace")
    # Without the XML declaration before the first tag. Where the tag is missing, `find` gives -1.
    text = text[max(text.find("<svg"), 0) :]
    text = _NOT_INLINE.sub("", text)  # without its size, metadata, styles and comments

    # The places that define an id or refer to it: id="...", href="#..." and url(#...).
    # A hash as their prefix makes the same page from the same audits. A letter, f, comes before it: after
    # the group's number, \1, a digit would be read as a part of that number.
    digest = hashlib.sha256(image + alternative.encode()).hexdigest()
    text = re.sub(r"""(\bid="|href="#|url\(#)""", rf"\1f{digest[:8]}-", text)

    text = text.replace("#000000", "currentColor")
    text = text.replace("#ffffff", "var(--ground)")
    label = escape(alternative)
    return Markup(text.replace("<svg", f'<svg role="img" aria-label="{label}"', 1))
