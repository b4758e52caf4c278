"""The true epsilon of known laws against closed forms, and their samplers against their densities."""

import numpy as np
import pytest
from scipy import integrate, stats

from audit.errors import InputError
from audit.statistics import conversions, known_laws
from audit.statistics.known_laws import LAWS, KnownLaw

KNOWN = [KnownLaw(law, parameter) for law in LAWS.values() for parameter in law.parameters]


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 0.01, 0.3])
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0, 6.0])
def test_epsilon_of_laplace_is_the_closed_form(epsilon, delta):
    """delta(epsilon) = 1 - exp((epsilon - shift) / 2) (Balle et al. 2020, Theorem 3)."""
    truth = max(epsilon + 2 * np.log1p(-delta), 0.0)
    assert KnownLaw(LAWS["laplace"], epsilon).epsilon(delta) == pytest.approx(truth, abs=1e-6)


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 0.01])
@pytest.mark.parametrize("epsilon", [1.0, 3.0, 6.0])
def test_epsilon_of_a_noisy_bit_is_that_of_the_bit(epsilon, delta):
    rate = 1 / (1 + np.exp(-epsilon))
    truth = np.log((rate - delta) / (1 - rate))
    assert KnownLaw(LAWS["randomized_response"], epsilon).epsilon(delta) == pytest.approx(truth, abs=1e-5)


@pytest.mark.parametrize("delta", [1e-5, 0.01, 0.3])
@pytest.mark.parametrize("mu", [0.0, 0.25, 1.0, 3.95])
def test_quadrature_finds_the_gaussian_epsilon(mu, delta):
    known = KnownLaw(known_laws.GAUSSIAN, mu)
    truth = conversions.epsilon_from_mu(mu, delta)
    assert known_laws.quadrature(known, delta) == pytest.approx(truth, abs=1e-6)
    assert known.epsilon(delta) == truth


def test_epsilon_of_logistic_is_the_best_threshold_and_all_grow_with_the_parameter():
    """The likelihood ratio increases, so that sets above a threshold are the best ones."""
    x = np.linspace(-40, 40, 800_001)
    above_in, above_out = stats.logistic.sf(x, 2.0), stats.logistic.sf(x)
    truth = np.log(np.maximum(above_in - 1e-5, 1e-300) / above_out).max()
    assert KnownLaw(LAWS["logistic"], 2.0).epsilon(1e-5) == pytest.approx(truth, abs=1e-6)
    for name in ("laplace", "randomized_response", "t3", "logistic"):
        low, high = KnownLaw(LAWS[name], 1.0), KnownLaw(LAWS[name], 1.5)
        assert 0 < low.epsilon(1e-3) < low.epsilon(1e-5) < high.epsilon(1e-5)
    known = KnownLaw(LAWS["subsampled"], 0.5)
    assert known.epsilon(1e-5) > KnownLaw(LAWS["subsampled"], 1.0).epsilon(1e-5) > known.epsilon(0.5) == 0
    with pytest.raises(InputError, match="delta is 0"):
        KNOWN[0].epsilon(0.0)


@pytest.mark.parametrize("known", KNOWN, ids=str)
def test_scores_have_the_density(known):
    worlds = known.scores(np.random.default_rng(4), 3000)
    x = np.linspace(-60, 60, 120_001)
    for inserted, scores in zip((True, False), worlds, strict=True):
        below = integrate.cumulative_trapezoid(known.law.density(x, known.parameter, inserted), x, initial=0)
        assert below[-1] == pytest.approx(1, abs=1e-4)
        assert stats.kstest(scores, lambda s, below=below: np.interp(s, x, below)).pvalue > 1e-3


@pytest.mark.parametrize("known", KNOWN, ids=str)
@pytest.mark.parametrize("inserted", [False, True])
def test_the_distribution_function_is_the_integral_of_the_density(known, inserted):
    x = np.linspace(-60, 60, 400_001)
    density = known.law.density(x, known.parameter, inserted)
    below = integrate.cumulative_trapezoid(density, x, initial=0.0)
    assert np.abs(below - known.law.distribution(x, known.parameter, inserted)).max() < 1e-5


@pytest.mark.parametrize("known", KNOWN, ids=str)
def test_quantiles_are_those_of_the_even_mixture(known):
    levels = np.array([0.01, 0.3, 0.5, 0.9])
    found = known.quantiles(levels)
    below = [known.law.distribution(found, known.parameter, inserted) for inserted in (False, True)]
    assert np.mean(below, 0) == pytest.approx(levels, abs=2e-3)
