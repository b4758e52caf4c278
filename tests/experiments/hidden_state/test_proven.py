"""The figure `proven` has a line for fresh directions, with the bound after each run."""

import numpy as np

import audit
from audit.methods.exact_null import EXACT_NULL
from audit.settings.make import setting_of
from audit.written import Level
from experiments.cells.cell import Audited
from experiments.hidden_state import bracket
from experiments.sweeps.points import Evidence, Point

RUNS, CANARIES, DIMENSION = 10, 50, 1000


def test_fresh_directions_have_a_row_of_the_bound_that_assumes_nothing_after_each_run():
    rng = np.random.default_rng(0)
    cosines = 0.15 + rng.normal(size=(RUNS, CANARIES)) / DIMENSION**0.5
    conclusion = audit.bounds(audit.cosines(cosines, DIMENSION, in_order=True)).conclusion
    setting = setting_of("fcnn", adversary="sphere", canaries=CANARIES)
    cell = Audited("FCNN", "", 1, setting, RUNS)
    rows = bracket.make_proven_rows(
        Point("FCNN", "", 1, (cell,), (conclusion,)), Evidence(None, {}, Level())
    )
    assert [row["x"] for row in rows] == list(range(1, RUNS + 1))
    assert {row["method"] for row in rows} == {EXACT_NULL}
    assert rows[-1]["epsilon"] == conclusion.finding(EXACT_NULL).epsilon > 0
