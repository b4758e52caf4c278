"""Tests the level and tightness of bounds of one run, with dependent canaries."""

import numpy as np
import pytest
from scipy import special, stats

from audit.evidence import given
from audit.evidence.canaries import Coins
from audit.laws import conversions, cosine_law
from audit.methods import one_run_bounds
from audit.methods.one_run_bounds import (
    ONE_RUN_GAUSSIAN,
    ONE_RUN_GUESSES,
    bound_by_guesses,
    epsilon_from_guesses,
    gaussian_refutes,
    log_p_approximate,
    mu_from_guesses,
)
from tests.cases import draw_null_cosines, draw_one_run, mostly_slow

DELTA = 1e-5


def coined(mu, canaries, seed=0):
    rng = np.random.default_rng(seed)
    bits = rng.random((1, canaries)) < 0.5
    return Coins(mu * bits + rng.standard_normal((1, canaries)), bits)


@pytest.mark.parametrize(("sigma", "least"), [(0.1, 55.0), (0.25, 11.0), (0.5, 1.5)])
def test_the_exact_null_of_one_run_is_below_the_truth_and_near_it_where_much_leaks(sigma, least):
    truth = conversions.epsilon_from_mu(1 / sigma, DELTA)
    found = [
        one_run_bounds.bound_uniform_canaries(draw_one_run(sigma, seed=s), DELTA, 0.95)
        for s in range(5)
    ]
    assert (
        all(one.epsilon <= truth for one in found)
        and np.median([one.epsilon for one in found]) > least
    )
    assert {one.method for one in found} == {"exact_null"}


@pytest.mark.slow
def test_the_exact_null_of_one_run_holds_where_all_canaries_stand_or_fall_together():
    """In one of 25 runs every canary has the same huge cosine: counting canaries as independent would prove a
    large epsilon in these, while (0.04 in 1) the level allows for them; in the others nothing is proved.

    With 500 canaries the bets are larger, and others prove a little. All bounds are below the truth, which
    independent canaries would exceed."""
    rng, dimension = np.random.default_rng(0), 10**4
    for canaries, huge, little in ((200, 0.07, 0.0), (500, 0.05, 0.5)):
        log_rate = cosine_law.log_sf(huge, dimension)
        truth = np.log(0.04 - DELTA) - log_rate
        proved = []
        for run in range(400):
            cosines = draw_null_cosines(rng, (canaries,), dimension)
            if run % 25 == 0:
                cosines = huge + 1e-6 * np.abs(rng.standard_normal(canaries))
            run = given.paired_cosines(cosines, None, dimension).cosines
            found = one_run_bounds.bound_uniform_canaries(run, DELTA, 0.95)
            proved.append(found.epsilon)
        assert np.mean(np.array(proved) > little) <= 0.05
        assert max(proved) <= truth < np.log(0.05 ** (1 / canaries)) - log_rate


@pytest.mark.parametrize(
    ("mu", "least"), mostly_slow([(2.0, (2.3, 4.0)), (1.0, (0.9, 1.6)), (6.0, (4.5, 9.5))])
)
def test_guesses_are_below_the_truth_and_near_what_is_possible(mu, least):
    truth = conversions.epsilon_from_mu(mu, DELTA)
    audits = (bound_by_guesses(coined(mu, 1000, s), DELTA, 0.95) for s in range(3))
    found = np.array([[bound.epsilon for bound in bounds] for bounds in audits])
    assert (found <= truth).all() and (np.median(found, 0) > least).all()


def test_what_guesses_say_in_any_unit_and_turned():
    first, second = bound_by_guesses(coined(3.0, 400), DELTA, 0.95)
    assert (first.method, second.method) == (ONE_RUN_GUESSES, ONE_RUN_GAUSSIAN)
    assert first.mu is None and second.epsilon == conversions.epsilon_from_mu(second.mu, DELTA)
    assert first.assumes == one_run_bounds.FAIR_COINS and "Gaussian" in second.assumes.text
    assert first.counted.endswith("right of 320")
    design = coined(2.0, 300)
    moved = Coins(1000.0 * design.scores - 7.0, design.presence)
    found = [bound_by_guesses(one, DELTA, 0.95) for one in (design, moved)]
    assert [b.epsilon for b in found[0]] == pytest.approx([b.epsilon for b in found[1]])
    found = bound_by_guesses(Coins(-design.scores, design.presence), DELTA, 0.95)
    assert [one.epsilon for one in found] == [0, 0]


def test_a_limit_of_guesses_is_where_its_test_stops():
    epsilon = epsilon_from_guesses(500, 200, 180, DELTA, 0.05)
    assert log_p_approximate(500, 200, 180, epsilon, DELTA) == pytest.approx(np.log(0.05), abs=1e-6)
    mu = mu_from_guesses(500, 200, 180, 0.05)
    assert gaussian_refutes(500, 200, 180, mu, 0.05)
    assert not gaussian_refutes(500, 200, 180, mu + 1e-4, 0.05)
    assert epsilon_from_guesses(500, 200, 90, DELTA, 0.05) == 0
    assert mu_from_guesses(500, 200, 90, 0.05) == 0


def test_a_sorted_file_proves_no_more():
    """Coins in order and all scores but one tied: a pilot or order that followed the file would see."""
    proved = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        bits = np.arange(400) < 200
        scores = rng.integers(2, size=400).astype(float)
        proved += bound_by_guesses(Coins(scores[None], bits[None]), DELTA, 0.95)[0].epsilon > 0
    assert proved <= 3  # binomial(10, 0.05): more with a probability of 0.001


CASES = [(1000, 400, 300), (100, 50, 50), (2000, 100, 95), (50, 30, 15)]


@pytest.mark.parametrize(("coins", "number", "right"), CASES)
@pytest.mark.parametrize("epsilon", [0.1, 4.0])
def test_p_values_are_jax_privacys_and_without_delta_the_binomial_tail(
    coins, number, right, epsilon
):
    expected = stats.binom.logsf(right - 1, number, special.expit(epsilon))
    assert log_p_approximate(coins, number, right, epsilon, 0.0) == pytest.approx(expected)
    auditing = pytest.importorskip("jax_privacy.auditing")
    for delta in (1e-5, 1e-2):
        expected = auditing._one_run_p_value(coins, number, right, epsilon, delta)
        found = np.exp(log_p_approximate(coins, number, right, epsilon, delta))
        assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("coins", "number", "right"), mostly_slow(CASES[:3], quick=2))
def test_the_recursion_is_jax_privacys(coins, number, right):
    auditing = pytest.importorskip("jax_privacy.auditing")
    mu = mu_from_guesses(coins, number, right, 0.05)
    expected = auditing._epsilon_one_run_fdp(0, coins, number, right, 0.05, 1e-5)
    assert conversions.epsilon_from_mu(mu, 1e-5) == pytest.approx(expected, abs=1e-4)


def test_the_recursion_broadcasts_and_more_right_guesses_refute_more():
    mus = np.linspace(0.0, 5.0, 200)
    rights = np.array([[0], [50], [70], [90], [100]])
    together = gaussian_refutes(300, 100, rights, mus, 0.05)
    row = [gaussian_refutes(300, 100, 70, mu, 0.05) for mu in mus[::20]]
    assert together[2, ::20].tolist() == np.array(row).tolist()
    refuted = together.sum(1)
    assert refuted[0] == 0 and refuted[1] <= 1 and (np.diff(refuted[1:]) > 0).all()


@pytest.mark.parametrize("delta", [0.0, 1e-2])
def test_a_mechanism_that_lays_coins_open_stays_within_delta(delta):
    """Randomised response, and with probability delta m / i the truth of i coins: the worst that delta allows
    up to a factor of two."""
    coins, opened, eps = 100, 30, 0.5
    leaks, share = delta * coins / opened, special.expit(eps)
    for right in (65, 75, 85):
        honest = stats.binom.sf(right - 1, coins, share)
        truth = (1 - leaks) * honest + leaks * stats.binom.sf(
            right - opened - 1, coins - opened, share
        )
        assert truth <= float(np.exp(log_p_approximate(coins, coins, right, eps, delta))) * (
            1 + 1e-9
        )
        if delta:
            naive = float(np.exp(log_p_approximate(coins, coins, right, eps, 0.0)))
            assert truth > naive  # the term with delta is needed


@pytest.mark.parametrize("mu", [0.0, 0.7, 1.5])
def test_independent_guesses_of_a_gaussian_mechanism_are_within_what_it_allows(mu):
    """v right of r guesses that all coins get has a binomial law, whose tails must not be refuted."""
    coins, error = 60, 0.05
    share = special.ndtr(mu / 2)
    tails = stats.binom.sf(np.arange(coins + 1) - 1, coins, share)
    right = int(np.argmax(tails <= error))  # too many for the truth at this level
    assert not gaussian_refutes(coins, coins, right - 1, mu, error)
    reached = mu_from_guesses(coins, coins, coins, error)
    assert 1.4 < reached < 1.7  # all right: below the binomial limit, 2 Phi^-1(0.05^(1 / 60)) = 3.3
