"""CANIFE's estimates against its public record and what can be derived; Renyi DP against dp-accounting."""

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant

from audit.errors import InputError
from audit.methods.estimate import Estimate
from experiments.canife import curves, rounds
from experiments.canife.rounds import Charge

# Scores of one attack that the public code keeps as an example: Sent140, 25 with the canary, 25 without
WITH = np.array(
    [
        1.4968,
        0.1582,
        0.1806,
        0.8027,
        1.1776,
        0.1657,
        0.9007,
        1.3976,
        1.0114,
        0.4583,
        1.5924,
        0.155111,
        0.2284,
    ]
    + [
        0.6740,
        -0.3360,
        1.4169,
        1.5525,
        1.9708,
        1.0985,
        2.3776,
        0.9830,
        0.4261,
        0.7701,
        1.2012,
        1.5056,
    ]
)
WITHOUT = np.array(
    [
        0.1181,
        0.1337,
        -0.3721,
        -0.2554,
        -0.3481,
        0.3728,
        0.9901,
        -0.0193,
        -0.3802,
        -0.3228,
        0.3829,
        0.1123,
    ]
    + [
        -0.3657,
        0.155088,
        0.5375,
        -0.0277,
        -0.4082,
        -0.5813,
        -0.2694,
        -0.5721,
        0.7304,
        -0.4684,
        -0.4663,
    ]
    + [-0.1418, 0.9468]
)


def test_the_public_record_by_either_estimator():
    found = rounds.best_accuracy(WITH, WITHOUT)
    assert (found.estimate.false_positives, found.estimate.false_negatives) == (6, 1)
    assert found.estimate.epsilon == pytest.approx(2.944426, abs=5e-7)
    assert (found.lower, found.upper) == pytest.approx((0.991806, 6.797383), abs=5e-7)
    assert rounds.largest_accuracy(WITH, WITHOUT) == pytest.approx(0.86)
    found = rounds.best_epsilon(WITH, WITHOUT)
    assert found.estimate.delta == 1 / 50 and isinstance(found.estimate, Estimate)
    assert found.estimate.epsilon == pytest.approx(2.917771, abs=5e-7)
    assert found.estimate.threshold == 0.155111
    assert rounds.renyi_epsilon(0.477294921875, 1e-5) == pytest.approx(11.353132625, abs=5e-9)


@pytest.mark.parametrize("estimate", [rounds.best_epsilon, rounds.best_accuracy])
def test_estimates_at_the_edges(estimate):
    found = estimate([0.0, 3.0], [1.0, 1.0])
    assert found.estimate.epsilon == 0 and found.lower == 0
    found = estimate(np.arange(50) + 100.0, np.arange(50))
    assert found.estimate.epsilon == np.inf and found.upper == np.inf
    assert estimate(np.arange(50) + 100.0, np.arange(50), delta=0.01).lower == pytest.approx(
        2.559, abs=5e-4
    )


def test_estimates_of_few_and_of_a_hundred_scores():
    found = rounds.best_epsilon([1.0, 1.0, 0.0], [1.0, 0.0, 0.0], delta=0.01).estimate
    assert (found.false_positives, found.false_negatives) == (1, 1)
    s_in, s_out = np.arange(50) + 100.0, np.arange(50.0)
    s_in[0], s_out[0] = -1, 1000
    found = rounds.best_epsilon(s_in, s_out)
    assert found.estimate.epsilon == pytest.approx(3.8816, abs=5e-5)
    assert found.estimate.epsilon == pytest.approx(rounds.largest_estimate(50, 50, 0.01))
    assert found.lower == pytest.approx(2.116, abs=5e-4)
    assert rounds.best_accuracy(s_in, s_out).estimate.epsilon == pytest.approx(3.8918, abs=5e-5)


@pytest.mark.parametrize(
    "epsilon, renyi, gaussian",
    [
        (0.5, 3.768, 3.147),
        (1, 2.199, 1.878),
        (2, 1.281, 1.116),
        (3, 0.936, 0.826),
        (3.88, 0.770, 0.684),
    ],
)
def test_noise_of_an_epsilon_by_renyi_dp_and_exactly(epsilon, renyi, gaussian):
    assert rounds.renyi_noise(epsilon, 0.01) == pytest.approx(renyi, rel=1e-3)
    assert rounds.gaussian_noise(epsilon, 0.01) == pytest.approx(gaussian, rel=1e-3)


@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-9])
def test_noise_of_a_small_epsilon_is_right_or_refused_in_a_line(delta):
    refused = 0
    for epsilon in np.geomspace(0.005, 0.4, 30):
        try:
            noise = rounds.renyi_noise(epsilon, delta)
        except InputError as error:
            assert f"epsilon is {epsilon:g}: at delta {delta:g} give at least" in str(error)
            refused += 1
        else:
            assert rounds.renyi_epsilon(noise, delta) == pytest.approx(epsilon)
    assert 0 < refused < 30


def test_charges_and_compositions_at_the_edges():
    assert rounds.renyi_charge(0.0, 0.01, 0.4) == pytest.approx(9.20, abs=5e-3)
    assert (
        rounds.renyi_charge(np.inf, 0.01, 0.4) == rounds.gaussian_charge(np.inf, 0.01, 0.4) == 0.4
    )
    assert rounds.lower_charged(rounds.best_epsilon(WITHOUT, WITHOUT + 0.01)) == 0.2
    assert rounds.composed([], 1e-5) == 0 and rounds.composed([Charge(0.0, 0.1, 1)], 1e-5) == np.inf
    split = [Charge(0.8, 0.01, 30), Charge(0.8, 0.01, 70), Charge(0.0, 0.01, 0)]
    assert rounds.composed(split, 1e-5) == pytest.approx(
        rounds.composed([Charge(0.8, 0.01, 100)], 1e-5)
    )
    assert rounds.forward([1, 41, 81], 100) == [40, 40, 20]
    assert rounds.backward([1, 41, 81], 100) == [1, 40, 40]
    for wrong in ([], [3, 2], [0, 1], [101]):
        with pytest.raises(InputError, match="rise"):
            rounds.forward(wrong, 100)


@pytest.mark.parametrize("sigma, expected", [(0.6841, 10), (0.4833, 30), (0.4166, 50)])
def test_a_training_at_its_true_noise_has_the_target_epsilon(sigma, expected):
    assert rounds.composed([Charge(sigma, 0.01189, 2550)], 1e-5) == pytest.approx(
        expected, rel=3e-3
    )


@pytest.mark.parametrize(
    "sigma, mean, deviation, total",
    [(0.6841, 3.04, 0.31, 4.77), (0.4833, 3.49, 0.18, 5.92), (0.4166, 3.59, 0.14, 6.29)],
)
def test_a_perfect_canary_scores_the_published_numbers(sigma, mean, deviation, total):
    found = rounds.ideal(np.random.default_rng(0), Charge(sigma, 0.01189, 2550), 1e-5)
    assert found.mean == pytest.approx(mean, abs=0.06)
    assert found.deviation == pytest.approx(deviation, rel=0.25)
    assert found.composed == pytest.approx(total, rel=0.03) and found.composed < 7.19


def test_a_perfect_canary_of_an_odd_number_of_scores_is_at_the_delta_of_that_number(monkeypatch):
    deltas = set()
    best_epsilon = rounds.best_epsilon

    def note_delta(*args, delta):
        deltas.add(delta)
        return best_epsilon(*args, delta=delta)

    monkeypatch.setattr(rounds, "best_epsilon", note_delta)
    rounds.ideal(np.random.default_rng(0), Charge(1.0, 1.0, 1), 1e-5, scores=25)
    assert deltas == {1 / 25}


@pytest.mark.parametrize("sigma, rate", [(0.2, 0.002), (0.4166, 0.01189), (1.0, 0.05), (9.2, 0.2)])
def test_divergences_agree_with_dp_accounting(sigma, rate):
    chosen = [i for i, order in enumerate(rounds.ORDERS) if order in (2, 3, 5, 17, 63)]
    accountant = RdpAccountant([int(rounds.ORDERS[i]) for i in chosen])
    accountant.compose(
        dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma))
    )
    found = rounds.divergences(sigma, rate)[chosen]
    np.testing.assert_allclose(found, accountant._rdp, rtol=1e-8, atol=1e-13)


def test_divergences_rise_with_the_order_and_end_at_those_without_sampling():
    for sigma in (0.05, 0.4, 3.0):
        found = rounds.divergences(sigma, 0.01)
        assert np.all(np.diff(found) > 0) and np.all(found <= rounds.divergences(sigma, 1.0))
        almost = rounds.divergences(sigma, 1 - 1e-12)
        np.testing.assert_allclose(almost, rounds.divergences(sigma, 1.0), rtol=1e-6)
    assert np.isinf(rounds.divergences(0.0, 0.1)).all()
    for sigma, rate in ((-1.0, 0.1), (1.0, 0.0), (1.0, 1.5)):
        with pytest.raises(InputError):
            rounds.divergences(sigma, rate)


def test_a_proven_epsilon_is_rounded_down():
    (column,) = [column for column in curves._ROUND_COLUMNS if column.key == "proven"]
    assert column.show(1.9996) == "1.99"
