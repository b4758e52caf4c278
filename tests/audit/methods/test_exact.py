"""Tests the level of the exact test by enumeration."""

import functools

import numpy as np
import pytest
from scipy import special

from audit.methods import exact
from audit.methods.exact import Counts, lower_bound
from tests.cases import mostly_slow

ERROR = 0.05
FAMILIES = {"gaussian": exact.GAUSSIAN, "approximate_dp": exact.approximate_dp(0.01)}
FAMILY = pytest.mark.parametrize("name", FAMILIES)
SIZES = [
    (1, 5, 5),
    (1, 30, 12),
    (3, 12, 30),
    (15, 30, 30),
    (30, 30, 5),
    (2, 300, 300),
]  # (rank, of, trials)
TRUTHS = np.concatenate([[0.0, 1e-3], np.linspace(0.05, 6, 60)])
QUANTILES = (np.arange(20_000) + 0.5) / 20_000


def every_bound(family, rank, of, trials, error=ERROR):
    return np.array(
        [lower_bound(family, [Counts(rank, of, x, trials)], 1, error)[0] for x in range(trials + 1)]
    )


@pytest.fixture(autouse=True)
def fresh_rates():
    """Tests change the cells, by which rates are kept."""
    exact._compute_rates.cache_clear()
    yield
    getattr(exact._compute_rates, "cache_clear", lambda: None)()


@functools.cache
def kept_bounds(name, *sizes):
    return every_bound(FAMILIES[name], *sizes)


def worst_excess(family, bounds, rank, of, trials, slack=0.0):
    """The largest probability, over truths t, that the bound exceeds t where the curve is f_t or above."""
    rates = special.betaincinv(rank, of - rank + 1, QUANTILES)
    worst = 0.0
    for truth in TRUTHS:
        least = family.trade_off(truth, rates)
        exceeding = bounds > truth  # so few errors, all or none
        if exceeding.any():
            most = np.flatnonzero(exceeding)[-1]
            worst = max(
                worst, special.bdtr(float(most), trials, least + slack * (1 - least)).mean()
            )
    return worst


@FAMILY
@pytest.mark.parametrize("sizes", mostly_slow([(size,) for size in SIZES], quick=3))
def test_the_bound_exceeds_the_truth_at_most_as_often_as_said(name, sizes):
    bounds = kept_bounds(name, *sizes)
    assert worst_excess(FAMILIES[name], bounds, *sizes) <= ERROR
    assert (np.diff(bounds) <= 0).all() and (bounds >= 0).all() and bounds[-1] == 0


@FAMILY
def test_the_level_is_used_and_mechanisms_above_the_curve_exceed_less(name):
    """A bound that always says 0 would pass the former test."""
    on_curve, near, above = (
        worst_excess(FAMILIES[name], kept_bounds(name, 2, 60, 60), 2, 60, 60, slack)
        for slack in (0, 0.01, 0.3)
    )
    assert above < near < on_curve and 0.8 * ERROR < on_curve <= ERROR


@FAMILY
@pytest.mark.parametrize("error", [0.001, 0.3, 0.9])
def test_at_other_levels(name, error):
    bounds = every_bound(FAMILIES[name], 3, 12, 12, error)
    assert worst_excess(FAMILIES[name], bounds, 3, 12, 12) <= error


def lower_ends(monkeypatch):
    """Each cell's probability at its lower end, where it is least."""
    levels = np.append(special.ndtr(np.linspace(-6.0, 6.0, 25)), 1.0)
    monkeypatch.setattr(exact, "_LEVELS", np.append(0.0, levels[:-1]))
    monkeypatch.setattr(exact, "_CELL_PROBABILITIES", np.diff(levels, prepend=0.0))
    exact._compute_rates.cache_clear()


def no_spread(monkeypatch):
    """The rate at the threshold as if it were known."""

    def mean_rates(rank, scores):
        return np.full(len(exact._LEVELS), rank / (scores + 1))

    monkeypatch.setattr(exact, "_compute_rates", mean_rates)


def strictly_fewer(monkeypatch):
    """What was seen does not count as so few."""
    honest = exact._compute_p_value

    def fewer(family, parameter, counts):
        return honest(family, parameter, counts._replace(errors=max(counts.errors - 1, 0)))

    monkeypatch.setattr(exact, "_compute_p_value", fewer)


@FAMILY
@pytest.mark.parametrize("breakage", mostly_slow([lower_ends, no_spread, strictly_fewer], quick=2))
def test_the_enumeration_catches_a_broken_test(monkeypatch, name, breakage):
    breakage(monkeypatch)
    sizes = (2, 60, 60)
    assert worst_excess(FAMILIES[name], every_bound(FAMILIES[name], *sizes), *sizes) > 1.1 * ERROR


def test_known_counts():
    """No score out among or above n scores in has probability exp(-2 n e^-epsilon) or so."""
    for n in (200, 2375):
        bound, _ = lower_bound(exact.approximate_dp(1e-5), [Counts(1, n, 0, n)], 1, ERROR)
        assert np.log(2 * n / 3) - 0.03 < bound <= np.log(2 * n / -np.log(ERROR))
    for counts in (Counts(290, 300, 290, 300), Counts(300, 300, 300, 300)):
        assert all(lower_bound(family, [counts], 1, ERROR)[0] == 0 for family in FAMILIES.values())


@FAMILY
def test_of_many_audits_so_many_have_to_reject_each_at_its_share(name):
    audits = [Counts(4, 300, x, 300) for x in (40, 90, 60, 20, 70)]
    alone = [lower_bound(FAMILIES[name], [one], 1, ERROR * 3 / 5)[0] for one in audits]
    bound, decides = lower_bound(FAMILIES[name], audits, 3, ERROR)
    assert bound == pytest.approx(sorted(alone)[2], abs=1e-5) and decides == 2
    assert lower_bound(FAMILIES[name], audits, 5, ERROR)[1] == 1
