"""Tables defined by their columns, shown as text for a terminal, CSV and JSON."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from audit.written import at_least as at_least
from audit.written import at_least_digits, at_most_digits
from audit.written import at_most as at_most

R = TypeVar("R")
Show = Callable[[Any], str]
_DIGITS = 6  # significant ones of a float in CSV


def number(spec: str) -> Show:
    """Returns a function that formats numbers by a format specification, as in number(".2f").

    Use `at_least` or `at_most` for bounds, which round in the safe direction.
    """
    return lambda value: format(value, spec)


class Column(NamedTuple):
    """A column of a table.

    Attributes:
      key: the column's name in CSV and JSON; None for a column only in text.
      value: function from a row to its value; None is an empty cell in CSV.
      head: the column's name in text, in one or more lines; None for a column only in CSV and JSON.
      show: function from a value other than None to the cell's text. CSV rounds in the direction of
        `at_least` and `at_most`, too.
      width: the column's width in characters; 0 for the width of its widest cell.
      left: whether cells are aligned to the left.
      none: the cell's text for None.
    """

    key: str | None = None
    value: Callable[[Any], Any] = lambda row: row
    head: str | None = None
    show: Show = str
    width: int = 0
    left: bool = False
    none: str = ""

    def round(self, value: float) -> str:
        """Returns a number for CSV, rounded in the direction of `show`."""
        show = getattr(self.show, "func", self.show)  # of a partial
        if show is at_least:
            return at_least_digits(value, _DIGITS)
        if show is at_most:
            return at_most_digits(value, _DIGITS)
        return f"{value:.{_DIGITS}g}"


@dataclass(frozen=True)
class Table(Generic[R]):
    """A table: rows, and the columns that show them.

    Attributes:
      columns: the columns from left to right.
      rows: the objects with the columns' values.
      section: function from a row to the heading of its section. Consecutive rows with the same heading
        form a section, below a rule and a heading that is not empty. None for a table without sections.
      before: the lines above the header.
      after: the lines below the rows.
      gap: the text between two columns.
      rule: the length of a rule, a line of dashes; 0 for the length of the longest row.
    """

    columns: Sequence[Column]
    rows: Sequence[R]
    section: Callable[[R], str] | None = None
    before: Sequence[str] = ()
    after: Sequence[str] = ()
    gap: str = "  "
    rule: int = 0

    def text(self) -> str:
        """Returns the table as text for a terminal, with the lines before and after."""
        columns = [column for column in self.columns if column.head is not None]
        height = 1 + max(str(column.head).count("\n") for column in columns)
        lines = [""] * (height + len(self.rows))
        for column in columns:
            head = str(column.head).split("\n")
            texts = [""] * (height - len(head)) + head  # shorter heads get empty cells above
            for row in self.rows:
                value = column.value(row)
                texts.append(column.none if value is None else column.show(value))
            width = column.width or max(map(len, texts))
            align = str.ljust if column.left else str.rjust
            for place, text in enumerate(texts):
                lines[place] += align(text, width) + self.gap
        lines = [*map(str.rstrip, lines)]
        rule = "-" * (self.rule or max(map(len, lines)))
        shown = [*self.before, *lines[:height]]
        if self.section is None:
            shown.append(rule)
        heading = None
        for row, line in zip(self.rows, lines[height:], strict=True):
            if self.section is not None and heading != self.section(row):
                heading = self.section(row)
                shown += filter(None, [rule, heading])
            shown.append(line)
        return "\n".join([*shown, *self.after])

    def csv(self) -> bytes:
        """Returns the table as CSV in UTF-8: a line with the columns' keys, then the rows' values."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        columns = {column.key: column for column in self.columns if column.key is not None}
        writer.writerow(columns)
        for record in self.json():
            cells = []
            for key, value in record.items():
                cells.append(columns[key].round(value) if isinstance(value, float) else value)
            writer.writerow(cells)
        return text.getvalue().encode()

    def json(self) -> list[dict[str, Any]]:
        """Returns each row's values by the columns' keys, for json.dumps."""
        columns = [column for column in self.columns if column.key is not None]
        return [{str(column.key): column.value(row) for column in columns} for row in self.rows]
