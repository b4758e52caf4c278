"""The latch: the last iterate of a shuffled training run shows its largest sum."""

import numpy as np
import pytest
from experiments.hidden_state.latch import HEIGHT_IN, HEIGHT_OUT, Latch

from audit.claims.brackets import compute_shuffled_epsilon
from experiments.hidden_state import latch

PUSH = 40.0  # how far the others push theta on in a step, in standard deviations of the noise


def simulate(given, height, runs, rng):
    """Returns the last iterates of simulated runs."""
    sigma, batches, epochs, threshold = given
    theta = np.zeros(runs)
    for _ in range(epochs):
        places = rng.integers(0, batches, runs)  # each run's batch that has the target
        for step in range(batches):
            others = np.where(theta > threshold, PUSH * sigma, -theta)
            theta += others + height * (places == step) + sigma * rng.standard_normal(runs)
    return theta


def test_the_closed_form_is_that_of_the_largest_sum():
    given = Latch(0.7, 500, 1, 2.84)
    assert latch.compute_rate(given, HEIGHT_IN) == pytest.approx(0.1260, abs=1e-4)
    assert latch.compute_rate(given, HEIGHT_OUT) == pytest.approx(0.0166, abs=1e-4)


@pytest.mark.parametrize("given", [Latch(0.7, 50, 1, 2.2), Latch(1.0, 10, 3, 3.0)])
@pytest.mark.parametrize("height", [HEIGHT_IN, HEIGHT_OUT])
def test_simulated_last_iterates_exceed_the_threshold_as_often(given, height):
    runs = 20_000
    latched = simulate(given, height, runs, np.random.default_rng(0)) > given.threshold
    exact = latch.compute_rate(given, height)
    assert latched.mean() == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / runs))


def test_a_latched_iterate_stays_beyond_the_threshold():
    given = Latch(0.7, 30, 2, 1.0)
    thetas = simulate(given, HEIGHT_IN, 4000, np.random.default_rng(0))
    latched = thetas > given.threshold
    assert latched.mean() > 0.5
    # One step beyond it at least, but for those that latched in the last step.
    assert (thetas[latched] > 10 * given.threshold).mean() > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("training", latch.TRAININGS)
def test_it_leaks_more_than_poisson_claims_and_at_most_what_all_models_do(training):
    row = latch.make_row(training, 1e-5)
    assert row["epsilon"] > 2 * row["poisson"]
    assert row["epsilon"] <= 1.01 * compute_shuffled_epsilon(*training, 1e-5)


def test_what_leaks_at_least_is_rounded_down_and_what_accounting_claims_up():
    row = {"sigma": 0.7, "batches": 500, "epochs": 1, "epsilon": 6.5883, "poisson": 0.9811}
    assert latch.make_table([row], 1e-5).text().split()[-2:] == ["6.58", "0.99"]
