"""Scores on disk: a directory for each setting, with a file for each finished chunk.

A setting is a dict of what decides a run's score, identified by the SHA-256 of its canonical JSON. Its
folder's name ends in the beginning of that hash; the words before it, if any, are for people and identify
nothing. The number of runs is no part of it: asking for more runs later trains only those. Files are written
next to their place and renamed into it: a kill at any instant loses at most the chunk in progress.

    <root>/<words>-<hash>/config.json          the setting, in plain text
      scores_<first>_<stop>.npz                scores, presence, and the setting's hash
      audit.json, audit.png                    what the last audit concluded
      .lock                                    held by the process that trains
      checkpoints/                             states of a chunk in progress
"""

import contextlib
import hashlib
import io
import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.errors import InputError, require
from audit.storage import files

CONFIG = "config.json"
RESULT = "audit.json"
FIGURE = "audit.png"
Range = tuple[int, int]  # runs [start, stop)
_DIGITS = 16  # of a hash
_SETTING = "setting"  # the name under which a file's arrays include the setting's hash
_CHUNK = re.compile(r"scores_(\d+)_(\d+)\.npz")
_AGAIN = "its runs are trained again"
_MISNAMED = "is not the setting that its folder is named after: move it away"


class Scores(NamedTuple):
    """Scores of n runs with K canaries each.

    Attributes:
      first: the number of the first run.
      scores: (n, K) float64.
      presence: (n, K) bool, whether a canary was in.
      dimension: the dimension of the space, if scores are cosines with uniform directions in it; else 0.
      draws: the number M of fresh draws a run, if a score counts how many of these are below the canary;
        else 0.
    """

    first: int
    scores: NDArray[np.float64]
    presence: NDArray[np.bool_]
    dimension: int = 0
    draws: int = 0

    def of_first(self, runs: int) -> "Scores":
        """Returns the scores of the first `runs` runs."""
        return self._replace(scores=self.scores[:runs], presence=self.presence[:runs])


class Kept(NamedTuple):
    """The conclusion of an audit, as its folder's audit.json holds it; a field that the file lacks is None.

    Attributes:
      runs: the number of runs from which it was concluded.
      delta: the delta of the bounds.
      confidence: the confidence of the lower bounds.
      epsilon: the lower bound that assumes nothing about the trade-off curve.
      upper_bound: the accountant's epsilon; infinite if the file has null.
      provenance: circumstances of the training runs by name, such as versions and device.
    """

    runs: int | None = None
    delta: float | None = None
    confidence: float | None = None
    epsilon: float | None = None
    upper_bound: float | None = None
    provenance: dict[str, str] = {}  # noqa: RUF012, never written to


class Store:
    """The folder of a setting, with the scores of its runs.

    Attributes:
      path: the folder.
      text: the content of its config.json, the setting's canonical JSON.
      hash: the first hex digits of the text's SHA-256, in which the folder's name ends.
      checkpoints: the folder in which the states of a chunk in progress are kept.
    """

    def __init__(self, root: Path, setting: dict[str, Any], words: str = "") -> None:
        """Opens the folder of a setting; makes it if there is none, and removes what killed runs left.

        Args:
          root: the folder of all stores.
          setting: everything that decides a run's score, as a dict for JSON.
          words: text that comes before the hash in the name of a folder that is made.

        Raises:
          InputError: the folder can't be written, or its config is another setting's.
        """
        text, name, folder = _find_folder(root, setting)
        self.text = text
        self.hash = name
        # A folder that exists is taken, whatever words are in its name.
        self.path = folder or root / (f"{words}-{name}" if words else name)
        self.checkpoints = self.path / "checkpoints"
        with files.writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            files.remove_abandoned(self.path)
        if folder is None:
            files.write_whole(self.path / CONFIG, text.encode())
        is_same = files.read(self.path / CONFIG) == text.encode()
        require(is_same, f"{self.path / CONFIG} {_MISNAMED}")

    @staticmethod
    def exists(root: Path, setting: dict[str, Any]) -> bool:
        """Returns whether a setting has a folder; raises InputError for a root that can't be looked into."""
        return _find_folder(root, setting)[-1] is not None

    @classmethod
    def at(cls, folder: Path) -> "Store":
        """Returns the store in an existing folder; creates nothing.

        Raises:
          InputError: the config can't be read, or the folder's name does not end in its hash.
        """
        content = files.read(folder / CONFIG)
        if content is None:
            raise InputError(f"{folder} has no {CONFIG}: name another `setting`")
        text = content.decode(errors="replace")
        store = cls.__new__(cls)  # without __init__, which makes the folder
        store.text = text
        store.hash = hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
        # `resolve`, because "." or a link to the folder has another name than the folder.
        require(store.hash == hash_of(folder.resolve()), f"{folder / CONFIG} {_MISNAMED}")
        store.path = folder
        store.checkpoints = folder / "checkpoints"
        return store

    def config(self) -> dict[str, Any]:
        """Returns the setting that the config holds; raises InputError if it is no JSON object."""
        config = None
        with contextlib.suppress(ValueError, RecursionError):
            config = json.loads(self.text)
        if not isinstance(config, dict):
            raise InputError(f"{self.path / CONFIG} holds no setting: move it away")
        return config

    def result(self) -> Kept:
        """Returns the last audit's conclusion; all fields are None if no audit has concluded yet.

        Raises InputError if the conclusion can't be read.
        """
        content = files.read(self.path / RESULT)
        if content is None:
            return Kept()
        try:
            result = json.loads(content)
            row = (result.get("bounds") or [{}])[0]  # all rows have the same delta and confidence
            upper_bound = result.get("upper_bound")
            if upper_bound is None and "upper_bound" in result:
                upper_bound = math.inf
            return Kept(
                runs=result.get("runs"),
                delta=row.get("delta"),
                confidence=row.get("confidence"),
                epsilon=result.get("epsilon"),
                upper_bound=upper_bound,
                provenance=result.get("provenance", {}),
            )
        except (ValueError, AttributeError, LookupError, TypeError, RecursionError):
            fix = "move it away, or run the audit again"
            raise InputError(f"{self.path / RESULT} cannot be read: {fix}") from None

    def save(self, chunk: Scores) -> None:
        """Writes the file of a finished chunk of runs: its scores and presence.

        Raises InputError unless scores and presence have the same shape (runs, canaries).
        """
        fits = chunk.scores.ndim == 2 and chunk.scores.shape == chunk.presence.shape
        require(fits, "`presence`: give a bit for every score, (runs, canaries)")
        arrays: dict[str, Any] = {"scores": chunk.scores, "presence": chunk.presence}
        for name in ("dimension", "draws"):
            if getattr(chunk, name):  # a file leaves out what is 0
                arrays[name] = np.array(getattr(chunk, name))
        stop = chunk.first + len(chunk.scores)
        self.write_arrays(f"scores_{chunk.first:07d}_{stop:07d}.npz", arrays)

    def load(self, runs: int) -> Scores:
        """Returns the scores of runs 0 .. runs - 1; raises InputError if some are missing or unreadable."""
        chunks, ranges = self._read_chunks()
        for first, stop in gaps(ranges, runs):
            raise InputError(f"{self.path} lacks runs {first} to {stop - 1}: train them")
        if not chunks:  # and none are missing: `runs` is 0
            return Scores(0, np.empty((runs, 1)), np.empty((runs, 1), bool))
        shape = (runs, chunks[0].scores.shape[1])
        whole = chunks[0]._replace(first=0, scores=np.empty(shape), presence=np.empty(shape, bool))
        for chunk, (first, stop) in zip(chunks, ranges, strict=True):
            whole.scores[first:stop] = chunk.scores[: max(runs - first, 0)]
            whole.presence[first:stop] = chunk.presence[: max(runs - first, 0)]
        return whole

    def missing(self, runs: int) -> list[Range]:
        """Returns the ranges [start, stop) of the runs 0 .. runs - 1 that no intact file holds.

        Damaged files are set aside, with a line on stderr. Raises InputError if a file can't be read, or if
        files differ in the number of canaries a run.
        """
        return gaps(self._read_chunks()[1], runs)

    def runs_held(self) -> int:
        """Returns n if runs 0 .. n - 1 are stored and run n is missing."""
        held = self._read_chunks()[1]
        return gaps(held, sum(stop for _, stop in held) + 1)[0][0]

    def read_arrays(self, name: str, fix: str) -> dict[str, NDArray[Any]] | None:
        """Returns the arrays of an .npz file by name; None if there is no file, or none that can be used.

        A file that is damaged, or that names another setting, is set aside.

        Args:
          name: the file's name.
          fix: what is done about the loss, for the message.
        """
        path = self.path / name
        content = files.read(path)
        if content is None:
            return None
        try:  # the format has a checksum of each array
            with np.load(io.BytesIO(content), allow_pickle=False) as file:
                arrays = dict(file)
        except Exception:  # NumPy raises almost anything for damaged bytes
            files.set_aside(path, fix)
            return None
        if str(arrays.pop(_SETTING, self.hash)) != self.hash:
            files.set_aside(path, fix, "is of another setting")
            return None
        return arrays

    def write_arrays(self, name: str, arrays: Mapping[str, Any]) -> Path:
        """Writes arrays and the setting's hash to an .npz file, whole or not at all, and returns its path.

        Equal arrays give equal bytes.
        """
        buffer = io.BytesIO()
        marked: dict[str, Any] = {**arrays, _SETTING: np.array(self.hash)}
        np.savez(buffer, **marked)
        return files.write_whole(self.path / name, buffer.getvalue())

    def write_text(self, name: str, text: str) -> Path:
        """Writes a file in UTF-8, whole or not at all, and returns its path; raises InputError on failure."""
        return files.write_whole(self.path / name, text.encode())

    def _read_chunks(self) -> tuple[list[Scores], list[Range]]:
        """Returns the scores of every intact file, in the order of the files' names, and their runs.

        Raises InputError if files differ in the number of canaries a run.
        """
        chunks = []
        ranges = []
        counts = set()
        for path in files.list_folder(self.path):
            match = _CHUNK.fullmatch(path.name)
            arrays = self.read_arrays(path.name, _AGAIN) if match else None
            if match is None or arrays is None:
                continue
            scores = arrays.get("scores", np.empty(0))
            presence = arrays.get("presence", np.empty(0))
            if scores.ndim != 2 or scores.shape != presence.shape:
                files.set_aside(path, _AGAIN)
                continue
            first = int(match[1])
            dimension = int(arrays.get("dimension", 0))
            draws = int(arrays.get("draws", 0))
            chunks.append(Scores(first, scores, presence, dimension, draws))
            ranges.append((first, first + len(scores)))
            counts.add(scores.shape[1])
        mixed = " and ".join(map(str, sorted(counts)))
        message = f"{self.path} mixes scores of {mixed} canaries a run: move it away"
        require(len(counts) <= 1, message)
        return chunks, ranges


def gaps(held: Iterable[Range], runs: int) -> list[Range]:
    """Returns the ranges [start, stop) of runs below `runs` that none of the held ranges covers."""
    uncovered = []
    end = 0  # runs below this are covered, or are in `uncovered`
    for first, stop in [*sorted(held), (runs, runs)]:
        until = min(first, runs)
        if end < until:
            uncovered.append((end, until))
        end = max(end, stop)
    return uncovered


def cut(ranges: Iterable[Range], size: int) -> list[Range]:
    """Cuts ranges of runs into chunks of at most `size` runs, in order."""
    chunks = []
    for start, stop in ranges:
        for first in range(start, stop, size):
            chunks.append((first, min(first + size, stop)))
    return chunks


def count_runs(ranges: Iterable[Range]) -> int:
    """Returns the number of runs in all ranges together."""
    total = 0
    for start, stop in ranges:
        total += stop - start
    return total


def hash_of(folder: Path) -> str:
    """Returns the hash at the end of a folder's name, which is <words>-<hash> or <hash>."""
    return folder.name.rpartition("-")[2]


def newest_scores(folder: Path) -> int | None:
    """Returns when a folder's newest scores were written, in nanoseconds since 1970; None without scores."""
    chunks = [path for path in folder.iterdir() if _CHUNK.fullmatch(path.name)]
    return max((path.stat().st_mtime_ns for path in chunks), default=None)


def _find_folder(root: Path, setting: dict[str, Any]) -> tuple[str, str, Path | None]:
    """Returns (the setting's canonical JSON, its hash, its folder with a config or None)."""
    text = json.dumps(setting, indent=2, sort_keys=True) + "\n"
    name = hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
    for folder in [root / name, *sorted(root.glob(f"*-{name}"))]:
        if (folder / CONFIG).exists():
            return text, name, folder
    return text, name, None


@contextlib.contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Holds a folder's lock in the block, after waiting for it; a block may be within another.

    A line on stderr reports that another process holds it. Raises CannotWriteError if the folder can't be
    written.
    """
    import filelock  # imported here: a finished sweep needs no lock

    with files.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(folder / ".lock", is_singleton=True)
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            print(f"another process works in {folder}: waiting for it", file=sys.stderr)
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


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
        import jax  # imported here: those that only read a store have no JAX

        expected, structure = jax.tree.flatten(states)
        for done, path in self._find(chunk):
            with contextlib.suppress(Exception):  # NumPy raises almost anything for damaged bytes
                with np.load(path, allow_pickle=False) as file:
                    leaves = list(file.values())
                types = [(leaf.shape, leaf.dtype) for leaf in leaves]
                if types == [(leaf.shape, leaf.dtype) for leaf in expected]:
                    stored = jax.tree.unflatten(structure, leaves)
                    if fits(done, stored):
                        return done, stored
            files.set_aside(path, "what it held is trained again")
        return 0, states

    def offer(self, chunk: str, done: int, states: Any) -> None:
        """Stores a chunk's states after `done` segments if a checkpoint is due, and removes older ones.

        If it can't be written, a line on stderr says so once, and training goes on.
        """
        import jax

        begin = time.monotonic()
        if begin < self._due:
            return
        path = self._folder / f"{chunk}_{done:06d}.npz"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with files.beside(path) as temporary, open(temporary, "wb") as file:
                np.savez(file, *map(np.asarray, jax.tree.leaves(states)))
        except OSError as error:
            if not self._has_failed:
                place = f"no checkpoint in {self._folder} ({error.strerror})"
                fix = "make room, or keep results in another folder"
                print(f"{place}: training goes on without; {fix}", file=sys.stderr)
            self._has_failed = True
        else:
            self.drop(chunk, but=path)
        self._due = time.monotonic()
        if self._seconds:
            self._due += max(self._seconds, _MIN_TRAINING_RATIO * (self._due - begin))

    def drop(self, chunk: str, but: Path | None = None) -> None:
        """Removes a chunk's checkpoints but one: all, if its scores are stored."""
        for _, path in self._find(chunk):
            if path != but:
                files.remove(path)

    def clear(self) -> None:
        """Removes the folder, but for damaged checkpoints that were set aside."""
        for path in files.list_folder(self._folder):
            if ".damaged-" not in path.name:
                files.remove(path)
        with contextlib.suppress(OSError):  # it has damaged checkpoints, or there is none
            self._folder.rmdir()

    def _find(self, chunk: str) -> list[tuple[int, Path]]:
        """Returns (segments done, path) of the chunk's checkpoints, the newest first."""
        checkpoints = []
        for path in self._folder.glob(f"{chunk}_*.npz"):
            segments = path.stem.removeprefix(f"{chunk}_")
            if segments.isdigit():
                checkpoints.append((int(segments), path))
        return sorted(checkpoints, reverse=True)
