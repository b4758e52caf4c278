"""Tests the tutorials: writes their files, runs their commands, and compares the output."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.test_golden_outputs import without_digits

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUN = [sys.executable, "-P", "-m", "experiments"]
PROGRAMS = {"python": [sys.executable], "./run.sh": RUN, "../run.sh": RUN}
NEEDS = {"engineer": "opacus"}  # whatever is imported by a tutorial and not by everybody


def run(argv, folder):
    """Returns what a program prints; fails where it ends with an error."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout


def run_shell(text, folder):
    """Returns what the commands of a block print; a program that is not ours fails."""
    printed = ""
    for line in text.replace("\\\n", " ").strip().splitlines():
        program, *arguments = shlex.split(line)
        printed += run([*PROGRAMS[program], *arguments], folder)
    return printed


def follow(page, folder):
    """Does a page's blocks in turn; returns [(what is shown, what was printed)]."""
    printed = ""
    pairs = []
    for kind, text in BLOCK.findall(page.read_text()):
        named = re.match(r"# (\w+\.py)\n", text)
        if named:
            (folder / named[1]).write_text(text)
        elif kind == "python":
            (folder / "block.py").write_text(text)
            printed = run([sys.executable, "block.py"], folder)
        elif kind == "bash":
            printed = run_shell(text, folder)
        else:
            pairs.append((text, printed))
    return pairs


def plain_lines(text):
    """Returns the lines of a text, with N for numbers, single spaces and continuations joined."""
    joined = without_digits(re.sub(r"\n {12}", " ", text))
    return [" ".join(line.split()) for line in joined.strip().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted(TUTORIALS.glob("*.md")), ids=lambda page: page.stem)
def test_a_tutorial_does_what_it_shows(page, tmp_path):
    if page.stem in NEEDS:
        pytest.importorskip(NEEDS[page.stem])
    pairs = follow(page, tmp_path)
    assert pairs
    for shown, printed in pairs:
        assert set(plain_lines(shown)) <= set(plain_lines(printed)), (shown, printed)
