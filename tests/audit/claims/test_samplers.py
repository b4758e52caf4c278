"""Tests the bound on the last model if the order of batches is secret."""

import itertools

import numpy as np
import pytest

from audit.claims import samplers
from audit.claims.accounting import epsilon_upper_bound, mu_upper_bound
from audit.claims.hidden_state import hidden_state_bound
from tests.cases import mostly_slow

DELTA = 1e-5
# (sigma, b, E, c, the mixture, the worst order), enumerated independently of this code.
ENUMERATED = [
    (1.0, 4, 2, 1.0, 4.4918, 4.9833),
    (1.0, 6, 3, 1.0, 4.5703, 5.1748),
    (1.0, 6, 3, 0.99, 4.5236, 5.1366),
    (0.6, 6, 3, 1.0, 8.5123, 9.5354),
]


@pytest.mark.parametrize(("sigma", "batches", "epochs", "c", "mixture", "worst"), ENUMERATED)
def test_enumerated_orders_have_the_known_mixture(sigma, batches, epochs, c, mixture, worst):
    schedule = samplers.make_schedule(sigma, batches, epochs, c)
    limit = samplers.bound_one_of_each_epoch(schedule, DELTA)
    assert limit.epsilon == pytest.approx(mixture, abs=1e-4)
    assert limit.error == 0
    any_order = samplers.bound_any_order(schedule, DELTA)
    assert limit.epsilon < any_order.epsilon == pytest.approx(worst, abs=1e-4)


@pytest.mark.parametrize("seed", range(6))
def test_orders_side_by_side_have_the_mu_of_one_at_a_time(seed):
    rng = np.random.default_rng(seed)
    steps = 30
    constants = rng.uniform(0.2, 1.5, steps)
    if seed % 2:
        constants[rng.integers(steps)] = 0
    orders = np.full((40, 9), steps)
    expected = []
    for order in orders:
        taken = np.sort(rng.choice(steps, rng.integers(1, 9), replace=False))
        order[: len(taken)] = taken
        shifts = np.isin(np.arange(steps), taken).astype(float)
        expected.append(hidden_state_bound(shifts, constants, 1.0, DELTA).mu)
    mus = samplers.compute_pattern_mus(samplers.weigh_steps(constants), orders)
    np.testing.assert_allclose(mus, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("constant", [0.5, 2.0])
def test_products_of_constants_far_beyond_floats_do_no_harm(constant):
    schedule = samplers.make_schedule(1.0, 4000, 1, constant)
    orders = np.array([[0], [3998], [3999]])
    mus = samplers.compute_pattern_mus(schedule.weights, orders)
    # One shift of w, and noise of w^2 + ... + 1.
    last_two = constant / np.sqrt(1 + constant**2)
    np.testing.assert_allclose(mus[1:], [last_two, 1.0], rtol=1e-12)
    first = np.sqrt(1 - constant**-2) if constant > 1 else 0.0
    assert mus[0] == pytest.approx(first, abs=1e-12)


@pytest.mark.parametrize(("enumerated", "simulated"), mostly_slow([(6, 40_000), (1, 40_000)]))
def test_simulated_limits_lie_above_the_mixture_and_near_it(enumerated, simulated):
    schedule = samplers.make_schedule(1.0, 6, 3)
    exact = samplers.bound_one_of_each_epoch(schedule, DELTA).epsilon
    for seed in range(10):
        limit = samplers.bound_one_of_each_epoch(schedule, DELTA, seed, enumerated, simulated)
        assert limit.error == samplers.ERROR
        assert exact <= limit.epsilon <= 1.03 * exact


@pytest.mark.slow
def test_thirty_epochs_of_98_batches_leak_little_more_than_poisson_claims():
    limit = samplers.bound_one_of_each_epoch(samplers.make_schedule(1.0, 98, 30), DELTA)
    assert 3.5 < limit.epsilon <= 3.9


@pytest.mark.slow
def test_steps_that_expand_leak_no_more_than_composition():
    expanding = samplers.make_schedule(1.0, 40, 5, 1.1)
    limit = samplers.bound_one_of_each_epoch(expanding, DELTA, max_enumerated=200, simulated=20_000)
    assert limit.mu <= mu_upper_bound(1.0, 5)
    assert limit.epsilon <= epsilon_upper_bound(1.0, 5, DELTA)
    sampled = samplers.bound_poisson(expanding, DELTA, simulated=20_000)
    assert sampled.mu <= mu_upper_bound(1.0, 200)
    assert sampled.epsilon <= epsilon_upper_bound(1.0, 200, DELTA)


def test_a_simulated_limit_for_poisson_lies_above_the_exact_one():
    steps = 12
    mus = []
    shares = []
    for taken in itertools.product([0, 1], repeat=steps):
        mus.append(hidden_state_bound(taken, 1.0, 1.0, 1e-3).mu)
        shares.append((1 / 6) ** sum(taken) * (5 / 6) ** (steps - sum(taken)))
    exact = samplers.mix_epsilon(np.array(mus), np.array(shares), 1e-3)
    schedule = samplers.make_schedule(1.0, 6, 2)
    for seed in range(3):
        limit = samplers.bound_poisson(schedule, 1e-3, seed, 100_000).epsilon
        assert exact < limit < 1.3 * exact


def test_the_limit_of_a_mean_covers_it_and_tightens():
    rng = np.random.default_rng(0)
    log_error = np.log(20)
    for _ in range(200):
        values = (rng.random(500) < 0.01).astype(float)
        assert samplers.bound_mean(values, 1.0, 3 * log_error) > 0.01
    assert samplers.bound_mean(np.full(10_000, 0.01), 1.0, log_error) < 0.012


@pytest.mark.slow
@pytest.mark.parametrize(("batches", "epochs"), [(4, 2), (6, 3)])
def test_200_simulated_limits_lie_above_the_mixture(batches, epochs):
    schedule = samplers.make_schedule(1.0, batches, epochs)
    exact = samplers.bound_one_of_each_epoch(schedule, DELTA).epsilon
    for seed in range(200):
        limit = samplers.bound_one_of_each_epoch(schedule, DELTA, seed, batches, 20_000)
        assert exact <= limit.epsilon <= 1.03 * exact


def test_what_cannot_leak_has_epsilon_zero():
    assert samplers.mix_epsilon(np.array([1e-9, 1e-8]), np.array([0.5, 0.5]), DELTA) == 0
    assert samplers.bound_mean(np.zeros(10), 0.0, 3.0) == 0
