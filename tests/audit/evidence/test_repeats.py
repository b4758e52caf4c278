"""Tests that files with copied runs give the smaller bound, and that other equal rows cost little."""

import numpy as np
import pytest
from scipy import stats

import audit
from audit.evidence import canaries, repeats
from audit.evidence.canaries import Fresh, Sets
from audit.laws import cosine_law
from audit.methods import estimate, exact_null, lifted
from tests.cases import mostly_slow

DELTA, CONFIDENCE = 1e-5, 0.95
E = np.e
TOP = 1 / (1 + E)  # scores out that have their density multiplied by e if the canary is in
DRAWS = 500


def column(scores):
    return np.asarray(scores, np.float64)[:, None]


def respond(rng, present):
    """Returns continuous scores of a mechanism of epsilon exactly 1: randomized response on each canary."""
    is_right = rng.random(present.shape) < E / (1 + E)
    return (is_right == present) + rng.random(present.shape)


def draw_tails(rng, shape):
    """Returns P(a score out is higher) of scores in, for a mechanism of epsilon exactly 1."""
    in_top = rng.random(shape) < E / (1 + E)
    return np.where(in_top, TOP * rng.random(shape), TOP + (1 - TOP) * rng.random(shape))


def collapse(rng, share, *arrays):
    """Makes a share of the rows equal, as runs whose model collapsed to the same constant predictor."""
    has_collapsed = rng.random(len(arrays[0])) < share
    for array in arrays:
        array[has_collapsed] = rng.random(array.shape[1])


def make_sets(width):
    def make(rng, rows, copy, collapsed):
        worlds = []
        level = rng.random(width)  # where a constant predictor scores, in both worlds
        for is_in in (True, False):
            scores = respond(rng, np.full((rows, width), is_in))
            scores[rng.random(rows) < collapsed] = level
            worlds.append(scores[copy(rng, rows)])
        return canaries.make_sets(*worlds)

    return make


def make_coins(rng, rows, copy, collapsed):
    presence = rng.random((rows, 4)) < 0.5
    scores = respond(rng, presence)
    collapse(rng, collapsed, scores)
    again = copy(rng, rows)
    return audit.coins(scores[again], presence[again])


def make_cosines(rng, rows, copy, collapsed):
    cosines = -cosine_law.quantile(draw_tails(rng, (rows, 8)), 10_000)
    cosines[rng.random(rows) < collapsed] = np.nan  # a model that collapsed has moved nowhere
    return audit.cosines(cosines[copy(rng, rows)], 10_000)


def make_ranks(rng, rows, copy, collapsed):
    scores, fresh = -draw_tails(rng, (rows, 8)), -rng.random((rows, DRAWS))
    collapse(rng, collapsed, scores, fresh)
    again = copy(rng, rows)
    return audit.ranks(scores[again], fresh[again])


MAKERS = {  # with how many rows
    "one canary": (make_sets(1), 300),
    "sets": (make_sets(4), 100),
    "coins": (make_coins, 200),
    "cosines": (make_cosines, 40),
    "ranks": (make_ranks, 40),
}


def bound(evidence):
    """Returns the assumption-free bound from all rows of evidence."""
    if isinstance(evidence, Fresh):
        return exact_null.bound_directions(evidence, DELTA, CONFIDENCE).epsilon
    if evidence.canaries == (1, 1):
        return estimate.assumption_free(*evidence.pooled(), DELTA, CONFIDENCE).epsilon
    return lifted.METHODS[lifted.LIFTED].bound(evidence, DELTA, CONFIDENCE).epsilon


def smaller_bound(evidence):
    """Returns the smaller of both readings' bounds, as a conclusion has it."""
    once = repeats.count_once(evidence)
    epsilon = bound(evidence)
    return epsilon if once is None else min(epsilon, bound(once.evidence))


PASTED = {
    "pairs": lambda rng, n: np.repeat(np.arange(n // 2), 2),
    "twice": lambda rng, n: np.tile(np.arange(n // 2), 2),
    "fives": lambda rng, n: np.repeat(np.arange(n // 5), 5),
    "a block": lambda rng, n: np.r_[: 2 * n // 3, n // 6 : n // 2],
    "some five times": lambda rng, n: rng.permutation(np.r_[: n // 3, np.tile(np.r_[: n // 6], 4)]),
}
FEW, MANY = 5, pytest.param(100, marks=pytest.mark.slow)


def require_level(epsilons):
    """Asserts that at most 5% of bounds exceed the truth, 1, up to chance."""
    exceeded = int(np.sum(np.array(epsilons) > 1))
    assert stats.binomtest(exceeded, len(epsilons), 0.05, "greater").pvalue > 0.02, exceeded


@pytest.mark.parametrize("audits", [FEW, MANY])
@pytest.mark.parametrize(
    "maker, kind", mostly_slow([(maker, kind) for kind in PASTED for maker in MAKERS], quick=2)
)
def test_the_smaller_bound_of_a_pasted_file_keeps_its_level(maker, kind, audits):
    make, rows = MAKERS[maker]
    epsilons = []
    for audit_number in range(audits):
        rng = np.random.default_rng([1, audit_number])
        evidence = make(rng, rows, PASTED[kind], 0.0)
        assert repeats.count_once(evidence) is not None
        epsilons.append(smaller_bound(evidence))
    require_level(epsilons)
    # A fifth of the rows proves little, and so do five audits of these kinds of coins.
    proves_little = audits == FEW and maker == "coins" and kind in ("a block", "some five times")
    if not proves_little and not kind.startswith("fives"):
        assert np.mean(epsilons) > 0.01


@pytest.mark.parametrize("audits", [FEW, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("share", mostly_slow([0.02, 0.2]))
@pytest.mark.parametrize("maker", mostly_slow(MAKERS))
def test_collapsed_runs_are_accepted_keep_the_level_and_lose_little(maker, share, audits):
    make, rows = MAKERS[maker]
    honest, lost = [], []
    for audit_number in range(audits):
        rng = np.random.default_rng([2, audit_number])
        evidence = make(rng, rows, lambda _, n: np.arange(n), share)
        honest.append(smaller_bound(evidence))
        lost.append(bound(evidence) - honest[-1])
    require_level(honest)
    assert np.mean(lost) < (0.07 if share == 0.02 else 0.2)


LATTICES = {
    "float16": lambda x: x.astype(np.float16),
    "hundredths": lambda x: np.round(x, 2),
    "log counts": lambda x: np.log1p(np.floor(np.abs(5 * x))),
    "one value for most": lambda x: np.where(x > 1.5, x, 0.0),
    "two values": lambda x: (x > 0) + 0.123456789,
    "one value": lambda x: np.zeros(len(x)),
}


@pytest.mark.parametrize("order", ["as drawn", "sorted"])
@pytest.mark.parametrize("lattice", LATTICES)
def test_independent_rounded_scores_hardly_ever_look_pasted(lattice, order):
    suspected = 0
    for seed in range(100):
        rng = np.random.default_rng([3, seed])
        scores = np.asarray(LATTICES[lattice](rng.normal(size=1000)), np.float64)
        if order == "sorted":
            scores = np.sort(scores)
        suspected += repeats.count_once(Sets(column(scores), rng.normal(size=(100, 1)))) is not None
    assert suspected <= 3


def test_rounded_scores_that_were_all_pasted_are_divided_and_not_made_different():
    rng = np.random.default_rng(5)
    scores = np.round(rng.normal(size=400), 1)
    for times in (2, 5):
        pasted = column(rng.permutation(np.tile(scores, times)))
        once = repeats.count_once(Sets(pasted, rng.normal(size=(100, 1))))
        assert np.sort(once.evidence.inserted[:, 0]).tolist() == np.sort(scores).tolist()


ONE_RUN_AS_EVERY_ROW = {
    "ranks": lambda rng: audit.ranks(
        np.tile(rng.normal(2, 1, (1, 64)), (20, 1)), np.tile(rng.normal(size=(1, 2000)), (20, 1))
    ),
    "cosines": lambda rng: audit.cosines(np.tile(rng.normal(3, 1, (1, 64)) / 100, (20, 1)), 10_000),
    "sets": lambda rng: canaries.make_sets(
        np.tile(rng.normal(2, 1, (1, 64)), (20, 1)), np.tile(rng.normal(size=(1, 64)), (20, 1))
    ),
    "coins": lambda rng: audit.coins(
        np.tile(np.linspace(-2, 2, 64), (20, 1)), np.tile(rng.random(64) < 0.5, (20, 1))
    ),
}


@pytest.mark.parametrize("seed", mostly_slow(range(3)))
@pytest.mark.parametrize("kind", ONE_RUN_AS_EVERY_ROW)
def test_one_run_given_as_every_row_counts_once(kind, seed):
    evidence = ONE_RUN_AS_EVERY_ROW[kind](np.random.default_rng([7, seed]))
    result = audit.bounds(evidence, claim=audit.Gdp(0.01))
    once = repeats.count_once(evidence).evidence
    assert "19 rows repeat" in str(result) or "38 rows repeat" in str(result)
    if isinstance(once, Fresh):
        assert len(once.cosines) == 1 and result.epsilon <= bound(once)
    else:
        assert result.epsilon == 0
    assert "pasted" not in str(result) and "leave" not in str(result)


def test_failed_runs_and_tied_canaries_are_no_copies():
    rng = np.random.default_rng(8)
    cosines = rng.normal(size=(20, 8)) / 100
    cosines[3:9] = np.nan
    scores = np.where(rng.random((400, 1)) < 0.9, np.log(10), rng.normal(size=(400, 8)))
    tied = np.repeat(np.round(rng.normal(size=(400, 1)), 1), 8, axis=1)
    for evidence in (audit.cosines(cosines, 10_000), Sets(scores, tied)):
        assert repeats.count_once(evidence) is None
    assert repeats.count_once(audit.cosines(np.tile(cosines[:4], (2, 1)), 10_000)) is not None


def test_claims_are_refuted_only_if_both_readings_refute_them():
    rng = np.random.default_rng(11)
    cosines = np.tile(rng.normal(2.5, 1, (2, 64)) / 100, (10, 1))
    pasted = audit.bounds(audit.cosines(cosines, 10_000), claim=audit.Gdp(1.0))
    once = audit.bounds(audit.cosines(cosines[:2], 10_000), claim=audit.Gdp(1.0))
    assert pasted.claim_test.e_value == pytest.approx(once.claim_test.e_value)
    assert pasted.epsilon == once.epsilon
    scores_in, scores_out = rng.normal(1, 1, 60), rng.normal(0, 1, 60)
    pasted = audit.bounds(np.tile(scores_in, 9), np.tile(scores_out, 9), claim=audit.Gdp(0.5))
    once = audit.bounds(scores_in, scores_out, claim=audit.Gdp(0.5))
    assert pasted.claim_test.refuted == once.claim_test.refuted
    for method, smaller in pasted.bounds.items():
        assert smaller.epsilon == once.bounds[method].epsilon
    assert pasted.conclusion.curve.status == once.conclusion.curve.status
    assert pasted.to_dict()["notes"] == ["960 rows repeat earlier rows; the bound counts them once"]
