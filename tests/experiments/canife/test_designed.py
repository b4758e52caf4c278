"""Designed canaries: their penalties, their second derivatives, and what a design reaches."""

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


@pytest.fixture(scope="module")
def model():
    return mlp(FEATURES, (16,), CLASSES)


@pytest.fixture(scope="module")
def theta(model):
    return model.init(jax.random.key(0))


@pytest.fixture(scope="module")
def updates(model, theta):
    features = jax.random.normal(jax.random.key(1), (POOL, FEATURES))
    labels = jax.random.randint(jax.random.key(2), (POOL,), 0, CLASSES)
    gradients = jax.vmap(jax.grad(model.loss), (None, 0))(theta, (features, labels))
    return jax.vmap(clip, (0, None))(gradients, NORM)


@pytest.fixture(scope="module")
def first():
    return jax.random.uniform(jax.random.key(3), (FEATURES,))


def loss_of(model):
    return lambda theta, sample, key: model.loss(theta, (sample, jnp.int32(2)))


def design(model, penalty, optimizer, minibatch=POOL):
    return designed.designer(loss_of(model), penalty, optimizer, minibatch)


def run(made, theta, first, updates, steps):
    return made.run(theta, first, updates, steps, jax.random.key(4))


def health_of(found):
    return designed.health(found.losses[0], found.losses[-1])


@pytest.mark.slow
def test_a_design_as_run_is_healthy_and_orthogonal(model, theta, first, updates):
    made = design(model, designed.as_run(5.0, NORM), optax.adam(1.0), minibatch=8)
    found = run(made, theta, first, updates, 1500)
    assert found.losses.shape == (1501,) and health_of(found) > 0.9
    gradient = jax.grad(loss_of(model))(theta, found.last, None)
    unit = gradient / jnp.linalg.norm(gradient)
    before = jax.grad(loss_of(model))(theta, first, None)
    assert jnp.std(updates @ unit) < 0.4 * jnp.std(updates @ (before / jnp.linalg.norm(before)))
    assert jnp.linalg.norm(gradient) > NORM


@pytest.mark.slow
@pytest.mark.parametrize("penalty", [designed.as_printed(NORM), designed.of_the_mean(NORM)])
def test_the_papers_penalties_fall_as_well(model, theta, first, updates, penalty):
    found = run(design(model, penalty, optax.adam(0.05)), theta, first, updates, 500)
    assert health_of(found) > 0.5
    best = penalty(jax.grad(loss_of(model))(theta, found.best, None), updates)
    assert float(best) == pytest.approx(float(found.losses.min()), rel=1e-3)


@pytest.mark.slow
def test_second_derivatives_agree_with_differences(model):
    with jax.enable_x64(True):
        draws = (
            jax.random.normal(jax.random.key(i), s)
            for i, s in enumerate([(FEATURES,), (POOL, 421)])
        )
        first, updates = (draw.astype(jnp.float64) for draw in draws)
        updates = updates / 20
        theta = jax.random.normal(jax.random.key(9), (421,), jnp.float64) / 3
        made = design(model, designed.as_run(50.0, NORM), optax.sgd(1.0))

        def value(sample):
            return float(run(made, theta, sample, updates, 1).losses[0])

        slope = np.asarray(first - run(made, theta, first, updates, 1).last)
        for i in (0, 7, 19):
            step = jnp.zeros(FEATURES).at[i].set(1e-6)
            assert slope[i] == pytest.approx(
                (value(first + step) - value(first - step)) / 2e-6, rel=1e-5
            )


@pytest.mark.slow
def test_penalties_are_what_they_say(updates):
    gradient = np.asarray(jax.random.normal(jax.random.key(5), (updates.shape[1],)))
    rows = np.asarray(updates, np.float64)
    expected = (
        POOL * gradient @ (rows.T @ rows / POOL) @ gradient
    )  # the norm exceeds C: no other term
    found = float(designed.as_printed(NORM)(jnp.asarray(gradient), updates))
    assert found == pytest.approx(expected, rel=1e-4)
    gradient = jax.random.normal(jax.random.key(5), (updates.shape[1],))
    penalty = designed.as_run(0.0, NORM)
    both = [float(penalty(scale * gradient, updates)) for scale in (1, 100)]
    assert both[0] == pytest.approx(both[1], rel=1e-4)
    short = designed.as_run(5.0, NORM)(1e-3 * gradient / jnp.linalg.norm(gradient), updates)
    assert float(short) > 0.99 * gradient.size * (5 - 1e-3) ** 2


@pytest.mark.slow
def test_a_design_that_diverges_is_refused(model, theta, first, updates):
    made = design(model, designed.as_run(5.0, NORM), optax.adam(0.1))
    with pytest.raises(InputError, match="design_rate"):
        run(made, theta, first * jnp.nan, updates, 2)
