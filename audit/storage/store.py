"""Scores on disk: one directory a setting, one file a finished chunk.

A setting is a dict of what decides a run's score, known by the SHA-256 of its canonical JSON. Its folder's
name ends in the beginning of that hash; the words before it, if any, are for people and find nothing. The
number of runs is no part of it: asking for more runs later trains only those. Files are written
beside and renamed into place, so that a kill at any instant loses at most the chunk in progress;
scores are kept, so that new statistics need no new training.

    <root>/<words>-<hash>/config.json          the setting, in plain text
      scores_<first>_<stop>.npz                scores, presence, their SHA-256, and the setting's
      audit.json, audit.png                    what the last audit concluded
      claim.lease, runs_<first>_<stop>.lease   who has all of it, or a chunk (`audit.storage.shares`)
      checkpoints/                             states of a chunk in progress (`audit.storage.checkpoints`)
"""

import contextlib
import hashlib
import io
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.errors import InputError, require
from audit.statistics.canaries import Coins, Fresh, of_own_coins
from audit.statistics.method import FRESH_DIRECTIONS, MANY_CANARIES, ONE_CANARY
from audit.storage import files

CONFIG, RESULT, FIGURE = "config.json", "audit.json", "audit.png"
_SETTING = "setting"  # of the arrays that a file holds
_CHUNK = re.compile(r"scores_(\d+)_(\d+)\.npz")


class Scores(NamedTuple):
    """Scores of runs from `first` on, K canaries each: scores (n, K) float64, presence (n, K) bool.
    dimension: of the space where they are cosines of directions that each run drew afresh; else 0."""

    first: int
    scores: NDArray[np.float64]
    presence: NDArray[np.bool_]
    dimension: int = 0

    def of_first(self, runs: int) -> "Scores":
        """The scores of the first so many runs."""
        return self._replace(scores=self.scores[:runs], presence=self.presence[:runs])

    def design(self) -> Coins:
        """The scores as statistics take them, however many canaries a run has."""
        return of_own_coins(self.scores, self.presence)

    def directions(self) -> Fresh:
        """The scores as cosines of fresh directions."""
        return Fresh(self.scores, self.presence, self.dimension)

    def worlds(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(scores in, scores out), flat, of one canary a run. Raises InputError for several canaries a run:
        their scores share a model and are not independent."""
        require(
            self.scores.size == len(self.scores),
            "scores of several canaries a run are not independent: give one a run, or use a method for "
            "many canaries",
        )
        return self.scores[self.presence], self.scores[~self.presence]


class Kept(NamedTuple):
    """The conclusion of an audit; None for what the file does not say.

    runs: those that it concludes from. delta, confidence: of its bounds. epsilon: of the bound
    that assumes nothing on the curve, `lifted` of many canaries a run. upper_bound: the accountant's
    epsilon, infinite where the file has null.
    """

    runs: int | None = None
    delta: float | None = None
    confidence: float | None = None
    epsilon: float | None = None
    upper_bound: float | None = None
    provenance: dict[str, str] = {}  # noqa: RUF012, never written to


class Store:
    """The directory of one setting: its path, and its config as text."""

    def __init__(self, root: Path, setting: dict[str, Any], words: str = "") -> None:
        """Makes the folder, with words before its hash, or finds it; InputError where it can't be written."""
        self.text = _text(setting)
        name = _hash(self.text.encode())
        self.path = root / (f"{words}-{name}" if words else name)
        self._claimed = False
        try:
            self.path = _place(root, name) or self.path
            config = self.path / CONFIG
            self.path.mkdir(parents=True, exist_ok=True)
            if not config.exists():
                self.write_text(CONFIG, self.text)
            stored = config.read_bytes()
        except OSError as error:
            raise files.cannot_write(self.path, error) from None
        require(stored == self.text.encode(), _misnamed(config))

    @staticmethod
    def exists(root: Path, setting: dict[str, Any]) -> bool:
        """Whether a setting has a directory; raises InputError for a root that can't be looked into."""
        try:
            return _place(root, _hash(_text(setting).encode())) is not None
        except OSError as error:
            raise files.cannot_read(root, error) from None

    @classmethod
    def at(cls, folder: Path) -> "Store":
        """The store of a setting whose folder is there; creates nothing. Raises InputError where its config
        can't be read, or is not the one that the folder is named after."""
        config = folder / CONFIG
        try:
            content = config.read_bytes()
        except OSError as error:
            raise InputError(f"cannot read {config} ({error.strerror}): name another `setting`") from None
        require(_hash(content) == hash_of(folder.resolve()), _misnamed(config))
        return cls.of(folder, content.decode(errors="replace"))

    @classmethod
    def of(cls, folder: Path, text: str) -> "Store":
        """The store of results whose kind names their folder and writes this config; creates nothing."""
        store = cls.__new__(cls)
        store.text, store.path, store._claimed = text, folder, False
        return store

    @property
    def checkpoints(self) -> Path:
        """The folder for the states of a chunk in progress (`audit.storage.checkpoints`)."""
        return self.path / "checkpoints"

    def config(self) -> dict[str, Any]:
        """The setting; raises InputError where it is none."""
        try:
            config = json.loads(self.text)
        except (ValueError, RecursionError):
            config = None
        if not isinstance(config, dict):
            raise InputError(f"{self.path / CONFIG} holds no setting: move it away")
        return config

    def result(self) -> Kept | None:
        """The last audit's conclusion, None where there is none; raises InputError if it can't be read."""
        path = self.path / RESULT
        content = files.read(path)
        try:
            return None if content is None else _conclusion(content)
        except (ValueError, OverflowError, RecursionError):
            raise InputError(f"{path} cannot be read: move it away, or run the audit again") from None

    @contextlib.contextmanager
    def claim(self) -> Iterator[bool]:
        """Yields whether this process has the setting to itself, to the end of the block, but for chunks of
        runs, which are shared (`audit.storage.shares`).

        A claim of a process that died, or that has not renewed it for a minute, is taken over. Within a claim
        of this store's own another is granted. Raises InputError where the folder can't be written.
        """
        if self._claimed:
            yield True
            return
        from audit.storage import claims  # filelock's import is a fifth of a finished sweep's time

        with claims.claim(self.path) as mine:
            self._claimed = mine
            try:
                yield mine
            finally:
                self._claimed = False

    @contextlib.contextmanager
    def turn(self, part: str) -> Iterator[None]:
        """Waits until no other process is in a block of that name: for files that are read, then written."""
        from audit.storage import claims

        with claims.turn(self.path, part):
            yield

    def save(self, chunk: Scores) -> None:
        """Keeps a finished chunk, scores and presence of one shape."""
        require(chunk.scores.shape == chunk.presence.shape, "`presence`: give a bit for every score")
        (first, stop), checksum = _runs(chunk), np.array(_checksum(chunk))
        arrays = {"scores": chunk.scores, "presence": chunk.presence, "sha256": checksum}
        if chunk.dimension:
            arrays["dimension"] = np.array(chunk.dimension)
        self.write_arrays(f"scores_{first:07d}_{stop:07d}.npz", arrays)

    def load(self, runs: int) -> Scores:
        """The scores of runs 0 .. runs - 1; raises InputError where some are missing or can't be read."""
        chunks = self._intact()
        missing = gaps(map(_runs, chunks), runs)
        if missing:
            raise InputError(f"{self.path} lacks runs {missing[0][0]} to {missing[0][1] - 1}: train them")
        shape = (runs, chunks[0].scores.shape[1] if chunks else 1)
        scores, present = np.empty(shape), np.empty(shape, bool)
        for first, values, presence, _ in chunks:
            stop = min(first + len(values), runs)
            scores[first:stop] = values[: max(stop - first, 0)]
            present[first:stop] = presence[: max(stop - first, 0)]
        return Scores(0, scores, present, chunks[0].dimension if chunks else 0)

    def missing(self, runs: int) -> list[tuple[int, int]]:
        """The ranges [start, stop) of runs that no intact file holds; see `distrust` for the others. Raises
        InputError where a file can't be read, and where files are of different numbers of canaries a run."""
        return gaps(map(_runs, self._intact()), runs)

    def held(self, known: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
        """The runs [first, stop) of every intact file, by its name; those known are not read again."""
        found = {}
        for path, first in self._chunk_files():
            if path.name in known:
                found[path.name] = known[path.name]
            elif (chunk := self._read(path, first)) is not None:
                found[path.name] = _runs(chunk)
        return found

    def runs_held(self) -> int:
        """The number of runs, from run 0 to the first that is missing."""
        held = [_runs(chunk) for chunk in self._intact()]
        end = max((stop for _, stop in held), default=0)
        return next((first for first, _ in gaps(held, end)), end)

    def distrust(self, path: Path, mend: str) -> None:
        """Says on stderr that a file is damaged or foreign, and what mends it. Within this store's claim it
        is set aside; otherwise it stays, and is said once a process: who reads renames nothing."""
        what = "is of another setting" if self.is_foreign(files.read(path) or b"") else "is damaged"
        if self._claimed:
            files.set_aside(path, mend, what)
        else:
            files.say_once(f"{path} {what}: it counts as missing")

    def is_foreign(self, content: bytes) -> bool:
        """Whether the bytes of an .npz file say that they are of another setting; older files don't say."""
        with contextlib.suppress(*files.NOT_AN_ARCHIVE), np.load(io.BytesIO(content)) as file:
            return _SETTING in file.files and str(file[_SETTING]) != _hash(self.text.encode())
        return False

    def write_arrays(self, name: str, arrays: Mapping[str, Any]) -> Path:
        """Writes arrays by name as a whole .npz file, beside them the setting's hash; the same bytes for the
        same values."""
        buffer = io.BytesIO()
        marked: dict[str, Any] = {**arrays, _SETTING: np.array(_hash(self.text.encode()))}
        np.savez(buffer, **marked)
        return self.write_bytes(name, buffer.getvalue())

    def write_text(self, name: str, text: str) -> Path:
        return self.write_bytes(name, text.encode())

    def write_bytes(self, name: str, content: bytes) -> Path:
        """Writes a whole file or nothing; raises InputError where it can't."""
        return files.write_whole(self.path / name, content)

    def _intact(self) -> list[Scores]:
        read = [self._read(path, first) for path, first in self._chunk_files()]
        chunks = [chunk for chunk in read if chunk is not None]
        canaries = sorted({chunk.scores.shape[1] for chunk in chunks})
        if len(canaries) > 1:
            raise InputError(
                f"{self.path} mixes scores of {canaries[0]} and {canaries[1]} canaries a run: move it away"
            )
        return chunks

    def _read(self, path: Path, first: int) -> Scores | None:
        content = files.read(path)
        chunk = None if content is None or self.is_foreign(content) else _parsed(content, first)
        if content is not None and chunk is None:
            self.distrust(path, "its runs are trained again")
        return chunk

    def _chunk_files(self) -> list[tuple[Path, int]]:
        """(path, first run) of every file of scores; raises InputError where the folder can't be read."""
        try:
            found = ((path, _CHUNK.fullmatch(path.name)) for path in sorted(self.path.iterdir()))
            return [(path, int(match[1])) for path, match in found if match]
        except OSError as error:
            raise files.cannot_read(self.path, error) from None


def gaps(held: Iterable[tuple[int, int]], runs: int) -> list[tuple[int, int]]:
    """The ranges [start, stop) of runs below `runs` that none of those that are held covers."""
    found, end = [], 0
    for first, stop in sorted(held):
        found.append((end, min(first, runs)))
        end = max(end, stop)
    return [(start, stop) for start, stop in [*found, (end, runs)] if start < stop]


def finite(value: float | None) -> float | None:
    """A number as JSON can hold it: None for one that is infinite or none."""
    return value if value is not None and math.isfinite(value) else None


def hash_of(folder: Path) -> str:
    """The hash at the end of a setting's folder's name."""
    return folder.name.rpartition("-")[2]


def newest_scores(folder: Path) -> int | None:
    """When a folder's newest scores were written, in nanoseconds; None where it has none."""
    times = (path.stat().st_mtime_ns for path in folder.iterdir() if _CHUNK.fullmatch(path.name))
    return max(times, default=None)


def _text(setting: dict[str, Any]) -> str:
    return json.dumps(setting, indent=2, sort_keys=True) + "\n"


def _place(root: Path, name: str) -> Path | None:
    """The folder of a hash that holds a config: the one without words, as they once were, or the first."""
    found = [root / name, *sorted(root.glob(f"*-{name}"))]
    return next((folder for folder in found if _is_there(folder / CONFIG)), None)


def _is_there(path: Path) -> bool:
    """Whether there is a file; raises OSError where that can't be found out."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _misnamed(config: Path) -> str:
    return f"{config} is not the setting that its folder is named after: move it away"


def _runs(chunk: Scores) -> tuple[int, int]:
    return chunk.first, chunk.first + len(chunk.scores)


def _checksum(chunk: Scores) -> str:
    """SHA-256 over first run, scores and presence; over their shape too where a run has several canaries."""
    digest = hashlib.sha256(str(chunk.first).encode())
    if chunk.scores.size > len(chunk.scores):
        digest.update(f" {chunk.scores.shape}".encode())
    if chunk.dimension:
        digest.update(f" in {chunk.dimension}".encode())
    digest.update(chunk.scores.astype("<f8").tobytes())
    digest.update(chunk.presence.astype("u1").tobytes())
    return digest.hexdigest()


def _parsed(content: bytes, first: int) -> Scores | None:
    """A chunk file's scores; None where it is torn or altered. Arrays (n,) are of one canary a run."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            arrays = [np.atleast_2d(file[name].T).T for name in ("scores", "presence")]
            chunk = Scores(first, arrays[0], arrays[1], _dimension(file))
            whole = arrays[0].ndim == 2 and arrays[0].shape == arrays[1].shape
            return chunk if whole and str(file["sha256"]) == _checksum(chunk) else None
    except files.NOT_AN_ARCHIVE:
        return None


def _dimension(file: Mapping[str, NDArray[np.generic]]) -> int:
    return int(file["dimension"]) if "dimension" in file else 0


def _conclusion(content: bytes) -> Kept:
    """An audit.json checked field by field; ValueError, OverflowError or RecursionError for any other."""
    result = json.loads(content)
    require(isinstance(result, dict), "an object")
    rows, provenance, runs = result.get("bounds", []), result.get("provenance", {}), result.get("runs")
    require(isinstance(rows, list) and all(isinstance(row, dict) for row in rows), "rows")
    texts = isinstance(provenance, dict) and all(isinstance(value, str) for value in provenance.values())
    require(texts, "texts")
    require(runs is None or (type(runs) is int and runs >= 1), "a number of runs")
    levels = [_number(rows[0].get(name)) for name in ("delta", "confidence")] if rows else []
    require(all(0 < level < 1 for level in levels), "levels")
    delta, confidence = levels or (None, None)
    names = {pair.free for pair in (ONE_CANARY, MANY_CANARIES, FRESH_DIRECTIONS)}
    free = [row for row in rows if row.get("method") in names]
    epsilon = _number(free[0].get("epsilon")) if free else None
    upper = math.inf if result.get("upper_bound", 0) is None else result.get("upper_bound")
    return Kept(runs, delta, confidence, epsilon, None if upper is None else _number(upper), provenance)


def _number(value: object) -> float:
    require(type(value) in (int, float) and value == value, "a number")
    assert isinstance(value, int | float)
    return float(value)
