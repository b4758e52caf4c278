"""The best of several declared looks is a bound; the best of looks that nobody declared is none."""

import numpy as np
import pytest

from audit.concluded import conclude, of_setting
from audit.errors import InputError
from audit.settings.make import setting_of
from audit.statistics import conclusion
from audit.statistics.calibration import allowed_share
from audit.statistics.canaries import single
from audit.statistics.conclusion import Look
from audit.statistics.estimate import if_gaussian
from audit.storage.store import Scores

SCHEDULE = (200, 400, 1000)


def worlds(seed, runs, mu=2.0):
    rng = np.random.default_rng(seed)
    draws = rng.normal(size=(2, 5000)) + [[mu], [0]]
    return draws[0, : runs // 2], draws[1, : runs // 2]


def scores(seed, runs):
    """`worlds` as a store has them: out, in, out, in, ..."""
    into, out = worlds(seed, runs)
    return Scores(0, np.stack([out, into], 1).reshape(-1, 1), np.arange(runs)[:, None] % 2 == 1)


def look(runs, confidence, seed=0):
    return Look(runs, tuple(conclude(single(*worlds(seed, runs)), None, 1e-5, confidence).bounds))


def test_the_error_is_shared_out_equally_and_the_best_of_each_method_taken():
    assert conclusion.confidence_of_each(0.95, 1) == 0.95
    assert conclusion.confidence_of_each(0.95, 5) == pytest.approx(0.99)
    taken = [look(runs, 0.99) for runs in SCHEDULE]
    found = conclusion.best_of_looks(taken, 0.97)
    for i, bound in enumerate(found):
        assert bound.epsilon == max(one.bounds[i].epsilon for one in taken)
        assert bound.confidence == 0.97 and bound.method == taken[0].bounds[i].method


def test_bounds_of_looks_are_those_of_each_look_at_its_share_of_the_error():
    seen = {runs: worlds(1, runs) for runs in SCHEDULE[:2]}
    found = of_setting(scores(1, 400), setting_of("fcnn"), 1e-5, 0.94, SCHEDULE)
    assert found.looks.confidence == pytest.approx(0.98) and found.confidence == 0.94
    assert [one.runs for one in found.looks.taken] == [200, 400]
    for one in found.looks.taken:
        alone = if_gaussian(*seen[one.runs], 1e-5, conclusion.confidence_of_each(0.94, 3))
        assert one.bounds[1].epsilon == alone.epsilon
    assert found.bound("if_gaussian").epsilon == max(one.bounds[1].epsilon for one in found.looks.taken)
    assert len(found.scores_in) == 200 and found.estimates[0].n_in == 200  # the last look's


def test_a_single_declared_look_is_an_audit_and_another_refused():
    found = conclude(single(*worlds(2, 400)), None, 1e-5, 0.95, looks=(400,))
    plain = conclude(single(*worlds(2, 400)), None, 1e-5, 0.95)
    assert found.bounds == plain.bounds and found.estimates == plain.estimates
    with pytest.raises(InputError, match="none is at 500 runs"):
        conclude(single(*worlds(0, 500)), None, 1e-5, 0.95, looks=SCHEDULE)


@pytest.mark.parametrize("schedule", [(), (400, 200), (200, 200), (1, 200), (-4, 2)])
def test_a_schedule_that_is_none_is_refused(schedule):
    with pytest.raises(InputError, match="`looks="):
        conclusion.require_schedule(schedule)


@pytest.mark.slow
def test_the_best_of_five_declared_looks_holds_and_the_best_of_five_others_does_not(assert_covers):
    """Audits of a Gaussian mechanism whose mu is 1."""

    def best(seed, confidence):
        seen = (worlds([7, seed], runs, 1.0) for runs in (200, 400, 600, 800, 1000))
        return max(if_gaussian(*one, 1e-5, confidence).mu for one in seen)

    undeclared, declared = np.array([best(seed, 0.95) for seed in range(300)]), []

    def draw(first, audits):
        declared.extend(best(first + i, conclusion.confidence_of_each(0.95, 5)) for i in range(audits))
        return {"declared": np.sum(np.array(declared[first:]) > 1)}

    drawn = assert_covers(draw, 300)
    assert np.mean(undeclared > 1) > allowed_share(0.05, 300)
    assert np.mean(undeclared[:drawn]) < 1.15 * np.mean(declared)  # and costs little
