"""Reads scores of any framework: tables, .npz files, two files of a world each, or standard input.

A cell that can be read in two ways is refused, with its line and its text.
"""

import contextlib
import itertools
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.errors import InputError, require
from audit.evidence import arrays, given
from audit.evidence.canaries import Coins, Fresh, Sets
from audit.evidence.one_run import OneRun
from audit.storage import tables
from audit.storage.tables import STDIN, THOUSANDS, ReadColumns, Wanted, quote

Array = NDArray[np.float64]
Evidence = Sets | Coins | OneRun | Fresh

_COSINE_NAMES = ("observed", "unobserved", "in", "out", "scores", "presence")
_RANK_NAMES = ("scores", "fresh", "ranks", "fresh_draws", "presence", "seed")
_FORMS = (("score", "in"), ("score", "presence"), ("scores", "presence"), ("in", "out"))
_ONE_WORLD = (("score",), ("scores",))
_ONE_RUN_FIX = "`one_run` goes with flat scores and presence: drop it"
_YES = ("true", "t", "yes", "y", "in", "member", "ja", "wahr")
_NO = ("false", "f", "no", "n", "out", "non-member", "nonmember", "nein", "falsch")
_LABELS = {**dict.fromkeys(_YES, 1.0), **dict.fromkeys(_NO, 0.0)}
_LABELS_READ = "1 or 0, yes or no, true or false, in or out, member or non-member"


def paths(scores: str) -> tuple[Path, ...]:
    """Returns the files that a user's `scores` names, separated by commas; "-" gives (STDIN,)."""
    if os.path.exists(scores):  # a single file, whose name may have a comma
        return (Path(scores),)
    return tuple(Path(name) for name in scores.split(","))


def describe_files(files: Sequence[Path]) -> str:
    """Returns the names of score files as a report shows them: comma-separated, without their folders."""
    return ", ".join(tables.name_file(path).name for path in files)


def read_files(
    files: Sequence[Path], columns: Mapping[str, str] | None = None, one_run: bool = False
) -> Evidence:
    """Returns the scores in a table or a .npz, in two files, or on standard input.

    Arrays are (runs,) or, with several canaries a run, (runs, canaries).

    Args:
      files: one of
        a .npz with arrays `in` and `out`, or `scores` and `presence`; for canaries that are ranked among
          fresh draws, `scores` and `fresh` (and maybe `seed`, which breaks ties), or `ranks` and
          `fresh_draws`;
        a table (.csv, .tsv, .json, .xlsx, .parquet) with columns score,in or score,presence or in,out;
        two files, .npy or tables with a column `score`: scores with the canary and scores without it;
        STDIN, which has CSV or JSON.
      columns: {our name: the file's name}, such as {"score": "loss", "presence": "member"}. A minus before
        the name negates scores: "-loss".
      one_run: whether flat scores with presence are those of the canaries of a single run.

    Raises:
      InputError: the files can't be read, hold no scores, or hold more than MOST_SCORES.
    """
    names, signs = _parse_columns(columns or {})
    wanted = Wanted(_FORMS, names)
    suffixes = {path.suffix.lower() for path in files}
    are_tables = all(tables.is_table(path) for path in files)
    if len(files) == 1 and suffixes == {".npz"}:
        return _read_npz(files[0], wanted, signs, one_run)
    if len(files) == 1 and are_tables:
        return _make_evidence(tables.read_table(files[0], wanted), signs, one_run)

    require(not one_run, _ONE_RUN_FIX)
    are_worlds = are_tables and STDIN not in files
    if len(files) != 2 or not (are_worlds or suffixes == {".npy"}):
        shown = ",".join(map(str, files))
        kinds = "a .npz, .csv, .tsv, .json, .xlsx or .parquet file, two .npy files, in.npy,out.npy"
        raise InputError(f"`scores={shown}`: give {kinds}, or - for standard input")
    worlds = []
    for path in files:
        if are_worlds:
            table = tables.read_table(path, Wanted(_ONE_WORLD, names))
            worlds += [
                signs.get(ours, 1) * _read_scores(table, [ours])[0] for ours in table.columns
            ]
        else:
            require(not columns, f"{path} has no columns: drop `columns`")
            worlds.append(_flatten(_read_arrays(path, ("observed",))["observed"]))
    with _naming(files[0]):
        return given.two_worlds(*worlds)


def read_columns(place: object, names: Sequence[object], column: Callable[[Any], Any]) -> Evidence:
    """Returns the scores of a table in memory.

    The table has one of the pairs of columns in _FORMS: a score, and whether the canary was in (1 or 0); or
    scores with the canary and scores without it.

    Args:
      place: the table's name, for messages.
      names: the names of its columns.
      column: a function from a column's name to its values, (runs,) or (runs, canaries).

    Raises:
      InputError: for other columns, or for values that are no scores.
    """
    table = tables.read_frame(place, names, column, Wanted(_FORMS, {}))
    return _make_evidence(table, {}, one_run=False)


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
      A `OneRun` for a single run whose cosines are not leave-one-out; else a `Fresh`.

    Raises:
      InputError: the file holds something else.
    """
    found = _read_arrays(path, _COSINE_NAMES)
    name = next((name for name in ("observed", "in") if name in found), "")
    presence = found.get("presence")
    if "scores" in found and presence is not None:
        name = "scores"
    with _naming(path):
        require(name, "it has no array observed: save observed=, or scores= and presence=")
        cosines = found.pop(name)
        if cosines.ndim == 1 and name != "in":  # of a single run
            cosines = cosines[None]
            presence = None if presence is None else np.atleast_2d(presence)
        is_paired = name == "observed" and len(cosines) == 1 and not leave_one_out
        unobserved = found.pop("unobserved", None) if is_paired else None
        # An array that would not be used is refused: the user expects it to count.
        extra = ", ".join(sorted(set(found) - ({"presence"} if name == "scores" else set())))
        require(not extra, f"drop {extra}, or save scores= and presence= if some canaries are out")
        if is_paired:
            return given.paired_cosines(cosines[0], unobserved, dimension)
        return given.cosines(cosines, dimension, presence, leave_one_out, in_order)


def _parse_columns(columns: Mapping[str, str]) -> tuple[dict[str, str], dict[str, int]]:
    """Returns ({our name: the file's name}, {our name: -1}), the latter for names after a minus."""
    known = list(dict.fromkeys((*itertools.chain(*_FORMS), *_RANK_NAMES)))
    scores = {"score", "scores", "out", "fresh"} | ({"in"} if "out" in columns else set())
    names = {}
    signs = {}
    for ours, theirs in columns.items():
        pair = f"`columns={ours}:{theirs}`"
        require(ours in known, f"{pair}: name {', '.join(known)}")
        names[ours] = theirs.removeprefix("-")
        if names[ours] != theirs:
            require(ours in scores, f"{pair}: only scores can be negated")
            signs[ours] = -1
    return names, signs


def _read_npz(path: Path, wanted: Wanted, signs: Mapping[str, int], one_run: bool) -> Evidence:
    """Returns the scores of a .npz file; see `read_files` for its arrays."""
    with tables.reading(path), zipfile.ZipFile(path) as archive:
        names = [member.removesuffix(".npy") for member in archive.namelist()]
    ours = wanted.rename(names)
    if {"fresh", "ranks", "fresh_draws"} & set(ours):
        require(not one_run, _ONE_RUN_FIX)
        theirs = {name: names[ours.index(name)] for name in _RANK_NAMES if name in ours}
        found = _read_arrays(path, theirs.values())
        with _naming(path):
            return _rank({name: signs.get(name, 1) * found[theirs[name]] for name in theirs})
    places = wanted.require(path, names)
    found = _read_arrays(path, [names[index] for index in places.values()])
    columns = {name: _flatten(found[names[index]]) for name, index in places.items()}
    return _make_evidence(ReadColumns(path, columns), signs, one_run)


def _rank(found: Mapping[str, NDArray[Any]]) -> Fresh:
    """Returns the evidence of R runs whose K canaries are ranked among M fresh draws.

    Args:
      found: the arrays by our names: `scores` (R, K) and `fresh` (R, M), the draws' scores, and maybe the
        `seed` by which ties are broken; or `ranks` (R, K) and the number `fresh_draws`, M. With either,
        `presence` (R, K) if coins decided which canaries were in.
    """
    scores, fresh = ("scores", "fresh") if "fresh" in found else ("ranks", "fresh_draws")
    for name in (scores, fresh):
        require(name in found, f"it has no array {name}: save {scores}= and {fresh}=")
    extra = ", ".join(sorted(set(found) - {scores, fresh, "presence", "seed"}))
    require(not extra, f"it has {extra} next to {fresh}: drop one")
    numbers = {}
    for name in {"seed", "fresh_draws"} & set(found):
        values = found[name]
        is_whole = values.size == 1 and float(values.flat[0]).is_integer()
        require(is_whole, f"{name} is no whole number: save one")
        numbers[name] = int(values.flat[0])
    draws = numbers.get("fresh_draws", found[fresh])
    return given.ranks(found[scores], draws, found.get("presence"), seed=numbers.get("seed", 0))


def _read_arrays(path: Path, names: Any) -> dict[str, NDArray[Any]]:
    """Returns those of the named arrays that a .npz or .json file has; the array of a .npy as `observed`."""
    suffix = path.suffix.lower()
    if suffix == ".json":
        columns = tables.read_json_columns(path)
        with _naming(path):
            return {name: arrays.floats(name, columns[name]) for name in names if name in columns}
    require(suffix in (".npz", ".npy"), f"`scores={path}`: give a .npz, .npy or .json file")
    with tables.reading(path):
        if suffix == ".npz":
            with zipfile.ZipFile(path) as archive:
                size = sum(member.file_size for member in archive.infolist())
            require(size <= tables.MAX_BYTES, f"{path}: its arrays are larger than 1 GiB")
        loaded = np.load(path, allow_pickle=False)
        if suffix == ".npy":
            return {"observed": loaded}
        with loaded:
            return {name: loaded[name] for name in names if name in loaded.files}


def _flatten(values: NDArray[Any]) -> NDArray[Any]:
    """Returns (n, 1) as (n,), and other arrays as they are."""
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values


def _make_evidence(table: ReadColumns, signs: Mapping[str, int], one_run: bool) -> Evidence:
    """Returns the scores of a table's two columns.

    Args:
      table: the columns.
      signs: {our name: -1} of scores to negate.
      one_run: whether flat scores with presence are those of the canaries of a single run.
    """
    first, second = table.columns
    if second == "out":
        require(not one_run, _ONE_RUN_FIX)
        scores_in, scores_out = _read_scores(table, [first, second])
        if table.is_padded:
            _require_no_padding(table, scores_in, scores_out)
        worlds = signs.get(first, 1) * scores_in, signs.get(second, 1) * scores_out
        with _naming(table.place):
            return given.two_worlds(*worlds)
    (scores,) = _read_scores(table, [first])
    scores = signs.get(first, 1) * scores
    present = _read_labels(table, second)
    fits = scores.ndim in (1, 2) and scores.shape == present.shape
    shapes = f"scores {scores.shape} and presence {present.shape}"
    require(fits, f"{table.place}: {shapes} must both be (runs,) or (runs, canaries)")
    with _naming(table.place):
        if one_run:
            require(scores.ndim == 1 or len(scores) == 1, _ONE_RUN_FIX)
        if one_run or scores.ndim == 2:
            return given.coins(np.atleast_2d(scores), np.atleast_2d(present))
        sets = given.two_worlds(scores[present], scores[~present])
        return sets._replace(labelled=True)


def _require_no_padding(table: ReadColumns, scores_in: Array, scores_out: Array) -> None:
    """Raises InputError if a column ends in NaN that may only fill it up to the length of the other.

    If they were counted as failed runs, bounds might be too high.
    """
    ends_in_nan = [bool(np.isnan(scores[-1:]).any()) for scores in (scores_in, scores_out)]
    if len(scores_in) == len(scores_out) and sum(ends_in_nan) == 1:
        name = "in" if ends_in_nan[0] else "out"
        reason = "failed runs, or only as long as the other column"
        fix = "give score,in (1 or 0) in a row for each run"
        raise InputError(f"{table.place}: {name} ends in NaN, of {reason}: {fix}")


def _read_scores(table: ReadColumns, names: Sequence[str]) -> list[Array]:
    """Returns columns of scores; raises InputError for a cell that is no number.

    Columns of texts may end in empty cells, which are dropped. They are read as one: a comma means the
    same in all.
    """
    texts = [cell for name in names for cell in _list_cells(table, name)]
    with _naming(table.place):
        has_commas = _has_decimal_commas(texts)
    found = []
    for name in names:
        if not _is_list(table.columns[name]):
            with _naming(table.place):
                found.append(arrays.scores(name, table.columns[name]))
            continue
        cells = _list_cells(table, name)
        count = len(cells)
        while count and tables.is_blank(cells[count - 1]):
            count -= 1
        numbers = np.empty(count)
        for row, cell in enumerate(cells[:count]):
            is_text = has_commas and isinstance(cell, str)
            number = _convert(cell.replace(",", ".") if is_text else cell)
            if number is None:
                problem = f"score {quote(cell)} is not a number"
                fix = "fix it, or write nan if a run failed"
                raise InputError(f"{table.place}: row {row + 1}: {problem}: {fix}")
            numbers[row] = number
        found.append(numbers)
    return found


def _list_cells(table: ReadColumns, name: str) -> list[Any]:
    """Returns a column's cells if they are a flat list; else none."""
    cells = table.columns[name]
    return cells if _is_list(cells) else []


def _is_list(cells: Any) -> bool:
    """Returns whether cells are a flat list, rather than an array or a list of lists."""
    return isinstance(cells, list) and not any(isinstance(cell, list | tuple) for cell in cells)


def _convert(cell: Any) -> float | None:
    """Returns a cell as a number; None for a boolean, for an underscore and for digits that are not ASCII."""
    if isinstance(cell, str):
        is_plain = cell.isascii() and "_" not in cell
    else:
        is_plain = isinstance(cell, int | float | np.number) and not isinstance(cell, bool)
    try:
        return float(cell) if is_plain else None
    except (ValueError, OverflowError):
        return None


def _has_decimal_commas(cells: Sequence[Any]) -> bool:
    """Returns whether commas in cells are decimal; raises InputError if a mark may separate thousands.

    A comma next to points may. So may the mark of all numbers such as 1.002 if others, such as 998, have
    none. If all have it, as 2.998 and 1.002 do, their order is the same in both readings, and bounds depend
    only on that.
    """
    texts = [cell for cell in cells if isinstance(cell, str)]
    has_commas = any("," in text for text in texts)
    has_points = any("." in text for text in texts) or any(isinstance(x, float) for x in cells)
    mixed = "some numbers have a comma, others a point: write all with points"
    require(not (has_commas and has_points), mixed)
    mark = "," if has_commas else "."
    marked = [text.strip() for text in texts if mark in text]
    if marked and len(texts) == len(cells) and all(map(THOUSANDS.fullmatch, marked)):
        problem = f"{quote(marked[0])} may have a separator of thousands"
        fix = "write numbers without it, decimals with a point"
        has_whole = any(text.strip().lstrip("+-").isdigit() for text in texts)
        require(not has_whole, f"{problem}: {fix}")
    return has_commas


def _read_labels(table: ReadColumns, name: str) -> NDArray[np.bool_]:
    """Returns for each cell whether its label, a word in _LABELS or 1 or 0, tells that the canary was in."""
    cells = table.columns[name]
    if not _is_list(cells):
        with _naming(table.place):
            bits = arrays.floats(name, cells)
            require(np.isin(bits, (0, 1)).all(), f"{name} must be 1 (in) or 0 (out) everywhere")
        return bits.astype(bool)
    labels = {cell: _read_label(cell) for cell in set(cells)}
    for cell, label in labels.items():
        unknown = f"{quote(cell)} says neither in nor out: give {_LABELS_READ}"
        require(label in (0, 1), f"{table.place}: {unknown}")
    return np.array([labels[cell] for cell in cells], bool)


def _read_label(cell: Any) -> float | None:
    """Returns 1 for a label that means in, 0 for one that means out, another number or None for others."""
    if isinstance(cell, bool | np.bool_):
        return float(cell)
    if isinstance(cell, str):
        word = cell.strip().lower()
        return _LABELS.get(word, _convert(word.replace(",", ".")))
    return _convert(cell)


@contextlib.contextmanager
def _naming(path: object) -> Iterator[None]:
    """Puts a file's name before the message of an InputError that is raised in the block."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
