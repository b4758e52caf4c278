"""Tests what adversaries with many canaries per run insert, and how they score."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from audit.adversaries import biased
from audit.mechanism import base, dpsgd
from audit.training import game

CANARIES, NORM = 6, 2.0
HYPER = base.Hyperparameters(0.3, NORM, 1.5)


def _schedule(data, steps=6):
    batches = base.fixed_shuffle(jax.random.key(3), len(data[1]), 50, steps)
    return base.Schedule(batches, base.insertion_mask(steps, 2))


@pytest.fixture(scope="module")
def theta(model):
    return model.init(jax.random.key(0))


@pytest.fixture(scope="module")
def expect(mechanism, data):
    schedule = _schedule(data)

    def expected(craft, state, theta_0):
        half = base.Canaries(functools.partial(craft, state), jnp.full(CANARIES, 0.5))
        return base.rehearse(mechanism, HYPER, theta_0, data, schedule, half)

    return expected


@pytest.mark.slow
def test_scores_are_centred_where_training_moves_coordinates(model, mechanism, data, expect):
    """Both worlds lie on either side of 0, at half the canary's own displacement."""
    adversary = biased.at_coordinates(
        functools.partial(biased._choose_at_random, CANARIES), CANARIES, expect
    )
    schedule = _schedule(data)
    table = game.Game(mechanism, adversary, model.init, data, HYPER, schedule, seed=3)
    [scores] = game.Player(table, 200).play_all([(0, 200)])
    worlds = scores.scores[scores.presence], scores.scores[~scores.presence]
    own = HYPER.learning_rate * NORM * float(schedule.mask.sum()) / schedule.batches.shape[1]
    deviation = (
        HYPER.learning_rate * HYPER.noise_multiplier * NORM / schedule.batches.shape[1] * np.sqrt(6)
    )
    for world, side in zip(worlds, (0.5, -0.5), strict=True):
        assert world.mean() == pytest.approx(
            side * own, abs=5 * deviation / np.sqrt(len(world)) + 0.1 * own
        )


def test_the_noiseless_rehearsal_has_no_noise_and_half_of_every_canary(mechanism, data, theta):
    """With the loss's gradient clipped to nothing, only canaries move the model."""
    steps, schedule = 6, _schedule(data)
    two = base.Coordinates(jnp.array([3, 5]), jnp.array([NORM, -9.0]))
    canaries = base.Canaries(lambda step, theta: two, jnp.full(2, 0.5))
    silent = dpsgd.mechanism(dpsgd.DPSGD(lambda theta, batch, norm: jnp.zeros_like(theta)))
    end = np.asarray(base.rehearse(silent, HYPER, theta, data, schedule, canaries)) - np.asarray(
        theta
    )
    moved = 0.5 * HYPER.learning_rate * NORM * (steps // 2) / schedule.batches.shape[1]
    assert np.flatnonzero(np.abs(end) > 1e-7).tolist() == [3, 5]
    np.testing.assert_allclose(end[[3, 5]], [-moved, moved], rtol=1e-4)
