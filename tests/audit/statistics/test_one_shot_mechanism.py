"""Algorithm 1 simulated in the span of the canaries and in all of R^d: one law."""

import numpy as np
import pytest
from scipy import stats

from audit.errors import InputError
from audit.statistics import cosine_law
from audit.statistics.cosine_law import released, rotated, simulate


def directly(rng, canaries, dimension, sigma):
    """Algorithm 1 as it is written: every canary and the noise in R^d."""
    rows = rng.standard_normal((canaries, dimension))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    total = rows.sum(0) + sigma * rng.standard_normal(dimension)
    return rows @ total / np.linalg.norm(total)


@pytest.mark.parametrize(
    ("canaries", "dimension", "sigma"), [(2, 3, 0.5), (5, 12, 0.3), (20, 200, 1.5), (30, 31, 0.0)]
)
def test_both_ways_have_one_law(canaries, dimension, sigma):
    rng, audits = np.random.default_rng(0), 1500
    given = rng, canaries, dimension, sigma
    both = [np.array([way(*given) for _ in range(audits)]) for way in (simulate, directly)]
    for one, other in zip(*([x[:, 0], x[:, -1], x.mean(1), x.std(1), x.max(1)] for x in both), strict=True):
        assert stats.ks_2samp(one, other).pvalue > 1e-4
    products = [(x[:, 0] - x.mean()) * (x[:, 1] - x.mean()) for x in both]
    tolerance = 5 * products[0].std() / np.sqrt(audits)
    assert products[0].mean() == pytest.approx(products[1].mean(), abs=tolerance)
    wrong = np.array([simulate(rng, canaries, dimension, sigma + 0.5) for _ in range(audits)])
    assert stats.ks_2samp(wrong.mean(1), both[1].mean(1)).pvalue < 1e-4


def test_large_dimensions_and_rotated_canaries():
    rng = np.random.default_rng(0)
    found = [way(rng, 100, 100_000, 1.0) * np.sqrt(100_000) for way in (simulate, directly) for _ in range(4)]
    assert [one.mean() for one in found] == pytest.approx([1.0] * 8, abs=0.5)
    assert [one.std() for one in found] == pytest.approx([1.0] * 8, abs=0.3)
    rows = np.array([rotated(rng, 4, 9) for _ in range(4000)])
    assert np.linalg.norm(rows, axis=2) == pytest.approx(np.ones((4000, 4)))
    products = np.einsum("sd,sd->s", rows[:, 1], rows[:, 3])
    assert stats.kstest(products, lambda t: np.exp(cosine_law.log_cdf(t, 9))).pvalue > 1e-4
    found = np.concatenate([simulate(rng, 1, 20, 1e9) for _ in range(4000)])
    assert stats.kstest(found, lambda t: np.exp(cosine_law.log_cdf(t, 20))).pvalue > 1e-4
    with pytest.raises(InputError, match="sigma is -1"):
        released(np.random.default_rng(0), np.eye(2), 3, -1.0)


@pytest.mark.parametrize(("canaries", "dimension"), [(0, 5), (5, 5), (6, 5)])
def test_too_many_canaries_are_refused(canaries, dimension):
    with pytest.raises(InputError, match="`canaries="):
        rotated(np.random.default_rng(0), canaries, dimension)
