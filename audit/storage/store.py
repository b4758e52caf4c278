"""Scores on disk: a directory for each setting, with a file for each finished chunk.

A setting is a dict of what decides a run's score, identified by the SHA-256 of its canonical JSON. Its
folder's name ends in the beginning of that hash; the words before it, if any, are for people and identify
nothing. The number of runs is no part of it: asking for more runs later trains only those. Files are written
beside and renamed into place, so that a kill at any instant loses at most the chunk in progress; scores are
stored, so that other statistics need no other training.

    <root>/<words>-<hash>/config.json          the setting, in plain text
      scores_<first>_<stop>.npz                scores, presence, their SHA-256, and the setting's
      audit.json, audit.png                    what the last audit concluded
      claim.lease, runs_<first>_<stop>.lease   the holder of all of it, or of a chunk (`audit.storage.shares`)
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
from audit.evidence import ranks
from audit.evidence.canaries import Coins, Fresh, make_coins
from audit.methods.method import FRESH_DIRECTIONS, MANY_CANARIES, ONE_CANARY
from audit.storage import files

CONFIG = "config.json"
RESULT = "audit.json"
FIGURE = "audit.png"
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
        self._is_claimed = False
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
        store._is_claimed = False
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
            return _parse_conclusion(content)
        except (ValueError, OverflowError, RecursionError):
            raise InputError(
                f"{path} cannot be read: move it away, or run the audit again"
            ) from None

    @contextlib.contextmanager
    def claim(self) -> Iterator[bool]:
        """Tries to claim the setting until the end of the block, and yields whether that succeeded.

        The claim does not cover the training of chunks, which processes share (`audit.storage.shares`). It
        is taken over from a process that died, or that has not renewed it for a minute. A block within a
        block of the same store succeeds, too.

        Raises:
          InputError: the folder can't be written.
        """
        if self._is_claimed:  # the block is within another
            yield True
            return
        # Imported here: a sweep that has nothing left to train needs no filelock, whose import would take a
        # fifth of its time.
        from audit.storage import claims

        with claims.claim(self.path) as mine:
            self._is_claimed = mine
            try:
                yield mine
            finally:
                self._is_claimed = False

    @contextlib.contextmanager
    def turn(self, part: str) -> Iterator[None]:
        """Waits until no other process is in a block of the same name, and enters it.

        It is for files that are read and then rewritten, which two processes must not do at once.

        Args:
          part: the name of the block.
        """
        from audit.storage import claims  # imported here, as in `claim`: it loads filelock

        with claims.turn(self.path, part):
            yield

    def save(self, chunk: Scores) -> None:
        """Writes the file of a finished chunk of runs: its scores, presence and checksum.

        Raises InputError where scores and presence differ in shape.
        """
        require(
            chunk.scores.shape == chunk.presence.shape, "`presence`: give a bit for every score"
        )
        arrays: dict[str, Any] = {
            "scores": chunk.scores,
            "presence": chunk.presence,
            "sha256": np.array(_compute_checksum(chunk)),
        }
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

        Damaged files are reported, and maybe set aside; see `distrust`.

        Raises:
          InputError: a file can't be read, or files differ in the number of canaries a run.
        """
        return gaps(self._find_runs(), runs)

    def find_runs_by_file(self, earlier: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
        """Returns the runs [first, stop) of every intact file of scores, by the file's name.

        Args:
          earlier: what an earlier call returned, {} at first; files that it names are not read again.
        """
        runs_by_name = {}
        for path, first in self._find_chunk_files():
            if path.name in earlier:
                runs_by_name[path.name] = earlier[path.name]
                continue
            chunk = self._read_chunk(path, first)
            if chunk is not None:
                runs_by_name[path.name] = _runs_of(chunk)
        return runs_by_name

    def runs_held(self) -> int:
        """Returns n where runs 0 .. n - 1 are stored and run n is missing."""
        stored = self._find_runs()
        end = max((stop for _, stop in stored), default=0)
        missing = gaps(stored, end)
        if missing:
            return missing[0][0]
        return end

    def distrust(self, path: Path, fix: str) -> None:
        """Reports on stderr that a file is damaged, or is another setting's, and sets it aside.

        It is set aside, by renaming it, only while this store is claimed (`claim`). A process without the
        claim leaves it where it is, and reports it once.

        Args:
          path: the file.
          fix: what is done about the loss, for the message.
        """
        content = files.read(path) or b""
        problem = "is of another setting" if self.is_foreign(content) else "is damaged"
        if self._is_claimed:
            files.set_aside(path, fix, problem)
        else:
            files.say_once(f"{path} {problem}: it counts as missing")

    def is_foreign(self, content: bytes) -> bool:
        """Returns whether an .npz file's content names another setting, by its hash.

        It is False for content without a hash, as older files have it, and for damaged content.
        """
        own_hash = _hash(self.text.encode())
        with contextlib.suppress(*files.NOT_AN_ARCHIVE), np.load(io.BytesIO(content)) as file:
            return _SETTING in file.files and str(file[_SETTING]) != own_hash
        return False

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
        """Returns a file's scores; None where there is no file, or it is damaged or another setting's.

        A damaged or foreign file is reported, and set aside where this store is claimed (`distrust`).

        Args:
          path: the file.
          first: the number of its first run.
        """
        content = files.read(path)
        if content is None:
            return None
        chunk = None
        if not self.is_foreign(content):
            chunk = _parse_chunk(content, first)
        if chunk is None:
            self.distrust(path, "its runs are trained again")
        return chunk

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


def _compute_checksum(chunk: Scores) -> str:
    """Returns the SHA-256, in hex, of a chunk: the number of its first run, its scores and its presence.

    It also covers their shape where a run has several canaries, and the dimension and the number of fresh
    draws where these are not 0: a file leaves them out where they are 0.
    """
    digest = hashlib.sha256(str(chunk.first).encode())
    if chunk.scores.size > len(chunk.scores):
        digest.update(f" {chunk.scores.shape}".encode())
    if chunk.dimension:
        digest.update(f" in {chunk.dimension}".encode())
    if chunk.draws:
        digest.update(f" among {chunk.draws}".encode())
    digest.update(chunk.scores.astype("<f8").tobytes())
    digest.update(chunk.presence.astype("u1").tobytes())
    return digest.hexdigest()


def _parse_chunk(content: bytes, first: int) -> Scores | None:
    """Returns the scores in the content of a chunk's .npz file; None where it is torn or altered.

    Args:
      content: the file's bytes; arrays (n,) in it are those of a single canary a run.
      first: the number of its first run, which the file's name has.
    """
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            scores = _as_columns(file["scores"])
            presence = _as_columns(file["presence"])
            dimension = int(file["dimension"]) if "dimension" in file else 0
            draws = int(file["draws"]) if "draws" in file else 0
            if scores.ndim != 2 or scores.shape != presence.shape:
                return None
            chunk = Scores(first, scores, presence, dimension, draws)
            if str(file["sha256"]) != _compute_checksum(chunk):
                return None
            return chunk
    except files.NOT_AN_ARCHIVE:
        return None


def _as_columns(array: NDArray[Any]) -> NDArray[Any]:
    """Returns an array (n,) as a column (n, 1), and an array of more axes as it is."""
    return np.atleast_2d(array.T).T


def _parse_conclusion(content: bytes) -> Kept:
    """Returns the conclusion that the content of an audit.json holds; checks each field that it reads.

    Raises:
      ValueError, OverflowError or RecursionError: the content is no conclusion.
    """
    result = json.loads(content)
    # Check the types. Nobody sees these messages: `Store.result` replaces them by its own.
    require(isinstance(result, dict), "an object")
    runs = result.get("runs")
    require(runs is None or (type(runs) is int and runs >= 1), "a number of runs")
    provenance = result.get("provenance", {})
    require(isinstance(provenance, dict), "an object of texts")
    require(all(isinstance(value, str) for value in provenance.values()), "texts")
    rows = result.get("bounds", [])  # of bounds, maybe of estimates too
    require(isinstance(rows, list), "a list of rows")
    require(all(isinstance(row, dict) for row in rows), "rows")
    require(all(isinstance(row.get("method", ""), str) for row in rows), "rows of methods")

    # All rows have the same delta and confidence.
    delta = None
    confidence = None
    if rows:
        delta = _parse_level(rows[0].get("delta"))
        confidence = _parse_level(rows[0].get("confidence"))

    # The lower bound on epsilon is that of the method that assumes nothing about the trade-off curve.
    epsilon = None
    assumption_free = {ONE_CANARY.free, MANY_CANARIES.free, FRESH_DIRECTIONS.free}
    free_rows = [row for row in rows if row.get("method") in assumption_free]
    if free_rows:
        epsilon = _parse_number(free_rows[0].get("epsilon"))
    elif "epsilon" in result:  # an audit of a single run, which has other methods
        epsilon = _parse_number(result["epsilon"])

    upper_bound = None
    if "upper_bound" in result:
        upper_bound = math.inf  # which JSON writes as null
        if result["upper_bound"] is not None:
            upper_bound = _parse_number(result["upper_bound"])
    return Kept(runs, delta, confidence, epsilon, upper_bound, provenance)


def _parse_level(value: object) -> float:
    """Returns a delta or a confidence; raises ValueError for anything else."""
    level = _parse_number(value)
    require(0 < level < 1, "a level")
    return level


def _parse_number(value: object) -> float:
    """Returns a number as a float; raises ValueError for anything else, NaN among them."""
    require(type(value) in (int, float) and value == value, "a number")
    assert isinstance(value, int | float)
    return float(value)
