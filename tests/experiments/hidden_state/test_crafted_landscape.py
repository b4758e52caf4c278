"""The crafted landscape: its exact densities, its simulation, and a search for better adversaries.

Densities are compared with finer grids, a closed form and an independent computation.
"""

import numpy as np
import pytest
from scipy import special, stats

from audit.claims import accounting
from audit.errors import InputError
from audit.laws import conversions, densities
from experiments.hidden_state import landscape as law
from experiments.hidden_state.landscape import Process, upper_bound
from tests.cases import mostly_slow

DELTA = 1e-5


def exact(process, thresholds):
    return law.compute_epsilon(process, thresholds, DELTA)


CELLS = [(sigma, size) for sigma in (1.0, 4.0, 8.0) for size in (1, 2, 16)]


@pytest.mark.parametrize(("sigma", "size"), mostly_slow(CELLS, quick=2))
def test_a_grid_twice_as_fine_moves_epsilon_by_less_than_a_thousandth(sigma, size, monkeypatch):
    process = Process(sigma, size, 25)
    thresholds = law.constant(process, 0.5)
    pairs = []
    for per_deviation in (8, 16):
        monkeypatch.setattr(law, "PER_DEVIATION", per_deviation)
        pairs.append(law.compute_last_densities(process, thresholds))
    assert len(pairs[1].points) > 1.9 * len(pairs[0].points)
    coarse, fine = (densities.epsilon_at(pair, DELTA) for pair in pairs)
    assert coarse == pytest.approx(fine, rel=1e-3) and all(pair.error < 1e-13 for pair in pairs)


@pytest.mark.parametrize("steps", mostly_slow([1, 10, 2, 100], quick=2))
@pytest.mark.parametrize(("sigma", "size"), [(1.0, 1), (4.0, 2), (0.5, 2)])
def test_a_constant_gradient_decays_as_example_1_says(sigma, size, steps):
    pair = law.compute_last_densities(Process(sigma, size, steps), np.full(steps - 1, -np.inf))
    mu = 1 / np.sqrt(sigma**2 * (1 + (steps - 1) / size**2))  # O(1 / sqrt(T))
    expected = conversions.epsilon_from_mu(mu, DELTA)
    assert densities.epsilon_at(pair, DELTA) == pytest.approx(expected, rel=1e-3)


def test_the_conversion_claims_twice_as_much_and_a_grid_can_be_too_large():
    process = Process(4.0, 1, 25)
    pair = law.compute_last_densities(process, law.constant(process, 0.5))
    claimed = conversions.epsilon_from_mu(float(densities.mu_at(pair, 0.5)), DELTA)
    assert claimed > 1.9 * densities.epsilon_at(pair, DELTA)
    with pytest.raises(InputError, match=r"`steps=10000000`: .* use fewer steps"):
        law.compute_last_densities(Process(0.3, 2, 10**7), np.zeros(1))


@pytest.mark.parametrize("sigma", [0.5, 4.0, 8.0])
def test_the_upper_bound_is_that_of_a_single_release(sigma):
    expected = accounting.epsilon_upper_bound(sigma, 1, DELTA)
    assert upper_bound(Process(sigma, 16, 25), DELTA) == pytest.approx(expected, rel=1e-4)


RUNS = 5000


@pytest.fixture(scope="module")
def simulated():
    """Returns theta (cells, T, runs) of simulated runs with the threshold C / 2 at every step."""
    presence = np.arange(RUNS) % 2 == 1
    simulate = law.simulate
    return [list(simulate(Process(*cell, 25), law.HALF, presence, 0)) for cell in CELLS]


@pytest.mark.parametrize("index", range(len(CELLS)))
def test_the_simulation_agrees_within_its_sampling_error(simulated, index):
    process = Process(*CELLS[index], 25)
    laws = list(law.iterate_densities(process, law.constant(process, 0.5)))
    for step in (1, 2, 5, 25):
        theta = simulated[index][step - 1]
        thresholds = np.quantile(theta, [0.1, 0.5, 0.9])
        expected = densities.error_rates(laws[step - 1], thresholds)
        scores_out = theta[::2]
        scores_in = theta[1::2]
        positive_out = (scores_out[:, None] > thresholds).mean(0)
        negative_in = (scores_in[:, None] < thresholds).mean(0)
        for seen, rates in (
            (positive_out, expected.false_positive),
            (negative_in, expected.false_negative),
        ):
            deviation = np.sqrt(rates * (1 - rates) / len(scores_out))
            assert np.all(np.abs(seen - rates) < 5 * deviation + 1e-3), (step, seen, rates)


def test_a_wrong_sigma_is_seen_in_the_simulation(simulated):
    process = Process(4.4, 1, 1)  # the cell (4, 1), but with a sigma that is 10% larger
    pair = law.compute_last_densities(process, np.array([]))
    theta = simulated[CELLS.index((4.0, 1))][0][::2]
    rates = densities.error_rates(pair, np.array([4.0])).false_positive
    seen = (theta > 4.0).mean()
    assert abs(seen - rates[0]) > 3 * np.sqrt(rates[0] * (1 - rates[0]) / len(theta))
    assert seen == pytest.approx(special.ndtr(-1.0), abs=0.03)


def slow_delta(process, epsilon, moves, points):
    """Returns delta at epsilon by midpoint sums on a dense grid, for any moves (T - 1, points) in [-1, 1]."""
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


def move_at(points, thresholds):
    return [np.where(points > threshold, 1.0, -1.0) for threshold in thresholds]


@pytest.mark.slow
@pytest.mark.parametrize("process", [Process(1.0, 1, 4), Process(3.0, 2, 6), Process(0.6, 1, 3)])
def test_an_independent_computation_agrees(process):
    points = make_grid(process, 3000)
    for thresholds in (law.optimal(process, 1e-4), law.constant(process, law.HALF)):
        epsilon = law.compute_epsilon(process, thresholds, 1e-4)
        delta = slow_delta(process, epsilon, move_at(points, thresholds), points)
        assert delta == pytest.approx(1e-4, rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("process", [Process(1.0, 1, 4), Process(3.0, 2, 5)])
def test_no_random_landscape_beats_the_optimal_one(process):
    thresholds = law.optimal(process, 1e-3)
    epsilon = law.compute_epsilon(process, thresholds, 1e-3)
    points = make_grid(process)
    best = move_at(points, thresholds)
    limit = slow_delta(process, epsilon, best, points)
    rng = np.random.default_rng(0)
    for _ in range(20):
        anything = [rng.uniform(-1, 1, len(points)) for _ in best]
        other_thresholds = move_at(points, thresholds + rng.normal(size=len(best)))
        changed_on_an_interval = [
            np.where(np.abs(points - rng.normal(0, 3)) < 0.5, rng.uniform(-1, 1), moves)
            for moves in best
        ]
        for moves in (anything, other_thresholds, changed_on_an_interval):
            reached = slow_delta(process, epsilon, moves, points)
            assert reached <= limit * (1 + 1e-3)


@pytest.mark.parametrize(
    "process",
    mostly_slow([(Process(2.0, 1, 10),), (Process(4.0, 2, 25),), (Process(8.0, 16, 25),)]),
)
def test_adversaries_are_ordered_and_below_the_upper_bound(process):
    adversaries = [find(process, DELTA) for find in law.ADVERSARIES.values()]
    half, most = (exact(process, thresholds) for thresholds in adversaries)
    upper = upper_bound(process, DELTA)
    assert half <= most * (1 + 1e-4) and most <= upper * (1 + 1e-6)
    others = np.linspace(0.5, law.cross_at_first_step(process, upper), 5)
    assert all(exact(process, law.constant(process, h)) <= most * (1 + 1e-4) for h in others)


def test_optimal_thresholds_are_where_the_likelihood_ratio_crosses():
    process = Process(2.0, 2, 8)
    best = law.optimal(process, DELTA)
    epsilon = exact(process, best)
    for pair, threshold in zip(law.iterate_densities(process, best), best, strict=False):
        ratio = np.log(pair.q[pair.p > 1e-290]) - np.log(pair.p[pair.p > 1e-290])
        assert np.all(np.diff(ratio) > -1e-6)
        at = np.interp(threshold, pair.points[pair.p > 1e-290], ratio)
        assert at == pytest.approx(epsilon, rel=1e-3)
