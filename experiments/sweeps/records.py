"""Tables of records. A record has a row's values by name, and a column shows one of them."""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from audit.report.table import Column, Show, Table, number
from experiments.sweeps.sweep import OwnTable

Record = dict[str, Any]
Records = Sequence[Record]


def field(
    name: str,
    head: str | None = None,
    show: Show | str = str,
    width: int = 0,
    left: bool = False,
    none: str = "",
) -> Column:
    """Returns the `Column` of a field; a record without the field shows `none`.

    `show` may be a format specification, as in ".2f".
    """
    if isinstance(show, str):
        show = number(show)
    return Column(name, lambda record: record.get(name), head, show, width, left, none)


def text_field(name: str, head: str, width: int) -> Column:
    """Returns the column of a text that is not in the CSV."""
    return field(name, head, width=width)._replace(key=None)


def own_table(
    title: str,
    columns: Sequence[Column],
    records: Sequence[Record],
    after: Sequence[str] = (),
    section: str | None = None,
    gap: str = "",
) -> OwnTable:
    """Returns a sweep's custom table, with rules of 80 columns.

    `section` is the field with the heading of a record's section, if any. `gap` is the text between two
    columns.
    """
    heading = itemgetter(section) if section else None
    table = Table(columns, records, heading, [title], after, gap, rule=80)
    return OwnTable(table.text(), table.csv())


def select(records: Sequence[Record], **values: Any) -> list[Record]:
    """Returns the records that have these values in these fields."""
    return [record for record in records if values.items() <= record.items()]


def make_csv(records: Sequence[Record]) -> bytes:
    """Returns records, at least one, as CSV with a column for each field of the first."""
    columns = [Column(name, itemgetter(name)) for name in records[0]]
    return Table(columns, records).csv()
