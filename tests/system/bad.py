"""What the corpora of bad inputs share: a case, and the check that it is refused."""

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tests.cases import firsts_of_each_kind

COUNTED = (
    " is damaged: it counts as missing"  # what readers say of a file before the line that matters
)
HUGE = 10**30
FORTY = np.random.default_rng(0).normal(size=40)
FILLED_IN = re.compile(
    r"--\w+(=\S*)?|'[^']*'|\d\S*"
)  # a flag and its value, a quoted word, a number


def nothing(folder):
    """An empty folder."""


class Bad(NamedTuple):
    """A bad input: a command line, part of the line that it ends in, what lies in its folder before, and of
    the status 0 what stdout shows nonetheless."""

    argv: tuple[str, ...]
    says: str
    lay: Callable[[Path], object] = nothing
    status: int = 2


def named(case, note=""):
    """A case as pytest's parameter, by its command line and a note."""
    text = " ".join(arg if len(arg) < 60 else f"{arg[:40]}..." for arg in case.argv) + note
    return pytest.param(case, id=text.encode("ascii", "backslashreplace").decode())


def firsts_of_a_kind(corpus):
    """Returns the cases, of which the first of each command and the first of each kind of fault are quick.

    Faults are of one kind where their lines differ by flags, quoted words and numbers alone: that the
    others are refused likewise, the slow tests show.
    """

    def find_kinds(bad):
        return {("command", bad.argv[0]), ("kind", FILLED_IN.sub("", bad.says))}

    return firsts_of_each_kind(corpus, find_kinds)


def two_worlds(folder):
    np.savez(folder / "scores.npz", **{"in": FORTY[:20] + 1, "out": FORTY[20:]})


def images(folder):
    """images.npz, 40 random ones and 10 to test on."""
    rng = np.random.default_rng(0)
    arrays = {}
    for name, count in (("train", 40), ("test", 10)):
        arrays[f"{name}_images"] = rng.integers(0, 256, (count, 28, 28)).astype(np.uint8)
        arrays[f"{name}_labels"] = rng.integers(0, 10, count).astype(np.int32)
    np.savez(folder / "images.npz", **arrays)


def holding(content, name):
    """Lays a file of that content."""
    return lambda folder: (folder / name).write_bytes(content)


def assert_refused(case, forked, homes, tmp_path):
    """A case ends in one line and its status, and changes nothing in its folder, beside it or in
    the home."""
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "precious").write_text("precious")
    (tmp_path / "case").mkdir()
    case.lay(tmp_path / "case")
    before, home = _tree(tmp_path), _tree(homes[0])
    ended = forked(*case.argv, folder=tmp_path / "case")
    shown = [
        line.rpartition("\r")[2] for line in ended.stderr.split("\n")
    ]  # as a terminal shows them
    *said, last = filter(str.strip, shown)
    lines = [*(line for line in said if not line.endswith(COUNTED)), last]
    assert "Traceback" not in ended.stderr and "Warning" not in ended.stderr, ended
    assert ended.status == case.status and len(lines) == 1, ended
    assert case.says in lines[0]
    if case.status:
        assert lines[0].startswith("error: ") and ended.stdout == ""
    assert all(character.isprintable() or character == "\udcff" for character in lines[0])
    assert _tree(tmp_path) == before and _tree(homes[0]) == home


def _tree(folder):
    """What lies under a folder, by name, with all that a change would change."""
    found = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        status = path.lstat()
        times = () if path == folder else (status.st_mtime_ns, status.st_ino)
        found[str(path.relative_to(folder))] = (status.st_mode, status.st_size, *times)
    return found


def looping(path):
    path.symlink_to(path.name)


KINDS = {  # what may lie in a file's place: by what it is, a function that makes it
    "a folder": Path.mkdir,
    "a pipe": os.mkfifo,
    "a socket": lambda path: os.mknod(path, stat.S_IFSOCK | 0o600),
    "a device": lambda path: path.symlink_to("/dev/zero"),
}


def odd_places(folder):
    for name in ("folder.npz", "folder.csv"):
        (folder / name).mkdir()
    for name, target in (
        ("loop.npz", "loop.npz"),
        ("dangling.csv", "nowhere"),
        ("device.csv", "/dev/zero"),
    ):
        (folder / name).symlink_to(target)
    os.mkfifo(folder / "pipe.csv")
    for name in ("s", "file.txt", "s.txt", "s.json", "s.pt"):
        (folder / name).write_text("1,1\n")
    for name in ("large.npz", "large.csv"):
        with open(folder / name, "wb") as file:
            file.truncate(2**30 + 1)
