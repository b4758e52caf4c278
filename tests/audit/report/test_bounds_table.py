"""What is remarked on scores, and that nothing is where there is nothing to remark."""

import numpy as np
import pytest
from scipy import stats

from audit.concluded import conclude
from audit.report import audit_page, bounds_table, subjects
from audit.report.bounds_table import remarks
from audit.statistics import estimate
from audit.statistics.canaries import single

RNG = np.random.default_rng(0)
GRID = (np.arange(1000) + 0.5) / 1000
NORMAL = np.random.default_rng(1).permutation(stats.norm.ppf(GRID))


def concluded(mu, runs, out=None):
    worlds = RNG.normal(mu, 1, runs), RNG.normal(0, 1, out or runs)
    return conclude(single(*worlds), None, 1e-5, 0.95)


@pytest.mark.parametrize(("mu", "runs"), [(-3.3, 200), (-2.5, 20), (-0.3, 2500)])
def test_scores_of_the_wrong_sign_are_remarked(mu, runs, tmp_path):
    found = concluded(mu, runs)
    (line,) = remarks(found)
    assert "lower with the canary (AUC 0." in line and "minus the score" in line and len(line) <= 80
    assert bounds_table.bounds_table(found).splitlines()[-1] == line
    (tmp_path / "s.npz").touch()
    about = subjects.of_scores("s", [tmp_path / "s.npz"], None, found)
    assert line[1:].encode() in audit_page.report("Audit", [about])


def test_few_runs_are_told_what_they_can_prove_and_equal_scores_that_they_are():
    found = concluded(0, 6, 40)
    (line,) = remarks(found)
    assert line.startswith("6 and 40 runs prove at most epsilon = ") and len(line) <= 80
    most = float(line.split("=")[1].split()[0])
    assert most == pytest.approx(estimate.most_provable(6, 40, 1e-5, 0.95), abs=1e-3)
    (line,) = remarks(conclude(single(np.full(100, 2.0), np.zeros(100)), None, 1e-5, 0.95))
    assert line.startswith("all scores in and out are equal: ") and len(line) <= 80
    (line,) = remarks(conclude(single(RNG.normal(2, 1, 100), np.zeros(100)), None, 1e-5, 0.95))
    assert line.startswith("all scores out are equal: ")
    lines = [remarks(concluded(0, runs)) for runs in (2, 3, 10, 100) for _ in range(50)]
    assert not [line for line in lines if "minus" in " ".join(line)]


@pytest.mark.parametrize(("mu", "runs"), [(0, 2500), (0, 100), (3, 2500), (3, 40), (-0.02, 2500)])
def test_otherwise_nothing_is(mu, runs):
    assert remarks(concluded(mu, runs)) == []


@pytest.mark.parametrize(
    ("worlds", "upper", "line"),
    [
        ((np.full(100, 2.0), np.zeros(100)), 1.0, "assumption_free exceeds the upper bound: the guarantee"),
        ((NORMAL + 3, NORMAL), 9.0, "if_gaussian exceeds the upper bound: violated, or the"),
        ((NORMAL + 3, NORMAL), 90.0, ""),
        ((stats.t.ppf(GRID, 1) + 9, stats.t.ppf(GRID, 1)), 9.0, ""),  # its curve is refuted
    ],
)
def test_the_table_says_where_a_bound_exceeds_the_upper_one(worlds, upper, line):
    found = conclude(single(*worlds), None, 1e-5, 0.95, upper_bound=upper)
    said = [row for row in bounds_table.bounds_table(found).splitlines() if "exceeds the upper" in row]
    assert len(said) == (line != "") and all(row.startswith(line) and len(row) <= 80 for row in said)
