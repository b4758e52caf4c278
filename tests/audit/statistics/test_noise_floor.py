"""What an estimate shows where nothing leaks: exact on few scores, and as simulated audits have it."""

import itertools

import numpy as np
import pytest

from audit.errors import InputError
from audit.statistics import estimate
from audit.statistics.estimate import METHODS, Estimate, in_sample, noise_floor


def within(share, truth, audits):
    """Whether a simulated share is the true one but for sampling error, with probability 0.999."""
    return abs(share - truth) <= 3.3 * np.sqrt(truth * (1 - truth) / audits)


@pytest.mark.parametrize("n_in, n_out", [(4, 4), (3, 5), (1, 6)])
def test_it_is_the_law_over_all_orders(n_in, n_out):
    n, epsilons = n_in + n_out, []
    for places in itertools.combinations(range(n), n_in):
        epsilons.append(in_sample(places, sorted(set(range(n)) - set(places)), 1e-3, 0.2).epsilon)
    floor = noise_floor(n_in, n_out, 1e-3, 0.2)
    exceeding = np.mean(np.array(epsilons) > 0)
    assert 0.1 < exceeding < 1 and within(floor.exceeding, exceeding, floor.audits)
    assert floor.mean == pytest.approx(np.mean(epsilons), abs=3.3 * np.std(epsilons) / np.sqrt(floor.audits))
    assert min(epsilons) <= floor.quantile_95 <= max(epsilons)


@pytest.mark.parametrize("draw", [np.random.Generator.normal, np.random.Generator.standard_cauchy])
def test_it_is_what_audits_show_whatever_the_scores_law(draw, audits=300, n=800):
    """More scores than are all tried as thresholds, of two shapes."""
    rng = np.random.default_rng(7)
    worlds = ((draw(rng, size=n), draw(rng, size=n)) for _ in range(audits))
    epsilons = np.array([in_sample(*world, 1e-5, 0.95).epsilon for world in worlds])
    floor = noise_floor(n, n, 1e-5, 0.95)
    both = 1 / (1 / audits + 1 / floor.audits)
    assert within(floor.exceeding, np.mean(epsilons > 0), both)
    assert floor.mean == pytest.approx(epsilons.mean(), abs=3.3 * epsilons.std() / np.sqrt(both))


def test_it_tells_a_leak_from_none_and_shows_more_with_less_confidence():
    rng = np.random.default_rng(3)
    floor = noise_floor(500, 500, 1e-5, 0.95)
    assert 0 < floor.exceeding < 0.2 and floor.mean < 0.05 and floor.quantile_95 < 0.4
    assert in_sample(rng.normal(1, 1, 500), rng.normal(0, 1, 500), 1e-5, 0.95).epsilon > 5 * floor.quantile_95
    shares = [noise_floor(200, 300, 1e-5, confidence).exceeding for confidence in (0.999, 0.95, 0.5, 0.1)]
    assert shares == sorted(shares) and shares[-1] > 0.8 > 0.1 > shares[0]
    first = noise_floor(30, 40, 1e-5, 0.5)
    noise_floor.cache_clear()
    assert noise_floor(30, 40, 1e-5, 0.5) == first
    found = {name: one.compute([1.0, 3.0], [0.0, 2.0], 1e-5, 0.95) for name, one in METHODS.items()}
    for name, finding in found.items():
        assert isinstance(finding, Estimate) == bool(METHODS[name].noise_floor)


@pytest.mark.parametrize("n", [2, 3, 7, 600, 601, 5000, 123_457])
def test_every_score_is_in_one_group_and_the_work_is_bounded(n):
    groups = estimate._groups(n)
    assert groups.sum() == n and groups.min() == 1 and len(groups) < 6000
    assert n > 600 or (groups == 1).all()


@pytest.mark.parametrize("values", [(0, 5, 1e-5, 0.95), (5, 5, 0.0, 0.95), (5, 5, 1e-5, 1.0)])
def test_values_out_of_range(values):
    with pytest.raises(InputError):
        noise_floor(*values)
