"""Scores on disk: a directory for each setting, with a file for each finished chunk.

A setting is a dict of what decides a run's score, identified by the SHA-256 of its canonical JSON. Its
folder's name ends in the beginning of that hash; the words before it, if any, are for people and identify
nothing. The number of runs is no part of it: asking for more runs later trains only those. Files are written
beside and renamed into place, so that a kill at any instant loses at most the chunk in progress; scores are
stored, so that other statistics need no other training.

    <root>/<words>-<hash>/config.json          the setting, in plain text
      scores_<first>_<stop>.npz                scores, presence, and the setting's hash
      audit.json, audit.png                    what the last audit concluded
      .lock                                    held by the process that trains (`audit.storage.locks`)
      checkpoints/                             states of a chunk in progress (`audit.storage.checkpoints`)
"""

import contextlib
import hashlib
import io
import json
import math
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.errors import InputError, require
from audit.evidence import ranks
from audit.evidence.canaries import Coins, Fresh, make_coins
from audit.methods.method import FRESH_DIRECTIONS, MANY_CANARIES, ONE_CANARY
from audit.storage import files, locks

CONFIG = "config.json"
RESULT = "audit.json"
FIGURE = "audit.png"
Range = tuple[int, int]  # runs [start, stop)
_SETTING = "setting"  # the name under which a file's arrays include the setting's hash
_CHUNK = re.compile(r"scores_(\d+)_(\d+)\.npz")


class Scores(NamedTuple):
    """Scores of n runs with K canaries each.

    Attributes:
      first: the number of the first run.
      scores: (n, K) float64.
      presence: (n, K) bool, whether a canary was in.
      dimension: the dimension of the space, where scores are cosines with uniform directions in it; else 0.
      draws: the number M of fresh draws a run, where a score counts how many of these are below the canary;
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

    def design(self) -> Coins:
        """Returns the scores as evidence of canaries, each of which was in or out by a fair coin."""
        return make_coins(self.scores, self.presence)

    def directions(self) -> Fresh:
        """Returns the scores as evidence of canaries that every run drew afresh.

        They are ranks among fresh draws where `draws` is not 0, else cosines with uniform directions.
        """
        if self.draws:
            return ranks.make_from_counts(self.scores, self.presence, self.draws)
        return Fresh(self.scores, self.presence, self.dimension)

    def worlds(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Returns (scores with the canary, scores without it), flat, for runs with a single canary each.

        Raises:
          InputError: a run has several canaries, whose scores share a model and are not independent.
        """
        require(
            self.scores.size == len(self.scores),
            "scores of several canaries a run are not independent: give one a run, or use a method for "
            "many canaries",
        )
        return self.scores[self.presence], self.scores[~self.presence]


class Kept(NamedTuple):
    """The conclusion of an audit, as its folder's audit.json holds it; a field that the file lacks is None.

    Attributes:
      runs: the number of runs from which it was concluded.
      delta: the delta of the bounds.
      confidence: the confidence of the lower bounds.
      epsilon: the lower bound that assumes nothing about the trade-off curve.
      upper_bound: the accountant's epsilon; infinite where the file has null.
      provenance: circumstances of the training runs by name, such as versions and device; {} where the file
        lacks them.
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
    """

    def __init__(self, root: Path, setting: dict[str, Any], words: str = "") -> None:
        """Opens the folder of a setting; makes it where there is none, and removes what killed runs left.

        Args:
          root: the folder of all stores.
          setting: everything that decides a run's score, as a dict for JSON.
          words: text that comes before the hash in the name of a folder that is made.

        Raises:
          InputError: the folder can't be written, or its config is another setting's.
        """
        self.text = _text(setting)
        name = _hash(self.text.encode())
        self.path = root / (f"{words}-{name}" if words else name)
        try:
            # A folder that exists is taken, whatever words are in its name.
            self.path = _find_folder(root, name) or self.path
            config = self.path / CONFIG
            self.path.mkdir(parents=True, exist_ok=True)
            files.remove_abandoned(self.path)
            if not config.exists():
                self.write_text(CONFIG, self.text)
            stored = files.read(config)
        except OSError as error:
            raise files.cannot_write(self.path, error) from None
        require(stored == self.text.encode(), _describe_misnamed(config))

    @staticmethod
    def exists(root: Path, setting: dict[str, Any]) -> bool:
        """Returns whether a setting has a folder; raises InputError for a root that can't be looked into."""
        name = _hash(_text(setting).encode())
        try:
            return _find_folder(root, name) is not None
        except OSError as error:
            raise files.cannot_read(root, error) from None

    @classmethod
    def at(cls, folder: Path) -> "Store":
        """Returns the store in an existing folder; creates nothing.

        Raises:
          InputError: the config can't be read, or the folder's name does not end in its hash.
        """
        config = folder / CONFIG
        try:
            content = files.regular(config, "move it away").read_bytes()
        except OSError as error:
            raise InputError(
                f"cannot read {config} ({error.strerror}): name another `setting`"
            ) from None
        # `resolve`, since "." or a link to the folder has another name than the folder.
        require(_hash(content) == hash_of(folder.resolve()), _describe_misnamed(config))
        return cls.of(folder, content.decode(errors="replace"))

    @classmethod
    def of(cls, folder: Path, text: str) -> "Store":
        """Returns the store of a folder, whatever the folder's name; reads and creates nothing.

        Args:
          folder: the setting's folder.
          text: the content of its config.json.
        """
        # Without __init__, which looks the folder up by its hash or makes it.
        store = cls.__new__(cls)
        store.text = text
        store.path = folder
        return store

    @property
    def checkpoints(self) -> Path:
        """The folder in which the states of a chunk in progress are kept (`audit.storage.checkpoints`)."""
        return self.path / "checkpoints"

    def config(self) -> dict[str, Any]:
        """Returns the setting that the config holds; raises InputError where it is no JSON object."""
        try:
            config = json.loads(self.text)
        except (ValueError, RecursionError):
            config = None
        if not isinstance(config, dict):
            raise InputError(f"{self.path / CONFIG} holds no setting: move it away")
        return config

    def result(self) -> Kept | None:
        """Returns the last audit's conclusion; None where no audit has concluded yet.

        Raises:
          InputError: the conclusion can't be read.
        """
        path = self.path / RESULT
        content = files.read(path)
        if content is None:
            return None
        try:
            return _parse_conclusion(json.loads(content))
        except (
            ValueError,
            TypeError,
            LookupError,
            AttributeError,
            ArithmeticError,
            RecursionError,
        ):
            raise InputError(
                f"{path} cannot be read: move it away, or run the audit again"
            ) from None

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context that holds the store's lock, after waiting for it (`audit.storage.locks`)."""
        return locks.hold(self.path)

    def save(self, chunk: Scores) -> None:
        """Writes the file of a finished chunk of runs: its scores and presence.

        Raises InputError unless scores and presence have the same shape (runs, canaries).
        """
        fits = chunk.scores.ndim == 2 and chunk.scores.shape == chunk.presence.shape
        require(fits, "`presence`: give a bit for every score, (runs, canaries)")
        arrays: dict[str, Any] = {"scores": chunk.scores, "presence": chunk.presence}
        # A file leaves these out where they are 0; `_parse_chunk` reads 0 where they are missing.
        if chunk.dimension:
            arrays["dimension"] = np.array(chunk.dimension)
        if chunk.draws:
            arrays["draws"] = np.array(chunk.draws)
        first, stop = _runs_of(chunk)
        self.write_arrays(f"scores_{first:07d}_{stop:07d}.npz", arrays)

    def load(self, runs: int) -> Scores:
        """Returns the scores of runs 0 .. runs - 1.

        Raises:
          InputError: scores are missing or can't be read.
        """
        chunks = self._read_chunks()
        missing = gaps([_runs_of(chunk) for chunk in chunks], runs)
        if missing:
            first, stop = missing[0]
            raise InputError(f"{self.path} lacks runs {first} to {stop - 1}: train them")
        if not chunks:  # and none are missing: `runs` is 0
            return Scores(0, np.empty((runs, 1)), np.empty((runs, 1), bool))

        shape = (runs, chunks[0].scores.shape[1])
        scores = np.empty(shape)
        presence = np.empty(shape, bool)
        for chunk in chunks:
            first, stop = _runs_of(chunk)
            if first >= runs:
                continue
            stop = min(stop, runs)
            scores[first:stop] = chunk.scores[: stop - first]
            presence[first:stop] = chunk.presence[: stop - first]
        return Scores(0, scores, presence, chunks[0].dimension, chunks[0].draws)

    def missing(self, runs: int) -> list[tuple[int, int]]:
        """Returns the ranges [start, stop) of the runs 0 .. runs - 1 that no intact file holds.

        Damaged files are set aside, with a line on stderr.

        Raises:
          InputError: a file can't be read, or files differ in the number of canaries a run.
        """
        return gaps(self._find_runs(), runs)

    def runs_held(self) -> int:
        """Returns n where runs 0 .. n - 1 are stored and run n is missing."""
        stored = self._find_runs()
        end = max((stop for _, stop in stored), default=0)
        missing = gaps(stored, end)
        if missing:
            return missing[0][0]
        return end

    def distrust(self, path: Path, fix: str, problem: str = "is damaged") -> None:
        """Sets a file aside that can't be used, with a line on stderr; it stays if it can't be renamed.

        Args:
          path: the file.
          fix: what is done about the loss, for the message.
          problem: what is wrong with the file, for the message.
        """
        try:
            files.set_aside(path, fix, problem)
        except files.CannotWriteError:
            print(f"{path} {problem}: it counts as missing", file=sys.stderr)

    def read_arrays(self, name: str, fix: str) -> dict[str, NDArray[Any]] | None:
        """Returns the arrays of an .npz file by name; None if there is no file, or none that can be used.

        A file that is damaged, or that names another setting, is set aside (`distrust`).

        Args:
          name: the file's name.
          fix: what is done about the loss, for the message.
        """
        path = self.path / name
        content = files.read(path)
        if content is None:
            return None
        arrays = None
        # The format has a checksum of each array.
        with (
            contextlib.suppress(*files.NOT_AN_ARCHIVE),
            np.load(io.BytesIO(content), allow_pickle=False) as file,
        ):
            arrays = dict(file)
        if arrays is None:
            self.distrust(path, fix)
            return None
        own_hash = _hash(self.text.encode())
        if str(arrays.pop(_SETTING, own_hash)) != own_hash:
            self.distrust(path, fix, "is of another setting")
            return None
        return arrays

    def write_arrays(self, name: str, arrays: Mapping[str, Any]) -> Path:
        """Writes arrays and the setting's hash to an .npz file, whole or not at all; returns its path.

        Equal arrays give equal bytes.

        Args:
          name: the file's name.
          arrays: the arrays by their names in the file.
        """
        buffer = io.BytesIO()
        marked: dict[str, Any] = {**arrays, _SETTING: np.array(_hash(self.text.encode()))}
        np.savez(buffer, **marked)
        return self.write_bytes(name, buffer.getvalue())

    def write_text(self, name: str, text: str) -> Path:
        """Writes a file in UTF-8, whole or not at all, and returns its path; raises InputError on failure."""
        return self.write_bytes(name, text.encode())

    def write_bytes(self, name: str, content: bytes) -> Path:
        """Writes a file, whole or not at all, and returns its path; raises InputError on failure."""
        return files.write_whole(self.path / name, content)

    def _find_runs(self) -> list[tuple[int, int]]:
        """Returns the runs [first, stop) of every intact file of scores."""
        return [_runs_of(chunk) for chunk in self._read_chunks()]

    def _read_chunks(self) -> list[Scores]:
        """Returns the scores of every intact file, in the order of the files' names.

        Raises InputError where files differ in the number of canaries a run.
        """
        chunks = []
        for path, first in self._find_chunk_files():
            chunk = self._read_chunk(path, first)
            if chunk is not None:
                chunks.append(chunk)
        counts = sorted({chunk.scores.shape[1] for chunk in chunks})
        if len(counts) > 1:
            raise InputError(
                f"{self.path} mixes scores of {counts[0]} and {counts[1]} canaries a run: move it away"
            )
        return chunks

    def _read_chunk(self, path: Path, first: int) -> Scores | None:
        """Returns the scores of a file whose first run is `first`; None if it can't be used (`distrust`)."""
        fix = "its runs are trained again"
        arrays = self.read_arrays(path.name, fix)
        if arrays is None:
            return None
        try:
            return _parse_chunk(arrays, first)
        except (KeyError, ValueError):
            self.distrust(path, fix)
            return None

    def _find_chunk_files(self) -> list[tuple[Path, int]]:
        """Returns (path, number of the first run) of every file of scores, sorted by name.

        Raises InputError where the folder can't be read.
        """
        try:
            paths = sorted(self.path.iterdir())
        except OSError as error:
            raise files.cannot_read(self.path, error) from None
        chunk_files = []
        for path in paths:
            match = _CHUNK.fullmatch(path.name)
            if match:
                chunk_files.append((path, int(match[1])))
        return chunk_files


def gaps(held: Iterable[tuple[int, int]], runs: int) -> list[tuple[int, int]]:
    """Returns the ranges [start, stop) of runs below `runs` that none of the held ranges covers."""
    uncovered = []
    end = 0  # runs below this are covered, or are in `uncovered`
    for first, stop in sorted(held):
        uncovered.append((end, min(first, runs)))
        end = max(end, stop)
    uncovered.append((end, runs))
    return [(start, stop) for start, stop in uncovered if start < stop]


def cut(ranges: Iterable[Range], size: int) -> list[Range]:
    """Cuts ranges of runs into chunks of at most `size` runs, in order."""
    chunks = []
    for start, stop in ranges:
        for first in range(start, stop, size):
            chunks.append((first, min(first + size, stop)))
    return chunks


def count_runs(ranges: Iterable[Range]) -> int:
    """Returns the number of runs in all ranges together."""
    return sum(stop - start for start, stop in ranges)


def hash_of(folder: Path) -> str:
    """Returns the hash at the end of a folder's name, which is <words>-<hash> or <hash>."""
    return folder.name.rpartition("-")[2]


def newest_scores(folder: Path) -> int | None:
    """Returns when a folder's newest scores were written, in nanoseconds since 1970; None without scores."""
    times = []
    for path in folder.iterdir():
        if _CHUNK.fullmatch(path.name):
            times.append(path.stat().st_mtime_ns)
    return max(times, default=None)


def _text(setting: dict[str, Any]) -> str:
    """Returns a setting's canonical JSON."""
    return json.dumps(setting, indent=2, sort_keys=True) + "\n"


def _hash(content: bytes) -> str:
    """Returns the first 16 hex digits of a config's SHA-256, in which its folder's name ends."""
    return hashlib.sha256(content).hexdigest()[:16]


def _find_folder(root: Path, name: str) -> Path | None:
    """Returns the folder of the setting that has the given hash; None where there is none.

    Args:
      root: the folder of all stores.
      name: the setting's hash. A folder is named <hash>, which is looked for first, or <words>-<hash>.
    """
    for folder in [root / name, *sorted(root.glob(f"*-{name}"))]:
        if _is_there(folder / CONFIG):
            return folder
    return None


def _is_there(path: Path) -> bool:
    """Returns whether a path exists; raises OSError where that can't be determined.

    `Path.exists` of Python 3.14 and later returns False there.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _describe_misnamed(config: Path) -> str:
    """Returns the message of the error where a config's hash is not the one in its folder's name."""
    return f"{config} is not the setting that its folder is named after: move it away"


def _runs_of(chunk: Scores) -> tuple[int, int]:
    """Returns the runs [first, stop) of a chunk."""
    return chunk.first, chunk.first + len(chunk.scores)


def _parse_chunk(arrays: Mapping[str, NDArray[Any]], first: int) -> Scores:
    """Returns the scores of a chunk's file; raises KeyError or ValueError if the arrays are no scores."""
    scores = arrays["scores"]
    presence = arrays["presence"]
    require(scores.ndim == 2 and scores.shape == presence.shape, "(runs, canaries)")
    dimension = int(arrays.get("dimension", 0))
    draws = int(arrays.get("draws", 0))
    return Scores(first, scores, presence, dimension, draws)


def _parse_conclusion(result: dict[str, Any]) -> Kept:
    """Returns the conclusion in the JSON of an audit.json; raises errors of many types if it is none."""
    rows = result.get("bounds", [])
    delta = None
    confidence = None
    if rows:  # which all have the same delta and confidence
        delta = float(rows[0]["delta"])
        confidence = float(rows[0]["confidence"])

    # The lower bound on epsilon is that of the method that assumes nothing about the trade-off curve. Audits
    # of a single run have other methods.
    epsilon = result.get("epsilon")
    assumption_free = {ONE_CANARY.free, MANY_CANARIES.free, FRESH_DIRECTIONS.free}
    for row in rows:
        if row["method"] in assumption_free:
            epsilon = row["epsilon"]
            break

    upper_bound = None
    if "upper_bound" in result:
        upper_bound = math.inf  # which JSON writes as null
        if result["upper_bound"] is not None:
            upper_bound = float(result["upper_bound"])
    if epsilon is not None:
        epsilon = float(epsilon)
    runs = result.get("runs")
    require(runs is None or runs >= 1, "a number of runs")
    return Kept(runs, delta, confidence, epsilon, upper_bound, dict(result.get("provenance", {})))
