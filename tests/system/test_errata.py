"""Citations of the papers' errata lead to an entry, and no file cites what a reader does not have."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("audit", "models", "experiments", "tests")
ENTRY = re.compile(r"^### ([A-Z]\d+)\. ", re.MULTILINE)
CITATION = re.compile(r"Errata ((?:[A-Z]\d+(?:, | and )?)+)")
NOT_HERE = re.compile("papers" + r"'? README|\bslips? \d|\bDESIG" + r"N\b")


def flat(text):
    return re.sub(r"\s*\n\s*#?\s*", " ", text)


def cited(text):
    return {name for found in CITATION.findall(flat(text)) for name in re.findall(r"[A-Z]\d+", found)}


def entries(root):
    """name -> text of every entry in the papers' folders."""
    found = {}
    for readme in sorted(root.glob("experiments/*/README.md")):
        text = readme.read_text()
        starts = [*ENTRY.finditer(text)]
        ends = [match.start() for match in starts[1:]] + [len(text)]
        for match, end in zip(starts, ends, strict=False):  # a page may have no entries
            assert match[1] not in found, f"{match[1]} is there twice"
            found[match[1]] = text[match.start() : end]
    return found


def files(root, *suffixes):
    paths = [*root.glob("*.*"), *(path for room in ROOMS for path in (root / room).rglob("*.*"))]
    chosen = [path for path in paths if path.suffix in suffixes and path != Path(__file__).resolve()]
    return {str(path.relative_to(root)): path.read_text() for path in sorted(chosen)}


def unknown(root):
    """(file, entry) for every citation of an entry that is not there."""
    known = set(entries(root))
    return [(name, one) for name, text in files(root, ".py").items() for one in sorted(cited(text) - known)]


def uncited(root):
    names = set().union(*map(cited, files(root, ".py").values()))
    return [name for name, text in entries(root).items() if name not in names and "No code." not in text]


def outside(root):
    texts = files(root, ".py", ".md", ".cfg", ".toml", ".sh", ".cff")
    return [(name, match[0]) for name, text in texts.items() for match in NOT_HERE.finditer(flat(text))]


def test_every_citation_has_its_entry_and_every_entry_a_citation_or_a_word_on_it():
    assert len(entries(ROOT)) >= 16
    assert not unknown(ROOT) and not uncited(ROOT) and not outside(ROOT)


@pytest.fixture
def tree(tmp_path):
    """A tree of one paper with one entry, cited over a line break."""
    (tmp_path / "experiments" / "a_paper").mkdir(parents=True)
    (tmp_path / "experiments" / "a_paper" / "README.md").write_text("### Z1. A sign\n\nIt is turned.\n")
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit" / "good.py").write_text('"""The sign is turned (Errata\nZ1)."""\n')
    assert not unknown(tmp_path) and not uncited(tmp_path) and not outside(tmp_path)
    return tmp_path


def test_a_made_up_citation_is_caught(tree):
    (tree / "audit" / "bad.py").write_text("x = 1  # Errata Z1, Z2 and Z10\n")
    assert unknown(tree) == [("audit/bad.py", "Z10"), ("audit/bad.py", "Z2")]


def test_an_entry_that_nothing_cites_is_caught(tree):
    readme = tree / "experiments" / "a_paper" / "README.md"
    readme.write_text(readme.read_text() + "\n### Z2. A word\n\nMisspelt.\n")
    assert uncited(tree) == ["Z2"]
    readme.write_text(readme.read_text() + "No code.\n")
    assert not uncited(tree)


@pytest.mark.parametrize("words", ["papers'\n# README", "slip 7", "see DESIG" + "N"])
def test_a_document_that_is_not_there_is_caught(tree, words):
    (tree / "audit" / "bad.py").write_text(f"# {words}\n")
    assert [name for name, _ in outside(tree)] == ["audit/bad.py"]
