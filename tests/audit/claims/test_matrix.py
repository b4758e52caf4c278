"""Tests matrix mechanisms: published numbers, strategies as matrices, sensitivities and the leak."""

import json

import numpy as np
import pytest
from scipy import linalg, stats

import audit
from audit.claims.strategies import expand_power, make_strategy, read_strategy
from audit.errors import InputError
from audit.laws import conversions
from experiments.hidden_state import correlated

T = 1250
STRATEGIES = ("independent", "lambda:0.9", "sqrt", "bsr:16", "bisr:16")


def as_matrix(strategy, steps):
    return strategy.multiply(np.eye(steps))


@pytest.mark.parametrize(
    ("strategy", "k", "sigma", "mu"),
    [
        ("independent", 1, 8.944, 3.953),
        ("independent", 5, 4.000, 1.768),
        ("independent", 25, 1.789, 0.791),
        ("bsr:16", 1, 39.934, 3.926),
        ("bsr:16", 5, 8.571, 3.658),
        ("bsr:16", 25, 2.482, 2.527),
        ("bisr:16", 1, 61.325, 3.873),
        ("bisr:16", 5, 12.613, 3.766),
        ("sqrt", 5, 50.482, 2.711),
    ],
)
def test_the_last_models_leak_at_equal_epsilon(strategy, k, sigma, mu):
    claim = audit.MatrixMechanism(strategy, 1.0, T, k=k).with_epsilon(23.996, 1e-5)
    assert claim.noise_multiplier == pytest.approx(sigma, rel=3e-4)
    assert claim.linear_mu() == pytest.approx(mu, abs=2e-3)
    assert claim.epsilon(1e-5) == pytest.approx(23.996, abs=1e-6)


def test_the_sweep_trains_at_its_accounted_epsilon():
    for strategy, sigmas in correlated.NOISE_MULTIPLIERS.items():
        for k, sigma in zip(correlated.PERIODICITIES, sigmas, strict=True):
            claim = audit.MatrixMechanism(strategy, sigma, correlated.STEPS, k)
            assert claim.epsilon(1e-5) == pytest.approx(24.0, abs=1e-3)


def test_a_matrix_from_a_file_streams_the_noise_of_its_inverse(tmp_path):
    rng = np.random.default_rng(0)
    matrix = np.tril(rng.normal(size=(6, 6)), -1) + 2 * np.eye(6)
    np.save(tmp_path / "strategy.npy", matrix)
    strategy = read_strategy(str(tmp_path / "strategy.npy"), 6)
    scale, weights = strategy.noise_coefficients()
    raw = rng.normal(size=6)
    noise = [weights[t, : t + 1] @ raw[t::-1] for t in range(6)]
    np.testing.assert_allclose(
        scale * noise, np.linalg.solve(as_matrix(strategy, 6), raw), atol=1e-12
    )


@pytest.mark.parametrize(
    ("text", "words"), [("lambda:x", "is not a strategy"), ("words.txt", "contains no numbers")]
)
def test_what_is_no_strategy_ends_in_one_line(tmp_path, monkeypatch, text, words):
    (tmp_path / "words.txt").write_text("no numbers")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=words):
        read_strategy(text, 6)


@pytest.mark.parametrize("size", ["--noise_multiplier=3", "--claim=24.53"])
def test_the_command_compares_with_dp_sgd_at_equal_epsilon(forked, tmp_path, size):
    words = ("claim", "--noise=bisr:16", "--steps=1250", "--k=25", size)
    rows = json.loads(forked(*words, "--json", folder=tmp_path).stdout)["rows"]
    assert [row["noise"] for row in rows] == ["bisr:16", "independent"]
    assert [row["every_model"]["epsilon"] for row in rows] == pytest.approx([24.53] * 2, abs=0.01)
    last_models = [row["last_model_if_linear"]["epsilon"] for row in rows]
    assert last_models == pytest.approx([17.89, 3.40], abs=0.01)
    table = forked(*words, folder=tmp_path).stdout
    assert max(map(len, table.splitlines())) <= 80 and "not a bound" in table.replace("\n", " ")


def test_independent_noise_is_dp_sgd():
    claim = audit.MatrixMechanism("independent", 4.0, T, k=5)
    same = audit.DpSgd(4.0, T // 5)
    assert claim.epsilon(1e-5) == pytest.approx(same.epsilon(1e-5), rel=1e-9)
    assert claim.linear_mu() == pytest.approx(np.sqrt(250 / 5) / 4)
    np.testing.assert_allclose(claim.power([1e-9, 0.3]), same.power([1e-9, 0.3]), rtol=1e-9)


@pytest.mark.parametrize("text", STRATEGIES)
def test_a_strategy_is_a_lower_triangular_matrix_with_the_functions_of_one(text):
    steps = 60
    strategy = read_strategy(text, steps)
    matrix = as_matrix(strategy, steps)
    assert np.array_equal(matrix, np.tril(matrix)) and np.all(np.diag(matrix) == 1)
    values = np.random.default_rng(0).normal(size=(steps, 3))
    solved = linalg.solve_triangular(matrix, values, lower=True)
    np.testing.assert_allclose(strategy.solve(values), solved, atol=1e-9)
    transposed = linalg.solve_triangular(matrix.T, values[:, 0])
    np.testing.assert_allclose(strategy.solve_transposed(values[:, 0]), transposed, atol=1e-9)
    dense = make_strategy(matrix, steps)
    np.testing.assert_allclose(dense.solve(values), solved, atol=1e-9)
    np.testing.assert_allclose(dense.solve_transposed(values[:, 0]), transposed, atol=1e-9)


def test_the_square_roots_are_square_roots():
    steps = 40
    shift = np.eye(steps, k=-1)
    root = as_matrix(read_strategy("sqrt", steps), steps)
    np.testing.assert_allclose(root @ root, linalg.inv(np.eye(steps) - shift), atol=1e-12)
    inverse = linalg.inv(as_matrix(read_strategy("bisr:5", steps), steps))
    np.testing.assert_allclose(inverse[4:9, 4], expand_power(0.5, 5), atol=1e-12)
    np.testing.assert_allclose(inverse[9:, 4], 0, atol=1e-12)


@pytest.mark.parametrize("text", STRATEGIES)
@pytest.mark.parametrize("k", [1, 4, 25])
def test_no_last_model_leaks_more_than_all_models(text, k):
    claim = audit.MatrixMechanism(text, 2.0, 300, k=k)
    assert claim.linear_mu() <= claim.gaussian_mu * (1 + 1e-9)


def test_scores_of_the_last_model_and_of_the_matched_filter_have_the_stated_laws():
    steps, k, sigma = 100, 10, 2.0
    claim = audit.MatrixMechanism("bisr:8", sigma, steps, k=k)
    strategy = read_strategy("bisr:8", steps)
    pattern = claim._pattern()
    noise = strategy.solve(sigma * np.random.default_rng(1).normal(size=(steps, 40_000)))
    last = noise.sum(axis=0)
    filtered = strategy.multiply(pattern) @ strategy.multiply(noise)
    shifts = pattern.sum(), np.sum(strategy.multiply(pattern) ** 2)
    for scores, shift, mu in zip(
        (last, filtered), shifts, (claim.linear_mu(), claim.gaussian_mu), strict=True
    ):
        assert stats.kstest(scores / scores.std(), "norm").pvalue > 1e-3
        assert shift / scores.std() == pytest.approx(mu, rel=0.015)


@pytest.mark.slow
def test_500_matched_filters_reject_a_true_claim_in_a_twentieth_at_most():
    claim = audit.MatrixMechanism("bisr:8", 20.0, 100, k=10)
    less_noise = audit.MatrixMechanism("bisr:8", 8.0, 100, k=10)
    rng = np.random.default_rng(2)

    def count_refuted(trained, audits):
        refuted = 0
        for _ in range(audits):
            scores = rng.normal(size=(2, 300))  # of the matched filter, in standard deviations
            result = audit.bounds(scores[0] + trained.gaussian_mu, scores[1], claim=claim)
            refuted += result.claim_test.refuted
        return refuted

    assert count_refuted(claim, 500) <= stats.binom.ppf(0.999, 500, 0.05)
    assert count_refuted(less_noise, 20) >= 18


@pytest.mark.parametrize("separation", [3, 16, 100])
@pytest.mark.parametrize("participations", [None, 1, 4])
def test_sensitivities_are_those_of_jax_privacy(separation, participations):
    toeplitz = pytest.importorskip("jax_privacy.matrix_factorization.toeplitz")
    coefficients = np.array(expand_power(-0.5, 16), np.float32)
    claim = audit.MatrixMechanism(
        coefficients, 1.0, 200, min_separation=separation, participations=participations
    )
    theirs = toeplitz.minsep_sensitivity_squared(coefficients, separation, participations, n=200)
    assert claim.gaussian_mu == pytest.approx(float(theirs) ** 0.5, rel=1e-5)
    with pytest.raises(audit.InputError, match="leave out `min_separation`"):
        claim.last_model_if_linear(1e-5)


def test_the_worst_pattern_is_at_least_any_random_one():
    rng = np.random.default_rng(2)
    strategy = read_strategy("bsr:12", 60)
    worst = audit.MatrixMechanism("bsr:12", 1.0, 60, min_separation=5, participations=4)
    for _ in range(300):
        gaps = 5 + rng.multinomial(60 - 16, np.ones(5) / 5)[:4]
        places = np.cumsum([gaps[0] - 5, *gaps[1:]])
        pattern = np.zeros(60)
        pattern[places[places < 60]] = 1
        assert np.linalg.norm(strategy.multiply(pattern)) <= worst.gaussian_mu + 1e-9


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"strategy": "bsr"}, "is not a strategy: give independent, lambda:0.9"),
        ({"strategy": "bsr:0"}, "give a whole number of at least 1"),
        ({"strategy": "sqrt:2"}, "is not a strategy"),
        ({"strategy": "independent:2"}, "is not a strategy"),
        ({"strategy": "lambda:1.5"}, "give at least 0 and below 1"),
        ({"strategy": [0.0, 1.0]}, "the first coefficient must be positive"),
        ({"strategy": np.eye(3)}, r"give \(n,\) or \(50, 50\)"),
        ({"strategy": np.ones((50, 50))}, "lower triangular"),
        ({"strategy": "bisr:4", "min_separation": 0}, "`min_separation=0`: give 1 to"),
        ({"strategy": [1.0, 2.0], "min_separation": 5}, "non-increasing coefficients"),
        ({"strategy": "sqrt", "noise_multiplier": -1}, "`noise_multiplier` must be at least 0"),
        ({"strategy": "sqrt", "k": 51}, "`k=51`: give 1 to 50"),
    ],
)
def test_what_is_not_a_mechanism_is_refused(given, says):
    with pytest.raises(audit.InputError, match=says):
        audit.MatrixMechanism(**{"noise_multiplier": 1.0, "steps": 50} | given)


def test_a_file_has_coefficients_or_a_matrix(tmp_path):
    np.save(tmp_path / "s.npy", as_matrix(read_strategy("bsr:4", 30), 30))
    np.savetxt(tmp_path / "s.txt", expand_power(-0.5, 4))
    sizes = [
        audit.MatrixMechanism(str(tmp_path / name), 1.0, 30).gaussian_mu
        for name in ("s.npy", "s.txt")
    ]
    assert sizes[0] == pytest.approx(sizes[1])
    assert sizes[0] == pytest.approx(audit.MatrixMechanism("bsr:4", 1.0, 30).gaussian_mu)
    assert conversions.epsilon_from_mu(sizes[0], 1e-5) > 0


def test_without_noise_there_is_no_guarantee():
    assert audit.MatrixMechanism("bsr:4", 0.0, 20).epsilon(1e-5) == np.inf
