"""Tests that the manual has a page for every public name, and includes every page for readers."""

import re
from pathlib import Path

import audit

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def test_every_public_name_is_in_the_reference():
    listed = re.findall(r"^   (\w+)$", (DOCS / "reference.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(set(audit.__all__) - {"__version__"})


def test_every_page_of_a_room_is_in_the_contents():
    contents = (DOCS / "index.md").read_text()
    for page in ROOT.glob("**/README.md"):
        path = page.relative_to(ROOT).with_suffix("")
        if not path.parts[0].startswith("."):
            assert f"../{path}\n" in contents, path
    for page in DOCS.glob("**/*.md"):
        path = page.relative_to(DOCS).with_suffix("")
        if path.parts[0] not in ("_build", "reference", "index"):
            assert f"\n{path}\n" in contents, path


def test_words_are_explained_before_they_are_used():
    glossary = (DOCS / "glossary.md").read_text()
    for word in ("canary", "insertion, k", "GDP, mu", "epsilon, delta", "fresh directions"):
        assert f"\n{word}\n: " in glossary, word
