"""Tests upper bounds: two accountants and the closed form must agree."""

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant

from audit import errors
from audit.claims import accounting
from audit.claims.claim import DpSgd, Gdp
from audit.errors import InputError
from audit.laws import conversions


def renyi_upper_bound(noise_multiplier, insertions, delta):
    """epsilon of such a composition by Renyi DP: looser, and computed independently."""
    accountant = RdpAccountant(
        neighboring_relation=dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    )
    accountant.compose(dp_accounting.GaussianDpEvent(noise_multiplier), insertions)
    return float(accountant.get_epsilon(delta))


@pytest.mark.parametrize(
    "noise_multiplier, insertions, delta",
    [(4.0, 250, 1e-5), (4.0, 50, 1e-5), (4.0, 10, 1e-3), (1.0, 1, 1e-5), (10.0, 1, 1e-6)],
)
def test_composition_agrees_with_googles_accountant(noise_multiplier, insertions, delta):
    mu = accounting.mu_upper_bound(noise_multiplier, insertions)
    googles = dp_accounting.get_epsilon_gaussian(1 / mu, delta, tol=1e-10)
    composed = accounting.epsilon_upper_bound(noise_multiplier, insertions, delta)
    assert composed == pytest.approx(googles, abs=2e-10)
    assert composed < renyi_upper_bound(noise_multiplier, insertions, delta) < composed * 1.5


def test_the_papers_setting_and_the_ends():
    bound = accounting.epsilon_upper_bound
    assert bound(4, 250, 1e-5) == pytest.approx(23.995, abs=5e-4)
    assert accounting.mu_upper_bound(4, 250) == pytest.approx(3.953, abs=5e-4)
    assert bound(4.0, 20, 1e-5) > bound(5.0, 20, 1e-5) > bound(5.0, 10, 1e-5) > 0
    assert bound(4.0, 0, 1e-5) == accounting.mu_upper_bound(4.0, 0) == 0.0
    assert bound(0.0, 3, 1e-5) == accounting.mu_upper_bound(0.0, 3) == np.inf


def test_values_at_the_ends_of_the_range_and_beyond():
    least, most = errors.MIN_NOISE, accounting.MAX_INSERTIONS
    mu = accounting.mu_upper_bound(least, most)
    bound = accounting.epsilon_upper_bound(least, most, 1e-5)
    assert bound == pytest.approx(mu**2 / 2, rel=1e-6) and np.isfinite(bound)
    assert accounting.epsilon_upper_bound(errors.MAX_NOISE, 1, 1e-5) == 0.0
    for given, named in (((-1.0, 5, 1e-5), "`noise_mul"), ((1.0, -5, 1e-5), "`insertions=-5")):
        with pytest.raises(InputError, match=named):
            accounting.epsilon_upper_bound(*given)


@pytest.mark.slow
def test_sampling_is_near_what_must_leak():
    sigma, steps, rate, delta = 1.0, 200, 0.05, 1e-5
    sampled = accounting.participant_upper_bound(accounting.Composition(sigma, steps, rate), delta)
    accountant = RdpAccountant()
    accountant.compose(
        dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma)), steps
    )
    assert 0.7 * accountant.get_epsilon(delta) < sampled < accountant.get_epsilon(delta)
    assert sampled < 0.2 * accounting.epsilon_upper_bound(sigma, steps, delta)
    assert accounting.participant_upper_bound(
        accounting.Composition(1.0, 10**5, 0.001), 1e-5
    ) == pytest.approx(1.638, abs=0.01)
    # delta(epsilon) of q N(1, s^2) + (1 - q) N(0, s^2) against N(0, s^2), in the worse direction.
    sigma, rate, delta = 0.8, 0.2, 1e-3
    epsilon = accounting.participant_upper_bound(accounting.Composition(sigma, 1, rate), delta)
    inner = np.log1p(np.expm1(epsilon) / rate)  # likelihood ratio 1 - q + q e^l above e^epsilon
    closed = rate * conversions.delta_from_mu(1 / sigma, inner)
    assert closed <= delta and closed == pytest.approx(delta, rel=2e-3)


@pytest.mark.slow
def test_sampling_of_all_is_none_and_never_worse():
    whole = accounting.epsilon_upper_bound(4.0, 250, 1e-5)
    assert accounting.participant_upper_bound(accounting.Composition(4.0, 250, 1.0), 1e-5) == whole
    rates = [
        accounting.participant_upper_bound(accounting.Composition(4.0, 50, rate), 1e-5)
        for rate in (0.01, 0.5, 1 - 1e-9, 1.0)
    ]
    assert rates == sorted(rates) and rates[0] < 0.1 * rates[-1]
    assert accounting.participant_upper_bound(accounting.Composition(0.0, 5, 0.5), 1e-5) == np.inf
    assert accounting.participant_upper_bound(accounting.Composition(1.0, 0, 0.5), 1e-5) == 0
    with pytest.raises(InputError, match="`sampling_rate=1.1`"):
        accounting.participant_upper_bound(accounting.Composition(1.0, 5, 1.1), 1e-5)


@pytest.mark.parametrize("sigma, counts", [(1.0, True), (0.2, True), (0.04, False)])
def test_a_claim_of_sampled_steps_with_little_noise_has_an_epsilon_and_a_curve(sigma, counts):
    claim = DpSgd(sigma, 20, sampling_rate=0.01)
    assert accounting.counts_sampling(claim.composition) == counts
    whole = DpSgd(sigma, 20)
    assert claim.epsilon(1e-5) == accounting.participant_upper_bound(claim.composition, 1e-5)
    assert (claim.epsilon(1e-5) < whole.epsilon(1e-5)) == counts
    rates = np.array([1e-9, 0.01, 1.0])
    assert (claim.power(rates) <= whole.power(rates)).all()
    assert (claim.power(rates)[0] < 0.5) == counts
    # The curve allows the test that guesses "in" where a single step's sum is large.
    mu = 1 / sigma
    assert (claim.power(rates) >= 0.01 * Gdp(mu).power(rates)).all()


@pytest.mark.parametrize("sampling_rate", [0.5, 1.0])
def test_without_noise_every_test_is_allowed_and_without_steps_none_but_guesses(sampling_rate):
    rates = np.array([0.0, 0.1, 1.0])
    assert np.array_equal(DpSgd(0.0, 5, sampling_rate).power(rates), np.ones(3))
    np.testing.assert_allclose(DpSgd(1.0, 0, sampling_rate).power(rates), rates)


def test_a_canarys_step_is_a_word_a_number_or_digits():
    assert [errors.insert_step(step, 5) for step in ("first", "last", 3, "3")] == [1, 5, 3, 3]
    for wrong in ("6", "middle", 0, 2.0, "9" * 30):
        with pytest.raises(InputError, match="`insert=.*from 1 to 5"):
            errors.insert_step(wrong, 5)
