"""The cases of the tests of bad inputs, and the check that an input is rejected."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from hypothesis import HealthCheck, settings

COUNTED = " is damaged: it counts as missing"  # said of a file before the line that matters
HUGE = 10**30
FORTY = np.random.default_rng(0).normal(size=40)
KINDS = {  # what may lie in a file's place: by what it is, a function that makes it
    "a folder": Path.mkdir,
    "a loop": lambda path: path.symlink_to(path.name),
}


def generated(examples):
    """Returns hypothesis's settings for so many generated inputs, the same in every run."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


class Bad(NamedTuple):
    """A bad input.

    Attributes:
      argv: a command line.
      says: a part of the line that it ends in.
      lay: puts files into its folder before.
      status: its exit status.
    """

    argv: tuple[str, ...]
    says: str
    lay: Callable[[Path], object] = lambda folder: None
    status: int = 2


def lay_files(folder):
    """Lays scores.npz, images.npz, a loader and a script that fails."""
    np.savez(folder / "scores.npz", **{"in": FORTY[:20] + 1, "out": FORTY[20:]})
    rng = np.random.default_rng(0)
    arrays = {}
    for name, count in (("train", 40), ("test", 10)):
        arrays[f"{name}_images"] = rng.integers(0, 256, (count, 28, 28)).astype(np.uint8)
        arrays[f"{name}_labels"] = rng.integers(0, 10, count).astype(np.int32)
    np.savez(folder / "images.npz", **arrays)
    (folder / "fails.py").write_text("1 / 0\n")
    (folder / "mine.py").write_text("def loader(seed):\n    return [[0, 1], [2, 3]]\n")


def assert_refused(case, forked, homes, tmp_path):
    """A case ends in one line and its status, and changes nothing around it or in the home."""
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "precious").write_text("precious")
    (tmp_path / "case").mkdir()
    case.lay(tmp_path / "case")
    before = _list_tree(tmp_path)
    home = _list_tree(homes[0])
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
    assert _list_tree(tmp_path) == before and _list_tree(homes[0]) == home


def _list_tree(folder):
    """Returns what lies under a folder, by name, with all that a change would change."""
    found = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        status = path.lstat()
        times = () if path == folder else (status.st_mtime_ns, status.st_ino)
        found[str(path.relative_to(folder))] = (status.st_mode, status.st_size, *times)
    return found
