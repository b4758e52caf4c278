"""Tables that are described by their columns, and shown as text for a terminal, CSV, HTML rows and JSON.

A column says which value a row has in it, and how people see that value.
"""

import csv
import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from audit.rounding import at_least as at_least
from audit.rounding import at_least_digits, at_most_digits
from audit.rounding import at_most as at_most
from audit.rounding import short as short

R = TypeVar("R")
Show = Callable[[Any], str]


def number(spec: str) -> Show:
    """Returns a function that formats numbers by a format specification, as in number(".2f").

    Bounds need `at_least` or `at_most` instead, which round so that they do not claim too much.
    """
    return lambda value: format(value, spec)


def _round_to_nearest(value: float, digits: int) -> str:
    """Returns a number as text, with some significant digits."""
    return f"{value:.{digits}g}"


def _find_rounding(show: Show) -> Callable[[float, int], str]:
    """Returns how CSV rounds the numbers that people see by `show`: bounds in the same direction.

    Args:
      show: the function that formats a number for people; `at_least` and `at_most` may have decimals given.
    """
    function = getattr(show, "func", show)  # of a partial
    if function is at_least:
        return at_least_digits
    if function is at_most:
        return at_most_digits
    return _round_to_nearest


class Column(NamedTuple):
    """A column of a table.

    Attributes:
      key: the column's name in CSV and JSON; None if it is in neither.
      value: function from a row to its value in the column; None is an empty cell in CSV.
      head: the column's name in text and HTML, in a single line or several; None if it is in neither.
      show: function from a value other than None to the cell's text. Where it is `at_least` or `at_most`, CSV
        rounds in that direction too.
      width: the column's width in characters; 0 for the width of its widest cell.
      left: whether cells are aligned to the left, rather than to the right.
      none: the cell's text for the value None.
    """

    key: str | None = None
    value: Callable[[Any], Any] = lambda row: row
    head: str | None = None
    show: Show = str
    width: int = 0
    left: bool = False
    none: str = ""


@dataclass(frozen=True)
class Table(Generic[R]):
    """A table: rows, and the columns that show them.

    Attributes:
      columns: the columns from left to right.
      rows: the objects from which columns take their values.
      section: function from a row to the heading of its section. Consecutive rows with the same heading are
        one section; a rule is printed above each, and then the heading unless it is empty. None for a table
        without sections.
      before: the lines above the header.
      after: the lines below the rows.
      gap: the text between two columns.
      rule: the length of a rule, a line of dashes; 0 for the length of the longest row.
      digits: the number of significant digits of a float in CSV.
      closing: function from the last row of a section to the lines below the section.
      aside: function from a row to text after its last cell, which does not widen the columns.
    """

    columns: Sequence[Column]
    rows: Sequence[R]
    section: Callable[[R], str] | None = None
    before: Sequence[str] = ()
    after: Sequence[str] = ()
    gap: str = "  "
    rule: int = 0
    digits: int = 6
    closing: Callable[[R], Sequence[str]] = lambda row: ()
    aside: Callable[[R], str] = lambda row: ""

    def text(self) -> str:
        """Returns the table as text for a terminal: header, rule and rows, with the lines before and after.

        A table with sections has a rule and a heading above each section.
        """
        # Header and rows are aligned together, so that each column has a single width.
        header_rows = self._split_header()
        cells = [*header_rows, *self.cells()]
        widths = self._find_widths(cells)
        lines = [self._align(row, widths) for row in cells]
        header_lines = lines[: len(header_rows)]
        row_lines = lines[len(header_rows) :]

        # Asides are added to the aligned lines: they change neither the widths nor the rule's length.
        body = []
        for row, line in zip(self.rows, row_lines, strict=True):
            aside = self.aside(row)
            body.append(f"{line}{self.gap}{aside}" if aside else line)

        longest = max(len(line) for line in lines)
        rule = "-" * (self.rule or longest)
        body = [rule, *body] if self.section is None else list(self._insert_headings(body, rule))
        return "\n".join([*self.before, *header_lines, *body, *self.after])

    def cells(self) -> list[list[str]]:
        """Returns the texts of each row's cells, for text and HTML; `header` names their columns."""
        rows = []
        for row in self.rows:
            texts = []
            for column in self._visible_columns():
                value = column.value(row)
                text = column.none
                if value is not None:
                    text = column.show(value)
                texts.append(text)
            rows.append(texts)
        return rows

    def header(self) -> list[str]:
        """Returns the names of the columns in text and HTML."""
        return [column.head for column in self.columns if column.head is not None]

    def csv(self) -> bytes:
        """Returns the table as CSV in UTF-8: a line with the columns' keys, then the rows' values."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([column.key for column in self.columns if column.key is not None])
        rounding = {column.key: _find_rounding(column.show) for column in self.columns}
        for row in self.json():  # a row's values by the same keys
            cells = []
            for key, value in row.items():
                if isinstance(value, float):
                    value = rounding[key](float(value), self.digits)
                cells.append(value)
            writer.writerow(cells)
        return text.getvalue().encode()

    def json(self) -> list[dict[str, Any]]:
        """Returns each row's values by the columns' keys, for json.dumps."""
        columns = [column for column in self.columns if column.key is not None]
        return [{str(column.key): column.value(row) for column in columns} for row in self.rows]

    def _visible_columns(self) -> list[Column]:
        return [column for column in self.columns if column.head is not None]

    def _split_header(self) -> list[tuple[str, ...]]:
        """Returns the header as rows of cells: as many rows as the name with the most lines has.

        Names with fewer lines get empty cells above.
        """
        names = [name.split("\n") for name in self.header()]
        height = max(len(lines) for lines in names)
        padded_names = []
        for lines in names:
            missing = height - len(lines)
            padded_names.append([""] * missing + lines)
        return list(zip(*padded_names, strict=True))

    def _find_widths(self, cells: Sequence[Sequence[str]]) -> list[int]:
        """Returns each visible column's width: the declared one, or else that of its widest cell."""
        widths = []
        columns_of_cells = zip(*cells, strict=True)
        for column, column_cells in zip(self._visible_columns(), columns_of_cells, strict=True):
            widest = max(len(cell) for cell in column_cells)
            widths.append(column.width or widest)
        return widths

    def _align(self, cells: Sequence[str], widths: Sequence[int]) -> str:
        """Returns a row as a line of text, each cell padded to its column's width."""
        aligned = []
        for column, cell, width in zip(self._visible_columns(), cells, widths, strict=True):
            if column.left:
                aligned.append(cell.ljust(width))
            else:
                aligned.append(cell.rjust(width))
        return self.gap.join(aligned).rstrip()

    def _insert_headings(self, lines: Sequence[str], rule: str) -> Iterator[str]:
        """Yields the rows' lines, with a rule and a heading above each section and its closing lines below.

        Consecutive rows with the same heading are one section. The table's function `closing` makes the lines
        below a section from the section's last row.

        Args:
          lines: the rows as lines of text, in order.
          rule: a line of dashes.
        """
        section = self.section
        assert section is not None
        pairs = zip(self.rows, lines, strict=True)
        for heading, group in itertools.groupby(pairs, lambda pair: section(pair[0])):
            yield rule
            if heading:
                yield heading
            section_rows = list(group)
            for _, line in section_rows:
                yield line
            last_row, _ = section_rows[-1]
            yield from self.closing(last_row)
