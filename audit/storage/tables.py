"""Reads columns of tables: CSV with any separator, JSON, Excel and Parquet, from files and pipes.

We use pandas only for Excel and Parquet, because pandas silently fills in missing cells, rounds numbers, and
turns text into dates in CSV and JSON.
"""

import contextlib
import csv
import io
import itertools
import json
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.errors import InputError, require, shown
from audit.written import counted

# {our name: column}. A column is an array (rows,) or (rows, canaries), or a list of numbers and strings.
Columns = dict[str, Any]

STDIN = Path("-")
_MAX_LINES_ABOVE = 100  # comments and titles above the header line
_PANDAS_FORMATS = (".xlsx", ".parquet")  # the formats that pandas reads
_SEPARATORS = "\t;,| "
# Matches numbers in which every point or comma may separate thousands, such as 1.234.567.
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(?:[.,]\d{3})+")


class Wanted(NamedTuple):
    """The columns to read.

    Attributes:
      layouts: groups of columns, such as ("score", "in"). A table must have all columns of one layout.
      columns: {our name: the table's name} for columns that have a different name in the table.
    """

    layouts: tuple[tuple[str, ...], ...]
    columns: Mapping[str, str]

    def find(self, names: Iterable[str]) -> dict[str, int] | None:
        """Returns {our name: index in `names`} for the columns of a layout; None if no layout is complete.

        If `columns` contains exactly the columns of a layout, other columns are ignored. Otherwise, raises
        InputError if the table also has columns from another layout.
        """
        renamed = self.rename(names)
        if any(set(layout) == set(self.columns) for layout in self.layouts):
            # Empty names hide the other columns, but keep the indices.
            renamed = [name if name in self.columns else "" for name in renamed]
        complete = [layout for layout in self.layouts if set(layout) <= set(renamed)]
        if not complete:
            return None
        layout = complete[0]
        known = [name for name in renamed if name in itertools.chain(*self.layouts)]
        # Other known columns belong to another layout, or are duplicates.
        require(
            len(known) == len(layout),
            f"the columns {','.join(known)} can be read in several ways: keep two, or name two with "
            "`columns`",
        )
        return {name: renamed.index(name) for name in layout}

    def locate(self, names: Sequence[str]) -> dict[str, int]:
        """Returns {our name: index in `names`}, as `find` does; raises InputError if columns are missing."""
        places = self.find(names)
        if places is None:
            layouts = " or ".join(",".join(layout) for layout in self.layouts)
            example = ",".join(f"{name}:Name" for name in self.layouts[0])
            raise InputError(
                f"it has columns {shown(', '.join(names))}: give {layouts}, or name some, as in "
                f"`columns={example}`; each row is a run, and each column of a matrix is a canary; cosines "
                "require `dimension`"
            )
        return places

    def rename(self, names: Iterable[str]) -> list[str]:
        """Returns names in lower case, with the table's names replaced by ours (see `columns`)."""
        replacements = {theirs.strip().lower(): ours for ours, theirs in self.columns.items()}
        plain = [name.strip().lower() for name in names]
        return [replacements.get(name, name) for name in plain]


def name_file(path: Path) -> str:
    """Returns a file's path as shown in messages."""
    return "standard input" if path == STDIN else str(path)


def is_table(path: Path) -> bool:
    """Returns True for STDIN and for files with a table suffix, such as .csv."""
    return path == STDIN or path.suffix.lower() in (".csv", ".tsv", ".json", *_PANDAS_FORMATS)


def read_table(path: Path, wanted: Wanted) -> Columns:
    """Returns the requested columns of a table from a file, or from STDIN as CSV or JSON.

    Raises InputError if the table can't be read, does not have the columns, or has too many rows.
    """
    with reading(path):
        if path.suffix.lower() in _PANDAS_FORMATS:
            return _read_frame(path, wanted)
        text = read_text(path)
        if not text.lstrip().startswith(("{", "[")):
            return _parse_csv(text, wanted)
        columns = parse_json(text)
        return pick_columns(list(columns), columns.__getitem__, wanted)


@contextlib.contextmanager
def name_in_errors(place: object) -> Iterator[None]:
    """Adds `place`, such as a file name, to the message of an InputError raised in the `with` block."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{place}: {error}") from None


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns any error in the `with` block, which reads scores, into an InputError that names the file."""
    try:
        with name_in_errors(name_file(path)), warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # users see only whether reading failed
            yield
    except InputError:
        raise
    except UnicodeDecodeError:
        raise InputError(f"cannot read {path}: save it as CSV in UTF-8") from None
    except Exception as error:  # damaged bytes can raise almost anything
        damaged = f"it is damaged, encrypted or not a {path.suffix} file"
        reason = getattr(error, "strerror", None) or damaged
        raise InputError(f"cannot read {path}: {reason}; check `scores`") from None


def read_text(path: Path) -> str:
    """Returns the UTF-8 text of a file or of STDIN."""
    if path == STDIN:
        content = sys.stdin.buffer.read()
        require(content.strip(), "it is empty: give score,in lines, or JSON")
    else:
        content = path.read_bytes()
    return content.decode("utf-8-sig")


def _parse_csv(text: str, wanted: Wanted) -> Columns:
    """Returns the requested columns of CSV text, as lists of strings.

    Titles and comments (#) may appear above the header line. Below the header, empty rows and comments are
    skipped.
    """
    lines = io.StringIO(text, newline=None).readlines()  # splits at any kind of line ending
    header, separator = _find_header(lines[: _MAX_LINES_ABOVE + 1], wanted)
    names = trim(_split(lines[header], separator))
    places = wanted.locate(names)
    columns: Columns = {ours: [] for ours in places}
    rows = csv.reader(lines[header + 1 :], delimiter=separator, skipinitialspace=True)
    for row in rows:
        cells = trim(row)
        if not cells or cells[0].startswith("#"):
            continue
        has_more = len(cells) > len(names)  # cells after the last name must be empty
        if has_more or len(row) < len(names):
            line = header + 1 + rows.line_num  # in the file, counted from 1
            raise InputError(
                f"line {line}: the row has {counted(len(cells), 'cell')}: "
                f"write {len(names)}, like the header"
            )
        for ours, index in places.items():
            columns[ours].append(row[index])
    return columns


def _find_header(top: Sequence[str], wanted: Wanted) -> tuple[int, str]:
    """Returns the index of the line with the requested names, and its separator.

    The separator is the first of tab, semicolon, comma, bar and space that yields the names. If no line
    contains the names, returns the first nonempty line and its most frequent separator, for an error message.
    """
    nonempty = [index for index, line in enumerate(top) if line.strip("# \t\r\n")]
    for index, separator in itertools.product(nonempty, _SEPARATORS):
        if wanted.find(_split(top[index], separator)) is not None:
            return index, separator
    require(nonempty, "no line names the columns of the scores: give score,in lines")
    first = nonempty[0]
    separators = _SEPARATORS.rstrip()  # without the space, which also separates words in a title
    return first, max(separators, key=top[first].count)


def _split(line: str, separator: str) -> list[str]:
    """Returns the cells of a header line, stripped of spaces. The line may begin with #."""
    (cells,) = csv.reader([line.lstrip("# ")], delimiter=separator, skipinitialspace=True)
    return [cell.strip() for cell in cells]


def trim(cells: list[Any]) -> list[Any]:
    """Returns a row or column without its trailing empty cells."""
    count = len(cells)
    while count and (cells[count - 1] is None or not str(cells[count - 1]).strip()):
        count -= 1
    return cells[:count]


def parse_json(text: str) -> Columns:
    """Returns the columns of JSON text, keyed by name.

    The text is an object of columns, or a list of records; the first record has all names. A column is a
    list, or an object keyed by row. Raises InputError for text without columns, but does not check the cells.
    """
    columns: Columns = {}
    try:
        loaded = json.loads(text)
        if isinstance(loaded, list):
            return {name: [record.get(name) for record in loaded] for name in loaded[0]}
        for name, column in loaded.items():
            columns[name] = list(column.values()) if isinstance(column, dict) else column
    except (ValueError, AttributeError, LookupError, TypeError, RecursionError):
        raise InputError(
            'it is not a JSON object of lists: give {"in": [...], "out": [...]}'
        ) from None
    return columns


def _read_frame(path: Path, wanted: Wanted) -> Columns:
    """Returns the requested columns of a Parquet file, or of the first sheet of an Excel file."""
    import pandas  # slow to load

    if path.suffix.lower() == ".parquet":
        frame = pandas.read_parquet(path)
    else:
        # Sheets have no column types, so we parse their cells later.
        frame = pandas.read_excel(path, dtype=object, na_filter=False)
    return pick_columns(list(frame.columns), frame.__getitem__, wanted)


def pick_columns(names: Sequence[Any], column: Callable[[Any], Any], wanted: Wanted) -> Columns:
    """Returns the requested columns of a table in memory, such as a DataFrame, keyed by our names.

    Args:
      names: the names of the table's columns.
      column: maps a name to the column's values, (runs,) or (runs, canaries).
      wanted: the columns to return, and their names in the table.

    Raises:
      InputError: columns are missing, or only one of the columns `in` and `out` ends in NaN. The NaNs may be
        padding, and counting padding as failed runs would make bounds too high.
    """
    columns = {}
    places = wanted.locate([str(name) for name in names])
    padded = []  # names of columns that end in NaN
    for our_name, index in places.items():
        values = column(names[index])
        # JSON columns are lists, which can differ in length, so they need no padding.
        if not isinstance(values, list):
            values = np.asarray(values)
            # With `out`, both columns are scores, possibly from different numbers of runs.
            if "out" in places and _ends_in_nan(values):
                padded.append(our_name)
            # Objects and strings (NumPy's codes O, U and T) are parsed cell by cell later.
            if values.dtype.kind in "OUT" and values.ndim == 1:
                values = values.tolist()
        columns[our_name] = values
    if len(padded) == 1:
        raise InputError(
            f"{padded[0]} ends in NaN, for failed runs or as padding to match the other column: give "
            "score,in (1 or 0) in a row for each run"
        )
    return columns


def _ends_in_nan(values: NDArray[Any]) -> bool:
    """Returns True if an array's last row has a NaN; objects have no `isnan`."""
    last = values[-1:]
    return bool(np.any(last != last))  # only NaN differs from itself
