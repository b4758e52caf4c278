"""The figure of what is proven has a line of fresh directions, with the bound after each run."""

from types import SimpleNamespace

import numpy as np

import audit
from audit.methods.exact_null import EXACT_NULL
from experiments.hidden_state import proven

RUNS, CANARIES, DIMENSION = 10, 50, 1000


def test_fresh_directions_have_a_line_of_the_bound_that_assumes_nothing():
    rng = np.random.default_rng(0)
    cosines = 0.15 + rng.normal(size=(RUNS, CANARIES)) / DIMENSION**0.5
    conclusion = audit.bounds(audit.cosines(cosines, DIMENSION, in_order=True)).conclusion
    assert len(conclusion.bounds) == 2  # the GDP limit beside the bound on epsilon
    cell = SimpleNamespace(setting=SimpleNamespace(canaries=CANARIES), runs=RUNS)
    point = SimpleNamespace(panel="FCNN", cells=[cell], conclusions=[conclusion])

    (line,) = proven.compute_lines(point, evidence=None)
    assert list(line.epsilons) == list(range(1, RUNS + 1)) and line.holds
    assert line.epsilons[RUNS] == conclusion.bound(EXACT_NULL).epsilon > 0
