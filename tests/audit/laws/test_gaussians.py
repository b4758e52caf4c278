"""Tests the exact epsilon of two Gaussians against 60-digit arithmetic, and of two densities."""

import mpmath
import numpy as np
import pytest
from scipy import special

from audit.errors import InputError
from audit.laws import conversions, densities
from audit.laws.densities import DensityPair
from audit.laws.gaussians import Gaussian, epsilon, log_delta

VECTORS = [  # second mean and deviation against N(0, 1), delta, epsilon
    *((1.0, 1.0, 1e-2, 2.317789), (1.0, 1.0, 1e-6, 4.886554), (1.0, 1.05, 1e-6, 6.148820)),
    (1.0, 0.95, 1e-6, 6.527446),
]
EXTREMES = [  # second mean and deviation, epsilon at which delta is compared
    *((1.0, 1.05, 6.0), (1.0, 0.95, 30.0), (-3.0, 1.2, 60.0), (0.0, 1.5, 20.0), (0.001, 1.0, 0.02)),
    *((1.0, 1.0 + 1e-9, 8.0), (1.0, 1.0 - 1e-12, 8.0), (40.0, 0.8, 2500.0), (300.0, 1.1, 46_500.0)),
    (-5.0, 0.3, 500.0),
]


def exact_log_delta(mean, deviation, eps):
    """The larger of both orders' log delta in 60 digits."""
    with mpmath.workdps(60):
        m, s, e = mpmath.mpf(mean), mpmath.mpf(deviation), mpmath.mpf(eps)
        return float(mpmath.log(max(one_order(m, s, e), one_order(-m / s, 1 / s, e))))


def phi(x):
    return mpmath.erfc(-x / mpmath.sqrt(2)) / 2


def one_order(m, s, e):
    a, b = (1 / s**2 - 1) / 2, -m / s**2
    c = m**2 / (2 * s**2) + mpmath.log(s) - e
    if a == 0:
        r = -c / b
        p, q = (phi(-r), phi(-(r - m) / s)) if b > 0 else (phi(r), phi((r - m) / s))
        return p - mpmath.exp(e) * q
    square = b * b - 4 * a * c
    if square <= 0:
        return mpmath.mpf(0)
    low, high = sorted([(-b - mpmath.sqrt(square)) / (2 * a), (-b + mpmath.sqrt(square)) / (2 * a)])

    def inside(x, y):
        return phi(y) - phi(x) if x + y < 0 else phi(-x) - phi(-y)

    def outside(x, y):
        return phi(x) + phi(-y)

    measure = outside if a > 0 else inside
    return measure(low, high) - mpmath.exp(e) * measure((low - m) / s, (high - m) / s)


@pytest.mark.parametrize(("mean", "deviation", "delta", "expected"), VECTORS)
def test_vectors(mean, deviation, delta, expected):
    assert epsilon(Gaussian(0, 1), Gaussian(mean, deviation), delta) == pytest.approx(
        expected, abs=1e-6
    )


@pytest.mark.parametrize(("mean", "deviation", "eps"), EXTREMES)
def test_it_agrees_with_sixty_digits(mean, deviation, eps):
    found = float(log_delta(Gaussian(0, 1), Gaussian(mean, deviation), eps))
    assert found < -5 and found == pytest.approx(exact_log_delta(mean, deviation, eps), rel=1e-6)


@pytest.mark.parametrize(("mean", "deviation"), [(1.0, 1.0), (50.0, 1.0), (2.0, 1.3), (-0.5, 0.7)])
def test_epsilon_inverts_delta_down_to_1e_30(mean, deviation):
    for delta in (0.01, 1e-6, 1e-15, 1e-30):
        found = float(epsilon(Gaussian(0, 1), Gaussian(mean, deviation), delta))
        if deviation == 1:
            assert found == pytest.approx(conversions.epsilon_from_mu(abs(mean), delta), rel=1e-7)
        assert exact_log_delta(mean, deviation, found) == pytest.approx(np.log(delta), abs=1e-6)


@pytest.mark.parametrize("deviation", [1.0, 0.6, 1.7])
def test_affine_maps_and_order_change_nothing(deviation):
    first, second = Gaussian(0.0, 1.0), Gaussian(1.2, deviation)
    expected = epsilon(first, second, 1e-6)
    for scale, shift in ((1e-4, 3.0), (-250.0, 0.1), (-1.0, 0.0)):
        moved = [
            Gaussian(scale * g.mean + shift, abs(scale) * g.deviation) for g in (first, second)
        ]
        assert epsilon(*moved, 1e-6) == pytest.approx(expected, rel=1e-9)
        assert epsilon(*moved[::-1], 1e-6) == pytest.approx(expected, rel=1e-9)


def test_it_broadcasts_and_refuses_bad_levels():
    found = epsilon(
        Gaussian(0, 1), Gaussian(np.array([[0.0], [1.0]]), np.array([1.0, 1.1, 0.9])), 1e-5
    )
    assert found.shape == (2, 3) and found[0, 0] == 0 and (found.ravel()[1:] > 0).all()
    assert log_delta(Gaussian(0, 1), Gaussian(0, 1), 0.5) == -np.inf
    limit = epsilon(Gaussian(0, 1), Gaussian([1.0, -1.0], 1.0), 1e-6)
    for apart in (1e-15, 1e-10, -1e-10):
        near = epsilon(Gaussian(0, 1), Gaussian([1.0, -1.0], 1 + apart), 1e-6)
        assert near == pytest.approx(limit, rel=1e-8)
    assert limit[0] == pytest.approx(limit[1])  # Errata O3: the half line turns with the sign
    with pytest.raises(InputError, match="`delta` must be .* got 0"):
        epsilon(Gaussian(0, 1), Gaussian(1, 1), 0.0)


def gaussians(mu, count=4001, error=1e-15):
    points = np.linspace(-14, 14 + mu, count)
    p, q = (np.exp(-0.5 * (points - m) ** 2) / np.sqrt(2 * np.pi) for m in (0, mu))
    return DensityPair(points, p, q, error)


@pytest.mark.parametrize("mu", [0.05, 3.95])
@pytest.mark.parametrize("delta", [1e-9, 1e-2])
def test_epsilon_of_two_gaussians(mu, delta):
    exact = conversions.epsilon_from_mu(mu, delta)
    assert densities.epsilon_at(gaussians(mu), delta) == pytest.approx(exact, rel=2e-5, abs=1e-9)


def test_finer_points_come_closer_and_both_directions_count():
    exact = conversions.delta_from_mu(1.0, 1.3)
    errors = [abs(densities.delta_at(gaussians(1.0, count), 1.3) - exact) for count in (301, 3001)]
    assert errors[1] < errors[0] / 50
    pair = gaussians(1.0)
    half_normal = pair._replace(q=np.where(pair.points > 0, 2 * pair.p, 0.0))
    # p has half where q has none
    assert densities.delta_at(half_normal, 1.0) == pytest.approx(0.5, abs=0.01)
    pair = gaussians(0.0)
    assert densities.epsilon_at(pair, 1e-5) == 0
    with pytest.raises(InputError, match="`delta` must be .* got 0"):
        densities.epsilon_at(pair, 0.0)
    with pytest.raises(InputError, match="accurate only to"):
        densities.epsilon_at(gaussians(1.0, error=1e-6), 1e-5)


def test_rates_and_mu_at_thresholds():
    thresholds = np.array([-1.0, 0.37, 2.2])
    rates = densities.error_rates(gaussians(1.5), thresholds)
    np.testing.assert_allclose(rates.false_positive, special.ndtr(-thresholds), rtol=1e-4)
    np.testing.assert_allclose(rates.false_negative, special.ndtr(thresholds - 1.5), rtol=1e-4)
    np.testing.assert_allclose(densities.mu_at(gaussians(1.5), thresholds), 1.5, rtol=1e-4)
    curve = densities.trade_off_curve(gaussians(1.5))
    expected = conversions.gaussian_trade_off(1.5, curve.false_positive)
    np.testing.assert_allclose(curve.false_negative, expected, atol=1e-5)
