"""Tests ./run.sh bound with cosines of one run, and the PyTorch example."""

import json

import numpy as np
import pytest

from audit import directions
from audit.laws import conversions, cosine_law

D = 10_000


@pytest.fixture
def bound(forked, tmp_path):
    """bound(*flags, **arrays) -> Ended, of a file run.npz with these arrays."""

    def call(*argv, **arrays):
        np.savez(tmp_path / "run.npz", **arrays)
        return forked(
            "bound", "--scores=run.npz", f"--dimension={D}", *argv, folder=tmp_path, seconds=60
        )

    return call


def drawn(sigma, canaries, seed=0):
    return cosine_law.simulate(np.random.default_rng(seed), canaries, D, sigma)


def epsilons(ended):
    """{method: epsilon} of the JSON's estimates and bounds."""
    found = json.loads(ended.stdout)
    return [
        {row["method"]: row["epsilon"] for row in found[kind]} for kind in ("estimates", "bounds")
    ]


def test_observed_cosines_have_estimates_and_a_bound_below_the_truth(bound):
    estimates, bounds = epsilons(bound("--json", observed=drawn(0.1, 90)))
    names = ("fitted", "equal_variance", "jeffreys")
    assert all(estimates[f"one_shot_{name}"] > 20 for name in names)
    assert 20 < bounds["exact_null"] < conversions.epsilon_from_mu(10, 1e-5) and len(estimates) == 4


def test_unobserved_cosines_fit_the_null_and_give_no_bound(bound):
    rng = np.random.default_rng(0)
    observed = 0.05 + 0.01 * rng.standard_normal(80)
    ended = bound("--json", observed=observed, unobserved=0.01 * rng.standard_normal(60))
    estimates, bounds = epsilons(ended)
    assert estimates["one_shot_fitted"] > 20 and not bounds


def test_canaries_of_a_run_in_numpy_are_bounded(bound):
    seed, count = 11, 300
    rng = np.random.default_rng(0)
    bits = rng.random(count) < 0.5
    canaries = np.array([*directions.canaries(seed, 0, count, D)])
    moved = canaries[bits].sum(axis=0) + 0.2 * rng.standard_normal(D)
    scores = directions.cosines(moved, seed, 0, count)
    _, bounds = epsilons(bound("--json", scores=scores[None], presence=bits[None]))
    assert 1.5 < bounds["one_run_guesses"] < conversions.epsilon_from_mu(5, 1e-5)
