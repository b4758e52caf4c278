"""Tables of records: a record has a row's values by name, a column shows one of them."""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from audit.report.table import Column, Show, Table

Record = dict[str, Any]


def field(
    name: str,
    head: str | None = None,
    show: Show = str,
    width: int = 0,
    left: bool = False,
    none: str = "",
) -> Column:
    """Returns the column of a field, as `Column` describes it; a record without the field shows `none`."""
    return Column(name, lambda record: record.get(name), head, show, width, left, none)


def make_csv(records: Sequence[Record]) -> bytes:
    """Returns records, at least one, as CSV with a column for each field of the first."""
    columns = [Column(name, itemgetter(name)) for name in records[0]]
    return Table(columns, records).csv()
