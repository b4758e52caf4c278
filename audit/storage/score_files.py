"""Scores from any framework: a .npz, .csv or .json file, two .npy, standard input, or a table of columns."""

import contextlib
import csv
import io
import json
import lzma
import math
import os
import struct
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from audit.errors import InputError, require
from audit.evidence import given, given_directions
from audit.evidence.arrays import floats
from audit.evidence.canaries import Coins, Fresh, Sets
from audit.evidence.one_run import OneRun
from audit.storage.files import NOT_AN_ARCHIVE, regular

Array = NDArray[np.float64]
Scores = Sets | Coins | OneRun

STDIN = Path("-")
MOST_SCORES = 5_000_000
MOST_BYTES = 1 << 30
_HEADER_BYTES = 1 << 16
_STANDARD_INPUT = Path("standard input")
_PARSERS = (ArithmeticError, csv.Error, struct.error, lzma.LZMAError)
_UNREADABLE: tuple[type[Exception], ...] = (*NOT_AN_ARCHIVE, *_PARSERS)
_MEND = "check `scores`, or keep a random part of them"
_LABELS = {"true": True, "in": True, "false": False, "out": False}
_COSINES = ("observed", "unobserved", "in", "out", "scores", "presence")
_FORMS = (("score", "in"), ("score", "presence"), ("scores", "presence"), ("in", "out"))


def paths(scores: str) -> tuple[Path, ...]:
    """The files that `scores` names: one, several with commas between them, or STDIN."""
    return tuple(map(Path, [scores] if os.path.exists(scores) else scores.split(",")))


def said(files: Sequence[Path]) -> str:
    """The files' names, for people."""
    return ", ".join(str(_STANDARD_INPUT) if path == STDIN else path.name for path in files)


def read_scores(*files: Path) -> Scores:
    """The scores of a .npz, .csv or .json file, of two .npy files, or of STDIN, which is CSV or JSON.

    A .npz holds arrays in, out or scores, presence; a .csv has columns score,in or score,presence or in,out;
    a .json is an object of lists of these names; of two .npy files the first is in. Arrays are (runs,) or,
    with several canaries a run, (runs, canaries).
    Raises InputError, in one line, for what it cannot read, makes no sense, or is more than MOST_SCORES.
    """
    readers: dict[tuple[str, ...], Callable[..., Scores]] = {
        (".npz",): _read_npz,
        (".csv",): _read_csv,
        (".json",): _read_json,
        (".npy", ".npy"): lambda *pair: _sets(pair[0], *map(_read_npy, pair)),
    }
    reader = readers.get(tuple(path.suffix.lower() for path in files))
    if files == (STDIN,):
        reader = _read_stdin
    if reader is None:
        named = ",".join(map(str, files))
        give = "give a .npz, .csv or .json file, two .npy files, in.npy,out.npy, or - for standard input"
        raise InputError(f"`scores={named}`: {give}")
    design = reader(*files)
    coins = design.coins if isinstance(design, OneRun) else design
    size = 0 if coins is None else sum(world.size for world in coins.pooled())
    require(size <= MOST_SCORES, _too_many(files[0], size))
    return design


def of_columns(place: object, names: Sequence[object], column: Callable[[Any], Any]) -> Scores:
    """The scores of a table with columns score,in or score,presence (1 or 0), or in,out; `column` gives the
    column of a name, (runs,) or (runs, canaries). Raises InputError, in which `place` names the table."""
    known = [str(name).strip().lower() for name in names]
    form = _form(place, known)
    require(form, f"{place} has columns {_shown(','.join(known))}: give score,in (1 or 0), or in,out")
    assert form is not None
    first, second = (column(names[known.index(name)]) for name in form)
    with _naming(place):
        scores, others = floats(form[0], first), _numbers_of(form[1], second)
    if form == ("in", "out"):
        return _sets(place, scores, others)
    return _by_presence(place, scores, others)


def read_cosines(
    path: Path, dimension: int, leave_one_out: bool = False, in_order: bool = False
) -> OneRun | Fresh:
    """Returns a file's cosines: of one run, or the checked design of several.

    A .npz or a .json holds `observed`, (K,) of one run or (runs, K), and of one run maybe `unobserved`; or
    `in`, (runs,) or (runs, K); or `scores` and `presence` of these shapes, (K,) of one run. A .npy is one
    matrix. One run whose cosines used other canaries' directions (leave_one_out) is a design too.
    Raises InputError, in one line, for what is something else.
    """
    kind, give = path.suffix.lower(), "give a .npz, .npy or .json file of cosines"
    require(kind in (".npz", ".npy", ".json"), f"`scores={path}`: {give}")
    other = _json_cosines if kind == ".json" else _npy_cosines
    arrays = _npz_arrays(path, _COSINES, flat=False) if kind == ".npz" else other(path)
    with _naming(path):
        cosines, presence, several = _of_runs(arrays)
        if several or leave_one_out:
            extra = ", ".join(sorted({"unobserved", "out"} & set(arrays)))
            require(not extra, f"drop {extra}, or save scores= and presence= where some canaries are out")
        elif presence is None:
            return given.paired_cosines(cosines[0], arrays.get("unobserved"), dimension)
        if several:
            return given_directions.given(cosines, dimension, leave_one_out, presence, in_order)
        return given.cosines(cosines, dimension, presence, leave_one_out, in_order)


def _of_runs(arrays: dict[str, Array]) -> tuple[Array, Array | None, bool]:
    """(cosines (runs, K), presence alike or None, whether they are of several runs)."""
    both = {"scores", "presence"} <= set(arrays)
    name = "scores" if both else next((one for one in ("observed", "in") if one in arrays), "")
    require(name, "it has no array observed: save observed=, or scores= and presence=")
    found, present = arrays[name], arrays["presence"] if both else None
    if found.ndim == 1:
        found = found[:, None] if name == "in" else found[None]
        present = None if present is None else np.atleast_2d(present)
    several = found.ndim != 2 or len(found) > 1 or name == "in"
    return found, present, several


def _json_cosines(path: Path) -> dict[str, Array]:
    with _reading(path), open(path, encoding="utf-8-sig") as file:
        lists = dict(_json_lists(path, file))
    with _naming(path):
        arrays = {name: floats(name, lists[name]) for name in _COSINES if name in lists}
    size = sum(array.size for array in arrays.values())
    require(size <= MOST_SCORES, _too_many(path, size))
    return arrays


def _npy_cosines(path: Path) -> dict[str, Array]:
    with _reading(path), open(path, "rb") as file:
        found = _numbers(path, path.stem, file, flat=False)
    shape = f"{path} has shape {found.shape}: save (runs, canaries), or a .npz with observed= of one run"
    require(found.ndim == 2, shape)
    return {"observed": found}


def _sets(path: object, scores_in: Array, scores_out: Array) -> Scores:
    """Returns the design of two sets of runs; flat scores are of one canary a run."""
    with _naming(path):
        return given.two_worlds(scores_in, scores_out)


@contextlib.contextmanager
def _naming(path: object) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turns all that a reader raises into one line; refuses what is no file, or too large a one."""
    try:
        if path != _STANDARD_INPUT:
            regular(path, _MEND, MOST_BYTES)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            yield
    except InputError:
        raise
    except UnicodeDecodeError:
        raise InputError(f"cannot read {path}: it is no text in UTF-8; save it as CSV UTF-8") from None
    except _UNREADABLE as error:
        reason = getattr(error, "strerror", None) or f"it is damaged, encrypted or no {path.suffix} file"
        raise InputError(f"cannot read {path}: {reason}; check `scores`") from None


def _too_many(path: Path, size: int) -> str:
    return f"{path} has {size:,} scores, more than {MOST_SCORES:,}: keep a random part of them"


def _read_npz(path: Path) -> Scores:
    """Arrays `in` and `out`, or `scores` and `presence`, which is true or 1 for in."""
    arrays = _npz_arrays(path, ("in", "out", "scores", "presence"))
    if {"scores", "presence"} <= set(arrays):
        return _by_presence(path, arrays["scores"], arrays["presence"])
    missing = {"in", "out"} - set(arrays)
    require(not missing, f"{path} has no array {', '.join(sorted(missing))}: save in= and out=")
    return _sets(path, arrays["in"], arrays["out"])


def _npz_arrays(path: Path, names: Sequence[str], flat: bool = True) -> dict[str, Array]:
    """Those of the arrays that are there; see `_numbers`."""
    with _reading(path), zipfile.ZipFile(path) as archive:
        members = {name.removesuffix(".npy"): name for name in archive.namelist()}
        arrays = {}
        for name in sorted(set(names) & set(members)):
            with archive.open(members[name]) as file:
                arrays[name] = _numbers(path, name, file, flat)
    return arrays


def _read_npy(path: Path) -> Array:
    with _reading(path), open(path, "rb") as file:
        return _numbers(path, path.stem, file)


def _numbers(path: Path, name: str, file: IO[bytes], flat: bool = True) -> Array:
    """A .npy's array as float64, by default flat if it is one column; what its header claims is looked at
    first."""
    head = io.BytesIO(file.read(_HEADER_BYTES))
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    version = np.lib.format.read_magic(head)
    shape, _, dtype = readers[version](head)
    plain = dtype.kind in "biuf"  # booleans, integers and floats
    require(plain, f"{path}: array {name} holds no plain numbers ({dtype}): save float arrays in= and out=")
    size = math.prod(shape)
    require(size <= MOST_SCORES, _too_many(path, size))
    file.seek(0)
    array = np.asarray(np.lib.format.read_array(file, allow_pickle=False), np.float64)
    return array[:, 0] if flat and array.ndim == 2 and array.shape[1] == 1 else array


def _by_presence(path: object, scores: Array, presence: Array) -> Scores:
    fits = scores.ndim in (1, 2) and scores.shape == presence.shape
    shapes = f"scores {scores.shape} and presence {presence.shape}"
    require(fits, f"{path}: {shapes} must both be (runs,) or (runs, canaries)")
    require(np.isin(presence, (0, 1)).all(), f"{path}: presence must be 1 (in) or 0 (out) everywhere")
    present = presence.astype(bool)
    if scores.ndim == 1:
        return _sets(path, scores[present], scores[~present])
    with _naming(path):
        return given.coins(scores, present)


class _Cells(NamedTuple):
    """A data row of a CSV: its place and line, and its texts in the two columns that count."""

    place: int
    line: int
    first: str
    second: str


def _read_stdin(path: Path) -> Scores:
    """JSON where the first character is that of an object, else CSV."""
    with _reading(_STANDARD_INPUT):
        content = sys.stdin.buffer.read(MOST_BYTES + 1)
        require(content.strip(), f"{_STANDARD_INPUT} is empty: give score,in lines, or JSON")
        too_large = f"{_STANDARD_INPUT} is larger than {MOST_BYTES / 2**30:g} GiB: keep a random part of it"
        require(len(content) <= MOST_BYTES, too_large)
        text = content.decode("utf-8-sig")
        of_text = _of_json if text.lstrip()[:1] in ("{", "[") else _of_csv
        return of_text(_STANDARD_INPUT, io.StringIO(text, newline=""))


def _read_json(path: Path) -> Scores:
    with _reading(path), open(path, encoding="utf-8-sig") as file:
        return _of_json(path, file)


def _of_json(path: Path, file: IO[str]) -> Scores:
    """An object of lists, whose names are those of a CSV's columns."""
    found = _json_lists(path, file)
    lists = dict(found)
    return of_columns(path, [name for name, _ in found], lists.__getitem__)


def _json_lists(path: Path, file: IO[str]) -> tuple[tuple[str, Any], ...]:
    """An object's (name, value) pairs, in their order."""
    mend = 'give {"in": [...], "out": [...]}, or "scores" and "presence"'
    try:
        found = json.load(file, object_pairs_hook=tuple)
    except UnicodeDecodeError:
        raise
    except (ValueError, RecursionError):
        raise InputError(f"cannot read {path}: it is no JSON; {mend}") from None
    require(isinstance(found, tuple), f"{path} is no JSON object: {mend}")
    return tuple(found)


def _read_csv(path: Path) -> Scores:
    with _reading(path), open(path, newline="", encoding="utf-8-sig") as file:
        return _of_csv(path, file)


def _of_csv(path: Path, file: IO[str]) -> Scores:
    """Columns score,in or score,presence, or a column a world; commas, semicolons, tabs or spaces between."""
    first = file.readline(_HEADER_BYTES).lstrip("# ")
    form, at, separator = _header(path, first)
    worlds: dict[bool, list[float]] = {True: [], False: []}
    add = _add_pair if form == ("in", "out") else _add_labelled
    for cells in _rows(file, at, separator):
        add(path, cells, worlds)
        size = len(worlds[True]) + len(worlds[False])
        require(size <= MOST_SCORES, _too_many(path, size))
    return _sets(path, np.array(worlds[True], np.float64), np.array(worlds[False], np.float64))


def _header(path: Path, line: str) -> tuple[tuple[str, str], tuple[int, int], str]:
    for separator in "\t;, ":
        names = [name.strip().lower() for name in next(csv.reader([line], delimiter=separator), [])]
        form = _form(path, names)
        if form is not None:
            return form, (names.index(form[0]), names.index(form[1])), separator
    raise InputError(f"{path}: its first line must be score,in (1 or 0), or in,out (a column a world)")


def _form(path: object, names: Sequence[str]) -> tuple[str, str] | None:
    """The two names that count, if they are there. Raises InputError where more than two of those that could
    are there, or one of them twice."""
    form = next((form for form in _FORMS if set(form) <= set(names)), None)
    counted = [name for name in names if any(name in form for form in _FORMS)]
    said = f"{path}: its columns {','.join(counted)} can be read in several ways"
    once = f"{said}: keep score,in (1 or 0), or in,out (a column a world)"
    require(form is None or len(counted) == 2, once)
    return form


def _rows(file: IO[str], at: tuple[int, int], separator: str) -> Iterator[_Cells]:
    rows = csv.reader(file, delimiter=separator)
    for place, row in enumerate(row for row in rows if row):
        first, second = (row[i].strip() if i < len(row) else "" for i in at)
        yield _Cells(place, rows.line_num + 1, first, second)


def _add_labelled(path: Path, cells: _Cells, worlds: dict[bool, list[float]]) -> None:
    """A score to the world that its label names: a number equal to 1 or 0, true or false, in or out."""
    with _naming(f"{path} line {cells.line}"):
        label = _label(cells.second)
    worlds[label].append(_score(path, cells.line, cells.first))


def _label(text: str) -> bool:
    known = _LABELS.get(text.lower())
    if known is None:
        with contextlib.suppress(ValueError):
            known = {1.0: True, 0.0: False}.get(float(text))
    if known is None:
        raise InputError(f"{_shown(text)} says neither in nor out: give 1 or 0")
    return known


def _numbers_of(name: str, values: ArrayLike) -> Array:
    """The last of the two columns: scores out, or labels, of which words are read as in a CSV."""
    words = isinstance(values, list) and any(isinstance(one, str) for one in values)
    if name == "out" or not (words or getattr(getattr(values, "dtype", None), "kind", "") in ("O", "U", "T")):
        return floats(name, values)
    return np.array([_label(str(one)) for one in np.asarray(values).ravel()], np.float64)


def _add_pair(path: Path, cells: _Cells, worlds: dict[bool, list[float]]) -> None:
    """A score to each world; the shorter column ends in empty cells."""
    for present, text in ((True, cells.first), (False, cells.second)):
        world = worlds[present]
        if text:
            gap = f"{path} line {cells.line}: a score below an empty cell: fill that in (nan if a run failed)"
            require(len(world) == cells.place, gap)
            world.append(_score(path, cells.line, text))


def _score(path: Path, line: int, text: str) -> float:
    """The number; NaN only where it says so."""
    try:
        return float(text)
    except ValueError:
        what = f"score {_shown(text)} is no number: fix it, or write nan if the run failed"
        raise InputError(f"{path} line {line}: {what}") from None


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}...")
