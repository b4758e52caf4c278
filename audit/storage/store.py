"""Stores scores on disk, in a folder for each setting and a file for each finished chunk of runs.

A setting is a dict of everything that determines a run's score. The number of runs is not part of a setting.
A setting is identified by the SHA-256 of its canonical JSON. Files are written atomically, so a killed
process loses at most its current chunk.

    <root>/<words>-<hash>/config.json          the setting, in plain text
      scores_<first>_<stop>.npz                scores, presence, and the setting's hash
      audit.json, audit.png                    the conclusion of the last audit
      .lock                                    the lock of the training process
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
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.errors import InputError, plain, require
from audit.storage import files

CONFIG = "config.json"
RESULT = "audit.json"
FIGURE = "audit.png"
Range = tuple[int, int]  # runs [start, stop)
_HASH_ARRAY = "setting"  # the array with the setting's hash in each file
_CHUNK_FILE = re.compile(r"scores_(\d+)_(\d+)\.npz")


class Scores(NamedTuple):
    """Scores of n runs with K canaries each.

    Attributes:
      first: the index of the first run.
      scores: (n, K) float64.
      presence: (n, K) bool, True if a run has the canary.
      dimension: the dimension of the directions if scores are cosines with uniform directions, otherwise 0.
      draws: the number of fresh draws per run if scores are ranks among them, otherwise 0.
    """

    first: int
    scores: NDArray[np.float64]
    presence: NDArray[np.bool_]
    dimension: int = 0
    draws: int = 0


class StoredResult(NamedTuple):
    """The conclusion in a folder's audit.json. Missing fields are None.

    Attributes:
      runs: the number of runs.
      delta, confidence: the level of the bounds.
      epsilon: the assumption-free lower bound.
      upper_bound: the accountant's epsilon; infinite if the file contains null.
      provenance: versions, device and other facts about the training.
    """

    runs: int | None = None
    delta: float | None = None
    confidence: float | None = None
    epsilon: float | None = None
    upper_bound: float | None = None
    provenance: dict[str, str] = {}  # noqa: RUF012, never written to


class Store:
    """A setting's folder, which contains the scores of its runs.

    Attributes:
      path: the folder.
      text: the content of its config.json, the setting's canonical JSON.
      hash: the first 16 hex digits of the text's SHA-256, also the end of the folder's name.
      checkpoints: the folder of checkpoints.
    """

    def __init__(self, root: Path, setting: dict[str, Any], words: str = "") -> None:
        """Opens the folder of a setting under `root`, or creates it with a name that begins with `words`.

        Also removes temporary files of killed processes.

        Raises:
          InputError: the folder can't be written, or its config belongs to another setting.
        """
        # Sorted, because the hash must not depend on the order.
        text = json.dumps(setting, indent=2, sort_keys=True) + "\n"
        digest = _compute_hash(text)
        existing = _find_folder(root, digest)
        name = f"{words}-{digest}" if words else digest
        path = existing or root / name
        with files.writing(path):
            path.mkdir(parents=True, exist_ok=True)
            files.remove_abandoned(path)
        if existing is None:
            files.write_whole(path / CONFIG, text.encode())
        self._open(path)

    @classmethod
    def at(cls, folder: Path) -> "Store":
        """Returns the store in an existing folder.

        Raises InputError if the config can't be read, or if its hash does not match the folder's name.
        """
        store = cls.__new__(cls)  # __init__ would create a folder
        store._open(folder)
        return store

    def _open(self, folder: Path) -> None:
        """Reads the config of a folder; raises InputError if the config does not match the folder's name."""
        content = files.read(folder / CONFIG)
        if content is None:
            raise InputError(f"{folder} has no {CONFIG}, so it is not an audit: name another")
        self.text = content.decode(errors="replace")
        self.hash = _compute_hash(self.text)
        # `resolve` replaces "." and links with the real name.
        require(
            self.hash == hash_of(folder.resolve()),
            f"{folder / CONFIG} is not the setting that its folder is named after: move it away",
        )
        self.path = folder
        self.checkpoints = folder / "checkpoints"

    def config(self) -> dict[str, Any]:
        """Returns the setting in the config."""
        config: dict[str, Any] = json.loads(self.text)
        return config

    def result(self) -> StoredResult:
        """Returns the conclusion of the last audit; if there is none, all fields are None.

        Raises InputError if audit.json can't be read.
        """
        content = files.read(self.path / RESULT)
        if content is None:
            return StoredResult()
        try:
            result = json.loads(content)
            bounds = result.get("bounds") or [{}]
            first = bounds[0]  # all have the same delta and confidence
            upper_bound = result.get("upper_bound")
            if upper_bound is None and "upper_bound" in result:
                upper_bound = math.inf  # JSON has null for infinity
            return StoredResult(
                runs=result.get("runs"),
                delta=first.get("delta"),
                confidence=first.get("confidence"),
                epsilon=result.get("epsilon"),
                upper_bound=upper_bound,
                provenance=result.get("provenance", {}),
            )
        except (ValueError, AttributeError, LookupError, TypeError, RecursionError):
            raise InputError(
                f"{self.path / RESULT} cannot be read: move it away, or run the audit again"
            ) from None

    def save(self, chunk: Scores) -> None:
        """Writes the scores and presence of a finished chunk of runs to a file."""
        arrays = chunk._asdict()
        first = arrays.pop("first")  # only the file name contains it
        stop = first + len(chunk.scores)
        self.write_arrays(f"scores_{first:07d}_{stop:07d}.npz", arrays)

    def load(self, runs: int) -> Scores:
        """Returns the scores of runs 0 .. runs - 1; raises InputError if any are missing or unreadable."""
        chunks = self._read_chunks()
        gaps = _find_gaps(chunks, runs)
        if gaps:
            first, stop = gaps[0]
            raise InputError(f"{self.path} does not have runs {first} to {stop - 1}: train them")
        any_chunk = next(iter(chunks.values()))  # all have the same number of canaries
        shape = (runs, any_chunk.scores.shape[1])
        whole = any_chunk._replace(first=0, scores=np.empty(shape), presence=np.empty(shape, bool))
        for (first, stop), chunk in chunks.items():
            if first < runs:
                # The last chunk may extend beyond the requested runs.
                whole.scores[first:stop] = chunk.scores[: runs - first]
                whole.presence[first:stop] = chunk.presence[: runs - first]
        return whole

    def missing(self, runs: int) -> list[Range]:
        """Returns the ranges [start, stop) of the missing runs among 0 .. runs - 1.

        Damaged files are renamed and counted as missing. Raises InputError if a file can't be read.
        """
        return _find_gaps(self._read_chunks(), runs)

    def runs_held(self) -> int:
        """Returns the number of stored runs before the first missing one."""
        gaps = self.missing(sys.maxsize)  # never empty: no store has this many runs
        first_gap = gaps[0]
        return first_gap[0]

    def read_arrays(self, name: str, fix: str) -> dict[str, NDArray[Any]] | None:
        """Returns the arrays of an .npz file, keyed by name, or None if the file is missing or unusable.

        A file that is damaged or belongs to another setting is renamed. The message ends with `fix`, the
        caller's next step.
        """
        path = self.path / name
        content = files.read(path)
        if content is None:
            return None
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as file:
                arrays = dict(file)
        except Exception:  # NumPy can raise almost anything for damaged bytes
            files.set_aside(path, fix)
            return None
        # Files from old versions have no hash, but their folder identifies the setting.
        if str(arrays.pop(_HASH_ARRAY, self.hash)) != self.hash:
            files.set_aside(path, fix, "belongs to another setting")
            return None
        return arrays

    def write_arrays(self, name: str, arrays: Mapping[str, Any]) -> None:
        """Writes arrays and the setting's hash to an .npz file.

        Identical arrays produce identical bytes, because `savez` stores a constant date.
        """
        buffer = io.BytesIO()
        marked: dict[str, Any] = {**arrays, _HASH_ARRAY: np.array(self.hash)}
        np.savez(buffer, **marked)
        files.write_whole(self.path / name, buffer.getvalue())

    def write_text(self, name: str, text: str) -> Path:
        """Writes a file in UTF-8 and returns its path; raises InputError on failure."""
        return files.write_whole(self.path / name, text.encode())

    def _read_chunks(self) -> dict[Range, Scores]:
        """Returns the scores in every intact file, keyed by range of runs and sorted by file name."""
        chunks = {}
        for path in files.list_folder(self.path):
            match = _CHUNK_FILE.fullmatch(path.name)
            if match is None:
                continue
            arrays = self.read_arrays(path.name, "its runs are trained again")
            if not arrays:
                continue
            fields = {}
            for name, value in arrays.items():
                fields[name] = plain(value)  # `dimension` and `draws` become ints
            first = int(match[1])
            chunk = Scores(first, **fields)
            chunks[first, first + len(chunk.scores)] = chunk
        return chunks


def _find_gaps(held: Iterable[Range], runs: int) -> list[Range]:
    """Returns the ranges [start, stop) of runs 0 .. runs - 1 that no range in `held` covers."""
    gaps = []
    begin = 0  # of the next gap, if any
    for first, stop in [*sorted(held), (runs, runs)]:  # the empty range ends the last gap
        end = min(first, runs)
        if begin < end:
            gaps.append((begin, end))
        begin = max(begin, stop)
    return gaps


def cut(ranges: Iterable[Range], size: int) -> Iterator[Range]:
    """Cuts ranges into chunks of at most `size` runs, and yields them in order."""
    for start, stop in ranges:
        for first in range(start, stop, size):
            yield first, min(first + size, stop)


def count_runs(ranges: Iterable[Range]) -> int:
    """Returns the total number of runs in the ranges."""
    return sum(stop - start for start, stop in ranges)


def hash_of(folder: Path) -> str:
    """Returns the hash at the end of a folder's name, which is <words>-<hash> or <hash>."""
    return folder.name.rpartition("-")[2]


def newest_scores(folder: Path) -> int:
    """Returns the time of a folder's newest scores in nanoseconds since 1970; 0 without scores."""
    newest = 0
    for path in folder.iterdir():
        if _CHUNK_FILE.fullmatch(path.name):
            newest = max(newest, path.stat().st_mtime_ns)
    return newest


def _compute_hash(text: str) -> str:
    """Returns the first 16 hex digits of a text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _find_folder(root: Path, name: str) -> Path | None:
    """Returns the folder under `root` that has a config and whose name ends in `name`, if any."""
    for folder in [root / name, *sorted(root.glob(f"*-{name}"))]:
        if (folder / CONFIG).exists():
            return folder
    return None


@contextlib.contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Locks a folder during the `with` block, waiting while another process is using it.

    Blocks can be nested. Raises CannotWriteError if the folder can't be written.
    """
    import filelock  # readers of a store may lack it

    with files.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        # Nested blocks share one lock object, so they do not wait for each other.
        lock = filelock.FileLock(folder / ".lock", is_singleton=True)
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            print(f"another process is using {folder}: waiting for it", file=sys.stderr)
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


_MIN_TRAINING_RATIO = 49  # of training time to writing time


class Checkpoints:
    """The checkpoints in a folder, for one chunk of runs at a time.

    Each chunk is trained in segments of several steps. A checkpoint stores the states of the chunk's runs (a
    pytree of arrays) after a segment.
    """

    def __init__(self, folder: Path, seconds: float = 30.0) -> None:
        """Prepares to read and write checkpoints in a folder, which may not exist yet.

        `seconds` is the minimum time between two checkpoints. If writing is slow, checkpoints are further
        apart, unless `seconds` is 0.
        """
        self._folder = folder
        self._seconds = seconds
        self._due = time.monotonic() + seconds
        self._has_failed = False

    def resume(self, chunk: str, states: Any) -> tuple[int, Any]:
        """Returns (segments done, states) of a chunk from its newest usable checkpoint.

        Without a usable checkpoint, returns 0 and `states`, the states before the first segment. Checkpoints
        are renamed and reported if they are damaged or have unexpected shapes or types.
        """
        import jax  # readers of a store may lack JAX

        expected, structure = jax.tree.flatten(states)
        for done, path in self._find(chunk):
            with contextlib.suppress(Exception):  # damaged bytes can raise almost anything
                with np.load(path, allow_pickle=False) as file:
                    leaves = list(file.values())
                types = [(leaf.shape, leaf.dtype) for leaf in leaves]
                if types == [(leaf.shape, leaf.dtype) for leaf in expected]:
                    return done, jax.tree.unflatten(structure, leaves)
            files.set_aside(path, "its steps are trained again")
        return 0, states

    def offer(self, chunk: str, done: int, states: Any) -> None:
        """Writes a checkpoint of a chunk after `done` segments if one is due, and removes older ones.

        If writing fails, training continues. Only the first failure is reported on stderr.
        """
        import jax

        begin = time.monotonic()
        if begin < self._due:
            return
        path = self._folder / f"{chunk}_{done:06d}.npz"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with files.replacing(path) as temporary, open(temporary, "wb") as file:
                np.savez(file, *map(np.asarray, jax.tree.leaves(states)))
        except OSError as error:
            if not self._has_failed:
                place = f"no checkpoint in {self._folder} ({error.strerror})"
                fix = "free some space, or keep results in another folder"
                print(f"{place}: training continues without it; {fix}", file=sys.stderr)
            self._has_failed = True
        else:
            self.drop(chunk, keep=path)
        end = time.monotonic()
        self._due = end
        if self._seconds:  # 0 means a checkpoint after each segment
            # Writing may take at most 2% of the time.
            self._due += max(self._seconds, _MIN_TRAINING_RATIO * (end - begin))

    def drop(self, chunk: str, keep: Path | None = None) -> None:
        """Removes a chunk's checkpoints, except `keep`."""
        for _, path in self._find(chunk):
            if path != keep:
                files.remove(path)

    def clear(self) -> None:
        """Removes the folder."""
        files.remove(self._folder)

    def _find(self, chunk: str) -> list[tuple[int, Path]]:
        """Returns the chunk's checkpoints, newest first, as pairs (segments done, path)."""
        checkpoints = []
        for path in self._folder.glob(f"{chunk}_*.npz"):
            segments = path.stem.removeprefix(f"{chunk}_")
            if segments.isdigit():
                checkpoints.append((int(segments), path))
        return sorted(checkpoints, reverse=True)
