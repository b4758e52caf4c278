"""Tests that text, CSV and JSON of a table agree, and that rounding is conservative."""

from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
from scipy import stats

from audit.claims.claim import DpSgd
from audit.conclusions.concluded import conclude
from audit.evidence.canaries import make_sets
from audit.report import bounds_table
from audit.report.table import Column, Table, at_least, at_most, number

pytestmark = pytest.mark.usefixtures("powerful")


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


def test_csv_rounds_bounds_as_people_see_them():
    """Lower ones down and upper ones up, whether with decimals or not; all else to nearest."""
    columns = (
        Column("proven", lambda row: row.bound, show=at_least),
        Column("coarse", lambda row: row.bound, "proven", partial(at_least, decimals=1)),
        Column("limit", lambda row: row.limit, show=at_most),
        Column("mean", lambda row: row.bound),
    )
    rows = [Audit("one", "first", 1.2345678, 2.0000011), Audit("two", "first", None, float("inf"))]
    assert Table(columns, rows).csv().decode().splitlines() == [
        "proven,coarse,limit,mean",
        "1.23456,1.23456,2.00001,1.23457",
        ",,inf,",
    ]


def test_text_csv_json_and_html_have_the_same_cells():
    assert TABLE.text().splitlines() == [
        "audit  bound    upper  third",
        "----------------------------",
        "one     1.23     2.01    0.3",
        "two               inf    0.3",
    ]
    assert (
        TABLE.csv().decode()
        == "name,bound,limit,double\none,1.23456,2.00001,4.00002\ntwo,,inf,inf\n"
    )
    assert TABLE.json()[0] == {"name": "one", "bound": 1.23456, "limit": 2.00001, "double": 4.00002}


GRID = (np.arange(1000) + 0.5) / 1000
NORMAL = np.random.default_rng(1).permutation(stats.norm.ppf(GRID))


@pytest.mark.parametrize(("insertions", "is_out_of_reach"), [(14, False), (15, True)])
def test_a_claim_of_mu_gdp_is_out_of_reach_only_where_no_limit_on_mu_could_exceed_it(
    insertions, is_out_of_reach
):
    """Claims of mu = 1.73, 3.74, 3.87 and 4, while 200 runs prove a mu of at most 3.77."""
    claim = DpSgd(1.0, insertions)
    weak = conclude(make_sets(NORMAL[:100] + 1, NORMAL[100:200]), claim)
    assert weak.most_provable < weak.upper_bound
    remarks = " ".join(bounds_table.remarks(weak))
    assert ("cannot reject" in remarks) == is_out_of_reach
    perfect = conclude(make_sets(NORMAL[:100] + 20, NORMAL[100:200]), claim)
    assert perfect.claim_test.refuted != is_out_of_reach
