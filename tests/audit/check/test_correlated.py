"""Tests that noise of the stated strategy passes, and that lost or repeated noise is named."""

import json

import numpy as np
import pytest

import audit
from audit.claims.strategies import expand_power, read_strategy

T, D = 96, 1000


def draw(strategy="bsr:16", seed=0, sigma=2.0, steps=T):
    raw = sigma * np.random.default_rng(seed).normal(size=(steps, D))
    return read_strategy(strategy, steps).solve(raw)


def check(noise, strategy="bsr:16", **given):
    return audit.check_noise(noise, strategy, **{"noise_multiplier": 2.0} | given)


@pytest.mark.parametrize("strategy", ["independent", "lambda:0.9", "sqrt", "bsr:16", "bisr:16"])
def test_the_strategys_noise_passes(strategy):
    assert check(draw(strategy), strategy).passed
    assert check(lambda: 0.1 * draw(strategy), strategy, learning_rate=0.5, batch_size=5).passed


NORM = np.linalg.norm(expand_power(-0.5, 16))
BROKEN = {
    "noise of earlier steps is reused from step 51": np.concatenate(
        [draw(steps=50), draw(steps=46)]
    ),
    "the noise's state is lost at step 51": np.concatenate(
        [draw(steps=50), draw(seed=1, steps=46)]
    ),
    "independent noise": draw("independent"),
    "noise of a different strategy": draw("lambda:0.77"),
    "noise of a different strategy, of fewer bands": draw("bsr:4"),
    "noise of a different strategy, an inverse": draw("bisr:3"),
    "raw noise of 0.9": draw(sigma=1.8),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_bug_is_named(name):
    (finding,) = check(BROKEN[name]).findings
    assert finding.name.startswith(name.split(",")[0]) and finding.fix


def change(index, value):
    noise = draw()
    noise[index] = value
    return noise


PARTS = {
    "no noise in 1 of 96 steps": change(57, 0.0),
    "no noise in 3 of 1000 parameters": change((slice(None), [1, 4, 6]), 0.0),
    "the same noise in several parameters": change(np.s_[:, 500:], draw()[:, :500]),
    "in a parameter": draw() * np.where(np.arange(D) == 6, 2.0, 1.0),
}


@pytest.mark.parametrize("name", PARTS)
def test_wrong_noise_in_a_part_of_the_steps_or_parameters_is_named(name):
    (finding,) = check(PARTS[name]).findings
    assert name in finding.name, finding


def test_a_step_with_half_the_noise_is_named():
    noise = draw("independent")
    noise[57] /= 2
    (finding,) = check(noise, "independent").findings
    assert "in step 58" in finding.name, finding


def test_a_strategy_as_a_matrix_gives_the_same_verdicts():
    matrix = read_strategy("bsr:16", T).multiply(np.eye(T))
    for noise in (draw(), draw("independent"), BROKEN["the noise's state is lost at step 51"]):
        assert check(noise, matrix).verdict == check(noise).verdict


def test_columns_that_were_scaled_to_norm_1_are_named():
    (finding,) = check(draw() / NORM).findings
    assert finding.check == "size" and "without scaling its columns to norm 1" in finding.fix


@pytest.mark.slow
def test_at_most_one_correct_mechanism_in_a_thousand_is_accused():
    accused = 0
    for seed in range(300):
        raw = np.random.default_rng(seed).normal(size=(60, 300))
        for strategy in ("bsr:16", "bisr:8"):
            noise = read_strategy(strategy, 60).solve(raw)
            accused += not check(noise, strategy, noise_multiplier=1.0).passed
    assert accused <= 4


@pytest.mark.slow
@pytest.mark.parametrize("restart", [None, 40])
def test_jax_privacys_privatizer_passes_unless_it_restarts(restart):
    jax = pytest.importorskip("jax")
    noise_addition = pytest.importorskip("jax_privacy.noise_addition")
    from jax_privacy.matrix_factorization import toeplitz

    coefficients = toeplitz.optimal_max_error_strategy_coefs(T)[:16]
    inverse = toeplitz.inverse_as_streaming_matrix(coefficients)

    def begin(seed):
        privatizer = noise_addition.matrix_factorization_privatizer(
            inverse, stddev=2.0, prng_key=jax.random.key(seed)
        )
        return privatizer, privatizer.init(jax.numpy.zeros(D))

    privatizer, state = begin(0)
    noise = []
    for step in range(T):
        if step == restart:
            privatizer, state = begin(1)
        added, state = privatizer.update(jax.numpy.zeros(D), state)
        noise.append(np.asarray(added))
    report = check(noise, coefficients)
    assert report.passed == (restart is None), report
    if restart:
        assert report.verdict == "FAILED: the noise's state is lost at step 41"


def test_the_report_is_a_table_and_json():
    report = check(draw("independent"))
    assert max(map(len, str(report).splitlines())) <= 80
    assert json.loads(report.to_json())["verdict"].startswith("FAILED: independent noise")


@pytest.mark.parametrize(
    ("noise", "says"),
    [
        (np.zeros(4), r"`draw` gave shape \(4,\)"),
        (np.full((4, 4), np.nan), "not finite"),
        (lambda: 1 / 0, "`draw` failed: ZeroDivisionError"),
    ],
)
def test_what_is_not_noise_is_refused(noise, says):
    with pytest.raises(audit.InputError, match=says):
        check(noise)


def test_the_command_checks_noise_of_a_file(forked, tmp_path):
    np.save(tmp_path / "noise.npy", draw("bsr:4"))
    (tmp_path / "mine.py").write_text("import numpy\nnoise = numpy.load('noise.npy')\n")
    flags = "--noise=mine.py:noise", "--noise_multiplier=2"
    assert forked("check", *flags, "--strategy=bsr:4", folder=tmp_path).status == 0
    other = forked("check", *flags, "--strategy=bsr:16", folder=tmp_path)
    assert other.status == 3 and "noise of a different strategy" in other.stdout
    unknown = forked("check", *flags, "--strategy=banded", folder=tmp_path)
    assert unknown.stderr.startswith("error: --strategy=banded is not a strategy")
