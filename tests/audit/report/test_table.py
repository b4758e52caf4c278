"""One table object: text, CSV and JSON of the same rows, rounded against the claim."""

from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
from scipy import stats

from audit.claims.claim import DpSgd, EpsilonDelta
from audit.conclusions.concluded import conclude
from audit.conclusions.finish import finish
from audit.evidence.canaries import single
from audit.methods import estimate, exact
from audit.report import audit_page, bounds_table, subjects
from audit.report.bounds_table import remarks
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


def test_headings_stand_where_they_change_and_lines_above_and_below():
    other = ROWS[0]._replace(group="second")
    shown = Table(
        COLUMNS[:1], (*ROWS, other), lambda row: row.group, ["title"], ["note"], rule=10
    ).text()
    rule = "-" * 10
    expected = ["title", "audit", rule, "first", "one", "two", rule, "second", "one", "note"]
    assert shown.splitlines() == expected


def test_a_head_of_several_lines_ends_where_the_others_do():
    columns = (Column("name", lambda row: row.name, "name of\naudit"), COLUMNS[1])
    assert Table(columns, ROWS, gap=" ").text().splitlines()[:3] == [
        "name of",
        "  audit bound",
        "-------------",
    ]


RNG = np.random.default_rng(0)
GRID = (np.arange(1000) + 0.5) / 1000
NORMAL = np.random.default_rng(1).permutation(stats.norm.ppf(GRID))


def concluded(mu, runs, out=None):
    worlds = RNG.normal(mu, 1, runs), RNG.normal(0, 1, out or runs)
    return conclude(single(*worlds))


@pytest.mark.parametrize(("mu", "runs"), [(-2.5, 20)])
def test_scores_of_the_wrong_sign_are_remarked(mu, runs, tmp_path):
    conclusion = concluded(mu, runs)
    (line,) = remarks(conclusion)
    assert "lower with the canary (AUC 0." in line and "minus the score" in line and len(line) <= 80
    assert bounds_table.bounds_table(conclusion).splitlines()[-2] == line
    (tmp_path / "s.npz").touch()
    about = subjects.describe_score_files("s", [tmp_path / "s.npz"], conclusion, "bound")
    assert line[1:].encode() in audit_page.report("Audit", [about])


@pytest.mark.slow
def test_few_runs_are_told_what_they_can_prove_and_equal_scores_that_they_are():
    (line,) = remarks(concluded(0, 6, 40))
    assert line.startswith("6 and 40 runs can prove at most epsilon = ") and len(line) <= 80
    most = float(line.split("=")[1].split()[0])
    assert most == pytest.approx(
        estimate.find_most_provable(6, 40, exact.approximate_dp(1e-5), 0.95), abs=1e-3
    )
    (line,) = remarks(conclude(single(np.full(100, 2.0), np.zeros(100))))
    assert line.startswith("all scores in and out are equal: ") and len(line) <= 80
    (line,) = remarks(conclude(single(RNG.normal(2, 1, 100), np.zeros(100))))
    expected = "these scores do not come from independent runs: all 100 scores out equal 0"
    assert line.startswith(expected)


@pytest.mark.parametrize(
    ("epsilon", "steps", "decides"),
    [
        (
            9.0,
            DpSgd(1.0, 3),
            "more runs, or fewer insertions for an upper bound below 5.469",
        ),
        (9.0, None, "more runs or scores of fresh directions"),
        (5.4, None, "more runs"),
    ],
)
def test_the_table_and_the_verdict_say_what_decides(epsilon, steps, decides):
    conclusion = conclude(single(NORMAL[::-2] + 3, NORMAL[::2]), EpsilonDelta(epsilon, 1e-5))
    if steps is not None:  # the same bound, as that of steps
        conclusion = finish(conclusion._replace(claim=steps))
    *_, last_remark, _ = bounds_table.bounds_table(conclusion).splitlines()
    assert last_remark == f"to decide: use {decides}" and len(last_remark) <= 80
    assert f" To decide, use {decides}" in conclusion.verdict.sentence


@pytest.mark.parametrize(
    ("upper", "advice"),
    [
        (DpSgd(1.0, 16), "use fewer insertions or a larger sigma to look for bugs"),
        (EpsilonDelta(9.0, 1e-5), "use more runs or scores of fresh directions"),
    ],
)
def test_table_and_page_say_where_no_result_could_contradict_the_claim(upper, advice):
    conclusion = conclude(single(NORMAL[:100] + 1, NORMAL[100:200]), upper)
    remark = bounds_table.explain_too_few_runs(conclusion)
    assert remark.startswith("200 runs can prove at most ") and remark.endswith(f": {advice}")
    assert remark in " ".join(bounds_table.bounds_table(conclusion).splitlines())
    about = subjects.describe_arrays("s", conclusion)
    assert remark.encode() in audit_page.report("Audit", [about])


@pytest.mark.parametrize(("insertions", "is_out_of_reach"), [(14, False), (15, True)])
def test_a_claim_of_mu_gdp_is_out_of_reach_only_where_no_limit_on_mu_could_exceed_it(
    insertions, is_out_of_reach
):
    """Claims of mu = 1.73, 3.74, 3.87 and 4, while 200 runs prove a mu of at most 3.77."""
    claim = DpSgd(1.0, insertions)
    weak = conclude(single(NORMAL[:100] + 1, NORMAL[100:200]), claim)
    assert weak.most_provable < weak.upper_bound
    assert bool(bounds_table.explain_too_few_runs(weak)) == is_out_of_reach
    perfect = conclude(single(NORMAL[:100] + 20, NORMAL[100:200]), claim)
    assert perfect.claim_test.refuted != is_out_of_reach
