"""Bounds of one run: below the truth and near it, whatever ties canaries together; the order of a file."""

import numpy as np
import pytest

from audit.errors import InputError
from audit.statistics import conversions, cosine_law, one_run_bounds, one_shot
from audit.statistics.canaries import Coins
from audit.statistics.one_run_bounds import (
    ONE_RUN,
    ONE_RUN_GAUSSIAN,
    ONE_RUN_GUESSES,
    epsilon_from_guesses,
    guessed,
    mu_from_guesses,
    of_coins,
)

DELTA = 1e-5


def coined(mu, canaries, seed=0):
    rng = np.random.default_rng(seed)
    bits = rng.random((1, canaries)) < 0.5
    return Coins(mu * bits + rng.standard_normal((1, canaries)), bits)


def uniform(sigma, canaries=1000, dimension=10**6, seed=0):
    found = cosine_law.simulate(np.random.default_rng(seed), canaries, dimension, sigma)
    return one_shot.cosines(found, None, dimension)


@pytest.mark.parametrize(("sigma", "least"), [(0.1, 55.0), (0.25, 11.0), (0.5, 1.5)])
def test_one_run_is_below_the_truth_and_near_it_where_much_leaks(sigma, least):
    truth = conversions.epsilon_from_mu(1 / sigma, DELTA)
    found = [one_run_bounds.of_uniform_canaries(uniform(sigma, seed=s), DELTA, 0.95) for s in range(10)]
    assert all(one.epsilon <= truth for one in found)
    assert np.median([one.epsilon for one in found]) > least
    assert {one.method for one in found} == {ONE_RUN}


def test_one_run_holds_where_all_canaries_stand_or_fall_together():
    """In one of 25 runs every canary has the same huge cosine: counting canaries as independent would prove a
    large epsilon in these, while (0.04 in 1) the level allows for them; in the others nothing is proved."""
    rng, dimension = np.random.default_rng(0), 10**4
    proved = []
    for run in range(400):
        cosines = cosine_law.draw(rng, (200,), dimension)
        if run % 25 == 0:
            cosines = 0.5 + 1e-6 * rng.standard_normal(200)
        found = one_run_bounds.of_uniform_canaries(one_shot.cosines(cosines, None, dimension), DELTA, 0.95)
        proved.append(found.epsilon)
    assert np.mean(np.array(proved) > 0) <= 0.05


def test_delta_costs_one_run_all_where_hits_are_rarer_than_it():
    of_run = one_run_bounds.of_uniform_canaries
    found = [of_run(uniform(0.2), delta, 0.95).epsilon for delta in (1e-9, 1e-5, 0.2)]
    assert found[0] == found[1] > 10 and found[2] == 0


@pytest.mark.parametrize(("mu", "least"), [(1.0, (0.9, 1.6)), (2.0, (2.3, 4.0)), (6.0, (4.5, 9.5))])
def test_guesses_are_below_the_truth_and_near_what_is_possible(mu, least):
    truth = conversions.epsilon_from_mu(mu, DELTA)
    audits = (guessed(of_coins(coined(mu, 1000, s)), DELTA, 0.95) for s in range(6))
    found = np.array([[bound.epsilon for bound in bounds] for bounds in audits])
    assert (found <= truth).all() and (np.median(found, 0) > least).all()


def test_what_guesses_say_in_any_unit_and_turned():
    first, second = guessed(of_coins(coined(3.0, 400)), DELTA, 0.95)
    assert (first.method, second.method) == (ONE_RUN_GUESSES, ONE_RUN_GAUSSIAN)
    assert first.mu is None and second.epsilon == conversions.epsilon_from_mu(second.mu, DELTA)
    assert first.canaries == one_run_bounds.FAIR_COINS and "Gaussian" in second.assumes
    assert first.counted.endswith("right of 320")
    design = coined(2.0, 300)
    moved = Coins(1000.0 * design.scores - 7.0, design.presence)
    found = [guessed(of_coins(one), DELTA, 0.95) for one in (design, moved)]
    assert [b.epsilon for b in found[0]] == pytest.approx([b.epsilon for b in found[1]])
    design = coined(3.0, 400)
    found = guessed(of_coins(Coins(-design.scores, design.presence)), DELTA, 0.95)
    assert [one.epsilon for one in found] == [0, 0]
    with pytest.raises(InputError, match="delta is 1"):
        guessed(of_coins(coined(1.0, 100)), 1.0, 0.95)
    with pytest.raises(InputError, match="confidence is 0"):
        one_run_bounds.of_uniform_canaries(uniform(1.0, 50), DELTA, 0.0)


def test_a_limit_of_guesses_is_where_its_test_stops():
    from audit.statistics.one_run_bounds import gaussian_refutes, log_p_approximate

    eps = epsilon_from_guesses(500, 200, 180, DELTA, 0.05)
    assert log_p_approximate(500, 200, 180, eps, DELTA) == pytest.approx(np.log(0.05), abs=1e-6)
    mu = mu_from_guesses(500, 200, 180, 0.05)
    assert gaussian_refutes(500, 200, 180, mu, 0.05) and not gaussian_refutes(500, 200, 180, mu + 1e-4, 0.05)
    assert epsilon_from_guesses(500, 200, 90, DELTA, 0.05) == mu_from_guesses(500, 200, 90, 0.05) == 0


def test_pairs_pay_twice():
    one = epsilon_from_guesses(500, 200, 190, 1e-12, 0.05)
    assert epsilon_from_guesses(500, 200, 190, 1e-12, 0.05, steps=2) == pytest.approx(one / 2, rel=1e-3)
    rng = np.random.default_rng(0)
    seen, unseen = 0.05 + 0.01 * rng.standard_normal(300), 0.01 * rng.standard_normal(300)
    found = one_run_bounds.bounds(one_shot.cosines(seen, unseen, 10**4), DELTA, 0.95)
    assert [one.canaries for one in found] == [one_run_bounds.DRAWN_ALIKE] * 2
    assert 1.5 < found[0].epsilon < found[1].epsilon < conversions.epsilon_from_mu(5.0, DELTA)
    assert one_run_bounds.bounds(one_shot.cosines(seen, unseen[:200], 10**4), DELTA, 0.95) == []


def test_a_sorted_file_proves_no_more():
    """Coins in order and all scores but one tied: a pilot or order that followed the file would see."""
    proved = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        bits = np.arange(400) < 200
        scores = rng.integers(2, size=400).astype(float)
        proved += guessed(of_coins(Coins(scores[None], bits[None])), DELTA, 0.95)[0].epsilon > 0
    assert proved <= 5


@pytest.mark.parametrize("shape", [(2, 50), (1, 39)])
def test_several_runs_or_few_coins_are_refused(shape):
    scores = np.arange(np.prod(shape), dtype=float).reshape(shape)
    with pytest.raises(InputError, match="give"):
        of_coins(Coins(scores, scores % 2 == 0))
