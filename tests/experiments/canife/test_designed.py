"""The design of canaries: its penalties, its result, and how it fails."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from audit.errors import InputError
from audit.mechanism.clipping.base import clip
from experiments.canife import designed
from models.dense import mlp

FEATURES, CLASSES, POOL, NORM = 20, 5, 24, 1.0
AS_RUN = partial(designed.as_run, 5.0, NORM)
AS_PRINTED = partial(designed.as_printed, 5.0, NORM)
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


def run(penalty, optimizer, theta, updates, steps, first=FIRST, minibatch=POOL):
    made = designed.make_designer(loss, penalty, optimizer, minibatch)
    return made.run(theta, first, updates, steps, jax.random.key(4))


@pytest.mark.slow
def test_a_design_reduces_its_penalty_and_is_nearly_orthogonal(theta, updates):
    found = run(AS_RUN, optax.adam(1.0), theta, updates, 1500, minibatch=8)
    assert found.losses.shape == (1501,) and found.losses[-1] < 0.1 * found.losses[0]
    after, before = (jax.grad(loss)(theta, sample, None) for sample in (found.last, FIRST))
    deviations = [jnp.std(updates @ (g / jnp.linalg.norm(g))) for g in (after, before)]
    assert deviations[0] < 0.4 * deviations[1]
    assert jnp.linalg.norm(after) > NORM
    found = run(AS_PRINTED, optax.adam(0.05), theta, updates, 500)
    assert found.losses[-1] < 0.5 * found.losses[0]
    best = AS_PRINTED(jax.grad(loss)(theta, found.best, None), updates)
    assert float(best) == pytest.approx(float(found.losses.min()), rel=1e-3)


def test_penalties_agree_with_their_formulas():
    rng = np.random.default_rng(5)
    gradient, updates = rng.normal(size=40), rng.normal(size=(POOL, 40))
    both = gradient @ (updates.T @ updates) @ gradient  # the norm exceeds C: no other term
    assert float(AS_PRINTED(gradient, updates)) == pytest.approx(both, rel=1e-4)
    mean = (updates.mean(axis=0) @ gradient) ** 2
    assert float(designed.of_the_mean(5.0, NORM, gradient, updates)) == pytest.approx(
        mean, rel=1e-4
    )
    as_run = 40 * both / POOL / (gradient @ gradient)
    for scale in (1, 100):
        found = designed.as_run(0.0, NORM, scale * gradient, updates)
        assert float(found) == pytest.approx(as_run, rel=1e-4)
    short = AS_RUN(1e-3 * gradient / np.linalg.norm(gradient), 0 * updates)
    assert float(short) == pytest.approx(40 * (5 - 1e-3) ** 2, rel=1e-4)


def test_a_design_that_diverges_raises_an_error(theta, updates):
    with pytest.raises(InputError, match="design_rate"):
        run(AS_RUN, optax.adam(0.1), theta, updates, 2, first=FIRST * jnp.nan)
