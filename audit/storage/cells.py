"""Reads the cells of tables as scores, and as labels that tell whether a canary was in.

A cell that can be read in two ways is refused, with its line and its text.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.errors import InputError, require
from audit.evidence import arrays

Array = NDArray[np.float64]
_YES = ("true", "t", "yes", "y", "in", "member", "ja", "wahr")
_NO = ("false", "f", "no", "n", "out", "non-member", "nonmember", "nein", "falsch")
_LABELS = {**dict.fromkeys(_YES, True), **dict.fromkeys(_NO, False)}
_LABELS_READ = "1 or 0, yes or no, true or false, in or out, member or non-member"
_NAN = "or write nan if the run failed"
# A number with separators of thousands, if it is none with three decimals.
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(?:[.,]\d{3})+")


class Cells(NamedTuple):
    """A column of a table.

    Attributes:
      place: the file or table, for messages.
      name: the column's name, for messages.
      cells: an array or lists of numbers, (rows,) or (rows, canaries), or a list of numbers and texts.
      lines: the number of each row in the file, from 1.
      unit: the word for a row, "line" or "row".
    """

    place: object
    name: str
    cells: Any
    lines: Sequence[int]
    unit: str = "line"

    def at(self, row: int) -> str:
        """Returns the words with which a message about a row begins."""
        return f"{self.place} {self.unit} {self.lines[row]}"


def read_scores(column: Cells) -> Array:
    """Returns a column's scores; raises InputError for a cell that is empty or no number."""
    scores, is_empty = read_numbers(column)
    if is_empty.any():
        row = int(np.argmax(is_empty))
        raise InputError(f"{column.at(row)}: the {column.name} is empty: fill that in, {_NAN}")
    return scores


def read_worlds(column_in: Cells, column_out: Cells) -> tuple[Array, Array]:
    """Returns the scores of two columns, of runs with the canary and of runs without.

    The shorter column may end in empty cells. Both are read as one, since a comma means the same in both.

    Raises:
      InputError: a cell is no number, or a score is below an empty cell.
    """
    are_lists = isinstance(column_in.cells, list) and isinstance(column_out.cells, list)
    if not are_lists:
        return _drop_end(column_in, *read_numbers(column_in)), _drop_end(
            column_out, *read_numbers(column_out)
        )
    count = len(column_in.cells)
    both = column_in._replace(
        cells=column_in.cells + column_out.cells,
        lines=[*column_in.lines[:count], *column_out.lines],
    )
    scores, is_empty = read_numbers(both)
    scores_in = _drop_end(column_in, scores[:count], is_empty[:count])
    return scores_in, _drop_end(column_out, scores[count:], is_empty[count:])


def _drop_end(column: Cells, scores: Array, is_empty: NDArray[np.bool_]) -> Array:
    """Returns a column's scores without the empty cells at its end."""
    if not is_empty.any():
        return scores
    end = int(np.argmax(is_empty))
    later = np.flatnonzero(~is_empty[end:])
    if later.size:
        gap = f"a score below an empty cell of {column.name}: fill that in (nan if a run failed)"
        raise InputError(f"{column.at(end + int(later[0]))}: {gap}")
    return scores[:end]


def read_numbers(column: Cells) -> tuple[Array, NDArray[np.bool_]]:
    """Returns a column's numbers, and for each whether its cell is empty; NaN stands for such a number."""
    cells = column.cells
    if not _is_list_of_cells(cells):
        try:
            scores = arrays.scores(column.name, cells)
        except InputError as error:
            raise InputError(f"{column.place}: {error}") from None
        return scores, np.zeros(scores.shape, bool)
    if any("," in cell for cell in cells if isinstance(cell, str)):
        _require_decimal_commas(column)
        cells = [cell.replace(",", ".") if isinstance(cell, str) else cell for cell in cells]
    else:
        _require_no_thousands(column, ".")
    numbers = np.full(len(cells), np.nan)
    is_empty = np.zeros(len(cells), bool)
    for row, cell in enumerate(cells):
        number = _convert(cell)
        if number is not None:
            numbers[row] = number
            continue
        is_empty[row] = cell is None or not str(cell).strip()
        shown = quote(column.cells[row])
        message = f"{column.at(row)}: score {shown} is not a number: fix it, {_NAN}"
        require(is_empty[row], message)
    return numbers, is_empty


def _is_list_of_cells(cells: Any) -> bool:
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


def _require_decimal_commas(column: Cells) -> None:
    """Raises InputError if a comma may separate thousands: beside points, or in numbers such as 1,000."""
    for row, cell in enumerate(column.cells):
        has_point = isinstance(cell, float) or (isinstance(cell, str) and "." in cell)
        mixed = "some numbers have a comma and others a point: write all with points"
        require(not has_point, f"{column.at(row)}: {mixed}")
    _require_no_thousands(column, ",")


def _require_no_thousands(column: Cells, mark: str) -> None:
    """Raises InputError if all numbers with a mark may have it for thousands, and others have none.

    Among 998 and 1.002 a point is as likely to separate thousands. If all numbers have it, as 2.998 and 1.002
    have, their order is the same in both readings, and bounds do not depend on anything else.
    """
    first = None
    has_whole_numbers = False
    for row, cell in enumerate(column.cells):
        if not isinstance(cell, str):
            return
        if mark in cell:
            if not _THOUSANDS.fullmatch(cell.strip()):
                return
            first = row if first is None else first
        elif cell.strip().lstrip("+-").isdigit():
            has_whole_numbers = True
    if first is None or not has_whole_numbers:
        return
    shown = quote(column.cells[first])
    message = f"{shown} may have a separator of thousands: write numbers without it, decimals with a point"
    raise InputError(f"{column.at(first)}: {message}")


def read_labels(column: Cells) -> NDArray[np.bool_]:
    """Returns for each cell whether its label tells that the canary was in.

    Labels are the words in _LABELS, in any case, booleans, and numbers that equal 1 or 0.
    """
    if not _is_list_of_cells(column.cells):
        try:
            bits = arrays.floats(column.name, column.cells)
        except InputError as error:
            raise InputError(f"{column.place}: {error}") from None
        message = f"{column.place}: {column.name} must be 1 (in) or 0 (out) everywhere"
        require(np.isin(bits, (0, 1)).all(), message)
        return bits.astype(bool)
    labels = {cell: _read_label(cell) for cell in set(column.cells)}
    if None in labels.values():
        row = next(row for row, cell in enumerate(column.cells) if labels[cell] is None)
        shown = quote(column.cells[row])
        raise InputError(f"{column.at(row)}: {shown} says neither in nor out: give {_LABELS_READ}")
    return np.array([labels[cell] for cell in column.cells], bool)


def _read_label(cell: Any) -> bool | None:
    """Returns whether a label means that the canary was in; None for an unknown label."""
    if isinstance(cell, str):
        label = _LABELS.get(cell.strip().lower())
        if label is not None:
            return label
        cell = cell.replace(",", ".")
    number = float(cell) if isinstance(cell, bool | np.bool_) else _convert(cell)
    return {1.0: True, 0.0: False}.get(number) if number is not None else None


def quote(cell: object) -> str:
    """Returns a cell in quotes, cut after 40 characters."""
    text = str(cell)
    return repr(text if len(text) <= 40 else f"{text[:40]}...")


def list_names(names: Iterable[object]) -> str:
    """Returns names for a message, cut after the first 12."""
    shown = [quote(name)[1:-1] for name in names]
    return ", ".join(shown[:12] + ["..."] * (len(shown) > 12))
