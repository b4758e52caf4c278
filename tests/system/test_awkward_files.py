"""Files that are accepted, however they were rounded, sorted or filled in, get no bound above the truth.

Each case draws an audit of a mechanism whose truth is known, and does with its scores what people do.
`share_above` gives the share of audits whose bound is above it; audits=1000 takes half an hour for all.
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
    """draw: a generator -> arguments of `audit.bounds`. truth: epsilon at delta. refused: whether some files
    look as if their dimension were wrong, and are refused for it."""

    draw: Callable[[np.random.Generator], tuple[tuple, dict]]
    truth: float
    delta: float = 1e-5
    refused: bool = False


def cosines(runs, canaries, dimension, change):
    def draw(rng):
        values = rng.normal(size=(runs, canaries)) / dimension**0.5
        return (audit.cosines(change(values), dimension),), {}

    return draw


def revealing(runs=1000, canaries=8, probability=0.01):
    """All is revealed with a probability of delta; others fail and are entered as zeros."""

    def draw(rng):
        values = np.zeros((runs, canaries))
        revealed = rng.random(runs) < probability
        values[revealed] = 0.35 + 0.005 * rng.normal(size=(revealed.sum(), canaries))
        return (audit.cosines(values, 10_000),), {}

    return draw


def response(runs, middle, sizes=(0.2, 0.02)):
    """A randomised response of epsilon = 1 with a middle that both worlds share, one of a few values."""

    def world(rng, high, low):
        chance = rng.random(runs)
        scores = middle(rng, runs)
        scores = np.where(chance < high, 10 + rng.random(runs), scores)
        return np.where((chance >= high) & (chance < high + low), -10 - rng.random(runs), scores)

    def draw(rng):
        high, low = sizes
        return (world(rng, high, low), world(rng, high / np.e, low * np.e)), {}

    return draw


def revealed_or_shared(runs, probability, middle):
    """Each world tells itself with a probability of delta, and is one of a few values otherwise."""

    def draw(rng):
        worlds = [middle(rng, runs) for _ in range(2)]
        for world, sign in zip(worlds, (1, -1), strict=True):
            told = rng.random(runs) < probability
            world[told] = sign * (100 + rng.random(told.sum()))
        return tuple(worlds), {}

    return draw


def collapsed(value):
    """Of 400 runs of 8 canaries a tenth tells its world; the models of the others collapsed to one score."""

    def draw(rng):
        worlds = np.full((2, 400, 8), value)
        for world, base in zip(worlds, (3.0, 1.0), strict=True):
            told = rng.random(400) < 0.1
            world[told] = base + rng.random((told.sum(), 8))
        return tuple(worlds), {}

    return draw


def twenty_firsts(rng, runs):
    return rng.integers(1, 13, runs) / 21


def failures(value):
    return lambda rng, runs: np.full(runs, value)


def in_float16(rng, runs):
    return rng.normal(size=runs).astype(np.float16).astype(float)


def log_counts(rng, runs):
    return np.log(rng.poisson(4.0, runs) + 1.0)


def by_mean(values):
    return values[np.argsort(-values.mean(1))]


CASES = {
    **{
        f"cosines of {decimals} decimals, {runs} runs, d {dimension}": Awkward(
            cosines(
                runs, 1, dimension, lambda values, decimals=decimals: np.round(values, decimals)
            ),
            0.0,
        )
        for runs, dimension, decimals in (
            (1000, 62_006, 6),
            (1000, 2689, 5),
            (2000, 11_000_000, 7),
            (5000, 68, 4),
            (5000, 62_006, 6),
            (5000, 10_000, 5),
        )
    },
    **{
        f"{runs} runs of {canaries} sorted": Awkward(cosines(runs, canaries, 62_001, by_mean), 0.0)
        for runs, canaries in ((20, 1), (50, 1), (200, 1), (1000, 1), (50, 8), (200, 8))
    },
    "failed runs entered as zeros": Awkward(revealing(), 0.0, 0.01),
    "failed runs entered as zeros, 5,000": Awkward(revealing(5000, 1, 1e-3), 0.0, 1e-3, True),
    "shares of 21, 4,000": Awkward(response(4000, twenty_firsts), 1.0),
    "shares of 21, 20,000": Awkward(response(20_000, twenty_firsts), 1.0),
    "float16": Awkward(response(4000, in_float16), 1.0),
    "log counts": Awkward(response(4000, log_counts), 1.0),
    "log counts, (0, 0.1)": Awkward(revealed_or_shared(4000, 0.1, log_counts), 0.0, 0.1),
    "shares of 21, (0, 0.1)": Awkward(revealed_or_shared(4000, 0.1, twenty_firsts), 0.0, 0.1),
    "shares of 21, (0, 0.01)": Awkward(revealed_or_shared(20_000, 0.01, twenty_firsts), 0.0, 0.01),
    "collapsed models": Awkward(collapsed(np.log(10)), 0.0, 0.1),
    "NaN in the middle": Awkward(response(4000, failures(np.nan), (0.5, 0.1)), 1.0),
    "infinite in the middle": Awkward(response(4000, failures(np.inf)), 1.0),
    "minus infinity in the middle": Awkward(response(4000, failures(-np.inf)), 1.0),
}


def share_above(case, audits, seed=0):
    """Returns the shares of audits with a bound above the truth that assumes nothing, and of refused ones."""
    above = refused = 0
    for number in range(audits):
        rng = np.random.default_rng([47, seed, number])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                arrays, more = case.draw(rng)
                result = audit.bounds(*arrays, delta=case.delta, **more)
            except InputError:
                refused += 1
                continue
        free = [row for row in result.bounds.values() if not row.assumes.gaussian and row.holds]
        many_runs = {"many runs"}
        above += any(row.epsilon > case.truth for row in free if row.assumes.word not in many_runs)
    return above / audits, refused / audits


@pytest.mark.parametrize("name", mostly_slow(CASES))
def test_no_bound_is_above_the_truth_on_a_file_that_is_accepted(name, audits=20):
    above, refused = share_above(CASES[name], audits)
    assert above * audits <= stats.binom.isf(1e-4, audits, 0.05)
    assert refused == 0 or CASES[name].refused


def test_guesses_and_votes_are_no_presence_even_where_a_run_failed():
    rng = np.random.default_rng(48)
    guesses_in = np.array(rng.random(200) < 0.7, float)
    guesses_in[3] = np.nan
    guesses_out = np.array(rng.random(200) < 0.3, float)
    assert audit.bounds(guesses_in, guesses_out).epsilon > 0
    votes_in = rng.integers(0, 4, 200)
    assert audit.bounds(votes_in, guesses_out).epsilon >= 0


def test_a_presence_in_the_place_of_scores_is_refused():
    rng = np.random.default_rng(48)
    scores, presence = rng.normal(size=500), rng.random(500) < 0.5
    for bits in (presence, presence.astype(int), presence.astype(float).tolist()):
        with pytest.raises(
            InputError, match="out are (only 0 and 1|booleans), a presence and no scores: give"
        ):
            audit.bounds(scores, bits)
    matrix = rng.normal(size=(50, 8)), rng.random((50, 8)) < 0.5
    with pytest.raises(InputError, match="a presence and no scores"):
        audit.bounds(*matrix)
    assert (
        audit.bounds(presence.astype(int), (rng.random(500) < 0.4).astype(int)).epsilon >= 0
    )  # guesses of a membership attack


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
    assert "violated" not in table and "these scores are not those of independent runs" in table
    assert result.to_dict().get("verdict", "not independent runs") == "not independent runs"
