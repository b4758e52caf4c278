"""The cosine's law: against 40-digit arithmetic, draws, and its own inverse."""

import mpmath
import numpy as np
import pytest
from scipy import stats

from audit.errors import InputError
from audit.statistics import cosine_law


@pytest.mark.parametrize(
    ("dimension", "cosine"),
    [(2, 0.3), (3, -0.5), (10, 0.5), (1000, 0.6), (10**4, 0.9), (2000, 0.9999), (2000, 0.02), (50, 0.0)],
)
def test_it_agrees_with_forty_digits(dimension, cosine):
    with mpmath.workdps(40):
        half = mpmath.mpf(dimension - 1) / 2
        half = mpmath.betainc(half, 0.5, 0, 1 - mpmath.mpf(cosine) ** 2, regularized=True)
        expected = float(mpmath.log(half / 2 if cosine >= 0 else 1 - half / 2))
    assert float(cosine_law.log_sf(cosine, dimension)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("dimension", [2, 3, 5, 200, 10**7])
def test_the_quantile_inverts_and_both_tails_mirror(dimension):
    p = np.array([1e-9 if dimension > 2 else 1e-5, 1e-3, 0.3, 0.5, 0.7, 0.999])
    t = cosine_law.quantile(p, dimension)
    assert np.exp(cosine_law.log_cdf(t, dimension)) == pytest.approx(p, rel=1e-7)
    assert cosine_law.log_sf(-t, dimension) == pytest.approx(cosine_law.log_cdf(t, dimension))
    assert cosine_law.quantile(1 - p, dimension) == pytest.approx(-t, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("dimension", [2, 3, 30])
def test_draws_have_it_and_those_of_vectors_too(dimension):
    rng = np.random.default_rng(0)
    drawn = cosine_law.draw(rng, (20_000,), dimension)
    vectors = rng.standard_normal((20_000, dimension))
    for cosines in (drawn, vectors[:, 0] / np.linalg.norm(vectors, axis=1)):
        law = stats.kstest(cosines, lambda t: np.exp(cosine_law.log_cdf(t, dimension)))
        assert law.pvalue > 1e-3
    other = stats.kstest(drawn, lambda t: np.exp(cosine_law.log_cdf(t, dimension + 3)))
    assert other.pvalue < 1e-3


def test_the_density_is_the_slope_and_the_ends_and_far_tails_fit():
    t = np.linspace(-0.9, 0.9, 2001)
    slope = np.gradient(np.exp(cosine_law.log_cdf(t, 7)), t)
    assert slope[1:-1] == pytest.approx(np.exp(cosine_law.log_density(t, 7))[1:-1], abs=1e-4)
    assert cosine_law.draw(np.random.default_rng(1), (10**6,), 7).var() == pytest.approx(1 / 7, rel=0.01)
    for dimension in (10**4, 10**6, 10**9):
        at = np.sqrt(np.linspace(1200, 1350, 60) / dimension)  # around -644, where the formula changes
        steps = np.diff(cosine_law.log_sf(at, dimension))
        assert (steps < 0).all() and np.abs(np.diff(steps)).max() < 1e-3
    assert cosine_law.log_sf(1.0, 10) == -np.inf and cosine_law.log_sf(-1.0, 10) == 0
    with pytest.raises(InputError, match="`dimension=1`"):
        cosine_law.log_sf(0.5, 1)
