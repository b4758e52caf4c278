"""Tests upper and lower bounds for random allocation."""

import numpy as np
import pytest

from audit.claims import accounting, random_allocation
from audit.claims.brackets import bracket_allocation, bracket_shuffled
from audit.claims.claim import Gdp, RandomAllocation
from audit.claims.random_allocation import account_allocation

# (sigma, batches, epochs, delta, lower, upper) as pld-accounting 2.0 brackets epsilon.
PUBLISHED = [
    (1.0, 6, 3, 1e-5, 4.22101, 4.28806),
    (2.0, 20, 5, 1e-5, 0.97757, 1.02227),
    pytest.param(0.5, 10_000, 1, 1e-6, 1.92917, 1.95699, marks=pytest.mark.slow),
]


@pytest.mark.slow
@pytest.mark.parametrize(("sigma", "batches", "epochs", "delta", "low", "high"), PUBLISHED)
def test_the_bracket_lies_within_that_of_pld_accounting(sigma, batches, epochs, delta, low, high):
    bounds = bracket_allocation(sigma, batches, epochs, delta)
    assert low < bounds.lower <= bounds.upper < high
    assert bounds.upper <= 1.003 * bounds.lower


@pytest.mark.parametrize(("sigma", "epochs"), [(1.0, 1), (2.0, 4), (0.5, 2)])
def test_with_one_batch_it_is_the_gaussian_mechanism(sigma, epochs):
    exact = accounting.epsilon_upper_bound(sigma, epochs, 1e-5)
    below = account_allocation(sigma, 1, epochs, pessimistic=False).get_epsilon_for_delta(1e-5)
    above = account_allocation(sigma, 1, epochs, pessimistic=True).get_epsilon_for_delta(1e-5)
    assert 0.99 * exact < below <= exact <= above < 1.01 * exact


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 2.0])
def test_two_batches_have_the_delta_of_quadrature(epsilon):
    sigma = 1.0
    points = np.linspace(-9, 9, 1501)
    width = points[1] - points[0]
    masses = np.exp(-(points**2) / 2) / np.sqrt(2 * np.pi) * width
    terms = np.exp(points - 0.5)
    ratio = (terms[:, None] + terms) / 2
    law = masses[:, None] * masses
    joins = float((law * np.maximum(ratio - np.exp(epsilon), 0)).sum())
    leaves = float((law * np.maximum(1 - np.exp(epsilon) * ratio, 0)).sum())
    exact = max(joins, leaves)
    below = account_allocation(sigma, 2, 1, pessimistic=False).get_delta_for_epsilon(epsilon)
    above = account_allocation(sigma, 2, 1, pessimistic=True).get_delta_for_epsilon(epsilon)
    assert below <= 1.0005 * exact
    assert above >= 0.9995 * exact
    assert above - below < 0.02 * exact


def test_more_cells_bring_both_ends_together(monkeypatch):
    gaps = []
    for cells in (100, 400):
        monkeypatch.setattr(random_allocation, "NUM_CELLS", cells)
        account = account_allocation.__wrapped__  # without the cache
        below = account(1.0, 10, 2, pessimistic=False)
        above = account(1.0, 10, 2, pessimistic=True)
        gaps.append(above.get_epsilon_for_delta(1e-5) - below.get_epsilon_for_delta(1e-5))
    assert 0 < gaps[1] < gaps[0] / 2


@pytest.mark.parametrize("compute_bracket", [bracket_allocation, bracket_shuffled])
@pytest.mark.parametrize("delta", [1e-14, 1e-16])
def test_a_delta_near_the_rounding_of_probabilities_has_no_lower_bound(compute_bracket, delta):
    bounds = compute_bracket(1.0, 10, 10, delta)
    assert bounds.lower is None
    assert bounds.upper == accounting.epsilon_upper_bound(1.0, 10, delta)


@pytest.mark.parametrize("noise_multiplier", [0.02, 0.03])
def test_shuffled_batches_with_little_noise_have_the_composition_of_epochs_alone(noise_multiplier):
    bounds = bracket_shuffled(noise_multiplier, 10, 1, 1e-5)
    assert bounds.lower is None
    assert bounds.upper == accounting.epsilon_upper_bound(noise_multiplier, 1, 1e-5)


@pytest.mark.parametrize(("sigma", "delta"), [(0.09, 1e-5), (1.0, 1e-13)])
def test_small_noise_or_a_small_delta_has_the_composition_of_epochs_only(sigma, delta):
    bounds = bracket_allocation(sigma, 10, 3, delta)
    assert bounds.upper == accounting.epsilon_upper_bound(sigma, 3, delta)
    assert bounds.lower is None and "composition of epochs: " in bounds.accountant


def test_the_curve_of_small_noise_is_that_of_the_composition_of_epochs():
    rates = np.array([1e-5, 0.01, 0.5])
    claim = RandomAllocation(0.09, batches=10, epochs=3)
    composed = Gdp(accounting.mu_upper_bound(0.09, 3)).power(rates)
    np.testing.assert_allclose(claim.power(rates), composed, rtol=1e-12)
