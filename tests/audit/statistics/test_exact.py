"""The exact test's promise, by enumeration: every pair of counts, every rate on a grid, no simulation."""

import functools

import numpy as np
import pytest
from scipy import optimize, special, stats

from audit.statistics import exact
from audit.statistics.exact import Counts, lower_bound

ERROR = 0.05
DELTA = 0.01
FAMILIES = {"gaussian": exact.GAUSSIAN, "approximate_dp": exact.approximate_dp(DELTA)}
SIZES = [(5, 5), (12, 5), (5, 30), (12, 12), (30, 12), (30, 30)]  # (n_in, n_out)
TRUTHS = np.concatenate([[0.0, 1e-3], np.linspace(0.05, 4, 60)])
RATES = np.concatenate([[0.0, 1e-9, 1e-6, 1e-4], special.ndtr(np.linspace(-3.3, 3.3, 133))])
RATES = np.append(RATES, [1 - 1e-4, 1 - 1e-6, 1.0])


def every_bound(family, n_in, n_out, error=ERROR):
    pairs = [[Counts(x, y, n_in, n_out) for y in range(n_in + 1)] for x in range(n_out + 1)]
    return np.array([[lower_bound(family, counts, error) for counts in row] for row in pairs])


@functools.cache
def kept_bounds(name, n_in, n_out, error=ERROR):
    return every_bound(FAMILIES[name], n_in, n_out, error)


def worst_excess(family, bounds, slack=0.0):
    """The largest probability, over truths t and rates (a, b >= f_t(a)), that the bound exceeds t."""
    n_out, n_in = np.array(bounds.shape) - 1
    of_x = stats.binom.pmf(np.arange(n_out + 1), n_out, RATES[:, None])
    worst = 0.0
    for truth in TRUTHS:
        least = family.trade_off(truth, RATES)
        of_y = stats.binom.pmf(np.arange(n_in + 1), n_in, (least + slack * (1 - least))[:, None])
        worst = max(worst, np.einsum("ax,xy,ay->a", of_x, bounds > truth, of_y).max())
    return worst


def normal_theory(counts, error):
    """mu less its standard error (delta method) times a normal quantile."""
    z = [special.ndtri(k / n) for k, n in zip(counts[:2], (counts.n_out, counts.n_in), strict=True)]
    variance = sum(
        special.ndtr(q) * special.ndtr(-q) / n / stats.norm.pdf(q) ** 2
        for q, n in zip(z, (counts.n_out, counts.n_in), strict=True)
    )
    return -sum(z) + special.ndtri(error) * np.sqrt(variance)


def slow_bound(family, counts, error, points=1500):
    """The same test as plainly as can be: the extreme set pair by pair, the p-value over a dense grid."""
    fp, fn, n_in, n_out = counts
    x, y = np.meshgrid(np.arange(n_out + 1), np.arange(n_in + 1), indexing="ij")
    order = family.parameter((x + 0.5) / (n_out + 1), (y + 0.5) / (n_in + 1))
    extreme = order >= order[fp, fn] - 1e-9
    limits = stats.binomtest(fp, n_out).proportion_ci(1 - exact.GAMMA * error)
    a = np.linspace(limits.low, limits.high, points)
    of_x = stats.binom.pmf(np.arange(n_out + 1), n_out, a[:, None])

    def excess(t):
        of_y = stats.binom.pmf(np.arange(n_in + 1), n_in, family.trade_off(t, a)[:, None])
        return np.einsum("ax,xy,ay->a", of_x, extreme, of_y).max() + exact.GAMMA * error - error

    return optimize.brentq(excess, 0, 30) if excess(0) < 0 else 0.0


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("n_in, n_out", SIZES)
def test_the_bound_exceeds_the_truth_at_most_as_often_as_said(name, n_in, n_out):
    assert worst_excess(FAMILIES[name], kept_bounds(name, n_in, n_out)) <= ERROR


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("slack", [0.01, 0.3])
def test_also_for_mechanisms_above_the_curve(name, slack):
    on_curve, above = (worst_excess(FAMILIES[name], kept_bounds(name, 30, 30), s) for s in (0.0, slack))
    assert above < on_curve <= ERROR


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("error", [0.001, 0.3, 0.9])
def test_at_other_levels(name, error):
    assert worst_excess(FAMILIES[name], kept_bounds(name, 12, 12, error)) <= error


@pytest.mark.parametrize("name", FAMILIES)
def test_the_level_is_used_and_errors_fall_to_nothing_as_the_confidence_rises(name):
    """A bound that always says 0 would pass all of the above."""
    assert worst_excess(FAMILIES[name], kept_bounds(name, 30, 30)) > 0.9 * ERROR
    errors = [0.5, 0.05, 1e-3, 1e-6, 1e-12, 1e-300]
    bounds = [lower_bound(FAMILIES[name], Counts(40, 40, 300, 300), error) for error in errors]
    assert np.all(np.diff(bounds) <= 0) and bounds[0] > bounds[2] > 0 == bounds[-1]


def optimistic_corner(monkeypatch):
    """Each cell's far corner (a_(i+1), f(a_i)), and so few points that the proof must do the work."""
    honest = exact._log_largest

    def largest(rates_out, rates_in, boundary, counts):
        if len(rates_out) <= 5:  # the search
            return honest(rates_out, rates_in, boundary, counts)
        return honest(rates_out[2:], rates_in[:-2], boundary, counts)

    monkeypatch.setattr(exact, "_log_largest", largest)
    monkeypatch.setattr(exact, "_PROOF_CELLS", 12)
    monkeypatch.setattr(exact, "_SEARCH_POINTS", 2)


def no_nuisance(monkeypatch):
    """The observed false-positive rate, as if it were the true one."""

    def edges(counts, error, cells):
        return np.full(cells + 1, (counts.false_positives + 0.5) / (counts.n_out + 1))

    monkeypatch.setattr(exact, "_nuisance_edges", edges)


def strictly_more_extreme(monkeypatch):
    """What was seen does not count as extreme."""
    honest = exact._extreme_set
    monkeypatch.setattr(exact, "_extreme_set", lambda *args: np.maximum(honest(*args) - 1, 0))


def lost_probability(monkeypatch):
    """Sums that leave out a third of the probability and do not add it back."""
    honest = exact._log_largest
    monkeypatch.setattr(exact, "_log_largest", lambda *args: honest(*args) + np.log(2 / 3))


BREAKAGES = [optimistic_corner, no_nuisance, strictly_more_extreme, lost_probability]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("breakage", BREAKAGES)
def test_the_enumeration_catches_a_broken_test(monkeypatch, name, breakage):
    breakage(monkeypatch)
    assert worst_excess(FAMILIES[name], every_bound(FAMILIES[name], 12, 12)) > 1.1 * ERROR


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("constants", [{"_PROOF_CELLS": 6, "_SEARCH_POINTS": 2}, {"_NEGLIGIBLE": 1e-3}])
def test_coarse_constants_cost_tightness_not_validity(monkeypatch, name, constants):
    fine = kept_bounds(name, 12, 12)
    for constant, value in constants.items():
        monkeypatch.setattr(exact, constant, value)
    coarse = every_bound(FAMILIES[name], 12, 12)
    assert worst_excess(FAMILIES[name], coarse) <= ERROR and np.mean(coarse) < np.mean(fine)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(
    "counts",
    [(0, 0, 30, 30), (3, 4, 30, 30), (1, 5, 12, 30), (12, 0, 30, 30), (0, 9, 30, 12), (2, 11, 60, 40)],
)
def test_the_slow_reference_agrees(name, counts):
    fast, slow = (f(FAMILIES[name], Counts(*counts), ERROR) for f in (lower_bound, slow_bound))
    assert slow - 0.02 * max(slow, 1) <= fast <= slow + 1e-3


@pytest.mark.parametrize("n_in, n_out", [(1, 1), (40, 90), (700, 2000)])
@pytest.mark.parametrize("low, high", [(-0.3, 1.2), (0.4, 0.6), (0.0, 0.001), (-1.0, -0.1)])
def test_the_largest_probability_is_scipys_and_what_is_left_out_is_added(n_in, n_out, low, high):
    boundary = np.clip(np.linspace(high, low, n_out + 1) * n_in, -1, n_in).astype(int)
    a, b = np.array([0.0, 1e-7, 0.02, 0.3, 0.9, 1.0]), np.array([1.0, 0.97, 0.5, 0.45, 1e-6, 0.0])
    of_x = stats.binom.pmf(np.arange(n_out + 1), n_out, a[:, None])
    truth = np.sum(of_x * stats.binom.cdf(boundary, n_in, b[:, None]), axis=1)
    for rows in (slice(0, 3), slice(2, 4), slice(1, 6)):
        ours = np.exp(exact._log_largest(a[rows], b[rows], boundary, Counts(0, 0, n_in, n_out)))
        assert -1e-11 <= ours - truth[rows].max() <= 2e-8


@pytest.mark.parametrize("mu", [0.5, 1.0, 1.768, 3.953])
@pytest.mark.parametrize("n_in, n_out", [(2375, 2375), (1000, 4000)])
def test_close_to_normal_theory_at_expected_counts(mu, n_in, n_out):
    rate = special.ndtr(-mu / 2)
    counts = Counts(round(n_out * rate), round(n_in * rate), n_in, n_out)
    bound = lower_bound(exact.GAUSSIAN, counts, ERROR)
    assert bound == pytest.approx(normal_theory(counts, ERROR), rel=0.03) and 0.9 * mu - 0.06 < bound < mu


def test_known_counts():
    """No error in n + n scores has probability exp(-2 n e^-epsilon) where both rates are e^-epsilon."""
    for n in (200, 2375):
        bound = lower_bound(exact.approximate_dp(1e-5), Counts(0, 0, n, n), ERROR)
        assert np.log(2 * n / 3) - 0.05 < bound <= np.log(2 * n / -np.log(ERROR))
        mu = lower_bound(exact.GAUSSIAN, Counts(0, 0, n, n), ERROR)
        assert mu == pytest.approx(-2 * special.ndtri(1 - ERROR ** (1 / 2 / n)), rel=0.01)
    # The nuisance's interval moves with them, so they may: little, at many scores and Gaussian curves.
    counts = [Counts(x, 400, 2375, 2375) for x in range(0, 1200, 60)]
    bounds = np.array([lower_bound(exact.GAUSSIAN, c, ERROR) for c in counts])
    assert np.all(np.diff(bounds) <= 1e-3) and bounds[0] > 2 > bounds[-1]
    assert lower_bound(exact.GAUSSIAN, Counts(290, 290, 300, 300), ERROR) == 0.0
    assert lower_bound(exact.approximate_dp(1e-5), Counts(300, 300, 300, 300), ERROR) == 0.0


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("n_in, n_out", SIZES)
def test_never_above_what_was_seen_nor_raised_by_more_false_negatives(name, n_in, n_out):
    x, y = np.meshgrid(np.arange(n_out + 1), np.arange(n_in + 1), indexing="ij")
    seen = FAMILIES[name].parameter((x + 0.5) / (n_out + 1), (y + 0.5) / (n_in + 1))
    bounds = kept_bounds(name, n_in, n_out)
    assert np.all(bounds <= np.maximum(seen, 0)) and np.all(bounds >= 0) and bounds.max() > 0
    assert np.all(np.diff(bounds, axis=1) <= 3e-3 * np.maximum(bounds[:, :-1], 1))


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("n_in, n_out", [(1, 1), (1, 200), (200, 1), (3, 5000)])
def test_corner_counts_give_a_finite_bound(name, n_in, n_out):
    for x in {0, n_out // 2, n_out}:
        for y in {0, n_in // 2, n_in}:
            for error in (1e-6, 0.05, 0.6):
                assert 0 <= lower_bound(FAMILIES[name], Counts(x, y, n_in, n_out), error) < 30
