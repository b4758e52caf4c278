"""A conclusion sorts findings into estimates and bounds, beside the accountant's upper bounds."""

import numpy as np
import pytest

from audit.concluded import conclude
from audit.errors import InputError
from audit.statistics import accounting, canaries, estimate, lifted
from audit.statistics.accounting import Composition
from audit.statistics.canaries import single
from audit.statistics.estimate import METHODS, Bound, Estimate
from audit.statistics.gaussian_curve import CurveTest

RNG = np.random.default_rng(0)
WORLDS = RNG.normal(1, 1, 200), RNG.normal(0, 1, 150)


def test_every_finding_is_an_estimate_or_a_bound_and_stands_in_the_tables_order():
    found = conclude(single(*WORLDS), None, 1e-4, 0.9)
    assert list(found.rows()) == estimate.findings(*WORLDS, 1e-4, 0.9)
    assert [row.method for row in found.rows()] == list(METHODS)
    assert all(isinstance(one, Estimate) for one in found.estimates)
    assert all(isinstance(one, Bound) for one in found.bounds)
    assert (found.delta, found.confidence) == (1e-4, 0.9)


def test_the_bound_that_a_verdict_rests_on_comes_first():
    curve = CurveTest(0.3, 0.3, 0.3, 0.3, 1.0, 9)
    found = conclude(single(*WORLDS), None, 1e-4, 0.9)._replace(test=lambda: (curve, 0.5))
    names = ["assumption_free", "if_gaussian", "held_out"]
    assert [row.method for row in found.ranked()] == names
    assert found._replace(reason="a law").ranked()[0].method == "if_gaussian"
    assert found._replace(test=lambda: (curve, 1.0)).ranked()[0].method == "if_gaussian"
    refuted = found._replace(test=lambda: (curve._replace(p_value=1e-9), 1.0), reason="a law")
    assert [row.method for row in refuted.ranked()] == names
    many = conclude(canaries.sets(*MATRICES), None, 1e-4, 0.9)
    assert [row.method for row in many.ranked()][:2] == ["lifted", "lifted_gaussian"]
    assert sorted(row.method for row in many.ranked()) == sorted(row.method for row in many.bounds)


def test_an_estimate_is_no_bound_and_what_nothing_can_be_concluded_from_is_refused():
    found = conclude(single(*WORLDS), None, 1e-5, 0.95)
    assert found.finding("in_sample") == found.estimates[0]
    assert found.bound("if_gaussian") == found.finding("if_gaussian")
    with pytest.raises(KeyError):
        found.bound("in_sample")
    with pytest.raises(KeyError):
        found.finding("unheard_of")
    with pytest.raises(InputError, match="no in scores"):
        conclude(single(np.array([]), WORLDS[1]), None, 1e-5, 0.95)
    with pytest.raises(InputError, match="`noise_multiplier=-1"):
        conclude(single(*WORLDS), Composition(-1.0, 1), 1e-5, 0.95)
    found = conclude(single(*WORLDS), Composition(4.0, 250), 1e-5, 0.95)
    assert found.upper_bound == accounting.epsilon_upper_bound(4.0, 250, 1e-5)
    assert found.mu_upper_bound == accounting.mu_upper_bound(4.0, 250)
    unknown = conclude(single(*WORLDS), None, 1e-5, 0.95)
    assert unknown.upper_bound is None and unknown.mu_upper_bound is None
    assert conclude(single(*WORLDS), Composition(0.0, 1), 1e-5, 0.95).upper_bound == np.inf


MATRICES = RNG.normal(1, 1, (30, 6)), RNG.normal(0, 1, (20, 6))


def test_runs_with_several_canaries_have_the_bounds_of_lifted_and_no_estimate():
    design = canaries.sets(*MATRICES)
    found = conclude(design, Composition(4.0, 250), 1e-4, 0.9)
    assert found.rows() == tuple(lifted.bounds(design, 1e-4, 0.9)) and not found.estimates
    assert found.gaussian.method == "lifted_gaussian" and found.assumption_free.method == "lifted"
    assert np.array_equal(found.scores_in, MATRICES[0].ravel()) and found.design is design
    assert found.upper_bound == accounting.epsilon_upper_bound(4.0, 250, 1e-4)
    assert found.curve is None and not found.refutes_gaussian


def test_runs_with_one_canary_each_are_concluded_from_as_ever():
    design = canaries.Sets(WORLDS[0][:, None], WORLDS[1][:, None])
    one, other = conclude(design, None, 1e-5, 0.95), conclude(single(*WORLDS), None, 1e-5, 0.95)
    assert one.rows() == other.rows() and one.design is None
    assert (one.gaussian.method, one.assumption_free.method) == ("if_gaussian", "assumption_free")
    with pytest.raises(InputError, match="upper_bound=-1"):
        conclude(design, None, 1e-5, 0.95, upper_bound=-1.0)
