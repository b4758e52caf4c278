"""CANIFE's estimates agree with its public code, and our Renyi DP with dp-accounting."""

from functools import partial

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant

from experiments.canife import rounds
from experiments.canife.rounds import Charge

OLD_DELTA = 1e-5  # in the public code until February 2023
# The scores of an attack on Sent140 in the public code: 25 with the canary and 25 without.
WITH = np.fromstring(
    "1.4968 .1582 .1806 .8027 1.1776 .1657 .9007 1.3976 1.0114 .4583 1.5924 .155111 .2284 .6740 -.3360 "
    "1.4169 1.5525 1.9708 1.0985 2.3776 .9830 .4261 .7701 1.2012 1.5056",
    sep=" ",
)
WITHOUT = np.fromstring(
    ".1181 .1337 -.3721 -.2554 -.3481 .3728 .9901 -.0193 -.3802 -.3228 .3829 .1123 -.3657 .155088 .5375 "
    "-.0277 -.4082 -.5813 -.2694 -.5721 .7304 -.4684 -.4663 -.1418 .9468",
    sep=" ",
)


def test_estimates_agree_with_the_public_code():
    found = rounds.best_epsilon(WITH, WITHOUT, OLD_DELTA, by_accuracy=True)
    assert found == pytest.approx((2.944426, 0.991806, 6.797383, 0.86), abs=5e-7)
    found = rounds.best_epsilon(WITH, WITHOUT, 1 / 50)
    assert found.epsilon == pytest.approx(2.917771, abs=5e-7)
    released_once = [Charge(0.477294921875, 1.0, 1)]
    assert rounds.composed(released_once, 1e-5) == pytest.approx(11.353132625, abs=5e-9)


@pytest.mark.parametrize("by_accuracy", [False, True])
def test_estimates_of_separated_scores_and_the_cap_of_estimates(by_accuracy):
    estimate = partial(rounds.best_epsilon, by_accuracy=by_accuracy)
    found = estimate(np.array([0.0, 3.0]), np.ones(2), 0.01)
    assert found.epsilon == found.lower == 0
    scores_in = np.arange(50) + 100.0
    scores_out = np.arange(50.0)
    found = estimate(scores_in, scores_out, 0.01)
    assert found.epsilon == found.upper == np.inf
    assert found.lower == pytest.approx(2.559, abs=5e-4)
    scores_in[0] = -1
    scores_out[0] = 1000
    for delta, cap in ((0.01, 3.8816), (OLD_DELTA, 3.8918)):
        found = estimate(scores_in, scores_out, delta)
        assert found.epsilon == pytest.approx(cap, abs=5e-5)


@pytest.mark.parametrize(
    "epsilon, renyi, gaussian", [(0.5, 3.768, 3.147), (1, 2.199, 1.878), (3.88, 0.770, 0.684)]
)
def test_the_noise_of_an_epsilon_by_renyi_dp_and_exactly(epsilon, renyi, gaussian):
    assert rounds.find_renyi_noise(epsilon, 0.01, 0.4) == pytest.approx(renyi, rel=1e-3)
    assert rounds.find_gaussian_noise(epsilon, 0.01, 0.4) == pytest.approx(gaussian, rel=1e-3)


def test_charges_and_compositions_in_extreme_cases():
    assert rounds.find_renyi_noise(0.0, 0.01, 0.4) == pytest.approx(9.20, abs=5e-3)
    assert rounds.find_renyi_noise(np.inf, 0.01, 0.4) == 0.4
    assert rounds.find_gaussian_noise(np.inf, 0.01, 0.4) == 0.4
    assert rounds.find_renyi_noise(0.0, 1e-6, 0.4) > 50  # the smallest delta of an estimate
    assert rounds.composed([Charge(0.0, 0.1, 1)], 1e-5) == np.inf
    split = [Charge(0.8, 0.01, 30), Charge(0.8, 0.01, 70)]
    whole = rounds.composed([Charge(0.8, 0.01, 100)], 1e-5)
    assert rounds.composed(split, 1e-5) == pytest.approx(whole)
    assert rounds.count_rounds([1, 41, 81], 100).tolist() == [40, 40, 20]
    assert rounds.count_rounds([1, 41, 81], 100, is_backward=True).tolist() == [1, 40, 40]


@pytest.mark.parametrize(
    "sigma, target, mean, deviation, total",
    [(0.6841, 10, 3.04, 0.31, 4.77), (0.4166, 50, 3.59, 0.14, 6.29)],
)
def test_a_perfect_canary_has_the_published_estimates(sigma, target, mean, deviation, total):
    charge = Charge(sigma, 0.01189, 2550)
    assert rounds.composed([charge], 1e-5) == pytest.approx(target, rel=3e-3)
    found = rounds.estimate_perfect_canary(np.random.default_rng(0), sigma, 100)
    finite = np.extract(np.isfinite(found), found)
    assert finite.mean() == pytest.approx(mean, abs=0.06)
    assert finite.std() == pytest.approx(deviation, rel=0.25)
    noise = rounds.find_renyi_noise(np.median(found), 0.01, sigma)
    composed = rounds.composed([charge._replace(noise_multiplier=noise)], 1e-5)
    assert composed == pytest.approx(total, rel=0.03) and composed < 7.19


@pytest.mark.parametrize("sigma, rate", [(0.04, 0.01), (0.2, 0.002), (9.2, 0.2)])
def test_divergences_agree_with_dp_accounting(sigma, rate):
    chosen = [i for i, order in enumerate(rounds.ORDERS) if order in (2, 3, 5, 17, 63)]
    accountant = RdpAccountant([int(rounds.ORDERS[i]) for i in chosen])
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma))
    accountant.compose(event)
    found = rounds.divergences(sigma, rate)[chosen]
    np.testing.assert_allclose(found, accountant._rdp, rtol=1e-8, atol=1e-13)
