"""Tests that noise of the wrong shape is named, and that processing after the noise is no finding."""

import numpy as np
import pytest

import audit
from tests.cases import mostly_slow

STATED = {"clipping_norm": 1.0, "noise_multiplier": 1.0, "learning_rate": 0.1, "batch_size": 32}
HALF = np.linalg.qr(np.random.default_rng(5).normal(size=(44, 44)))[0][:22]


def clip(gradients):
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    return gradients / np.maximum(norms, 1)


def normal(rng):
    return rng.normal(size=44)


def centred(rng):
    """Noise of the weights without their mean."""
    noise = normal(rng)
    return noise - np.repeat([noise[:36].mean(), 0], [36, 8])


def centred_over_all(rng):
    noise = normal(rng)
    return noise - noise.mean()


def of_one_length(rng):
    noise = normal(rng)
    return noise * np.sqrt(44) / np.linalg.norm(noise)


def in_half_of_the_dimensions(rng):
    return np.sqrt(2) * HALF.T @ (HALF @ normal(rng))


def make_step(noise=normal, after=lambda total: total, clipping=clip, seeds=2**40):
    """A step of logistic regression with 36 weights and 8 equal biases."""

    def step(params, batch, seed):
        x, y = batch
        logits = x @ params["w"] + params["b"].sum()
        error = (1 / (1 + np.exp(-logits)) - y)[:, None]
        gradients = np.concatenate([error * x, np.repeat(error, 8, 1)], axis=1)
        total = clipping(gradients).sum(axis=0) + noise(np.random.default_rng(seed % seeds))
        change = 0.1 * after(total) / 32
        return {"w": params["w"] - change[:36], "b": params["b"] - change[36:]}

    return step


def check(step):
    rng = np.random.default_rng(0)
    batch = rng.normal(size=(32, 36)), rng.integers(0, 2, 32).astype(float)
    return audit.check_step(step, {"w": np.zeros(36), "b": np.zeros(8)}, batch, **STATED, seeds=400)


def in_pieces(gradients):
    pieces = np.zeros_like(gradients)
    for part in (slice(0, None, 2), slice(1, None, 2)):
        pieces[:, part] = clip(gradients[:, part])
    return pieces


def seen_twice(gradients):
    others = np.concatenate([np.roll(gradients[:, :36], 1, axis=1), gradients[:, 36:]], axis=1)
    return clip(gradients) + clip(others)


BUGS = {
    "noise shared by several parameters, less their mean": make_step(centred),
    "noise that is not normal": make_step(of_one_length),
    "noise shared by several parameters, less the mean of all": make_step(centred_over_all),
    "no noise in some parameters": make_step(lambda rng: normal(rng) * rng.integers(0, 2, 44)),
    "noise that is clamped": make_step(lambda rng: normal(rng).clip(-3, 3)),
    "no noise in some steps": make_step(lambda rng: normal(rng) * (rng.random() < 0.5)),
    "noise shared by several parameters": make_step(in_half_of_the_dimensions),
    "the same noise for several seeds": make_step(seeds=64),
    "the same noise for every seed": make_step(seeds=1),
    "clipping in 2 pieces (": make_step(clipping=in_pieces),
    "clipping in 2 pieces or more": make_step(clipping=seen_twice),
}


@pytest.mark.parametrize("name", mostly_slow(BUGS, quick=4))
def test_a_bug_is_named_first(name):
    assert check(BUGS[name]).findings[0].name.startswith(name.split(",")[0])


AFTERWARDS = {
    "rounded": lambda total: np.round(total * 2**10) / 2**10,
    "clamped": lambda total: total.clip(-1.5, 1.5),
    "rarely clamped": lambda total: total.clip(-4, 4),
    "shrunk number by number": lambda total: np.sign(total) * np.maximum(abs(total) - 4, 0),
    "its large numbers": lambda total: total * (abs(total) > 4),
    "its largest numbers": lambda total: total * (abs(total) >= np.sort(abs(total))[-10]),
    "shrunk": lambda total: total * max(0, 1 - 42 / (total @ total)),
    "projected": lambda total: total / max(1, np.linalg.norm(total) / 4),
    "projected only if the batch is large": lambda total: (
        total / max(1, np.linalg.norm(total) / 12)
    ),
}


@pytest.mark.parametrize("name", mostly_slow(AFTERWARDS, quick=2))
def test_what_happens_after_the_noise_is_no_bug_and_does_not_pass(name):
    report = check(make_step(after=AFTERWARDS[name]))
    assert not report.findings and not report.passed
    assert any("return the noisy sum" in row.seen for row in report.checks)


def test_a_step_whose_examples_are_all_clipped_is_tried_with_a_larger_norm_if_it_takes_one():
    norms = []
    plain = make_step()
    for takes_none in (plain, lambda params, batch, seed, **_: plain(params, batch, seed)):
        assert "separation could not be tried: every example" in check(takes_none).verdict

    def step(params, batch, seed, clipping_norm=1.0):
        norms.append(clipping_norm)
        scaled = make_step(
            noise=lambda rng: clipping_norm * normal(rng),
            clipping=lambda gradients: clipping_norm * clip(gradients / clipping_norm),
        )
        return scaled(params, batch, seed)

    assert check(step).passed and set(norms) == {1.0, 100.0}


@pytest.mark.parametrize("averages", [False, True])
def test_masked_examples_do_not_hide_a_mean_over_the_batch_from_clipped_ones(averages):
    """Examples with the label -1 have no gradient; averaging over the others couples examples."""

    def step(params, batch, seed, clipping_norm=1.0):
        x, y = batch
        is_counted = y >= 0
        error = (1 / (1 + np.exp(-x @ params)) - y) * is_counted
        if averages:
            error *= len(y) / max(is_counted.sum(), 1)
        gradients = clipping_norm * clip(error[:, None] * x / clipping_norm)
        noise = clipping_norm * np.random.default_rng(seed).normal(size=36)
        return params - 0.1 * (gradients.sum(axis=0) + noise) / 32

    rng = np.random.default_rng(0)
    batch = rng.normal(size=(32, 36)), rng.integers(-1, 2, 32).astype(float)
    report = audit.check_step(step, np.zeros(36), batch, **STATED, seeds=400)
    assert report.passed == (not averages), report
    if averages:
        assert report.findings[0].name == "examples change each other's gradients"


@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_a_mean_over_the_batch_explains_movements_just_above_c_but_not_wrong_clipping(factor):
    plain = make_step(clipping=lambda gradients: factor * clip(gradients / factor))

    def step(params, batch, seed):
        after = plain(params, batch, seed)
        scale = 32 / max(1, len(batch[0]))
        return {name: params[name] + scale * (after[name] - params[name]) for name in params}

    names = {finding.name for finding in check(step).findings}
    assert (names == {"normalised by the batch's actual size"}) == (factor == 1.0)


@pytest.mark.parametrize(
    ("name", "noise"),
    [
        ("noise that is clamped", lambda rng: normal(rng).clip(-2.5, 2.5)),
        ("noise on a grid", lambda rng: normal(rng).astype(np.float16).astype(float)),
    ],
)
def test_weights_that_no_example_uses_do_not_excuse_noise_on_a_grid(name, noise):
    rng = np.random.default_rng(0)
    features = rng.normal(size=(32, 36)) * (np.arange(36) < 12)
    batch = features, rng.integers(0, 2, 32).astype(float)
    start = {"w": np.zeros(36), "b": np.zeros(8)}
    report = audit.check_step(make_step(noise), start, batch, **STATED, seeds=400)
    assert any(finding.name.startswith(name) for finding in report.findings)


def test_clipping_that_depends_on_the_values_of_an_example_is_found():
    """Pixels cannot be scaled beyond their range, so that only other rows show it."""

    def step(params, batch, seed):
        x, y = batch
        error = 1 / (1 + np.exp(-(x @ params) / 255)) - y
        gradients = clip(error[:, None] * x)
        gradients[x[:, 0] == 77] *= 2
        total = gradients.sum(axis=0) + np.random.default_rng(seed).normal(size=36)
        return params - 0.1 * total / 32

    rng = np.random.default_rng(0)
    pixels = rng.integers(78, 256, (32, 36)).astype(np.uint8)
    pixels[3] = 0
    pixels[5, 0] = 77
    batch = pixels, rng.integers(0, 2, 32)
    report = audit.check_step(step, np.zeros(36), batch, **STATED, seeds=400)
    assert report.findings[0].check == "sensitivity"
