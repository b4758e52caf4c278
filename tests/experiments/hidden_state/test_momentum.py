"""Crafted convex losses with momentum: weights, the exact leak, and simulated last models."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from audit.laws.conversions import epsilon_from_mu
from experiments.hidden_state import momentum
from experiments.hidden_state.crafted import INSERTIONS, NOISE_MULTIPLIER

BETA = 0.9
DELTA = 1e-5
STARTS = {(start.k, start.most): start for start in momentum.list_starts()}


@pytest.mark.parametrize(
    ("place", "least"), [((2, 1), 15.2), ((5, 1), 15.53), ((5, 2), 18.62), ((25, 2), 16.4)]
)
def test_the_last_model_leaks_at_least_this(place, least):
    landscape, mu = momentum.optimize(STARTS[place], BETA)
    assert epsilon_from_mu(mu, DELTA) >= least
    curvatures = np.array(landscape.period + landscape.end)
    assert curvatures.min() >= 0 and curvatures.max() <= landscape.most


def descend(curvatures, pushes):
    """Returns the last model of heavy ball, from curvatures (T,) and the other gradients (T, ...)."""
    previous = theta = np.zeros(pushes.shape[1:])
    for curvature, push in zip(curvatures, pushes, strict=True):
        velocity = BETA * (theta - previous)
        previous, theta = theta, theta + velocity - curvature * theta + push
    return theta


def test_the_weights_are_those_of_heavy_ball():
    rng = np.random.default_rng(0)
    curvatures = rng.uniform(0, 2, 30)
    pushes = rng.normal(size=30)
    weights = np.asarray(momentum.compute_weights(curvatures, BETA), np.float64)
    assert weights @ pushes == pytest.approx(descend(curvatures, pushes), rel=1e-4)


@pytest.mark.parametrize("place", [(5, 1), (5, 2)])
def test_simulated_last_models_confirm_the_exact_leak(place):
    landscape, mu = momentum.optimize(STARTS[place], BETA)
    k, runs = landscape.k, 2500
    period, end = landscape.period, landscape.end
    curvatures = np.array([*(period * INSERTIONS)[: -len(end)], *end])
    with jax.enable_x64(True):
        signs = np.sign(momentum.compute_weights(jnp.array(curvatures), BETA))
    noise = NOISE_MULTIPLIER * np.random.default_rng(0).normal(size=(len(curvatures), 2, runs))
    noise[k - 1 :: k, 0] += signs[k - 1 :: k, None]  # the last step of a period inserts the canary
    scores_in, scores_out = descend(curvatures, noise)
    deviation = np.sqrt((scores_in.var(ddof=1) + scores_out.var(ddof=1)) / 2)
    measured = (scores_in.mean() - scores_out.mean()) / deviation
    error = np.sqrt(2 / runs + measured**2 / (2 * (2 * runs - 2)))
    assert abs(measured - mu) <= 3.5 * error


@pytest.mark.slow
def test_no_row_exceeds_composition_and_sgd_keeps_its_bound():
    table = momentum.make_table(BETA, DELTA)
    assert max(map(len, table.text().splitlines())) <= 80
    for row in table.rows:
        assert row["linear"] <= row["epsilon"] + 0.01 <= row["composition"]
    for row in momentum.make_rows(0.0, DELTA):
        assert row["epsilon"] <= row["sgd_bound"] + 1e-4
