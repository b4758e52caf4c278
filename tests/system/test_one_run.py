"""One run's cosines through ./run.sh bound and ./run.sh one_shot, and the PyTorch example that makes some."""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest

from audit import one_run
from audit.statistics import conversions, cosine_law

ROOT = Path(__file__).resolve().parents[2]
D = 10_000


@pytest.fixture
def bound(forked, tmp_path):
    """bound(*flags, **arrays) -> Ended, of a file run.npz with these arrays."""

    def call(*argv, **arrays):
        np.savez(tmp_path / "run.npz", **arrays)
        return forked("bound", "--scores=run.npz", f"--dimension={D}", *argv, folder=tmp_path, seconds=60)

    return call


def drawn(sigma, canaries, seed=0):
    """The cosines of a Gaussian mechanism."""
    return cosine_law.simulate(np.random.default_rng(seed), canaries, D, sigma)


def epsilons(ended):
    """{method: epsilon} of the JSON's estimates and bounds."""
    found = json.loads(ended.stdout)
    return [{row["method"]: row["epsilon"] for row in found[kind]} for kind in ("estimates", "bounds")]


def test_observed_cosines_have_estimates_with_floors_and_a_bound(bound):
    ended = bound(observed=drawn(0.1, 90))
    lines = ended.stdout.splitlines()
    assert ended.status == 0 and not ended.stderr and max(map(len, lines)) <= 80
    for name in ("one_shot_fitted", "one_shot_equal_variance", "one_shot_threshold", "one_shot_jeffreys"):
        (row,) = [line for line in lines if line.startswith(name)]
        epsilon, error, floor = map(float, row.split()[1:4])
        assert epsilon > 20 and error > 0 and 0 <= floor < 3
    (row,) = [line for line in lines if line.startswith("one_run ")]
    assert row.endswith("uniform canaries") and float(row.split()[1]) > 20
    estimates, bounds = epsilons(bound("--json", observed=drawn(0.1, 90)))
    assert float(row.split()[1]) == pytest.approx(bounds["one_run"], abs=5e-4)
    assert bounds["one_run"] < conversions.epsilon_from_mu(10, 1e-5) and len(estimates) == 5


def test_a_page_is_written_beside_the_table(bound, tmp_path):
    ended = bound("--report=page.html", "--name=mine", observed=drawn(0.1, 90))
    assert ended.status == 0 and ended.stderr == "report: page.html\n" and "one_shot_fitted" in ended.stdout
    page = (tmp_path / "page.html").read_text()
    assert "<h1>Audit: mine</h1>" in page and "This training leaks." in page


def test_coins_have_bounds_below_the_truth_in_either_shape(bound):
    rng = np.random.default_rng(0)
    bits = rng.random(300) < 0.5
    scores = np.empty(300)
    scores[bits], scores[~bits] = drawn(0.25, bits.sum()), cosine_law.draw(rng, ((~bits).sum(),), D)
    flat, deep = (
        bound("--json", scores=scores.reshape(shape), presence=bits.reshape(shape)) for shape in (-1, (1, -1))
    )
    assert flat.status == deep.status == 0 and flat.stdout == deep.stdout
    _, bounds = epsilons(flat)
    assert 1.5 < bounds["one_run_guesses"] < bounds["one_run_gaussian"] < conversions.epsilon_from_mu(4, 1e-5)
    table = bound("--upper_bound=7.5", scores=scores, presence=bits).stdout
    assert "fair coins" in table and "7.500" in table and "one_run " not in table


def test_unobserved_cosines_make_the_null_and_pairs(bound):
    rng = np.random.default_rng(0)
    pairs = {"observed": 0.05 + 0.01 * rng.standard_normal(80), "unobserved": 0.01 * rng.standard_normal(80)}
    ended = bound(**pairs)
    assert "80 unobserved; null: fitted" in ended.stdout and "drawn alike" in ended.stdout
    _, bounds = epsilons(bound("--json", **pairs))
    assert 0.3 < bounds["one_run_guesses"] < bounds["one_run_gaussian"]
    unequal = bound(observed=pairs["observed"], unobserved=pairs["unobserved"][:60])
    assert unequal.status == 0 and "no bound: save coins" in unequal.stdout


def test_cosines_of_the_wrong_sign_are_remarked(bound):
    assert "did you mean minus" in bound(observed=-drawn(0.2, 60)).stdout
    assert "did you mean minus" not in bound(observed=drawn(0.2, 60)).stdout


def test_one_shot_prints_and_draws(forked, tmp_path):
    ended = forked(
        *("one_shot", "--dimensions=1e3,1e4", "--sigmas=1.54", "--simulations=5", "--canaries=50"),
        "--report=page.html",
        folder=tmp_path,
        seconds=60,
    )
    lines = ended.stdout.splitlines()
    assert ended.status == 0 and max(map(len, lines)) <= 80
    assert [line.split()[:3] for line in lines[3:5]] == [["1.54", "1e+03", "31"], ["1.54", "1e+04", "100"]]
    assert "3.00 (0.46)" in lines[4] and "paper" in lines[1]
    assert (tmp_path / "results/one_shot/cosines.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "page.html").read_text()
    assert "3.00 (0.46)" in page and "<td" in page and "data:image/png" in page
    assert len((tmp_path / "results/one_shot/table_1.csv").read_text().splitlines()) == 7


def test_canaries_of_a_run_in_numpy_are_bounded(bound):
    """What the module's docstring shows: a training that adds canaries and much noise."""
    seed, count = 11, 300
    bits, rng = one_run.coins(seed, count), np.random.default_rng(0)
    moved = sum(one_run.canary(seed, i, D) for i in np.flatnonzero(bits)) + 0.2 * rng.standard_normal(D)
    scores = one_run.cosines(moved, seed, count)
    _, bounds = epsilons(bound("--json", scores=scores[None], presence=bits[None]))
    assert 1.5 < bounds["one_run_guesses"] < conversions.epsilon_from_mu(5, 1e-5)


def test_the_pytorch_example_makes_scores_that_show_a_leak(bound, tmp_path):
    pytest.importorskip("torch")
    example = runpy.run_path(str(ROOT / "experiments" / "examples" / "one_run_pytorch.py"))
    example["main"](str(tmp_path / "made.npz"))
    made = np.load(tmp_path / "made.npz")
    assert made["scores"].shape == made["presence"].shape == (1, 400)
    ended = bound("--json", scores=made["scores"], presence=made["presence"])
    _, bounds = epsilons(ended)
    assert bounds["one_run_guesses"] > 0.3
