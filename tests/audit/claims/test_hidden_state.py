"""Tests the hidden-state bound against a quadratic program, closed forms and tight examples."""

import numpy as np
import pytest
from scipy import optimize

from audit.claims import accounting
from audit.claims.accounting import Composition
from audit.claims.hidden_state import (
    Periods,
    bound_periods,
    hidden_state_bound,
    raise_constants,
)

PAPER = Composition(4.0, 250)


def schedule(seed, steps=12, least=0.5, most=1.5):
    """Random shifts, of which some are 0, constants and noise."""
    rng = np.random.default_rng(seed)
    shifts = rng.uniform(0.2, 1, steps) * (rng.uniform(size=steps) < 0.6)
    return shifts, rng.uniform(least, most, steps), rng.uniform(0.5, 2, steps)


def mu_of(shifts, lipschitz, noise):
    return hidden_state_bound(shifts, lipschitz, noise, 1e-5).mu


def in_periods(lipschitz, k, insert, composition=PAPER, **more):
    return bound_periods(composition, Periods(lipschitz, k, insert), 1e-5, **more)


def by_program(shifts, lipschitz, noise):
    """mu by sequential quadratic programming, with gradients."""
    products = np.cumprod(np.r_[1.0, lipschitz[:0:-1]])[::-1]
    sums = np.tril(np.ones((len(shifts), len(shifts))))
    apart = {
        "type": "ineq",
        "fun": lambda b: (sums @ (products * shifts - b))[:-1],
        "jac": lambda b: -sums[:-1],
    }
    masked = {
        "type": "eq",
        "fun": lambda b: (products * shifts - b).sum(),
        "jac": lambda b: -np.ones(len(b)),
    }
    variance = (products * noise) ** 2
    found = optimize.minimize(
        lambda b: (b**2 / variance).sum(),
        products * shifts,
        jac=lambda b: 2 * b / variance,
        constraints=[apart, masked],
        method="SLSQP",
        options={"ftol": 1e-16, "maxiter": 1000},
    )
    return np.sqrt(found.fun)


def leaked(shifts, slopes, noise):
    """mu of the last iterate of a linear process in one dimension: its mean in noise's deviations."""
    mean = variance = 0.0
    for shift, slope, deviation in zip(
        shifts, slopes, np.broadcast_to(noise, len(shifts)), strict=True
    ):
        mean, variance = slope * mean + shift, slope**2 * variance + deviation**2
    return mean / np.sqrt(variance)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("range_", [(0.5, 1.5), (0.3, 0.9), (1.0, 1.6)])
def test_no_payment_is_cheaper(seed, range_):
    given = schedule(seed, 12, *range_)
    assert mu_of(*given) == pytest.approx(by_program(*given), abs=1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_the_certificate_is_feasible_and_a_linear_process_attains_it(seed):
    shifts, lipschitz, noise = schedule(seed, 60)
    found, apart = hidden_state_bound(shifts, lipschitz, noise, 1e-5), 0.0
    for shift, constant, masked in zip(shifts, lipschitz, found.masked, strict=True):
        apart = constant * apart + shift - masked
        assert apart > -1e-12 and masked >= 0
    assert apart == pytest.approx(0, abs=1e-12)
    assert np.linalg.norm(found.masked / noise) == pytest.approx(found.mu, rel=1e-13)
    assert (found.worst_slopes >= 0).all() and (found.worst_slopes <= lipschitz).all()
    assert leaked(shifts, found.worst_slopes, noise) == pytest.approx(found.mu, rel=1e-12)


@pytest.mark.parametrize("constant", [0.5, 0.99, 1.0, 1.01, 2.0])
@pytest.mark.parametrize("k, insert", [(1, 1), (5, 5), (25, 3)])
def test_constants_multiply_over_thousands_of_magnitudes(constant, k, insert):
    found = in_periods(constant, k, insert, Composition(4.0, 10_000 // k))
    shifts = np.arange(10_000) % k == insert - 1
    assert np.isfinite(found.masked).all()
    assert leaked(shifts, found.worst_slopes, 4.0) == pytest.approx(found.mu, rel=1e-12)


def test_many_steps():
    falling = 1 / np.sqrt(np.arange(1, 10**5 + 1))
    found = in_periods(1.0, 1, 1, Composition(1.0, 10**5), step_sizes=falling)
    assert found.mu == pytest.approx(np.sqrt(10**5))


@pytest.mark.parametrize("c, steps", [(0.99, 40), (0.5, 7), (0.999, 250)])
def test_the_closed_form_of_a_canary_in_each_step(c, steps):
    expected = np.sqrt((1 - c**steps) / (1 + c**steps) * (1 + c) / (1 - c))
    assert in_periods(c, 1, 1, Composition(1.0, steps)).mu == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("c, k, epochs", [(0.99, 5, 10), (0.9, 3, 7), (0.999, 25, 40)])
def test_the_closed_form_of_a_canary_once_an_epoch(c, k, epochs):
    shared = (1 - c ** (k * (epochs - 1))) / (1 + c ** (k * (epochs - 1)))
    expected = np.sqrt(1 + c ** (2 * k - 2) * (1 - c**2) / (1 - c**k) ** 2 * shared)
    assert in_periods(c, k, k, Composition(1.0, epochs)).mu == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "k, c, insert, mu, epsilon",
    [
        (1, 1, 1, 3.952847, 23.9954),
        (5, 1, 5, 1.781853, 8.6792),
        (5, 1, 1, 1.767767, 8.5959),
        (5, 1, 3, 1.770122, 8.6098),
        (5, 0.99, 5, 0.735049, 3.0756),
        (5, 0.99, 1, 0.691228, 2.8684),
        (5, 0.999, 5, 1.677941, 8.0692),
        (25, 1, 25, 0.827647, 3.5210),
        (25, 0.99, 25, 0.279380, 1.0465),
    ],
)
def test_the_papers_schedules(k, c, insert, mu, epsilon):
    found = in_periods(c, k, insert)
    assert found.mu == pytest.approx(mu, abs=1e-6) and found.epsilon == pytest.approx(
        epsilon, abs=1e-4
    )


def test_constant_directions_attain_it_where_the_canary_comes_first():
    for k, c in ((5, 0.99), (25, 0.99), (25, 0.999), (5, 1.0)):
        assert leaked(np.arange(250 * k) % k == 0, np.full(250 * k, c), 4.0) == pytest.approx(
            in_periods(c, k, 1).mu, rel=1e-12
        )


def test_composition_is_the_limit_of_large_constants():
    shifts, _, noise = schedule(0, 50)
    composition = np.linalg.norm(shifts / noise)
    assert mu_of(shifts, 1.0, noise) < 0.9 * composition
    assert mu_of(shifts, 1e6, noise) == pytest.approx(composition, rel=1e-9)
    assert in_periods(1e50, 5, 2).mu == pytest.approx(accounting.mu_upper_bound(4.0, 250), rel=1e-9)
    assert all(
        mu_of(s, c, n) <= np.linalg.norm(s / n) * (1 + 1e-12)
        for s, c, n in map(schedule, range(30))
    )


def test_step_sizes_count_by_their_ratios_and_smaller_ones_late_pay_dearer():
    falling = np.linspace(1, 0.1, 1250)
    found = in_periods(1.0, 5, 5, step_sizes=falling).mu
    assert found == pytest.approx(in_periods(1.0, 5, 5, step_sizes=7 * falling).mu, rel=1e-12)
    assert in_periods(1.0, 5, 5).mu < found < accounting.mu_upper_bound(4.0, 250)
    shifts = np.where(np.arange(1250) % 5 == 4, falling, 0)
    assert found == pytest.approx(mu_of(shifts, 1.0, 4 * falling), rel=1e-12)


def test_steps_without_noise_and_maps_that_forget():
    assert mu_of([1, 0, 1, 0], [1, 2, 1, 1], [1, 0, 1, 0]) == pytest.approx(
        mu_of([1, 1], [1, 2], 1.0), rel=1e-12
    )
    assert mu_of([1, 1, 1], [1, 1, 0], 1.0) == 1.0
    assert mu_of([1, 1, 0], [1, 1, 0], 1.0) == 0.0
    assert (
        mu_of([], 1.0, 1.0)
        == mu_of(np.zeros(4), 1.0, 0.0)
        == in_periods(1.0, 5, 1, Composition(4.0, 0)).mu
        == 0
    )
    without = in_periods(1.0, 5, 1, Composition(0.0, 3))
    assert without.mu == without.epsilon == np.inf


@pytest.mark.parametrize("seed", range(5))
def test_monotone_in_every_shift_constant_and_noise(seed):
    given, rng = schedule(seed, 30), np.random.default_rng(seed)
    for which, sign in ((0, 1), (1, 1), (2, -1)):
        for step in rng.choice(30, 8, replace=False):
            more = [values.copy() for values in given]
            more[which][step] += 0.1
            assert sign * (mu_of(*more) - mu_of(*given)) >= -1e-12


def test_margins_cover_contracting_steps_too():
    """A measured c is wrong by up to |c - 1|, on either side of 1."""
    true = np.array([0.9996, 1.02, 0.95])
    measured = np.array([0.982, 1.011, 0.93])
    assert (raise_constants(measured, 2) >= true).all()
    assert raise_constants(np.array([0.9, 1.0, 1.1]), 10) == pytest.approx([1.8, 1.0, 2.0])
