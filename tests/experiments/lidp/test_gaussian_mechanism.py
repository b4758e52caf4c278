"""The Gaussian mechanism simulated exactly: held against its definition, sum by sum, and closed forms."""

import numpy as np
import pytest
from scipy import stats

from audit.errors import InputError
from experiments.lidp.gaussian_mechanism import GaussianMechanism, simulate


def directly(setting, seed):
    """(inserted, fresh) scores by drawing all vectors: O(n K d)."""
    runs, canaries, dimension, sigma = setting
    rng = np.random.default_rng(seed)

    def directions(count):
        vectors = rng.standard_normal((runs, count, dimension))
        return vectors / np.linalg.norm(vectors, axis=2, keepdims=True)

    ours, others, fresh = directions(canaries), directions(canaries - 1), directions(canaries)
    released, without = (
        one.sum(1) + sigma * rng.standard_normal((runs, dimension)) for one in (ours, others)
    )
    return np.einsum("rkd,rd->rk", ours, released), np.einsum("rkd,rd->rk", fresh, without)


SMALL = [GaussianMechanism(4000, 1, 2, 0.7), GaussianMechanism(4000, 3, 3, 0.5),
         GaussianMechanism(4000, 4, 9, 1.5), GaussianMechanism(4000, 8, 20, 1.0)]  # fmt: skip


@pytest.mark.parametrize("setting", SMALL, ids=str)
def test_scores_have_the_laws_of_the_definition(setting):
    found, expected = simulate(setting, 0), directly(setting, 1)
    for ours, theirs in zip(found, expected, strict=True):
        assert stats.ks_2samp(ours[:, 0], theirs[:, 0]).pvalue > 1e-3
        assert stats.ks_2samp(ours[:, -1], theirs[:, -1]).pvalue > 1e-3
        assert stats.ks_2samp(ours.sum(1), theirs.sum(1)).pvalue > 1e-3
        assert stats.ks_2samp(ours.max(1), theirs.max(1)).pvalue > 1e-3
        assert ours.var() == pytest.approx(theirs.var(), rel=0.1)


@pytest.mark.parametrize(("canaries", "dimension"), [(8, 100), (16, 1000), (4, 10**6)])
def test_means_variances_and_correlations_follow_the_closed_forms(canaries, dimension):
    sigma, runs = 1.2, 40_000
    inserted, fresh = simulate(GaussianMechanism(runs, canaries, dimension, sigma), 0)
    variance = sigma**2 + (canaries - 1) / dimension
    assert inserted.mean() == pytest.approx(1, abs=0.02) and fresh.mean() == pytest.approx(0, abs=0.02)
    assert inserted.var(0) == pytest.approx(np.full(canaries, variance), rel=0.05)
    assert fresh.var(0) == pytest.approx(np.full(canaries, variance), rel=0.05)
    pairs = np.triu_indices(canaries, 1)
    noise = variance / np.sqrt(runs * len(pairs[0]))
    assert np.cov(inserted.T)[pairs].mean() == pytest.approx(1 / dimension, abs=5 * noise)
    assert np.cov(fresh.T)[pairs].mean() == pytest.approx(0, abs=5 * noise)


def test_the_second_moment_exceeds_the_square_as_one_over_d():
    """mu_2 - mu_1^2 is about (phi((tau - 1) / s) / s)^2 / d: 0.0011 for d = 100, K = 8, sigma^2 = 1.34."""
    found = (simulate(GaussianMechanism(400_000, 8, 100, np.sqrt(1.34)), 0).inserted >= 1.0).sum(1)
    excess = np.mean(found * (found - 1)) / 56 - np.mean(found / 8) ** 2
    spread = np.sqrt(1.34 + 7 / 100)
    assert excess == pytest.approx((stats.norm.pdf(0) / spread) ** 2 / 100, rel=0.15)


def test_a_seed_decides_and_blocks_do_not_repeat():
    setting = GaussianMechanism(50, 4, 30, 1.0)
    one, again, other = simulate(setting, 0), simulate(setting, 0), simulate(setting, 1)
    assert np.array_equal(one.inserted, again.inserted) and np.array_equal(one.fresh, again.fresh)
    assert not np.array_equal(one.inserted, other.inserted)
    many = simulate(GaussianMechanism(300, 256, 300, 1.0), 0).inserted
    assert len(np.unique(many)) == many.size


@pytest.mark.parametrize(("canaries", "dimension"), [(5, 4), (1, 1)])
def test_more_canaries_than_dimensions_are_refused(canaries, dimension):
    with pytest.raises(InputError, match=f"`dimension={dimension}`"):
        simulate(GaussianMechanism(10, canaries, dimension, 1.0), 0)
