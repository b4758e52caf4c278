"""Tests the expected leak with linear losses against integration, normal distributions and accountants."""

import numpy as np
import pytest
from scipy import stats

from audit.claims import accounting
from audit.claims.accounting import Composition
from audit.claims.hidden_state import Periods, bound_periods
from audit.claims.linear_losses import expected_epsilon
from audit.laws import conversions
from tests.cases import mostly_slow


def by_integration(composition, k, epsilon):
    """delta at epsilon, the larger of both directions, on a grid."""
    sigma, n, rate = composition
    deviation = sigma * np.sqrt(k * n)
    x = np.linspace(-12 * deviation, n + 12 * deviation, 40_001)
    plain = stats.norm.pdf(x, 0, deviation)
    law = stats.binom(n, rate).pmf(np.arange(n + 1))
    inserted = sum(p * stats.norm.pdf(x, j, deviation) for j, p in enumerate(law))
    pairs = (inserted, plain), (plain, inserted)
    return max(np.trapezoid(np.maximum(p - np.exp(epsilon) * q, 0), x) for p, q in pairs)


@pytest.mark.parametrize(
    ("sigma", "n", "rate", "k"),
    [(1, 20, 0.3, 1), (0.5, 8, 0.1, 3), (2, 100, 0.9, 1), (0.3, 3, 0.02, 1)],
)
@pytest.mark.parametrize("delta", [1e-5, 1e-2])
def test_it_is_the_hockey_stick_of_both_directions(sigma, n, rate, k, delta):
    composition = Composition(sigma, n, rate)
    epsilon = expected_epsilon(composition, k * n, delta)
    assert by_integration(composition, k, epsilon) == pytest.approx(delta, rel=1e-3) or epsilon == 0
    assert epsilon == 0 or by_integration(composition, k, 1.05 * epsilon) < delta


def test_with_little_noise_it_is_that_of_the_most_insertions_that_are_likely_enough():
    n, rate, delta, sigma = 250, 0.1, 1e-5, 1e-3
    most = stats.binom(n, rate).isf(delta)
    mu = most / (sigma * np.sqrt(n))
    expected = conversions.epsilon_from_mu(mu, delta)
    epsilon = expected_epsilon(Composition(sigma, n, rate), n, delta)
    assert epsilon == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("k", [1, 5])
def test_without_sampling_it_is_that_of_a_normal_law(k):
    expected = conversions.epsilon_from_mu(np.sqrt(250 / k) / 4, 1e-5)
    assert expected_epsilon(Composition(4.0, 250), k * 250, 1e-5) == pytest.approx(
        expected, rel=1e-6
    )
    assert expected_epsilon(Composition(4.0, 250, 1 - 1e-9), k * 250, 1e-5) == pytest.approx(
        expected, rel=1e-3
    )


@pytest.mark.parametrize("rate", mostly_slow([0.01, 0.1, 0.5]))
def test_it_stays_below_what_any_losses_may_leak(rate):
    """Linear losses are convex, and the last model is a function of all."""
    composition = Composition(1.0, 200, rate)
    expected = expected_epsilon(composition, 200, 1e-5)
    assert (
        0
        < expected
        < accounting.participant_upper_bound(accounting.Composition(1.0, 200, rate), 1e-5)
    )
    assert expected_epsilon(composition, 1000, 1e-5) < min(
        expected, bound_periods(composition, Periods(1.0, 5, 1), 1e-5).epsilon
    )


def test_the_ends():
    assert expected_epsilon(Composition(1.0, 0, 0.1), 0, 1e-5) == 0
    assert expected_epsilon(Composition(0.0, 3, 0.1), 3, 1e-5) == np.inf
    assert expected_epsilon(Composition(1.0, 1, 1e-7), 1, 1e-5) == 0
    near = conversions.epsilon_from_mu(1.0, 1e-12)  # the binomial hardly varies
    assert near < expected_epsilon(Composition(1.0, 10**6, 0.001), 10**6, 1e-12) < 1.1 * near
