"""A self-contained HTML page.

Its elements escape what they hold, its style is for screens of any width and for paper, and its policy
forbids every request.
"""

import base64
import hashlib
import html
import re
from collections.abc import Iterable, Sequence

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --faint: #57606a; --line: #d0d7de; --ground: #fff;
  --raised: #f6f8fa; --leaks: #a13d00; --nothing: #57606a; --violated: #b00020;
  --link: #0550ae }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6edf3; --faint: #a5aeb8; --line: #3d444d; --ground: #0d1117; --raised: #161b22;
    --leaks: #ffa657; --nothing: #a5aeb8; --violated: #ff9492; --link: #79c0ff }
}
* { box-sizing: border-box }
html { -webkit-text-size-adjust: 100% }
body { margin: 0 auto; padding: 1rem; max-width: 64rem; color: var(--text); background: var(--ground);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere }
h1 { font-size: 1.6rem; line-height: 1.25 } h2 { font-size: 1.3rem } h3 { font-size: 1.05rem }
h1, h2, h3 { margin: 1.6em 0 .5em } h1 { margin-top: .3em }
article + article { border-top: 2px solid var(--line); margin-top: 3rem }
a { color: var(--link) }
p, ul, dl { margin: .5em 0; max-width: 46rem } ul { padding-left: 1.25rem }
.note, figcaption { color: var(--faint); font-size: .9rem }
.verdict { border-left: .4rem solid var(--kind); background: var(--raised); padding: .8rem 1rem;
  margin: 1rem 0; font-size: 1.1rem; max-width: none }
.leaks { --kind: var(--leaks) } .nothing { --kind: var(--nothing) } .violated { --kind: var(--violated) }
.verdict strong, td strong { color: var(--kind) }
dl { display: grid; grid-template-columns: minmax(8rem, max-content) minmax(0, 1fr); gap: .2rem 1rem }
dt { color: var(--faint) } dd { margin: 0 }
.table { overflow-x: auto; border: 1px solid var(--line); border-radius: .4rem; margin: .8rem 0 }
.table:focus-visible { outline: 2px solid var(--link) }
table { border-collapse: collapse; width: 100%; font-size: .92rem; overflow-wrap: normal }
caption { text-align: left; padding: .5rem .7rem; color: var(--faint) }
th, td { text-align: left; padding: .4rem .7rem; border-top: 1px solid var(--line); vertical-align: top }
td { font-variant-numeric: tabular-nums } tbody th { overflow-wrap: anywhere; min-width: 9rem }
.figures { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 24rem), 1fr)) }
figure { margin: 0 } figure.wide { margin: 1rem 0 }
img, figure svg { display: block; width: 100%; height: auto; border: 1px solid var(--line);
  border-radius: .4rem }
img { background: #fff } figure svg { fill: currentColor } figure svg * { stroke-linejoin: round }
pre { background: var(--raised); border: 1px solid var(--line); border-radius: .4rem; padding: .8rem;
  font-size: .85rem; white-space: pre-wrap }
@media (max-width: 40rem) {
  dl { grid-template-columns: minmax(0, 1fr) } dd { margin-bottom: .5rem }
  table, caption, tbody, tr, tbody th { display: block } thead { display: none }
  tr + tr { border-top: 2px solid var(--line) } th, td { border-top: 0; padding: .25rem .7rem }
  td { display: grid; grid-template-columns: 8rem minmax(0, 1fr); overflow-wrap: anywhere }
  td::before { content: attr(data-name); color: var(--faint) } td:empty { display: none }
}
@media print {
  :root { color-scheme: light; --text: #000; --faint: #333; --line: #999; --ground: #fff; --raised: #fff;
    --leaks: #000; --nothing: #000; --violated: #000; --link: #000 }
  body { font-size: 10pt; max-width: none; padding: 0 }
  .table { overflow: visible } .figures { grid-template-columns: 1fr 1fr }
  figure, .verdict, tr, dl { break-inside: avoid } h2, h3 { break-after: avoid }
  article + article { break-before: page; border: 0 }
}
"""

# Parts of an SVG file that an SVG element in a page must not have: its size, styles for a whole page,
# and who made it.
_NOT_INLINE = re.compile(
    r'\s(?:width|height)="[\d.]+pt"|<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->',
    re.DOTALL,
)
_VOID_TAGS = ("img", "meta", "link", "br")  # which have no end tag


class Html(str):
    """Markup, which enters an element as it is. Any other string is escaped."""


def element(tag: str, *content: str, **attributes: str) -> Html:
    """Returns an HTML element.

    Args:
      tag: the element's name.
      content: the pieces of the element's content: markup, or text that is escaped.
      attributes: the values of attributes by their names. A name has underscores in place of hyphens; a
        trailing underscore is dropped, as in `class_`.
    """
    start = f"<{tag}"
    for name, value in attributes.items():
        attribute = name.rstrip("_").replace("_", "-")
        start += f' {attribute}="{html.escape(value)}"'
    if tag in _VOID_TAGS:  # such an element has neither content nor an end tag
        return Html(f"{start}>")
    return Html(f"{start}>{join(content)}</{tag}>")


def join(content: Iterable[str]) -> Html:
    """Returns the pieces one after the other as markup: those of type Html as they are, others escaped."""
    pieces: list[str] = []
    for piece in content:
        if not isinstance(piece, Html):
            piece = html.escape(piece, quote=False)  # quotes end nothing outside of attributes
        pieces.append(piece)
    return Html("".join(pieces))


def document(title: str, *content: str) -> bytes:
    """Returns a whole page in UTF-8, with question marks for characters that UTF-8 cannot encode.

    Args:
      title: the page's title.
      content: the pieces of the page's content: markup, or text that is escaped.
    """
    head = element(
        "head",
        element("meta", charset="utf-8"),
        # No request: the page shows the same offline, and tells nobody that it was opened.
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", Html(_STYLE)),
    )
    body = element("body", element("main", *content))
    page = element("html", head, body, lang="en")
    return f"<!DOCTYPE html>\n{page}\n".encode(errors="replace")


def table(caption: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> Html:
    """Returns a table; on narrow screens the page's style shows each row as a card.

    Args:
      caption: the text above the table.
      header: the columns' names.
      rows: the cells of each row; a row's first cell is its header.
    """
    head = [element("th", name, scope="col") for name in header]
    body = []
    for first, *others in rows:
        cells = [element("th", first, scope="row")]
        for name, cell in zip(header[1:], others, strict=True):
            cells.append(element("td", cell, data_name=name))  # which a card shows beside the cell
        body.append(element("tr", *cells))
    content = element(
        "table",
        element("caption", caption),
        element("thead", element("tr", *head)),
        element("tbody", *body),
    )
    # A table that is too wide scrolls within this element. By the tab index the keyboard reaches it, to
    # scroll; by role and label a screen reader says what it is.
    return element("div", content, class_="table", role="region", aria_label=caption, tabindex="0")


def terms(facts: dict[str, str]) -> Html:
    """Returns an HTML list of terms and their descriptions."""
    entries = []
    for name, text in facts.items():
        entries += [element("dt", name), element("dd", text)]
    return element("dl", *entries)


def note(text: str) -> Html:
    """Returns a note, a paragraph in small print; its first letter becomes a capital."""
    return element("p", f"{text[0].upper()}{text[1:]}", class_="note")


def points(sentences: Iterable[str]) -> Html:
    """Returns an HTML list with a point for each sentence."""
    items = [element("li", sentence) for sentence in sentences]
    return element("ul", *items)


def figure(image: bytes, alternative: str, caption: str, kind: str = "") -> Html:
    """Returns a figure with its image inside the page.

    Args:
      image: an SVG file, which takes the page's colours, or a PNG file.
      alternative: the text in place of an image that cannot be seen.
      caption: the text below the image.
      kind: the figure's class in the page's style, if it has any.
    """
    if image.startswith(b"\x89PNG"):  # the first bytes of every PNG file
        source = f"data:image/png;base64,{base64.b64encode(image).decode()}"
        drawing = element("img", src=source, alt=alternative)
    else:
        drawing = _embed_svg(image, alternative)
    description = element("figcaption", caption)
    if kind:
        return element("figure", drawing, description, class_=kind)
    return element("figure", drawing, description)


def _embed_svg(image: bytes, alternative: str) -> Html:
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
    label = html.escape(alternative)
    return Html(text.replace("<svg", f'<svg role="img" aria-label="{label}"', 1))
