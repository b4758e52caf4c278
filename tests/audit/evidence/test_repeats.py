"""Files that hold runs twice are refused, and independent ones are accepted in any order."""

import numpy as np
import pytest

from audit import bounds
from audit.errors import InputError
from audit.evidence import canaries, repeats
from audit.evidence.canaries import Coins, Fresh, Sets


def column(scores):
    return np.asarray(scores, np.float64)[:, None]


def worlds(n=500, mu=1.0, seed=0):
    rng = np.random.default_rng([31, seed])
    return rng.normal(mu, 1, n), rng.normal(0, 1, n)


LATTICES = {
    "float16": lambda x: x.astype(np.float16),
    "k/21": lambda x: np.round(21 * x) / 21,
    "log counts": lambda x: np.log1p(np.floor(np.abs(5 * x))),
    "one value for most": lambda x: np.where(x > 1.5, x, 0.0),
    "two values": lambda x: (x > 0) + 0.123456789,
    "float32": lambda x: x.astype(np.float32),
    "one value": lambda x: np.zeros(len(x)),
}


@pytest.mark.parametrize("order", ["as drawn", "sorted", "in sorted parts"])
@pytest.mark.parametrize("lattice", LATTICES)
def test_independent_runs_are_accepted_in_any_order(lattice, order):
    for seed in range(20):
        scores = np.asarray(LATTICES[lattice](worlds(2000, seed=seed)[0]), np.float64)
        if order == "sorted":
            scores = np.sort(scores)
        if order == "in sorted parts":
            scores = np.sort(scores.reshape(40, 50), axis=1).ravel()
        repeats.require_no_copies(Sets(column(scores), column(worlds()[1])))


@pytest.mark.parametrize("lattice", ["float16", "k/21", "log counts", "float32"])
def test_a_pasted_block_is_refused_with_its_rows(lattice):
    scores = np.asarray(LATTICES[lattice](worlds()[0]), np.float64)
    pasted = np.concatenate([scores, scores[100:300]])
    with pytest.raises(
        InputError, match="of the scores in, rows 101 to 300 come again as 501 to 700: leave"
    ):
        repeats.require_no_copies(Sets(column(pasted), column(worlds()[1])))


@pytest.mark.parametrize("times", [2, 3, 5])
def test_a_file_given_several_times_is_refused_in_its_order_and_in_any_other(times):
    scores_in, scores_out = worlds(100)
    pasted = np.tile(scores_in, times)
    with pytest.raises(InputError, match=r"rows 1 to [12]00 come again as 1?[01]1 to"):
        bounds(pasted, scores_out)
    for order in (np.sort(pasted), np.random.default_rng(1).permutation(pasted)):
        with pytest.raises(InputError, match=f"every row of the scores in comes {times} times"):
            bounds(order, scores_out)


def test_rows_of_several_canaries_that_come_again_are_refused_wherever_they_stand():
    rng = np.random.default_rng(2)
    scores, presence = rng.normal(size=(50, 8)), rng.random((50, 8)) < 0.5
    again = [*range(50), 17]
    with pytest.raises(InputError, match="of the scores, row 18 comes again as 51: leave one copy"):
        repeats.require_no_copies(Coins(scores[again], presence[again]))
    with pytest.raises(InputError, match="of the scores in, rows 1 to 50 come again as 51 to 100"):
        repeats.require_no_copies(Sets(np.tile(scores, (2, 1)), rng.normal(size=(60, 7))))
    with pytest.raises(InputError, match="of the cosines, row 18 comes again as 51"):
        repeats.require_no_copies(Fresh(scores[again] / 10, np.ones((51, 8), bool), 1000))


def test_runs_that_failed_alike_and_tied_canaries_are_accepted():
    rng = np.random.default_rng(3)
    failed = np.where(rng.random((400, 1)) < 0.9, np.log(10), rng.normal(size=(400, 8)))
    tied = np.repeat(np.round(rng.normal(size=(400, 1)), 1), 8, axis=1)
    for scores in (failed, tied):
        repeats.require_no_copies(Sets(scores, rng.normal(size=(400, 8))))


@pytest.mark.parametrize("moves", ["canaries alone", "runs alike"])
@pytest.mark.parametrize("count", [8, 16])
def test_rows_of_coarse_scores_repeat_by_nature_where_canaries_have_levels(moves, count):
    for seed in range(20):
        rng = np.random.default_rng([8, seed])
        width = 0.02 * rng.normal(size=(400, count))
        if moves == "runs alike":
            width = 0.3 * rng.normal(size=(400, 1))
        scores = np.round(3 * rng.normal(size=count) + width, 1)
        repeats.require_no_copies(Sets(scores, rng.normal(size=(40, count))))


COARSE = {
    "canaries have levels": lambda rng, levels: levels + 0.02 * rng.normal(size=(300, 16)),
    "runs move alike": lambda rng, levels: levels + 0.3 * rng.normal(size=(300, 1)),
    "runs move almost alike": lambda rng, levels: (
        levels + 0.3 * rng.normal(size=(300, 1)) + 0.005 * rng.normal(size=(300, 16))
    ),
    "two factors": lambda rng, levels: (
        levels + rng.normal(size=(300, 2)) @ (0.05 * rng.normal(size=(2, 16)))
    ),
    "0 or 1": lambda rng, levels: 1.0 * (rng.random((300, 16)) < 0.05 * np.abs(levels)),
    "0 or 1, runs alike": lambda rng, levels: (
        1.0 * (3 * rng.normal(size=(300, 1)) + 0.3 * rng.normal(size=(300, 16)) < levels)
    ),
    "thirds": lambda rng, levels: np.round(levels + rng.normal(0, 0.1, size=(300, 16))),
}


@pytest.mark.parametrize("kind", COARSE)
def test_independent_coarse_tables_are_accepted(kind):
    """Each kind has rows that come three times and more in most of its tables."""
    times = []
    for seed in range(50):
        rng = np.random.default_rng([9, seed])
        scores = np.round(COARSE[kind](rng, 3 * rng.normal(size=16)), 1)
        times.append(np.unique(scores, axis=0, return_counts=True)[1].max())
        repeats.require_no_copies(Sets(scores, rng.normal(size=(40, 16))))
    assert np.median(times) >= 3


@pytest.mark.parametrize("times", [2, 3, 4, 8, 30])
@pytest.mark.parametrize("count", [8, 30])
@pytest.mark.parametrize("copied", [20, 120])
def test_rows_that_were_pasted_many_times_are_refused_in_any_order(times, count, copied):
    rng = np.random.default_rng([10, times, count, copied])
    scores = rng.normal(size=(200, count))
    pasted = np.concatenate([scores, np.tile(scores[:copied], (times - 1, 1))])
    with pytest.raises(InputError, match="of the scores in, rows? .* comes? again"):
        repeats.require_no_copies(Sets(rng.permutation(pasted), rng.normal(size=(200, count))))


@pytest.mark.parametrize("times", [3, 8])
def test_all_rows_several_times_and_one_once_more_are_refused(times):
    rng = np.random.default_rng(11)
    scores = rng.normal(size=(200, 8))
    pasted = np.concatenate([np.tile(scores, (times, 1)), scores[:1]])
    with pytest.raises(InputError, match="of the scores in, rows? .* comes? again"):
        repeats.require_no_copies(Sets(rng.permutation(pasted), rng.normal(size=(200, 8))))


def test_few_of_many_rows_that_repeat_by_nature_are_compared_to_all_others(monkeypatch):
    """Thousands of rows look like copies until their scores turn out to move together."""
    compared = []

    def compute_and_count(row, *others):
        compared.append(row)
        return compute(row, *others)

    compute = repeats._compute_row_evidence
    monkeypatch.setattr(repeats, "_compute_row_evidence", compute_and_count)
    rng = np.random.default_rng(12)
    scores = np.round(3 * rng.normal(size=64) + rng.normal(size=(3000, 1)), 2)
    repeats.require_no_copies(Sets(scores, rng.normal(size=(40, 64))))
    assert 0 < len(compared) <= repeats._MOST_CANDIDATES


def test_a_pasted_row_is_found_among_many_that_repeat_by_nature():
    rng = np.random.default_rng(14)
    tied = np.repeat(rng.integers(0, 1000, size=(2000, 1)) / 1000, 16, axis=1)
    scores = np.concatenate([tied, rng.normal(size=(100, 16))])
    with pytest.raises(InputError, match="row 2,051 comes again as 2,101: leave"):
        repeats.require_no_copies(Sets(scores[[*range(2100), 2050]], rng.normal(size=(40, 16))))


def test_a_pasted_block_of_more_rows_than_are_looked_at_is_named_whole():
    rng = np.random.default_rng(13)
    scores = np.round(rng.normal(size=(400, 16)), 1)
    pasted = np.concatenate([scores, scores[50:350]])
    with pytest.raises(InputError, match="rows 51 to 350 come again as 401 to 700: leave"):
        repeats.require_no_copies(Sets(pasted, rng.normal(size=(40, 16))))


def test_canaries_of_one_run_that_come_again_are_refused():
    rng = np.random.default_rng(4)
    scores, presence = rng.normal(size=(1, 300)), rng.random((1, 300)) < 0.5
    twice = Coins(np.tile(scores, 2), np.tile(presence, 2))
    with pytest.raises(InputError, match="of the run, canaries 1 to 300 come again as 301 to 600"):
        repeats.require_no_copies(twice)


def test_what_is_not_refused_is_described_and_changes_no_digit():
    rng = np.random.default_rng(5)
    scores_in, scores_out = worlds()
    doubled = np.concatenate([scores_in, rng.permutation(scores_in[:100])])
    result = bounds(doubled, scores_out)
    assert "100 of 600 rows of the scores in equal an earlier row" in " ".join(str(result).split())
    assert result.to_dict()["notes"] and "notes" not in bounds(scores_in, scores_out).to_dict()
    jittered = bounds(doubled + 1e-9 * rng.normal(size=600), scores_out)
    assert jittered.bounds["assumption_free"].epsilon == pytest.approx(result.epsilon, abs=0.2)


@pytest.mark.parametrize("rows", [30, 1000, 20_000])
def test_independent_rows_of_few_values_are_almost_never_refused(rows):
    """Refusals have a probability below 1e-9; at 1e-2 the argument would let one in a hundred through."""
    rng = np.random.default_rng(6)
    for values in (2, 3, 20, 3000):
        for _ in range(20):
            drawn = rng.integers(0, values, rows)
            assert repeats.find_block(np.unique(drawn, return_inverse=True)[1]) is None
            assert repeats.count_copies(drawn) == 1


def test_a_million_scores_take_seconds(rows=1_000_000):
    scores = np.random.default_rng(7).integers(0, 1000, rows)
    block = repeats.find_block(np.concatenate([scores, scores[1000:2000]]))
    assert block == (1000, rows, 1000)


def test_designs_of_arrays_count_runs_that_failed():
    design = canaries.make_sets([0.0, np.nan, np.inf, 1.0], [-np.inf, 2.0, np.nan])
    assert design.failed == 2
    ranked = np.concatenate(design.pooled())
    assert np.isfinite(ranked).all()
    assert np.argsort(ranked, kind="stable").tolist() == [1, 6, 4, 0, 3, 5, 2]
