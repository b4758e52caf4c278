"""Right guesses of coins: against the exact binomial, jax_privacy, and mechanisms whose law is known."""

import numpy as np
import pytest
from scipy import special, stats

from audit.statistics import conversions
from audit.statistics.one_run_bounds import gaussian_refutes, log_p_approximate

CASES = [(1000, 400, 300), (1000, 1000, 700), (100, 50, 50), (2000, 100, 95), (1000, 10, 10), (50, 30, 15)]


def largest(refuted, high=40.0):
    """The largest parameter that a monotone test refutes."""
    low = 0.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


@pytest.mark.parametrize(("coins", "number", "right"), CASES)
def test_without_delta_it_is_the_binomial_tail(coins, number, right):
    eps = np.array([0.0, 0.5, 2.0])
    expected = stats.binom.logsf(right - 1, number, special.expit(eps))
    assert log_p_approximate(coins, number, right, eps, 0.0) == pytest.approx(expected)


@pytest.mark.parametrize(("coins", "number", "right"), CASES)
@pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-2])
def test_it_is_jax_privacys(coins, number, right, delta):
    auditing = pytest.importorskip("jax_privacy.auditing")
    for eps in (0.1, 1.0, 4.0):
        expected = auditing._one_run_p_value(coins, number, right, eps, delta)
        found = np.exp(log_p_approximate(coins, number, right, eps, delta))
        assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("coins", "number", "right"), CASES[:5])
def test_the_recursion_is_jax_privacys(coins, number, right):
    auditing = pytest.importorskip("jax_privacy.auditing")
    mu = largest(lambda mu: gaussian_refutes(coins, number, right, mu, 0.05))
    expected = auditing._epsilon_one_run_fdp(0, coins, number, right, 0.05, 1e-5)
    assert conversions.epsilon_from_mu(mu, 1e-5) == pytest.approx(expected, abs=1e-4)


def test_the_recursion_broadcasts_and_more_right_guesses_refute_more():
    mus = np.array([0.0, 0.3, 0.6, 5.0])
    together = gaussian_refutes(200, np.array([[50], [200]]), np.array([[45], [130]]), mus, 0.05)
    alone = [[gaussian_refutes(200, r, v, mu, 0.05) for mu in mus] for r, v in ((50, 45), (200, 130))]
    assert together.tolist() == np.array(alone).tolist()
    assert together.any() and not together.all()
    found = [largest(lambda mu, v=v: gaussian_refutes(300, 100, v, mu, 0.05)) for v in (50, 70, 90, 100)]
    assert found[0] == 0 or found[0] < 1e-6
    assert (np.diff(found) > 0).all()
    assert not gaussian_refutes(300, 100, 0, 0.0, 0.05)


@pytest.mark.parametrize("mu", [0.0, 0.7, 1.5])
def test_independent_guesses_of_a_gaussian_mechanism_are_within_what_it_allows(mu):
    """v right of r guesses that all coins get has a binomial law, whose tails must not be refuted."""
    coins, error = 60, 0.05
    share = special.ndtr(mu / 2)
    tails = stats.binom.sf(np.arange(coins + 1) - 1, coins, share)
    right = int(np.argmax(tails <= error))  # too many for the truth at this level
    assert not gaussian_refutes(coins, coins, right - 1, mu, error)
    reached = largest(lambda m: gaussian_refutes(coins, coins, coins, m, error))
    assert 1.4 < reached < 1.7  # all right: below the binomial limit, 2 Phi^-1(0.05^(1 / 60)) = 3.3


@pytest.mark.parametrize("delta", [0.0, 1e-2])
def test_a_mechanism_that_lays_coins_open_stays_within_delta(delta):
    """Randomised response, and with probability delta m / i the truth of i coins: the worst that delta allows
    up to a factor of two."""
    coins, opened, eps = 100, 30, 0.5
    leaks, share = delta * coins / opened, special.expit(eps)
    for right in (65, 75, 85):
        honest = stats.binom.sf(right - 1, coins, share)
        open_ = stats.binom.sf(right - opened - 1, coins - opened, share)
        truth = (1 - leaks) * honest + leaks * open_
        allowed = float(np.exp(log_p_approximate(coins, coins, right, eps, delta)))
        assert truth <= allowed * (1 + 1e-9)
        if delta:
            naive = float(np.exp(log_p_approximate(coins, coins, right, eps, 0.0)))
            assert truth > naive  # the term with delta is needed
