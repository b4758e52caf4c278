"""Tests the coverage and tightness of methods, and that calibration detects wrong methods."""

import dataclasses

import numpy as np
import pytest
from scipy import integrate, stats

from audit.calibration import laws
from audit.calibration.calibration import KnownMechanism, audit_once, calibrate
from audit.calibration.calibration import draw as drawn
from audit.laws import conversions, known_laws
from audit.laws.known_laws import LAWS
from audit.methods import estimate
from tests.cases import allowed_share, mostly_slow

SETTING = KnownMechanism(laws.GAUSSIAN, 1.0, 5000, audits=40, delta=1e-5, confidence=0.95, seed=11)
CONFIDENCE_BOUNDS = ["if_gaussian", "assumption_free"]
LEAST_MEAN_MU = {0.25: 0.17, 1.0: 0.91, 1.77: 1.68, 3.95: 3.78}  # of if_gaussian, 5,000 scores


def by_method(setting):
    return {result.method: result for result in calibrate(setting)}


@pytest.mark.slow
@pytest.mark.parametrize("mu", [0.0, 0.25, 1.0, 1.77, 3.95])
def test_confidence_bounds_cover_and_are_tight(mu, assert_covers):
    means = []

    def draw(first, audits):
        setting = SETTING._replace(mu=mu, audits=audits, seed=100 + first)
        results = by_method(setting)
        for index in range(audits):
            scores_in, scores_out = drawn(setting, index).pooled()
            means.append(estimate.if_gaussian(scores_in, scores_out, 1e-5, 0.95).mu)
        return {name: round(audits * results[name].exceeding) for name in CONFIDENCE_BOUNDS}

    assert assert_covers(draw, 400) * LEAST_MEAN_MU.get(mu, 0.0) <= np.sum(means)


@pytest.mark.slow
def test_in_sample_does_not_cover(monkeypatch):
    monkeypatch.setattr(estimate, "METHODS", {"in_sample": estimate.METHODS["in_sample"]})
    [excess] = calibrate(SETTING._replace(audits=800))
    assert allowed_share(0.05, 800) < excess.exceeding < 0.2  # Errata H10


def test_the_summary_is_that_of_the_audits():
    setting = SETTING._replace(runs=200, audits=3)
    audits = [audit_once(setting, i) for i in range(3)]
    epsilons = np.array([[value.epsilon for value in values] for values in audits])
    truth = conversions.epsilon_from_mu(1.0, 1e-5)
    for i, result in enumerate(calibrate(setting)):
        assert result.method == list(estimate.METHODS)[i] and result.setting == setting
        assert result.exceeding == np.mean(epsilons[:, i] > truth)
        assert result.mean_epsilon == pytest.approx(epsilons[:, i].mean())
        assert result.low_epsilon == pytest.approx(np.quantile(epsilons[:, i], 0.05))
        assert result.true_epsilon == truth


def test_a_method_that_claims_too_much_is_caught(monkeypatch):
    """It says 95% and means 20%."""

    def boastful(scores_in, scores_out, delta, confidence):
        return estimate.if_gaussian(scores_in, scores_out, delta, 0.2)

    record = dataclasses.replace(estimate.METHODS["if_gaussian"], compute=boastful)
    monkeypatch.setattr(estimate, "METHODS", {"boastful": record})
    [result] = calibrate(SETTING._replace(runs=500))
    assert result.exceeding > allowed_share(0.05, SETTING.audits)


PARAMETERS = {
    "gaussian": (0.0, 0.25, 1.0, 1.77, 3.95),
    "laplace": (0.5, 1.0, 3.0, 6.0),
    "randomized_response": (1.0, 3.0, 6.0),
    "t3": (2.0,),
    "logistic": (2.0,),
    "subsampled": (0.3, 0.5, 1.0),
}
KNOWN = [
    pytest.param(law, parameter, id=f"{name} {parameter}")
    for name, law in {"gaussian": known_laws.GAUSSIAN, **LAWS}.items()
    for parameter in PARAMETERS[name]
]


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 0.01, 0.3])
@pytest.mark.parametrize("epsilon", mostly_slow([1.0, 0.5, 3.0, 6.0]))
def test_epsilon_of_laplace_is_the_closed_form(epsilon, delta):
    """delta(epsilon) = 1 - exp((epsilon - shift) / 2) (Balle et al. 2020, Theorem 3)."""
    truth = max(epsilon + 2 * np.log1p(-delta), 0.0)
    assert known_laws.compute_epsilon(LAWS["laplace"], epsilon, delta) == pytest.approx(
        truth, abs=1e-6
    )


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 0.01])
@pytest.mark.parametrize("epsilon", mostly_slow([1.0, 3.0, 6.0]))
def test_epsilon_of_a_noisy_bit_is_that_of_the_bit(epsilon, delta):
    rate = 1 / (1 + np.exp(-epsilon))
    truth = np.log((rate - delta) / (1 - rate))
    found = known_laws.compute_epsilon(LAWS["randomized_response"], epsilon, delta)
    assert found == pytest.approx(truth, abs=1e-5)


@pytest.mark.parametrize("delta", [1e-5, 0.01, 0.3])
@pytest.mark.parametrize("mu", mostly_slow([1.0, 0.0, 0.25, 3.95], quick=2))
def test_quadrature_finds_the_gaussian_epsilon(mu, delta):
    truth = conversions.epsilon_from_mu(mu, delta)
    found = known_laws.compute_epsilon(known_laws.GAUSSIAN, mu, delta)
    assert found == pytest.approx(truth, abs=1e-6)


@pytest.mark.parametrize(("law", "parameter"), KNOWN)
@pytest.mark.parametrize("inserted", mostly_slow([True, False]))
def test_scores_and_the_distribution_function_have_the_density(law, parameter, inserted):
    x = np.linspace(-60, 60, 400_001)
    density = law.density(x, parameter, inserted)
    below = integrate.cumulative_trapezoid(density, x, initial=0.0)
    assert np.abs(below - law.distribution(x, parameter, inserted)).max() < 1e-5
    scores = law.sample(np.random.default_rng(4), parameter, inserted, 3000)
    assert stats.kstest(scores, lambda s: np.interp(s, x, below)).pvalue > 1e-3


@pytest.mark.parametrize(("law", "parameter"), KNOWN)
def test_quantiles_are_those_of_the_even_mixture(law, parameter):
    levels = np.array([0.01, 0.3, 0.5, 0.9])
    found = law.quantiles(levels, parameter)
    below = [law.distribution(found, parameter, inserted) for inserted in (False, True)]
    assert np.mean(below, 0) == pytest.approx(levels, abs=2e-3)
