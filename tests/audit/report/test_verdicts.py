"""Tests that a verdict claims only what is proven, and states its assumption."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

import audit
from audit.claims.accounting import Composition
from audit.claims.claim import DpSgd
from audit.claims.hidden_state import HiddenState, Periods, bound_periods
from audit.conclusions import verdicts
from audit.conclusions.concluded import conclude
from audit.conclusions.finish import are_reversed, finish
from audit.evidence import given
from audit.evidence.canaries import make_sets
from audit.methods import curves
from audit.methods.estimate import Bound, Estimate
from audit.methods.method import GAUSSIAN_CURVE, NOTHING
from audit.report.bounds_table import bounds_table

GOLDEN = json.loads((Path(__file__).parents[2] / "system" / "golden" / "verdicts.json").read_text())


def conclusion(gaussian, free, upper):
    """Bounds of given epsilons; the in-sample one is absurd and must not matter."""
    rest = {"delta": 1e-5, "confidence": 0.95, "threshold": 0.0, "n_in": 10, "n_out": 10}
    rest |= {"false_positives": 1, "false_negatives": 1}
    absurd = Estimate(method="in_sample", epsilon=99.0, mu=9.0, **rest, caveat="made up")
    bounds = (
        Bound(method="if_gaussian", epsilon=gaussian, mu=1.0, **rest, assumes=GAUSSIAN_CURVE),
        Bound(method="assumption_free", epsilon=free, **rest, assumes=NOTHING),
    )
    worlds = np.zeros(10), np.ones(10)
    fields = {"estimates": (absurd,), "bounds": bounds, "upper_bound": upper, "curve": None}
    return finish(conclude(make_sets(*worlds))._replace(**fields))


CASES = [
    (2.7348, 1.2599, 3.0001, verdicts.LEAKS),
    (2.0, 0.0, 3.0, verdicts.LEAKS),
    (1.0, 1.5, 3.0, verdicts.LEAKS),
    (0.0, 0.0, 3.0, verdicts.NOTHING),
    (0.0004, 0.0, None, verdicts.NOTHING),
    (2.0, 1.0, np.inf, verdicts.LEAKS),
    (4.0, 3.5, 3.0, verdicts.VIOLATED),
    (4.0, 2.0, 3.0, verdicts.LEAKS),
]


@pytest.mark.parametrize(("gaussian", "free", "upper", "kind"), CASES)
def test_a_verdict_has_its_kind_whatever_an_estimate_says(gaussian, free, upper, kind):
    verdict = conclusion(gaussian, free, upper).verdict
    assert verdict.kind == kind and "99" not in verdict.sentence


@pytest.mark.parametrize(
    ("gaussian", "free", "headline", "phrase"),
    [
        (
            8.4,
            4.98,
            "is between 4.98 (8.4 if the curve is Gaussian) and 8.68; composition allows 24.",
            "at most 8.68",
        ),
        (
            9.0,
            8.9,
            "violated: epsilon is at least 8.9, but the hidden-state bound allows 8.68.",
            "Composition, which allows 24, is not rejected.",
        ),
        (
            9.0,
            5.0,
            "violated if the trade-off curve is Gaussian.",
            "more than the 8.68 of the hidden-state bound",
        ),
        (
            30.0,
            25.0,
            "The guarantee is violated: epsilon is at least 25, but the claim allows 24.",
            "more than the 24 stated in the claim",
        ),
    ],
)
def test_two_upper_bounds_are_a_bracket(gaussian, free, headline, phrase):
    periods = Periods(1.0, 5, 5)
    state = HiddenState(
        bound_periods(Composition(4.0, 250), periods, 1e-5)._replace(epsilon=8.68), periods, {}
    )
    bracket = conclusion(gaussian, free, 24.0)
    composition = Composition(4.0, 250)
    bracket = finish(bracket._replace(hidden_state=state, composition=composition))
    verdict = bracket.verdict
    assert headline in verdict.headline and phrase in verdict.sentence
    exceeds_tightest = bracket.exceeded(max(gaussian, free)) == bracket.tightest
    assert ("larger Lipschitz constants" in verdict.sentence) == exceeds_tightest
    rows = [line.split() for line in bounds_table(bracket).splitlines()]
    assert ["hidden-state", "bound", "8.680", "1.782", "Lipschitz"] in rows
    assert bracket.tightest.last_model_only and bracket.tightest_mu == state.bound.mu


@pytest.mark.usefixtures("powerful")
def test_a_mechanism_that_breaks_its_guarantee_is_caught_and_a_sound_one_is_not():
    rng = np.random.default_rng(0)
    worlds = rng.normal(2.0, 1.0, 4000), rng.normal(0.0, 1.0, 4000)  # mu = 2
    for sigma, kind in (
        (1.0, verdicts.LEAKS),
        (4.0, verdicts.VIOLATED),
    ):  # accounted as mu = 2, 0.5
        assert conclude(make_sets(*worlds), DpSgd(sigma, 4)).verdict.kind == kind


@pytest.mark.usefixtures("powerful")
@pytest.mark.parametrize("name", GOLDEN)
def test_the_verdicts_are_worded_as_before(name):
    golden = GOLDEN[name]
    rng = np.random.default_rng(golden["seed"])
    worlds = rng.normal(golden["mu"], 1, 2500), rng.normal(0, 1, 2500)
    composition = golden["composition"] and DpSgd(*golden["composition"])
    concluded = finish(conclude(make_sets(*worlds), composition)._replace(curve=None))
    verdict = concluded.verdict
    words = {field: golden[field] for field in ("word", "headline", "sentence")}
    assert words == {field: getattr(verdict, field) for field in words}


def _conclude(scores_in, scores_out, upper=(4.0, 250)):
    composition = None if upper is None else DpSgd(*upper)
    return conclude(make_sets(scores_in, scores_out), composition)


def test_a_refuted_curve_leads_to_what_needs_no_assumption_and_proves_nothing_where_that_is_zero():
    """Laplace noise of epsilon 1: if_gaussian says over 4."""
    rng = np.random.default_rng(0)
    concluded = _conclude(rng.laplace(1, 1, 2500), rng.laplace(0, 1, 2500), None)
    assert concluded.refutes_gaussian and concluded.finding("if_gaussian").epsilon > 3
    verdict = concluded.verdict
    free = verdicts.at_least(concluded.finding("assumption_free").epsilon)
    assert (
        verdict.kind == "leaks"
        and free in verdict.sentence
        and "reject a Gaussian" in verdict.sentence
    )
    assert verdicts.at_least(concluded.finding("if_gaussian").epsilon) not in verdict.sentence
    text = bounds_table(concluded)
    assert " (p < 1e-06): ignore these rows; only assumption_free is valid\n" in text
    assert [line.split()[-1] for line in text.splitlines()[3:5]] == ["nothing", "REJECTED"]
    weak = dataclasses.replace(concluded.finding("assumption_free"), epsilon=0.0)
    bounds = tuple(weak if bound.method == weak.method else bound for bound in concluded.bounds)
    verdict = finish(concluded._replace(bounds=bounds)).verdict
    assert verdict.kind == "nothing" and "does not prove privacy" in verdict.sentence


def test_a_sound_mechanism_is_not_called_violated_where_its_curve_is_refuted():
    rng = np.random.default_rng(1)
    concluded = _conclude(rng.laplace(3, 1, 2500), rng.laplace(0, 1, 2500))
    loose = finish(concluded._replace(upper_bound=3.1))
    assert loose.finding("if_gaussian").epsilon > 3.1 > loose.finding("assumption_free").epsilon
    assert loose.verdict.kind == "leaks"


def test_too_few_runs_to_test_the_curve_lead_with_what_needs_no_assumption():
    rng = np.random.default_rng(4)
    concluded = _conclude(rng.normal(2, 1, 100), rng.normal(0, 1, 100))
    epsilons = [concluded.finding(method).epsilon for method in ("assumption_free", "if_gaussian")]
    assert concluded.curve.is_underpowered and epsilons == sorted(epsilons)
    free, gaussian = map(verdicts.at_least, epsilons)
    sentence = concluded.verdict.sentence
    assert sentence.index(f"epsilon = {free} ") < sentence.index(f"at least {gaussian}.")
    assert "too few to confirm a Gaussian curve (p = " in sentence
    headline = f"Proven: epsilon is at least {free}; accounting allows 23.996."
    assert concluded.verdict.headline == headline
    assert "): too few runs to tell\n" in bounds_table(concluded)


@pytest.mark.usefixtures("powerful")
def test_reversed_scores_test_no_claim_whatever_their_shape():
    rng = np.random.default_rng(5)
    presence = rng.random((1, 400)) < 0.5
    runs = rng.random((60, 8)) < 0.5
    reversed_evidence = (
        (rng.normal(-2, 1, 400), rng.normal(0, 1, 400)),
        (audit.coins(rng.normal(-2.0 * presence, 1), presence),),
        (audit.coins(rng.normal(-2.0 * runs, 1), runs),),
        (audit.cosines(rng.normal(-3, 1, (20, 64)) / 100, 10_000),),
        (audit.ranks(rng.normal(-2, 1, (20, 64)), rng.normal(0, 1, (20, 500))),),
    )
    for evidence in reversed_evidence:
        result = audit.bounds(*evidence, claim=audit.Gdp(0.1))
        assert result.verdict == "reversed scores" and result.claim_test is None
        assert "not rejected" not in str(result)
        assert "claim:      not tested: scores are reversed" in str(result)
        assert result.to_dict()["verdict"] == "reversed scores"


@pytest.mark.slow
def test_scores_that_leak_nothing_are_not_called_reversed():
    """Of 4,000 audits 0.13 are expected; with more than 6, chance would be above 1e-3."""
    accused = 0
    for seed in range(2000):
        rng = np.random.default_rng([11, seed])
        presence = rng.random((1, 100)) < 0.5
        heavy = rng.standard_t(2, (1, 100))
        same_in_a_run = np.repeat(rng.normal(size=(40, 1)), 8, axis=1)
        worlds = same_in_a_run[:20], same_in_a_run[20:]
        evidence = audit.coins(heavy, presence), given.two_worlds(*worlds)
        accused += sum(are_reversed(one, (), curves.auc(*one.pooled())) for one in evidence)
    assert accused <= 6


@pytest.mark.usefixtures("powerful")
def test_a_claim_of_another_delta_is_not_called_a_lack_of_noise():
    """(epsilon, delta)-DP says nothing below its delta, however much noise there is."""
    scores_in, scores_out = np.random.default_rng(0).normal(size=(2, 300))
    claim = audit.EpsilonDelta(2.0, 1e-3)
    concluded = audit.bounds(scores_in + 2, scores_out, claim, delta=1e-5).conclusion
    sentence = concluded.verdict.sentence
    assert sentence.endswith("The claim does not cover this delta.")
    assert "noise" not in sentence


@pytest.mark.usefixtures("powerful")
def test_a_sampled_composition_below_the_hidden_state_bound_is_exceeded_too():
    sampled = DpSgd(noise_multiplier=2.0, insertions=10, sampling_rate=0.01, lipschitz=1.0, k=2)
    noise = np.random.default_rng(0).normal(size=4000)
    found = conclude(make_sets(noise[:2000] + 12, noise[2000:]), sampled)
    assert found.hidden_state.bound.epsilon > found.upper_bound
    sentence = found.verdict.sentence
    assert "Composition, which allows 0.066, is also violated." in sentence
