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
_HEADER_BYTES = 1 << 16  # the most that are read of a CSV's first line, or of a .npy's header
_MOST_COMMENTS = 100  # lines above the one that names a CSV's columns
_STANDARD_INPUT = Path("standard input")
_PARSER_ERRORS = (ArithmeticError, csv.Error, struct.error, lzma.LZMAError)
_UNREADABLE: tuple[type[Exception], ...] = (*NOT_AN_ARCHIVE, *_PARSER_ERRORS)
_FIX = "check `scores`, or keep a random part of them"
_LABELS = {
    **dict.fromkeys(("true", "t", "yes", "y", "in", "member"), True),
    **dict.fromkeys(("false", "f", "no", "n", "out", "non-member", "nonmember"), False),
}
_NUMERIC_LABELS = {1.0: True, 0.0: False}
_LABELS_READ = "1 or 0, yes or no, true or false, in or out, member or non-member"
_COSINE_NAMES = ("observed", "unobserved", "in", "out", "scores", "presence")
_RANK_NAMES = ("scores", "fresh", "ranks", "fresh_draws", "presence", "seed")
_FORMS = (("score", "in"), ("score", "presence"), ("scores", "presence"), ("in", "out"))


def paths(scores: str) -> tuple[Path, ...]:
    """Returns the files that a user's `scores` names, separated by commas; "-" gives (STDIN,)."""
    if os.path.exists(scores):  # a single file, whose name may have a comma
        return (Path(scores),)
    return tuple(Path(name) for name in scores.split(","))


def describe_files(files: Sequence[Path]) -> str:
    """Returns the names of score files as a report shows them: comma-separated, without their folders."""
    names = []
    for path in files:
        source = _STANDARD_INPUT if path == STDIN else path
        names.append(source.name)
    return ", ".join(names)


def read_scores(*files: Path) -> Scores:
    """Returns the scores in a .npz, .csv or .json file, in two .npy files, or on standard input.

    Arrays are (runs,) or, with several canaries a run, (runs, canaries).

    Args:
      files: one of
        a .npz with arrays `in` and `out`, or `scores` and `presence`; for canaries that are ranked among
          fresh draws, `scores` and `fresh` (and maybe `seed`, which breaks ties), or `ranks` and
          `fresh_draws`;
        a .csv or .tsv with columns score,in or score,presence or in,out;
        a .json, an object of lists with the names of such columns;
        two .npy files, scores with the canary and scores without it;
        STDIN, which has CSV or JSON.

    Raises:
      InputError: the files can't be read, hold no scores, or hold more than MOST_SCORES.
    """
    scores = _choose_reader(files)(*files)
    size = sum(world.size for world in scores.pooled())
    require(size <= MOST_SCORES, _say_too_many(files[0], size))
    return scores


def read_csv(path: Path, columns: Mapping[str, str]) -> Scores:
    """Returns the scores of a CSV whose columns have names that the user chose.

    Args:
      path: the .csv or .tsv file, or STDIN.
      columns: {our name: the file's name}, such as {"score": "loss", "presence": "member"}. Our names are
        one of the pairs in _FORMS. All other columns are ignored, whatever they are called.

    Raises:
      InputError: as `read_scores`, and where the file lacks one of these columns.
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
    """Returns the function that reads scores from files with these suffixes, or from STDIN.

    The function takes the files as its arguments. Raises InputError for any other combination of suffixes.
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
    """Returns the scores of a table.

    The table has one of the pairs of columns in _FORMS: a score, and whether the canary was in (1 or 0); or
    scores with the canary and scores without it.

    Args:
      place: the table's name, for messages.
      names: the names of its columns.
      column: a function from a column's name to its values, (runs,) or (runs, canaries).

    Raises:
      InputError: for other columns, or for values that are no scores.
    """
    lower_names = [str(name).strip().lower() for name in names]
    form = _find_form(place, lower_names)
    shown = _quote(",".join(lower_names))
    require(form, f"{place} has columns {shown}: give score,in (1 or 0), or in,out")
    assert form is not None  # for type checkers: `require` has raised the error
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
    """Returns the cosines in a file as checked evidence of one or several runs with K canaries each.

    Args:
      path: a .npz or .json file with one of
          `observed`, (runs, K), or (K,) of a single run, which may have `unobserved` cosines besides;
          `in`, (runs, K), or (runs,) of a single canary a run;
          `scores` and `presence`, (runs, K), or (K,) of a single run;
        or a .npy file of a matrix (runs, K).
      dimension: the number of trained parameters, which is the dimension of the canaries' directions.
      leave_one_out: whether a canary's cosine used the other canaries' directions.
      in_order: whether rows are in the order in which runs were begun. Bounds of several runs then hold
        wherever the runs stop.

    Returns:
      A `OneRun` for a single run whose cosines are not leave-one-out; else a `Fresh`. An array `in` counts as
      several runs, even with a single row.

    Raises:
      InputError: the file holds something else.
    """
    arrays = _read_cosine_arrays(path)
    with _naming(path):
        cosines, presence, are_several_runs = _arrange_by_run(arrays)
        # A single run without coins, in which no cosine used the other canaries' directions, is compared with
        # `unobserved`, the cosines of canaries that were not inserted. No other evidence uses these.
        may_have_unobserved = not (are_several_runs or leave_one_out or presence is not None)

        # An array that would not be used is refused: the user expects it to count.
        if presence is not None:
            used_names = {"scores", "presence"}
        elif "observed" in arrays:
            used_names = {"observed"}
        else:
            used_names = {"in"}
        if may_have_unobserved:
            used_names.add("unobserved")
        extra = ", ".join(sorted(set(arrays) - used_names))
        require(
            not extra,
            f"drop {extra}, or save scores= and presence= where some canaries are out",
        )

        if may_have_unobserved:
            return given.paired_cosines(cosines[0], arrays.get("unobserved"), dimension)
        if are_several_runs:
            return given_directions.given(cosines, dimension, leave_one_out, presence, in_order)
        # A single run, leave-one-out or with presence.
        return given.cosines(cosines, dimension, presence, leave_one_out, in_order)


def _read_cosine_arrays(path: Path) -> dict[str, Array]:
    """Returns the arrays of _COSINE_NAMES in a file of cosines, by name; those of a .npy as `observed`."""
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return _read_npz_arrays(path, _COSINE_NAMES, flat=False)
    if suffix == ".json":
        return _read_json_cosines(path)
    require(suffix == ".npy", f"`scores={path}`: give a .npz, .npy or .json file of cosines")
    return _read_npy_cosines(path)


def _arrange_by_run(arrays: dict[str, Array]) -> tuple[Array, Array | None, bool]:
    """Returns a file's cosines as a matrix with a row for each run, and whether they are of several runs.

    Args:
      arrays: the file's arrays by name: `scores` and `presence`, or `observed`, each (runs, K) or, of a
        single run, (K,); or `in`, (runs, K) or, of a single canary a run, (runs,).

    Returns:
      (cosines (runs, K), presence of the same shape or None, whether the cosines are of several runs). The
      cosines have another number of axes where the file's array has neither one nor two; the caller's check
      of several runs refuses them.

    Raises:
      InputError: none of these arrays is there.
    """
    # Choose the array that holds the cosines.
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

    # A flat `in` has a canary of each run, and becomes a column. Other flat arrays are of a single run, and
    # become a row.
    cosines = arrays[name]
    # A flat array without cosines is refused elsewhere, by their number.
    has_any = cosines.ndim != 2 or cosines.size > 0
    require(has_any, f"its array {name} has shape {cosines.shape}: save at least one cosine")
    if cosines.ndim == 1:
        if presence is not None:
            presence = np.atleast_2d(presence)
        cosines = cosines[:, None] if name == "in" else cosines[None]
    # `in` means several runs, even where it has but a single row.
    are_several_runs = cosines.ndim != 2 or len(cosines) > 1 or name == "in"
    return cosines, presence, are_several_runs


def _read_json_cosines(path: Path) -> dict[str, Array]:
    """Returns the arrays of _COSINE_NAMES in a JSON object of lists, by name."""
    with _reading(path), open(path, encoding="utf-8-sig") as file:
        pairs = _load_pairs(path, file)
    lists = dict(pairs)
    with _naming(path):
        require(len(lists) == len(pairs), "it has a name twice: keep one of the two lists")
        arrays = {name: floats(name, lists[name]) for name in _COSINE_NAMES if name in lists}
    size = sum(array.size for array in arrays.values())
    require(size <= MOST_SCORES, _say_too_many(path, size))
    return arrays


def _read_npy_cosines(path: Path) -> dict[str, Array]:
    """Returns {"observed": the matrix (runs, canaries)} of a .npy file."""
    cosines = _read_npy(path, flat=False)
    message = f"{path} has shape {cosines.shape}: save (runs, canaries), or a .npz with observed= of one run"
    require(cosines.ndim == 2, message)
    return {"observed": cosines}


def _make_sets(path: object, scores_in: Array, scores_out: Array) -> Scores:
    """Returns the evidence of runs with the canary and runs without it.

    Args:
      path: the file's name, with which messages begin.
      scores_in: (runs,) of a single canary a run, or (runs, canaries).
      scores_out: those of the runs without, in the same form.
    """
    with _naming(path):
        return given.two_worlds(scores_in, scores_out)


@contextlib.contextmanager
def _naming(path: object) -> Iterator[None]:
    """Puts a file's name before the message of an InputError that is raised in the block."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turns an error that reading a file raises in the block into an InputError; silences warnings there.

    Raises InputError before the block where the path is no regular file, or the file is above 1 GiB.

    Args:
      path: the file, or _STANDARD_INPUT, for which these two checks are left out.
    """
    try:
        if path != _STANDARD_INPUT:
            regular(path, _FIX, MOST_BYTES)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            yield
    except InputError:
        # It has its message for the user already. The last clause would replace that, since an InputError is
        # a ValueError.
        raise
    except UnicodeDecodeError:
        raise InputError(
            f"cannot read {path}: it is not text in UTF-8; save it as CSV UTF-8"
        ) from None
    except _UNREADABLE as error:  # all that readers may raise for a damaged file
        # An error of the system, such as a missing file, says its reason in `strerror`.
        reason = (
            getattr(error, "strerror", None) or f"it is damaged, encrypted or no {path.suffix} file"
        )
        raise InputError(f"cannot read {path}: {reason}; check `scores`") from None


def _say_too_many(path: Path, size: int) -> str:
    return f"{path} has {size:,} scores, more than {MOST_SCORES:,}: keep a random part of them"


def _read_npz(path: Path) -> Scores:
    """Returns the scores in a .npz file.

    The file has arrays `in` and `out`, or `scores` and `presence`; `presence` is 1 or true where the canary
    was in. Where canaries are ranked among M fresh draws, it has `scores` and `fresh`, and maybe the `seed`
    by which ties are broken; or it has `ranks` and the number `fresh_draws`, M. Either may come with
    `presence`.
    """
    # Arrays of ranks keep their shape, so that (runs, 1) stays a matrix with a single canary a run. In the
    # other forms (runs, 1) becomes (runs,).
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
    """Returns the evidence of R runs whose K canaries are ranked among M fresh draws.

    Args:
      path: the file, for messages.
      arrays: the file's arrays by name: `scores` (R, K) and `fresh` (R, M), the draws' scores, and maybe the
        `seed` by which ties are broken; or `ranks` (R, K) and the number `fresh_draws`, M. With either,
        `presence` (R, K) where coins decided which canaries were in.
    """
    presence = arrays.get("presence")
    if "fresh" in arrays:
        require("scores" in arrays, f"{path} has no array scores: save it beside fresh")
        require("ranks" not in arrays, f"{path} has scores and ranks: save one of them")
        # The shape of `fresh` gives M already.
        gives_number = "fresh_draws" in arrays
        require(not gives_number, f"{path} has fresh and fresh_draws: save the former alone")
        seed = 0
        if "seed" in arrays:
            seed = _read_whole(path, "seed", arrays["seed"], 0, MOST_SEED)
        with _naming(path):
            return given.ranks(arrays["scores"], arrays["fresh"], presence, seed=seed)

    missing = ", ".join(sorted({"ranks", "fresh_draws"} - set(arrays)))
    require(not missing, f"{path} has no array {missing}: save ranks= and fresh_draws=")
    draws = _read_whole(path, "fresh_draws", arrays["fresh_draws"], 1, MOST_DRAWS)
    # Beside ranks, `given.ranks` takes the number of the draws instead of their scores.
    with _naming(path):
        return given.ranks(arrays["ranks"], draws, presence)


def _read_whole(path: Path, name: str, array: Array, least: int, most: int) -> int:
    """Returns the whole number, `least` to `most`, that an array holds; raises InputError for anything else.

    Args:
      path: the file, for messages.
      name: the array's name, for messages.
      array: an array of one element.
      least: the smallest allowed number.
      most: the largest allowed number.
    """
    fix = f"save one whole number, {least} to {most:,}"
    require(array.size == 1, f"{path}: {name} holds {array.size} numbers: {fix}")
    value = float(array.flat[0])
    is_whole = value.is_integer() and least <= value <= most
    require(is_whole, f"{path}: {name} is {value:g}: {fix}")
    return int(value)


def _read_npz_arrays(path: Path, names: Sequence[str], flat: bool = True) -> dict[str, Array]:
    """Returns the arrays of a .npz file with the given names, as float64, by name.

    Args:
      path: the file.
      names: the arrays' names. Names that the file lacks are left out, and so are its other arrays.
      flat: whether an array (n, 1) becomes (n,).
    """
    arrays = {}
    with _reading(path), zipfile.ZipFile(path) as archive:
        members = {name.removesuffix(".npy"): name for name in archive.namelist()}
        for name in sorted(set(names) & set(members)):
            with archive.open(members[name]) as file:
                arrays[name] = _read_array(path, name, file, flat)
    return arrays


def _read_npy_pair(path_in: Path, path_out: Path) -> Scores:
    """Returns the scores of two .npy files: those of runs with the canary, and those of runs without it."""
    return _make_sets(path_in, _read_npy(path_in), _read_npy(path_out))


def _read_npy(path: Path, flat: bool = True) -> Array:
    """Returns a .npy file's array as float64; with `flat`, an array (n, 1) becomes (n,)."""
    with _reading(path), open(path, "rb") as file:
        return _read_array(path, path.stem, file, flat)


def _read_array(path: Path, name: str, file: IO[bytes], flat: bool = True) -> Array:
    """Returns an array in the format .npy as float64.

    Its header is read first, so that an array of a wrong type or size is refused before it is loaded.

    Args:
      path: the file, for messages.
      name: the array's name, for messages.
      file: an open file at the start of the array.
      flat: whether an array (n, 1) becomes (n,).

    Raises:
      InputError: the array is not of numbers, or of more than MOST_SCORES.
    """
    header = io.BytesIO(file.read(_HEADER_BYTES))
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    version = np.lib.format.read_magic(header)
    # For another version this is a KeyError, which `_reading` reports as a damaged file.
    shape, _, dtype = readers[version](header)
    is_numeric = dtype.kind in "biuf"  # booleans, integers and floats
    message = f"{path}: array {name} holds no plain numbers ({dtype}): save floats"
    require(is_numeric, message)
    size = math.prod(shape)
    require(size <= MOST_SCORES, _say_too_many(path, size))

    file.seek(0)  # `read_array` reads the header again
    array = np.asarray(np.lib.format.read_array(file, allow_pickle=False), np.float64)
    if flat and array.ndim == 2 and array.shape[1] == 1:
        return array[:, 0]
    return array


def _split_by_presence(path: object, scores: Array, presence: Array) -> Scores:
    """Returns the evidence of scores that come with a bit for each: whether its canary was in.

    Flat scores are those of a single canary a run, and are split into runs with it and runs without. A matrix
    is evidence of several canaries a run, each in by its own coin.

    Args:
      path: the file or table, for messages.
      scores: (runs,) or (runs, canaries).
      presence: an array of the same shape, 1 where the canary was in, else 0.

    Raises:
      InputError: shapes differ, or presence has other values.
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
    """The two cells with scores, or with a score and its label, in a row of a CSV.

    Attributes:
      place: the number of the row, from 0, without the header and empty lines.
      line: the number of its line in the file, from 1.
      first: the text in the first column of the file's form (_FORMS), such as score or in.
      second: the text in the second column of the form.
    """

    place: int
    line: int
    first: str
    second: str


def _read_stdin(path: Path) -> Scores:
    """Returns the scores on standard input, which is JSON where it begins with a bracket, else CSV.

    Raises InputError for input that is empty, or above 1 GiB.

    Args:
      path: not used. `_choose_reader` returns functions of the file, which is STDIN here.
    """
    with _reading(_STANDARD_INPUT):
        file = _open_stdin()
        if file.getvalue().lstrip()[:1] in ("{", "["):
            return _parse_json(_STANDARD_INPUT, file)
        return _parse_csv(_STANDARD_INPUT, file)


def _open_stdin() -> io.StringIO:
    """Returns standard input as text; raises InputError where it is empty, or above 1 GiB."""
    # A byte more than is allowed, so that too large an input shows.
    content = sys.stdin.buffer.read(MOST_BYTES + 1)
    require(content.strip(), f"{_STANDARD_INPUT} is empty: give score,in lines, or JSON")
    too_large = (
        f"{_STANDARD_INPUT} is larger than {MOST_BYTES / 2**30:g} GiB: keep a random part of it"
    )
    require(len(content) <= MOST_BYTES, too_large)
    # newline="" leaves line ends as they are, which the csv module splits by itself.
    return io.StringIO(content.decode(_find_encoding(content)), newline="")


def _read_json(path: Path) -> Scores:
    """Returns the scores of a .json file; see `_parse_json`."""
    with _reading(path), open(path, encoding="utf-8-sig") as file:
        return _parse_json(path, file)


def _parse_json(path: Path, file: IO[str]) -> Scores:
    """Returns the scores of a JSON object of lists; the lists have the names of a CSV's columns.

    Args:
      path: the file, for messages.
      file: the open file.
    """
    pairs = _load_pairs(path, file)
    names = [name for name, _ in pairs]
    lists = dict(pairs)
    return read_columns(path, names, lists.__getitem__)


def _load_pairs(path: Path, file: IO[str]) -> tuple[tuple[str, Any], ...]:
    """Returns a JSON object's (name, value) pairs in their order.

    A name that comes twice in the object comes twice in the pairs, so that the caller can refuse it.

    Args:
      path: the file, for messages.
      file: the open file.

    Raises:
      InputError: the text is no JSON, or JSON that is no object.
    """
    fix = 'give {"in": [...], "out": [...]}, or "scores" and "presence"'
    try:
        # Objects become tuples, and lists stay lists: the check below tells them apart.
        pairs = json.load(file, object_pairs_hook=tuple)
    except UnicodeDecodeError:  # a ValueError for which `_reading` has a message of its own
        raise
    except (ValueError, RecursionError):
        raise InputError(f"cannot read {path}: it is no JSON; {fix}") from None
    require(isinstance(pairs, tuple), f"{path} is no JSON object: {fix}")
    return tuple(pairs)


def _read_csv(path: Path, renamed: Mapping[str, str] | None = None) -> Scores:
    """Returns the scores of a .csv or .tsv file, in UTF-8 or UTF-16; `_parse_csv` says in which form.

    Args:
      path: the file.
      renamed: {a column's name in the file, in lower case: our name}; None where the file has our names.
    """
    with _reading(path):
        with open(path, "rb") as raw:
            # UTF-16 begins with a mark of two bytes. Without it the file is taken for UTF-8.
            encoding = _find_encoding(raw.read(2))
        # newline="" leaves line ends as they are, which the csv module splits by itself.
        with open(path, newline="", encoding=encoding) as file:
            return _parse_csv(path, file, renamed)


def _find_encoding(start: bytes) -> str:
    """Returns a text's encoding by its first bytes: UTF-16, as spreadsheets may write it, or UTF-8."""
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    return "utf-8-sig"


def _parse_csv(path: Path, file: IO[str], renamed: Mapping[str, str] | None = None) -> Scores:
    """Returns the scores of a CSV with columns score,in or score,presence (1 or 0), or in,out.

    Commas, semicolons, tabs or spaces separate the columns. Unless commas do, numbers may have a decimal
    comma. Other columns are ignored, and so are lines above the columns' names that begin with #.

    Args:
      path: the file, for messages.
      file: the open file, at its first line.
      renamed: {a column's name in the file, in lower case: our name}; None where the file has our names.
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
      form: the names of the two columns to read, one of _FORMS.
      indices: the indices of these columns, from 0.
      separator: the character between columns.
      lines: the number of lines above the first row, comments included.
    """

    form: tuple[str, str]
    indices: tuple[int, int]
    separator: str
    lines: int


def _read_header(path: Path, file: IO[str], renamed: Mapping[str, str] | None) -> _Header:
    """Reads a CSV up to the line that names its columns, and returns what that says.

    Lines above it are comments, which begin with #. NumPy writes the line of names with a #, too.

    Args:
      path: the file, for messages.
      file: the open file, at its first line; afterwards it is at the first row.
      renamed: {a column's name in the file, in lower case: our name}; None where the file has our names.

    Raises:
      InputError: no such line names the columns of one of _FORMS.
    """
    # The line of names is at most the first after _MOST_COMMENTS comments.
    for line_number in range(1, _MOST_COMMENTS + 2):
        line = file.readline(_HEADER_BYTES)
        header = _parse_header(path, line.lstrip("# "), renamed, line_number)
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
    path: Path, line: str, renamed: Mapping[str, str] | None, line_number: int
) -> _Header | None:
    """Returns the header of a CSV if this line names the columns of one of _FORMS; else None.

    Each separator is tried. Raises InputError where the line can be read in several ways.

    Args:
      path: the file, for messages.
      line: the line, without a # before it.
      renamed: {a column's name in the file, in lower case: our name}; None where the file has our names.
      line_number: the number of the line in the file, from 1; as many lines are above the first row.
    """
    for separator in "\t;, ":
        fields = next(csv.reader([line], delimiter=separator), [])
        names = [name.strip().lower() for name in fields]
        if renamed is not None:
            # Columns that the user did not name are ignored, even where they have one of our names.
            names = [renamed.get(name, "") for name in names]
        form = _find_form(path, names)
        if form is not None:
            indices = (names.index(form[0]), names.index(form[1]))
            return _Header(form, indices, separator, lines=line_number)
    return None


def _find_form(path: object, names: Sequence[str]) -> tuple[str, str] | None:
    """Returns the pair of _FORMS, such as ("score", "in"), that a table has as columns, or None.

    Args:
      path: the file or table, for messages.
      names: the names of its columns, in lower case.

    Raises:
      InputError: a third column has a name of these pairs, too, so that the table can be read in several
        ways.
    """
    for form in _FORMS:
        if set(form) <= set(names):
            break
    else:
        return None
    known_names = set(itertools.chain(*_FORMS))
    known = [name for name in names if name in known_names]
    several = f"{path}: its columns {','.join(known)} can be read in several ways"
    require(len(known) == 2, f"{several}: keep score,in (1 or 0), or in,out (a column a world)")
    return form


def _read_rows(path: Path, file: IO[str], header: _Header) -> Iterator[_Cells]:
    """Yields the two cells to read of each row of a CSV below its header; skips empty rows.

    Decimal commas become points, unless commas separate the columns. A cell that a row lacks is "".

    Args:
      path: the file, for messages.
      file: the open file, at the first row.
      header: what the file says above its rows.

    Raises:
      InputError: some numbers have commas and others have points, so that either may separate thousands.
    """
    reader = csv.reader(file, delimiter=header.separator)
    first_index, second_index = header.indices
    place = 0  # the row's index among those that are not empty
    marks = set()  # the commas and points that cells have had so far
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
    """Appends a row's score to the scores with the canary or to those without it, as its label says.

    Args:
      path: the file, for messages.
      cells: the row: a score, and a label such as 1 or 0, true or false, in or out.
      worlds: {True: scores with the canary, False: scores without it}; one of the lists is appended to.
    """
    with _naming(f"{path} line {cells.line}"):
        label = _parse_label(cells.second)
    worlds[label].append(_parse_score(path, cells.line, cells.first))


def _parse_label(text: str) -> bool:
    """Returns whether a label means that the canary was in; raises InputError for an unknown label.

    Labels are the words in _LABELS, in any case, and numbers that equal 1 or 0.
    """
    label = _LABELS.get(text.lower())
    if label is None:
        with contextlib.suppress(ValueError):
            label = _NUMERIC_LABELS.get(float(text))
    if label is None:
        raise InputError(f"{_quote(text)} says neither in nor out: give {_LABELS_READ}")
    return label


def _read_second_column(name: str, values: ArrayLike) -> Array:
    """Returns a table's second column as numbers; labels in words, such as "in" or "false", become 1 or 0.

    Args:
      name: the column's name in its pair of _FORMS: "out" holds scores, other names hold labels.
      values: the column's values.
    """
    if name == "out" or not _has_words(values):
        return floats(name, values)
    # Labels in words are flat, (runs,): in lists of lists `_has_words` sees no text.
    labels = [_parse_label(str(value)) for value in np.asarray(values).ravel()]
    return np.array(labels, np.float64)


def _has_words(values: ArrayLike) -> bool:
    """Returns whether values may include text.

    Each element of a list is looked at. An array or a column is judged by its type: objects and strings may
    be text.
    """
    if isinstance(values, list):
        return any(isinstance(value, str) for value in values)
    dtype = getattr(values, "dtype", None)
    # NumPy's kinds of objects, of fixed-width text and of text of any width.
    return getattr(dtype, "kind", "") in ("O", "U", "T")


def _add_pair(path: Path, cells: _Cells, worlds: dict[bool, list[float]]) -> None:
    """Appends a row's two scores, one of a run with the canary and one of a run without.

    Columns may be of different length: below the end of the shorter one, its cells are empty.

    Args:
      path: the file, for messages.
      cells: the row: a score with the canary and a score without it, or "" below a column's end.
      worlds: {True: scores with the canary, False: scores without it}; both lists are appended to.

    Raises:
      InputError: a score is below an empty cell of its column, or is no number.
    """
    for present, text in ((True, cells.first), (False, cells.second)):
        if not text:
            continue
        # A column so far has a score for each row above this one, unless it had an empty cell.
        world = worlds[present]
        gap = f"{path} line {cells.line}: a score below an empty cell: fill that in (nan if a run failed)"
        require(len(world) == cells.place, gap)
        world.append(_parse_score(path, cells.line, text))


def _parse_score(path: Path, line: int, text: str) -> float:
    """Returns a score's text as a number; raises InputError for any other text, also for an empty one.

    The text nan gives NaN, which stands for a run that failed.
    """
    try:
        return float(text)
    except ValueError:
        message = f"score {_quote(text)} is not a number: fix it, or write nan if the run failed"
        raise InputError(f"{path} line {line}: {message}") from None


def _quote(text: str) -> str:
    """Returns a text in quotes, cut after 40 characters."""
    shortened = text if len(text) <= 40 else f"{text[:40]}..."
    return repr(shortened)
