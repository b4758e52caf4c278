"""Tests that files which were rounded, sorted or filled in do not get bounds above the true epsilon.

Each case simulates an audit with a known epsilon, and changes its scores as users do.
"""

import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from scipy import stats

import audit
from audit.errors import InputError
from tests.cases import mostly_slow


class Awkward(NamedTuple):
    """A case.

    Attributes:
      draw: a generator -> arguments of `audit.bounds`.
      truth: epsilon at delta.
      is_refused: whether files may look as if their dimension were wrong, and be refused for it.
    """

    draw: Callable[[np.random.Generator], tuple]
    truth: float
    delta: float = 1e-5
    is_refused: bool = False


def draw_cosines(runs, canaries, dimension, change):
    def draw(rng):
        values = rng.normal(size=(runs, canaries)) / dimension**0.5
        return (audit.cosines(change(values), dimension),)

    return draw


def draw_revealing(runs, canaries, probability):
    """All is revealed with a probability of delta; others fail and are entered as zeros."""

    def draw(rng):
        values = np.zeros((runs, canaries))
        revealed = rng.random(runs) < probability
        values[revealed] = 0.35 + 0.005 * rng.normal(size=(revealed.sum(), canaries))
        return (audit.cosines(values, 10_000),)

    return draw


def draw_response(runs, middle, high=0.2, low=0.02):
    """A randomised response of epsilon = 1 with a middle that both worlds share, one of a few values."""

    def draw_world(rng, high, low):
        chance = rng.random(runs)
        scores = np.where(chance < high, 10 + rng.random(runs), middle(rng, runs))
        return np.where((chance >= high) & (chance < high + low), -10 - rng.random(runs), scores)

    return lambda rng: (draw_world(rng, high, low), draw_world(rng, high / np.e, low * np.e))


def draw_shared(runs, probability, middle):
    """Each world tells itself with a probability of delta, and is one of a few values otherwise."""

    def draw_world(rng, sign):
        world = middle(rng, runs)
        told = rng.random(runs) < probability
        world[told] = sign * (100 + rng.random(told.sum()))
        return world

    return lambda rng: (draw_world(rng, 1), draw_world(rng, -1))


def draw_twenty_firsts(rng, runs):
    return rng.integers(1, 13, runs) / 21


def draw_float16(rng, runs):
    return rng.normal(size=runs).astype(np.float16).astype(float)


def sort_by_mean(values):
    return values[np.argsort(-values.mean(1))]


CASES = {
    "6 decimals": Awkward(draw_cosines(1000, 1, 62_006, lambda x: np.round(x, 6)), 0.0),
    "4 decimals": Awkward(draw_cosines(5000, 1, 68, lambda x: np.round(x, 4)), 0.0),
    "5 decimals": Awkward(draw_cosines(5000, 1, 10_000, lambda x: np.round(x, 5)), 0.0),
    "sorted runs": Awkward(draw_cosines(1000, 1, 62_001, sort_by_mean), 0.0),
    "sorted runs of 8": Awkward(draw_cosines(200, 8, 62_001, sort_by_mean), 0.0),
    "failed runs entered as zeros": Awkward(draw_revealing(1000, 8, 0.01), 0.0, 0.01),
    "5,000 failed runs": Awkward(draw_revealing(5000, 1, 1e-3), 0.0, 1e-3, True),
    "shares of 21": Awkward(draw_response(20_000, draw_twenty_firsts), 1.0),
    "float16": Awkward(draw_response(4000, draw_float16), 1.0),
    "shares of 21, (0, 0.01)": Awkward(draw_shared(20_000, 0.01, draw_twenty_firsts), 0.0, 0.01),
    "NaN in the middle": Awkward(
        draw_response(4000, lambda rng, runs: np.full(runs, np.nan), 0.5, 0.1), 1.0
    ),
    "infinite in the middle": Awkward(
        draw_response(4000, lambda rng, runs: np.full(runs, np.inf)), 1.0
    ),
}


@pytest.mark.parametrize("name", mostly_slow(CASES))
def test_no_bound_is_above_the_truth_on_a_file_that_is_accepted(name, request):
    audits = 20 if request.node.get_closest_marker("slow") else 8
    case = CASES[name]
    above = 0
    for number in range(audits):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                arrays = case.draw(np.random.default_rng([47, 0, number]))
                result = audit.bounds(*arrays, delta=case.delta)
            except InputError:
                assert case.is_refused
                continue
        free = [row for row in result.bounds.values() if not row.assumes.gaussian and row.holds]
        above += any(
            row.epsilon > case.truth for row in free if row.assumes.word not in {"many runs"}
        )
    assert above <= stats.binom.isf(1e-4, audits, 0.05)


def test_guesses_are_scores_and_a_presence_is_not():
    rng = np.random.default_rng(48)
    guesses = np.array(rng.random(500) < 0.7, float)
    guesses[3] = np.nan  # of a run that failed
    assert audit.bounds(guesses, (rng.random(500) < 0.3).astype(int)).epsilon > 0
    scores = rng.normal(size=500)
    presence = rng.random(500) < 0.5
    for bits in (presence, presence.astype(float).tolist()):
        with pytest.raises(InputError, match="out-scores are .*, like presence bits: give"):
            audit.bounds(scores, bits)


@pytest.mark.parametrize("world", ["in", "out", "shifted"])
def test_scores_that_are_no_independent_runs_accuse_nobody(world):
    rng = np.random.default_rng(49)
    scores = {"in": rng.normal(5, 1, 400), "out": rng.normal(0, 1, 400)}
    if world == "shifted":
        scores["in"] = scores["out"] + 3.0
    else:
        scores[world] = np.full(400, 2.0 if world == "in" else -2.0)
    result = audit.bounds(scores["in"], scores["out"], audit.EpsilonDelta(0.1, 1e-5))
    assert result.epsilon > 0.1
    table = " ".join(str(result).split())
    assert "violated" not in table and "these scores do not come from independent runs" in table
    assert result.to_dict().get("verdict", "not independent runs") == "not independent runs"
