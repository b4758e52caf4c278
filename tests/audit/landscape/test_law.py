"""The exact law of the crafted landscape: bars, closed forms, an independent computation, a search for
better adversaries, and the simulation."""

import numpy as np
import pytest
from scipy import special

from audit.errors import InputError
from audit.landscape import law
from audit.landscape.law import Process
from audit.statistics import conversions, densities

DELTA = 1e-5
SIZES = (1, 2, 4, 8, 16)
CELLS = [(float(sigma), size) for sigma in range(1, 9) for size in SIZES]


def normal(x, deviation):
    return np.exp(-0.5 * (x / deviation) ** 2) / (deviation * np.sqrt(2 * np.pi))


@pytest.mark.parametrize(
    ("size", "gaussian", "half", "best", "optimal"),
    list(
        zip(
            SIZES,
            (0.46, 0.86, 0.99, 1.00, 1.00),
            (0.23, 0.38, 0.61, 0.84, 0.95),
            (0.29, 0.68, 0.99, 1.00, 1.00),
            (0.455, 0.855, 0.991, 1.000, 1.000),
            strict=True,
        )
    ),
)
def test_rates_at_sigma_4_and_25_steps(size, gaussian, half, best, optimal):
    process = Process(4.0, size, 25)
    upper = law.upper_bound(process, DELTA)
    at_half = law.half(process, DELTA)
    mu = float(densities.mu_at(law.last_law(process, at_half.thresholds), 0.5))
    assert conversions.epsilon_from_mu(mu, DELTA) / upper == pytest.approx(gaussian, abs=0.02)
    assert at_half.epsilon / upper == pytest.approx(half, abs=0.02)
    assert law.best_constant(process, DELTA).epsilon / upper == pytest.approx(best, abs=0.02)
    assert law.optimal(process, DELTA).epsilon / upper == pytest.approx(optimal, abs=0.005)


@pytest.mark.parametrize(("sigma", "size"), CELLS)
def test_a_grid_twice_as_fine_moves_epsilon_by_less_than_a_thousandth(sigma, size):
    process = Process(sigma, size, 25)
    thresholds = law.constant(process, 0.5)
    pairs = [law.last_law(process, thresholds, per_deviation) for per_deviation in (8, 16)]
    assert len(pairs[1].points) > 1.9 * len(pairs[0].points)
    coarse, fine = (densities.epsilon_at(pair, DELTA) for pair in pairs)
    assert coarse == pytest.approx(fine, rel=1e-3)
    assert all(pair.error < 1e-13 for pair in pairs)


@pytest.mark.parametrize(("sigma", "size", "delta"), [(0.3, 1, 1e-9), (1.0, 4, 1e-7), (100.0, 7, 1e-5)])
def test_searched_adversaries_on_a_grid_twice_as_fine(monkeypatch, sigma, size, delta):
    process = Process(sigma, size, 12)
    coarse = [law.best_constant(process, delta), law.optimal(process, delta)]
    monkeypatch.setattr(law, "_PER_DEVIATION", 16)
    monkeypatch.setattr(law, "_PER_SIGMA", 64)
    law._stepper.cache_clear()
    fine = [law.best_constant(process, delta), law.optimal(process, delta)]
    for one, two in zip(coarse, fine, strict=True):
        assert one.epsilon == pytest.approx(two.epsilon, rel=1e-3)


@pytest.mark.parametrize("steps", [1, 2, 10, 100])
@pytest.mark.parametrize(("sigma", "size"), [(1.0, 1), (4.0, 2), (0.5, 2)])
def test_a_constant_gradient_decays_as_example_1_says(sigma, size, steps):
    process = Process(sigma, size, steps)
    pair = law.last_law(process, np.full(steps - 1, -np.inf))
    mu = 1 / np.sqrt(sigma**2 * (1 + (steps - 1) / size**2))  # O(1 / sqrt(T))
    expected = conversions.epsilon_from_mu(mu, DELTA)
    assert densities.epsilon_at(pair, DELTA) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(("sigma", "size"), [(1.0, 9), (0.5, 5), (2.0, 20)])
@pytest.mark.parametrize("threshold", [0.5, 2.0])
def test_the_closed_form_agrees_with_the_quadrature(monkeypatch, sigma, size, threshold):
    process = Process(sigma, size, 6)
    thresholds = law.constant(process, threshold)
    closed = law.last_law(process, thresholds)
    monkeypatch.setattr(law, "_SEPARATED", np.inf)
    quadrature = law.last_law(process, thresholds)
    assert len(closed.points) != len(quadrature.points)
    for delta in (1e-2, 1e-5, 1e-9):
        expected = densities.epsilon_at(quadrature, delta)
        assert densities.epsilon_at(closed, delta) == pytest.approx(expected, rel=1e-3)


def slow_delta(process, epsilon, moves, points):
    """The hockey-stick divergence of any landscape moves[t](x) in [-1, 1], by dense midpoint sums."""
    spacing = points[1] - points[0]
    p, q = normal(points, process.noise_multiplier), normal(points - 1, process.noise_multiplier)
    for move in moves:
        shift = points[:, None] - points[None, :] - move[None, :]
        kernel = normal(shift, process.step_deviation) * spacing
        p, q = kernel @ p, kernel @ q
    return float(np.sum(np.maximum(q - np.exp(epsilon) * p, 0)) * spacing)


def grid_of(process, count=800):
    reach = process.steps + 8 * process.noise_multiplier * np.sqrt(1 + process.steps / process.batch_size**2)
    return np.linspace(-reach, reach + 1, count)


@pytest.mark.parametrize("process", [Process(1.0, 1, 4), Process(3.0, 2, 6), Process(0.6, 1, 3)])
def test_an_independent_computation_agrees(process):
    points = grid_of(process, 3000)
    found = law.optimal(process, 1e-4)
    moves = [np.where(points > h, 1.0, -1.0) for h in found.thresholds]
    assert slow_delta(process, found.epsilon, moves, points) == pytest.approx(1e-4, rel=0.03)
    half = law.half(process, 1e-4)
    moves = [np.where(points > 0.5, 1.0, -1.0)] * (process.steps - 1)
    assert slow_delta(process, half.epsilon, moves, points) == pytest.approx(1e-4, rel=0.03)


@pytest.mark.parametrize("process", [Process(1.0, 1, 4), Process(3.0, 2, 5)])
def test_no_random_landscape_beats_the_optimal_one(process):
    found, points = law.optimal(process, 1e-3), grid_of(process)
    best = [np.where(points > h, 1.0, -1.0) for h in found.thresholds]
    limit = slow_delta(process, found.epsilon, best, points)
    rng = np.random.default_rng(0)
    for trial in range(60):
        if trial % 3 == 0:  # anything at all
            moves = [rng.uniform(-1, 1, len(points)) for _ in best]
        elif trial % 3 == 1:  # other thresholds
            moves = [np.where(points > h + rng.normal(), 1.0, -1.0) for h in found.thresholds]
        else:  # the optimal one, changed on an interval
            moves = [np.where(np.abs(points - rng.normal(0, 3)) < 0.5, rng.uniform(-1, 1), m) for m in best]
        assert slow_delta(process, found.epsilon, moves, points) <= limit * (1 + 1e-3)


@pytest.mark.parametrize("process", [Process(1.0, 1, 4), Process(2.0, 2, 4)])
def test_gradient_ascent_over_landscapes_ends_at_the_optimal_one(process):
    """s = tanh(w) is optimised freely at every point and step, from random starts."""
    import jax
    import jax.numpy as jnp

    found, points = law.optimal(process, 1e-3), grid_of(process, 300)
    spacing = points[1] - points[0]
    starts = jnp.stack([normal(points - m, process.noise_multiplier) for m in (0, 1)], 1)

    def delta(weights):
        pair = starts
        for weight in jnp.tanh(weights):
            shift = points[:, None] - points[None, :] - weight[None, :]
            pair = jnp.exp(-0.5 * (shift / process.step_deviation) ** 2) @ pair
            pair = pair * spacing / (process.step_deviation * np.sqrt(2 * np.pi))
        return jnp.sum(jnp.maximum(pair[:, 1] - jnp.exp(found.epsilon) * pair[:, 0], 0)) * spacing

    ascend = jax.jit(lambda w: w + 3 * jnp.sign(jax.grad(delta)(w)) * 0.05)
    best = jnp.stack([jnp.where(points > h, 20.0, -20.0) for h in found.thresholds])
    limit, reached = float(delta(best)), []
    for seed in range(3):
        weights = 0.1 * jax.random.normal(jax.random.key(seed), best.shape)
        for _ in range(150):
            weights = ascend(weights)
        reached.append(float(delta(weights)))
    assert max(reached) <= limit * 1.01
    assert max(reached) >= limit * 0.97


@pytest.mark.parametrize("process", [Process(2.0, 1, 10), Process(4.0, 2, 25), Process(8.0, 16, 25)])
def test_adversaries_are_ordered_and_below_the_upper_bound(process):
    half, best, optimal = (
        find(process, DELTA).epsilon for find in (law.half, law.best_constant, law.optimal)
    )
    upper = law.upper_bound(process, DELTA)
    assert half <= best * (1 + 1e-6) and best <= optimal * (1 + 1e-4) and optimal <= upper * (1 + 1e-6)


def test_optimal_thresholds_are_where_the_likelihood_ratio_crosses():
    process = Process(2.0, 2, 8)
    found = law.optimal(process, DELTA)
    for pair, threshold in zip(law.laws(process, found.thresholds), found.thresholds, strict=False):
        ratio = np.log(pair.q[pair.p > 1e-290]) - np.log(pair.p[pair.p > 1e-290])
        assert np.all(np.diff(ratio) > -1e-6)
        at = np.interp(threshold, pair.points[pair.p > 1e-290], ratio)
        assert at == pytest.approx(found.epsilon, rel=1e-3)


def test_the_gaussian_conversion_claims_more_than_is_lost():
    process = Process(4.0, 1, 25)
    pair = law.last_law(process, law.constant(process, 0.5))
    claimed = conversions.epsilon_from_mu(float(densities.mu_at(pair, 0.5)), DELTA)
    assert claimed > 1.9 * densities.epsilon_at(pair, DELTA)


@pytest.mark.parametrize(
    ("process", "word"),
    [
        (Process(0.0, 1, 2), "sigma is 0"),
        (Process(np.nan, 1, 2), "sigma is nan"),
        (Process(1.0, 0, 2), "batch size is 0"),
        (Process(1.0, 1, 0), "steps is 0"),
        (Process(0.3, 2, 10**7), "fewer steps"),
    ],
)
def test_out_of_range_is_refused(process, word):
    with pytest.raises(InputError, match=word):
        law.half(process, DELTA)


@pytest.mark.parametrize(
    "process",
    [Process(0.3, 4096, 1000), Process(100.0, 4096, 25), Process(100.0, 1, 25), Process(0.3, 1, 25)],
)
@pytest.mark.parametrize("delta", [1e-5, 1e-9])
def test_extremes_work(process, delta):
    upper = law.upper_bound(process, delta)
    optimal = law.optimal(process, delta).epsilon
    assert 0 < law.half(process, delta).epsilon <= upper * (1 + 1e-6)
    assert 0 < optimal <= upper * (1 + 1e-6)


@pytest.mark.slow
def test_a_thousand_steps_work():
    half = law.half(Process(2.0, 8, 1000), DELTA).epsilon
    assert 0 < half < law.half(Process(2.0, 8, 100), DELTA).epsilon


@pytest.fixture(scope="module")
def simulated():
    """theta (cells, T, runs) of the whole heat map at h = C / 2."""
    import jax
    import jax.numpy as jnp

    from audit.landscape import simulate

    keys = jax.random.split(jax.random.key(0), len(CELLS))
    sigmas, sizes = (jnp.array(column, jnp.float32) for column in zip(*CELLS, strict=True))
    run = simulate.compile_cells(5000)
    return np.asarray(run(keys, sigmas, sizes, jnp.full((len(CELLS), 24), 0.5)))


@pytest.mark.parametrize("index", range(len(CELLS)))
def test_the_simulation_agrees_within_its_sampling_error(simulated, index):
    process = Process(*CELLS[index], 25)
    laws = law.laws(process, law.constant(process, 0.5))
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
    pair = law.laws(process, law.constant(process, 0.5))[0]
    theta = simulated[CELLS.index((4.0, 1)), 0][::2]
    rates = densities.error_rates(pair, np.array([4.0])).false_positive
    seen = (theta > 4.0).mean()
    assert abs(seen - rates[0]) > 3 * np.sqrt(rates[0] * (1 - rates[0]) / len(theta))
    assert seen == pytest.approx(special.ndtr(-1.0), abs=0.03)
