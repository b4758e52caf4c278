"""One table object: text, CSV and JSON of the same rows, rounded against the claim."""

from typing import NamedTuple

from audit.report.table import Column, Table, at_least, at_most, number


class Audit(NamedTuple):
    name: str
    group: str
    bound: float | None
    limit: float


ROWS = (Audit("one", "first", 1.23456, 2.00001), Audit("two", "first", None, float("inf")))
COLUMNS = (
    Column("name", lambda row: row.name, "audit", left=True),
    Column("bound", lambda row: row.bound, "bound", lambda bound: at_least(bound, 2)),
    Column("limit", lambda row: row.limit, "upper", lambda limit: at_most(limit, 2), width=7),
    Column("double", lambda row: 2 * row.limit),
    Column(None, lambda row: 1 / 3, "third", number(".1f")),
)
TABLE = Table(COLUMNS, ROWS)


def test_text_csv_json_and_html_have_the_same_cells():
    assert TABLE.text().splitlines() == [
        "audit  bound    upper  third",
        "----------------------------",
        "one     1.23     2.01    0.3",
        "two               inf    0.3",
    ]
    assert TABLE.csv().decode() == "name,bound,limit,double\none,1.23456,2.00001,4.00002\ntwo,,inf,inf\n"
    assert TABLE.json()[0] == {"name": "one", "bound": 1.23456, "limit": 2.00001, "double": 4.00002}
    assert TABLE.header() == ["audit", "bound", "upper", "third"]
    assert TABLE.cells()[1] == ["two", "", "inf", "0.3"]


def test_headings_stand_where_they_change_and_lines_above_and_below():
    other = ROWS[0]._replace(group="second")
    shown = Table(COLUMNS[:1], (*ROWS, other), lambda row: row.group, ["title"], ["note"], rule=10).text()
    rule = "-" * 10
    expected = ["title", "audit", rule, "first", "one", "two", rule, "second", "one", "note"]
    assert shown.splitlines() == expected


def test_a_section_is_closed_below_its_last_row_and_nothing_can_have_a_word():
    columns = (COLUMNS[1]._replace(none="-"),)
    table = Table(columns, ROWS, lambda row: row.name, rule=3, closing=lambda row: [f"end of {row.name}"])
    expected = ["bound", "---", "one", " 1.23", "end of one", "---", "two", "    -", "end of two"]
    assert table.text().splitlines() == expected


def test_a_head_of_several_lines_ends_where_the_others_do():
    columns = (Column("name", lambda row: row.name, "name of\naudit"), COLUMNS[1])
    assert Table(columns, ROWS, gap=" ").text().splitlines()[:3] == [
        "name of",
        "  audit bound",
        "-------------",
    ]
