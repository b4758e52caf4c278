"""Every table on methods knows every estimator, and no other."""

import numpy as np
import pytest

from audit.report import audit_page as report
from audit.report import audit_panels, bounds_table, methods
from audit.statistics import canaries, estimate, lifted
from audit.statistics.conclusion import conclude, conclude_design
from audit.statistics.estimate import ASSUMPTIONS, ESTIMATORS, Estimate
from experiments.sweeps import estimates

RNG = np.random.default_rng(0)
CONCLUSION = conclude((RNG.normal(1, 1, 90), RNG.normal(0, 1, 90)), None, 1e-5, 0.95)
MATRICES = canaries.sets(RNG.normal(1, 1, (9, 4)), RNG.normal(0, 1, (9, 4)))
MANY = conclude_design(MATRICES, None, 1e-5, 0.95)


def test_every_method_has_a_row():
    assert set(methods.METHODS) == {*ESTIMATORS, *lifted.METHODS}
    assert set(estimates.MARKS) == set(ESTIMATORS)
    assert [row.method for row in MANY.rows()] == list(lifted.METHODS)


@pytest.mark.parametrize("table", [methods.ASSUMES, report.ASSUMES], ids=["words", "sentences"])
def test_every_assumption_has_a_row(table):
    assert set(table) == {*ASSUMPTIONS, *(bound.assumes for bound in MANY.bounds)}


def test_every_estimate_has_a_caveat_on_the_page():
    found = {row.method for row in CONCLUSION.rows() if isinstance(row, Estimate)}
    assert set(report.CAVEATS) == found


def test_marks_stand_beside_each_other_and_look_apart():
    marks = estimates.MARKS.values()
    assert len({mark.offset for mark in marks}) == len(marks)
    assert len({(mark.look["marker"], mark.look["color"]) for mark in marks}) == len(marks)


def test_an_estimate_is_called_no_bound_wherever_it_is_named():
    row = CONCLUSION.finding(estimate.IN_SAMPLE)
    assert methods.assumes(row) == methods.NO_BOUND
    assert methods.NO_BOUND in audit_panels._bar_label(row, "")
    assert methods.NO_BOUND in methods.METHODS[row.method].legend
    (line,) = (line for line in bounds_table.bounds_table(CONCLUSION).splitlines() if line.startswith("in_s"))
    assert line.endswith(methods.NO_BOUND)
