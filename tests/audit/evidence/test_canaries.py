"""Tests that counts of errors have the average rates as means, and that bad input is rejected."""

import itertools

import numpy as np
import pytest

from audit.evidence import given
from audit.evidence.canaries import Coins, Sets, make_sets

RNG = np.random.default_rng(0)
SCORES = RNG.normal(size=(40, 5))
BITS = RNG.random((40, 5)) < 0.5


def small_law():
    """(probability, scores, presence) of one run of two canaries that are tied together by a common shift."""
    noises = [((-1.0, 2.0), 0.5), ((1.0, -1.0), 0.3), ((0.5, 0.5), 0.2)]
    for (noise, probability), bits in itertools.product(
        noises, itertools.product((0, 1), repeat=2)
    ):
        present = np.array(bits, bool)
        yield probability / 4, np.array(noise) + 1.5 * present + 0.2 * present.sum(), present


def conditional_rates(threshold):
    law = list(small_law())
    misses = [sum(p for p, s, b in law if b[k] and s[k] <= threshold) / 0.5 for k in range(2)]
    alarms = [sum(p for p, s, b in law if not b[k] and s[k] > threshold) / 0.5 for k in range(2)]
    return np.mean(alarms), np.mean(misses)


@pytest.mark.parametrize("threshold", [-0.5, 0.4, 0.8, 1.1, 1.8])
def test_the_coins_errors_have_the_average_rates_as_their_means(threshold):
    law = list(small_law())
    design = Coins(np.array([s for _, s, _ in law]), np.array([b for *_, b in law]))
    probabilities = np.array([p for p, *_ in law])
    means = [probabilities @ rate for rate in design.errors(threshold).rates()]
    assert means == pytest.approx(conditional_rates(threshold), abs=1e-14)


def test_errors_are_counted_as_the_design_says():
    errors = Coins(SCORES, BITS).errors(0.1)
    assert np.all(errors.misses + errors.alarms <= 5) and errors.same_runs
    assert np.all(sum(errors.rates()) <= errors.scale_in)
    design = Sets(SCORES[:10], SCORES[10:, :3])
    errors = design.errors(0.2)
    alarms, misses = errors.rates()
    assert misses.tolist() == (SCORES[:10] <= 0.2).mean(1).tolist()
    assert alarms == pytest.approx((SCORES[10:, :3] > 0.2).mean(1))
    assert not errors.same_runs and design.canaries == (5, 3)


@pytest.mark.parametrize(
    "design", [Coins(SCORES, BITS), Sets(SCORES, SCORES[:30] + 1)], ids=["coins", "sets"]
)
def test_the_pilot_and_the_rest_share_no_run(design):
    pilot, rest = design.split()
    for part, other, whole in zip(pilot.pooled(), rest.pooled(), design.pooled(), strict=True):
        assert sorted([*part, *other]) == sorted(whole)
    assert all(len(part.errors(0.0).misses) >= 4 for part in (pilot, rest))


def test_the_pilot_follows_the_ranks_of_a_set_of_runs_alone():
    one, two = (Coins(scores, BITS).split()[0] for scores in (SCORES, np.exp(SCORES)))
    assert np.array_equal(np.exp(one.scores), two.scores)
    turned = Coins(SCORES[::-1, ::-1], BITS[::-1, ::-1]).split()
    for part, same in zip(turned, Coins(SCORES, BITS).split(), strict=True):
        assert np.array_equal(np.sort(part.scores), np.sort(same.scores))
        assert np.array_equal(part.presence.sum(1), same.presence.sum(1))


def test_failed_runs_rank_below_all_others_and_infinite_scores_at_the_ends():
    inserted, fresh = make_sets([1.0, np.inf, np.nan], [-np.inf, 0.0]).pooled()
    assert np.argsort([*inserted, *fresh]).tolist() == [2, 3, 4, 0, 1]


def test_cosines_of_one_run_with_coins_are_two_kinds_of_evidence():
    bits = RNG.random((1, 200)) < 0.5
    found = given.cosines(RNG.normal(size=(1, 200)) / 100 + 0.03 * bits, 10_000, bits)
    assert np.array_equal(found.coins.presence, bits) and len(found.cosines.observed) == bits.sum()


def test_one_canarys_bits_may_be_a_vector():
    bits = RNG.random(200) < 0.5
    scores = RNG.normal(size=(200, 1))
    assert np.array_equal(given.coins(scores, bits).presence, bits[:, None])


def test_a_run_describes_its_coins():
    bits = RNG.random((1, 200)) < 0.5
    described = str(given.coins(RNG.normal(size=(1, 200)), bits))
    assert described == "200, each inserted by its own fair coin"
