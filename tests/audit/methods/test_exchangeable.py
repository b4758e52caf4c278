"""Tests intervals for exchangeable bits (LiDP paper, Section 4) against the authors' numbers."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from audit.methods import lifted
from audit.methods.lifted import bernstein, exchangeable_limits, wilson

CANARIES = 100


@pytest.fixture(scope="module")
def sums():
    """Those of the authors' demonstration."""
    rng = np.random.RandomState(0)
    shares = 0.01 * rng.beta(2, 5, 10_000) + 0.99 * 0.1
    return (rng.rand(10_000, CANARIES) <= shares[:, None]).sum(1).astype(float)


@pytest.mark.parametrize(
    ("order", "interval", "expected"),
    [
        *((1, wilson, (0.096865, 0.106810)), (2, wilson, (0.100607, 0.102779))),
        *((8, wilson, (0.100687, 0.102652)), (1, bernstein, (0.094374, 0.109575))),
        (2, bernstein, (0.099624, 0.103674)),
    ],
)
def test_the_authors_numbers_digit_by_digit(sums, order, interval, expected):
    assert sums.mean() / CANARIES == pytest.approx(0.10173, abs=1e-12)
    assert exchangeable_limits(sums, CANARIES, order, 0.05, interval) == pytest.approx(
        expected, abs=5.01e-7
    )


def order_4(sums, interval):
    """Order 4 written out."""
    n, k, level = len(sums), CANARIES, 0.05 / 4
    means = lifted.moments(sums, k, 4)
    third, fourth = (interval(means[j], n, level)[1] for j in (3, 4))
    pairs, scale = k * (k - 1), 2 / (k * (k - 1))
    spread = 4 * (k - 2) * third / pairs + (k - 2) * (k - 3) * fourth / pairs
    second = interval(means[2], n, level, lifted.VarianceBound(scale, spread))[1]
    return interval(means[1], n, level, lifted.VarianceBound(1 / k, (k - 1) / k * second))


@pytest.mark.parametrize(
    ("interval", "corrected"),
    [(wilson, (0.100820, 0.102542)), (bernstein, (0.099905, 0.103351))],
)
def test_order_4_follows_from_the_identity(sums, interval, corrected):
    """Errata L1: the authors' code has another term."""
    found = exchangeable_limits(sums, CANARIES, 4, 0.05, interval)
    assert found == pytest.approx(corrected, abs=5.01e-7)
    assert found == pytest.approx(order_4(sums, interval), abs=1e-12)


LAWS = [  # of K exchangeable bits: the probability of each sum
    [Fraction(1, 2), 0, 0, 0, Fraction(1, 2)],
    [Fraction(1, 7), Fraction(0), Fraction(2, 7), Fraction(1, 7), Fraction(0), Fraction(3, 7)],
    [Fraction(math.comb(6, s), 64) for s in range(7)],
]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: f"K={len(law) - 1}")
def test_the_variance_identity_holds_exactly(law):
    k = len(law) - 1
    sums = range(k + 1)
    share = [[Fraction(math.comb(s, order), math.comb(k, order)) for s in sums] for order in sums]
    mu = [sum(p * m for p, m in zip(law, one, strict=True)) for one in share]
    for order in range(1, k // 2 + 1):
        direct = sum(p * m**2 for p, m in zip(law, share[order], strict=True)) - mu[order] ** 2
        subsets = list(itertools.combinations(range(k), order))
        pairs = [len({*one} & {*two}) for one in subsets for two in subsets]
        overlaps = [Fraction(pairs.count(i), len(pairs)) for i in range(order + 1)]
        assert direct == sum(h * mu[2 * order - i] for i, h in enumerate(overlaps)) - mu[order] ** 2
        limits = {j: (0.0, float(mu[j])) for j in range(order + 1, 2 * order + 1)}
        a, b = lifted._bound_variance(order, k, limits)
        x = float(mu[order])
        assert a * x + b - x**2 == pytest.approx(float(direct), abs=1e-15)


def test_moments_are_shares_of_tuples_of_ones():
    bits = np.array([[1, 1, 0, 1], [0, 0, 1, 0]])
    pairs = [
        np.mean([row[i] * row[j] for i, j in itertools.permutations(range(4), 2)]) for row in bits
    ]
    assert lifted.moments(bits.sum(1).astype(float), 4, 2) == pytest.approx(
        [1.0, 0.5, np.mean(pairs)]
    )


@pytest.mark.parametrize("interval", [wilson, bernstein])
@pytest.mark.parametrize("mean", [0.0, 0.01, 0.5, 0.99, 1.0])
@pytest.mark.parametrize("n", [1, 5, 30, 1000])
def test_an_interval_holds_its_mean_and_mirrors(interval, mean, n):
    low, high = interval(mean, n, 0.05)
    assert 0 <= low <= mean + 1e-12 and mean - 1e-12 <= high <= 1
    assert (1 - high, 1 - low) == pytest.approx(interval(1 - mean, n, 0.05), abs=1e-12)
    assert (low, high) != (mean, mean)


@pytest.mark.parametrize("interval", [wilson, bernstein])
@pytest.mark.parametrize("order", [1, 2, 4, 8])
def test_equal_canaries_are_no_more_than_one(interval, order):
    equal, single = np.array([8.0] * 30 + [0.0] * 70), np.array([1.0] * 30 + [0.0] * 70)
    low, high = exchangeable_limits(equal, 8, order, 0.05, interval)
    one = exchangeable_limits(single, 1, 1, 0.05 / order, interval)
    assert low <= one[0] + 1e-12 and high >= one[1] - 1e-12


def _missed(canaries, order, error, laws, n):
    """How often Bernstein's limits miss mu_1, exactly, for n runs of two-point sums."""
    (low_sum, high_sum), p = laws
    mean = ((1 - p) * low_sum + p * high_sum) / canaries
    below = above = 0.0
    for count in range(n + 1):
        sums = np.array([high_sum] * count + [low_sum] * (n - count), float)
        low, high = exchangeable_limits(sums, canaries, order, error, bernstein)
        weight = math.comb(n, count) * p**count * (1 - p) ** (n - count)
        below, above = below + weight * (low > mean), above + weight * (high < mean)
    return below, above


@pytest.mark.parametrize("order", [1, 2, 4])
@pytest.mark.parametrize(
    "law",
    [((0, 8), 0.5), ((0, 8), 0.02), ((0, 8), 0.98), ((3, 5), 0.5), ((0, 1), 0.1), ((7, 8), 0.3)],
)
def test_bernsteins_limits_keep_their_level_exactly(order, law):
    for n in (3, 10, 40):
        assert max(_missed(8, order, 0.2, law, n)) <= 0.2
