"""Exact quantities of two densities, against Gaussians whose answers are known."""

import numpy as np
import pytest
from scipy import special

from audit.errors import InputError
from audit.statistics import conversions, densities
from audit.statistics.densities import DensityPair


def gaussians(mu, count=4001, error=1e-15):
    points = np.linspace(-14, 14 + mu, count)
    p, q = (np.exp(-0.5 * (points - m) ** 2) / np.sqrt(2 * np.pi) for m in (0, mu))
    return DensityPair(points, p, q, error)


@pytest.mark.parametrize("mu", [0.05, 0.25, 1.0, 3.95])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
def test_epsilon_of_two_gaussians(mu, delta):
    exact = conversions.epsilon_from_mu(mu, delta)
    assert densities.epsilon_at(gaussians(mu), delta) == pytest.approx(exact, rel=2e-5, abs=1e-9)


def test_finer_points_come_closer_and_both_directions_count():
    exact = conversions.delta_from_mu(1.0, 1.3)
    errors = [abs(densities.delta_at(gaussians(1.0, count), 1.3) - exact) for count in (301, 3001)]
    assert errors[1] < errors[0] / 50
    pair = gaussians(1.0)
    half_normal = DensityPair(pair.points, pair.p, np.where(pair.points > 0, 2 * pair.p, 0.0), 1e-15)
    swapped = half_normal._replace(p=half_normal.q, q=half_normal.p)
    assert densities.delta_at(half_normal, 1.0) == pytest.approx(0.5, abs=0.01)  # p has half where q has none
    assert densities.delta_at(half_normal, 1.0) == densities.delta_at(swapped, 1.0)
    pair = gaussians(0.0)
    assert densities.epsilon_at(pair, 1e-5) == 0
    with pytest.raises(InputError, match="delta is 0"):
        densities.epsilon_at(pair, 0.0)
    with pytest.raises(InputError, match="right to"):
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
