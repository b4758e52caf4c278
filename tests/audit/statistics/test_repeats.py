"""Runs that are counted twice are seen, and nothing that repeats by nature is."""

import numpy as np
import pytest

from audit import bounds
from audit.concluded import conclude
from audit.report import bounds_table, verdicts
from audit.statistics import estimate
from audit.statistics.canaries import Coins, Sets
from audit.statistics.repeats import once


def worlds(n=500, mu=1.0, seed=0):
    rng = np.random.default_rng([31, seed])
    return rng.normal(mu, 1, n), rng.normal(0, 1, n)


@pytest.mark.parametrize("times", [2, 5])
def test_pasted_rows_are_counted_once_in_any_order(times):
    rng, scores = np.random.default_rng(1), worlds()
    pasted = [rng.permutation(np.tile(world, times)) for world in scores]
    found, alone = bounds(*pasted), bounds(*scores)
    assert found.bounds == alone.bounds and found.conclusion.repeats == 1000 * (times - 1)
    line = f"{1000 * (times - 1):,} runs repeat another's scores to the last digit"
    assert line in str(found) and line in verdicts.verdict(found.conclusion).sentence
    assert found.to_dict()["repeats"] == 1000 * (times - 1) and "repeats" not in alone.to_dict()


@pytest.mark.parametrize(
    "scores",
    [
        worlds(),
        [np.round(world, 3) for world in worlds()],
        [world.astype(np.float32) for world in worlds(20_000)],
        [(world > 0.5) + 0.123456789 for world in worlds()],
        [np.maximum(world, 0.0) for world in worlds()],
    ],
    ids=["float64", "rounded", "float32", "two levels", "many zeros"],
)
def test_what_repeats_by_nature_stays(scores):
    design = Sets(*(np.asarray(world, np.float64)[:, None] for world in scores))
    assert once(design)[1] == 0


def test_repeated_rows_of_several_canaries():
    rng = np.random.default_rng(2)
    scores, presence = rng.normal(size=(50, 8)), rng.random((50, 8)) < 0.5
    pasted = Coins(np.tile(scores, (4, 1)), np.tile(presence, (4, 1)))
    found, left_out = once(pasted)
    assert (
        left_out == 150 and np.array_equal(found.scores, scores) and np.array_equal(found.presence, presence)
    )
    sets = Sets(np.tile(scores, (2, 1)), rng.normal(size=(60, 7)))
    found, left_out = once(sets)
    assert left_out == 50 and found.inserted.shape == (50, 8) and found.fresh.shape == (60, 7)
    assert "50 runs repeat" in bounds_table.bounds_table(conclude(sets))


@pytest.mark.slow
def test_pasted_runs_exceed_no_more_often_than_others(audits=150):
    """On randomised response, where the bound is tight; counted as they come, fives exceed in 28%."""
    exceeding = {True: 0, False: 0}
    for seed in range(audits):
        rng = np.random.default_rng([37, seed])
        flips = rng.random((2, 200)) > np.e / (1 + np.e)
        scores = ~flips[0] + 1e-6 * rng.normal(size=200), flips[1] + 1e-6 * rng.normal(size=200)
        pasted = [np.tile(world, 5) for world in scores]
        exceeding[True] += conclude(Sets(*(world[:, None] for world in pasted))).epsilon > 1
        exceeding[False] += estimate.assumption_free(*pasted, 1e-5, 0.95).epsilon > 1
    assert exceeding[True] <= 0.05 * audits + 5 and exceeding[False] > 0.12 * audits


def test_few_equal_scores_in_float32_are_chance():
    rng = np.random.default_rng(3)
    scores = rng.normal(size=(5000, 1)).astype(np.float32).astype(np.float64)
    scores[:8] = scores[8:16]
    assert once(Coins(scores, rng.random((5000, 1)) < 0.5))[1] == 0
