"""Reads scores from a table, an .npz file, two files (with and without the canary), or standard input."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.errors import InputError, require, shown
from audit.evidence import arrays, given
from audit.evidence.canaries import Fresh
from audit.evidence.given import Evidence
from audit.evidence.one_run import OneRun
from audit.storage import tables
from audit.storage.tables import STDIN, THOUSANDS, Columns, Wanted, name_file, name_in_errors

Array = NDArray[np.float64]

# The arrays that an .npz file with ranks may contain, and the groups of columns allowed in other files.
_RANK_NAMES = ("scores", "fresh", "presence")
_LAYOUTS = (("score", "in"), ("score", "presence"), ("scores", "presence"), ("in", "out"))
_ONE_RUN_FIX = "`one_run` requires flat scores and presence: drop it"
_YES = ("true", "t", "yes", "y", "in", "member")
_NO = ("false", "f", "no", "n", "out", "non-member", "nonmember")
_LABELS = {**dict.fromkeys(_YES, 1.0), **dict.fromkeys(_NO, 0.0)}


def paths(scores: str) -> tuple[Path, ...]:
    """Returns the comma-separated files in `scores`; "-" gives (STDIN,)."""
    return tuple(Path(name) for name in scores.split(","))


def describe_files(files: Sequence[Path]) -> str:
    """Returns the names of score files, without folders, for a report."""
    return ", ".join(Path(name_file(path)).name for path in files)


def read_files(
    files: Sequence[Path], columns: Mapping[str, str] | None = None, one_run: bool = False
) -> Evidence:
    """Reads and validates the scores in files.

    Arrays are (runs,) or (runs, canaries).

    Args:
      files: one of
          a .npz with the arrays `in` and `out`, `scores` and `presence`, or (for ranks among fresh draws)
          `scores` and `fresh`;
          a table (.csv, .tsv, .json, .xlsx, .parquet) with columns score,in or score,presence (1 or 0),
          or in,out (scores with and without the canary);
          two files, .npy or tables with a column `score`: first scores with the canary, then without;
          STDIN, with CSV or JSON.
      columns: {our name: name in the file}, such as {"score": "loss", "presence": "member"}. A leading minus
        negates the scores: "-loss".
      one_run: True if scores and presence (K,) are from the K canaries of a single run.

    Raises:
      InputError: the files can't be read, contain no scores or too many, or conflict with `one_run`.
    """
    names, signs = _parse_columns(columns or {})
    first = files[0]
    is_npz = first.suffix.lower() == ".npz"
    if len(files) == 1 and (is_npz or tables.is_table(first)):  # STDIN is a table
        read = _read_npz if is_npz else tables.read_table
        cells = read(first, Wanted(_LAYOUTS, names))
        with name_in_errors(name_file(first)):
            return _make_evidence(cells, signs, one_run)

    if len(files) != 2 or not all(map(_can_be_one_of_two, files)):
        given_files = ",".join(map(str, files))
        kinds = "a .npz, .csv, .tsv, .json, .xlsx or .parquet file, two .npy files, in.npy,out.npy"
        raise InputError(f"`scores={given_files}`: give {kinds}, or - for standard input")
    require(not one_run, _ONE_RUN_FIX)
    scores_in, scores_out = (_read_one_world(path, names, signs) for path in files)
    with name_in_errors(first):
        return given.two_worlds(scores_in, scores_out)


def _can_be_one_of_two(path: Path) -> bool:
    """Returns True for .npy files and tables, which can be given as a pair: with and without the canary."""
    return path.suffix.lower() == ".npy" or (path != STDIN and tables.is_table(path))


def _read_one_world(path: Path, names: Mapping[str, str], signs: Mapping[str, int]) -> Array:
    """Returns the scores from one of two files (with or without the canary).

    `names` maps our column names to the file's, and is empty for .npy files. `signs` contains -1 for each
    negated column.
    """
    if path.suffix.lower() == ".npy":
        require(not names, f"{path} has no columns: drop `columns`")
        with tables.reading(path):
            return _flatten(np.load(path, allow_pickle=False))
    cells = tables.read_table(path, Wanted(layouts=(("score",), ("scores",)), columns=names))
    with name_in_errors(path):
        (scores,) = _read_scores(cells, list(cells), signs)
    return scores


def read_columns(place: object, names: Sequence[object], column: Callable[[Any], Any]) -> Evidence:
    """Reads and validates the scores of a table in memory.

    Args:
      place: the name of the table, for messages.
      names: the column names, either
          score,in or score,presence (1 for an inserted canary, otherwise 0), or
          in,out (scores with and without the canary).
      column: maps a name to the column's values, (runs,) or (runs, canaries).

    Raises:
      InputError: the table has unexpected columns, or values that are not scores.
    """
    with name_in_errors(place):
        columns = tables.pick_columns(names, column, Wanted(layouts=_LAYOUTS, columns={}))
        # For scores of a single run, users call `audit.coins`.
        return _make_evidence(columns, signs={}, one_run=False)  # no scores are negated


def read_cosines(
    path: Path, dimension: int, leave_one_out: bool = False, in_order: bool = False
) -> OneRun | Fresh:
    """Reads and validates the cosines of one or more runs with K canaries.

    Args:
      path: a .npz or .json file with one of
          `observed`, (runs, K), or (K,) for a single run, which may also have `unobserved` cosines;
          `in`, (runs, K), or (runs,) for a single canary per run;
          `scores` and `presence`, (runs, K), or (K,) for a single run;
        or a .npy file with a matrix (runs, K), which is read as `observed`.
      dimension: the number of trained parameters.
      leave_one_out: True if the other canaries' directions were projected out before each cosine was
        computed.
      in_order: True if rows are in the order in which runs started. Bounds are then valid at any stopping
        time.

    Returns:
      A `OneRun` for a single run without leave-one-out cosines; otherwise a `Fresh`.

    Raises:
      InputError: the file does not contain cosines in one of these forms.
    """
    # `out` is read only for the error below.
    names = ("observed", "unobserved", "in", "out", "scores", "presence")
    found = _read_arrays(path, names)
    presence = None
    with name_in_errors(path):
        if "scores" in found and "presence" in found:
            name = "scores"
            presence = np.atleast_2d(found.pop("presence"))
        elif "observed" in found:
            name = "observed"
        else:
            name = "in"
            require(
                name in found, "it has no array observed: save observed=, or scores= and presence="
            )
        cosines = found.pop(name)
        if cosines.ndim == 1 and name != "in":  # a flat `in` has one canary per run
            cosines = cosines[None]
        unobserved = None
        # `unobserved` are cosines of directions that the single run did not insert.
        if name == "observed" and len(cosines) == 1 and not leave_one_out:
            unobserved = found.pop("unobserved", None)
        extra = ", ".join(sorted(found))  # arrays that we did not use
        require(
            not extra, f"drop {extra}, or save scores= and presence= if any canaries were left out"
        )
        if unobserved is not None:
            return given.paired_cosines(cosines[0], unobserved, dimension)
        return given.cosines(cosines, dimension, presence, leave_one_out, in_order)


def _parse_columns(columns: Mapping[str, str]) -> tuple[dict[str, str], dict[str, int]]:
    """Returns {our name: name in the file without a minus}, and {our name: -1} for names with a minus."""
    known = list(dict.fromkeys((*itertools.chain(*_LAYOUTS), *_RANK_NAMES)))  # without repetition
    score_names = {"score", "scores", "out", "fresh"}
    if "out" in columns:
        score_names.add("in")  # without a column `out`, the column `in` contains 1 or 0
    names = {}
    signs = {}
    for ours, theirs in columns.items():
        pair = f"`columns={ours}:{theirs}`"
        require(ours in known and theirs, f"{pair}: name {', '.join(known)}, as in score:loss")
        names[ours] = theirs.removeprefix("-")
        if names[ours] != theirs:  # it had a minus
            require(ours in score_names, f"{pair}: only scores can be negated")
            signs[ours] = -1
    return names, signs


def _read_npz(path: Path, wanted: Wanted) -> Columns:
    """Returns the arrays of an .npz file that `wanted` selects, keyed by our names.

    If the file contains `fresh` (scores of random draws), returns the arrays for ranks: the canaries'
    `scores`, `fresh`, and optionally `presence`, which marks inserted canaries.
    """
    with tables.reading(path), np.load(path, allow_pickle=False) as file:
        our_names = wanted.rename(file.files)
        if "fresh" in our_names:
            places = {name: our_names.index(name) for name in _RANK_NAMES if name in our_names}
        else:
            places = wanted.locate(file.files)
        return {name: _flatten(file[file.files[place]]) for name, place in places.items()}


def _read_arrays(path: Path, names: Iterable[str]) -> Columns:
    """Returns the arrays of an .npz or .json file that `names` lists.

    The unnamed array of a .npy file is returned as `observed`, the cosines of inserted canaries.
    """
    suffix = path.suffix.lower()
    if suffix == ".json":
        with tables.reading(path):
            columns = tables.parse_json(tables.read_text(path))
        with name_in_errors(path):
            return {name: arrays.floats(name, columns[name]) for name in names if name in columns}
    require(suffix in (".npz", ".npy"), f"`scores={path}`: give a .npz, .npy or .json file")
    with tables.reading(path):
        loaded = np.load(path, allow_pickle=False)
        if suffix == ".npy":
            return {"observed": loaded[...]}  # rejects an .npz file with this suffix
        with loaded:
            return {name: loaded[name] for name in names if name in loaded.files}


def _flatten(values: NDArray[Any]) -> NDArray[Any]:
    """Reshapes an array (n, 1) to (n,) and returns other arrays unchanged."""
    if values.ndim == 2 and values.shape[1] == 1:
        return values[:, 0]
    return values


def _make_evidence(columns: Columns, signs: Mapping[str, int], one_run: bool) -> Evidence:
    """Returns the evidence in the columns of a table or file.

    Args:
      columns: cells keyed by our names, in one of these layouts:
        scores, then their presence (1 or 0), such as `score` and `in`;
        `in` and `out`, scores with and without the canary;
        `scores`, `fresh` and optionally `presence`, for ranks.
      signs: {our name: -1} for columns to negate.
      one_run: True if the scores are from a single run.
    """
    if "fresh" in columns:
        require(not one_run, _ONE_RUN_FIX)
        signed = {name: signs.get(name, 1) * values for name, values in columns.items()}
        require("scores" in signed, "it has no array scores: save scores= and fresh=")
        # The canaries of R runs, `scores` (R, K), are ranked among fresh draws (R, M).
        return given.ranks(signed["scores"], signed["fresh"], signed.get("presence"))
    if "out" in columns:
        require(not one_run, _ONE_RUN_FIX)
        scores_in, scores_out = _read_scores(columns, ["in", "out"], signs)
        return given.two_worlds(scores_in, scores_out)
    scores_name, presence_name = columns
    (scores,) = _read_scores(columns, [scores_name], signs)
    present = _read_labels(presence_name, columns[presence_name])
    return _split_by_presence(scores, present, one_run)


def _split_by_presence(scores: Array, present: NDArray[np.bool_], one_run: bool) -> Evidence:
    """Returns the evidence from scores and their canaries' presence; both are flat or (runs, canaries)."""
    require(
        scores.shape == present.shape,
        f"scores {scores.shape} and presence {present.shape} must both be (runs,) or (runs, canaries)",
    )
    require(not one_run or scores.ndim == 1 or len(scores) == 1, _ONE_RUN_FIX)
    if one_run or scores.ndim > 1:
        return given.coins(np.atleast_2d(scores), np.atleast_2d(present))
    sets = given.two_worlds(scores[present], scores[~present])
    # With `labelled`, the report notes that these scores may be from one run.
    return sets._replace(labelled=True)


def _read_scores(columns: Columns, names: Sequence[str], signs: Mapping[str, int]) -> list[Array]:
    """Returns the named columns as scores, multiplied by their signs (1 if not in `signs`)."""
    text_columns = {name: columns[name] for name in names if _is_text_column(columns[name])}
    # Commas have the same meaning in all text columns.
    all_cells = list(itertools.chain(*text_columns.values()))
    has_commas = _has_decimal_commas(all_cells)
    found = []
    for name in names:
        numbers = columns[name]
        if name in text_columns:
            numbers = _parse_numbers(numbers, has_commas)
        found.append(signs.get(name, 1) * arrays.scores(name, numbers))
    return found


def _parse_numbers(cells: list[Any], has_commas: bool) -> Array:
    """Returns the cells as numbers, without trailing empty cells. `has_commas` means decimal commas."""
    parsed = []
    for row, cell in enumerate(tables.trim(cells), 1):
        number = _convert(cell, has_commas)
        if number is None:
            raise InputError(
                f"row {row}: score {shown(str(cell))!r} is not a number: fix it, or write nan if the "
                "run failed"
            )
        parsed.append(number)
    return np.array(parsed, np.float64)


def _is_text_column(cells: Any) -> bool:
    """Returns True for a flat list, which may contain strings; other columns are arrays or nested lists."""
    return isinstance(cells, list) and not any(isinstance(cell, list | tuple) for cell in cells)


def _convert(cell: Any, has_commas: bool) -> float | None:
    """Returns a cell as a number, or None if it is not a number. If `has_commas`, a comma is a decimal point.

    Underscores, non-ASCII digits and booleans are not numbers.
    """
    if isinstance(cell, str):
        is_plain = cell.isascii() and "_" not in cell
        if has_commas:
            cell = cell.replace(",", ".")
    else:
        is_plain = isinstance(cell, int | float | np.number) and not isinstance(cell, bool)
    try:
        return float(cell) if is_plain else None
    except (ValueError, OverflowError):
        return None


def _has_decimal_commas(cells: Sequence[Any]) -> bool:
    """Returns True if the cells use decimal commas.

    Raises InputError if the cells have both commas and points, or if the order of the numbers depends on
    whether a comma or point separates thousands, as in the strings 1.002 and 998. If all cells have one, as
    in 2.998 and 1.002, the order is the same.
    """
    texts = [cell.strip() for cell in cells if isinstance(cell, str)]
    has_commas = any("," in text for text in texts)
    has_points = any("." in text for text in texts) or any(isinstance(x, float) for x in cells)
    require(
        not (has_commas and has_points),
        "some numbers have a comma, others a point: use points throughout",
    )
    mark = "," if has_commas else "."
    marked = [text for text in texts if mark in text]
    # Cells that are numbers come from JSON, which has no thousands separators.
    are_all_strings = len(texts) == len(cells)
    if marked and are_all_strings and all(map(THOUSANDS.fullmatch, marked)):
        problem = f"{marked[0]!r} may have a thousands separator"
        has_unmarked = any(text.lstrip("+-").isdigit() for text in texts)  # such as 998
        require(not has_unmarked, f"{problem}: write numbers without it, decimals with a point")
    return has_commas


def _read_labels(name: str, cells: Any) -> NDArray[np.bool_]:
    """Converts each cell to True (1 or a word in _YES) or False (0 or a word in _NO)."""
    if not _is_text_column(cells):
        bits = arrays.floats(name, cells)
        require(np.isin(bits, (0, 1)).all(), f"{name} must be 1 (in) or 0 (out) everywhere")
        return bits.astype(bool)
    labels = {}
    for cell in set(cells):
        number = _convert(cell, has_commas=True)  # reads 1,0 like 1.0
        labels[cell] = _LABELS.get(str(cell).strip().lower(), number)
        require(
            labels[cell] in (0, 1),
            f"{shown(str(cell))!r} is neither in nor out: give 1 or 0, yes or no, true or false, in or out, "
            "member or non-member",
        )
    return np.array([labels[cell] for cell in cells], bool)
