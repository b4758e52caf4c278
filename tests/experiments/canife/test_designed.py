"""The design of canaries: its penalties and its result."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from audit.mechanism.clipping.base import clip
from experiments.canife import designed
from experiments.canife.attacked import Attacked
from models.dense import mlp

FEATURES, CLASSES, POOL, NORM = 20, 5, 24, 1.0
AS_RUN = Attacked(clipping_norm=NORM, norm_constant=5.0, cohort=POOL, penalty="as_run")
AS_PRINTED = dataclasses.replace(AS_RUN, penalty="as_printed", design_rate=0.05)
MODEL = mlp(FEATURES, (16,), CLASSES)


def loss(theta, sample, key):
    return MODEL.loss(theta, (sample, jnp.int32(2)))


@pytest.fixture(scope="module")
def theta():
    return MODEL.init(jax.random.key(0))


@pytest.fixture(scope="module")
def updates(theta):
    features = jax.random.normal(jax.random.key(1), (POOL, FEATURES))
    labels = jax.random.randint(jax.random.key(2), (POOL,), 0, CLASSES)
    gradients = jax.vmap(jax.grad(MODEL.loss), (None, 0))(theta, (features, labels))
    return jax.vmap(clip, (0, None))(gradients, NORM)


FIRST = jax.random.uniform(jax.random.key(3), (FEATURES,))


def run(setting, theta, updates, steps):
    keys = jax.random.split(jax.random.key(4), steps + 1)
    return designed.make_design(setting, loss)(theta, FIRST, updates, keys)


def penalty(setting, gradient, updates, **changes):
    """Returns the penalty as a float, with some of the setting's fields changed."""
    return float(
        designed.compute_penalty(dataclasses.replace(setting, **changes), gradient, updates)
    )


@pytest.mark.slow
def test_a_design_reduces_its_penalty_and_is_nearly_orthogonal(theta, updates):
    minibatches = dataclasses.replace(AS_RUN, design_batch=8)
    last, penalties = run(minibatches, theta, updates, 1500)
    assert penalties.shape == (1501,) and penalties[-1] < 0.1 * penalties[0]
    after, before = (jax.grad(loss)(theta, sample, None) for sample in (last, FIRST))
    deviations = [jnp.std(updates @ (g / jnp.linalg.norm(g))) for g in (after, before)]
    assert deviations[0] < 0.4 * deviations[1]
    assert jnp.linalg.norm(after) > NORM
    keep_best = dataclasses.replace(AS_PRINTED, keep_best=True)
    best, penalties = run(keep_best, theta, updates, 500)
    assert penalties[-1] < 0.5 * penalties[0]
    least = penalty(AS_PRINTED, jax.grad(loss)(theta, best, None), updates)
    assert least == pytest.approx(float(penalties.min()), rel=1e-3)


def test_penalties_agree_with_their_formulas():
    rng = np.random.default_rng(5)
    gradient, updates = rng.normal(size=40), rng.normal(size=(POOL, 40))
    both = gradient @ (updates.T @ updates) @ gradient  # the norm exceeds C: no other term
    assert penalty(AS_PRINTED, gradient, updates) == pytest.approx(both, rel=1e-4)
    mean = (updates.mean(axis=0) @ gradient) ** 2
    of_the_mean = penalty(AS_RUN, gradient, updates, penalty="of_the_mean")
    assert of_the_mean == pytest.approx(mean, rel=1e-4)
    as_run = 40 * both / POOL / (gradient @ gradient)
    for scale in (1, 100):
        found = penalty(AS_RUN, scale * gradient, updates, norm_constant=0.0)
        assert found == pytest.approx(as_run, rel=1e-4)
    short = penalty(AS_RUN, 1e-3 * gradient / np.linalg.norm(gradient), 0 * updates)
    assert short == pytest.approx(40 * (5 - 1e-3) ** 2, rel=1e-4)
