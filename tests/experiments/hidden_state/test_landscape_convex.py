"""The convex landscape: it leaks what the accountant allows, exactly and when it is audited."""

import numpy as np
import pytest

from audit.claims.hidden_state import hidden_state_bound
from experiments.hidden_state import convex_landscape as convex
from experiments.hidden_state.convex_landscape import ConvexLandscape, ConvexSchedule
from experiments.hidden_state.landscape import Simulation
from experiments.sweeps import normal_scores


@pytest.mark.parametrize("schedule", convex.schedules(), ids=str)
def test_it_attains_the_bound(schedule):
    landscape = schedule.landscape()
    bound = hidden_state_bound(landscape.shifts, schedule.lipschitz, convex.NOISE_MULTIPLIER, 1e-5)
    assert convex.exact_mu(landscape) == pytest.approx(bound.mu, rel=1e-9)
    assert (landscape.slopes >= 0).all() and (landscape.slopes <= schedule.lipschitz).all()
    assert schedule.constant_direction() <= bound.mu * (1 + 1e-12)
    if schedule.insert == "first":
        assert schedule.constant_direction() == pytest.approx(bound.mu, rel=1e-9)


def test_any_schedule_is_attained():
    rng = np.random.default_rng(0)
    for _ in range(20):
        shifts = rng.integers(0, 2, 30) * 1.0
        constants = rng.uniform(0.5, 1, 30)
        noise = rng.uniform(1, 2, 30)
        landscape = convex.make_landscape(shifts, constants, noise)
        bound = hidden_state_bound(shifts, constants, noise, 1e-5)
        assert convex.exact_mu(landscape) == pytest.approx(bound.mu, rel=1e-9)


def test_simulated_scores_have_the_exact_mu():
    present = np.arange(20_000) % 2 == 1
    landscape = ConvexSchedule(5, "last", 0.99).landscape()
    landscape = ConvexLandscape(*(part[-200:] for part in landscape))
    scores = convex.simulate(landscape, present, np.random.default_rng(1))
    low, high = normal_scores.mu_interval(scores[present], scores[~present], 0.999)
    assert low < convex.exact_mu(landscape) < high
    assert high - low < 0.15


def test_the_audit_of_a_schedule_lies_below_its_bound_and_near_it():
    row = convex.audited(ConvexSchedule(2, "last", 0.99), Simulation(2000, 0, 0.95), 1e-5)
    bound = row.bound.epsilon
    assert 0.85 * bound < row.conclusion.gaussian.epsilon < bound
    assert 0 < row.conclusion.assumption_free.epsilon < bound
    text = convex.table([row], 1e-5).text()
    assert max(map(len, text.splitlines())) <= 80 and "1.7606" in text
    row = row._replace(bound=row.bound._replace(mu=1.23451, epsilon=5.67891))
    cells = convex.table([row], 1e-5).text().split()
    assert "1.2346" in cells and "5.6790" in cells  # rounded up
