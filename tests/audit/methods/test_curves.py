"""The limits of the empirical trade-off curve cover the true one; the AUC against every pair counted."""

from fractions import Fraction
from math import factorial

import numpy as np
import pytest
from scipy import special, stats

from audit.errors import InputError
from audit.laws import conversions
from audit.laws.intervals import Interval
from audit.methods import curves
from tests.cases import mostly_slow

MU = 1.0
SIMULATIONS = 400


def gaussian_scores(seed, n_in=200, n_out=300):
    rng = np.random.default_rng([71, seed])
    return rng.normal(MU, 1, n_in), rng.normal(0, 1, n_out)


def covers(curve, scores_in, scores_out):
    """Whether the limits hold the true rates at *every* threshold: between two scores the empirical rates
    stay and the true ones are monotone, so both ends of each gap are looked at."""
    cuts = np.concatenate([[-np.inf], np.unique(np.concatenate([scores_in, scores_out])), [np.inf]])
    limits = curve.false_positive_limits, curve.false_negative_limits
    for (lower, upper), rates in zip(
        limits, (special.ndtr(-cuts), special.ndtr(cuts - MU)), strict=True
    ):
        first, second = rates[:-1], rates[1:]
        if np.any(np.minimum(first, second) < lower) or np.any(np.maximum(first, second) > upper):
            return False
    return True


def inside(curve, mu=MU):
    """Whether the band holds all of the Gaussian curve that a picture shows."""
    rates = special.ndtr(np.linspace(-4, 4, 801))
    lower, upper = curve.band(rates)
    true = conversions.gaussian_trade_off(mu, rates)
    return bool(np.all((lower <= true) & (true <= upper)))


def share_covered(confidence, holds=covers):
    hits = 0
    for seed in range(SIMULATIONS):
        scores = gaussian_scores(seed)
        hits += holds(curves.trade_off_curve(*scores, confidence), *scores)
    return hits / SIMULATIONS


@pytest.mark.parametrize("confidence", [0.5, 0.95])
def test_the_limits_cover_the_whole_curve_as_often_as_they_say_and_not_always(confidence):
    least, most = stats.binom.ppf([1e-3, 1 - 1e-3], SIMULATIONS, confidence) / SIMULATIONS
    assert least <= share_covered(confidence) <= most


@pytest.mark.parametrize("confidence", [0.1, 0.95])
def test_the_band_covers_the_curve_at_least_as_often(confidence):
    assert share_covered(confidence, lambda curve, *_: inside(curve)) >= confidence


def test_a_narrower_band_is_caught(monkeypatch):
    original = curves.compute_limits
    monkeypatch.setattr(curves, "compute_limits", lambda trials, error: original(trials, 3 * error))
    assert share_covered(0.95) < 0.9


def test_ties_are_covered_at_least_as_often():
    """Scores out 0 to 4, in 1 to 5, each value as likely as another."""
    rng, hits = np.random.default_rng(3), 0
    rates = np.arange(6) / 5
    for _ in range(SIMULATIONS):
        curve = curves.trade_off_curve(rng.integers(1, 6, 150), rng.integers(0, 5, 90), 0.9)
        (low_out, high_out), (low_in, high_in) = (
            curve.false_positive_limits,
            curve.false_negative_limits,
        )
        true_out, true_in = np.append(rates[::-1], 0), np.append(0, rates)
        fine = (
            (low_out <= true_out)
            & (true_out <= high_out)
            & (low_in <= true_in)
            & (true_in <= high_in)
        )
        hits += bool(np.all(fine))
    assert hits / SIMULATIONS > 0.9


def test_small_curves():
    curve = curves.trade_off_curve([3.0, 1.0, 3.0], [0.0, 1.0], 0.9)
    np.testing.assert_allclose(curve.false_positive_rate, [1, 0.5, 0, 0])
    np.testing.assert_allclose(curve.false_negative_rate, [0, 0, 1 / 3, 1])
    at = Interval(np.array([0.2]), np.array([0.5])), Interval(np.array([0.1]), np.array([0.3]))
    curve = curves.TradeOffCurve(np.array([0.3]), np.array([0.2]), *at, 0.9)
    lower, upper = curve.band([0.0, 0.19, 0.2, 0.49, 0.5, 1.0])
    np.testing.assert_array_equal(lower, [0.1, 0.1, 0, 0, 0, 0])
    np.testing.assert_array_equal(upper, [1, 1, 1, 1, 0.3, 0.3])
    apart = curves.trade_off_curve(np.arange(500) + 1e3, np.arange(500), 0.95).band([1e-3, 0.1])
    np.testing.assert_array_equal(apart.lower, [0, 0])
    assert apart.upper[0] == 1 and apart.upper[1] < 0.02
    alike = curves.trade_off_curve(np.arange(500), np.arange(500), 0.95)
    assert inside(alike, 0.0) and not inside(alike, 0.5)


def test_the_band_falls_stays_in_the_square_and_holds_the_empirical_curve():
    curve = curves.trade_off_curve(*gaussian_scores(1), 0.9)
    lower, upper = curve.band(np.linspace(0, 1, 2001))
    assert np.all(np.diff(lower) <= 0) and np.all(np.diff(upper) <= 0)
    assert (
        np.all((lower >= 0) & (lower <= upper) & (upper <= 1)) and upper[0] == 1 and lower[-1] == 0
    )
    x, y = curve.false_positive_rate, curve.false_negative_rate
    low, high = curve.band(x)
    best = [y[x <= at].min() for at in x]
    assert np.all((low <= best) & (best <= high))
    for confidence in (0.0, 1.0, np.nan):
        with pytest.raises(InputError, match="confidence is"):
            curves.trade_off_curve([1.0], [0.0], confidence)


def a_gaussian_curve_fits(curve):
    """Whether some straight line of slope -1 lies in the band on axes of normal deviates."""
    return any(inside(curve, mu) for mu in np.linspace(-1, 5, 601))


def test_the_eye_sees_what_is_not_gaussian():
    """No straight line fits 2,500 scores a world with Laplace noise of epsilon 3; one fits normal scores."""
    rng = np.random.default_rng(0)
    laplace = curves.trade_off_curve(rng.laplace(3, 1, 2500), rng.laplace(0, 1, 2500), 0.95)
    normal = curves.trade_off_curve(rng.normal(3, 1, 2500), rng.normal(0, 1, 2500), 0.95)
    assert not a_gaussian_curve_fits(laplace) and a_gaussian_curve_fits(normal)


def test_of_many_scores_a_few_hundred_are_looked_at():
    rng = np.random.default_rng(0)
    curve = curves.trade_off_curve(rng.normal(1, 1, 10**5), rng.normal(0, 1, 30_000), 0.95)
    assert len(curve.false_positive_rate) <= 601
    assert inside(curve) and not inside(curve, 1.1) and not inside(curve, 0.9)


RNG = np.random.default_rng(0)


@pytest.mark.parametrize("decimals", [9, 1, 0])
def test_every_pair_counts(decimals):
    scores_in, scores_out = (
        RNG.normal(0.7, 1, 40).round(decimals),
        RNG.normal(0, 1, 25).round(decimals),
    )
    pairs = scores_in[:, None] - scores_out
    found = curves.auc(scores_in, scores_out)
    assert found.value == pytest.approx((np.sign(pairs).mean() + 1) / 2)
    assert curves.auc(scores_out, scores_in).value == pytest.approx(1 - found.value)
    assert curves.auc(-scores_in, -scores_out).deviations == pytest.approx(-found.deviations)


def test_worlds_apart_and_ties():
    assert curves.auc([2, 3], [0, 1]).value == 1 and curves.auc([0, 1], [2, 3]).value == 0
    found = [curves.auc(RNG.integers(0, 2, 30), RNG.integers(0, 2, 30)) for _ in range(2000)]
    assert 0.7 < np.std([one.deviations for one in found]) < 1
    with pytest.raises(InputError, match="no out scores"):
        curves.auc([1.0], [])


@pytest.mark.parametrize(("n_in", "n_out"), mostly_slow([(1, 1), (3, 3), (20, 50)]))
def test_the_standard_error_is_that_of_scores_that_tell_nothing(n_in, n_out):
    found = [curves.auc(RNG.normal(size=n_in), RNG.normal(size=n_out)) for _ in range(4000)]
    deviations = np.array([one.deviations for one in found])
    assert abs(deviations.mean()) < 0.06 and deviations.std() == pytest.approx(1, abs=0.05)
    assert deviations.min() > -4


def test_true_positive_rates_count_scores_above_the_allowed_share():
    outs, ins = np.arange(1000.0), np.array([*range(985, 1005), 2000.0])
    assert curves.true_positive_rate(ins, outs, 0.0) == 6 / 21  # above 999
    assert curves.true_positive_rate(ins, outs, 0.0009) == 6 / 21
    assert curves.true_positive_rate(ins, outs, 0.001) == 7 / 21
    assert curves.true_positive_rate(ins, outs, 0.01) == 16 / 21
    for rate in (-0.1, 1.0, float("nan")):
        with pytest.raises(InputError, match="false_positive_rate"):
            curves.true_positive_rate(ins, outs, rate)


MANY_SIMULATIONS = 20_000


def every(trials):
    return np.arange(1, trials + 1)


def steck(low, high):
    """P(low_i <= U_(i) <= high_i for all i) as a determinant of fractions (Steck, 1971)."""
    size = len(low)
    low, high = [Fraction(float(x)) for x in low], [Fraction(float(x)) for x in high]

    def entry(i, n):
        return (
            max(high[i] - low[i + n - 1], Fraction(0)) ** n / factorial(n)
            if n >= 0
            else Fraction(0)
        )

    rows = [[entry(i, j - i + 1) for j in range(size)] for i in range(size)]
    determinant = Fraction(factorial(size))
    for i in range(size):
        determinant *= rows[i][i]
        for k in range(i + 1, size):
            ratio = rows[k][i] / rows[i][i]
            rows[k] = [one - ratio * other for one, other in zip(rows[k], rows[i], strict=True)]
    return float(determinant)


@pytest.mark.parametrize("trials", [1, 2, 5, 12])
@pytest.mark.parametrize("local", [1e-4, 0.01, 0.3])
def test_coverage_is_that_of_a_determinant(trials, local):
    low = stats.beta.ppf(local / 2, every(trials), trials + 1 - every(trials))
    covered = curves.compute_coverage(trials, every(trials), local)
    assert covered == pytest.approx(steck(low, 1 - low[::-1]), abs=1e-12)


@pytest.mark.parametrize("convolution", [1, 10**9], ids=["fft", "direct"])
def test_either_convolution_gives_the_coverage(convolution, monkeypatch):
    found = curves.compute_coverage(400, every(400), 0.001)
    monkeypatch.setattr(curves, "_DIRECT", convolution)
    assert curves.compute_coverage(400, every(400), 0.001) == pytest.approx(found, abs=1e-12)


def share_missed(trials, found):
    rng, missed = np.random.default_rng(trials), 0
    for _ in range(MANY_SIMULATIONS // 1000):
        drawn = np.sort(rng.random((1000, trials)), axis=1)[:, found.ranks - 1]
        missed += np.count_nonzero(np.any((drawn < found.lower) | (drawn > found.upper), axis=1))
    return missed / MANY_SIMULATIONS


@pytest.mark.parametrize(("trials", "error"), [(3, 0.5), (40, 0.05), (700, 0.025)])
def test_limits_hold_together_as_often_as_they_say(trials, error):
    low, high = stats.binom.ppf([1e-4, 1 - 1e-4], MANY_SIMULATIONS, error) / MANY_SIMULATIONS
    assert low <= share_missed(trials, curves.compute_limits(trials, error)) <= high


def test_limits_of_a_wrong_level_are_seen_and_tails_are_as_precise_as_the_centre():
    wide, narrow = (curves.compute_limits(40, error) for error in (0.035, 0.07))
    low, high = stats.binom.ppf([1e-4, 1 - 1e-4], MANY_SIMULATIONS, 0.05) / MANY_SIMULATIONS
    assert share_missed(40, wide) < low and share_missed(40, narrow) > high
    # A band of one width is 0.03 wide everywhere at 5,000 draws; rates of 1e-3 need far less.
    found = curves.compute_limits(5000, 0.05)
    tail = found.enclose(5)
    assert tail.upper - tail.lower < 0.005
    centre = found.enclose(2500)
    assert 0.03 < centre.upper - centre.lower < 0.06


@pytest.mark.parametrize("trials", [1, 30, 5000])
def test_each_rank_misses_alike_on_either_side(trials):
    found = curves.compute_limits(trials, 0.05)
    level = curves.find_local_level(trials, found.ranks, 0.05) / 2
    law = stats.beta(found.ranks, trials + 1 - found.ranks)
    np.testing.assert_allclose(law.cdf(found.lower), level, rtol=1e-6)
    np.testing.assert_allclose(law.sf(found.upper), level, rtol=1e-6)


@pytest.mark.parametrize("trials", [1, 2, 50, 2500])
@pytest.mark.parametrize("error", [5e-17, 1e-12, 1e-8, 1e-4, 0.025, 0.5, 0.9, 1 - 1e-12, 1.0])
def test_any_error_has_a_level(trials, error):
    ranks = curves.compute_limits(trials, error).ranks
    level = curves.find_local_level(trials, ranks, error)
    assert error / len(ranks) * 0.99 <= level <= error * (1 + 1e-5)
    missed = 1 - curves.compute_coverage(trials, ranks, level)
    if 1e-8 <= error <= 0.99:
        assert missed == pytest.approx(error, rel=1e-4)
    else:
        assert missed <= error + 1e-10


def test_counts_between_the_ranks_are_enclosed_and_little_is_lost():
    trials, error = 1000, 0.025
    found, counts = curves.compute_limits(trials, error), np.arange(1001)
    low, high = found.enclose(counts)
    assert len(found.ranks) < trials and np.all(np.diff(low) >= 0) and np.all(np.diff(high) >= 0)
    assert (
        np.all((low <= counts / trials) & (counts / trials <= high))
        and low[0] == 0
        and high[-1] == 1
    )
    level = curves.find_local_level(trials, every(trials), error)
    best = stats.beta.ppf(level / 2, counts[1:], trials + 1 - counts[1:])
    assert (
        np.max((best - low[1:]) / (np.sqrt(counts[1:] * (1 - counts[1:] / (trials + 1))) / trials))
        < 0.6
    )
    np.testing.assert_allclose(high, 1 - low[::-1])


@pytest.mark.parametrize("trials", [10**4, 10**6])
def test_many_draws_are_looked_at_in_few_places(trials):
    found = curves.compute_limits(trials, 0.0301)
    assert len(found.ranks) <= 300 and found.ranks[0] == 1 and found.ranks[-1] == trials


@pytest.mark.parametrize("mu", [0.0, 0.5, 2.0])
def test_the_attacks_rates_are_those_of_a_gaussian_mechanism(mu):
    """Guesses at the middle are right with probability Phi(mu / 2); the limits hold what is true."""
    rng, n = np.random.default_rng(72), 20_000
    found = curves.attack(rng.normal(mu, 1, n), rng.normal(0, 1, n))
    expected = [
        special.ndtr(mu / 2),
        *(special.ndtr(mu + special.ndtri(rate)) for rate in (0.01, 0.001)),
    ]
    assert found.accuracy.value == pytest.approx(expected[0], abs=4 * 0.5 / np.sqrt(2 * n))
    for rate, true in zip(found, expected, strict=True):
        assert rate.lower < rate.value < rate.upper and rate.value == pytest.approx(true, abs=0.035)
    assert found.accuracy.lower < expected[0] < found.accuracy.upper


def test_the_attacks_limits_cover_its_accuracy():
    rng, hits = np.random.default_rng(73), 0
    for _ in range(SIMULATIONS):
        found = curves.attack(rng.normal(MU, 1, 300), rng.normal(0, 1, 300)).accuracy
        hits += found.lower <= special.ndtr(MU / 2) <= found.upper
    assert hits >= stats.binom.ppf(1e-3, SIMULATIONS, 0.95)


def test_a_tie_at_the_middle_is_half_right():
    assert curves.attack([1.0, 1.0], [0.0, 1.0, 1.0]).accuracy.value == pytest.approx(7 / 12)
    assert curves.attack([2.0, 1.0, 1.0], [0.0, 1.0, 1.0]).accuracy.value == pytest.approx(2 / 3)
    apart = curves.attack([2.0, 3.0], [0.0, 1.0])
    assert apart.accuracy.value == apart.accuracy.upper == 1.0
    assert curves.attack([0.0, 1.0], [2.0, 3.0]).accuracy.value == 0.0
    assert curves.attack([4.0, 5.0, 6.0, 7.0], [0.0]).accuracy.value == 1.0  # of unequal worlds too
    assert apart[1:] == (None, None)  # so few scores out allow no false positive
    found, none = curves.attack([2.0], np.arange(100) / 100)[1:]
    assert found == pytest.approx((1.0, 0.025, 1.0)) and none is None
    with pytest.raises(InputError, match="no out scores"):
        curves.attack([1.0], [])
