"""The crafted landscape's adversaries: rates, an independent computation, a search for better ones."""

import numpy as np
import pytest
from scipy import stats

from audit.laws import conversions, densities
from experiments.hidden_state import landscape_law as law
from experiments.hidden_state.landscape_law import Process, upper_bound
from tests.cases import mostly_slow

DELTA = 1e-5


RATES = [(1, 0.46, 0.23, 0.29, 0.455), (2, 0.86, 0.38, 0.68, 0.855), (8, 1.00, 0.84, 1.00, 1.000)]


@pytest.mark.parametrize(("size", "gaussian", "half", "best", "most"), mostly_slow(RATES))
def test_rates_at_sigma_4_and_25_steps(size, gaussian, half, best, most):
    process = Process(4.0, size, 25)
    upper = upper_bound(process, DELTA)
    at_half = law.half(process, DELTA)
    mu = float(densities.mu_at(law.last_law(process, at_half.values), 0.5))
    assert conversions.epsilon_from_mu(mu, DELTA) / upper == pytest.approx(gaussian, abs=0.02)
    assert at_half.epsilon / upper == pytest.approx(half, abs=0.02)
    assert law.best_constant(process, DELTA).epsilon / upper == pytest.approx(best, abs=0.02)
    assert law.optimal(process, DELTA).epsilon / upper == pytest.approx(most, abs=0.005)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sigma", "size", "delta"), [(0.3, 1, 1e-9), (1.0, 4, 1e-7), (100.0, 7, 1e-5)]
)
@pytest.mark.parametrize("find", [law.half, law.best_constant, law.optimal])
def test_a_grid_twice_as_fine_finds_the_same_epsilon(find, sigma, size, delta):
    process = Process(sigma, size, 12)
    coarse = find(process, delta)
    fine = find(process, delta, 2 * law.PER_DEVIATION)
    assert coarse.epsilon != fine.epsilon and coarse.epsilon == pytest.approx(
        fine.epsilon, rel=1e-3
    )


def slow_delta(process, epsilon, moves, points):
    """Returns the hockey-stick divergence of any landscape moves[t](x) in [-1, 1], by dense midpoint sums."""
    spacing = points[1] - points[0]
    p = stats.norm.pdf(points, 0, process.noise_multiplier)
    q = stats.norm.pdf(points, 1, process.noise_multiplier)
    for move in moves:
        shift = points[:, None] - points[None, :] - move[None, :]
        kernel = stats.norm.pdf(shift, 0, process.step_deviation) * spacing
        p = kernel @ p
        q = kernel @ q
    return float(np.sum(np.maximum(q - np.exp(epsilon) * p, 0)) * spacing)


def make_grid(process, count=800):
    reach = process.steps + 8 * process.noise_multiplier * np.sqrt(
        1 + process.steps / process.batch_size**2
    )
    return np.linspace(-reach, reach + 1, count)


@pytest.mark.slow
@pytest.mark.parametrize("process", [Process(1.0, 1, 4), Process(3.0, 2, 6), Process(0.6, 1, 3)])
def test_an_independent_computation_agrees(process):
    points = make_grid(process, 3000)
    best = law.optimal(process, 1e-4)
    moves = [np.where(points > h, 1.0, -1.0) for h in best.values]
    assert slow_delta(process, best.epsilon, moves, points) == pytest.approx(1e-4, rel=0.03)
    half = law.half(process, 1e-4)
    moves = [np.where(points > 0.5, 1.0, -1.0)] * (process.steps - 1)
    assert slow_delta(process, half.epsilon, moves, points) == pytest.approx(1e-4, rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("process", [Process(1.0, 1, 4), Process(3.0, 2, 5)])
def test_no_random_landscape_beats_the_optimal_one(process):
    adversary = law.optimal(process, 1e-3)
    points = make_grid(process)
    best = [np.where(points > h, 1.0, -1.0) for h in adversary.values]
    limit = slow_delta(process, adversary.epsilon, best, points)
    rng = np.random.default_rng(0)
    for trial in range(60):
        if trial % 3 == 0:  # anything at all
            moves = [rng.uniform(-1, 1, len(points)) for _ in best]
        elif trial % 3 == 1:  # other thresholds
            moves = [np.where(points > h + rng.normal(), 1.0, -1.0) for h in adversary.values]
        else:  # the optimal one, changed on an interval
            moves = [
                np.where(np.abs(points - rng.normal(0, 3)) < 0.5, rng.uniform(-1, 1), m)
                for m in best
            ]
        assert slow_delta(process, adversary.epsilon, moves, points) <= limit * (1 + 1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("process", [Process(1.0, 1, 4), Process(2.0, 2, 4)])
def test_gradient_ascent_over_landscapes_ends_at_the_optimal_one(process):
    """s = tanh(w) is optimised freely at every point and step, from random starts."""
    import jax
    import jax.numpy as jnp

    adversary = law.optimal(process, 1e-3)
    points = make_grid(process, 300)
    spacing = points[1] - points[0]
    starts = jnp.stack([stats.norm.pdf(points, m, process.noise_multiplier) for m in (0, 1)], 1)

    def delta(weights):
        pair = starts
        for weight in jnp.tanh(weights):
            shift = points[:, None] - points[None, :] - weight[None, :]
            pair = jnp.exp(-0.5 * (shift / process.step_deviation) ** 2) @ pair
            pair = pair * spacing / (process.step_deviation * np.sqrt(2 * np.pi))
        return (
            jnp.sum(jnp.maximum(pair[:, 1] - jnp.exp(adversary.epsilon) * pair[:, 0], 0)) * spacing
        )

    ascend = jax.jit(lambda w: w + 3 * jnp.sign(jax.grad(delta)(w)) * 0.05)
    best = jnp.stack([jnp.where(points > h, 20.0, -20.0) for h in adversary.values])
    limit = float(delta(best))
    reached = []
    for seed in range(3):
        weights = 0.1 * jax.random.normal(jax.random.key(seed), best.shape)
        for _ in range(150):
            weights = ascend(weights)
        reached.append(float(delta(weights)))
    assert max(reached) <= limit * 1.01 and max(reached) >= limit * 0.97


@pytest.mark.parametrize(
    "process", [Process(2.0, 1, 10), Process(4.0, 2, 25), Process(8.0, 16, 25)]
)
def test_adversaries_are_ordered_and_below_the_upper_bound(process):
    finders = (law.half, law.best_constant, law.optimal)
    half, best, most = (find(process, DELTA).epsilon for find in finders)
    upper = upper_bound(process, DELTA)
    assert half <= best * (1 + 1e-6) and best <= most * (1 + 1e-4) and most <= upper * (1 + 1e-6)


def test_optimal_thresholds_are_where_the_likelihood_ratio_crosses():
    process = Process(2.0, 2, 8)
    best = law.optimal(process, DELTA)
    for pair, threshold in zip(law.laws(process, best.values), best.values, strict=False):
        ratio = np.log(pair.q[pair.p > 1e-290]) - np.log(pair.p[pair.p > 1e-290])
        assert np.all(np.diff(ratio) > -1e-6)
        at = np.interp(threshold, pair.points[pair.p > 1e-290], ratio)
        assert at == pytest.approx(best.epsilon, rel=1e-3)


EXTREMES = [Process(100.0, 512, 25), Process(100.0, 1, 25), Process(0.3, 1, 25)]


@pytest.mark.slow
@pytest.mark.parametrize("process", EXTREMES)
@pytest.mark.parametrize("delta", [1e-5, 1e-9])
def test_extremes_work(process, delta):
    upper = upper_bound(process, delta)
    for find in (law.half, law.optimal):
        assert 0 < find(process, delta).epsilon <= upper * (1 + 1e-6)


@pytest.mark.slow
def test_a_thousand_steps_work():
    half = law.half(Process(2.0, 8, 1000), DELTA).epsilon
    assert 0 < half < law.half(Process(2.0, 8, 100), DELTA).epsilon
