"""The methods' coverage and tightness, and that the calibration itself can tell right from wrong."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from audit.errors import InputError
from audit.statistics import calibration, conversions, estimate
from audit.statistics.calibration import KnownMechanism, allowed_share, calibrate
from audit.statistics.known_laws import GAUSSIAN, LAWS, KnownLaw

SETTING = KnownMechanism(mu=1.0, n_scores=5000, audits=40, delta=1e-5, confidence=0.95, seed=11)
CONFIDENCE_BOUNDS = ["held_out", "if_gaussian", "assumption_free"]
LEAST_MEAN_MU = {0.25: 0.17, 1.0: 0.92, 1.77: 1.68, 3.95: 3.78}  # of if_gaussian, 5,000 scores


def by_method(setting, **arguments):
    return {result.method: result for result in calibrate(setting, **arguments)}


def check_coverage(results, audits):
    for method in CONFIDENCE_BOUNDS:
        assert results[method].exceeding <= allowed_share(0.05, audits), results[method]


def test_confidence_bounds_cover_and_come_near_in_40_audits():
    results = by_method(SETTING)
    check_coverage(results, SETTING.audits)
    assert results["if_gaussian"].mean_mu > 0.9
    assert results["held_out"].mean_mu > 0.79  # 0.842 over 2,000 audits, 0.015 a standard error here
    assert results["if_gaussian"].mean_epsilon < results["if_gaussian"].true_epsilon
    assert results["assumption_free"].mean_mu is None and results["assumption_free"].mean_epsilon > 1.2


@pytest.mark.slow
@pytest.mark.parametrize("mu", [0.0, 0.25, 1.0, 1.77, 3.95])
def test_confidence_bounds_cover_and_are_tight(mu, assert_covers):
    means = []

    def draw(first, audits):
        results = by_method(SETTING._replace(mu=mu, audits=audits, seed=100 + first))
        means.append(audits * results["if_gaussian"].mean_mu)
        return {name: round(audits * results[name].exceeding) for name in CONFIDENCE_BOUNDS}

    assert assert_covers(draw, 400) * LEAST_MEAN_MU.get(mu, 0.0) <= np.sum(means)


def test_in_sample_does_not_cover(monkeypatch):
    monkeypatch.setattr(estimate, "METHODS", {"in_sample": estimate.METHODS["in_sample"]})
    [excess] = calibrate(SETTING._replace(audits=800))
    assert allowed_share(0.05, 800) < excess.exceeding < 0.2  # Errata H10


def test_processes_change_nothing_and_the_seed_does():
    setting = SETTING._replace(n_scores=120, audits=5)
    assert calibrate(setting, processes=2) == calibrate(setting, processes=1)
    setting = SETTING._replace(n_scores=200, audits=3)
    first, other = (by_method(setting._replace(seed=seed))["in_sample"] for seed in (11, 12))
    assert first.mean_epsilon != other.mean_epsilon
    longer = setting._replace(audits=4)
    three, four = ([calibration._audit((s, i)).values for i in range(3)] for s in (setting, longer))
    np.testing.assert_equal(three, four)


def test_the_summary_is_that_of_the_audits():
    setting = SETTING._replace(n_scores=200, audits=6)
    audits = np.array([calibration._audit((setting, i)).values for i in range(6)])
    truth = conversions.epsilon_from_mu(1.0, 1e-5)
    heard = []
    for i, result in enumerate(calibrate(setting, done=heard.append)):
        assert result.method == list(estimate.METHODS)[i] and result.setting == setting
        assert result.exceeding == np.mean(audits[:, i, 0] > truth)
        assert result.mean_epsilon == pytest.approx(audits[:, i, 0].mean())
        assert result.std_epsilon == pytest.approx(audits[:, i, 0].std())
        assert result.true_epsilon == truth
    assert heard == [1] * 6


def test_a_method_that_claims_too_much_is_caught(monkeypatch):
    """It says 95% and means 20%."""

    def boastful(scores_in, scores_out, delta, confidence):
        return estimate.held_out(scores_in, scores_out, delta, 0.2)

    record = dataclasses.replace(estimate.METHODS["held_out"], compute=boastful)
    monkeypatch.setattr(estimate, "METHODS", {"boastful": record})
    [result] = calibrate(SETTING)
    assert result.exceeding > allowed_share(0.05, SETTING.audits)


def test_a_law_that_is_gaussian_is_audited_as_mu_is():
    setting = SETTING._replace(audits=6, n_scores=400)
    plain = calibrate(setting)
    tested = calibrate(setting._replace(mu=0.0, law=KnownLaw(GAUSSIAN, 1.0)), processes=2)
    for one, other in zip(plain, tested, strict=True):
        assert one.fired is one.unsure is one.missed is None
        for name in ("method", "exceeding", "mean_epsilon", "true_epsilon"):
            assert getattr(one, name) == getattr(other, name)
        assert other.fired <= allowed_share(0.05, 6)


def test_where_the_curve_is_not_gaussian_mu_exceeds_and_the_curve_test_fires():
    results = by_method(SETTING._replace(audits=10, n_scores=1600, law=KnownLaw(LAWS["laplace"], 1.0)))
    assert all(results[method].exceeding == 1 for method in ("in_sample", "held_out", "if_gaussian"))
    assert results["assumption_free"].exceeding <= allowed_share(0.05, 10)
    assert all(result.fired >= 0.9 for result in results.values())


def test_missed_audits_exceed_where_the_test_neither_fires_nor_lacks_power(monkeypatch):
    """The test is one that passes the audits whose first score is high, with power where the second is."""
    setting = SETTING._replace(audits=32, n_scores=400, law=KnownLaw(LAWS["logistic"], 2.0))
    epsilons, passed, strong = [], [], []

    def examine(scores_in, scores_out):
        passed.append(scores_in[0] > 2)
        strong.append(scores_in[1] > 1)
        epsilons.append(estimate.held_out(scores_in, scores_out, 1e-5, 0.95).epsilon)
        return calibration.gaussian_curve.CurveTest(float(passed[-1]), 1.0, 1.0, 1.0, 0.0, 16)

    monkeypatch.setattr(calibration.gaussian_curve, "examine", examine)
    monkeypatch.setattr(calibration.gaussian_curve, "power", lambda s_in, s_out: 0.9 + 0.1 * (s_in[1] > 1))
    result = by_method(setting)["held_out"]
    exceeding = np.array(epsilons) > result.true_epsilon
    assert result.fired == 1 - np.mean(passed) and 0 < result.fired < 1
    assert result.unsure == np.mean(np.array(passed) & ~np.array(strong)) > 0
    assert result.missed == np.mean(exceeding & passed & strong) > 0


@pytest.mark.parametrize("claimed", [0.01, 0.05, 0.3])
@pytest.mark.parametrize("audits", [40, 400, 3000])
def test_allowed_share_is_the_binomial_quantile(claimed, audits):
    share = allowed_share(claimed, audits)
    assert np.ceil(share * audits - 1e-9) == stats.binom.ppf(1 - 1e-3, audits, claimed)
    assert claimed < share < 1 and allowed_share(claimed, audits, 0.1) < share


def test_no_leak_leaves_nothing_to_exceed_but_zero_and_values_out_of_range_are_refused():
    results = by_method(SETTING._replace(mu=0.0, audits=20, n_scores=400))
    assert results["if_gaussian"].true_epsilon == 0.0
    check_coverage(results, 20)
    bad = {"mu": (-1.0, np.nan), "n_scores": (1,), "audits": (0,), "delta": (0.0,), "confidence": (1.0,)}
    for field, value in ((field, value) for field, values in bad.items() for value in values):
        with pytest.raises(InputError, match=f"{field} is {value}"):
            calibrate(SETTING._replace(**{field: value}))
