"""Tables defined by their columns, as text, CSV and JSON."""

import csv
import io
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Generic, NamedTuple, TypeVar

from audit.written import at_least as at_least
from audit.written import at_least_digits, at_most_digits
from audit.written import at_most as at_most

Row = TypeVar("Row")
Show = Callable[[Any], str]
_CSV_DIGITS = 6  # significant digits of a float


def number(spec: str) -> Show:
    """Returns a function that formats numbers with a format specification, as in number(".2f").

    For bounds, use `at_least` or `at_most`, which round in the safe direction.
    """
    return lambda value: format(value, spec)


class Column(NamedTuple):
    """A column of a table.

    Attributes:
      key: The column's name in CSV and JSON; None if the column appears only in text.
      value: A function that maps a row to the column's value; CSV shows None as an empty cell.
      head: The column's name in text, on one or more lines; None if it appears only in CSV and JSON.
      show: A function that converts a value to the cell's text; not called for None.
      width: The column's width in characters; 0 to fit the widest cell.
      left: True to align cells to the left.
      none: The text of a cell whose value is None.
    """

    key: str | None = None
    value: Callable[[Any], Any] = lambda row: row
    head: str | None = None
    show: Show = str
    width: int = 0
    left: bool = False
    none: str = ""

    def show_cell(self, row: Any) -> str:
        """Returns the text of a row's cell."""
        value = self.value(row)
        if value is None:
            return self.none
        return self.show(value)

    def csv_cell(self, row: Any) -> Any:
        """Returns a row's value for CSV; floats are rounded as in `show`, but to six digits."""
        value = self.value(row)
        if not isinstance(value, float):
            return value
        show = getattr(self.show, "func", self.show)  # unwraps a functools.partial
        if show is at_least:
            return at_least_digits(value, _CSV_DIGITS)
        if show is at_most:
            return at_most_digits(value, _CSV_DIGITS)
        return f"{value:.{_CSV_DIGITS}g}"


@dataclass(frozen=True)
class Table(Generic[Row]):
    """A table: rows, and the columns that show them.

    Attributes:
      rows: Any objects from which the columns read their values.
      section: A function that maps a row to its section's heading. Consecutive rows with the same heading
        form a section, which starts with a rule and the heading (if not empty).
      before: The lines above the header.
      after: The lines below the rows.
      gap: The text between two columns.
      rule: The length of a rule, which is a line of dashes; 0 to fit the longest row.
    """

    columns: Sequence[Column]
    rows: Sequence[Row]
    section: Callable[[Row], str] = lambda row: ""
    before: Sequence[str] = ()
    after: Sequence[str] = ()
    gap: str = "  "
    rule: int = 0

    def text(self) -> str:
        """Returns the table as text, with the lines before and after it."""
        # Columns without a `head` appear only in CSV and JSON.
        columns = [column for column in self.columns if column.head is not None]
        heads = [str(column.head).split("\n") for column in columns]
        height = max(map(len, heads))  # number of header lines
        padded_columns = []  # for each column, its texts from top to bottom
        for column, head in zip(columns, heads, strict=True):
            # Shorter heads get empty cells above them.
            texts = [""] * (height - len(head)) + head
            texts += map(column.show_cell, self.rows)
            width = column.width or max(map(len, texts))
            align = str.ljust if column.left else str.rjust
            padded_columns.append([align(text, width) for text in texts])
        lines = [self.gap.join(cells).rstrip() for cells in zip(*padded_columns, strict=True)]
        rule = "-" * (self.rule or max(map(len, lines)))
        shown = [*self.before, *lines[:height]]
        heading = None  # differs from all headings, so the first section has a rule too
        for row, line in zip(self.rows, lines[height:], strict=True):
            if heading != self.section(row):
                heading = self.section(row)
                shown.append(rule)
                if heading:
                    shown.append(heading)
            shown.append(line)
        return "\n".join([*shown, *self.after])

    def csv(self) -> bytes:
        """Returns the table as CSV in UTF-8: a line of column keys, then a line for each row."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        columns = [column for column in self.columns if column.key is not None]
        writer.writerow(column.key for column in columns)
        for row in self.rows:
            writer.writerow(column.csv_cell(row) for column in columns)
        return text.getvalue().encode()

    def json(self) -> list[dict[str, Any]]:
        """Returns the rows as dicts from column keys to values, for json.dumps."""
        columns = [column for column in self.columns if column.key is not None]
        return [{str(column.key): column.value(row) for column in columns} for row in self.rows]


def format_table(
    records: Sequence[Mapping[str, str]], right: Collection[str] = (), **layout: Any
) -> str:
    """Formats dicts that map column names to cells as a text table. All dicts have the same keys.

    The columns named in `right` are right-aligned. `layout` sets other fields of `Table`.
    """
    columns = [
        Column(head=name, value=itemgetter(name), left=name not in right) for name in records[0]
    ]
    return Table(columns, records, **layout).text()
