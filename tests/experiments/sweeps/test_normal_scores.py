import numpy as np
import pytest
from scipy import stats

from audit.calibration.calibration import KnownMechanism, draw
from audit.evidence import canaries
from experiments.sweeps import normal_scores
from tests.cases import mostly_slow
from tests.known_mechanisms import COINS, SETS


def interval(mu, runs, confidence=0.95, seed=0):
    rng = np.random.default_rng(seed)
    scores_in, scores_out = rng.normal(mu, 1, runs), rng.normal(0, 1, runs)
    return (
        normal_scores.mu_interval(7 * scores_in - 3, 7 * scores_out - 3, confidence),
        scores_in,
        scores_out,
    )


@pytest.mark.parametrize(
    ("mu", "runs"), mostly_slow([(1.0, 3), (4.0, 8), (0.5, 200), (4.0, 2500)], quick=2)
)
def test_the_limits_miss_as_often_as_they_say_on_each_side(mu, runs):
    audits = 600
    found = np.array([interval(mu, runs, 0.9, seed)[0] for seed in range(audits)])
    too_high, too_low = (found[:, 0] > mu).sum(), (found[:, 1] < mu).sum()
    least, most = stats.binom.ppf([1e-4, 1 - 1e-4], audits, 0.05)
    assert least <= too_high <= most and least <= too_low <= most


def test_the_limits_are_those_of_the_t_statistic_of_the_scores_in_any_unit():
    found, scores_in, scores_out = interval(2.0, 12)
    statistic = stats.ttest_ind(scores_in, scores_out).statistic
    root = np.sqrt(12 / 2)
    assert stats.nct.sf(statistic, 22, found.lower * root) == pytest.approx(0.025, rel=1e-6)
    assert stats.nct.cdf(statistic, 22, found.upper * root) == pytest.approx(0.025, rel=1e-6)


@pytest.mark.parametrize("mu", [-3.0, 0.0, 0.01, 30.0])
def test_an_interval_is_finite_and_starts_at_0_or_above(mu):
    low, high = interval(mu, 2000)[0]
    assert 0 <= low <= high < np.inf
    assert high == 0 if mu < 0 else high > mu * 0.95


def test_a_run_a_world_says_nothing():
    assert normal_scores.mu_interval([3.0], [1.0], 0.95) == (0, np.inf)
    sets = canaries.make_sets([[3.0, 2.0]], [[1.0, 0.5]])
    assert normal_scores.mu_interval_of_runs(sets, 0.95) == (0, np.inf)


@pytest.mark.parametrize("tie", ["independent", "shifted", "equal"])
@pytest.mark.parametrize("coins", [True, False])
@pytest.mark.parametrize("runs", mostly_slow([12, 60]))
def test_the_limits_over_runs_miss_as_often_as_they_say_however_canaries_are_tied(tie, coins, runs):
    audits, mu = 400, 2.0
    law = (COINS if coins else SETS)[tie]
    setting = KnownMechanism(law, mu, runs, audits, 1e-5, 0.9, 3, canaries=8)
    found = [normal_scores.mu_interval_of_runs(draw(setting, i), 0.9) for i in range(audits)]
    outside = sum(not low <= mu <= high for low, high in found)
    assert stats.binom.ppf(1e-4, audits, 0.06) <= outside <= stats.binom.ppf(1 - 1e-4, audits, 0.13)
