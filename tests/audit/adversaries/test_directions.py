"""The cosines of one-shot canaries with the iterates, against NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from audit.adversaries import directions
from audit.mechanism import base

CANARIES, P, STEPS, MOMENTUM = 7, 50, 9, 0.9


@pytest.fixture(scope="module")
def path():
    """Iterates of SGD with momentum on random gradients (STEPS + 1, P), and those gradients."""
    rng = np.random.default_rng(0)
    gradients, trace, thetas = rng.normal(size=(STEPS, P)), np.zeros(P), [rng.normal(size=P)]
    for gradient in gradients:
        trace = gradient + MOMENTUM * trace
        thetas.append(thetas[-1] - 0.3 * trace)
    return np.array(thetas, np.float32), gradients


def _directions(state):
    return np.array([base.unit_direction(key, jnp.zeros(P)) for key in state.keys], np.float64)


def _cosines(units, vectors):
    return units @ vectors.T / np.linalg.norm(vectors, axis=1)


@pytest.mark.parametrize("kept", [0, CANARIES * P])
@pytest.mark.parametrize("momentum", [0.0, MOMENTUM])
def test_the_largest_cosine_is_with_the_moves_or_with_the_steps_means(path, momentum, kept):
    thetas, gradients = path
    adversary = directions.largest_cosines(CANARIES, momentum, kept)
    state = adversary.init(jax.random.key(1), thetas[0], jnp.float32(2))
    seen = adversary.observer.begin(state, thetas[0])
    np.testing.assert_array_equal(adversary.score(state, seen, thetas[0], thetas[0]), -1)
    against = gradients if momentum else thetas[:-1] - thetas[1:]
    expected = np.maximum.accumulate(_cosines(_directions(state), against), axis=1)
    for t in range(STEPS):
        seen = adversary.observer.observe(state, seen, jnp.int32(t), thetas[t + 1])
        found = adversary.score(state, seen, thetas[t + 1], thetas[0])
        np.testing.assert_allclose(found, expected[:, t], rtol=0, atol=2e-5)


def test_final_cosines_are_with_the_displacement_or_the_weights(path):
    first, last = path[0][0], path[0][-1]
    for origin, vector in ((directions.itself, first - last), (directions.nothing, -last)):
        adversary = directions.final_cosines(CANARIES, origin)
        state = adversary.init(jax.random.key(1), first, jnp.float32(2))
        found = adversary.score(state, (), last, first)
        expected = _cosines(_directions(state), vector[None])[:, 0]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_both_insert_the_same_directions_of_the_clipping_norm_in_their_own_steps():
    for adversary in (directions.final_cosines(CANARIES), directions.largest_cosines(CANARIES)):
        state = adversary.init(jax.random.key(1), jnp.zeros(P), jnp.float32(2))
        craft = functools.partial(directions._craft_unclipped, state)
        canaries = base.Canaries(craft, jnp.ones(CANARIES))
        mask = jnp.zeros(CANARIES).at[jnp.array([1, 4])].set(1)
        found = base.inserted(canaries, 0, jnp.zeros(P), jnp.float32(0.7), mask, None)
        expected = 0.7 * _directions(state)[[1, 4]].sum(axis=0)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
