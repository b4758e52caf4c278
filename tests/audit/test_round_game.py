"""Mock rounds as sums of known numbers, against mock rounds played client by client and against their law."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from audit import round_game
from audit.errors import InputError
from audit.statistics import cohort_law, densities
from audit.statistics.cohort_law import Cohort

NORM = 0.7


@pytest.fixture(scope="module")
def matrix():
    drawn = jax.random.normal(jax.random.key(0), (40, 60))
    return NORM * drawn / jnp.linalg.norm(drawn, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def canary():
    return round_game.inserted(5 * jax.random.normal(jax.random.key(1), (60,)), None, NORM)


def played(matrix, cohort, canary, direction, noise):
    """A mock round as the paper's code plays it: the score of the sum of a cohort's updates, a canary's and
    noise."""
    total = jnp.sum(matrix[cohort], axis=0) + noise + (0 if canary is None else canary.update)
    return float(total @ direction) / NORM


def test_rounds_played_by_the_paper_are_sums_of_dot_products(matrix, canary):
    rng, sigma = np.random.default_rng(0), 0.4
    known = round_game.dots(lambda members, v: matrix[members] @ v, 40, canary, NORM, block=7)
    for i, members in enumerate(round_game.cohorts(rng, 40, 8, 100)):
        noise = sigma * NORM * jax.random.normal(jax.random.key(i), canary.direction.shape)
        present = canary if i % 2 == 0 else None
        score = played(matrix, members, present, canary.direction, noise)
        own = round_game.own_dot(canary, NORM) if i % 2 == 0 else 0.0
        fast = known[members].sum() + own + float(noise @ canary.direction) / NORM
        assert score == pytest.approx(fast, abs=2e-6)


@pytest.mark.parametrize("cohort", [Cohort(8), Cohort(30), Cohort(8, poisson=True)])
@pytest.mark.parametrize("sigma", [0.2, 0.423, 1.0])
def test_the_quadrature_agrees_with_a_million_mock_rounds(matrix, canary, cohort, sigma):
    rng, rounds = np.random.default_rng(3), 500_000
    known = round_game.dots(lambda members, v: matrix[members] @ v, 40, canary, NORM)
    own = round_game.own_dot(canary, NORM)
    s_in, s_out = round_game.mock_scores(rng, known, cohort, own, sigma, rounds)
    thresholds = np.quantile(s_out, [0.001, 0.03, 0.2, 0.5, 0.8, 0.97, 0.999])
    exact = densities.error_rates(cohort_law.added(known, cohort, sigma, own), thresholds)
    for rates, counted in (
        (exact.false_positive, np.mean(s_out[:, None] > thresholds, axis=0)),
        (exact.false_negative, np.mean(s_in[:, None] <= thresholds, axis=0)),
    ):
        error = np.sqrt(rates * (1 - rates) / rounds) + 2e-6
        assert np.all(np.abs(counted - rates) < 4.5 * error)


def test_cohorts_are_uniform_and_of_one_size(matrix, canary):
    found = round_game.cohorts(np.random.default_rng(0), 12, 9, 20_000)
    assert np.all(np.diff(np.sort(found, axis=1), axis=1) > 0)
    share = np.bincount(found[:, 8], minlength=12) / 20_000
    assert np.all(np.abs(share - 1 / 12) < 5 * np.sqrt(1 / 12 / 20_000))
    known = np.ones(40)
    s_in, s_out = round_game.published_scores(np.random.default_rng(0), known, Cohort(8), 0.5, 0.0, 101)
    assert len(s_in) == 51 and len(s_out) == 50
    assert np.all(s_in == 7.5) and np.all(s_out == 8)
    gradient = jnp.array([3.0, 4.0])
    raw, slow = round_game.inserted(gradient, None, 1.0), round_game.inserted(gradient, 0.01, 1.0)
    assert round_game.own_dot(raw, 1.0) == pytest.approx(1)
    assert round_game.own_dot(slow, 1.0) == pytest.approx(0.05)
    with pytest.raises(InputError, match="norm 0"):
        round_game.inserted(jnp.zeros(2), None, 1.0)
