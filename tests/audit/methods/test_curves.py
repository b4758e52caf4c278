"""Tests the coverage of the empirical trade-off curve, and the AUC against a count of all pairs."""

import numpy as np
import pytest
from scipy import special, stats

from audit.errors import InputError
from audit.laws import conversions
from audit.laws.intervals import Interval
from audit.methods import curves

MU = 1.0
SIMULATIONS = 400
RNG = np.random.default_rng(0)


def inside(curve, mu=MU):
    """Returns whether the band holds all of the Gaussian curve that a picture shows."""
    rates = special.ndtr(np.linspace(-4, 4, 801))
    lower, upper = curve.band(rates)
    true = conversions.gaussian_trade_off(mu, rates)
    return bool(np.all((lower <= true) & (true <= upper)))


@pytest.mark.parametrize(("trials", "error"), [(3, 0.5), (40, 0.05), (700, 0.025)])
def test_limits_hold_at_every_point_and_not_always(trials, error):
    """Between two draws counts stay and the law is monotone: both ends of each gap are looked at."""
    drawn = np.sort(np.random.default_rng(trials).random((4000, trials)), axis=1)
    ends = np.pad(drawn, [(0, 0), (1, 1)], constant_values=[(0, 0), (0, 1)])
    most = stats.binom.ppf(1 - 1e-4, 4000, error) / 4000

    def miss(error):
        lower, upper = curves.limit_rates(np.arange(trials + 1), trials, error)
        return np.any((ends[:, :-1] < lower) | (ends[:, 1:] > upper), axis=1).mean()

    assert 0.25 * error < miss(error) <= most < miss(min(8 * error, 1.5))


def test_the_band_covers_the_curve():
    scores = [(RNG.normal(MU, 1, 200), RNG.normal(0, 1, 300)) for _ in range(SIMULATIONS)]
    ties = [(RNG.integers(1, 6, 150), RNG.integers(0, 5, 90)) for _ in range(SIMULATIONS)]
    rates = np.arange(6) / 5

    def covers_ties(curve):
        limits = (curve.false_positive_limits, curve.false_negative_limits)
        true = (np.append(rates[::-1], 0), np.append(0, rates))
        return all(
            np.all((low <= at) & (at <= high)) for (low, high), at in zip(limits, true, strict=True)
        )

    def count(worlds, holds):
        return np.mean([holds(curves.trade_off_curve(*world, 0.9)) for world in worlds])

    assert count(scores, inside) >= 0.9 and count(ties, covers_ties) >= 0.9


def test_small_curves():
    curve = curves.trade_off_curve(np.array([3.0, 1.0, 3.0]), np.array([0.0, 1.0]), 0.9)
    np.testing.assert_allclose(curve.false_positive_rate, [1, 0.5, 0, 0])
    np.testing.assert_allclose(curve.false_negative_rate, [0, 0, 1 / 3, 1])
    at = Interval(np.array([0.2]), np.array([0.5])), Interval(np.array([0.1]), np.array([0.3]))
    curve = curves.TradeOffCurve(np.array([0.3]), np.array([0.2]), *at)
    lower, upper = curve.band([0.0, 0.19, 0.2, 0.49, 0.5, 1.0])
    np.testing.assert_array_equal(lower, [0.1, 0.1, 0, 0, 0, 0])
    np.testing.assert_array_equal(upper, [1, 1, 1, 1, 0.3, 0.3])
    alike = curves.trade_off_curve(np.arange(500), np.arange(500), 0.95)
    assert inside(alike, 0.0) and not inside(alike, 0.5)


def test_the_band_is_narrow():
    curve = curves.trade_off_curve(RNG.normal(1, 1, 10**5), RNG.normal(0, 1, 30_000), 0.95)
    assert len(curve.false_positive_rate) <= 201
    assert inside(curve) and not inside(curve, 1.1) and not inside(curve, 0.9)


@pytest.mark.parametrize("decimals", [9, 1, 0])
def test_every_pair_counts(decimals):
    scores_in = RNG.normal(0.7, 1, 40).round(decimals)
    scores_out = RNG.normal(0, 1, 25).round(decimals)
    pairs = scores_in[:, None] - scores_out
    found = curves.auc(scores_in, scores_out)
    assert found.value == pytest.approx((np.sign(pairs).mean() + 1) / 2)
    assert curves.auc(scores_out, scores_in).value == pytest.approx(1 - found.value)


@pytest.mark.parametrize(("n_in", "n_out"), [(3, 3), (20, 50)])
def test_the_standard_error_is_that_of_scores_that_tell_nothing(n_in, n_out):
    found = [curves.auc(RNG.normal(size=n_in), RNG.normal(size=n_out)) for _ in range(2000)]
    deviations = np.array([one.deviations for one in found])
    assert abs(deviations.mean()) < 0.08 and deviations.std() == pytest.approx(1, abs=0.06)


def test_true_positive_rates_count_scores_above_the_allowed_share():
    outs, ins = np.arange(1000.0), np.array([*range(985, 1005), 2000.0])
    for rate, above in [(0.0, 6), (0.0009, 6), (0.001, 7), (0.01, 16)]:
        assert curves.true_positive_rate(ins, outs, rate) == above / 21
    with pytest.raises(InputError, match="false_positive_rate"):
        curves.true_positive_rate(ins, outs, np.nan)


@pytest.mark.parametrize("mu", [0.0, 2.0])
def test_the_attacks_rates_are_those_of_a_gaussian_mechanism(mu):
    """Guesses at the middle are right with probability Phi(mu / 2)."""
    n = 20_000
    found = curves.attack(RNG.normal(mu, 1, n), RNG.normal(0, 1, n))
    expected = [special.ndtr(mu / 2)]
    expected += [special.ndtr(mu + special.ndtri(rate)) for rate in (0.01, 0.001)]
    assert found.accuracy == pytest.approx(expected[0], abs=4 * 0.5 / np.sqrt(2 * n))
    assert list(found) == pytest.approx(expected, abs=0.035)


def test_a_tie_at_the_middle_is_half_right():
    def attack(scores_in, scores_out):
        return curves.attack(np.array(scores_in), np.array(scores_out))

    assert attack([1.0, 1.0], [0.0, 1.0, 1.0]).accuracy == pytest.approx(7 / 12)
    assert attack([4.0, 5.0, 6.0, 7.0], [0.0]).accuracy == 1.0  # of unequal worlds too
    # So few scores out allow no false positive.
    assert attack([2.0, 3.0], [0.0, 1.0]) == (1.0, None, None)
    assert attack([2.0], np.arange(100) / 100)[1:] == (1.0, None)
