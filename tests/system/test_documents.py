"""Tests that citations of errata have an entry, and that no file cites what readers do not have."""

import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.forks import python
from tests.system.test_golden_outputs import without_digits

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("audit", "models", "experiments", "tests")
ENTRY = re.compile(r"^### ([A-Z]\d+)\. ", re.MULTILINE)
CITATION = re.compile(r"Errata ((?:[A-Z]\d+(?:, | and )?)+)")


def flat(text):
    return re.sub(r"\s*\n\s*#?\s*", " ", text)


def cited(text):
    return {
        name for found in CITATION.findall(flat(text)) for name in re.findall(r"[A-Z]\d+", found)
    }


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
    chosen = [
        path for path in paths if path.suffix in suffixes and path != Path(__file__).resolve()
    ]
    return {str(path.relative_to(root)): path.read_text() for path in sorted(chosen)}


def unknown(root):
    """(file, entry) for every citation of an entry that is not there."""
    known = set(entries(root))
    return [
        (name, one)
        for name, text in files(root, ".py").items()
        for one in sorted(cited(text) - known)
    ]


def uncited(root):
    names = set().union(*map(cited, files(root, ".py").values()))
    return [
        name for name, text in entries(root).items() if name not in names and "No code." not in text
    ]


def test_every_citation_has_its_entry_and_every_entry_a_citation_or_a_word_on_it():
    assert len(entries(ROOT)) >= 16 and not unknown(ROOT) and not uncited(ROOT)


READMES = [
    ROOT / "README.md",
    *sorted(path for room in ROOMS for path in (ROOT / room).rglob("README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
FENCED = re.compile(r"^```bash\n(.*?)^```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`(\./run\.sh[^`]*)`")
ON_SCORES = ("bound", "list")
OF_RUN_SH = ("docs", "help", "lint", "python", "ray", "test")  # tests/system/test_run_sh.py
PARSE = """
import importlib, json, sys
from absl import flags
from audit.commands import dispatch
from experiments import __main__ as main

modules = {**dispatch.find_commands(main.PACKAGES), "first": "experiments.first"}
_, command, lines = sys.argv
importlib.import_module(modules[command])
for line in json.loads(lines):
    flags.FLAGS([command, *line])
    flags.FLAGS.unparse_flags()
"""
SMALLER = {  # what keeps a command of the first page to some seconds, on made-up data; a later flag wins
    "audit": ("--data=images.npz", "--runs=4", "--insertions=4", "--batch_size=8"),
    "bound": (),
    "check": (),
    "first": ("--data=housing.csv", "--runs=40", "--insertions=4", "--batch_size=8"),
    "list": (),
}


def fenced(path):
    blocks = "\n".join(FENCED.findall(path.read_text(encoding="utf-8")))
    lines = (line.split("  #")[0].strip() for line in blocks.replace("\\\n", " ").splitlines())
    return [line for line in lines if line.startswith("./run.sh")]


def said():
    """Every command of every page, once."""
    lines = [line for path in READMES for line in fenced(path)]
    lines += [line for path in READMES for line in INLINE.findall(path.read_text(encoding="utf-8"))]
    return sorted({" ".join(line.split()) for line in lines})


def parsed(line):
    words = shlex.split(line)[1:]
    if not words:
        return "first", []
    return ("audit", words) if words[0].startswith("-") else (words[0], words[1:])


MAPS = ("WORKSPACE.md", "CONTRIBUTING.md", "docs/maintainers.md")
PLACE = re.compile(r"`([\w./-]*(?:\.py|\.md|\.cfg|/))`")  # a file or a folder in backticks
MADE_UP = {"audit.py", "build/"}  # of the reader, or made by a build


@pytest.mark.parametrize("page", MAPS)
def test_a_place_that_a_map_names_is_there(page):
    places = set(PLACE.findall((ROOT / page).read_text())) - MADE_UP
    paths = [
        *ROOT.glob("*"),
        *(path for room in (*ROOMS, "docs") for path in (ROOT / room).rglob("*")),
    ]
    there = "".join(f"/{path.relative_to(ROOT).as_posix()}\n" for path in paths)
    missing = [place for place in places if f"/{place.strip('/')}\n" not in there]
    assert places and not missing


def test_there_are_pages_and_commands():
    assert len(READMES) >= 8 and len(said()) >= 40
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_the_commands_of_all_pages_are_understood(forked, tmp_path):
    lines = {}
    for command, argv in map(parsed, said()):
        if command not in OF_RUN_SH and argv != ["..."]:
            words = [word for word in argv if word != "--help"]
            lines.setdefault(command, []).append(words)
    script = tmp_path / "parse.py"
    script.write_text(PARSE)
    for command, argvs in lines.items():
        ended = forked("python", str(script), command, json.dumps(argvs), folder=tmp_path)
        assert ended.status == 0, ended.stderr


TEXT = re.compile(r"^```text\n(.*?)^```", re.DOTALL | re.MULTILINE)
_BOUNDS = "lower bounds on epsilon"
_BRACKET = "audit --model=logistic --adversary=sphere --canaries=auto --runs=200 --k=5"
SHOWN = {  # (page, how its block begins): the command that prints it
    ("README.md", "Fresh directions in a wider network"): "first",
    ("README.md", "sensitivity"): "check --example=numpy",
    ("README.md", "200 runs x 64 fresh"): _BRACKET,
    ("experiments/hidden_state/README.md", "The hidden-state paper's adversary"): "first",
    ("experiments/README.md", _BOUNDS): "audit --canaries=24 --runs=400",
}
NOT_RUN = {  # why nothing compares a page's other blocks
    "audit/check/README.md": "a quarter of a minute of accounting and simulation",
    "audit/mechanism/README.md": "timings of one machine, and compilations of minutes",
    "experiments/benchmark/README.md": "a run of an hour",
    "experiments/canife/README.md": "trainings of minutes",
    "experiments/compare/README.md": "ten minutes",
    "experiments/hidden_state/README.md": "a formula",
    "experiments/one_shot/README.md": "sweeps of minutes",
}
STORELESS = ("check",)  # commands that keep nothing
_DEPENDS = re.compile(r"(not )?confirmed \(|refuted \(")  # on a score or two


def shown():
    """(page, text) of every block of output."""
    pages = [(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")) for path in READMES]
    return [(page, text) for page, content in pages for text in TEXT.findall(content)]


def test_a_block_of_output_is_compared_or_says_why_not():
    found = shown()
    begun = [
        {key for key in SHOWN if page == key[0] and text.startswith(key[1])} for page, text in found
    ]
    assert set().union(*begun) == set(SHOWN)
    rest = {page for (page, _), keys in zip(found, begun, strict=True) if not keys}
    assert rest == set(NOT_RUN)
    (paper,) = (
        text.split("\n\n", 1)[1] for _, text in found if text.startswith("The hidden-state paper's")
    )
    assert (ROOT / "tests" / "system" / "golden" / "audit.txt").read_text().startswith(paper)


@pytest.mark.slow
@pytest.mark.parametrize("command", sorted(set(SHOWN.values())))
def test_a_block_of_output_is_what_its_command_prints(tmp_path, command):
    module = ["experiments.first"] if command == "first" else ["experiments", *command.split()]
    keeps_nothing = command.split()[0] in STORELESS
    done = python("-m", *module, *[f"--out={tmp_path}"] * (not keeps_nothing))
    if "could not be loaded" in done.stderr:
        pytest.skip("the data can't be fetched here")
    assert done.returncode == 0, done.stderr
    printed = _lines(done.stdout)
    for page, begins in (key for key, printing in SHOWN.items() if printing == command):
        (documented,) = [
            _lines(text) for name, text in shown() if name == page and text.startswith(begins)
        ]
        places = [i for i, line in enumerate(printed) if line == documented[0]]
        assert any(printed[i : i + len(documented)] == documented for i in places), done.stdout


def _lines(text):
    return [line.strip() for line in without_digits(text).splitlines() if not _DEPENDS.search(line)]


@pytest.fixture
def folder(tmp_path, housing_file, image_file):
    """Made-up housing.csv, images.npz and scores.csv, and a step in mine.py."""
    shutil.copy(ROOT / "experiments" / "examples" / "check_numpy.py", tmp_path / "mine.py")
    shutil.copy(housing_file, tmp_path / "housing.csv")
    shutil.copy(image_file, tmp_path / "images.npz")
    scores = np.column_stack([np.random.default_rng(0).normal(size=400), np.arange(400) % 2])
    np.savetxt(tmp_path / "scores.csv", scores, delimiter=",", header="score,in", comments="")
    return tmp_path


@pytest.mark.slow
def test_the_first_page_runs_from_top_to_bottom(folder, forked):
    within = [
        line
        for line in INLINE.findall((ROOT / "README.md").read_text())
        if parsed(line)[0] in ON_SCORES
    ]
    for command, argv in map(parsed, [*fenced(ROOT / "README.md"), *within]):
        if command not in OF_RUN_SH:
            ended = forked(command, *argv, *SMALLER[command], folder=folder, seconds=300)
            assert ended.status == 0, (command, argv, ended.stderr)
            assert ended.stdout
    assert list((folder / "results").glob("*/audit.png")) and (folder / "page.html").exists()
