"""Tests that audits of mechanisms with a known epsilon depend only on their arguments."""

import pytest

from audit.calibration import laws
from audit.calibration.calibration import KnownMechanism, audit_once, calibrate
from audit.laws import conversions
from tests.known_mechanisms import COINS, DIRECTIONS, ONE_RUN, SETS

LEVELS = {"delta": 1e-3, "confidence": 0.95, "seed": 0}
SIMULATIONS = {
    "one canary": KnownMechanism(laws.GAUSSIAN, 1.0, 120, 3, **LEVELS),
    "coins": KnownMechanism(COINS["failing"], 4.0, 40, 3, **LEVELS, canaries=8),
    "sets": KnownMechanism(SETS["equal"], 1.0, 20, 3, **LEVELS, canaries=4),
    "one run": KnownMechanism(ONE_RUN["overlapping"], 1.0, 1, 3, **LEVELS, canaries=60),
    "directions": KnownMechanism(
        DIRECTIONS["bound"], 2.0, 6, 3, **LEVELS, canaries=8, dimension=90
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", SIMULATIONS)
def test_an_audit_depends_on_its_seed_and_index_alone(kind):
    simulation = SIMULATIONS[kind]
    values = audit_once(simulation, 2)
    longer = simulation._replace(audits=9)
    assert audit_once(longer, 2) == values
    seeds = [simulation._replace(seed=seed) for seed in range(1, 6)]
    assert any(audit_once(other, 2) != values for other in seeds)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SIMULATIONS)
def test_processes_change_nothing_and_each_audit_is_counted(kind):
    audits_done = []
    rows = calibrate(SIMULATIONS[kind], on_audit_done=audits_done.append)
    assert audits_done == [1] * 3
    assert calibrate(SIMULATIONS[kind], processes=2) == rows


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-8, 1e-12])
def test_the_truth_of_independent_canaries_is_that_of_a_normal_law_however_small_delta_is(delta):
    simulation = KnownMechanism(COINS["independent"], 1.0, 20, 3, delta, 0.95, 0, canaries=4)
    truth = simulation.law.truth(simulation)
    assert truth == pytest.approx(conversions.epsilon_from_mu(1.0, delta), rel=1e-4)
