"""Tables of records. A record is a row: it maps names of fields to values. A column shows one field."""

import math
from collections.abc import Sequence
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
    **options: Any,
) -> Column:
    """Returns the `Column` that shows a field.

    Args:
      name: The name of the field and of the CSV column.
      head: The heading in text, or None for a column that is only in the CSV.
      show: (value) -> its text, or a format specification such as ".2f".
      width: The column's width, or 0 to fit its widest cell.
      **options: Other fields of `Column`, such as left=True.
    """
    if isinstance(show, str):
        show = number(show)
    return Column(name, lambda record: record.get(name), head, show, width, **options)


def mean_fields(name: str, head: str, decimals: int = 2, width: int = 0) -> list[Column]:
    """Returns the columns for a mean and its standard deviation, the fields `name` and `<name>_deviation`.

    In text, they form a single column, as in "1.23 (0.45)". An unknown deviation (None or NaN) is omitted.
    """
    deviation_name = f"{name}_deviation"

    def show(record: Record) -> str:
        mean = record.get(name)
        deviation = record.get(deviation_name)
        if mean is None:
            return ""
        if deviation is None or math.isnan(deviation):
            return f"{mean:,.{decimals}f}"
        return f"{mean:,.{decimals}f} ({deviation:,.{decimals}f})"

    return [Column(value=show, head=head, width=width), field(name), field(deviation_name)]


def own_table(
    title: str,
    columns: Sequence[Column],
    records: Records,
    after: Sequence[str] = (),
    section: str = "",
    gap: str = "",
) -> OwnTable:
    """Returns a sweep's custom table, as text and CSV.

    `title` and `after` are the lines above and below the table, and `gap` is the text between two columns.
    `section` is the field that holds the heading of a record's section, or "" for a single section.
    """
    table = Table(
        columns,
        records,
        section=lambda record: record.get(section, ""),  # no field is named ""
        before=[title],
        after=after,
        gap=gap,
        rule=80,
    )
    return OwnTable(table.text(), table.csv())


def select(records: Records, **values: Any) -> list[Record]:
    """Returns the records that have these values, as in select(records, k=5)."""
    # `<=` compares sets of (name, value).
    return [record for record in records if values.items() <= record.items()]


def make_csv(records: Records) -> bytes:
    """Formats a nonempty list of records as CSV, with a column for each field of the first record."""
    return Table(list(map(field, records[0])), records).csv()
