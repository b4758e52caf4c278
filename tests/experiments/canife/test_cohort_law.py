"""The distribution of a round's score agrees with enumeration, and with a perfect canary."""

import itertools

import numpy as np
import pytest
from scipy import special

from audit.laws import conversions, densities
from experiments.canife import cohort_law

DOTS = np.array([0.31, -0.12, 0.05, 0.44, -0.3, 0.02, 0.11])


def mixture(points, sums, weights, sigma):
    normal = -((points[:, None] - sums) ** 2) / (2 * sigma**2) - np.log(sigma * np.sqrt(2 * np.pi))
    return special.logsumexp(normal + np.log(weights), axis=1)


@pytest.mark.parametrize("sigma", [0.15, 0.423, 1.0])
def test_the_density_is_the_mixture_over_all_cohorts(sigma):
    law = cohort_law.compute_log_density(DOTS, 3, sigma, 1.0)
    sums = np.array([sum(c) for c in itertools.combinations(DOTS, 3)])
    exact = mixture(law.points, sums, np.full(len(sums), 1 / len(sums)), sigma)
    np.testing.assert_allclose(law.log_density, exact, atol=1e-8)


@pytest.mark.slow
def test_no_canary_leaks_more_than_the_mechanism():
    pair = cohort_law.score_densities(DOTS, 3, 0.4, 0.9, replaces=True)
    sums = np.array([sum(c) for c in itertools.combinations(DOTS, 2)]) + 0.9
    exact = np.exp(mixture(pair.points, sums, np.full(len(sums), 1 / len(sums)), 0.4))
    np.testing.assert_allclose(pair.q, exact, atol=1e-7 * exact.max())
    rng = np.random.default_rng(1)
    for sigma in (0.05, 0.2, 0.423, 1.0):
        dots = rng.normal(0.01, 0.05, 300)
        dots[:2] = 0.8, -0.9
        truth = conversions.epsilon_from_mu(1 / sigma, 1e-5)
        found = densities.epsilon_at(cohort_law.score_densities(dots, 30, sigma, 0.95), 1e-5)
        assert 0.1 * min(truth, 30) < found < truth


@pytest.mark.parametrize("cohort", [64, 512])
def test_a_canary_orthogonal_to_all_clients_leaks_as_much_as_the_mechanism(cohort):
    pair = cohort_law.score_densities(np.zeros(512), cohort, 0.423, 1.0)
    truth = conversions.epsilon_from_mu(1 / 0.423, 1e-5)
    assert densities.epsilon_at(pair, 1e-5) == pytest.approx(truth, abs=1e-4)
