"""The band around the empirical trade-off curve covers all of the true one, and is not vacuous."""

import numpy as np
import pytest
from scipy import special, stats

from audit.errors import InputError
from audit.statistics import curves

MU = 1.0
SIMULATIONS = 400


def gaussian_scores(seed, n_in=200, n_out=300):
    rng = np.random.default_rng([71, seed])
    return rng.normal(MU, 1, n_in), rng.normal(0, 1, n_out)


def covers(curve, scores_in, scores_out):
    """Whether the band holds the true rates at *every* threshold: between two scores the empirical
    rates stay and the true ones are monotone, so both ends of each gap are looked at."""
    cuts = np.concatenate([[-np.inf], np.unique(np.concatenate([scores_in, scores_out])), [np.inf]])
    lower, upper = curve.lower(), curve.upper()
    for i, rates in enumerate((special.ndtr(-cuts), special.ndtr(cuts - MU))):
        first, second = rates[:-1], rates[1:]
        if np.any(np.minimum(first, second) < lower[i]) or np.any(np.maximum(first, second) > upper[i]):
            return False
    return True


def share_covered(confidence):
    hits = 0
    for seed in range(SIMULATIONS):
        scores = gaussian_scores(seed)
        hits += covers(curves.trade_off_curve(*scores, confidence), *scores)
    return hits / SIMULATIONS


@pytest.mark.parametrize("confidence", [0.5, 0.95])
def test_the_band_covers_the_whole_curve_as_often_as_it_says_and_not_always(confidence):
    least, most = stats.binom.ppf([1e-3, 1 - 1e-3], SIMULATIONS, confidence) / SIMULATIONS
    assert least <= share_covered(confidence) <= min(most + 0.1, 0.9975)


def test_a_narrower_band_is_caught(monkeypatch):
    narrow = lambda *args: curves.TradeOffCurve(*args[:2], args[2] / 1.5, args[3] / 1.5, args[4])  # noqa: E731
    honest = curves.trade_off_curve(*gaussian_scores(0), 0.95)
    assert narrow(*honest).half_width_in < honest.half_width_in
    original = curves.trade_off_curve
    monkeypatch.setattr(curves, "trade_off_curve", lambda *args: narrow(*original(*args)))
    assert share_covered(0.95) < 0.9


def test_the_curve_runs_from_corner_to_corner_and_counts():
    curve = curves.trade_off_curve([3.0, 1.0, 3.0], [0.0, 1.0], 0.9)
    np.testing.assert_allclose(curve.false_positive_rate, [1, 0.5, 0, 0])
    np.testing.assert_allclose(curve.false_negative_rate, [0, 0, 1 / 3, 1])


def test_widths_follow_the_inequality_and_the_band_stays_in_the_square():
    curve = curves.trade_off_curve(*gaussian_scores(1), 0.9)
    for width, n in ((curve.half_width_in, 200), (curve.half_width_out, 300)):
        assert 2 * np.exp(-2 * n * width**2) == pytest.approx(0.05)
    for side in (*curve.lower(), *curve.upper()):
        assert side.min() >= 0 and side.max() <= 1


@pytest.mark.parametrize("confidence", [0.0, 1.0, np.nan])
def test_confidence_out_of_range(confidence):
    with pytest.raises(InputError, match="confidence is"):
        curves.trade_off_curve([1.0], [0.0], confidence)
