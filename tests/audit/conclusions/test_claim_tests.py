"""Tests the test of a claim with each kind of evidence: its level and what it refutes."""

import numpy as np
import pytest
from scipy import stats

import audit
from audit.conclusions.concluded import conclude
from audit.evidence import given
from audit.report import bounds_table

DIMENSION = 100_000
CLAIM = audit.DpSgd(noise_multiplier=4, insertions=250)  # mu 3.953
SAMPLED = audit.DpSgd(noise_multiplier=1, insertions=100, sampling_rate=0.05)


ERROR = 0.05


def draw_cosines(mu, canaries=400, seed=0):
    scores = np.random.default_rng(seed).normal(mu, 1.0, (1, canaries))
    return audit.cosines(scores / DIMENSION**0.5, DIMENSION)


def draw_coins(mu, canaries=1000, seed=0):
    rng = np.random.default_rng(seed)
    presence = rng.random((1, canaries)) < 0.5
    return audit.coins(rng.normal(mu * presence, 1.0), presence)


def draw_pairs(mu, unobserved=400, seed=0):
    rng = np.random.default_rng(seed)
    observed = rng.normal(mu, 1.0, 400) / DIMENSION**0.5
    others = rng.normal(0.0, 1.0, unobserved) / DIMENSION**0.5
    return given.paired_cosines(observed, others, DIMENSION)


@pytest.mark.parametrize(
    ("claim", "true_mu", "false_mu"),
    [(CLAIM, 3.953, 7.0), pytest.param(SAMPLED, 1.0, 6.0, marks=pytest.mark.slow)],
)
def test_one_runs_cosines_refute_a_false_claim_and_no_true_one(claim, true_mu, false_mu):
    kept = conclude(draw_cosines(true_mu), claim).claim_test
    assert not kept.refuted and kept.runs == 1 and 0 < kept.e_value < 20
    broken = conclude(draw_cosines(false_mu), claim).claim_test
    assert broken.refuted and broken.e_value > 20


def test_one_runs_cosines_say_which_noise_would_have_been_seen():
    concluded = conclude(draw_cosines(3.953), CLAIM)
    seen = concluded.claim_test.seen
    assert 0.5 < seen.noise < 0.9 and seen.probability >= 0.9
    shown = bounds_table.bounds_table(concluded)
    assert "claim:      not rejected by 1 training run (e-value" in shown
    assert f"with {100 * (1 - seen.noise):.3g}% less noise than claimed" in shown


@pytest.mark.slow
def test_guesses_of_one_runs_coins_refute_a_false_claim_and_no_true_one():
    claim = audit.Gdp(1.0)
    assert not conclude(draw_coins(1.0), claim).claim_test.refuted
    concluded = conclude(draw_coins(5.0), claim)
    assert concluded.claim_test.refuted
    assert "claim:      rejected by 1 training run\n" in bounds_table.bounds_table(concluded)
    vendor = audit.EpsilonDelta(1.0, 1e-5)
    assert conclude(draw_coins(8.0), vendor).claim_test.refuted


def test_a_refuted_claim_of_one_run_is_a_violation_without_a_gaussian_curve():
    concluded = conclude(draw_coins(2.0), audit.Gdp(1.0))
    free = concluded.bounds[0]
    assert free.method == "one_run_guesses" and free.epsilon < concluded.upper_bound
    verdict = concluded.verdict
    assert verdict.word == "violated"
    assert "is rejected after 1 training run: under the claim, no test could" in verdict.sentence


def test_cosines_with_a_fitted_null_and_no_pairs_test_no_claim():
    concluded = conclude(draw_pairs(5.0, unobserved=300), CLAIM)
    assert concluded.claim_test is None
    shown = bounds_table.bounds_table(concluded)
    assert "claim:      not tested: the null is fitted, and there are fewer than 40" in shown
    assert "claim:" not in bounds_table.bounds_table(conclude(draw_pairs(5.0, unobserved=300)))
    assert conclude(draw_cosines(5.0)).claim_test is None


@pytest.mark.slow
@pytest.mark.parametrize("mu", [0.5, 3.953])
def test_two_worlds_refute_a_true_claim_in_a_twentieth_of_audits_at_most(mu):
    """Either of two bounds refutes a claim of mu-GDP: together they keep the level of one."""
    claim = audit.Gdp(mu)
    audits = 300
    refuted = 0
    for seed in range(audits):
        rng = np.random.default_rng(seed)
        evidence = given.two_worlds(rng.normal(mu, 1.0, 200), rng.normal(0.0, 1.0, 200))
        refuted += conclude(evidence, claim).claim_test.refuted
    print(f"{refuted} of {audits}")
    assert stats.binomtest(refuted, audits, ERROR, alternative="greater").pvalue > 1e-3
