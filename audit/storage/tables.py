"""Reads tables of any common format: CSV with any separator, JSON, Excel and Parquet, from files and pipes.

pandas reads Excel and Parquet. It reads no CSV and no JSON here, since it changes these without a word: it
takes a cell too many for an index, fills in a cell too few, rounds numbers, and turns text into dates.
"""

import array
import codecs
import contextlib
import csv
import functools
import gzip
import importlib
import io
import itertools
import json
import lzma
import struct
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from audit.errors import InputError, require
from audit.evidence import arrays
from audit.runtime import installed
from audit.storage.cells import list_names, quote
from audit.storage.files import NOT_AN_ARCHIVE, regular

STDIN = Path("-")
MOST_BYTES = 1 << 30
_STANDARD_INPUT = Path("standard input")
_MOST_LINES_ABOVE = 100  # comments and titles above the line that names the columns
_SEPARATORS = "\t;,| "
_PARSER_ERRORS = (ArithmeticError, csv.Error, struct.error, lzma.LZMAError)
UNREADABLE: tuple[type[Exception], ...] = (*NOT_AN_ARCHIVE, *_PARSER_ERRORS)
_FIX = "check `scores`, or keep a random part of them"
_JSON_FIX = 'give {"in": [...], "out": [...]}, or "scores" and "presence"'


class Wanted(Protocol):
    """The columns that a caller wants of a table."""

    def find(self, names: Sequence[str]) -> dict[str, int] | None:
        """Returns {our name: index} of the wanted columns among all; None if some are missing."""

    def advise(self, names: Sequence[str]) -> str:
        """Returns what to do about a table that lacks some of them."""


class ReadTable(NamedTuple):
    """The wanted columns of a table.

    Attributes:
      columns: for each our name and its cells: an array or lists of numbers, (rows,) or (rows, canaries), or
        a list of numbers and texts.
      names: {our name: its name in the file}.
      lines: the number of each row in the file, from 1.
      unit: the word for a row in messages, "line" or "row".
      is_filled_up: whether NaN may only fill up a column that is shorter than others.
    """

    columns: dict[str, Any]
    names: dict[str, str]
    lines: Sequence[int]
    unit: str = "line"
    is_filled_up: bool = False


def name_file(path: Path) -> Path:
    """Returns a file's path as messages show it; words for STDIN."""
    return _STANDARD_INPUT if path == STDIN else path


def find_format(path: Path) -> str:
    """Returns a file's format by its suffix, such as ".csv", also if ".gz" follows; "-" for STDIN."""
    if path == STDIN:
        return "-"
    name = path.name.lower()
    return Path(name.removesuffix(".gz")).suffix


def is_table(path: Path) -> bool:
    """Returns whether a file's suffix is one of a table's; true for STDIN."""
    return find_format(path) in _READERS


def read_table(path: Path, wanted: Wanted) -> ReadTable:
    """Returns the wanted columns of a file with a table, or of STDIN, which has CSV or JSON.

    Raises:
      InputError: the file can't be read, lacks the columns, or has more than MOST_SCORES rows.
    """
    with reading(path):
        return _READERS[find_format(path)](path, wanted)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns an error that reading a file raises in the block into an InputError; silences warnings there.

    Raises InputError before the block if the path is no regular file, or the file is above 1 GiB. STDIN is
    not checked.
    """
    try:
        if path != STDIN:
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
    except UNREADABLE as error:  # all that readers may raise for a damaged file
        # An error of the system, such as a missing file, says its reason in `strerror`.
        reason = (
            getattr(error, "strerror", None) or f"it is damaged, encrypted or no {path.suffix} file"
        )
        raise InputError(f"cannot read {path}: {reason}; check `scores`") from None


def read_text(path: Path) -> str:
    """Returns the text of a file, plain or compressed (.gz), or of STDIN; in UTF-8 or UTF-16.

    Raises InputError if there is more than 1 GiB of text, or nothing on STDIN.
    """
    if path == STDIN:
        content = sys.stdin.buffer.read(MOST_BYTES + 1)
        require(content.strip(), f"{name_file(path)} is empty: give score,in lines, or JSON")
    elif path.suffix.lower() == ".gz":
        with gzip.open(path) as file:
            content = file.read(MOST_BYTES + 1)
    else:
        content = path.read_bytes()
    is_small = len(content) <= MOST_BYTES
    require(is_small, f"cannot read {name_file(path)}: its text is larger than 1 GiB; {_FIX}")
    is_utf_16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return content.decode("utf-16" if is_utf_16 else "utf-8-sig")


def _require_size(place: Path, rows: int) -> None:
    """Raises InputError if a file has more rows than MOST_SCORES, each with a score at least."""
    arrays.require_size(f"the scores of {place}", rows)


def _read_stdin(path: Path, wanted: Wanted) -> ReadTable:
    """Returns a table from standard input, which is JSON if it begins with a bracket, else CSV."""
    text = read_text(path)
    if text.lstrip().startswith(("{", "[")):
        return _parse_json(name_file(path), text, wanted)
    return _parse_csv(name_file(path), text, wanted)


# CSV and Excel: rows of cells, below a row of names


def _read_csv(path: Path, wanted: Wanted) -> ReadTable:
    return _parse_csv(path, read_text(path), wanted)


def _parse_csv(place: Path, text: str, wanted: Wanted) -> ReadTable:
    """Returns the wanted columns of a CSV, whose cells stay texts.

    Tabs, semicolons, commas, bars or spaces separate the columns: the first by which a line has the wanted
    names. Comments, which begin with #, and a title may be above that line.
    """
    _require_size(place, text.count("\n") - _MOST_LINES_ABOVE)
    file = io.StringIO(text, newline="")  # the csv module splits lines
    top = list(itertools.islice(file, _MOST_LINES_ABOVE + 1))
    for number, separator in itertools.product(range(len(top)), _SEPARATORS):
        names = _split(top[number].lstrip("# "), separator)
        if separator == " " and not _is_header_of_next(names, top[number + 1 :]):
            continue
        if wanted.find(names) is not None:
            rest = itertools.chain(top[number + 1 :], file)
            reader = csv.reader(rest, delimiter=separator, skipinitialspace=True)
            rows = ((number + 1 + reader.line_num, row) for row in reader)
            return _arrange(place, names, rows, wanted)
    return _arrange(place, _guess_names(top), iter(()), wanted)  # which refuses these names


def _split(line: str, separator: str) -> list[str]:
    """Returns the cells of a line of CSV without blanks around them."""
    cells = next(csv.reader([line.strip("\r\n")], delimiter=separator, skipinitialspace=True), [])
    return [cell.strip() for cell in cells]


def _is_header_of_next(names: Sequence[str], below: Sequence[str]) -> bool:
    """Returns whether the next row has as many words as a line, which may be a sentence, or one more."""
    for line in below:
        if line.strip():
            return 0 <= len(_split(line, " ")) - len(names) <= 1
    return True


def _guess_names(lines: Sequence[str]) -> list[str]:
    """Returns the cells of the first line that may name columns, for a message."""
    for line in lines:
        if line.strip() and not line.startswith("#"):
            return max((_split(line, separator) for separator in _SEPARATORS[:-1]), key=len)
    return []


def _read_excel(path: Path, wanted: Wanted) -> ReadTable:
    """Returns the wanted columns of the first sheet of an Excel file; a title may be above their names."""
    pandas = _import("pandas", path)
    _import("openpyxl", path)
    sheet = pandas.read_excel(path, header=None, dtype=object, na_filter=False)
    rows = sheet.to_numpy(object).tolist()
    for number, row in enumerate(rows[: _MOST_LINES_ABOVE + 1]):
        names = [str(cell).strip() for cell in row]
        if wanted.find(names) is not None:
            return _arrange(path, names, enumerate(rows[number + 1 :], number + 2), wanted)
    names = [str(cell) for cell in max(rows[:2], key=lambda row: sum(map(bool, row)), default=[])]
    return _arrange(path, names, iter(()), wanted)  # which refuses these names


def _arrange(
    place: Path, names: list[str], rows: Iterator[tuple[int, list[Any]]], wanted: Wanted
) -> ReadTable:
    """Returns the wanted columns of rows of cells; empty rows and comments are left out.

    R writes the names of rows without a name for their column: if all rows have a cell more than there are
    names, and the first cells look like names of rows, these are left out.

    Args:
      place: the file, for messages.
      names: the names of the columns.
      rows: (line in the file, cells) of each row below the names.
      wanted: the wanted columns.

    Raises:
      InputError: a row has more or fewer cells than there are names.
    """
    while names and not names[-1]:  # as a separator at the end of the line leaves it
        names.pop()
    places = _find(place, names, wanted)
    columns: dict[str, list[Any]] = {ours: [] for ours in places}
    row_names: list[Any] = []
    lines = array.array("q")
    width = 0  # of each row, with its name; 0 before the first row
    for line, row in rows:
        count = _count_cells(row)
        if not count:
            continue
        if not width:
            width = max(len(names), min(count, len(names) + 1))
        if len(row) < width or count > width:
            is_comment = str(row[0]).startswith("#")
            require(is_comment, _say_cells(place, line, count, len(names)))
            continue
        shift = width - len(names)
        row_names += row[:shift]
        for ours, index in places.items():
            columns[ours].append(row[index + shift])
        lines.append(line)
    _require_size(place, len(lines))
    are_names = not row_names or _are_row_names(row_names)
    require(are_names, _say_cells(place, lines[0] if lines else 0, width, len(names)))
    return ReadTable(dict(columns), _name(names, places), lines)


def _count_cells(row: Sequence[Any]) -> int:
    """Returns the number of cells of a row without blank ones at its end."""
    count = len(row)
    while count and str(row[count - 1] if row[count - 1] is not None else "").strip() == "":
        count -= 1
    return count


def _say_cells(place: Path, line: int, cells: int, names: int) -> str:
    """Returns the message on a row that has not as many cells as there are names."""
    noun = "cell" if cells == 1 else "cells"
    fix = f"write {names} as there are names above"
    return f"{place} line {line}: the row has {cells} {noun}: {fix}"


def _are_row_names(cells: Sequence[Any]) -> bool:
    """Returns whether cells may be the names of rows: they all differ, and are whole numbers or words."""

    def is_decimal(cell: str) -> bool:
        try:
            float(cell)
        except ValueError:
            return False
        return not cell.isdigit()

    are_different = len(set(cells)) == len(cells)
    return are_different and not any(is_decimal(str(cell).strip()) for cell in cells)


# JSON and Parquet: columns with names


def _read_json(path: Path, wanted: Wanted) -> ReadTable:
    return _parse_json(path, read_text(path), wanted)


def _parse_json(place: Path, text: str, wanted: Wanted) -> ReadTable:
    """Returns the wanted columns of a JSON text; see `load_columns` for its form."""
    columns = load_columns(place, text)
    names = list(columns)
    theirs = _name(names, _find(place, names, wanted))
    cells = {ours: columns[name] for ours, name in theirs.items()}
    rows = max(len(column) if isinstance(column, list) else 1 for column in cells.values())
    _require_size(place, rows)
    return ReadTable(cells, theirs, range(1, rows + 1), unit="row")


def load_columns(place: Path, text: str) -> dict[str, Any]:
    """Returns the columns of a JSON text by name.

    The text is an object of lists, a list of records, or what pandas writes: an object of columns or of rows,
    each an object itself, or an object with `columns` and `data`.

    Raises:
      InputError: the text is no JSON, or JSON of another form.
    """
    _require_size(place, text.count(",") // 4 - _MOST_LINES_ABOVE)
    try:
        loaded = json.loads(text, object_pairs_hook=functools.partial(_make_object, place))
    except InputError:
        raise
    except (ValueError, RecursionError):
        raise InputError(f"cannot read {place}: it is no JSON; {_JSON_FIX}") from None
    message = f"{place} is no JSON object of lists, and no list of records: {_JSON_FIX}"
    if isinstance(loaded, dict) and isinstance(loaded.get("data"), list) and "columns" in loaded:
        loaded = [dict(zip(loaded["columns"], row, strict=False)) for row in loaded["data"]]
    if isinstance(loaded, list):
        require(loaded and all(isinstance(record, dict) for record in loaded), message)
        return {name: [record.get(name) for record in loaded] for name in loaded[0]}
    require(isinstance(loaded, dict), message)
    return _list_rows(place, loaded)


def _list_rows(place: Path, columns: dict[str, Any]) -> dict[str, Any]:
    """Returns columns with lists in place of objects by row; raises InputError if their rows differ."""
    by_row = [column for column in columns.values() if isinstance(column, dict)]
    rows = list(by_row[0]) if by_row else []
    are_alike = all(len(column) == len(rows) and set(column) == set(rows) for column in by_row)
    require(are_alike, f"{place} has columns with other rows: give each column all rows")
    listed = {}
    for name, column in columns.items():
        listed[name] = [column[row] for row in rows] if isinstance(column, dict) else column
    return listed


def _make_object(place: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns an object of JSON; raises InputError for a name that comes twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{place} has the name {quote(twice)} twice: keep one of the two")
    return found


def _read_parquet(path: Path, wanted: Wanted) -> ReadTable:
    """Returns the wanted columns of a Parquet file."""
    pandas = _import("pandas", path)
    parquet = _import("pyarrow.parquet", path)
    schema = parquet.ParquetFile(path)
    _require_size(path, schema.metadata.num_rows)
    names = schema.schema_arrow.names
    theirs = _name(names, _find(path, names, wanted))
    frame = pandas.read_parquet(path, columns=list(theirs.values()))
    cells = {ours: list_cells(frame[name]) for ours, name in theirs.items()}
    return ReadTable(cells, theirs, range(1, len(frame) + 1), unit="row", is_filled_up=True)


def list_cells(column: Any) -> Any:
    """Returns a column of a DataFrame, or any values, as an array of numbers or as a list."""
    if isinstance(column, list):
        return column
    array = np.asarray(column)
    if array.dtype.kind in "OUT" and array.ndim == 1:
        return array.tolist()
    return array


def _find(place: Path, names: Sequence[str], wanted: Wanted) -> dict[str, int]:
    """Returns {our name: index} of the wanted columns; raises InputError if some are missing."""
    places = wanted.find(names)
    if places is None:
        shown = list_names(names) or "without names"
        raise InputError(f"{place} has columns {shown}: {wanted.advise(names)}")
    return places


def _name(names: Sequence[str], places: dict[str, int]) -> dict[str, str]:
    """Returns {our name: the file's name} of columns at some places."""
    return {ours: names[index] for ours, index in places.items()}


def _import(library: str, path: Path) -> Any:
    """Returns a library that reads a file; raises InputError if it is not installed."""
    try:
        return importlib.import_module(library)
    except ImportError:
        package = library.partition(".")[0]
        install = installed.pip_install(package)
        raise InputError(f"cannot read {path} without {package}: {install}, or save CSV") from None


_READERS: dict[str, Callable[[Path, Wanted], ReadTable]] = {
    "-": _read_stdin,
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".json": _read_json,
    ".xlsx": _read_excel,
    ".parquet": _read_parquet,
}
