"""Tables that are described by their columns, and shown as text for a terminal, CSV, HTML rows and JSON.

A column says which value a row has in it, and how people see that value.
"""

import csv
import io
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from audit.written import at_least as at_least
from audit.written import at_least_digits, at_most_digits
from audit.written import at_most as at_most
from audit.written import short as short

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

    def show_cell(self, row: Any) -> str:
        """Returns the text of a row's cell in this column."""
        value = self.value(row)
        if value is None:
            return self.none
        return self.show(value)


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
        # Heads with fewer lines than others get empty cells above.
        heads = self.header()
        height = 1 + max(map(str.count, heads, itertools.repeat("\n")))
        # Header and rows are aligned together, so that each column has a single width.
        lines = [""] * (height + len(self.rows))
        for head, column, *texts in zip(heads, self._visible_columns(), *self.cells(), strict=True):
            above = [""] * (height - 1 - head.count("\n"))
            texts = [*above, *head.split("\n"), *texts]
            align = str.ljust if column.left else str.rjust
            width = column.width or max(map(len, texts))
            for place, text in enumerate(texts):
                lines[place] += align(text, width) + self.gap
        lines = [*map(str.rstrip, lines)]
        rule = "-" * (self.rule or max(map(len, lines)))
        rows = zip(self.rows, lines[height:], strict=True)
        body = self._make_sections(rows, rule)
        return "\n".join([*self.before, *lines[:height], *body, *self.after])

    def _make_sections(self, rows: Iterable[tuple[R, str]], rule: str) -> Iterator[str]:
        """Yields the rows' lines, with a rule and a heading above each section, and its closing lines below.

        A table without sections is a single one, without a heading.
        """
        section = self.section or (lambda row: "")
        if not self.rows and self.section is None:
            yield rule
        for heading, group in itertools.groupby(rows, lambda pair: section(pair[0])):
            yield rule
            if heading:
                yield heading
            for row, line in group:
                aside = self.aside(row)
                yield f"{line}{self.gap}{aside}" if aside else line
                last = row
            yield from self.closing(last)

    def cells(self) -> list[list[str]]:
        """Returns the texts of each row's cells, for text and HTML; `header` names their columns."""
        cells = []
        for row in self.rows:
            cells.append([column.show_cell(row) for column in self._visible_columns()])
        return cells

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
