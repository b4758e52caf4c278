"""Crafted convex losses against momentum: weights, the exact leak, and simulated last models."""

import numpy as np
import pytest

from audit.laws.conversions import epsilon_from_mu
from experiments.hidden_state import momentum
from experiments.hidden_state.landscape import Study
from experiments.hidden_state.momentum import BETA, LANDSCAPES
from tests.cases import mostly_slow

BY_PLACE = {(landscape.k, float(landscape.most)): landscape for landscape in LANDSCAPES}


@pytest.mark.parametrize(
    ("place", "least"),
    [((5, 1), 16.1), ((2, 1), 15.2), ((2, 2), 23.95), ((5, 2), 18.64), ((25, 2), 16.4)],
)
def test_the_last_model_leaks_at_least_this(place, least):
    landscape = BY_PLACE[place]
    assert epsilon_from_mu(momentum.compute_mu(landscape), 1e-5) >= least
    curvatures = landscape.list_curvatures()
    assert len(curvatures) == 250 * landscape.k
    assert curvatures.min() >= 0 and curvatures.max() <= float(landscape.most)


def test_the_weights_are_those_of_heavy_ball():
    rng = np.random.default_rng(0)
    curvatures = rng.uniform(0, 2, 30)
    pushes = rng.normal(size=30)
    before = theta = 0.0
    for curvature, push in zip(curvatures, pushes, strict=True):
        theta, before = theta + BETA * (theta - before) - curvature * theta + push, theta
    weights = momentum.compute_weights(curvatures)
    assert weights @ pushes == pytest.approx(theta, rel=1e-9)


@pytest.mark.parametrize("place", mostly_slow([((5, 1),), ((5, 2),)]))
def test_simulated_last_models_confirm_the_exact_leak(place):
    landscape = BY_PLACE[place]
    mu = momentum.compute_mu(landscape)
    scores_in, scores_out = momentum.simulate(landscape, 5000, 0)
    deviation = np.sqrt((scores_in.var(ddof=1) + scores_out.var(ddof=1)) / 2)
    measured = (scores_in.mean() - scores_out.mean()) / deviation
    error = np.sqrt(2 / 2500 + measured**2 / (2 * 4998))
    assert abs(measured - mu) <= 3.5 * error


def test_no_row_exceeds_composition_or_proves_more_than_the_truth():
    table = momentum.make_table(Study(1e-5, 0.95, 2000, 1))
    assert max(map(len, table.text().splitlines())) <= 80
    for row in table.rows:
        assert row["linear"] <= row["epsilon"] + 0.01 <= row["composition"]
        assert row["simulated"] <= 1.02 * row["epsilon"]
