"""A table is its columns: from one object the lines for a terminal, CSV, rows for HTML, and JSON.

A column says what a row has in it and how people see that. `at_least` and `at_most` round so that no
number claims more than is proven: lower bounds down, upper bounds up.
"""

import csv
import io
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

R = TypeVar("R")
Show = Callable[[Any], str]


def at_least(value: float, decimals: int = 3) -> str:
    """A lower bound, rounded down."""
    return f"{math.floor(value * 10**decimals) / 10**decimals:.{decimals}f}"


def short(number: str) -> str:
    """A number without the zeros at its end."""
    return number.rstrip("0").rstrip(".")


def at_most(value: float, decimals: int = 3) -> str:
    """An upper bound, rounded up; inf where it is infinite."""
    if math.isinf(value):
        return "inf"
    return f"{math.ceil(value * 10**decimals) / 10**decimals:.{decimals}f}"


def number(spec: str) -> Show:
    """How a number that claims nothing is shown, by a format specification: number(".2f")."""
    return lambda value: format(value, spec)


class Column(NamedTuple):
    """A column of a table.

    key: its name in CSV and JSON; None: it is in neither.
    value: what a row has there; None for nothing, which is an empty cell in CSV.
    head: its name for people, in one line or several; None: they do not see it.
    show: a value, unless it is None, as people see it.
    width: in characters, 0 as wide as its widest cell. left: whether its cells stand at its left.
    none: how people see None.
    """

    key: str | None
    value: Callable[[Any], Any]
    head: str | None = None
    show: Show = str
    width: int = 0
    left: bool = False
    none: str = ""


@dataclass(frozen=True)
class Table(Generic[R]):
    """Rows under columns.

    section: the heading above a row where it differs from that of the row before, a rule alone where it is
      empty; None: no headings.
    before, after: lines above the header and below the rows.
    gap: what stands between two columns. rule: the width of a line of dashes, 0 as wide as the rows.
    digits: significant ones of a float in CSV. closing: the lines below a section, from its last row.
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

    def text(self) -> str:
        """The table for a terminal."""
        shown = [column for column in self.columns if column.head is not None]
        heads = [(column.head or "").split("\n") for column in shown]
        tall = max(map(len, heads))
        cells = [*zip(*([""] * (tall - len(head)) + head for head in heads), strict=True), *self.cells()]
        widths = [column.width or max(len(row[place]) for row in cells) for place, column in enumerate(shown)]
        lines = [self._line(row, widths) for row in cells]
        rule = "-" * (self.rule or max(map(len, lines)))
        body = list(self._sections(lines[tall:], rule)) if self.section else [rule, *lines[tall:]]
        return "\n".join([*self.before, *lines[:tall], *body, *self.after])

    def cells(self) -> list[list[str]]:
        """The rows as people see them, for HTML too; `header` names their columns."""
        shown = [column for column in self.columns if column.head is not None]
        values = [[(column, column.value(row)) for column in shown] for row in self.rows]
        return [[one.none if value is None else one.show(value) for one, value in row] for row in values]

    def header(self) -> list[str]:
        """The columns that people see."""
        return [column.head for column in self.columns if column.head is not None]

    def csv(self) -> bytes:
        """All rows under the columns' keys, in UTF-8."""
        rows, text = self.json(), io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([column.key for column in self.columns if column.key is not None])
        for row in rows:
            writer.writerow(f"{v:.{self.digits}g}" if isinstance(v, float) else v for v in row.values())
        return text.getvalue().encode()

    def json(self) -> list[dict[str, Any]]:
        """A dictionary a row, for json.dumps."""
        kept = [column for column in self.columns if column.key is not None]
        return [{str(column.key): column.value(row) for column in kept} for row in self.rows]

    def _line(self, cells: Sequence[str], widths: Sequence[int]) -> str:
        shown = [column for column in self.columns if column.head is not None]
        parts = zip(shown, cells, widths, strict=True)
        placed = [cell.ljust(width) if one.left else cell.rjust(width) for one, cell, width in parts]
        return self.gap.join(placed).rstrip()

    def _sections(self, lines: Sequence[str], rule: str) -> Iterator[str]:
        section = self.section
        assert section is not None
        pairs = zip(self.rows, lines, strict=True)
        for heading, group in itertools.groupby(pairs, lambda pair: section(pair[0])):
            own = list(group)
            above = [rule, heading] if heading else [rule]
            yield from [*above, *(line for _, line in own), *self.closing(own[-1][0])]
