"""Crafted convex losses against momentum: weights, the exact leak, and simulated last models."""

import numpy as np
import pytest

from audit.laws.conversions import epsilon_from_mu
from audit.written import Level
from experiments.hidden_state import momentum
from experiments.hidden_state.momentum import STARTS
from tests.cases import mostly_slow

BETA = 0.9
LEVELS = Level(1e-5, 0.95)
BY_PLACE = {(start.k, start.most): start for start in STARTS}


@pytest.mark.parametrize(
    ("place", "least"),
    mostly_slow([((5, 1), 15.53), ((2, 1), 15.2), ((5, 2), 18.62), ((25, 2), 16.4)]),
)
def test_the_last_model_leaks_at_least_this(place, least):
    landscape, mu = momentum.optimize(BY_PLACE[place], BETA)
    assert epsilon_from_mu(mu, 1e-5) >= least
    curvatures = np.array(landscape.period + landscape.end)
    assert curvatures.min() >= 0 and curvatures.max() <= landscape.most


def test_the_weights_are_those_of_heavy_ball():
    rng = np.random.default_rng(0)
    curvatures = rng.uniform(0, 2, 30)
    pushes = rng.normal(size=30)
    before = theta = 0.0
    for curvature, push in zip(curvatures, pushes, strict=True):
        theta, before = theta + BETA * (theta - before) - curvature * theta + push, theta
    weights = np.asarray(momentum.compute_weights(curvatures, BETA), np.float64)
    assert weights @ pushes == pytest.approx(theta, rel=1e-4)


@pytest.mark.parametrize("place", mostly_slow([((5, 1),), ((5, 2),)]))
def test_simulated_last_models_confirm_the_exact_leak(place):
    landscape, mu = momentum.optimize(BY_PLACE[place], BETA)
    scores_in, scores_out = momentum.simulate(landscape, BETA, 5000, 0)
    deviation = np.sqrt((scores_in.var(ddof=1) + scores_out.var(ddof=1)) / 2)
    measured = (scores_in.mean() - scores_out.mean()) / deviation
    error = np.sqrt(2 / 2500 + measured**2 / (2 * 4998))
    assert abs(measured - mu) <= 3.5 * error


@pytest.mark.slow
def test_no_row_exceeds_composition_or_proves_more_than_the_truth_and_sgd_keeps_its_bound():
    table = momentum.make_table(BETA, LEVELS, 2000, 1)
    assert max(map(len, table.text().splitlines())) <= 80
    for row in table.rows:
        assert row["linear"] <= row["epsilon"] + 0.01 <= row["composition"]
        assert row["simulated"] <= 1.02 * row["epsilon"]
    for row in momentum.make_rows(0.0, LEVELS, 400, 1):
        assert row["epsilon"] <= row["sgd_bound"] + 1e-4
