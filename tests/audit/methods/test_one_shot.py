"""Tests one-shot estimates against the public code, simulations and invariances."""

import numpy as np
import pytest

from audit.calibration.calibration import KnownMechanism, calibrate
from audit.evidence import given
from audit.evidence.one_run import Cosines
from audit.laws import conversions, cosine_law, gaussians
from audit.laws.gaussians import Gaussian
from audit.methods import one_shot
from audit.methods.estimate import Bound
from audit.methods.exact_null import EXACT_NULL
from audit.methods.one_run_bounds import ONE_RUN_GAUSSIAN, ONE_RUN_GUESSES
from audit.methods.one_shot import (
    FITTED,
    ONE_SHOT_JEFFREYS,
    PRIORS,
    in_sample,
)
from tests.cases import draw_null_cosines, draw_one_run
from tests.known_mechanisms import ONE_RUN as LAWS

STANDARD = Gaussian(0.0, 1.0)


def drawn(dimension, seed=0xBAD5EED, canaries=100):
    """Cosines one deviation above the null's mean."""
    return np.random.default_rng(seed).normal(dimension**-0.5, dimension**-0.5, canaries)


def test_the_public_codes_numbers():
    rng = np.random.default_rng(0xBAD5EED)
    seen, unseen = rng.normal(1, 1, 100), rng.normal(0, 1, 100)
    both = in_sample(Cosines(seen / 100, unseen / 100, 10_000), 0.01, 0.01, 0.5)
    assert both == pytest.approx(0.6839449, abs=1e-7)
    for dimension, expected in ((200, 1.394838), (2000, 1.3880321)):
        found = in_sample(Cosines(drawn(dimension), np.empty(0), dimension), 0.01, 0.01, 0.5)
        assert found == pytest.approx(expected, abs=1e-6)
    # Errata O6.
    apart = Cosines(np.linspace(0.5, 0.6, 1000), np.linspace(-0.6, -0.5, 1000), 10**6)
    assert in_sample(apart, 8.2e-7, 0.05, 0.5) == pytest.approx(6.254, abs=5e-4)
    assert in_sample(apart, 8.2e-7, 0.05, 1.0) == pytest.approx(5.809, abs=5e-4)


@pytest.mark.parametrize("unobserved", [0, 60])
def test_floors_are_those_of_cosines_without_a_leak(unobserved):
    rng, root, audits = np.random.default_rng(7), np.sqrt(10**6), 600
    seen = one_shot.fit(draw_null_cosines(rng, (audits, 40), 10**6), 10**6)
    null = STANDARD
    if unobserved:
        null = one_shot.fit(draw_null_cosines(rng, (audits, unobserved), 10**6), 10**6)
    assert np.mean(seen.deviation) == pytest.approx(1, abs=0.05) and root == 1000
    for name, method in FITTED.items():
        values = method(null, seen, 1e-5)
        floor = one_shot.noise_floor(name, 40, unobserved, 1e-5)
        assert floor.mean == pytest.approx(values.mean(), abs=5 * values.std() / np.sqrt(audits))
        assert np.mean(values > floor.quantile_95) == pytest.approx(0.05, abs=0.04)
        assert floor == one_shot.noise_floor(name, 40, unobserved, 1e-5)


def test_each_estimate_is_what_it_says_and_none_is_a_bound():
    """Equal variance is near the truth, fitted above it; standard errors are the spread over audits."""
    truth = conversions.epsilon_from_mu(2.0, 1e-5)
    fits = [one_shot.fit(draw_one_run(0.5, 400, seed=seed).observed, 10**6) for seed in range(60)]
    seen = Gaussian(*np.transpose(fits))
    fitted, equal = (compute(STANDARD, seen, 1e-5) for compute in FITTED.values())
    assert equal.mean() == pytest.approx(truth, abs=0.3) and fitted.mean() > truth + 0.4
    rows = one_shot.estimates(draw_one_run(0.5, 400), 1e-5, 0.95)
    assert [row.method for row in rows] == [*FITTED, *PRIORS]
    assert all(row.caveat and not isinstance(row, Bound) for row in rows)
    for row, values in zip(rows, (fitted, equal), strict=False):
        assert row.standard_error == pytest.approx(values.std(), rel=0.4)
        assert row.noise_floor.mean > 0


@pytest.mark.slow
def test_with_unobserved_canaries_units_do_not_matter():
    rng = np.random.default_rng(0)
    seen, unseen = rng.normal(0.3, 0.1, 200), rng.normal(0.1, 0.05, 100)
    scaled = (given.paired_cosines(seen / s, unseen / s, d).cosines for s, d in ((1, 9), (5, 400)))
    found = [one_shot.estimates(cosines, 1e-5, 0.95) for cosines in scaled]
    for one, other in zip(*found, strict=True):
        assert one.epsilon == pytest.approx(other.epsilon, rel=1e-6)
    exact = gaussians.epsilon(
        Gaussian(unseen.mean(), unseen.std()), Gaussian(seen.mean(), seen.std()), 1e-5
    )
    assert found[0][0].epsilon == pytest.approx(float(exact))


SETTING = KnownMechanism(LAWS["independent"], 1.0, 1, 4, 1e-3, 0.95, 0, canaries=100)


@pytest.mark.parametrize("name", LAWS)
def test_each_law_has_its_methods_and_truth(name):
    rows = calibrate(SETTING._replace(law=LAWS[name], audits=2))
    methods = {"leaking": [ONE_RUN_GUESSES], "cosines": [EXACT_NULL, ONE_SHOT_JEFFREYS]}
    assert [row.method for row in rows] == methods.get(name, [ONE_RUN_GUESSES, ONE_RUN_GAUSSIAN])
    assert rows[0].true_epsilon == pytest.approx(1.0 if name == "leaking" else 3.139, abs=1e-3)


@pytest.mark.slow
def test_jeffreys_value_exceeds_where_nothing_leaks():
    rows = calibrate(SETTING._replace(law=LAWS["cosines"], mu=0.0, audits=60))
    assert rows[0].exceeding <= 0.05 and rows[1].exceeding > 0.3


@pytest.mark.slow
@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("mu", [0.0, 0.3, 2.0])
def test_bounds_cover_however_canaries_are_tied(name, mu, assert_covers):
    def draw(first, audits):
        rows = calibrate(SETTING._replace(law=LAWS[name], mu=mu, audits=audits, seed=first))
        return {
            row.method: audits * row.exceeding for row in rows if row.method != ONE_SHOT_JEFFREYS
        }

    assert_covers(draw, 300, error=1e-4)


@pytest.mark.parametrize("sigma", [0.0, 0.1, 10.0])
def test_canaries_that_take_part_alike_spread_as_their_dimension_says(sigma):
    for seed, (canaries, d) in enumerate([(10, 20), (90, 100), (500, 10_000)] * 20):
        drawn = cosine_law.simulate(np.random.default_rng(seed), canaries, d, sigma)
        assert given.paired_cosines(drawn, None, d).cosines.dimension == d
