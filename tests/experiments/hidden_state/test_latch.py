"""The latch: the last iterate of a shuffled training run shows its largest sum."""

import numpy as np
import pytest

from audit.claims.shuffling import compute_shuffled_epsilon
from experiments.hidden_state import latch
from experiments.hidden_state.latch import Latch


def test_the_closed_form_is_that_of_the_largest_sum():
    rates = latch.compute_rates(Latch(0.7, 500, 1, 2.84))
    assert rates.true_positive == pytest.approx(0.1260, abs=1e-4)
    assert rates.false_positive == pytest.approx(0.0166, abs=1e-4)


@pytest.mark.parametrize("given", [Latch(0.7, 50, 1, 2.2), Latch(1.0, 10, 3, 3.0)])
def test_simulated_last_iterates_exceed_the_threshold_as_often(given):
    runs = 40_000
    simulated = latch.simulate_rates(given, runs, seed=0)
    for rate, exact in zip(simulated, latch.compute_rates(given), strict=True):
        assert rate == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / (runs / 2)))


def test_a_latched_iterate_stays_beyond_the_threshold():
    given = Latch(0.7, 30, 2, 1.0)
    thetas = latch.simulate(given, True, 4000, np.random.default_rng(0))
    latched = thetas > given.threshold
    assert latched.mean() > 0.5
    # One step beyond it at least, but for those that latched in the last step.
    assert (thetas[latched] > 10 * given.threshold).mean() > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("training", latch.TRAININGS)
def test_it_leaks_more_than_poisson_claims_and_at_most_what_all_models_do(training):
    row = latch.make_row(training, 1e-5, 0, runs=20_000)
    assert row.epsilon > 2 * row.poisson
    assert row.epsilon <= 1.01 * compute_shuffled_epsilon(*training, 1e-5)
    for rate, exact in zip(row.simulated, row.exact, strict=True):
        assert rate == pytest.approx(exact, abs=5 * np.sqrt(exact / 10_000))


def test_what_leaks_at_least_is_rounded_down_and_what_accounting_claims_up():
    given = Latch(0.7, 500, 1, 2.84)
    rates = latch.compute_rates(given)
    row = latch.LatchRow(given, rates, rates, epsilon=6.5883, poisson=0.9811)
    assert latch.make_table([row], 1e-5).text().split()[-2:] == ["6.58", "0.99"]
