"""Reads the elements of a page."""

from html.parser import HTMLParser

VOID = {"meta", "img", "br", "link"}


class Outline(HTMLParser):
    """A page's tags, ids and text; fails on tags that don't nest."""

    def __init__(self, content):
        super().__init__()
        self.open, self.tags, self.ids, self.text = [], [], [], ""
        self.feed(content)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
