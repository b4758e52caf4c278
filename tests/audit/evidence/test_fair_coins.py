"""Tests that fair coins pass, and that unfair coins are rejected with the reason."""

import itertools

import numpy as np
import pytest

from audit.errors import InputError
from audit.evidence import fair_coins

RNG = np.random.default_rng(0)
FAIR = RNG.random((200, 8)) < 0.5
UNFAIR = {
    "too many in": (
        RNG.random((200, 8)) < 0.7,
        r"1,1\d\d of 1,600 canaries are in \(p = .* for fair coins\): ",
    ),
    "one canary": (
        FAIR | (np.arange(8) == 3),
        r"canary 3 has 200 heads among 200 coins \(p = 1e-59 ",
    ),
    "one run": (
        (RNG.random((80, 64)) < 0.5) | (np.arange(80) == 3)[:, None],
        "run 3 has 64 heads among 64 coins",
    ),
    "one draw for all runs": (np.tile(FAIR[:1], (100, 1)), "1 run apart differ in 0 of 792"),
    "runs pasted four times": (
        np.repeat(FAIR[:25], 4, 0),
        "coins . runs? apart differ",
    ),
    "half of each run": (
        RNG.random((200, 64)).argsort(1) < 32,
        "heads per run has a standard deviation of 0, but 4 for fair",
    ),
    "runs of their own rate": (
        RNG.random((200, 64)) < 0.3 + 0.4 * RNG.random((200, 1)),
        "heads per run has a standard deviation of",
    ),
    "in turns": (np.arange(200)[None] % 2, "1 canary apart differ in 199 of 199"),
    "a pattern again and again": (
        np.tile([1, 1, 0, 1, 0, 0, 1, 0], 100)[None],
        "4 canaries apart differ in 796 of 796",
    ),
    "first half of runs in": (np.sort(RNG.random((400, 1)) < 0.5, axis=0), "1 run apart differ"),
}


@pytest.mark.parametrize(("bits", "says"), UNFAIR.values(), ids=UNFAIR)
def test_what_is_no_fair_coin_is_refused_in_one_line(bits, says):
    with pytest.raises(InputError, match=says) as refused:
        fair_coins.require_fair(np.asarray(bits, bool))
    assert "\n" not in str(refused.value) and "drawn with independent fair coins" in str(
        refused.value
    )


@pytest.mark.parametrize(
    "shape", [(1, 40), (1, 5000), (8, 1), (8, 2), (100, 8), (30, 300), (5000, 3)]
)
def test_fair_coins_pass(shape):
    for _ in range(5):
        fair_coins.require_fair(RNG.random(shape) < 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1, 12), (4, 3), (3, 4), (6, 2)])
def test_each_test_holds_its_level_over_all_coins(shape):
    """All 2^12 tables: no test's p-value is at most x in more than a share x of them."""
    tables = [np.array(bits, bool).reshape(shape) for bits in itertools.product((0, 1), repeat=12)]
    found = np.exp([[test.log_p for test in fair_coins._tests(table)] for table in tables])
    for values in found.T:
        for level in np.unique(values):
            assert np.mean(values <= level * (1 + 1e-12)) <= level * (1 + 1e-9)
