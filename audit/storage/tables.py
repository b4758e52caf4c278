"""Reads columns of tables: CSV with any separator, JSON, Excel and Parquet, from files and pipes.

pandas reads Excel and Parquet. It reads no CSV and no JSON here, because it changes these silently: it takes
a cell too many for an index, fills in a cell too few, rounds numbers, and turns text into dates.
"""

import codecs
import contextlib
import csv
import functools
import gzip
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

from audit.errors import InputError, require
from audit.evidence import arrays
from audit.storage.files import NOT_AN_ARCHIVE, regular
from audit.written import counted

STDIN = Path("-")
MAX_BYTES = 1 << 30
_MAX_LINES_ABOVE = 100  # comments and titles above the line that names the columns
_SEPARATORS = "\t;,| "
_PLAIN = b"0123456789+-.eEnaif\n" + _SEPARATORS.encode()  # characters of a plain table of numbers
_UNREADABLE: tuple[type[Exception], ...] = (*NOT_AN_ARCHIVE, ArithmeticError, csv.Error)
_FIX = "check `scores`, or keep a random part of them"
_MAX_TOP = 1 << 12  # characters of a table of numbers that show how they are written
# A number with separators of thousands, if it is none with three decimals.
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(?:[.,]\d{3})+")


class Wanted(NamedTuple):
    """The columns to read of a table.

    Attributes:
      forms: groups of columns by our names; a table has one of these groups.
      columns: {our name: the table's name} of columns with other names.
    """

    forms: tuple[tuple[str, ...], ...]
    columns: Mapping[str, str]

    def find(self, names: Sequence[str]) -> dict[str, int] | None:
        """Returns {our name: index} of the wanted columns among `names`; None if some are missing.

        If the user named all of a group, other columns are ignored. Raises InputError for several groups.
        """
        is_whole = any(set(form) == set(self.columns) for form in self.forms)
        renamed = self.rename(names)
        if is_whole:
            renamed = [name if name in self.columns else "" for name in renamed]
        form = next((form for form in self.forms if set(form) <= set(renamed)), None)
        if form is None:
            return None
        known = [name for name in renamed if name in itertools.chain(*self.forms)]
        several = f"the columns {','.join(known)} can be read in several ways"
        require(len(known) == len(form), f"{several}: keep two, or name two with `columns`")
        return {name: renamed.index(name) for name in form}

    def require(self, place: object, names: Sequence[str]) -> dict[str, int]:
        """Returns the same as `find`; raises InputError if columns are missing."""
        places = self.find(names)
        if places is None:
            forms = " or ".join(",".join(form) for form in self.forms)
            example = ",".join(f"{ours}:Name" for ours in self.forms[0])
            orientation = "a row is a run and, in matrices, a column a canary"
            fix = f"give {forms}, or name some, as in `columns={example}`; {orientation}"
            raise InputError(f"{place} has columns {list_names(names)}: {fix}")
        return places

    def rename(self, names: Sequence[str]) -> list[str]:
        """Returns names in lower case, with our names in place of the table's."""
        ours = {theirs.strip().lower(): ours for ours, theirs in self.columns.items()}
        plain = [name.strip().lower() for name in names]
        return [ours.get(name, name) for name in plain]


class ReadColumns(NamedTuple):
    """The wanted columns of a table.

    Attributes:
      place: the file or table, for messages.
      columns: {our name: cells}: an array or lists of numbers, (rows,) or (rows, canaries), or a list of
        numbers and texts.
      is_padded: whether NaN may only fill up a column that is shorter than others.
    """

    place: object
    columns: dict[str, Any]
    is_padded: bool = False


def name_file(path: Path) -> Path:
    """Returns a file's path as messages show it; words for STDIN."""
    return Path("standard input") if path == STDIN else path


def is_table(path: Path) -> bool:
    """Returns whether a file's suffix is one of a table's; true for STDIN."""
    return _find_format(path) in _READERS


def read_table(path: Path, wanted: Wanted) -> ReadColumns:
    """Returns the wanted columns of a file with a table, or of STDIN, which has CSV or JSON.

    Raises:
      InputError: the file can't be read, lacks the columns, or has more than MOST_SCORES rows.
    """
    with reading(path):
        return _READERS[_find_format(path)](path, wanted)


def _find_format(path: Path) -> str:
    """Returns a file's format by its suffix, such as ".csv", also if ".gz" follows; "-" for STDIN."""
    return Path(path.name.lower().removesuffix(".gz")).suffix or path.name


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns an error that reading a file raises in the block into an InputError; silences warnings there.

    Raises InputError before the block if the path is no regular file, or the file is above 1 GiB.
    """
    try:
        if path != STDIN:
            regular(path, _FIX, MAX_BYTES)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            yield
    except InputError:
        raise
    except UnicodeDecodeError:
        raise InputError(f"cannot read {path}: save it as CSV in UTF-8") from None
    except ImportError as error:  # pandas names the library that is missing
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"cannot read {path}: {reason} Install it, or save CSV") from None
    except _UNREADABLE as error:
        damaged = f"it is damaged, encrypted or no {path.suffix} file"
        reason = getattr(error, "strerror", None) or damaged
        raise InputError(f"cannot read {path}: {reason}; check `scores`") from None


def _read_text(path: Path) -> str:
    """Returns the text of a file, plain or compressed (.gz), or of STDIN; in UTF-8 or UTF-16."""
    if path == STDIN:
        content = sys.stdin.buffer.read(MAX_BYTES + 1)
        require(content.strip(), f"{name_file(path)} is empty: give score,in lines, or JSON")
    elif path.suffix.lower() == ".gz":
        with gzip.open(path) as file:
            content = file.read(MAX_BYTES + 1)
    else:
        content = path.read_bytes()
    is_small = len(content) <= MAX_BYTES
    require(is_small, f"cannot read {name_file(path)}: its text is larger than 1 GiB; {_FIX}")
    is_utf_16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return content.decode("utf-16" if is_utf_16 else "utf-8-sig")


def _require_size(place: Path, rows: int) -> None:
    """Raises InputError if a file has more rows than MOST_SCORES."""
    arrays.require_size(f"the scores of {place}", rows)


def _read_text_table(path: Path, wanted: Wanted) -> ReadColumns:
    """Returns a table from text, which is JSON if it begins with a bracket, else CSV."""
    text = _read_text(path)
    parse = _parse_json if text.lstrip().startswith(("{", "[")) else _parse_csv
    return parse(name_file(path), text, wanted)


# CSV and Excel: rows of cells, below a row of names


def _parse_csv(place: Path, text: str, wanted: Wanted) -> ReadColumns:
    """Returns the wanted columns of a CSV.

    Tabs, semicolons, commas, bars or spaces separate the columns: the first by which a line has the wanted
    names. Comments, which begin with #, and a title may be above that line.
    """
    _require_size(place, text.count("\n") - _MAX_LINES_ABOVE)
    file = io.StringIO(text, newline="")  # the csv module splits lines
    top = list(itertools.islice(file, _MAX_LINES_ABOVE + 1))
    line, separator = _find_header(top, wanted)
    names = _split(top[line].lstrip("# "), separator)
    while names and not names[-1]:  # as a separator at the end of the line leaves it
        names.pop()
    places = wanted.require(place, names)
    body = text[sum(map(len, top[: line + 1])) :]
    plain = _read_plain(body, separator, names, places)
    if plain is not None:
        return ReadColumns(place, plain)
    rest = itertools.chain(top[line + 1 :], file)
    reader = csv.reader(rest, delimiter=separator, skipinitialspace=True)
    rows = ((line + 1 + reader.line_num, row) for row in reader)
    return _arrange(place, names, places, rows)


def _find_header(top: Sequence[str], wanted: Wanted) -> tuple[int, str]:
    """Returns the index of the line that names the wanted columns, else the first, and its separator."""
    lines = [number for number, line in enumerate(top) if line.strip("# \t\r\n")]
    for number, separator in itertools.product(lines, _SEPARATORS):
        names = _split(top[number].lstrip("# "), separator)
        is_sentence = separator == " " and not _fits_next_line(names, top[number + 1 :])
        if not is_sentence and wanted.find(names) is not None:
            return number, separator
    require(lines, "no line of the scores names columns: give score,in lines")
    return lines[0], max(_SEPARATORS[:-1], key=top[lines[0]].count)


def _read_plain(
    body: str, separator: str, names: Sequence[str], places: Mapping[str, int]
) -> dict[str, Any] | None:
    """Returns the wanted columns of a CSV of plain ASCII numbers that can be read in one way only.

    It is many times faster than the csv module. It returns None for all that might be refused, or read
    otherwise, cell by cell.

    Args:
      body: the lines below the names.
      separator: the character between cells.
      names: the names of the columns.
      places: {our name: index} of the wanted columns.
    """
    body = body.replace("\r\n", "\n")
    if not body.isascii() or body.encode().translate(None, _PLAIN):
        return None
    try:
        numbers = np.loadtxt(io.StringIO(body), delimiter=separator, comments=None, ndmin=2)
    except ValueError:
        return None
    if numbers.size == 0 or numbers.shape[1] != len(names):
        return None
    columns = {ours: numbers[:, index].copy() for ours, index in places.items()}
    top = [_split(line, separator) for line in body[:_MAX_TOP].split("\n")[:-1] if line]
    for ours, index in places.items():
        if ours == "presence" or (ours == "in" and "out" not in places):
            is_clear = bool(np.isin(columns[ours], (0, 1)).all())
        else:  # no point may separate thousands
            is_clear = "." not in body or any(_has_decimals(row[index]) for row in top)
        if not is_clear:
            return None
    return columns


def _has_decimals(cell: str) -> bool:
    return "." in cell and not THOUSANDS.fullmatch(cell)


def _split(line: str, separator: str) -> list[str]:
    """Returns the cells of a line of CSV without blanks around them."""
    cells = next(csv.reader([line.strip("\r\n")], delimiter=separator, skipinitialspace=True), [])
    return [cell.strip() for cell in cells]


def _fits_next_line(names: Sequence[str], below: Sequence[str]) -> bool:
    """Returns whether the next line has as many words as a line, which may be a sentence."""
    following = next((line for line in below if line.strip()), None)
    return following is None or len(_split(following, " ")) == len(names)


def _read_excel(path: Path, wanted: Wanted) -> ReadColumns:
    """Returns the wanted columns of the first sheet of an Excel file; a title may be above their names."""
    import pandas  # loads slowly

    sheet = pandas.read_excel(path, header=None, dtype=object, na_filter=False)
    rows = sheet.to_numpy(object).tolist()
    named = [[str(cell).strip() for cell in row] for row in rows[: _MAX_LINES_ABOVE + 1]]
    header = next((i for i, names in enumerate(named) if wanted.find(names) is not None), 0)
    places = wanted.require(path, named[header] if named else [])
    return _arrange(path, named[header], places, enumerate(rows[header + 1 :], header + 2))


def _arrange(
    place: Path,
    names: Sequence[str],
    places: Mapping[str, int],
    rows: Iterable[tuple[int, list[Any]]],
) -> ReadColumns:
    """Returns the wanted columns of rows of cells; empty rows and comments are left out.

    Args:
      place: the file, for messages.
      names: the names of the columns.
      places: {our name: index} of the wanted columns.
      rows: (line in the file, cells) of each row below the names.

    Raises:
      InputError: a row has more or fewer cells than there are names.
    """
    columns: dict[str, list[Any]] = {ours: [] for ours in places}
    for line, row in rows:
        count = len(row)
        while count and is_blank(row[count - 1]):
            count -= 1
        if not count or str(row[0]).startswith("#"):
            continue
        if not count <= len(names) <= len(row):
            fix = f"write {len(names)} as there are names above"
            raise InputError(f"{place} line {line}: the row has {counted(count, 'cell')}: {fix}")
        for ours, index in places.items():
            columns[ours].append(row[index])
    return ReadColumns(place, columns)


def is_blank(cell: Any) -> bool:
    """Returns whether a cell is empty."""
    return cell is None or not str(cell).strip()


# JSON and Parquet: columns with names


def _parse_json(place: Path, text: str, wanted: Wanted) -> ReadColumns:
    """Returns the wanted columns of a JSON text; see `read_json_columns` for its form."""
    columns = _load_columns(place, text)
    return read_frame(place, list(columns), columns.__getitem__, wanted)


def read_json_columns(path: Path) -> dict[str, Any]:
    """Returns the columns of a JSON file by name: an object of lists or of objects by row, or records.

    Raises:
      InputError: the text is no JSON, or JSON of another form.
    """
    with reading(path):
        return _load_columns(path, _read_text(path))


def _load_columns(place: Path, text: str) -> dict[str, Any]:
    """Returns the columns of a JSON text by name; see `read_json_columns`."""
    message = f'{place} is no JSON object of lists: give {{"in": [...], "out": [...]}}'
    try:
        loaded = json.loads(text, object_pairs_hook=functools.partial(_make_object, place))
        if isinstance(loaded, list):
            return {name: [record.get(name) for record in loaded] for name in loaded[0]}
    except InputError:
        raise
    except (ValueError, AttributeError, LookupError, TypeError, RecursionError):
        raise InputError(message) from None
    require(isinstance(loaded, dict), message)
    by_row = [column for column in loaded.values() if isinstance(column, dict)]
    alike = all(set(column) == set(by_row[0]) for column in by_row)
    require(alike, f"{place} has columns with other rows: give each column all rows")
    listed = {}
    for name, column in loaded.items():
        listed[name] = column
        if isinstance(column, dict):
            listed[name] = [column[row] for row in by_row[0]]
    return listed


def _make_object(place: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns an object of JSON; raises InputError for a name that comes twice."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        require(name not in found, f"{place} has the name {quote(name)} twice: keep one of the two")
        found[name] = value
    return found


def _read_parquet(path: Path, wanted: Wanted) -> ReadColumns:
    """Returns the wanted columns of a Parquet file."""
    import pandas  # loads slowly

    frame = pandas.read_parquet(path)
    return read_frame(path, list(frame.columns), frame.__getitem__, wanted)


def read_frame(
    place: object, names: Sequence[Any], column: Callable[[Any], Any], wanted: Wanted
) -> ReadColumns:
    """Returns the wanted columns of a table in memory, such as a DataFrame.

    Args:
      place: the table's name, for messages.
      names: the names of its columns.
      column: a function from a column's name to its values, (runs,) or (runs, canaries).
      wanted: the wanted columns.
    """
    cells = {}
    is_padded = False
    for ours, index in wanted.require(place, [str(name) for name in names]).items():
        values = column(names[index])
        if not isinstance(values, list):
            values = np.asarray(values)
            is_padded = True
            if values.dtype.kind in "OUT" and values.ndim == 1:
                values = values.tolist()
        cells[ours] = values
    return ReadColumns(place, cells, is_padded)


def quote(cell: object) -> str:
    """Returns a cell in quotes, cut after 40 characters."""
    text = str(cell)
    return repr(text if len(text) <= 40 else f"{text[:40]}...")


def list_names(names: Iterable[object]) -> str:
    """Returns names for a message, cut after the first 12."""
    shown = [quote(name)[1:-1] for name in names]
    return ", ".join(shown[:12] + ["..."] * (len(shown) > 12)) or "without names"


_READERS: dict[str, Callable[[Path, Wanted], ReadColumns]] = {
    "-": _read_text_table,
    ".csv": _read_text_table,
    ".tsv": _read_text_table,
    ".json": _read_text_table,
    ".xlsx": _read_excel,
    ".parquet": _read_parquet,
}
