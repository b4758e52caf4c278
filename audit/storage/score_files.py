"""Reads scores of any framework: a .npz, .csv or .json file, two .npy files, standard input, or a table."""

import codecs
import contextlib
import csv
import io
import itertools
import json
import lzma
import math
import os
import struct
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from audit.errors import InputError, require
from audit.evidence import given, given_directions
from audit.evidence.arrays import floats
from audit.evidence.canaries import Coins, Fresh, Sets
from audit.evidence.one_run import OneRun
from audit.evidence.ranks import MOST_DRAWS
from audit.settings.fields import MOST_SEED
from audit.storage.files import NOT_AN_ARCHIVE, regular

Array = NDArray[np.float64]
Scores = Sets | Coins | OneRun | Fresh

STDIN = Path("-")
MOST_SCORES = 5_000_000
MOST_BYTES = 1 << 30
_HEADER_BYTES = 1 << 16  # of a CSV's first line, or of a .npy's header, at most
_MOST_COMMENTS = 100  # lines above a CSV's first
_STANDARD_INPUT = Path("standard input")
_PARSER_ERRORS = (ArithmeticError, csv.Error, struct.error, lzma.LZMAError)
_UNREADABLE: tuple[type[Exception], ...] = (*NOT_AN_ARCHIVE, *_PARSER_ERRORS)
_FIX = "check `scores`, or keep a random part of them"
_LABELS = {
    **dict.fromkeys(("true", "in", "yes", "member"), True),
    **dict.fromkeys(("false", "out", "no", "non-member", "nonmember"), False),
}
_NUMERIC_LABELS = {1.0: True, 0.0: False}
_COSINE_NAMES = ("observed", "unobserved", "in", "out", "scores", "presence")
_RANK_NAMES = ("scores", "fresh", "ranks", "fresh_draws", "presence", "seed")
_FORMS = (("score", "in"), ("score", "presence"), ("scores", "presence"), ("in", "out"))


def paths(scores: str) -> tuple[Path, ...]:
    """Returns the files that a user's `scores` names, with commas between them, or STDIN."""
    if os.path.exists(scores):  # whose name may have a comma
        return (Path(scores),)
    return tuple(Path(name) for name in scores.split(","))


def describe_files(files: Sequence[Path]) -> str:
    """Returns the names of score files, for people: comma-separated, without folders."""
    names = []
    for path in files:
        source = _STANDARD_INPUT if path == STDIN else path
        names.append(source.name)
    return ", ".join(names)


def read_scores(*files: Path) -> Scores:
    """Returns the scores of a .npz, .csv or .json file, of two .npy files, or of STDIN.

    Args:
      files: a .npz holds arrays in, out or scores, presence, or of canaries among fresh draws scores, fresh
        (and maybe the seed of ties) or ranks, fresh_draws; a .csv has columns score,in or score,presence
        or in,out; a .json is an object of lists of these names; of two .npy files the first is in; STDIN is
        CSV or JSON. Arrays are (runs,) or, with several canaries a run, (runs, canaries).

    Raises:
      InputError: for what it cannot read, makes no sense, or is more than MOST_SCORES.
    """
    scores = _choose_reader(files)(*files)
    size = sum(world.size for world in scores.pooled())
    require(size <= MOST_SCORES, _say_too_many(files[0], size))
    return scores


def read_csv(path: Path, columns: Mapping[str, str]) -> Scores:
    """Returns the scores of a CSV whose columns have other names.

    Args:
      path: of the .csv, or STDIN.
      columns: {our name: the file's}, such as {"score": "loss", "presence": "member"}; other columns do not
        count, whatever they are called.

    Raises:
      InputError: as `read_scores`, and for a name that is of no column.
    """
    is_csv = path == STDIN or path.suffix.lower() in (".csv", ".tsv")
    require(is_csv, f"`scores={path}`: `columns` goes with a .csv file, or with -")
    forms = " or ".join(",".join(form) for form in _FORMS)
    given_names = ",".join(columns)
    require(
        any(set(form) == set(columns) for form in _FORMS), f"`columns={given_names}`: name {forms}"
    )
    renamed = {name.strip().lower(): ours for ours, name in columns.items()}
    if path == STDIN:
        with _reading(_STANDARD_INPUT):
            return _parse_csv(_STANDARD_INPUT, _open_stdin(), renamed)
    return _read_csv(path, renamed)


def _choose_reader(files: tuple[Path, ...]) -> Callable[..., Scores]:
    """Returns the function that reads scores from files of these suffixes, or from STDIN.

    It takes the files as its arguments. Raises InputError for files of other suffixes or numbers.
    """
    if files == (STDIN,):
        return _read_stdin
    readers: dict[tuple[str, ...], Callable[..., Scores]] = {
        (".npz",): _read_npz,
        (".csv",): _read_csv,
        (".tsv",): _read_csv,
        (".json",): _read_json,
        (".npy", ".npy"): _read_npy_pair,
    }
    suffixes = tuple(path.suffix.lower() for path in files)
    if suffixes not in readers:
        names = ",".join(str(path) for path in files)
        give = "give a .npz, .csv or .json file, two .npy files, in.npy,out.npy, or - for standard input"
        raise InputError(f"`scores={names}`: {give}")
    return readers[suffixes]


def read_columns(place: object, names: Sequence[object], column: Callable[[Any], Any]) -> Scores:
    """Returns the scores of a table with columns score,in or score,presence (1 or 0), or in,out.

    Args:
      place: the table's name, for messages.
      names: of its columns.
      column: returns the column of a name, (runs,) or (runs, canaries).

    Raises:
      InputError: for other columns, or for values that are no scores.
    """
    lower_names = [str(name).strip().lower() for name in names]
    form = _find_form(place, lower_names)
    shown = _quote(",".join(lower_names))
    require(form, f"{place} has columns {shown}: give score,in (1 or 0), or in,out")
    assert form is not None
    first = column(names[lower_names.index(form[0])])
    second = column(names[lower_names.index(form[1])])
    with _naming(place):
        first_numbers = floats(form[0], first)
        second_numbers = _read_second_column(form[1], second)
    if form == ("in", "out"):
        return _make_sets(place, first_numbers, second_numbers)
    return _split_by_presence(place, first_numbers, second_numbers)


def read_cosines(
    path: Path, dimension: int, leave_one_out: bool = False, in_order: bool = False
) -> OneRun | Fresh:
    """Returns a file's cosines as checked evidence, of a single run or of several.

    Args:
      path: a .npz or a .json that holds `observed`, (K,) of a single run or (runs, K), and of a single
        run maybe `unobserved`; or `in`, (runs,) or (runs, K); or `scores` and `presence` of these shapes,
        (K,) of a single run. A .npy holds a matrix.
      dimension: of the directions.
      leave_one_out: whether cosines used other canaries' directions; a single run then is evidence of the
        same kind as several.
      in_order: whether rows are in the order in which runs were begun.

    Raises:
      InputError: for what is something else.
    """
    arrays = _read_cosine_arrays(path)
    with _naming(path):
        cosines, presence, are_several_runs = _arrange_by_run(arrays)
        if are_several_runs or leave_one_out:
            extra = ", ".join(sorted({"unobserved", "out"} & set(arrays)))
            require(
                not extra,
                f"drop {extra}, or save scores= and presence= where some canaries are out",
            )
        elif presence is None:
            return given.paired_cosines(cosines[0], arrays.get("unobserved"), dimension)
        if are_several_runs:
            return given_directions.given(cosines, dimension, leave_one_out, presence, in_order)
        return given.cosines(cosines, dimension, presence, leave_one_out, in_order)


def _read_cosine_arrays(path: Path) -> dict[str, Array]:
    """Returns a file's arrays of cosines by their names."""
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return _read_npz_arrays(path, _COSINE_NAMES, flat=False)
    if suffix == ".json":
        return _read_json_cosines(path)
    require(suffix == ".npy", f"`scores={path}`: give a .npz, .npy or .json file of cosines")
    return _read_npy_cosines(path)


def _arrange_by_run(arrays: dict[str, Array]) -> tuple[Array, Array | None, bool]:
    """Arranges a file's arrays of cosines by run.

    Args:
      arrays: by name: `scores` and `presence`, or `observed`, each (runs, K) or (K,) of a single run; or
        `in`, (runs, K), or (runs,) of a single canary a run.

    Returns:
      (cosines (runs, K), presence of their shape or None, whether they are of several runs).

    Raises:
      InputError: none of these arrays is there.
    """
    presence = None
    if "scores" in arrays and "presence" in arrays:
        name = "scores"
        presence = arrays["presence"]
    elif "observed" in arrays:
        name = "observed"
    else:
        message = "it has no array observed: save observed=, or scores= and presence="
        require("in" in arrays, message)
        name = "in"

    cosines = arrays[name]
    if cosines.ndim == 1:
        if presence is not None:
            presence = np.atleast_2d(presence)
        cosines = cosines[:, None] if name == "in" else cosines[None]
    # `in` means several runs, even where there is but one; a wrong number of axes is refused with theirs.
    are_several_runs = cosines.ndim != 2 or len(cosines) > 1 or name == "in"
    return cosines, presence, are_several_runs


def _read_json_cosines(path: Path) -> dict[str, Array]:
    """Returns the arrays of cosines and presence in a JSON object of lists, by their names."""
    with _reading(path), open(path, encoding="utf-8-sig") as file:
        lists = dict(_load_pairs(path, file))
    with _naming(path):
        arrays = {name: floats(name, lists[name]) for name in _COSINE_NAMES if name in lists}
    size = sum(array.size for array in arrays.values())
    require(size <= MOST_SCORES, _say_too_many(path, size))
    return arrays


def _read_npy_cosines(path: Path) -> dict[str, Array]:
    cosines = _read_npy(path, flat=False)
    message = f"{path} has shape {cosines.shape}: save (runs, canaries), or a .npz with observed= of one run"
    require(cosines.ndim == 2, message)
    return {"observed": cosines}


def _make_sets(path: object, scores_in: Array, scores_out: Array) -> Scores:
    """Returns the evidence of runs with the canary and runs without; flat scores are of a canary a run.

    Messages begin with the file's name.
    """
    with _naming(path):
        return given.two_worlds(scores_in, scores_out)


@contextlib.contextmanager
def _naming(path: object) -> Iterator[None]:
    """Puts a file's name before the message of an InputError."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turns all that reading a file raises in the block into an InputError; silences warnings.

    Raises InputError, too, for a path that is no regular file, or a file of more than 1 GiB.
    """
    try:
        if path != _STANDARD_INPUT:
            regular(path, _FIX, MOST_BYTES)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            yield
    except InputError:
        raise
    except UnicodeDecodeError:
        raise InputError(
            f"cannot read {path}: it is not text in UTF-8; save it as CSV UTF-8"
        ) from None
    except _UNREADABLE as error:
        reason = (
            getattr(error, "strerror", None) or f"it is damaged, encrypted or no {path.suffix} file"
        )
        raise InputError(f"cannot read {path}: {reason}; check `scores`") from None


def _say_too_many(path: Path, size: int) -> str:
    return f"{path} has {size:,} scores, more than {MOST_SCORES:,}: keep a random part of them"


def _read_npz(path: Path) -> Scores:
    """Returns the scores of a .npz file.

    It has arrays `in` and `out`, or `scores` and `presence`, which is true or 1 for in. Of canaries that are
    ranked among M fresh draws it has `scores` and `fresh`, and maybe the `seed` by which ties are broken, or
    `ranks` and `fresh_draws`, M; and it may have `presence`.
    """
    rank_arrays = _read_npz_arrays(path, _RANK_NAMES, flat=False)
    if {"fresh", "ranks", "fresh_draws"} & set(rank_arrays):
        return _make_ranks(path, rank_arrays)
    arrays = _read_npz_arrays(path, ("in", "out", "scores", "presence"))
    if {"scores", "presence"} <= set(arrays):
        return _split_by_presence(path, arrays["scores"], arrays["presence"])
    missing = {"in", "out"} - set(arrays)
    require(not missing, f"{path} has no array {', '.join(sorted(missing))}: save in= and out=")
    return _make_sets(path, arrays["in"], arrays["out"])


def _make_ranks(path: Path, arrays: dict[str, Array]) -> Fresh:
    """Returns the evidence of a file's ranks, or of its scores with those of fresh draws.

    Args:
      path: of the file, for messages.
      arrays: `scores` (R, K) and `fresh` (R, M), or `ranks` (R, K) and `fresh_draws`, the number M; with
        `presence` (R, K) where canaries are in by coins.
    """
    presence = arrays.get("presence")
    if "fresh" in arrays:
        require("scores" in arrays, f"{path} has no array scores: save it beside fresh")
        require("ranks" not in arrays, f"{path} has scores and ranks: save one of them")
        is_counted = "fresh_draws" in arrays
        require(not is_counted, f"{path} has fresh and fresh_draws: save the former alone")
        seed = 0
        if "seed" in arrays:
            seed = _read_whole(path, "seed", arrays["seed"], 0, MOST_SEED)
        with _naming(path):
            return given.ranks(arrays["scores"], arrays["fresh"], presence, seed=seed)
    missing = ", ".join(sorted({"ranks", "fresh_draws"} - set(arrays)))
    require(not missing, f"{path} has no array {missing}: save ranks= and fresh_draws=")
    draws = _read_whole(path, "fresh_draws", arrays["fresh_draws"], 1, MOST_DRAWS)
    with _naming(path):
        return given.ranks(arrays["ranks"], draws, presence)


def _read_whole(path: Path, name: str, array: Array, least: int, most: int) -> int:
    """Returns the whole number that an array holds; raises InputError where it is another, or none."""
    fix = f"save one whole number, {least} to {most:,}"
    require(array.size == 1, f"{path}: {name} holds {array.size} numbers: {fix}")
    value = float(array.flat[0])
    is_whole = value.is_integer() and least <= value <= most
    require(is_whole, f"{path}: {name} is {value:g}: {fix}")
    return int(value)


def _read_npz_arrays(path: Path, names: Sequence[str], flat: bool = True) -> dict[str, Array]:
    """Returns the arrays of a .npz file of these names, as float64 by name.

    With `flat`, an array of a single column becomes flat.
    """
    arrays = {}
    with _reading(path), zipfile.ZipFile(path) as archive:
        members = {name.removesuffix(".npy"): name for name in archive.namelist()}
        for name in sorted(set(names) & set(members)):
            with archive.open(members[name]) as file:
                arrays[name] = _read_array(path, name, file, flat)
    return arrays


def _read_npy_pair(path_in: Path, path_out: Path) -> Scores:
    return _make_sets(path_in, _read_npy(path_in), _read_npy(path_out))


def _read_npy(path: Path, flat: bool = True) -> Array:
    """Returns a .npy file's array as float64; with `flat`, an array of a single column becomes flat."""
    with _reading(path), open(path, "rb") as file:
        return _read_array(path, path.stem, file, flat)


def _read_array(path: Path, name: str, file: IO[bytes], flat: bool = True) -> Array:
    """Returns a .npy's array as float64, after its header shows that type and size can be read.

    Args:
      path: of the file, for messages.
      name: of the array, for messages.
      file: at the start of the array.
      flat: whether a single column becomes a flat array.
    """
    header = io.BytesIO(file.read(_HEADER_BYTES))
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    version = np.lib.format.read_magic(header)
    shape, _, dtype = readers[version](header)
    is_numeric = dtype.kind in "biuf"  # booleans, integers and floats
    message = f"{path}: array {name} holds no plain numbers ({dtype}): save floats"
    require(is_numeric, message)
    size = math.prod(shape)
    require(size <= MOST_SCORES, _say_too_many(path, size))

    file.seek(0)
    array = np.asarray(np.lib.format.read_array(file, allow_pickle=False), np.float64)
    if flat and array.ndim == 2 and array.shape[1] == 1:
        return array[:, 0]
    return array


def _split_by_presence(path: object, scores: Array, presence: Array) -> Scores:
    """Returns the evidence of scores and bits of the same shape, 1 where the canary was in.

    A flat array (runs,) has a single canary a run and is split into two worlds; (runs, canaries) are coins.

    Args:
      path: of the file or table, for messages.
      scores: (runs,) or (runs, canaries).
      presence: of the same shape.
    """
    fits = scores.ndim in (1, 2) and scores.shape == presence.shape
    shapes = f"scores {scores.shape} and presence {presence.shape}"
    require(fits, f"{path}: {shapes} must both be (runs,) or (runs, canaries)")
    require(
        np.isin(presence, (0, 1)).all(), f"{path}: presence must be 1 (in) or 0 (out) everywhere"
    )
    present = presence.astype(bool)
    if scores.ndim == 1:
        return _make_sets(path, scores[present], scores[~present])
    with _naming(path):
        return given.coins(scores, present)


class _Cells(NamedTuple):
    """A data row of a CSV.

    Attributes:
      place: its number among data rows, from 0.
      line: its line in the file, from 1.
      first: its text in the first column that counts.
      second: its text in the other.
    """

    place: int
    line: int
    first: str
    second: str


def _read_stdin(path: Path) -> Scores:
    """Returns the scores of standard input: JSON where it begins with a bracket, else CSV.

    `path` is STDIN, as for all readers of files. Raises InputError for input that is empty, or above 1 GiB.
    """
    with _reading(_STANDARD_INPUT):
        file = _open_stdin()
        if file.getvalue().lstrip()[:1] in ("{", "["):
            return _parse_json(_STANDARD_INPUT, file)
        return _parse_csv(_STANDARD_INPUT, file)


def _open_stdin() -> io.StringIO:
    """Returns standard input as text; raises InputError where it is empty, or above 1 GiB."""
    content = sys.stdin.buffer.read(MOST_BYTES + 1)
    require(content.strip(), f"{_STANDARD_INPUT} is empty: give score,in lines, or JSON")
    too_large = (
        f"{_STANDARD_INPUT} is larger than {MOST_BYTES / 2**30:g} GiB: keep a random part of it"
    )
    require(len(content) <= MOST_BYTES, too_large)
    return io.StringIO(content.decode(_find_encoding(content)), newline="")


def _read_json(path: Path) -> Scores:
    with _reading(path), open(path, encoding="utf-8-sig") as file:
        return _parse_json(path, file)


def _parse_json(path: Path, file: IO[str]) -> Scores:
    """Returns the scores of a JSON object of lists, whose names are those of a CSV's columns.

    Args:
      path: of the file, for messages.
      file: the open file.
    """
    pairs = _load_pairs(path, file)
    names = [name for name, _ in pairs]
    lists = dict(pairs)
    return read_columns(path, names, lists.__getitem__)


def _load_pairs(path: Path, file: IO[str]) -> tuple[tuple[str, Any], ...]:
    """Returns a JSON object's (name, value) pairs in their order, also those whose names come twice.

    Raises InputError for text that is no JSON, or JSON that is no object.
    """
    fix = 'give {"in": [...], "out": [...]}, or "scores" and "presence"'
    try:
        pairs = json.load(file, object_pairs_hook=tuple)
    except UnicodeDecodeError:
        raise
    except (ValueError, RecursionError):
        raise InputError(f"cannot read {path}: it is no JSON; {fix}") from None
    require(isinstance(pairs, tuple), f"{path} is no JSON object: {fix}")
    return tuple(pairs)


def _read_csv(path: Path, renamed: Mapping[str, str] | None = None) -> Scores:
    with _reading(path):
        with open(path, "rb") as raw:
            encoding = _find_encoding(raw.read(4))
        with open(path, newline="", encoding=encoding) as file:
            return _parse_csv(path, file, renamed)


def _find_encoding(start: bytes) -> str:
    """Returns a text's encoding: UTF-16 where its first bytes say so, as spreadsheets write it, or UTF-8."""
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    return "utf-8-sig"


def _parse_csv(path: Path, file: IO[str], renamed: Mapping[str, str] | None = None) -> Scores:
    """Returns the scores of a CSV with columns score,in or score,presence (1 or 0), or in,out.

    Commas, semicolons, tabs or spaces separate the columns; other columns are ignored. Where no comma does,
    numbers may have a decimal comma. Lines above the names that begin with # are comments.

    Args:
      path: of the file, for messages.
      file: at its first line.
      renamed: {a column's name in the file, in lower case: its name here}, if any is renamed.
    """
    header = _read_header(path, file, renamed)
    form = header.form
    worlds: dict[bool, list[float]] = {True: [], False: []}
    add = _add_pair if form == ("in", "out") else _add_labelled
    for cells in _read_rows(path, file, header):
        add(path, cells, worlds)
        size = len(worlds[True]) + len(worlds[False])
        require(size <= MOST_SCORES, _say_too_many(path, size))
    scores_in = np.array(worlds[True], np.float64)
    scores_out = np.array(worlds[False], np.float64)
    return _make_sets(path, scores_in, scores_out)


class _Header(NamedTuple):
    """What a CSV says above its rows.

    Attributes:
      form: the names of the two columns of scores, as in _FORMS.
      indices: of these columns.
      separator: of columns.
      lines: how many there are above the first row, with those of comments.
    """

    form: tuple[str, str]
    indices: tuple[int, int]
    separator: str
    lines: int


def _read_header(path: Path, file: IO[str], renamed: Mapping[str, str] | None) -> _Header:
    """Reads a CSV up to the line that names its columns, as `_parse_csv` describes them.

    Lines above it are comments, which begin with #; so does the line of names where NumPy writes it.

    Raises:
      InputError: by no separator are there two such columns.
    """
    for lines in range(1, _MOST_COMMENTS + 2):
        line = file.readline(_HEADER_BYTES)
        header = _parse_header(path, line.lstrip("# "), renamed, lines)
        if header is not None:
            return header
        if not line.startswith("#"):
            break
    if renamed is not None:
        wanted = ",".join(renamed)
        raise InputError(f"{path}: its first line has not the columns {wanted}: check `columns`")
    raise InputError(
        f"{path}: its first line must be score,in (1 or 0), or in,out (a column a world); or name its "
        "columns: `columns=score:loss,presence:member`"
    )


def _parse_header(
    path: Path, line: str, renamed: Mapping[str, str] | None, lines: int
) -> _Header | None:
    """Returns the columns of scores that a line of a CSV names, or None where it names none."""
    for separator in "\t;, ":
        fields = next(csv.reader([line], delimiter=separator), [])
        names = [name.strip().lower() for name in fields]
        if renamed is not None:
            names = [renamed.get(name, "") for name in names]
        form = _find_form(path, names)
        if form is not None:
            indices = (names.index(form[0]), names.index(form[1]))
            return _Header(form, indices, separator, lines)
    return None


def _find_form(path: object, names: Sequence[str]) -> tuple[str, str] | None:
    """Returns the pair of names that a table's columns have, as ("score", "in") or ("in", "out"), or None.

    Args:
      path: of the file or table, for messages.
      names: of its columns, in lower case.

    Raises:
      InputError: further columns have names of such pairs too, so that the table can be read in several ways.
    """
    for form in _FORMS:
        if set(form) <= set(names):
            break
    else:
        return None
    could_count = set(itertools.chain(*_FORMS))
    counting = [name for name in names if name in could_count]
    several = f"{path}: its columns {','.join(counting)} can be read in several ways"
    require(len(counting) == 2, f"{several}: keep score,in (1 or 0), or in,out (a column a world)")
    return form


def _read_rows(path: Path, file: IO[str], header: _Header) -> Iterator[_Cells]:
    """Yields the two cells with scores of each row of a CSV below its header; skips empty rows.

    Decimal commas become points.

    Args:
      path: of the file, for messages.
      file: after its header.
      header: what it says there.

    Raises:
      InputError: some numbers have commas and others points: either may be a separator of thousands.
    """
    reader = csv.reader(file, delimiter=header.separator)
    first_index, second_index = header.indices
    place = 0
    marks = set()  # of decimals
    for row in reader:
        if not row:
            continue
        line = reader.line_num + header.lines
        first = row[first_index].strip() if first_index < len(row) else ""
        second = row[second_index].strip() if second_index < len(row) else ""
        marks |= {mark for mark in ",." if mark in first or mark in second}
        mixed = f"{path} line {line}: some numbers have a comma and others a point: write all with points"
        require(len(marks) < 2, mixed)
        if header.separator != ",":
            first = first.replace(",", ".")
            second = second.replace(",", ".")
        yield _Cells(place, line, first, second)
        place += 1


def _add_labelled(path: Path, cells: _Cells, worlds: dict[bool, list[float]]) -> None:
    """Appends a row's score to the world that the row's label names.

    Args:
      path: of the file, for messages.
      cells: the row: score, and a label such as 1 or 0, true or false, in or out.
      worlds: scores by whether the canary was in; either of them is appended to.
    """
    with _naming(f"{path} line {cells.line}"):
        label = _parse_label(cells.second)
    worlds[label].append(_parse_score(path, cells.line, cells.first))


def _parse_label(text: str) -> bool:
    """Returns whether a label means in; raises InputError where it means neither in nor out."""
    label = _LABELS.get(text.lower())
    if label is None:
        with contextlib.suppress(ValueError):
            label = _NUMERIC_LABELS.get(float(text))
    if label is None:
        raise InputError(f"{_quote(text)} says neither in nor out: give 1 or 0")
    return label


def _read_second_column(name: str, values: ArrayLike) -> Array:
    """Returns a table's second column as numbers; labels in words, as "in" or "false", become 1 or 0.

    Args:
      name: of the column: "out" holds scores, other names labels.
      values: of the column.
    """
    if name == "out" or not _has_words(values):
        return floats(name, values)
    labels = [_parse_label(str(value)) for value in np.asarray(values).ravel()]
    return np.array(labels, np.float64)


def _has_words(values: ArrayLike) -> bool:
    """Returns whether a list has a string, or an array or column may have (types of strings and objects)."""
    if isinstance(values, list):
        return any(isinstance(value, str) for value in values)
    dtype = getattr(values, "dtype", None)
    return getattr(dtype, "kind", "") in ("O", "U", "T")


def _add_pair(path: Path, cells: _Cells, worlds: dict[bool, list[float]]) -> None:
    """Appends a row's scores to both worlds; the shorter column ends in empty cells.

    Args:
      path: of the file, for messages.
      cells: the row: a score in and a score out, either of which may be empty at the end of its column.
      worlds: scores by whether the canary was in; both are appended to.

    Raises:
      InputError: a score comes below an empty cell, or is no number.
    """
    for present, text in ((True, cells.first), (False, cells.second)):
        if not text:
            continue
        world = worlds[present]
        gap = f"{path} line {cells.line}: a score below an empty cell: fill that in (nan if a run failed)"
        require(len(world) == cells.place, gap)
        world.append(_parse_score(path, cells.line, text))


def _parse_score(path: Path, line: int, text: str) -> float:
    """Returns a score's text as a number, NaN only where the text is nan; raises InputError for others."""
    try:
        return float(text)
    except ValueError:
        message = f"score {_quote(text)} is not a number: fix it, or write nan if the run failed"
        raise InputError(f"{path} line {line}: {message}") from None


def _quote(text: str) -> str:
    """Returns a text in quotes, cut after 40 characters."""
    shortened = text if len(text) <= 40 else f"{text[:40]}..."
    return repr(shortened)
