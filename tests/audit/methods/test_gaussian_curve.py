"""Tests the level of the curve test under Gaussian curves, and its power against others."""

import numpy as np
import pytest
from scipy import special

from audit.methods import gaussian_curve
from tests.cases import allowed_share, mostly_slow

LEVEL = 0.05
RNG = np.random.default_rng


def gaussian(mu):
    return lambda rng, n_in, n_out: (rng.normal(mu, 1, n_in), rng.normal(0, 1, n_out))


def laplace(epsilon):
    return lambda rng, n_in, n_out: (rng.laplace(epsilon, 1, n_in), rng.laplace(0, 1, n_out))


def student(shift):
    return lambda rng, n_in, n_out: (rng.standard_t(3, n_in) + shift, rng.standard_t(3, n_out))


def logistic(shift):
    return lambda rng, n_in, n_out: (rng.logistic(shift, 1, n_in), rng.logistic(0, 1, n_out))


def bit(epsilon):
    """A noisy bit, as two bumps far apart."""
    rate = special.expit(epsilon)

    def sample(rng, n_in, n_out):
        bits = rng.random(n_in) < rate, rng.random(n_out) < 1 - rate
        return tuple(np.where(b, 5, -5) + rng.normal(0, 1, len(b)) for b in bits)

    return sample


def wide(spread):
    return lambda rng, n_in, n_out: (rng.normal(1, spread, n_in), rng.normal(0, 1, n_out))


def fired(sample, n_in, n_out, audits, change=lambda scores: scores, seed=(5,)):
    p_values = []
    for i in range(audits):
        scores = sample(np.random.default_rng([*seed, i]), n_in, n_out)
        p_values.append(gaussian_curve.examine(*map(change, scores)))
    assert np.all((np.array(p_values) >= 0) & (np.array(p_values) <= 1))
    return np.mean(np.array(p_values) < LEVEL)


@pytest.mark.parametrize(
    "mu, n_in, n_out",
    mostly_slow(
        [
            (1, 100, 400),
            (0, 100, 100),
            (6, 200, 200),
            (-1, 800, 200),
            (4, 400, 400),
            (5, 1600, 400),
        ],
    ),
)
def test_a_gaussian_curve_passes(mu, n_in, n_out):
    assert fired(gaussian(mu), n_in, n_out, 20) <= allowed_share(LEVEL, 20)


@pytest.mark.parametrize("unit", mostly_slow([2.0, 0.5, 3.0]))
def test_ties_pass_where_the_curve_is_gaussian(unit):
    rounded = fired(gaussian(1.0), 400, 400, 20, lambda scores: np.round(scores / unit))
    assert rounded <= allowed_share(LEVEL, 20)


@pytest.mark.parametrize(
    "sample",
    mostly_slow([laplace(1.0), bit(1.0), student(2.0), laplace(3.0), bit(3.0), wide(1.5)], quick=2),
)
def test_another_curve_is_refuted(sample):
    assert fired(sample, 600, 600, 10) >= 0.9 and fired(sample, 500, 2000, 10) >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("mu", [0.0, 1.0, 4.0, 6.0])
@pytest.mark.parametrize("n", [100, 2500])
def test_the_level_is_kept(mu, n, assert_covers):
    def draw(first, audits):
        return {"examine": round(audits * fired(gaussian(mu), n, n, audits, seed=[5, first]))}

    assert_covers(draw, 300, LEVEL)


@pytest.mark.parametrize("sample", [gaussian(-2.0), gaussian(4.0), laplace(3.0), wide(1.5)])
def test_the_fit_is_the_most_likely(sample):
    rng = np.random.default_rng(3)
    counts = gaussian_curve.count_in_bins(*sample(rng, 400, 900))
    fit = gaussian_curve.fit_counts(counts)
    assert counts.shape[1] == 16 and np.all(np.diff(fit.cuts) > 0)
    if sample.__qualname__.startswith("gaussian"):
        assert min(abs(fit.mu + 2), abs(fit.mu - 4)) < 0.3
    least = gaussian_curve.compute_likelihood_ratio(counts, fit)
    for _ in range(50):
        mu, *cuts = 0.01 * rng.normal(size=len(fit.cuts) + 1)
        other = gaussian_curve.Fit(fit.mu + mu, fit.cuts + cuts)
        assert gaussian_curve.compute_likelihood_ratio(counts, other) > least


def test_a_few_known_tables():
    s_in, s_out = gaussian(1.0)(RNG(1), 300, 500)
    found = gaussian_curve.examine(s_in, s_out)
    assert found < 1 and gaussian_curve.examine(np.exp(s_in[::-1]), np.exp(s_out)) == found
    assert fired(laplace(-2.0), 600, 600, 5) == 1
    # As many scores in the middle of both worlds as a Gaussian curve never has.
    assert gaussian_curve.examine([0, 1, 2] * 100, [0, 0, 0, 0, 0, 2] * 50) < 1e-3
    assert gaussian_curve.examine(np.arange(0, 80, 2), np.arange(1, 81, 2)) > 0.5


@pytest.mark.parametrize(
    "scores_in, scores_out",
    [
        ([0, 1, 1, 1] * 50, [0, 0, 0, 1] * 50),  # two values
        (np.arange(100) + 1000, np.arange(100)),  # worlds apart
        (np.arange(100), np.arange(100) + 1000),
        ([1.0, 2.0, 3.0], [0.0, 1.5]),  # too few
        ([1.0], [0.0]),
        ([0] * 99 + [1], [0] * 100),
    ],
)
def test_nothing_to_test_is_a_pass(scores_in, scores_out):
    assert gaussian_curve.examine(scores_in, scores_out) == 1
    assert gaussian_curve.power(scores_in, scores_out) == 0


@pytest.mark.parametrize(
    "sample", mostly_slow([laplace(6.0), logistic(6.0), student(2.0)], quick=0)
)
def test_the_power_is_how_often_the_test_fires(sample):
    """The least of four, so at most that of the law itself; here logistic noise is the hardest."""
    said = np.mean([gaussian_curve.power(*sample(RNG([6, i]), 800, 1200)) for i in range(4)])
    share = fired(sample, 800, 1200, 40)
    assert said <= share + 0.2
    assert said >= share - 0.2 or not sample.__qualname__.startswith("logistic")


def test_power_grows_with_the_scores():
    few, some, many = (gaussian_curve.power(*gaussian(1.0)(RNG(7), n, n)) for n in (50, 500, 2500))
    assert few < some < many == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "sample", [laplace(1.0), laplace(6.0), logistic(2.0), bit(3.0), student(2.0)]
)
@pytest.mark.parametrize("n", [100, 500, 2500])
def test_a_curve_that_is_not_gaussian_is_refuted_or_in_doubt(sample, n, assert_covers):
    def passes(i):
        scores = sample(np.random.default_rng([8, i]), n, n)
        refuted = gaussian_curve.examine(*scores) < LEVEL
        return not refuted and gaussian_curve.power(*scores) >= gaussian_curve.CURVE_POWER

    assert_covers(
        lambda first, number: {"passes": sum(map(passes, range(first, first + number)))}, 100, 0.06
    )
