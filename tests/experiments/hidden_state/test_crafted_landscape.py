"""The crafted landscape: its exact law against finer grids and the closed form, and its simulation."""

import numpy as np
import pytest
from scipy import special

from audit.claims import accounting
from audit.errors import InputError
from audit.laws import conversions, densities
from experiments.hidden_state import landscape_law as law
from experiments.hidden_state.landscape_law import Process, upper_bound

DELTA = 1e-5


def constant(process, threshold):
    return np.full(process.steps - 1, threshold)


CELLS = [(sigma, size) for sigma in (1.0, 4.0, 8.0) for size in (1, 2, 16)]


@pytest.mark.parametrize(("sigma", "size"), CELLS)
def test_a_grid_twice_as_fine_moves_epsilon_by_less_than_a_thousandth(sigma, size):
    process = Process(sigma, size, 25)
    thresholds = constant(process, 0.5)
    pairs = [law.last_law(process, thresholds, per_deviation) for per_deviation in (8, 16)]
    assert len(pairs[1].points) > 1.9 * len(pairs[0].points)
    coarse, fine = (densities.epsilon_at(pair, DELTA) for pair in pairs)
    assert coarse == pytest.approx(fine, rel=1e-3) and all(pair.error < 1e-13 for pair in pairs)


@pytest.mark.parametrize("steps", [1, 2, 10, 100])
@pytest.mark.parametrize(("sigma", "size"), [(1.0, 1), (4.0, 2), (0.5, 2)])
def test_a_constant_gradient_decays_as_example_1_says(sigma, size, steps):
    pair = law.last_law(Process(sigma, size, steps), np.full(steps - 1, -np.inf))
    mu = 1 / np.sqrt(sigma**2 * (1 + (steps - 1) / size**2))  # O(1 / sqrt(T))
    expected = conversions.epsilon_from_mu(mu, DELTA)
    assert densities.epsilon_at(pair, DELTA) == pytest.approx(expected, rel=1e-3)


def test_the_conversion_claims_twice_as_much_and_a_grid_can_be_too_large():
    process = Process(4.0, 1, 25)
    pair = law.last_law(process, constant(process, 0.5))
    claimed = conversions.epsilon_from_mu(float(densities.mu_at(pair, 0.5)), DELTA)
    assert claimed > 1.9 * densities.epsilon_at(pair, DELTA)
    with pytest.raises(InputError, match=r"`steps=10000000`: .* use fewer steps"):
        law.last_law(Process(0.3, 2, 10**7), np.zeros(1))


@pytest.mark.parametrize("sigma", [0.5, 4.0, 8.0])
def test_the_upper_bound_is_the_first_steps_whatever_follows(sigma):
    (bound,) = {
        upper_bound(Process(sigma, size, steps), 1e-5) for size in (1, 16) for steps in (1, 25)
    }
    assert bound == pytest.approx(accounting.epsilon_upper_bound(sigma, 1, 1e-5), rel=1e-4)


RUNS = 5000


def simulate(presence, cells=CELLS, steps=25):
    """Returns theta (cells, T, runs) at h = C / 2."""
    import jax
    import jax.numpy as jnp

    from experiments.hidden_state import landscape_solve

    keys = jax.random.split(jax.random.key(0), len(cells))
    sigmas = jnp.array([sigma for sigma, _ in cells], jnp.float32)
    sizes = jnp.array([size for _, size in cells], jnp.float32)
    thresholds = jnp.full(steps - 1, 0.5)
    simulate_all = jax.vmap(landscape_solve.simulate, (0, None, 0, 0, None))
    return np.asarray(simulate_all(keys, jnp.asarray(presence), sigmas, sizes, thresholds))


@pytest.fixture(scope="module")
def simulated():
    return simulate(np.arange(RUNS) % 2 == 1)


@pytest.mark.parametrize("index", range(len(CELLS)))
def test_the_simulation_agrees_within_its_sampling_error(simulated, index):
    process = Process(*CELLS[index], 25)
    laws = list(law.laws(process, constant(process, 0.5)))
    for step in (1, 2, 5, 25):
        theta = simulated[index, step - 1]
        thresholds = np.quantile(theta, [0.1, 0.5, 0.9])
        exact = densities.error_rates(laws[step - 1], thresholds)
        scores_out = theta[::2]
        scores_in = theta[1::2]
        positive_out = (scores_out[:, None] > thresholds).mean(0)
        negative_in = (scores_in[:, None] < thresholds).mean(0)
        for seen, rates in (
            (positive_out, exact.false_positive),
            (negative_in, exact.false_negative),
        ):
            deviation = np.sqrt(rates * (1 - rates) / len(scores_out))
            assert np.all(np.abs(seen - rates) < 5 * deviation + 1e-3), (step, seen, rates)


def test_a_wrong_sigma_is_seen_in_the_simulation(simulated):
    process = Process(4.4, 1, 1)  # cell (4, 1) with sigma a tenth too large
    pair = law.last_law(process, np.array([]))
    theta = simulated[CELLS.index((4.0, 1)), 0][::2]
    rates = densities.error_rates(pair, np.array([4.0])).false_positive
    seen = (theta > 4.0).mean()
    assert abs(seen - rates[0]) > 3 * np.sqrt(rates[0] * (1 - rates[0]) / len(theta))
    assert seen == pytest.approx(special.ndtr(-1.0), abs=0.03)


@pytest.mark.slow
def test_presence_moves_the_first_iterate_by_one_and_no_noise_of_any_run():
    runs = 64
    out = simulate(np.zeros(runs, bool), CELLS[:2], 2)
    into = simulate(np.ones(runs, bool), CELLS[:2], 2)
    np.testing.assert_allclose(into[:, 0], out[:, 0] + 1, atol=1e-6)
    same_side = (into[:, 0] > 0.5) == (out[:, 0] > 0.5)
    assert 0 < same_side.mean() < 1
    np.testing.assert_allclose((into - out)[:, 1], np.where(same_side, 1, 3), atol=1e-5)
    alone, among = (simulate(np.zeros(runs, bool), CELLS[:1], 3) for runs in (1, 8))
    np.testing.assert_array_equal(alone[..., 0], among[..., 0])
    assert len(set(among[0, 0])) == 8
