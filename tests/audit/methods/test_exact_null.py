"""Tests the exact null: the capital, levels, ideal scores and leave-one-out cosines."""

import jax
import numpy as np
import pytest
from scipy import stats

from audit.calibration.calibration import KnownMechanism, audit_once
from audit.evidence import leave_one_out
from audit.evidence.canaries import Fresh
from audit.laws import conversions, cosine_law
from audit.methods import exact_null
from audit.methods.exact_null import (
    LAW_LEVEL,
    STAKES,
    STUDENT_THRESHOLDS,
    bound_directions,
    law_test,
)
from tests.cases import draw_null_cosines, mostly_slow
from tests.known_mechanisms import DIRECTIONS as LAWS

DELTA, WIDE = 1e-5, 62_006


def setting(law="gaussian", mu=3.953, runs=10, canaries=16, dimension=10_000, delta=DELTA, seed=0):
    return KnownMechanism(LAWS[law], mu, runs, 1, delta, 0.95, seed, canaries, dimension)


def drawn(**of):
    one = setting(**of)
    return one.law.draw(np.random.default_rng(one.seed), one).cosines


def proven(cosines, dimension=10_000, presence=None, **of):
    present = np.ones(cosines.shape, bool) if presence is None else presence
    return bound_directions(Fresh(cosines, present, dimension, **of), DELTA, 0.95)


@pytest.mark.slow
def test_directions_drawn_and_normalised_in_float32_have_the_laws_tail():
    """10^7 of them; sums of their coordinates' products are float32's too."""
    dimension, block, blocks = 68, 100_000, 100
    rates = np.array([1e-2, 1e-4, 1e-5, 1e-6])
    levels = -cosine_law.quantile(rates, dimension).astype(np.float32)
    u = np.random.default_rng(0).standard_normal(dimension).astype(np.float32)

    @jax.jit
    def beyond(key):
        v = jax.random.normal(key, (block, dimension))
        v /= jax.numpy.linalg.norm(v, axis=1, keepdims=True)
        cosines = v @ (u / np.linalg.norm(u))
        return (cosines[:, None] > levels).sum(0)

    keys = jax.random.split(jax.random.key(0), blocks)
    hits = np.sum([np.asarray(beyond(key)) for key in keys], 0)
    for found, rate in zip(hits, rates, strict=True):
        assert stats.binomtest(int(found), block * blocks, rate).pvalue > 1e-4, (hits, rates)


@pytest.mark.parametrize(
    ("canaries", "runs"), [(1, 40), pytest.param(1024, 12, marks=pytest.mark.slow)]
)
def test_the_capital_is_the_product_over_runs(canaries, runs):
    """Cosine by cosine and run by run, with neither histograms nor logarithms of shares."""
    cosines, epsilon = drawn(runs=runs, canaries=canaries, dimension=WIDE), 4.0
    levels = exact_null.cosine_of(STUDENT_THRESHOLDS, WIDE)
    most = np.exp(epsilon + cosine_law.log_sf(levels, WIDE)) + DELTA
    capital = np.ones((len(STUDENT_THRESHOLDS), len(STAKES)))
    ratios = np.ones(len(exact_null._RATIO_MEANS))
    heights = [
        np.clip(np.exp(nu * (STUDENT_THRESHOLDS - nu / 2) - epsilon), 1.0, exact_null._MAX_RATIO)
        for nu in exact_null._RATIO_MEANS
    ]
    design = Fresh(cosines, np.ones(cosines.shape, bool), WIDE)
    of_bets = exact_null.Capital(design, DELTA)
    first = of_bets.first_bet
    for place, run in enumerate(cosines):
        hit = (run[:, None] > levels).mean(0)
        capital *= 1 + STAKES * (hit / most - 1)[:, None]
        for i, height in enumerate(heights):
            below = np.searchsorted(levels, run, side="left")  # thresholds that a cosine exceeds
            seen = np.append(1.0, height)[below].mean()
            expected = 1 + np.diff(height, prepend=1.0) @ np.minimum(most, 1.0)
            ratios[i] *= seen / expected
        if place == 0:
            whole = first.staked
            won = whole * first.compute_payoff(epsilon)
            capital, ratios = (1 - whole) * capital + won, (1 - whole) * ratios + won
    start = np.exp(of_bets.log_start)
    assert start.sum() == pytest.approx(1)
    found = np.exp(of_bets.compute_log_capital(runs, epsilon))
    assert found == pytest.approx(start * np.append(capital, ratios), rel=1e-8, abs=1e-300)


def test_neither_the_order_in_a_run_nor_later_runs_change_a_digit_and_the_bound_never_falls():
    cosines = drawn(runs=12)
    found = proven(cosines)
    assert 10 < found.epsilon < 24 and (np.diff(found.path) >= 0).all()
    rng = np.random.default_rng(0)
    for separate in (False, True):
        mixed = proven(rng.permuted(cosines, axis=1), separate=separate)
        assert np.array_equal(mixed.path, proven(cosines, separate=separate).path)
    assert np.array_equal(proven(cosines[:5]).path, found.path[:5])
    log_rate = float(cosine_law.log_sf(found.threshold, 10_000))
    assert found.false_positive_rate == pytest.approx(np.exp(log_rate), rel=1e-12)


def test_only_canaries_that_were_in_count():
    cosines, present = drawn(runs=12), np.random.default_rng(0).random((12, 16)) < 0.5
    found = []
    for seed in (0, 1):
        out = draw_null_cosines(np.random.default_rng(seed), cosines.shape, 10_000)
        found.append(proven(np.where(present, cosines, out), presence=present))
    assert found[0].path == found[1].path and found[0].n_in == present.sum()
    assert 5 < found[0].epsilon < proven(cosines).epsilon


@pytest.mark.parametrize(("mu", "least"), [(2.5, 6.0), (3.953, 14.5)])
def test_one_run_with_1000_canaries_proves_most_of_what_is_true(mu, least):
    truth = conversions.epsilon_from_mu(mu, DELTA)
    found = []
    for seed in range(20):
        cosines = drawn(mu=mu, runs=1, canaries=1000, dimension=WIDE, seed=seed)
        design = Fresh(cosines, np.ones(cosines.shape, bool), WIDE)
        found.append(
            [bound_directions(design, DELTA, 0.95), exact_null.bound_gdp(design, DELTA, 0.95)]
        )
    epsilons = np.array([[bound.epsilon for bound in bounds] for bounds in found])
    assert (epsilons < truth).all() and (epsilons.mean(axis=0) > least).all()


def test_more_runs_prove_more_and_no_leak_nothing():
    found = proven(drawn(runs=60, canaries=256, dimension=WIDE), WIDE)
    assert found.path[0] > 7 and found.path[9] > 16 and 18.5 < found.epsilon < 24
    assert proven(drawn(mu=0.0, runs=60, canaries=256)).epsilon == 0


COVERED = [
    *(("bound", mu, 1e-3, 8, 10) for mu in (0.0, 2.0, 5.0, 12.0)),
    *(("bound equal", mu, 1e-2, 8, 20) for mu in (0.0, 2.0, 5.0, 12.0)),
    *(("gaussian", mu, DELTA, 16, 12) for mu in (0.0, 1.0, 4.0)),
    *(("equal", mu, DELTA, 16, 12) for mu in (0.0, 1.0, 4.0)),
    *(("failing", mu, DELTA, 16, 12) for mu in (1.0, 4.0)),
    *(("laplace", mu, DELTA, 16, 12) for mu in (1.0, 4.0)),
    ("bound", 2.0, 1e-3, 1, 200),
    ("bound", 0.0, 1e-2, 64, 10),
    *((law, 2.0, 1e-2, 500, 2) for law in ("bound", "bound equal")),
    *((law, 4.0, DELTA, 500, 1) for law in ("gaussian", "equal", "laplace")),
]
FAST = {("bound", 0.0)}


@pytest.mark.parametrize(
    ("law", "mu", "delta", "canaries", "runs"),
    [pytest.param(*one, marks=() if one[:2] in FAST else pytest.mark.slow) for one in COVERED],
)
def test_it_exceeds_no_more_often_than_it_says_whenever_one_stops(
    assert_covers, law, mu, delta, canaries, runs
):
    """After the best of all numbers of runs: the bound never falls."""
    one = setting(law, mu, runs, canaries, delta=delta)
    truth = one.law.truth(one)

    def draw(first, number):
        found = [audit_once(one, index)[-1].epsilon for index in range(first, first + number)]
        return {law: int(np.count_nonzero(np.array(found) > truth + 1e-9))}

    assert_covers(draw, 500)


@pytest.mark.parametrize("dimension", mostly_slow([2, 40, 11_000_000]))
def test_the_laws_test_keeps_its_level(dimension):
    rng = np.random.default_rng(0)
    found = np.array(
        [law_test(draw_null_cosines(rng, (4, 50), dimension), dimension) for _ in range(200)]
    )
    assert np.mean(found <= 0.1) <= 0.165 and (found > LAW_LEVEL).all()


@pytest.mark.parametrize(("factor", "cosines"), [(1.2, 3000), (1.5, 600), (2.0, 250)])
def test_the_laws_test_sees_a_wrong_dimension(factor, cosines):
    drawn = draw_null_cosines(np.random.default_rng(0), (cosines,), 10_000)
    assert law_test(drawn, round(10_000 * factor)) < LAW_LEVEL
    assert law_test(drawn, round(10_000 / factor)) < LAW_LEVEL < law_test(drawn, 10_000)
    assert law_test(np.append(drawn, 1.0), 10_000) < LAW_LEVEL


def spanned(canaries, dimension, seed=0):
    rng = np.random.default_rng(seed)
    v = rng.standard_normal((canaries, dimension))
    v /= np.linalg.norm(v, axis=1, keepdims=True)
    return v, v.sum(0) + 0.3 * rng.standard_normal(dimension)


@pytest.mark.parametrize(("canaries", "dimension"), [(1, 5), (7, 8), (30, 200)])
def test_leave_one_out_is_that_of_separate_least_squares(canaries, dimension):
    v, u = spanned(canaries, dimension)
    found = leave_one_out.cosines(v @ v.T, v @ u, u @ u)
    for j in range(canaries):
        others = np.delete(v, j, 0).T
        rest = u - others @ np.linalg.lstsq(others, u, rcond=None)[0] if canaries > 1 else u
        assert found[j] == pytest.approx(v[j] @ rest / np.linalg.norm(rest), abs=1e-12)


def test_leave_one_out_keeps_the_law_and_loses_the_others_signals():
    """Canary 0 is out: its cosine has the law in all d dimensions, and the others' signals don't widen it."""
    out, dimension = [], 60
    for seed in range(600):
        v, u = spanned(20, dimension, seed)
        out.append(leave_one_out.cosines(v @ v.T, v @ (u - v[0]), (u - v[0]) @ (u - v[0]))[0])
    assert law_test(np.array(out), dimension) > 1e-3
    assert law_test(np.array(out), dimension - 19) < 1e-3
