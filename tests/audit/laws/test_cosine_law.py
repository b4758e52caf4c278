"""Tests the distribution of the cosine against 40-digit arithmetic and draws, and Anderson-Darling."""

import mpmath
import numpy as np
import pytest
from scipy import special, stats

from audit.errors import InputError
from audit.laws import cosine_law
from audit.laws.cosine_law import LEVELS, anderson_darling, simulate
from tests.cases import draw_null_cosines, mostly_slow


def cdf_of(dimension):
    return lambda t: -np.expm1(cosine_law.log_sf(t, dimension))


@pytest.mark.parametrize(
    ("dimension", "cosine"),
    [
        (2, 0.3),
        (3, -0.5),
        (10, 0.5),
        (68, 0.9644),
        (2689, 0.25259),
        (62_006, 0.053418),
        (10**4, 0.9),
        (2000, 0.9999),
        (1000, 1 - 1e-6),
        (50, 1 - 1e-12),
    ],
)
def test_it_agrees_with_forty_digits(dimension, cosine):
    with mpmath.workdps(60):
        half = mpmath.mpf(dimension - 1) / 2
        half = mpmath.betainc(half, 0.5, 0, 1 - mpmath.mpf(cosine) ** 2, regularized=True)
        expected = float(mpmath.log(half / 2 if cosine >= 0 else 1 - half / 2))
    assert float(cosine_law.log_sf(cosine, dimension)) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("deviations", [30.0, 60.0, 1000.0])
@pytest.mark.parametrize("dimension", [3000, 11_000_000, 10**13])
def test_far_tails_are_just_above_those_of_forty_digits(dimension, deviations):
    """With w = -k log((1 - u^2) / (1 - t^2)) for u > t: mpmath's betainc does not converge there."""
    cosine = deviations / np.sqrt(dimension - 1 + deviations**2)
    with mpmath.workdps(40):
        k = mpmath.mpf(dimension - 3) / 2
        square = mpmath.mpf(float(cosine)) ** 2

        def integrand(w):
            shrunk = mpmath.exp(-w / k)
            return mpmath.exp(-w) * shrunk / mpmath.sqrt(1 - (1 - square) * shrunk)

        integral = mpmath.quad(integrand, [0, 0.1, 1, 3, 10, 30, 100]) / (2 * k)
        half = mpmath.mpf(1) / 2
        log_beta = mpmath.loggamma(half) + mpmath.loggamma(k + 1) - mpmath.loggamma(k + 1 + half)
        expected = float((k + 1) * mpmath.log1p(-square) + mpmath.log(integral) - log_beta)
    excess = float(cosine_law.log_sf(cosine, dimension)) - expected
    assert -1e-9 * max(1, -expected) <= excess < 1e-3


@pytest.mark.parametrize("dimension", [2, 3, 5, 200, 10**7])
def test_the_quantile_inverts_and_the_tails_mirror(dimension):
    p = np.array([1e-9 if dimension > 2 else 1e-5, 1e-3, 0.3, 0.5, 0.7, 0.999])
    t = cosine_law.quantile(p, dimension)
    assert np.exp(cosine_law.log_sf(-t, dimension)) == pytest.approx(p, rel=1e-7)
    assert cosine_law.quantile(1 - p, dimension) == pytest.approx(-t, rel=1e-6, abs=1e-12)


def test_draws_have_it_the_density_is_the_slope_and_the_ends_fit():
    rng = np.random.default_rng(0)
    for dimension in (2, 30):
        drawn = draw_null_cosines(rng, (20_000,), dimension)
        vectors = rng.standard_normal((20_000, dimension))
        for cosines in (drawn, vectors[:, 0] / np.linalg.norm(vectors, axis=1)):
            assert stats.kstest(cosines, cdf_of(dimension)).pvalue > 1e-3
    t = np.linspace(-0.9, 0.9, 2001)
    slope = np.gradient(cdf_of(7)(t), t)
    assert slope[1:-1] == pytest.approx(np.exp(cosine_law.log_density(t, 7))[1:-1], abs=1e-4)
    for dimension in (10**4, 10**9):  # around -644, where the formula changes
        at = np.sqrt(np.linspace(1200, 1350, 60) / dimension)
        steps = np.diff(cosine_law.log_sf(at, dimension))
        assert (steps < 0).all() and np.abs(np.diff(steps)).max() < 2e-3
    assert cosine_law.log_sf(1.0, 10) == -np.inf and cosine_law.log_sf(-1.0, 10) == 0
    with pytest.raises(InputError, match="`dimension=1`"):
        cosine_law.log_sf(0.5, 1)


def test_values_are_the_papers_and_the_textbooks():
    x = np.sort(np.random.default_rng(0).normal(3, 2, 50))
    z = stats.norm((x - x.mean()) / x.std(ddof=1)).logcdf(0)  # log Phi(-z)
    below = special.log_ndtr((x - x.mean()) / x.std(ddof=1))
    expected = -50 - sum((2 * i + 1) / 50 * (below[i] + z[49 - i]) for i in range(50))
    assert anderson_darling(x).statistic == pytest.approx(expected)


def test_it_keeps_its_level_and_sees_what_is_not_normal():
    rng = np.random.default_rng(0)
    found = [anderson_darling(rng.normal(5, 1e-3, 300)) for _ in range(1000)]
    # The critical values of Stephens (1974), for n = 300 values.
    critical = np.array([0.576, 0.656, 0.787, 0.918, 1.092]) / (1 + 4 / 300 - 25 / 300**2)
    for one in found:
        exceeded = [level for level, c in zip(LEVELS, critical, strict=True) if one.statistic > c]
        assert one.rejected_at == min(exceeded, default=None)
    for level, place in ((0.15, 0), (0.05, 2)):
        share = np.mean([one.statistic > critical[place] for one in found])
        assert share == pytest.approx(level, abs=4 * np.sqrt(level / 1000))
    assert anderson_darling(rng.exponential(size=300)).rejected_at == 0.01
    assert {one.rejected_at for one in found} > {None, 0.15}


def directly(rng, canaries, dimension, sigma):
    """Algorithm 1 as it is written: every canary and the noise in R^d."""
    rows = rng.standard_normal((canaries, dimension))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    total = rows.sum(0) + sigma * rng.standard_normal(dimension)
    return rows @ total / np.linalg.norm(total)


@pytest.mark.parametrize(
    ("canaries", "dimension", "sigma"),
    mostly_slow([(2, 3, 0.5), (5, 12, 0.3), (20, 200, 1.5), (30, 31, 0.0)], quick=2),
)
def test_both_ways_have_one_law(canaries, dimension, sigma):
    rng, audits = np.random.default_rng(0), 1500
    given = rng, canaries, dimension, sigma
    both = [np.array([way(*given) for _ in range(audits)]) for way in (simulate, directly)]
    for one, other in zip(
        *([x[:, 0], x[:, -1], x.mean(1), x.std(1), x.max(1)] for x in both), strict=True
    ):
        assert stats.ks_2samp(one, other).pvalue > 1e-4
    wrong = np.array([simulate(rng, canaries, dimension, sigma + 0.5) for _ in range(audits)])
    assert stats.ks_2samp(wrong.mean(1), both[1].mean(1)).pvalue < 1e-4


def test_large_dimensions():
    rng = np.random.default_rng(0)
    found = simulate(rng, 100, 100_000, 1.0) * np.sqrt(100_000)
    assert found.mean() == pytest.approx(1.0, abs=0.5) and found.std() == pytest.approx(
        1.0, abs=0.3
    )
