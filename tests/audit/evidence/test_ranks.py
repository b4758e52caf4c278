"""Tests ranks among fresh draws: distribution, level of the bounds and bad input."""

import numpy as np
import pytest
from scipy import special, stats

import audit
from audit.claims.claim import EpsilonDelta
from audit.errors import InputError
from audit.evidence import ranks
from audit.evidence.canaries import RANK_DIMENSION, Fresh
from audit.laws import cosine_law
from audit.methods import exact_null
from audit.methods.claimed_curve import THRESHOLDS, Exceedances, examine_claim
from audit.methods.exact_null import STUDENT_THRESHOLDS

RUNS, CANARIES, DRAWS = 12, 8, 400
ERROR = 0.05
RNG = np.random.default_rng(7)
SCORES, FRESH = RNG.normal(2, 1, (RUNS, CANARIES)), RNG.normal(0, 1, (RUNS, DRAWS))
RANKS = ranks.rank_among(SCORES, FRESH)


@pytest.mark.parametrize("draws", [1, 9, 1000, 31_574, 200_000])
def test_a_rank_lies_where_no_threshold_is_exceeded_too_often(draws):
    all_ranks = np.unique(np.geomspace(1, draws + 1, 5000).astype(int))
    all_ranks = np.union1d(all_ranks, np.arange(1, min(draws + 1, 50)))
    placed = ranks.convert_to_cosines(all_ranks, draws)
    assert (np.diff(placed) < 0).all()
    levels = np.concatenate([exact_null.cosine_of(STUDENT_THRESHOLDS, RANK_DIMENSION), placed])
    largest = np.array([all_ranks[placed > level].max(initial=0) for level in levels])
    rates = np.exp(cosine_law.log_sf(levels, RANK_DIMENSION))
    assert (largest / (draws + 1) <= rates).all()
    design = Fresh(placed[None], np.ones((1, len(placed)), bool), RANK_DIMENSION, draws=draws)
    assert (design.ranks() == all_ranks).all()
    exact = np.exp(exact_null.compute_log_rates(design, levels))
    assert (largest / (draws + 1) <= exact * (1 + 1e-9)).all() and (
        exact <= rates + 1 / draws
    ).all()


@pytest.mark.parametrize("kind", ["continuous", "few values", "all equal", "infinite"])
def test_a_rank_is_uniform_where_the_canary_is_out_whatever_the_scores_are(kind):
    rng = np.random.default_rng(3)
    scores = rng.standard_cauchy((4_000, 1 + 9))
    if kind == "few values":
        scores = np.clip(np.rint(scores), -1, 1)
    elif kind == "all equal":
        scores = np.zeros_like(scores)
    elif kind == "infinite":
        scores = np.where(scores > 1, np.inf, scores)
    counted = np.bincount(ranks.rank_among(scores[:, :1], scores[:, 1:])[:, 0])[1:]
    assert len(counted) == 10 and stats.chisquare(counted).pvalue > 1e-3


def test_ties_are_broken_by_the_run_alone():
    scores = np.zeros((4, 3))
    fresh = np.zeros((4, 50))
    drawn = ranks.rank_among(scores, fresh)
    assert (ranks.rank_among(scores[:2], fresh[:2]) == drawn[:2]).all()
    assert len(np.unique(drawn)) > 6


def draw_corner(rng, shape, epsilon, delta):
    """Returns levels of scores whose curve touches the (epsilon, delta) line at a corner.

    A level is the probability with which a score that is out is higher.
    """
    corner = (1 - delta) / (1 + np.exp(epsilon))
    is_high = rng.random(shape) < np.exp(epsilon) * corner + delta
    uniform = rng.random(shape)
    return np.where(is_high, corner * uniform, corner + (1 - corner) * uniform)


def draw_ranks(rng, audits, kind, epsilon, delta):
    """Returns the ranks (audits, RUNS, CANARIES) of a mechanism that is exactly (epsilon, delta)-private."""
    shape = (audits, RUNS, CANARIES)
    if kind == "canaries equal":
        levels = draw_corner(rng, (audits, RUNS, 1), epsilon, delta)
        return np.broadcast_to(1 + rng.binomial(DRAWS, levels), shape)
    levels = draw_corner(rng, shape, epsilon, delta)
    fresh = rng.random((audits, RUNS, 50))
    draws = 50
    if kind == "heavy tails":
        levels, fresh = special.tandg(180 * levels - 90), special.tandg(180 * fresh - 90)
    elif kind == "few values":
        corner = (1 - delta) / (1 + np.exp(epsilon))
        levels, fresh = (levels > corner) * 1.0, (fresh > corner) * 1.0
    scores = -levels.reshape(-1, CANARIES)
    of_fifty = ranks.rank_among(scores, -fresh.reshape(-1, draws))
    return of_fifty.reshape(shape)


def is_ever_refuted(design, epsilon, delta):
    """Returns whether the capital against a true epsilon reaches 1 / ERROR after any run."""
    capital = exact_null.Capital(design, delta)
    runs = range(1, len(design.cosines) + 1)
    largest = max(special.logsumexp(capital.compute_log_capital(run, epsilon)) for run in runs)
    return largest >= -np.log(ERROR)


KINDS = ["canaries equal", "heavy tails", "few values", "independent"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "epsilon", "delta"),
    [
        *((kind, 1.5, 0.02) for kind in KINDS),
        ("canaries equal", 4.0, 1e-5),
        ("independent", 0.0, 1e-5),
    ],
)
def test_the_level_holds_on_the_corner_of_what_is_claimed(kind, epsilon, delta):
    """1,000 audits each, looked at after every run: the bound, and the test of the claim."""
    audits = 1000
    rng = np.random.default_rng([KINDS.index(kind), int(10 * epsilon)])
    drawn = draw_ranks(rng, audits, kind, epsilon, delta)
    draws = DRAWS if kind == "canaries equal" else 50
    placed = ranks.convert_to_cosines(drawn, draws)
    present = np.ones((RUNS, CANARIES), bool)
    levels = exact_null.cosine_of(THRESHOLDS, RANK_DIMENSION)
    power = EpsilonDelta(epsilon, delta).power
    exceeded, refuted = 0, 0
    for cosines in placed:
        design = Fresh(cosines, present, RANK_DIMENSION, draws=draws)
        exceeded += is_ever_refuted(design, epsilon, delta)
        above = (cosines[:, :, None] > levels).mean(axis=1)
        counted = Exceedances(above, exact_null.compute_log_rates(design, levels), in_order=True)
        refuted += examine_claim(counted, power, 1 - ERROR).refuted
    assert stats.binomtest(exceeded, audits, ERROR, alternative="greater").pvalue > 1e-3
    assert stats.binomtest(refuted, audits, ERROR, alternative="greater").pvalue > 1e-3


def test_scores_become_ranks():
    design = audit.ranks(SCORES, FRESH)
    own = ranks.make_from_counts(DRAWS + 1.0 - RANKS, SCORES > -9, DRAWS)
    np.testing.assert_array_equal(design.cosines, own.cosines)
    assert (design.ranks() == RANKS).all() and design.draws == DRAWS
    assert str(design) == "12 runs x 8 canaries, ranked among 400 fresh draws, all inserted"
    assert design.pooled()[0].mean() > 1 and abs(design.pooled()[1].mean()) < 0.01


def test_a_run_that_failed_counts_below_all_others():
    scores, fresh = SCORES.copy(), FRESH.copy()
    scores[3], fresh[3] = np.nan, np.nan
    failed = audit.ranks(scores, fresh)
    assert failed.failed == CANARIES
    assert "8 of 96 scores are NaN (failed runs)" in str(audit.bounds(failed))
    others = np.arange(RUNS) != 3
    whole = audit.ranks(SCORES, FRESH).cosines
    np.testing.assert_array_equal(failed.cosines[others], whole[others])
    assert (failed.cosines[3] < whole.min()).all()


def draw_out(rng, shift, scale, draws=500):
    fresh = rng.normal(0, 1, (30, draws))
    return rng.normal(shift, scale, (30, 40)), fresh


@pytest.mark.slow
@pytest.mark.parametrize("draws", [20, 500])
def test_the_laws_test_holds_its_level_though_ranks_of_a_run_share_its_draws(draws):
    p_values = []
    for seed in range(1000):
        scores, fresh = draw_out(np.random.default_rng(seed), 0, 1, draws)
        drawn = ranks.rank_among(scores, fresh)
        p_values.append(ranks.measure_law(drawn, np.ones(drawn.shape, bool), draws))
    for level in (0.01, 0.05):
        refused = int(np.sum(np.array(p_values) < level))
        assert stats.binomtest(refused, 1000, level, alternative="greater").pvalue > 1e-3


@pytest.mark.parametrize(("shift", "scale"), [(0.3, 1.0), (-0.3, 1.0), (0.0, 1.3), (0.0, 0.7)])
def test_fresh_draws_from_another_generator_show(shift, scale):
    scores, fresh = draw_out(np.random.default_rng(1), shift, scale)
    with pytest.raises(
        InputError, match="on the initial model canaries and fresh draws have different"
    ):
        audit.ranks(scores + 3, fresh, initial=(scores, fresh))
    presence = np.arange(scores.size).reshape(scores.shape) % 2
    shown = str(audit.bounds(audit.ranks(scores + 3 * presence, fresh, presence=presence)))
    assert "held-out canaries are not distributed like fresh draws (p < 1e-06)" in shown


def test_one_generator_passes_on_the_initial_model_and_where_canaries_are_out():
    scores, fresh = draw_out(np.random.default_rng(1), 0, 1)
    presence = np.arange(scores.size).reshape(scores.shape) % 2
    design = audit.ranks(scores + 3 * presence, fresh, presence, initial=(scores, fresh))
    result = audit.bounds(design)
    shown = " ".join(str(result).split())
    assert result.epsilon > 1 and "compared to fresh draws using 600 ranks" in shown


BAD = {
    "other runs": ((SCORES, FRESH[:5]), {}, r"give \(runs, canaries\) and \(runs, fresh draws\)"),
    "some NaN": ((np.where(SCORES > 2, np.nan, SCORES), FRESH), {}, "scores are NaN: score"),
    "a number of draws": (
        (RANKS, DRAWS),
        {},
        r"fresh scores \(\): give \(runs, canaries\) and \(runs, fresh draws\)",
    ),
    "most runs failed": (
        (np.where(np.arange(RUNS)[:, None] < 7, np.nan, SCORES),) * 2,
        {},
        r"7 of 12 rows of scores are NaN \(more than 50%\)",
    ),
    "all out": ((SCORES, FRESH), {"presence": np.zeros(SCORES.shape)}, "leaves out all canaries"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(case):
    arguments, keywords, message = BAD[case]
    with pytest.raises(InputError, match=message) as raised:
        audit.ranks(*arguments, **keywords)
    assert "\n" not in str(raised.value)


def test_no_canary_chooses_a_threshold_for_another_of_its_run():
    """They share its fresh draws, so that the rank of one says something of the other's law."""
    assert not audit.ranks(SCORES, FRESH).separate
    assert not ranks.make_from_counts(DRAWS + 1.0 - RANKS, SCORES > -9, DRAWS).separate
