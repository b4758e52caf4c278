"""Tests conversions against 60-digit arithmetic, each other and another accountant."""

import functools

import mpmath
import numpy as np
import pytest
from dp_accounting import gaussian_mechanism
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.laws import conversions

MUS = [1e-3, 0.5, 3.9528, 100.0]
DELTAS = [1e-300, 1e-50, 1e-5, 0.5]

quick = settings(deadline=None, derandomize=True, database=None, max_examples=60)


@functools.cache
def exact_log_delta(mu, epsilon, digits=60):
    """log(Phi(-eps / mu + mu / 2) - e^eps Phi(-eps / mu - mu / 2)) in so many digits."""
    with mpmath.workdps(digits):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return float(
            mpmath.log(mpmath.ncdf(-e / m + m / 2) - mpmath.exp(e) * mpmath.ncdf(-e / m - m / 2))
        )


@pytest.mark.parametrize("mu", MUS)
@pytest.mark.parametrize("delta", DELTAS)
def test_log_delta_and_epsilon_agree_with_60_digits(mu, delta):
    epsilon = conversions.epsilon_from_mu(mu, delta)
    exact = exact_log_delta(mu, epsilon)
    tolerance = 1e-8 if delta >= 1e-200 else 2e-8
    assert float(conversions.log_delta_from_mu(mu, epsilon)) == pytest.approx(exact, abs=tolerance)
    if epsilon == 0:
        assert exact <= np.log(delta) + 1e-12
    else:
        assert exact == pytest.approx(np.log(delta), abs=2 * tolerance)


@pytest.mark.parametrize("mu", [0.03, 5.0])
@pytest.mark.parametrize("epsilon", [-20.0, -0.5, -1e-6])
def test_profile_of_negative_epsilon_agrees_with_60_digits(mu, epsilon):
    found = float(conversions.log_delta_from_mu(mu, epsilon))
    assert found == pytest.approx(exact_log_delta(mu, epsilon), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("mu", [0.1, 0.791, 1.768, 3.953, 10.0])
@pytest.mark.parametrize("delta", [1e-10, 1e-5, 0.01])
def test_dp_accounting_agrees(mu, delta):
    theirs = gaussian_mechanism.get_epsilon_gaussian(1 / mu, delta)
    assert conversions.epsilon_from_mu(mu, delta) == pytest.approx(theirs, rel=1e-7, abs=1e-9)


def test_the_papers_numbers_no_privacy_loss_and_no_privacy():
    for insertions, epsilon in ((250, 24.00), (50, 8.60), (10, 3.34)):
        found = conversions.epsilon_from_mu(np.sqrt(insertions) / 4, 1e-5)
        assert found == pytest.approx(epsilon, abs=0.01)
    assert conversions.epsilon_from_mu(0.0, 1e-5) == 0.0
    assert conversions.epsilon_from_mu(np.inf, 1e-5) == np.inf
    assert conversions.mu_from_epsilon(np.inf, 1e-5) == np.inf
    assert conversions.delta_from_mu(0.0, 0.0) == 0.0 and conversions.delta_from_mu(0.0, 2.0) == 0.0
    assert conversions.delta_from_mu(0.0, -1.0) == pytest.approx(1 - np.exp(-1))
    assert (
        conversions.delta_from_mu(np.inf, 5.0) == 1.0
        and conversions.delta_from_mu(1.0, np.inf) == 0.0
    )
    assert conversions.approximate_dp_trade_off(np.inf, 0.0, 0.1) == pytest.approx(0.9)


@quick
@given(st.floats(-3, 2), st.floats(-250, -0.4))
def test_mu_to_epsilon_and_back(log_mu, log_delta):
    mu, delta = 10**log_mu, 10**log_delta
    epsilon = conversions.epsilon_from_mu(mu, delta)
    back = conversions.mu_from_epsilon(epsilon, delta)
    if epsilon == 0:
        assert back >= mu * (1 - 1e-9)
    else:
        assert back == pytest.approx(mu, rel=1e-6)


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [
        (0.0, 1e-8),
        (0.0, 0.3),
        (1e-3, 1e-200),
        (1e-5, 1e-290),
        (0.5, 1e-12),
        (8.0, 1e-5),
        (500.0, 0.1),
    ],
)
def test_mu_of_an_epsilon_has_its_delta_in_500_digits(epsilon, delta):
    mu = conversions.mu_from_epsilon(epsilon, delta)
    assert exact_log_delta(mu, epsilon, 500) == pytest.approx(np.log(delta), abs=1e-6)


def check_trade_off(curve):
    """Convex, decreasing, below 1 - a, and its own mirror image."""
    rates = np.linspace(0, 1, 2001)
    misses = curve(rates)
    slopes = np.diff(misses)
    assert np.all(slopes <= 1e-12) and np.all(np.diff(slopes) >= -1e-12)
    assert np.all(misses >= 0) and np.all(misses <= 1 - rates + 1e-12)
    inside = (misses > 1e-6) & (misses < curve(np.zeros(1))[0] - 1e-6)
    assert inside.any()
    np.testing.assert_allclose(curve(misses[inside]), rates[inside], atol=1e-7)


@pytest.mark.parametrize("parameter", [0.0, 0.5, 3.0, 8.0])
def test_trade_off_functions_are_symmetric(parameter):
    """Equation 6 corrected, and the Gaussian one."""
    for delta in (1e-10, 0.2):
        check_trade_off(lambda a: conversions.approximate_dp_trade_off(parameter, a, delta))  # noqa: B023
        assert conversions.approximate_dp_trade_off(parameter, 0.0, delta) == pytest.approx(
            1 - delta
        )
        assert conversions.approximate_dp_trade_off(parameter, 1.0, delta) == 0.0
    if parameter <= 3:
        check_trade_off(lambda a: conversions.gaussian_trade_off(parameter, a))


@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("delta", [1e-5, 0.05])
def test_the_gaussian_curve_lies_above_its_tangents_and_touches_them(mu, delta):
    """Duality: G_mu is the envelope of the (epsilon, delta) curves that mu-GDP implies."""
    rates = np.linspace(1e-6, 1, 200_001)
    tangent = conversions.approximate_dp_trade_off(
        conversions.epsilon_from_mu(mu, delta), rates, delta
    )
    assert -1e-12 <= (conversions.gaussian_trade_off(mu, rates) - tangent).min() < 1e-4


@quick
@given(st.floats(0.01, 12), st.floats(-9, -0.7), st.floats(-6, -0.01))
def test_epsilon_from_rates_inverts_the_trade_off(epsilon, log_delta, log_rate):
    delta, rate = 10**log_delta, 10**log_rate
    miss = float(conversions.approximate_dp_trade_off(epsilon, rate, delta))
    if miss > 1e-9 and rate < 1 - delta:
        found = float(conversions.epsilon_from_rates(rate, miss, delta))
        assert found == pytest.approx(epsilon, rel=1e-6, abs=1e-6)


@quick
@given(st.floats(0, 6), st.floats(1e-6, 1 - 1e-6))
def test_mu_from_rates_inverts_the_gaussian_trade_off(mu, rate):
    miss = conversions.gaussian_trade_off(mu, rate)
    assert float(conversions.mu_from_rates(rate, miss)) == pytest.approx(mu, abs=1e-6)


def test_rates_are_symmetric_signed_and_right_at_the_edges():
    fpr, fnr = np.array([0.1, 0.7, 0.2]), np.array([0.2, 0.6, 0.8])
    for parameter in (
        conversions.mu_from_rates,
        lambda a, b: conversions.epsilon_from_rates(a, b, 1e-5),
    ):
        values = parameter(fpr, fnr)
        np.testing.assert_allclose(values, parameter(fnr, fpr))
        assert values[0] > 0 > values[1] and values[2] == pytest.approx(0, abs=1e-4)
    assert (
        conversions.mu_from_rates(0.0, 0.3) == np.inf
        and conversions.mu_from_rates(1.0, 0.3) == -np.inf
    )
    found = conversions.epsilon_from_rates(
        [0.0, 0.0, 0.3, 1.0, 0.0], [0.3, 0.0, 0.0, 1.0, 1.0], 1e-5
    )
    np.testing.assert_allclose(found, [np.inf, np.inf, np.inf, -np.inf, 0], atol=1e-4)
