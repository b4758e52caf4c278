"""Tests how many runs with fresh directions refute a claim if the noise is smaller than stated."""

import math

import numpy as np
import pytest
from scipy import special

from audit.methods.claimed_curve import (
    THRESHOLDS,
    Exceedances,
    draw_fractions,
    examine_claim,
    gaussian_power,
)
from tests.cases import mostly_slow


def runs_until_refuted(mu, noise, canaries=64, audits=40, runs=1000):
    """Returns the number of runs after which half (9 of 10) of simulated audits refute mu-GDP.

    Scores are ideal, N(mu / noise, 1). The table in audit/check/README.md has these numbers.
    """
    rng = np.random.default_rng(0)
    means = np.full((runs, 1), mu / noise)
    log_rates = special.log_ndtr(-THRESHOLDS)
    needed = []
    for _ in range(audits):
        fractions = draw_fractions(means, 1.0, THRESHOLDS, canaries, rng)
        counted = Exceedances(fractions, log_rates, in_order=True)
        test = examine_claim(counted, gaussian_power(mu), 0.95)
        needed.append(test.runs if test.refuted else math.inf)
    return np.quantile(needed, [0.5, 0.9], method="higher").tolist()


@pytest.mark.parametrize(
    ("noise", "half", "most"), mostly_slow([(0.8, 3, 4), (0.9, 8, 10), (0.5, 1, 1)])
)
def test_a_claim_is_refuted_after_so_many_runs(noise, half, most):
    assert runs_until_refuted(3.953, noise) == [half, most]


def test_noise_as_stated_is_not_refuted():
    assert runs_until_refuted(3.953, 1.0)[0] == math.inf
