"""Canaries, coins and cosines of one run in NumPy: their distributions, and the detection of a canary."""

import numpy as np
import pytest
from scipy import stats

from audit import one_run
from audit.laws import cosine_law

CANARY = [-0.434509513025839, 0.684083223363011, -0.294662939327961, -0.506364867254756]
COINS = [1, 0, 0, 1, 0, 1, 1, 0]


def test_canaries_are_uniform_directions_and_coins_independent_of_them():
    drawn = np.array([one_run.canary(0, i, 6) for i in range(2000)])
    assert np.linalg.norm(drawn, axis=1) == pytest.approx(np.ones(2000))
    for column in drawn.T:
        assert stats.kstest(column, lambda t: -np.expm1(cosine_law.log_sf(t, 6))).pvalue > 1e-4
    assert np.abs(drawn.T @ drawn / 2000 - np.eye(6) / 6).max() < 0.02
    assert np.abs(one_run.canary(0, 1, 6) - one_run.canary(1, 0, 6)).max() > 0.01
    coins = one_run.coins(3, 10_000)
    assert coins.dtype == bool and abs(coins.mean() - 0.5) < 0.02
    assert np.array_equal(coins[:50], one_run.coins(3, 50))
    first = np.array([one_run.canary(3, i, 3)[0] for i in range(3000)])
    assert abs(np.corrcoef(coins[:3000], first)[0, 1]) < 0.08
    assert one_run.canary(5, 2, 4) == pytest.approx(CANARY, abs=1e-12)
    assert one_run.coins(5, 8).astype(int).tolist() == COINS


def test_a_canary_that_took_part_is_seen():
    noise = 0.01 * np.random.default_rng(0).standard_normal(400)
    moved = sum(one_run.canary(9, i, 400) for i in range(5)) + noise
    found = one_run.cosines(moved.astype(np.float32), 9, 10)
    units = np.array([one_run.canary(9, i, 400) for i in range(10)])
    assert found == pytest.approx(units @ moved / np.linalg.norm(moved), abs=1e-7)
    assert found[:5].min() > 0.3 > 0.2 > np.abs(found[5:]).max()
    assert one_run.cosines(1e100 * moved, 9, 10) == pytest.approx(found, abs=1e-7)
