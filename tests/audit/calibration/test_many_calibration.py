"""Tests calibration with many canaries: draws, true parameters and coverage."""

import numpy as np
import pytest

from audit.calibration.calibration import KnownMechanism, audit_once, calibrate, draw
from audit.laws import conversions
from audit.methods.lifted import LIFTED_GAUSSIAN, METHODS
from tests.cases import mostly_slow
from tests.known_mechanisms import COINS, SETS, find_tied_mu

SETTING = KnownMechanism(COINS["independent"], 1.0, 40, 12, 1e-5, 0.95, 0, canaries=6)
DESIGNS = pytest.mark.parametrize("laws", [COINS, SETS], ids=["coins", "sets"])
FINITE = [name for name in METHODS if "wilson" not in name]


@pytest.mark.parametrize(
    ("tie", "between"), [("independent", 0.0), ("shifted", 0.5), ("equal", 1.0)]
)
@DESIGNS
def test_canaries_of_a_run_are_tied_as_the_law_says(tie, between, laws):
    design = draw(SETTING._replace(law=laws[tie], runs=20_000, mu=0.0), 0)
    noise = design.scores if laws is COINS else design.fresh
    assert noise.std(0) == pytest.approx(np.ones(6), abs=0.03)
    assert np.corrcoef(noise.T)[np.triu_indices(6, 1)] == pytest.approx(
        np.full(15, between), abs=0.03
    )


def test_the_truth_is_that_of_the_worlds_and_less_where_runs_fail():
    epsilon = SETTING.law.truth(SETTING)
    mu = find_tied_mu("independent", SETTING)
    assert mu == pytest.approx(1.0, abs=1e-6)
    assert epsilon == pytest.approx(conversions.epsilon_from_mu(1.0, 1e-5), rel=0.03)
    assert COINS["failing"].truth(SETTING) < epsilon
    assert find_tied_mu("failing", SETTING) < mu


@pytest.mark.parametrize("canaries", mostly_slow([6, 1, 2], quick=2))
def test_every_usable_method_has_a_row(canaries):
    rows = calibrate(SETTING._replace(audits=1, canaries=canaries))
    assert {row.method for row in rows} == {
        name for name, one in METHODS.items() if one.canaries <= canaries
    }


@pytest.mark.slow
@DESIGNS
@pytest.mark.parametrize("tie", COINS)
@pytest.mark.parametrize("mu", [0.0, 2.0])
def test_finite_sample_methods_cover_however_canaries_are_tied(tie, laws, mu, assert_covers):
    setting = SETTING._replace(mu=mu, runs=20, canaries=8, law=laws[tie])
    truths = dict.fromkeys(FINITE, setting.law.truth(setting))
    # This method bounds mu.
    truths[LIFTED_GAUSSIAN] = conversions.epsilon_from_mu(find_tied_mu(tie, setting), setting.delta)

    def draw(first, audits):
        exceeding = dict.fromkeys(FINITE, 0)
        for index in range(audits):
            for value in audit_once(setting._replace(seed=first), index):
                if value.method in FINITE:
                    exceeding[value.method] += value.epsilon > truths[value.method] + 1e-6
        return exceeding

    assert_covers(draw, 100, error=1e-4)
