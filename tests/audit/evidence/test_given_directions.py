"""Tests the checks of a user's cosines: their power, and how rarely they reject valid cosines."""

import numpy as np
import pytest

import audit
from audit.errors import InputError
from audit.evidence import given as evidence_given
from audit.evidence import leave_one_out
from audit.evidence.canaries import Fresh
from audit.evidence.decimals import count_needed_decimals
from audit.evidence.given_directions import (
    LEVEL,
    columns_p_value,
    describe_dimension,
    given,
    require_possible,
)
from audit.laws import cosine_law
from audit.methods import exact_null
from audit.storage import score_files
from tests.cases import draw_null_cosines, mostly_slow

SAME = "directions look the same in every run: draw them afresh"


def trained(rng, runs, canaries, dimension, mu, *, fresh=True, apart=False, drift=0.0):
    """Cosines (runs, K) of the Gaussian mechanism, whose noise has deviation 1 and each canary length mu."""
    found, push = [], drift * np.ones(dimension)
    directions = rng.normal(size=(canaries, dimension))
    for _ in range(runs):
        directions = rng.normal(size=directions.shape) if fresh else directions
        units = directions / np.linalg.norm(directions, axis=1, keepdims=True)
        u = mu * units.sum(0) + rng.normal(size=dimension) + push
        if apart:
            inverse = np.linalg.inv(units @ units.T)
            weights, own = inverse @ (units @ u), np.diagonal(inverse)
            found.append(weights / own / np.sqrt(u @ u - (units @ u) @ weights + weights**2 / own))
        else:
            found.append(units @ u / np.linalg.norm(u))
    return np.array(found)


@pytest.mark.parametrize(
    ("shape", "mu"),
    mostly_slow([((6, 20), 3.0), ((4, 12), 0.0), ((30, 1), 2.0), ((3, 200), 3.0)], quick=2),
)
@pytest.mark.parametrize("apart", [False, True])
def test_what_fits_is_taken_however_often(shape, mu, apart):
    rng = np.random.default_rng(0)
    p_values = []
    for _ in range(40):
        cosines = trained(rng, *shape, 400, mu, apart=apart)
        assert given(cosines, 400, apart).separate is not apart
        p_values.append(columns_p_value(cosines, np.ones(shape, bool)))
    if shape[1] > 1:
        assert 0.25 < np.mean(p_values) < 0.75 and np.mean(np.array(p_values) < 0.05) < 0.17


@pytest.mark.parametrize("runs, canaries", mostly_slow([(5, 40), (20, 12), (3, 300)]))
def test_the_level_of_both_tests_is_kept_at_the_law(runs, canaries):
    """A test's p-values at the law are uniform; the F-test's also where runs leak unequally."""
    rng = np.random.default_rng(1)
    all_in, levels = np.ones((runs, canaries), bool), []
    for _ in range(400):
        cosines = draw_null_cosines(rng, (runs, canaries), 50) + rng.choice([0.0, 0.4], (runs, 1))
        levels.append(columns_p_value(cosines, all_in))
        given(draw_null_cosines(rng, (runs, canaries), 50), 50)
    assert np.quantile(levels, [0.01, 0.1, 0.5]) == pytest.approx([0.01, 0.1, 0.5], abs=0.05)
    assert min(levels) > LEVEL


def test_one_seed_for_all_runs_is_refused_where_canaries_are_many_or_the_drift_stayed():
    rng = np.random.default_rng(2)
    for _ in range(4):
        for kind in ({"canaries": 100, "mu": 4.0}, {"canaries": 20, "mu": 0.5, "drift": 2.0}):
            with pytest.raises(InputError, match=SAME):
                given(trained(rng, 8, dimension=400, fresh=False, **kind), 400)
            given(trained(rng, 8, dimension=400, **kind), 400)


def test_sorted_cosines_are_refused_and_runs_given_several_times_are_not():
    cosines = trained(np.random.default_rng(3), 4, 30, 400, 2.0)
    with pytest.raises(InputError, match=SAME):
        given(np.sort(cosines, axis=1), 400)
    for pasted in (np.tile(cosines[:1], (4, 1)), np.tile(cosines, (5, 1))):
        assert len(given(pasted, 400).cosines) == len(pasted)


def draw_directions(rng, canaries, dimension):
    directions = rng.normal(size=(canaries, dimension))
    return directions / np.linalg.norm(directions, axis=1, keepdims=True)


EXTREMES = [(2, 3), (10, 10), (40, 10), (50, 50), (200, 50)]


@pytest.mark.parametrize("draws", [40, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("canaries, dimension", EXTREMES)
def test_the_largest_possible_squares_are_never_refused(canaries, dimension, draws):
    rng = np.random.default_rng([11, canaries])
    for _ in range(draws):
        directions = draw_directions(rng, canaries, dimension)
        _, eigenvectors = np.linalg.eigh(directions.T @ directions)
        # All at most, one dominates, all push.
        vectors = (eigenvectors[:, -1], directions[0], directions.sum(0))
        cosines = np.stack([directions @ vector / np.linalg.norm(vector) for vector in vectors])
        require_possible(cosines, dimension, leave_one_out=False)


@pytest.mark.parametrize("canaries, dimension", [(2, 3), (9, 10), (50, 60)])
def test_leave_one_out_cosines_of_a_noiseless_sum_are_never_refused(canaries, dimension):
    rng = np.random.default_rng([12, canaries])
    for _ in range(30):
        directions = draw_directions(rng, canaries, dimension)
        gram = directions @ directions.T
        pushed = gram.sum(1)
        values = leave_one_out.cosines(gram, pushed, float(gram.sum()))
        require_possible(values[None], dimension, leave_one_out=True)


def test_the_limit_of_squares_is_near_the_largest():
    rng = np.random.default_rng(13)
    for canaries in (100, 300):
        largest = np.linalg.norm(draw_directions(rng, canaries, 200), 2) ** 2
        assert largest < cosine_law.limit_squares(canaries, 200, 1e-9) < 1.8 * largest


def test_impossible_cosines_are_refused_at_every_door(tmp_path):
    rng = np.random.default_rng(14)
    wrong = 0.9 + 1e-6 * rng.normal(size=(6, 50))
    message = r"squared cosines of run \d sum to 40.5; K = 50 directions in dimension 8,000 allow at most 1.3"
    np.savez(tmp_path / "cosines.npz", observed=wrong)
    doors = [
        lambda: audit.cosines(wrong, 8000),
        lambda: audit.cosines(wrong[:1], 8000),
        lambda: score_files.read_cosines(tmp_path / "cosines.npz", 8000),
    ]
    for door in doors:
        with pytest.raises(InputError, match=message):
            door()
    with pytest.raises(InputError, match="K = 50 directions in dimension 60 allow at most"):
        audit.cosines(wrong, 60, leave_one_out=True)


@pytest.mark.parametrize("shape", [(3, 100), (300, 1)])
def test_a_dimension_that_counts_what_is_not_trained_is_refused(shape):
    """Twice the trained parameters are seen in 300 cosines."""
    rng = np.random.default_rng(5)
    for _ in range(8):
        cosines = trained(rng, *shape, 300, 2.0)
        assert given(cosines, 300).dimension == 300
        with pytest.raises(InputError, match="`dimension=600`: cosines have a spread of 1.[2-5]"):
            given(cosines, 600)


def test_canaries_that_are_out_say_the_law_where_those_in_take_part_unequally():
    rng = np.random.default_rng(6)
    cosines = draw_null_cosines(rng, (10, 100), 10_000)
    present = rng.random(cosines.shape) < 0.8
    unequal = cosines + present * rng.choice([0.0, 0.08], cosines.shape)
    with pytest.raises(InputError, match="use coins to leave out some canaries"):
        given(unequal, 10_000)
    found = given(unequal, 10_000, presence=present)
    assert exact_null.bound_directions(found, 1e-5, 0.95).epsilon > 5
    assert not exact_null.bound_directions(
        given(unequal, 20_000, presence=present), 1e-5, 0.95
    ).holds


def test_a_run_that_failed_counts_below_all_others_and_costs_little():
    cosines = trained(np.random.default_rng(8), 8, 60, 2000, 4.0)
    lost = cosines.copy()
    lost[3] = np.nan
    assert given(lost, 2000).failed == 60 and given(cosines, 2000).failed == 0
    alike = (lost, np.nan_to_num(lost), cosines)
    failed, zeros, whole = (
        exact_null.bound_directions(given(c, 2000), 1e-5, 0.95).epsilon for c in alike
    )
    assert whole - 1.5 < failed == zeros <= whole + 0.3
    lost[3:] = np.nan
    with pytest.raises(
        InputError, match=r"300 of 480 cosines are NaN \(more than 50%\) because runs failed"
    ):
        given(lost, 2000)


@pytest.mark.parametrize(
    ("dimension", "decimals", "needed", "dtype"),
    [(11_000_000, 4, 7, np.float32), (62_006, 5, 6, np.float64)],
)
def test_cosines_rounded_too_coarsely_are_refused_by_their_decimals(
    dimension, decimals, needed, dtype
):
    message = f"rounded to {decimals} decimals, .*`dimension={dimension}`.* at least {needed} dec"
    for shape in ((3, 100), (1, 100), (5,)):
        drawn = np.random.default_rng(1).normal(0.5, 1, shape) / dimension**0.5
        rounded = np.round(drawn, decimals).astype(dtype)
        with pytest.raises(InputError, match=message):
            evidence_given.cosines(rounded, dimension)


def test_values_that_occur_without_rounding_are_not_taken_for_rounded():
    rng = np.random.default_rng(1)
    drawn = rng.normal(size=(8, 30)) / 100
    with_zeros = drawn.copy()
    with_zeros[:4] = 0.0  # runs that did not move
    with_zeros[4, 0] = np.nan
    binary = np.round(drawn * 2**24) / 2**24
    few = np.array([[0.03125], [0.0123456], [-0.01]])
    for cosines in (with_zeros, binary, few, np.ones((3, 1)), np.zeros((3, 1))):
        assert evidence_given.cosines(cosines, 10_000).dimension == 10_000


@pytest.mark.slow
def test_the_level_holds_with_as_few_decimals_as_are_taken():
    """Without leakage, 200 runs of 256 canaries: at the limit, and at 100 times of it."""
    audits = 60
    above = {5: 0, 3: 0}
    for seed in range(audits):
        drawn = draw_null_cosines(np.random.default_rng(seed), (200, 256), 10_000)
        for decimals in above:
            rounded = np.round(drawn, decimals)
            design = Fresh(
                rounded, np.ones(rounded.shape, bool), 10_000, separate=True, from_user=True
            )
            above[decimals] += exact_null.bound_directions(design, 1e-5, 0.95).epsilon > 0
    assert count_needed_decimals(10_000) == 5
    assert above[5] <= 0.05 * audits and above[3] > 0.5 * audits


def test_equal_directions_are_refused():
    with pytest.raises(InputError, match="draw each with a different key"):
        leave_one_out.cosines(np.ones((2, 2)), np.array([0.5, 0.5]), 1.0)


def test_more_left_out_directions_than_dimensions_have_no_limit():
    require_possible(np.full((1, 5), 0.99), 4, leave_one_out=True)


def test_canaries_without_spread_or_repeats_cannot_differ():
    equal = np.tile(np.arange(4.0)[:, None], 20)  # a run's cosines are equal
    assert columns_p_value(equal, np.ones((4, 20), bool)) == 1
    once = np.eye(4, 20, dtype=bool)
    assert columns_p_value(np.random.default_rng(0).normal(size=(4, 20)), once) == 1


def test_few_cosines_leave_the_dimension_untested():
    evidence = audit.cosines(np.random.default_rng(0).normal(size=(2, 2)) / 20, 400)
    assert "not tested: there are too few cosines" in describe_dimension(evidence)
