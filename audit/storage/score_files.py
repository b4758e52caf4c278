"""Reads scores of any framework: tables, .npz files, two files of a world each, or standard input."""

import contextlib
import io
import itertools
import math
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.errors import InputError, require
from audit.evidence import arrays, given, given_directions
from audit.evidence.canaries import Coins, Fresh, Sets
from audit.evidence.one_run import OneRun
from audit.evidence.ranks import MOST_DRAWS
from audit.settings.fields import MOST_SEED
from audit.storage import tables
from audit.storage.cells import Cells, list_names, read_labels, read_scores, read_worlds
from audit.storage.tables import STDIN, ReadTable

Array = NDArray[np.float64]
Scores = Sets | Coins | OneRun | Fresh

_HEADER_BYTES = 1 << 16  # the most that are read of a .npy's header
_COSINE_NAMES = ("observed", "unobserved", "in", "out", "scores", "presence")
_RANK_NAMES = ("scores", "fresh", "ranks", "fresh_draws", "presence", "seed")
_FORMS = (("score", "in"), ("score", "presence"), ("scores", "presence"), ("in", "out"))
_SCORE_NAMES = ("score", "scores")
_ONE_RUN_FIX = "`one_run` goes with flat scores and presence: drop it"
# What others call the column that tells whether a canary was in, or a score.
_PRESENCE_ELSEWHERE = (
    *("member", "members", "membership", "memberships", "is_member", "keep", "inserted"),
    *("label", "labels", "target", "targets"),
)
_SCORES_ELSEWHERE = ("loss", "losses", "signal", "signals", "value", "logit", "logits")


class ReadScores(NamedTuple):
    """The scores of files, as checked evidence.

    Attributes:
      evidence: the scores by world, run and canary.
      negation: the `columns` that negate the scores; empty if the files have no columns.
    """

    evidence: Scores
    negation: str


def paths(scores: str) -> tuple[Path, ...]:
    """Returns the files that a user's `scores` names, separated by commas; "-" gives (STDIN,)."""
    if os.path.exists(scores):  # a single file, whose name may have a comma
        return (Path(scores),)
    return tuple(Path(name) for name in scores.split(","))


def describe_files(files: Sequence[Path]) -> str:
    """Returns the names of score files as a report shows them: comma-separated, without their folders."""
    names = []
    for path in files:
        source = tables.name_file(path)
        names.append(source.name)
    return ", ".join(names)


def read_files(
    files: Sequence[Path], columns: Mapping[str, str] | None = None, one_run: bool = False
) -> ReadScores:
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
    wanted = _Wanted(tables.name_file(files[0]), dict(columns or {}))
    wanted.require_known()
    is_npz = files[0].suffix.lower() == ".npz"
    if len(files) == 1 and (is_npz or tables.is_table(files[0])):
        if is_npz:
            return _read_npz(files[0], wanted, one_run)
        return _read_table(wanted, tables.read_table(files[0], wanted), one_run)

    require(not one_run, _ONE_RUN_FIX)
    are_arrays = all(path.suffix.lower() == ".npy" for path in files)
    are_tables = all(tables.is_table(path) for path in files) and STDIN not in files
    if len(files) != 2 or not (are_arrays or are_tables):
        names = ",".join(str(path) for path in files)
        kinds = "a .npz, .csv, .tsv, .json, .xlsx or .parquet file, two .npy files, in.npy,out.npy"
        raise InputError(f"`scores={names}`: give {kinds}, or - for standard input")
    worlds = [_read_world(path, wanted._replace(place=path)) for path in files]
    with _naming(files[0]):
        return ReadScores(given.two_worlds(*worlds), "")


def read_columns(place: object, names: Sequence[object], column: Callable[[Any], Any]) -> Scores:
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
    wanted = _Wanted(place, {})
    places = wanted.find([str(name) for name in names])
    if places is None:
        fix = "name two of them score and in (1 or 0), or in and out"
        raise InputError(f"{place} has columns {list_names(names)}: {fix}")
    cells = {ours: tables.list_cells(column(names[index])) for ours, index in places.items()}
    rows = max(len(values) if np.ndim(values) else 1 for values in cells.values())
    table = ReadTable(cells, {}, range(1, rows + 1), unit="row", is_filled_up=True)
    return _read_table(wanted, table, one_run=False).evidence


def _read_world(path: Path, wanted: "_Wanted") -> Array:
    """Returns the scores of a file with those of a single world: a .npy, or a table with their column."""
    if path.suffix.lower() == ".npy":
        require(not wanted.columns, f"{path} has no columns: drop `columns`")
        return _read_npy(path)
    wanted = wanted._replace(forms=tuple((name,) for name in _SCORE_NAMES))
    table = tables.read_table(path, wanted)
    ((ours, cells),) = table.columns.items()
    return wanted.sign(ours) * read_scores(Cells(path, ours, cells, table.lines, table.unit))


def _read_npz(path: Path, wanted: "_Wanted", one_run: bool) -> ReadScores:
    """Returns the scores of a .npz file; see `read_files` for its arrays."""
    shapes = _read_shapes(path)
    names = list(shapes)
    ranked = wanted.find_any(names, _RANK_NAMES)
    if {"fresh", "ranks", "fresh_draws"} & set(ranked):
        require(not one_run, _ONE_RUN_FIX)
        # Arrays of ranks keep their shape, so that (runs, 1) stays a matrix with a single canary a run.
        found = _read_npz_arrays(path, [names[index] for index in ranked.values()], flat=False)
        by_name = {ours: wanted.sign(ours) * found[names[at]] for ours, at in ranked.items()}
        return ReadScores(_make_ranks(path, by_name), "")

    places = wanted.find(names)
    if places is None:
        raise InputError(f"{path} has arrays {list_names(names)}: {wanted.advise(names, shapes)}")
    theirs = {ours: names[index] for ours, index in places.items()}
    found = _read_npz_arrays(path, list(theirs.values()))
    cells = {ours: found[name] for ours, name in theirs.items()}
    return _read_table(wanted, ReadTable(cells, theirs, ()), one_run)


def _read_table(wanted: "_Wanted", table: ReadTable, one_run: bool) -> ReadScores:
    """Returns the scores of the two wanted columns of a table, or arrays of a .npz.

    Args:
      wanted: which columns they are.
      table: the columns.
      one_run: whether flat scores with presence are those of the canaries of a single run.
    """
    first, second = (
        Cells(wanted.place, ours, cells, table.lines, table.unit)
        for ours, cells in table.columns.items()
    )
    negation = wanted.negate(table.names)
    if second.name == "out":
        require(not one_run, _ONE_RUN_FIX)
        scores_in, scores_out = read_worlds(first, second)
        if table.is_filled_up:
            _require_no_filling(wanted.place, scores_in, scores_out)
        with _naming(wanted.place):
            worlds = wanted.sign("in") * scores_in, wanted.sign("out") * scores_out
            return ReadScores(given.two_worlds(*worlds), negation)
    scores = wanted.sign(first.name) * read_scores(first)
    present = read_labels(second)
    fits = scores.ndim in (1, 2) and scores.shape == present.shape
    shapes = f"scores {scores.shape} and presence {present.shape}"
    require(fits, f"{wanted.place}: {shapes} must both be (runs,) or (runs, canaries)")
    with _naming(wanted.place):
        if scores.ndim == 2:
            is_one_row = len(scores) == 1
            require(is_one_row or not one_run, _ONE_RUN_FIX)
            return ReadScores(given.coins(scores, present), negation)
        if one_run:
            return ReadScores(given.coins(scores[None], present[None]), negation)
        sets = given.two_worlds(scores[present], scores[~present])
        return ReadScores(sets._replace(labelled=True), negation)


def _require_no_filling(place: object, scores_in: Array, scores_out: Array) -> None:
    """Raises InputError if a column ends in NaN that may only fill it up to the length of the other.

    If they were counted as failed runs, bounds might be too high.
    """
    if scores_in.shape != scores_out.shape or not len(scores_in):
        return
    for name, scores, others in (("in", scores_in, scores_out), ("out", scores_out, scores_in)):
        if np.isnan(scores[-1]).all() and not np.isnan(others[-1]).any():
            reason = "failed runs, or only as long as the other column"
            fix = "give score,in (1 or 0) in a row for each run"
            raise InputError(f"{place}: {name} ends in NaN, of {reason}: {fix}")


class _Wanted(NamedTuple):
    """The columns to read of a table, and the names that a user gave them.

    Attributes:
      place: the file or table, for messages.
      columns: {our name: the file's name, with a minus before it to negate scores}.
      forms: the groups of columns of which one is read, by our names.
    """

    place: object
    columns: dict[str, str]
    forms: tuple[tuple[str, ...], ...] = _FORMS

    def require_known(self) -> None:
        """Raises InputError for a name of ours that is none, or a minus before what is no score."""
        known = list(dict.fromkeys((*itertools.chain(*_FORMS), *_RANK_NAMES)))
        for ours, theirs in self.columns.items():
            pair = f"`columns={ours}:{theirs}`"
            require(ours in known, f"{pair}: name {', '.join(known)}")
            has_sign = ours in (*_SCORE_NAMES, "out", "fresh") or (
                ours == "in" and "out" in self.columns
            )
            require(has_sign or not theirs.startswith("-"), f"{pair}: only scores can be negated")

    def sign(self, ours: str) -> float:
        """Returns the factor of a column's scores: -1 if the user wants them negated, else 1."""
        return -1.0 if self.columns.get(ours, "").startswith("-") else 1.0

    def find(self, names: Sequence[str]) -> dict[str, int] | None:
        """Returns {our name: index} of a table's wanted columns; None if it lacks some.

        If the user named all, others are ignored, whatever they are called.

        Raises:
          InputError: the table can be read in several ways.
        """
        is_whole = any(set(form) == set(self.columns) for form in self.forms)
        renamed = self._rename(names, is_whole)
        for form in self.forms:
            if set(form) <= set(renamed):
                break
        else:
            return None
        known = [name for name in renamed if name in itertools.chain(*self.forms)]
        if len(known) != len(form):
            several = f"{self.place}: its columns {','.join(known)} can be read in several ways"
            keep = (
                "keep score,in (1 or 0), or in,out (a column a world), or name two with `columns`"
            )
            raise InputError(f"{several}: {keep}")
        return {name: renamed.index(name) for name in form}

    def find_any(self, names: Sequence[str], wanted: Sequence[str]) -> dict[str, int]:
        """Returns {our name: index} of those of the wanted columns that there are."""
        renamed = self._rename(names, is_whole=False)
        return {name: renamed.index(name) for name in wanted if name in renamed}

    def _rename(self, names: Sequence[str], is_whole: bool) -> list[str]:
        """Returns a table's names with ours in place of theirs; "" for all others if `is_whole`."""
        ours = {_plain(theirs).lstrip("-"): name for name, theirs in self.columns.items()}
        return [ours.get(_plain(name), "" if is_whole else _plain(name)) for name in names]

    def advise(
        self, names: Sequence[str], shapes: Mapping[str, tuple[int, ...]] | None = None
    ) -> str:
        """Returns what to do about a table without the wanted columns.

        Args:
          names: the names of its columns.
          shapes: their shapes, if they are arrays.
        """
        by_name = {_plain(name): name for name in names}
        theirs = [name.lstrip("-") for name in self.columns.values()]
        missing = [name for name in theirs if _plain(name) not in by_name]
        if missing:
            return f"there is no {', '.join(missing)}, check `columns`"
        if len(self.forms[0]) == 1:
            return "name that of the scores, as in `columns=score:Value`"
        by_name = {name: shown for name, shown in by_name.items() if shown not in theirs}
        score = _first_of((*_SCORE_NAMES, *_SCORES_ELSEWHERE), by_name)
        presence = _first_of(("presence", "in", *_PRESENCE_ELSEWHERE), by_name)
        pairs = [f"{ours}:{name}" for ours, name in self.columns.items()]
        if {*_SCORE_NAMES} & set(self.columns):
            score = "score"
        if {"in", "presence"} & set(self.columns):
            presence = "in"
        if score is None or presence is None:
            forms = "score,in (1 or 0), or in,out (a column a world)"
            return f"give {forms}, or name two, as in `columns=score:loss,presence:member`"
        if _plain(score) not in _SCORE_NAMES:
            pairs.append(f"score:{score}")
        if _plain(presence) not in ("presence", "in"):
            pairs.append(f"presence:{presence}")
        meaning = f"if {presence} is 1 where the canary was in (score:-{score} if lower means in)"
        advice = f"give `columns={','.join(pairs)}` {meaning}, or save in and out"
        shape = (shapes or {}).get(score, ())
        if len(shape) == 2 and shape == (shapes or {}).get(presence):
            return (
                f"both are {shape}; if a row is a training run and a column a canary, {advice}; if "
                "a row is a canary, as in points by models, transpose both first"
            )
        return advice

    def negate(self, theirs: Mapping[str, str]) -> str:
        """Returns the `columns` that negate the scores, such as "score:-loss,presence:member".

        Args:
          theirs: {our name: the file's name} of the columns that were read; empty for a table in memory.
        """
        pairs = []
        for ours, name in theirs.items():
            is_score = ours in _SCORE_NAMES or "out" in theirs
            minus = "-" if is_score and self.sign(ours) > 0 else ""
            pairs.append(f"{ours}:{minus}{name}")
        return ",".join(pairs)


def _plain(name: str) -> str:
    """Returns a column's name as names are compared: in lower case, without blanks around it."""
    return name.strip().lower()


def _first_of(candidates: Sequence[str], by_name: Mapping[str, str]) -> str | None:
    """Returns the first of some names that a table has, as the table writes it; None without any."""
    return next((by_name[name] for name in candidates if name in by_name), None)


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
    """Returns the arrays of _COSINE_NAMES in a JSON text, by name."""
    with tables.reading(path):
        columns = tables.load_columns(path, tables.read_text(path))
    with _naming(path):
        named = [name for name in _COSINE_NAMES if name in columns]
        return {name: arrays.floats(name, columns[name]) for name in named}


def _read_npy_cosines(path: Path) -> dict[str, Array]:
    """Returns {"observed": the matrix (runs, canaries)} of a .npy file."""
    cosines = _read_npy(path, flat=False)
    message = f"{path} has shape {cosines.shape}: save (runs, canaries), or a .npz with observed= of one run"
    require(cosines.ndim == 2, message)
    return {"observed": cosines}


@contextlib.contextmanager
def _naming(path: object) -> Iterator[None]:
    """Puts a file's name before the message of an InputError that is raised in the block."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


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


def _read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each array of a .npz file, by name; () for what is no array."""
    shapes: dict[str, tuple[int, ...]] = {}
    with tables.reading(path), zipfile.ZipFile(path) as archive:
        for member in archive.namelist():
            name = member.removesuffix(".npy")
            shapes[name] = ()
            with contextlib.suppress(*tables.UNREADABLE), archive.open(member) as file:
                shapes[name] = _read_header(file).shape
    return shapes


def _read_npz_arrays(path: Path, names: Sequence[str], flat: bool = True) -> dict[str, Array]:
    """Returns the arrays of a .npz file with the given names, by name; with `flat`, (n, 1) becomes (n,).

    Names that the file lacks are left out. Booleans stay booleans.
    """
    found = {}
    with tables.reading(path), zipfile.ZipFile(path) as archive:
        members = {name.removesuffix(".npy"): name for name in archive.namelist()}
        for name in sorted(set(names) & set(members)):
            with archive.open(members[name]) as file:
                found[name] = _read_array(path, name, file, flat)
    return found


def _read_npy(path: Path, flat: bool = True) -> Array:
    """Returns a .npy file's array as float64; with `flat`, an array (n, 1) becomes (n,)."""
    with tables.reading(path), open(path, "rb") as file:
        return _read_array(path, path.stem, file, flat)


def _read_array(path: Path, name: str, file: IO[bytes], flat: bool = True) -> Array:
    """Returns an array in the format .npy as float64, or as booleans.

    Its header is read first, so that an array of a wrong type or size is refused before it is loaded.

    Args:
      path: the file, for messages.
      name: the array's name, for messages.
      file: an open file at the start of the array.
      flat: whether an array (n, 1) becomes (n,).

    Raises:
      InputError: the array is not of numbers, or of more than MOST_SCORES.
    """
    shape, dtype = _read_header(file)
    is_numeric = dtype.kind in "biuf"  # booleans, integers and floats
    message = f"{path}: array {name} holds no plain numbers ({dtype}): save floats"
    require(is_numeric, message)
    arrays.require_size(f"the scores of {path}", math.prod(shape))

    file.seek(0)  # `read_array` reads the header again
    array = np.lib.format.read_array(file, allow_pickle=False)
    if dtype.kind != "b":
        array = np.asarray(array, np.float64)
    if flat and array.ndim == 2 and array.shape[1] == 1:
        return array[:, 0]
    return array


class _NpyHeader(NamedTuple):
    """What the header of an array in the format .npy tells."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def _read_header(file: IO[bytes]) -> _NpyHeader:
    """Returns the header of an array in the format .npy, from an open file at its start."""
    header = io.BytesIO(file.read(_HEADER_BYTES))
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    version = np.lib.format.read_magic(header)
    # For another version this is a KeyError, which `tables.reading` reports as a damaged file.
    shape, _, dtype = readers[version](header)
    return _NpyHeader(shape, dtype)
