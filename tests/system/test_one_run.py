"""One run's cosines through ./run.sh bound, and the PyTorch example that makes some."""

import json

import numpy as np
import pytest

from audit import one_run
from audit.laws import conversions, cosine_law
from tests.cases import draw_null_cosines

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


@pytest.mark.slow
def test_coins_have_bounds_below_the_truth_in_either_shape(bound):
    rng = np.random.default_rng(0)
    bits = rng.random(300) < 0.5
    scores = np.empty(300)
    scores[bits], scores[~bits] = (
        drawn(0.25, bits.sum()),
        draw_null_cosines(rng, ((~bits).sum(),), D),
    )
    flat = bound("--json", scores=scores, presence=bits)
    deep = bound("--json", scores=scores[None], presence=bits[None])
    assert flat.status == deep.status == 0 and flat.stdout == deep.stdout
    _, bounds = epsilons(flat)
    assert (
        1.5
        < bounds["one_run_guesses"]
        < bounds["one_run_gaussian"]
        < conversions.epsilon_from_mu(4, 1e-5)
    )


@pytest.mark.slow
def test_unobserved_cosines_make_the_null_and_pairs(bound):
    rng = np.random.default_rng(0)
    pairs = {
        "observed": 0.05 + 0.01 * rng.standard_normal(80),
        "unobserved": 0.01 * rng.standard_normal(80),
    }
    _, bounds = epsilons(bound("--json", **pairs))
    assert 0.3 < bounds["one_run_guesses"] < bounds["one_run_gaussian"]
    unequal = bound(observed=pairs["observed"], unobserved=pairs["unobserved"][:60])
    assert unequal.status == 0 and "no bound: save coins" in unequal.stdout
    assert "(here 80 and 60)" in unequal.stdout


@pytest.mark.slow
def test_cosines_of_the_wrong_sign_are_remarked(bound):
    assert "did you mean minus" in bound(observed=-drawn(0.2, 60)).stdout
    assert "did you mean minus" not in bound(observed=drawn(0.2, 60)).stdout


def test_canaries_of_a_run_in_numpy_are_bounded(bound):
    seed, count = 11, 300
    bits, rng = one_run.coins(seed, count), np.random.default_rng(0)
    moved = sum(
        one_run.canary(seed, i, D) for i in np.flatnonzero(bits)
    ) + 0.2 * rng.standard_normal(D)
    scores = one_run.cosines(moved, seed, count)
    _, bounds = epsilons(bound("--json", scores=scores[None], presence=bits[None]))
    assert 1.5 < bounds["one_run_guesses"] < conversions.epsilon_from_mu(5, 1e-5)
