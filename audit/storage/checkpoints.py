"""Checkpoints: the states of a chunk of runs between segments of training, from which a chunk goes on.

A checkpoint is an .npz file `<chunk>_<segments done>.npz`; the format has checksums.
"""

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from audit.storage import files

_NAME = re.compile(r"(.+)_(\d+)\.npz")  # chunk and segments done
_MIN_TRAINING_RATIO = 49  # of the times of training and of writing: writing takes at most 2%

# (segments done, states) -> whether states can have come from that number of segments
Fits = Callable[[int, Any], bool]


class Checkpoints:
    """The checkpoints in a folder, of a single chunk of runs at a time."""

    def __init__(self, folder: Path, seconds: float = 30.0) -> None:
        """Opens the checkpoints of a folder, which need not exist yet.

        Args:
          folder: where checkpoints are written and looked for.
          seconds: the least time between two checkpoints; more passes if writing is slow. With 0, every
            segment has a checkpoint.
        """
        self._folder = folder
        self._seconds = seconds
        self._due = time.monotonic() + seconds
        self._has_failed = False

    def resume(
        self, chunk: str, states: Any, fits: Fits = lambda done, states: True
    ) -> tuple[int, Any]:
        """Returns the states of a chunk of runs from its newest usable checkpoint.

        A checkpoint that is damaged, of other shapes or refused by `fits` is set aside, and reported.

        Args:
          chunk: the chunk's name.
          states: the states at the beginning, which have the structure, shapes and types of the result.
          fits: (segments done, states) -> whether states can have come from that number of segments.

        Returns:
          The segments done, and the states as NumPy arrays; (0, states) if no checkpoint is usable.
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
        """Stores a chunk's states after `done` segments if a checkpoint is due, and removes older ones.

        If it can't be written, a line on stderr says so once, and training goes on.
        """
        begin = time.monotonic()
        if begin < self._due:
            return
        path = self._folder / f"{chunk}_{done:06d}.npz"
        try:
            _write(path, states)
        except OSError as error:
            self._report_once(error)
        else:
            for _, other in self._find(chunk):
                if other != path:
                    files.remove(other)
        end = time.monotonic()
        self._due = end
        if self._seconds:
            self._due += max(self._seconds, _MIN_TRAINING_RATIO * (end - begin))

    def drop(self, chunk: str) -> None:
        """Removes a chunk's checkpoints, for a chunk whose scores are stored."""
        for _, path in self._find(chunk):
            files.remove(path)

    def clear(self) -> None:
        """Removes the folder, but for damaged checkpoints that were set aside."""
        for path in files.list_folder(self._folder):
            if ".damaged-" not in path.name:
                files.remove(path)
        if not files.list_folder(self._folder):
            files.remove(self._folder)

    def _find(self, chunk: str) -> list[tuple[int, Path]]:
        """Returns (segments done, path) of the chunk's checkpoints, the newest first."""
        checkpoints = []
        for path in files.list_folder(self._folder):
            match = _NAME.fullmatch(path.name)
            if match and match[1] == chunk:
                checkpoints.append((int(match[2]), path))
        return sorted(checkpoints, reverse=True)

    def _report_once(self, error: OSError) -> None:
        if not self._has_failed:
            print(
                f"no checkpoint in {self._folder} ({error.strerror}): training goes on without; "
                "make room, or keep results in another folder",
                file=sys.stderr,
            )
        self._has_failed = True


def _write(path: Path, states: Any) -> None:
    """Writes a checkpoint: the leaves of the states, in order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.beside(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, *map(np.asarray, jax.tree.leaves(states)))


def _read(path: Path, expected: list[Any]) -> list[Any] | None:
    """Returns the leaves of a checkpoint; None if it is damaged, or has leaves of other shapes or types."""
    try:
        with np.load(path, allow_pickle=False) as file:
            leaves = list(file.values())
    except files.NOT_AN_ARCHIVE:
        return None
    shapes = [(leaf.shape, leaf.dtype) for leaf in leaves]
    if shapes != [(leaf.shape, leaf.dtype) for leaf in expected]:
        return None
    return leaves
