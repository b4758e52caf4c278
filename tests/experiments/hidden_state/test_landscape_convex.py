"""The convex landscape leaks exactly what the accountant allows."""

import numpy as np
import pytest

from audit.claims.hidden_state import hidden_state_bound
from experiments.hidden_state import convex_landscape as convex


@pytest.mark.parametrize("schedule", convex.SCHEDULES, ids=str)
def test_it_attains_the_bound(schedule):
    row = convex.make_row(*schedule, 1e-5)
    assert row["mu_exact"] == pytest.approx(row["mu_bound"], rel=1e-9)
    assert row["mu_constant_direction"] <= row["mu_bound"] * (1 + 1e-12)
    if row["insert"] == "first":
        assert row["mu_constant_direction"] == pytest.approx(row["mu_bound"], rel=1e-9)


def test_any_schedule_is_attained_by_slopes_of_a_convex_loss():
    rng = np.random.default_rng(0)
    for _ in range(20):
        shifts = rng.integers(0, 2, 30) * 1.0
        constants = rng.uniform(0.5, 1, 30)
        noise = rng.uniform(1, 2, 30)
        bound = hidden_state_bound(shifts, constants, noise, 1e-5)
        slopes = bound.attained_by
        assert convex.exact_mu(shifts, slopes, noise) == pytest.approx(bound.mu, rel=1e-9)
        assert (slopes >= 0).all() and (slopes <= constants).all()


def test_simulated_last_iterates_have_the_exact_mu():
    rng = np.random.default_rng(1)
    shifts = rng.integers(0, 2, 30) * 1.0
    noise = rng.uniform(1, 2, 30)
    slopes = hidden_state_bound(shifts, 0.9, noise, 1e-5).attained_by
    draws = rng.normal(size=(100_000, 30))
    theta = np.zeros((2, len(draws)))
    for shift, slope, deviation, z in zip(shifts, slopes, noise, draws.T, strict=True):
        theta = slope * theta + deviation * z + np.array([[0.0], [shift]])
    mu = (theta[1] - theta[0]).mean() / theta[0].std()
    assert convex.exact_mu(shifts, slopes, noise) == pytest.approx(mu, rel=0.01)


def test_bounds_are_rounded_up():
    row = convex.make_row(2, "last", 0.99, 1e-5) | {"mu_bound": 1.23451, "epsilon_bound": 5.67891}
    cells = convex.make_table([row], 1e-5).text().split()
    assert "1.7606" in cells and "1.2346" in cells and "5.6790" in cells
