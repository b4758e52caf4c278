"""Crafted losses: the convex landscape attains its bound, and the latch shows the largest sum."""

import numpy as np
import pytest

from audit.claims.brackets import compute_shuffled_epsilon
from audit.claims.hidden_state import hidden_state_bound
from experiments.hidden_state import crafted
from experiments.hidden_state.crafted import HEIGHT_IN, HEIGHT_OUT, exact_mu

PUSH = 40.0  # of a latched theta in a step, in standard deviations of the noise


def show_last_two(table, row):
    """Returns a row's last two cells as text."""
    return [column.show(column.value(row)) for column in table.columns[-2:]]


@pytest.mark.parametrize("lipschitz", [1.0, 0.99])
@pytest.mark.parametrize("insert", ["first", "last"])
@pytest.mark.parametrize("k", [1, 2, 5, 10, 25])
def test_the_convex_landscape_attains_the_bound(k, insert, lipschitz):
    row = crafted.make_convex_row(k, insert, lipschitz, 1e-5)
    assert row["mu_exact"] == pytest.approx(row["mu_bound"], rel=1e-9)
    assert row["mu_same_slopes"] <= row["mu_bound"] * (1 + 1e-12)
    if insert == "first":
        assert row["mu_same_slopes"] == pytest.approx(row["mu_bound"], rel=1e-9)


def test_simulated_last_iterates_have_the_exact_mu():
    rng = np.random.default_rng(1)
    shifts = rng.integers(0, 2, 30) * 1.0
    noise = rng.uniform(1, 2, 30)
    slopes = hidden_state_bound(shifts, 0.9, noise, 1e-5).worst_slopes
    draws = rng.normal(size=(100_000, 30))
    theta = np.zeros((2, len(draws)))
    for shift, slope, deviation, z in zip(shifts, slopes, noise, draws.T, strict=True):
        theta = slope * theta + deviation * z + np.array([[0.0], [shift]])
    mu = (theta[1] - theta[0]).mean() / theta[0].std()
    assert exact_mu(shifts, slopes, noise) == pytest.approx(mu, rel=0.01)


def simulate_latch(latch, height, runs):
    """Returns the last iterates of runs. `latch` has sigma, batches, epochs and the threshold."""
    sigma, batches, epochs, threshold = latch
    rng = np.random.default_rng(0)
    theta = np.zeros(runs)
    for _ in range(epochs):
        places = rng.integers(0, batches, runs)  # the batch with the target, in each run
        for step in range(batches):
            others = np.where(theta > threshold, PUSH * sigma, -theta)
            theta += others + height * (places == step) + sigma * rng.standard_normal(runs)
    return theta


def test_the_closed_form_is_that_of_the_largest_sum():
    rates = [crafted.compute_latch_rate(0.7, 500, 1, 2.84, height) for height in (2.0, 1.0)]
    assert rates == pytest.approx([0.1260, 0.0166], abs=1e-4)


@pytest.mark.parametrize("latch", [(0.7, 50, 1, 2.2), (1.0, 10, 3, 3.0)])
@pytest.mark.parametrize("height", [HEIGHT_IN, HEIGHT_OUT])
def test_simulated_last_iterates_exceed_the_threshold_as_often_and_stay_beyond(latch, height):
    runs = 20_000
    thetas = simulate_latch(latch, height, runs)
    latched = thetas > latch[-1]
    exact = crafted.compute_latch_rate(*latch, height)
    assert latched.mean() == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / runs))
    # One step beyond it at least, but for those that latched in the last step.
    assert (thetas[latched] > 10 * latch[-1]).mean() > 0.85


@pytest.mark.slow
def test_a_latch_leaks_more_than_poisson_claims_and_at_most_what_all_models_do():
    table = crafted.make_latch_table(1e-5)
    for training, row in zip(crafted.TRAININGS, table.rows, strict=True):
        cells = show_last_two(table, row)
        assert row["epsilon"] > 2 * row["poisson"]
        assert row["epsilon"] <= 1.01 * compute_shuffled_epsilon(*training, 1e-5)
        assert float(cells[0]) <= row["epsilon"] and row["poisson"] <= float(cells[1])
