"""Findings as estimates and bounds beside the upper bounds; the best of declared looks is a bound."""

import dataclasses
import math

import numpy as np
import pytest

from audit.calibration import laws, planning
from audit.calibration.calibration import KnownMechanism
from audit.claims import accounting
from audit.claims.claim import DpSgd, EpsilonDelta
from audit.conclusions import conclusion
from audit.conclusions.concluded import conclude, conclude_setting
from audit.conclusions.conclusion import Curve, Look
from audit.conclusions.finish import finish
from audit.errors import InputError
from audit.evidence import canaries
from audit.evidence.canaries import single
from audit.laws import conversions
from audit.methods import estimate, lifted
from audit.methods.estimate import METHODS, Bound, Estimate, if_gaussian
from audit.settings.make import setting_of
from audit.storage.store import Scores
from audit.written import Level

RNG = np.random.default_rng(0)
WORLDS = RNG.normal(1, 1, 200), RNG.normal(0, 1, 150)


def test_every_finding_is_an_estimate_or_a_bound_and_stands_in_the_tables_order():
    found = conclude(single(*WORLDS), None, Level(1e-4, 0.9))
    assert list(found.rows()) == estimate.findings(*WORLDS, 1e-4, 0.9)
    assert [row.method for row in found.rows()] == list(METHODS)
    assert all(isinstance(one, Estimate) for one in found.estimates)
    assert all(isinstance(one, Bound) for one in found.bounds)
    assert (found.delta, found.confidence) == (1e-4, 0.9)


@pytest.mark.parametrize("reason", ["", "a law"])
@pytest.mark.parametrize(
    ("tested", "status"),
    [
        (None, ""),
        (Curve(0.3, 0.5), "not confirmed"),
        (Curve(0.3, 1.0), "confirmed"),
        (Curve(1e-9, 0.5), "refuted"),
        (Curve(1e-9, 1.0), "refuted"),
    ],
)
def test_what_needs_no_assumption_comes_first_whatever_was_found(tested, status, reason):
    concluded = conclude(single(*WORLDS), None, Level(1e-4, 0.9))
    found = finish(concluded._replace(curve=tested, reason=reason))
    assert [row.method for row in found.ranked()] == ["assumption_free", "if_gaussian"]
    assert found.curve is None or found.curve.status == status
    assert found.epsilon == found.bound("assumption_free").epsilon
    holds = {row.method: row.holds for row in found.ranked()}
    assert holds == {"assumption_free": True, "if_gaussian": status != "refuted"}
    assert [row.holds for row in found.rows() if isinstance(row, Bound)] == [*holds.values()][::-1]
    computed = {row.method: row for row in concluded.bounds}
    for row in found.ranked():
        assert row == found.bound(row.method) == found.finding(row.method)
        assert dataclasses.replace(row, holds=True) == computed[row.method]  # no number is changed
    assert found.gaussian.holds == holds["if_gaussian"] and found.assumption_free.holds


def test_an_estimate_is_no_bound_and_what_nothing_can_be_concluded_from_is_refused():
    found = conclude(single(*WORLDS))
    assert found.finding("in_sample") == found.estimates[0]
    assert found.bound("if_gaussian") == found.finding("if_gaussian")
    with pytest.raises(KeyError):
        found.bound("in_sample")
    with pytest.raises(KeyError):
        found.finding("unheard_of")
    with pytest.raises(InputError, match="no in scores"):
        conclude(single(np.array([]), WORLDS[1]))
    with pytest.raises(InputError, match="`noise_multiplier=-1"):
        conclude(single(*WORLDS), DpSgd(-1.0, 1))
    found = conclude(single(*WORLDS), DpSgd(4.0, 250))
    assert found.upper_bound == accounting.epsilon_upper_bound(4.0, 250, 1e-5)
    assert found.mu_upper_bound == accounting.mu_upper_bound(4.0, 250)
    unknown = conclude(single(*WORLDS))
    assert unknown.upper_bound is None and unknown.mu_upper_bound is None
    assert conclude(single(*WORLDS), DpSgd(0.0, 1)).upper_bound == np.inf


MATRICES = RNG.normal(1, 1, (30, 6)), RNG.normal(0, 1, (20, 6))


def test_runs_with_several_canaries_have_the_bounds_of_lifted_and_no_estimate():
    design = canaries.make_sets(*MATRICES)
    found = conclude(design, DpSgd(4.0, 250), Level(1e-4, 0.9))
    assert found.rows() == tuple(lifted.bounds(design, 1e-4, 0.9)) and not found.estimates
    assert found.gaussian.method == "lifted_gaussian" and found.assumption_free.method == "lifted"
    assert np.array_equal(found.scores_in, MATRICES[0].ravel()) and found.evidence is design
    assert found.upper_bound == accounting.epsilon_upper_bound(4.0, 250, 1e-4)
    assert found.curve is None and not found.refutes_gaussian


SCHEDULE = (200, 400, 1000)


def worlds(seed, runs, mu=2.0):
    draws = np.random.default_rng(seed).normal(size=(2, 5000)) + [[mu], [0]]
    return draws[0, : runs // 2], draws[1, : runs // 2]


def scores(seed, runs):
    """`worlds` as a store has them: out, in, out, in, ..."""
    into, out = worlds(seed, runs)
    return Scores(0, np.stack([out, into], 1).reshape(-1, 1), np.arange(runs)[:, None] % 2 == 1)


def look(runs, confidence, seed=0):
    return Look(
        runs, tuple(conclude(single(*worlds(seed, runs)), None, Level(1e-5, confidence)).bounds)
    )


def test_the_error_is_shared_out_equally_and_the_best_of_each_method_taken():
    assert conclusion.confidence_of_each(0.95, 1) == 0.95
    assert conclusion.confidence_of_each(0.95, 5) == pytest.approx(0.99)
    taken = [look(runs, 0.99) for runs in SCHEDULE]
    for i, bound in enumerate(conclusion.best_of_looks(taken, 0.97)):
        assert bound.epsilon == max(one.bounds[i].epsilon for one in taken)
        assert bound.confidence == 0.97 and bound.method == taken[0].bounds[i].method


def test_bounds_of_looks_are_those_of_each_look_at_its_share_of_the_error():
    seen = {runs: worlds(1, runs) for runs in SCHEDULE[:2]}
    found = conclude_setting(scores(1, 400), setting_of("fcnn"), Level(1e-5, 0.94), SCHEDULE)
    assert found.looks.confidence == pytest.approx(0.98) and found.confidence == 0.94
    assert [one.runs for one in found.looks.taken] == [200, 400]
    for one in found.looks.taken:
        alone = if_gaussian(*seen[one.runs], 1e-5, conclusion.confidence_of_each(0.94, 3))
        assert one.bounds[0].epsilon == alone.epsilon
    assert found.bound("if_gaussian").epsilon == max(
        one.bounds[0].epsilon for one in found.looks.taken
    )
    assert len(found.scores_in) == 200 and found.estimates[0].n_in == 200  # the last look's


def test_a_single_declared_look_is_an_audit_and_another_refused():
    found = conclude(single(*worlds(2, 400)), looks=(400,))
    plain = conclude(single(*worlds(2, 400)))
    assert found.bounds == plain.bounds and found.estimates == plain.estimates
    with pytest.raises(InputError, match="none is at 500 runs"):
        conclude(single(*worlds(0, 500)), looks=SCHEDULE)


@pytest.mark.parametrize("schedule", [(), (400, 200), (200, 200), (1, 200), (-4, 2)])
def test_a_schedule_that_is_none_is_refused(schedule):
    with pytest.raises(InputError, match="`looks="):
        conclusion.require_schedule(schedule)


@pytest.mark.slow
def test_the_best_of_five_declared_looks_holds_and_costs_little(assert_covers):
    """Audits of a Gaussian mechanism whose mu is 1."""

    def best(seed, confidence):
        seen = (worlds([7, seed], runs, 1.0) for runs in (200, 400, 600, 800, 1000))
        return max(if_gaussian(*one, 1e-5, confidence).mu for one in seen)

    declared = []

    def draw(first, audits):
        declared.extend(
            best(first + i, conclusion.confidence_of_each(0.95, 5)) for i in range(audits)
        )
        return {"declared": np.sum(np.array(declared[first:]) > 1)}

    drawn = assert_covers(draw, 300)
    assert np.mean([best(seed, 0.95) for seed in range(drawn)]) < 1.15 * np.mean(declared)


KNOWN = KnownMechanism(
    laws.GAUSSIAN, conversions.mu_from_epsilon(4.0, 1e-5), 1000, 16, 1e-5, 0.95, 3
)


@pytest.mark.parametrize("missing", [0.5, 2.0, 9.0, 60.0])
@pytest.mark.parametrize("wanted", [0.5, 0.9])
def test_the_runs_needed_are_found_where_the_law_is_known(missing, wanted):
    asked = []

    def reached(runs):
        asked.append(runs)
        return max(1 - missing / np.sqrt(runs), 0.0)

    found = planning.first_to_reach(wanted, reached)
    assert (
        0.999 <= found / max((missing / (1 - wanted)) ** 2, planning.MIN_RUNS) < 1.2
        and len(asked) <= 12
    )


@pytest.mark.slow
def test_the_runs_needed_prove_the_share_of_the_truth():
    found = planning.runs_needed(KNOWN, 0.6)
    enough, few = (
        planning.mean_epsilon(KNOWN._replace(runs=n)) / 4 for n in (2 * found, found // 2)
    )
    assert few < 0.6 < enough and found == planning.runs_needed(
        KNOWN._replace(runs=9, audits=2), 0.6
    )
    with pytest.raises(InputError, match="`mu=0`"):
        planning.runs_needed(KNOWN._replace(mu=0.0), 0.5)
    assert planning.first_to_reach(0.9, lambda runs: 0.5) is None
    few, many = (planning.mean_epsilon(KNOWN._replace(runs=n)) for n in (200, 5000))
    assert 0.5 < few < many < 4 and many > 3.2


@pytest.mark.parametrize("tightness", [0, 1, -0.5, math.nan])
def test_a_tightness_out_of_range_is_refused(tightness):
    with pytest.raises(InputError, match="`tightness="):
        planning.runs_needed(KNOWN, tightness)


def test_the_most_that_runs_can_prove_is_that_of_a_single_look_where_looks_are_declared():
    perfect = single(np.linspace(5, 6, 100), np.linspace(0, 1, 100))
    concluded = conclude(perfect, looks=[50, 200])
    assert concluded.most_provable == pytest.approx(concluded.epsilon)
    assert concluded.most_provable < conclude(perfect).most_provable
    # A claim between what a single look and what all runs at the whole error could refute.
    claimed = (concluded.most_provable + conclude(perfect).most_provable) / 2
    claim = EpsilonDelta(claimed, 1e-5)
    assert conclude(perfect, claim, looks=[50, 200]).is_beyond_reach
    assert not conclude(perfect, claim).is_beyond_reach


@pytest.mark.parametrize(
    "looks", [100, "100", ["100"], [[100]], [True, 200], [100.0, 200.0], np.array(200), {100, 200}]
)
def test_looks_that_are_no_whole_numbers_are_refused_in_a_line(looks):
    with pytest.raises(InputError, match="^`looks=.*: give whole numbers in a list, as in"):
        conclude(single(WORLDS[0][:100], WORLDS[1][:100]), looks=looks)


def test_looks_may_be_an_array_of_whole_numbers():
    evidence = single(WORLDS[0][:100], WORLDS[1][:100])
    concluded = conclude(evidence, looks=np.array([100, 200]))
    assert concluded.looks == conclude(evidence, looks=[100, 200]).looks


def _make_saturated_scores():
    """Returns float32 sigmoids of scores, all of which are 1 with the canary and many without it."""
    logits = np.random.default_rng(3).normal(12, 5, 500)
    scores_out = (1 / (1 + np.exp(-logits.astype(np.float32)))).astype(np.float64)
    return np.ones(500), scores_out


@pytest.mark.parametrize(
    ("scores_in", "scores_out"),
    [
        (np.ones(500), np.repeat([1.0, 0.0], [25, 475])),
        (np.repeat([1.0, 0.0], [475, 25]), np.zeros(500)),
        (np.ones(500), np.repeat([0.25, 0.5], 250)),
        _make_saturated_scores(),
    ],
    ids=["guesses", "guesses out", "other values", "sigmoids"],
)
def test_equal_scores_that_are_guesses_or_saturated_are_not_doubted(scores_in, scores_out):
    concluded = conclude(single(scores_in, scores_out), EpsilonDelta(0.5, 1e-5))
    assert concluded.doubt == ""
    assert concluded.epsilon > 0.5


@pytest.mark.parametrize("constant", [7.0, 0.1])
def test_equal_scores_that_no_other_reaches_are_doubted(constant):
    concluded = conclude(single(np.full(200, constant), WORLDS[1]))
    assert concluded.doubt.startswith("all 200 scores in equal")
