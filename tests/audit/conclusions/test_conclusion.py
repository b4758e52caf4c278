"""Tests estimates and bounds next to the upper bounds."""

import dataclasses

import numpy as np
import pytest

from audit.claims import accounting
from audit.claims.claim import DpSgd, EpsilonDelta
from audit.conclusions.concluded import conclude
from audit.conclusions.conclusion import Curve
from audit.conclusions.finish import finish
from audit.errors import InputError
from audit.evidence import canaries
from audit.evidence.canaries import make_sets
from audit.methods import estimate, lifted
from audit.methods.estimate import METHODS
from audit.written import Level

RNG = np.random.default_rng(0)
WORLDS = RNG.normal(1, 1, 200), RNG.normal(0, 1, 150)


@pytest.mark.parametrize(
    ("tested", "status"),
    [
        (None, ""),
        (Curve(0.3, 0.5), "not confirmed"),
        (Curve(0.3, 1.0), "confirmed"),
        (Curve(1e-9, 0.5), "rejected"),
    ],
)
def test_what_needs_no_assumption_comes_first_whatever_was_found(tested, status):
    concluded = conclude(make_sets(*WORLDS), None, Level(1e-4, 0.9))
    assert list(concluded.rows()) == estimate.findings(*WORLDS, 1e-4, 0.9)
    assert [row.method for row in concluded.rows()] == list(METHODS)
    found = finish(concluded._replace(curve=tested))
    assert [row.method for row in found.ranked()] == ["assumption_free", "if_gaussian"]
    assert found.curve is None or found.curve.status == status
    assert found.epsilon == found.assumption_free.epsilon
    assert found.gaussian.holds == (status != "rejected") and found.assumption_free.holds
    for row in found.ranked():
        unchanged = dataclasses.replace(row, holds=True)
        assert unchanged == concluded.finding(row.method)  # no number is changed


@pytest.mark.slow
def test_an_estimate_is_no_bound_and_what_nothing_can_be_concluded_from_is_refused():
    found = conclude(make_sets(*WORLDS), DpSgd(4.0, 250))
    assert found.finding("in_sample") == found.estimates[0]
    assert found.estimates[0] not in found.bounds
    with pytest.raises(InputError, match="the in-scores are empty"):
        conclude(make_sets(np.array([]), WORLDS[1]))
    assert found.upper_bound == accounting.epsilon_upper_bound(4.0, 250, 1e-5)
    assert found.mu_upper_bound == accounting.mu_upper_bound(4.0, 250)
    unknown = conclude(make_sets(*WORLDS))
    assert unknown.upper_bound is None and unknown.mu_upper_bound is None
    assert conclude(make_sets(*WORLDS), DpSgd(0.0, 1)).upper_bound == np.inf


MATRICES = RNG.normal(1, 1, (30, 6)), RNG.normal(0, 1, (20, 6))


def test_runs_with_several_canaries_have_the_bounds_of_lifted_and_no_estimate():
    design = canaries.make_sets(*MATRICES)
    found = conclude(design, DpSgd(4.0, 250), Level(1e-4, 0.9))
    assert found.rows() == tuple(lifted.bounds(design, 1e-4, 0.9)) and not found.estimates
    assert found.gaussian.method == "lifted_gaussian" and found.assumption_free.method == "lifted"
    assert np.array_equal(found.worlds[0], MATRICES[0].ravel()) and found.evidence is design
    assert found.upper_bound == accounting.epsilon_upper_bound(4.0, 250, 1e-4)
    assert found.curve is None and not found.refutes_gaussian


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
    concluded = conclude(make_sets(scores_in, scores_out), EpsilonDelta(0.5, 1e-5))
    assert concluded.doubt == ""
    assert concluded.epsilon > 0.5


@pytest.mark.parametrize("constant", [7.0, 0.1])
def test_equal_scores_that_no_other_reaches_are_doubted(constant):
    concluded = conclude(make_sets(np.full(200, constant), WORLDS[1]))
    assert concluded.doubt.startswith("all 200 scores in equal")
