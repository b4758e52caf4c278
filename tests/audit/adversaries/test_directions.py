"""Tests the cosines of one-shot canaries with the iterates against NumPy."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from audit.adversaries import directions, examples
from audit.adversaries.base import Knowledge
from audit.mechanism import base
from models.dense import fcnn, mlp

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
    return np.array([base.draw_unit_direction(key, jnp.zeros(P)) for key in state.keys], np.float64)


def _cosines(units, vectors):
    return units @ vectors.T / np.linalg.norm(vectors, axis=1)


@pytest.mark.parametrize("kept", [0, CANARIES * P])
@pytest.mark.parametrize("momentum", [0.0, MOMENTUM])
def test_the_largest_cosine_is_with_the_moves_or_with_the_steps_means(
    path, momentum, kept, monkeypatch
):
    thetas, gradients = path
    monkeypatch.setattr(directions, "_MAX_KEPT", kept)
    adversary = directions.largest_cosines(CANARIES, momentum)
    state = adversary.init(jax.random.key(1), thetas[0], jnp.float32(2))
    seen = adversary.observer.begin(state, thetas[0])
    np.testing.assert_array_equal(adversary.score(state, seen, thetas[0], thetas[0]), -1)
    against = gradients if momentum else thetas[:-1] - thetas[1:]
    expected = np.maximum.accumulate(_cosines(_directions(state), against), axis=1)
    for t in range(STEPS):
        seen = adversary.observer.observe(state, seen, jnp.int32(t), thetas[t + 1])
        found = adversary.score(state, seen, thetas[t + 1], thetas[0])
        np.testing.assert_allclose(found, expected[:, t], rtol=0, atol=2e-5)


NORM = jnp.float32(1.0)


def rows(seed=0):
    """Data of falling deviations along known directions, off the origin."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(8, 8)))[0]
    deviations = 2.0 ** -np.arange(8)
    return (rng.normal(size=(9000, 8)) * deviations @ basis.T + 3.0).astype(np.float32), basis.T


def test_principal_directions_are_the_singular_vectors_of_the_centred_data():
    data, basis = rows()
    found = examples.principal(data)
    centred = data.astype(np.float64) - data.astype(np.float64).mean(0)
    expected = np.linalg.svd(centred, full_matrices=False)[2]
    np.testing.assert_allclose(found.mean, data.astype(np.float64).mean(0), rtol=1e-12)
    np.testing.assert_allclose(np.abs(np.sum(found.directions * expected, 1)), 1, atol=1e-9)
    np.testing.assert_allclose(np.abs(np.sum(found.directions * basis, 1)), 1, atol=1e-2)
    assert all(row[np.abs(row).argmax()] > 0 for row in found.directions)
    data, _ = rows()
    flat, square = examples.principal(data), examples.principal(data.reshape(-1, 4, 2))
    assert square.mean.shape == (4, 2) and square.directions.shape == (8, 4, 2)
    np.testing.assert_array_equal(square.directions.reshape(8, 8), flat.directions)


def make_knowledge(model, classes, data, canaries=1):
    """Returns what adversaries know of the training of a model on features."""
    hyper = base.Hyperparameters(0.1, 1.0, 1.0)
    return Knowledge(model, classes, hyper, (jnp.asarray(data), None), None, canaries, None)


def test_canaries_are_drawn_with_replacement_from_the_tail():
    data, _ = rows()
    found = examples.principal(data)
    fields = examples.Poisoned(first_direction=4, end_direction=7)
    knowledge = make_knowledge(fcnn(), 2, data, canaries=600)
    adversary = fields.make(knowledge)
    features, labels = adversary.init(jax.random.key(0), jnp.zeros(68), NORM).canaries
    assert features.shape == (600, 8) and set(np.asarray(labels)) == {1}
    along = (np.asarray(features, np.float64) - found.mean) @ found.directions.T
    chosen = along.argmax(1)
    np.testing.assert_allclose(along, np.eye(8)[chosen], atol=1e-5)
    assert np.bincount(chosen, minlength=8).tolist()[:4] == [0] * 4
    assert np.bincount(chosen, minlength=8)[4:7] == pytest.approx([200, 200, 200], abs=60)
    assert not (chosen == 7).any()
    knowledge = knowledge._replace(predict_final=lambda craft, state, theta_0: theta_0)
    alone = dataclasses.replace(fields, as_printed=True).make(knowledge)
    bare, _ = alone.init(jax.random.key(0), jnp.zeros(fcnn().n_parameters), NORM).canaries
    np.testing.assert_allclose(bare, 10 * found.directions[chosen], atol=1e-5)


def test_clip_bkd_takes_the_last_direction_and_the_least_likely_label():
    data, _ = rows()
    found, model = examples.principal(data), mlp(8, (), 5)
    theta = jax.random.normal(jax.random.key(4), (model.n_parameters,))
    knowledge = make_knowledge(model, 5, data)
    trained = base.Trajectory(theta, theta)
    knowledge = knowledge._replace(simulate=lambda hyper, key, theta_0: trained)
    adversary = examples.ClipBkd().make(knowledge)
    features, labels = adversary.init(jax.random.key(0), jnp.zeros_like(theta), NORM).canaries
    np.testing.assert_allclose(features[0], found.mean + found.directions[-1], rtol=1e-5)
    (layer,) = model.unravel(theta).values()
    logits = np.asarray(features[0]) @ np.asarray(layer["kernel"]) + np.asarray(layer["bias"])
    assert (
        labels.tolist() == [int(logits.argmin())]
        and adversary.canaries == 1
        and adversary.reads_theta
    )


def test_both_insert_the_same_directions_of_the_clipping_norm_in_their_own_steps():
    for adversary in (directions.final_cosines(CANARIES), directions.largest_cosines(CANARIES)):
        state = adversary.init(jax.random.key(1), jnp.zeros(P), jnp.float32(2))
        canaries = base.Canaries(
            functools.partial(directions.craft_directions, state), jnp.ones(CANARIES)
        )
        mask = jnp.zeros(CANARIES).at[jnp.array([1, 4])].set(1)
        found = base.sum_canaries(canaries, 0, jnp.zeros(P), jnp.float32(0.7), mask, None)
        np.testing.assert_allclose(
            found, 0.7 * _directions(state)[[1, 4]].sum(axis=0), rtol=0, atol=1e-6
        )
