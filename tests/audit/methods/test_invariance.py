"""Tests that bounds do not depend on the order of rows, or on an increasing map of all scores."""

import numpy as np
import pytest

from audit.evidence import canaries, given
from audit.evidence.canaries import Coins, Fresh
from audit.methods import estimate, exact_null, lifted
from tests.cases import mostly_slow

LEVEL = (1e-3, 0.9)
MAPS = {
    "exp": np.exp,
    "cube": lambda x: x**3,
    "arctan": np.arctan,
    "scaled": lambda x: 2.0**60 * x - 7,
    "ranks": lambda x: np.unique(x, return_inverse=True)[1].reshape(x.shape),
    "infinite at the ends": lambda x: np.where(
        x == x.max(), np.inf, np.where(x == x.min(), -np.inf, x)
    ),
    "NaN for the lowest": lambda x: np.where(x == x.min(), np.nan, x),
}
ROUNDED = {
    "as drawn": lambda x: x,
    "float16": lambda x: x.astype(np.float16).astype(np.float64),
    "k/21": lambda x: np.round(21 * x) / 21,
}


def drawn(shape, rounded, seed):
    rng = np.random.default_rng([41, seed])
    scores = np.concatenate([rng.normal(1, 1, shape), rng.normal(0, 1, shape)])
    return ROUNDED[rounded](scores)


def bounds_of(design):
    """Returns (epsilon, mu) by method, of all that take the design."""
    if design.canaries == (1, 1):
        values = [method.compute(*design.pooled(), *LEVEL) for method in estimate.METHODS.values()]
    else:
        values = lifted.bounds(design, *LEVEL)
    return {value.method: (value.epsilon, value.mu) for value in values}


def worlds(scores):
    half = len(scores) // 2
    return canaries.make_sets(scores[:half], scores[half:])


def coins(scores):
    presence = np.random.default_rng(42).random(scores.shape) < 0.5
    return given.coins(scores + 0.0, presence)


DESIGNS = {"one canary": (worlds, (150, 1)), "sets": (worlds, (60, 4)), "coins": (coins, (60, 4))}


@pytest.mark.parametrize("rounded", mostly_slow(ROUNDED, quick=2))
@pytest.mark.parametrize(
    "design, mapped", mostly_slow([(d, m) for m in MAPS for d in DESIGNS], quick=2)
)
def test_an_increasing_map_of_all_scores_changes_no_bound(design, mapped, rounded):
    make, shape = DESIGNS[design]
    for seed in range(2):
        scores = drawn(shape, rounded, seed)
        assert bounds_of(make(MAPS[mapped](scores))) == bounds_of(make(scores))


@pytest.mark.parametrize("rounded", mostly_slow(ROUNDED, quick=2))
@pytest.mark.parametrize("order", mostly_slow(["shuffled", "sorted", "reversed"]))
def test_the_order_of_rows_changes_no_bound_of_one_or_many_canaries(order, rounded):
    rng = np.random.default_rng(43)
    for canaries_each, make in ((1, worlds), (4, worlds)):
        scores = drawn((80, canaries_each), rounded, 7)
        halves = np.split(scores, 2)
        if order == "shuffled":
            halves = [rng.permutation(half) for half in halves]
        if order == "sorted":
            halves = [half[np.argsort(half.mean(1))] for half in halves]
        if order == "reversed":  # with the columns of each row in another order
            halves = [rng.permuted(half[::-1], axis=1) for half in halves]
        assert bounds_of(make(np.concatenate(halves))) == bounds_of(make(scores))


def test_the_order_of_runs_and_of_canaries_with_coins_changes_no_bound():
    rng = np.random.default_rng(44)
    design = coins(drawn((40, 4), "k/21", 8))
    columns = np.argsort(rng.random(design.scores.shape), axis=1)
    rows = rng.permutation(80)
    turned = [np.take_along_axis(one, columns, axis=1)[rows] for one in design[:2]]
    assert bounds_of(Coins(*turned, True)) == bounds_of(design)


@pytest.mark.parametrize("runs, each", [(200, 1), (12, 64)])
def test_the_order_of_runs_changes_no_exact_null_of_a_caller(runs, each):
    rng = np.random.default_rng(45)
    cosines = (rng.normal(size=(runs, each)) + rng.normal(2, 1, (runs, 1))) / 200
    first = None
    by_mean, by_first = np.argsort(-cosines.mean(1)), np.argsort(cosines[:, 0])
    for order in (np.arange(runs), rng.permutation(runs), by_mean, by_first):
        design = Fresh(
            cosines[order], np.ones(cosines.shape, bool), 40_000, from_user=True, in_order=False
        )
        bound = exact_null.bound_directions(design, *LEVEL)
        first = bound.epsilon if first is None else first
        assert bound.epsilon == first > 0 and bound.path == ()


def test_the_largest_capital_along_the_file_counts_where_the_order_is_vouched_for():
    cosines = (
        np.sort(np.random.default_rng(46).normal(size=(1000, 1)), axis=0)[::-1] / 100
    )  # without a leak
    present = np.ones(cosines.shape, bool)
    unordered = Fresh(cosines, present, 10_000, from_user=True, in_order=False)
    by_order = {
        design.in_order: exact_null.bound_directions(design, *LEVEL)
        for design in (unordered, unordered._replace(in_order=True))
    }
    assert by_order[True].epsilon > 2 and by_order[False].epsilon == 0
    assert by_order[True].epsilon == max(by_order[True].path)
