"""Checkpoints: the states of a chunk of runs between two segments, so that a long chunk survives a kill.

    <folder>/<chunk>_<segments done>/state/     the states' leaves, by orbax
    <folder>/<chunk>_<segments done>/sha256     the checkpoint's name and the SHA-256 of each of its files

A checkpoint is written beside and renamed into place, and its predecessor is removed after that; what a kill
leaves half done is never looked at. A chunk's name says all that decides its states but for the setting,
whose folder this is: another chunk size does not find it.
"""

import contextlib
import functools
import logging
import re
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from audit.storage import files

_NAME = re.compile(r"(.+)_(\d+)")  # chunk and segments done
# Training takes at least this many times as long as writing checkpoints: writing takes at most 2%.
_LEAST_TRAINING_RATIO = 49

# (segments done, states) -> whether states can have come from that number of segments
Fits = Callable[[int, Any], bool]


def _fits_always(done: int, states: Any) -> bool:
    """Accepts every checkpoint: the default where the caller has no test of its own."""
    return True


class Checkpoints:
    """The checkpoints in a folder.

    They are of a single chunk of runs at a time. Whoever uses them holds the chunk's lease
    (`audit.storage.shares`).
    """

    def __init__(self, folder: Path, seconds: float = 30.0) -> None:
        """Opens the checkpoints of a folder, which need not exist yet.

        Args:
          folder: where checkpoints are written and looked for.
          seconds: the least time between two checkpoints. More time passes where writing is slow, so that
            writing takes at most 2% of all time. With 0, every segment has a checkpoint, however slow that
            is.
        """
        self._folder = folder.absolute()  # orbax takes no relative paths
        self._seconds = seconds
        self._due = time.monotonic() + seconds  # from this moment on, the next checkpoint is due
        self._has_failed = False  # whether a failure to write was reported

    def resume(self, chunk: str, states: Any, fits: Fits = _fits_always) -> tuple[int, Any]:
        """Returns the states of a chunk of runs from its newest usable checkpoint.

        A checkpoint that is torn, altered, of other shapes or refused by `fits` is set aside, with a line on
        stderr, and the next older one is tried.

        Args:
          chunk: the chunk's name.
          states: the states at the beginning. They have the structure to return, and the shapes and types
            that a checkpoint must have.
          fits: (segments done, states) -> whether states can have come from that number of segments.

        Returns:
          The segments done, and the states as NumPy arrays; (0, states) where no checkpoint is usable.
        """
        for done, path in self._find(chunk):
            leaves = _read(path, jax.tree.leaves(states))
            if leaves is not None:
                stored = jax.tree.unflatten(jax.tree.structure(states), leaves)
                if fits(done, stored):
                    return done, stored
            files.set_aside(path, "what it held is trained again")
        return 0, states

    def offer(self, chunk: str, done: int, states: Any) -> None:
        """Stores a chunk's states after `done` segments, if the time for a checkpoint has come.

        Older checkpoints of the chunk are removed afterwards. Where a checkpoint can't be written, a line on
        stderr says so once, and training goes on: scores do not depend on checkpoints.

        Args:
          chunk: the chunk's name.
          done: the number of segments that the chunk's runs have gone through.
          states: a tree of arrays, from which training can go on.
        """
        begin = time.monotonic()
        if begin < self._due:
            return
        name = f"{chunk}_{done:06d}"
        try:
            older = [path for _, path in self._find(chunk)]
            with files.beside(self._folder / name) as temporary:
                _write(temporary, name, states)
            for path in older:
                _remove(path)
        except Exception as error:  # a full disk is an OSError here and a ValueError in orbax
            self._report_once(error)

        # The longer writing took, the later the next checkpoint is due: writing takes at most 2% of all time.
        end = time.monotonic()
        self._due = end
        if self._seconds:  # with 0, a checkpoint is due at every call, however long writing takes
            self._due += max(self._seconds, _LEAST_TRAINING_RATIO * (end - begin))

    def drop(self, chunk: str) -> None:
        """Removes a chunk's checkpoints, for a chunk whose scores are stored."""
        for _, path in self._find(chunk):
            _remove(path)

    def clear(self) -> None:
        """Removes all checkpoints, and the folder if it is then empty.

        Damaged checkpoints that were set aside stay. It is to be called while no chunk is being trained.
        """
        if not self._folder.is_dir():
            return
        for path in self._folder.iterdir():
            if ".damaged-" not in path.name:  # as `files.set_aside` names them
                _remove(path)
        with contextlib.suppress(OSError):  # the folder is not empty
            self._folder.rmdir()

    def _find(self, chunk: str) -> list[tuple[int, Path]]:
        """Returns (segments done, path) of the chunk's checkpoints, the newest first."""
        if not self._folder.is_dir():
            return []
        checkpoints = []
        # A name ends in the number of segments, padded with zeros: sorting by name sorts by that number.
        for path in sorted(self._folder.iterdir(), reverse=True):
            match = _NAME.fullmatch(path.name)
            if match and match[1] == chunk:
                checkpoints.append((int(match[2]), path))
        return checkpoints

    def _report_once(self, error: Exception) -> None:
        """Prints on stderr why a checkpoint could not be written, at the first failure alone."""
        if not self._has_failed:
            # An OSError has its reason in `strerror`. Another error's message may be nested, as "what failed:
            # why: the cause", and have several lines. The cause alone is shown, in a single line.
            cause = str(error).split(": ")[-1]
            reason = getattr(error, "strerror", None) or " ".join(cause.split())
            print(
                f"no checkpoint in {self._folder} ({reason}): training goes on without; "
                "make room, or keep results in another folder",
                file=sys.stderr,
            )
        self._has_failed = True


def _write(path: Path, name: str, states: Any) -> None:
    """Writes a checkpoint: a folder with the states' leaves and a manifest of its files.

    Args:
      path: the folder, which is made here.
      name: the name that the caller will give to the folder; the manifest holds it.
      states: a tree of arrays.

    Raises:
      OSError: the disk has no room.
    """
    leaves = {str(i): np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(states))}
    path.mkdir(parents=True)
    files.require_room(path, sum(leaf.nbytes for leaf in leaves.values()))
    with _without_logs():
        _checkpointer().save(path / "state", leaves)
    (path / "sha256").write_text(_make_manifest(path, name))


def _read(path: Path, expected: list[Any]) -> list[Any] | None:
    """Returns the leaves of a checkpoint's states.

    Args:
      path: the checkpoint's folder.
      expected: arrays of the shapes and types that the leaves must have.

    Returns:
      The leaves; None where the checkpoint is damaged, or a leaf is missing or has another shape or type.
    """
    try:
        if files.read(path / "sha256") != _make_manifest(path, path.name).encode():
            return None
        with _without_logs():
            stored = _checkpointer().restore(path / "state")
    except Exception:  # orbax documents no errors, and what a checkpoint held can be trained again
        return None

    if len(stored) != len(expected):
        return None
    leaves = []
    for i, expected_leaf in enumerate(expected):
        leaf = stored.get(str(i))
        if leaf is None or leaf.shape != expected_leaf.shape or leaf.dtype != expected_leaf.dtype:
            return None
        leaves.append(leaf)
    return leaves


def _make_manifest(path: Path, name: str) -> str:
    """Returns the text of a checkpoint's manifest: a line with its name, then one for each of its files.

    A file's line is its SHA-256 and its path. The name is there so that a renamed checkpoint is refused.

    Args:
      path: the checkpoint's folder; its file sha256, the manifest itself, is left out.
      name: the checkpoint's name.
    """
    manifest = path / "sha256"
    lines = [name]
    for place in sorted(path.rglob("*")):
        if not place.is_file() or place == manifest:
            continue
        lines.append(f"{files.compute_sha256(place)}  {place.relative_to(path).as_posix()}")
    return "\n".join(lines) + "\n"


def _remove(path: Path) -> None:
    """Removes a checkpoint.

    It is renamed first. If the process is killed before all files are removed, what is left has a name that
    is never looked at, and cannot be taken for a whole checkpoint.
    """
    # Where it can't be renamed, it is removed under its own name.
    with contextlib.suppress(OSError):
        path = path.rename(path.with_name(f".{uuid.uuid4().hex[:8]}"))
    files.remove(path)


@contextlib.contextmanager
def _without_logs() -> Iterator[None]:
    """Silences orbax's log in the block: orbax logs every error that it raises, with a traceback."""
    logger = logging.getLogger("absl")  # by which orbax logs
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


@functools.cache
def _checkpointer() -> Any:
    """Returns orbax's checkpointer; orbax is imported here, since most audits need no checkpoint."""
    import orbax.checkpoint

    return orbax.checkpoint.Checkpointer(orbax.checkpoint.PyTreeCheckpointHandler())
