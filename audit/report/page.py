"""Self-contained HTML pages from the template page.html. Text is escaped."""

import base64
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from audit.written import show_level, show_percent

_ENVIRONMENT = Environment(
    autoescape=True, loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined
)
_ENVIRONMENT.filters |= {
    "level": show_level,
    "percent": show_percent,
    "base64": lambda image: base64.b64encode(image).decode(),
}
macros: Any = _ENVIRONMENT.get_template("page.html").module  # the template's macros, as functions


def document(title: str, content: str = "") -> bytes:
    """Returns a page in UTF-8. `content` is markup, or text to escape."""
    page = str(macros.document(title, content))
    return page.encode(errors="replace")  # UTF-8 cannot encode lone surrogates


def figure(image: bytes, caption: str) -> Markup:
    """Returns the markup of an SVG image with a caption that is also its alternative text."""
    return Markup(macros.figure(image, caption))
