"""The crafted landscape's simulation against its exact law, on the whole heat map."""

import numpy as np
import pytest
from scipy import special

from audit.landscape import law
from audit.landscape.process import Process, constant
from audit.statistics import densities

CELLS = [(float(sigma), size) for sigma in range(1, 9) for size in (1, 2, 4, 8, 16)]
RUNS = 5000


def simulate(presence, cells=CELLS, steps=25):
    """theta (cells, T, runs) at h = C / 2."""
    import jax
    import jax.numpy as jnp

    from audit.landscape import simulate

    keys = jax.random.split(jax.random.key(0), len(cells))
    sigmas, sizes = (jnp.array(column, jnp.float32) for column in zip(*cells, strict=True))
    runs, thresholds = jnp.arange(len(presence)), jnp.full((len(cells), steps - 1), 0.5)
    found = simulate.simulate_cells(keys, runs, jnp.asarray(presence), sigmas, sizes, thresholds)
    return np.asarray(found)


@pytest.fixture(scope="module")
def simulated():
    return simulate(np.arange(RUNS) % 2 == 1)


@pytest.mark.parametrize("index", range(len(CELLS)))
def test_the_simulation_agrees_within_its_sampling_error(simulated, index):
    process = Process(*CELLS[index], 25)
    laws = law.laws(process, constant(process, 0.5))
    for step in (1, 2, 5, 25):
        theta = simulated[index, step - 1]
        thresholds = np.quantile(theta, [0.1, 0.5, 0.9])
        exact = densities.error_rates(laws[step - 1], thresholds)
        worlds = ((theta[::2], exact.false_positive, 1), (theta[1::2], exact.false_negative, -1))
        for scores, rates, sign in worlds:
            seen = (sign * (scores[:, None] - thresholds) > 0).mean(0)
            deviation = np.sqrt(rates * (1 - rates) / len(scores))
            assert np.all(np.abs(seen - rates) < 5 * deviation + 1e-3), (step, seen, rates)


def test_a_wrong_sigma_is_seen_in_the_simulation(simulated):
    process = Process(4.4, 1, 25)  # cell (4, 1) with sigma a tenth too large
    pair = law.laws(process, constant(process, 0.5))[0]
    theta = simulated[CELLS.index((4.0, 1)), 0][::2]
    rates = densities.error_rates(pair, np.array([4.0])).false_positive
    seen = (theta > 4.0).mean()
    assert abs(seen - rates[0]) > 3 * np.sqrt(rates[0] * (1 - rates[0]) / len(theta))
    assert seen == pytest.approx(special.ndtr(-1.0), abs=0.03)


def test_presence_moves_the_first_iterate_by_one_and_no_noise_of_any_run():
    runs = 64
    out, into = simulate(np.zeros(runs, bool), CELLS[:2], 2), simulate(np.ones(runs, bool), CELLS[:2], 2)
    np.testing.assert_allclose(into[:, 0], out[:, 0] + 1, atol=1e-6)
    same_side = (into[:, 0] > 0.5) == (out[:, 0] > 0.5)
    assert 0 < same_side.mean() < 1
    np.testing.assert_allclose((into - out)[:, 1], np.where(same_side, 1, 3), atol=1e-5)
    alone, among = (simulate(np.zeros(runs, bool), CELLS[:1], 3) for runs in (1, 8))
    np.testing.assert_array_equal(alone[..., 0], among[..., 0])
    assert len(set(among[0, 0])) == 8
