"""Checkpoints: the states of a chunk of runs between two segments, so that a long chunk survives a kill.

    <folder>/<chunk>_<segments done>/state/     the states' leaves, by orbax
    <folder>/<chunk>_<segments done>/sha256     the checkpoint's name and the SHA-256 of each of its files

A checkpoint is written beside and renamed into place, and the one before it removed after that; what a
kill leaves half done is never looked at. A chunk's name says all that decides its states but for the
setting, whose folder this is: another chunk size does not find it.
"""

import contextlib
import functools
import hashlib
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

_DONE = re.compile(r"(.+)_(\d+)")
_LEAST_TRAINING = 49  # training takes at least so many times as long as its checkpoints: 2%


Fits = Callable[[int, Any], bool]  # (segments done, states) -> whether states after so many can be these


class Checkpoints:
    """The checkpoints in a folder, of one chunk at a time, which its user holds (`storage.shares`)."""

    def __init__(self, folder: Path, seconds: float = 30.0) -> None:
        """At most one every so many seconds, and at most 2% of the time; with 0, one after every segment."""
        self._folder = folder.absolute()
        self._seconds = seconds
        self._due = time.monotonic() + seconds
        self._failed = False

    def resume(self, chunk: str, states: Any, fits: Fits = lambda done, states: True) -> tuple[int, Any]:
        """(segments done, states) of the chunk's newest checkpoint, as NumPy arrays; (0, states) without
        one. What is torn, altered, of other shapes or unfit is said on stderr and set aside."""
        for done, path in self._kept(chunk):
            leaves = _read(path, jax.tree.leaves(states))
            found = None if leaves is None else jax.tree.unflatten(jax.tree.structure(states), leaves)
            if found is not None and fits(done, found):
                return done, found
            files.set_aside(path, "what it held is trained again")
        return 0, states

    def offer(self, chunk: str, done: int, states: Any) -> None:
        """Keeps the chunk's states after `done` segments where a checkpoint is due. Where it can't be
        written, that is said once on stderr and training goes on: scores are safe."""
        begin = time.monotonic()
        if begin < self._due:
            return
        name = f"{chunk}_{done:06d}"
        try:
            older = [path for _, path in self._kept(chunk)]
            with files.beside(self._folder / name) as place:
                _write(place, name, states)
            for path in older:
                _remove(path)
        except Exception as error:  # a full disk is an OSError here and a ValueError in orbax
            self._complain(error)
        end = time.monotonic()
        self._due = end + (max(self._seconds, _LEAST_TRAINING * (end - begin)) if self._seconds else 0)

    def drop(self, chunk: str) -> None:
        """Removes the chunk's checkpoints: its scores are stored."""
        for _, path in self._kept(chunk):
            _remove(path)

    def clear(self) -> None:
        """Removes all but what was set aside: no chunk is in progress."""
        if self._folder.is_dir():
            for path in self._folder.iterdir():
                if ".damaged-" not in path.name:
                    _remove(path)
            with contextlib.suppress(OSError):
                self._folder.rmdir()

    def _kept(self, chunk: str) -> list[tuple[int, Path]]:
        paths = sorted(self._folder.iterdir(), reverse=True) if self._folder.is_dir() else []
        found = ((_DONE.fullmatch(path.name), path) for path in paths)
        return [(int(match[2]), path) for match, path in found if match and match[1] == chunk]

    def _complain(self, error: Exception) -> None:
        if not self._failed:
            reason = getattr(error, "strerror", None) or " ".join(str(error).split(": ")[-1].split())
            print(
                f"no checkpoint in {self._folder} ({reason}): training goes on without; "
                "make room, or keep results in another folder",
                file=sys.stderr,
            )
        self._failed = True


def _write(path: Path, name: str, states: Any) -> None:
    leaves = {str(i): np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(states))}
    path.mkdir(parents=True)
    files.require_room(path, sum(leaf.nbytes for leaf in leaves.values()))
    with _silent():
        _checkpointer().save(path / "state", leaves)
    (path / "sha256").write_text(_manifest(path, name))


def _read(path: Path, like: list[Any]) -> list[Any] | None:
    """A checkpoint's leaves; None where it is damaged or its leaves are not of these shapes and types."""
    try:
        if (path / "sha256").read_text() != _manifest(path, path.name):
            return None
        with _silent():
            held = _checkpointer().restore(path / "state")
    except Exception:  # orbax documents no errors; a checkpoint is never worth more than its training
        return None
    leaves = [held.get(str(i)) for i in range(len(like))]
    same = len(held) == len(like) and all(
        leaf is not None and (leaf.shape, leaf.dtype) == (one.shape, one.dtype)
        for leaf, one in zip(leaves, like, strict=True)
    )
    return leaves if same else None


def _manifest(path: Path, name: str) -> str:
    found = sorted(file for file in path.rglob("*") if file.is_file() and file != path / "sha256")
    lines = [name]
    for place in found:
        with open(place, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        lines.append(f"{digest}  {place.relative_to(path).as_posix()}")
    return "\n".join((*lines, ""))


def _remove(path: Path) -> None:
    """A kill leaves the folder under a name that is never looked at."""
    with contextlib.suppress(OSError):
        path = path.rename(path.with_name(f".{uuid.uuid4().hex[:8]}"))
    files.remove(path)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Orbax logs, with a traceback, what it raises as well."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


@functools.cache
def _checkpointer() -> Any:
    """orbax's, imported when one is needed: most audits have one segment a chunk, and need none."""
    import orbax.checkpoint

    return orbax.checkpoint.Checkpointer(orbax.checkpoint.PyTreeCheckpointHandler())
