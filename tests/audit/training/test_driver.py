"""Rules that end training early: at an epsilon, at a multiple of the claim, or at its refutation."""

import numpy as np
import pytest

import audit
from audit.conclusions.concluded import conclude
from audit.evidence.canaries import Fresh
from audit.training import driver
from tests.cases import mostly_slow

DIMENSION = 10_000
CLAIM = audit.DpSgd(noise_multiplier=4, insertions=250)  # mu 3.953


def conclude_runs(mu, runs, claim):
    """Returns the conclusion from runs with 64 fresh directions each, in order."""
    scores = np.random.default_rng(0).normal(mu, 1.0, (runs, 64))
    cosines = scores / DIMENSION**0.5
    return conclude(Fresh(cosines, np.ones(cosines.shape, bool), DIMENSION), claim)


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule",
    mostly_slow([driver.until_multiple(0.9), driver.until_epsilon(12.0), driver.until_refuted]),
)
def test_runs_without_a_canary_in_are_counted_among_those_after_which_training_stops(rule):
    rng = np.random.default_rng(0)
    present = rng.random((100, 2)) < 0.5
    scores = rng.normal(size=(100, 2)) + 4.6 * present
    assert not present.any(axis=1).all()

    def conclude_first(runs):
        """Returns the conclusion from the first runs."""
        cosines = scores[:runs] / DIMENSION**0.5
        return conclude(Fresh(cosines, present[:runs], DIMENSION), CLAIM)

    enough = rule(conclude_first(100))
    assert 1 < enough < 100
    assert rule(conclude_first(enough)) == enough
    assert rule(conclude_first(enough - 1)) is None


def test_training_stops_at_the_run_that_proves_a_part_of_the_claimed_mu():
    concluded = conclude_runs(3.953, 20, CLAIM)
    enough = driver.until_multiple(0.9)(concluded)
    assert 1 < enough <= 20
    shorter = conclude_runs(3.953, enough, CLAIM).finding("exact_null_gdp")
    assert shorter.mu >= 0.89 * 3.953
    assert driver.until_multiple(1.1)(concluded) is None
    assert driver.until_multiple(0.9)(conclude_runs(3.953, 20, None)) is None


def test_training_stops_at_the_run_that_refutes_the_claim():
    assert 1 < driver.until_refuted(conclude_runs(4.6, 20, CLAIM)) < 20
    assert driver.until_refuted(conclude_runs(3.9, 20, CLAIM)) is None
    assert driver.until_refuted(conclude_runs(3.9, 20, None)) is None
