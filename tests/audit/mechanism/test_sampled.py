"""Tests canaries that join each step by a coin, and their accounting."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from audit.adversaries import biased
from audit.claims import accounting
from audit.evidence.given import coins
from audit.mechanism import base, dpsgd, joining
from audit.mechanism.base import Coordinates, Directions, Examples
from audit.mechanism.clipping.base import per_example
from audit.methods import betting, exact, lifted
from audit.training import game

NORM, RATE = 2.0, 0.2
HYPER = base.Hyperparameters(0.3, NORM, 0.0)
RUN_KEYS = jax.vmap(jax.random.fold_in, (None, 0))(
    jax.random.key(5, impl="threefry2x32"), jnp.arange(300)
)


def _joins(presence, steps):
    """(runs, steps, K)"""
    by_step = jax.vmap(joining.draw_by_coins, (None, None, 0))
    return np.asarray(
        jax.vmap(by_step, (None, 0, None))(jnp.float32(presence), RUN_KEYS, jnp.arange(steps))
    )


@pytest.mark.slow
def test_joins_are_independent_coins_of_each_run_step_and_canary():
    found = _joins([RATE, RATE, 0.0, 1.0, RATE], 40)
    assert set(np.unique(found)) == {0.0, 1.0} and not found[..., 2].any() and found[..., 3].all()
    sampled = found[..., [0, 1, 4]]
    counts = sampled.sum(1).astype(int).ravel()
    observed = np.bincount(np.clip(counts, 3, 13), minlength=14)[3:]
    law = stats.binom(40, RATE)
    expected = np.concatenate([[law.cdf(3)], law.pmf(np.arange(4, 13)), [law.sf(12)]]) * counts.size
    assert stats.chisquare(observed, expected).pvalue > 1e-3
    flat = sampled.reshape(-1, 3)
    assert np.abs(np.corrcoef(flat.T) - np.eye(3)).max() < 5 / np.sqrt(len(flat))
    assert np.abs(np.corrcoef(sampled[..., 0].T) - np.eye(40)).max() < 6 / np.sqrt(300)
    key = RUN_KEYS[0]
    drawn = joining.draw_by_coins(jnp.full(64, 0.5), key, 3)
    assert not np.array_equal(drawn, joining.draw_by_coins(jnp.full(64, 0.5), key, 4))
    noise = np.asarray(jax.random.bernoulli(jax.random.fold_in(key, 3), 0.5, (64,)))
    assert not np.array_equal(drawn, noise)


def _end(choices, craft, data, theta, *, sampled, constant, presence):
    schedule = base.Schedule(
        base.fixed_shuffle(jax.random.key(3), 200, 50, 6), base.insertion_mask(6, 2)
    )
    canaries = base.Canaries(
        craft, presence, crafts_constant=constant, join=joining.draw_by_coins if sampled else None
    )
    trained = dpsgd.mechanism(choices)
    return trained.segment(HYPER, trained.start(theta), data, schedule, canaries, RUN_KEYS[7]).theta


KINDS = {
    "coordinates": Coordinates(jnp.array([3, 5, 9]), jnp.array([NORM, -NORM, 9 * NORM])),
    "directions": Directions(jax.random.split(jax.random.key(1), 3)),
    "directions within": Directions(
        jax.random.split(jax.random.key(1), (3, 1)), within=jnp.arange(20, 60)
    ),
    "array": 3 * NORM * jnp.eye(3, 68),
    "examples": Examples(jnp.eye(3, 8), jnp.array([0, 1, 1])),
}


def _canaries_alone(loss):
    """Clipped sums of single examples, at one theta; those of mini-batches are nothing."""
    whole = per_example(loss)

    def clipped_sum(theta, batch, norm):
        alone = len(batch[1]) == 1
        return whole(jnp.ones_like(theta), batch, norm) if alone else jnp.zeros_like(theta)

    return clipped_sum


@pytest.mark.slow
@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_what_joins_is_what_moves_the_model(silent_choices, model, data, kind, constant):
    theta, presence = jnp.zeros(68), jnp.array([0.5, 1.0, 0.0])
    trained = dpsgd.DPSGD(_canaries_alone(model.loss)) if kind == "examples" else silent_choices
    end = functools.partial(
        _end, trained, lambda step, theta: KINDS[kind], data, theta, constant=constant
    )
    steps = [1, 3, 5]
    counts = sum(np.asarray(joining.draw_by_coins(presence, RUN_KEYS[7], step)) for step in steps)
    each = [np.asarray(end(sampled=False, presence=row)) / len(steps) for row in jnp.eye(3)]
    np.testing.assert_allclose(
        end(sampled=True, presence=presence), counts @ np.array(each), atol=1e-6
    )


def _game(model, mechanism, data, adversary, rate, steps=10):
    batches = base.fixed_shuffle(jax.random.key(3), len(data[1]), 50, steps)
    schedule = base.Schedule(batches, base.insertion_mask(steps, 1))
    hyper = base.Hyperparameters(0.3, NORM, 1.0)
    played = game.Game(mechanism, adversary, model.init, data, hyper, schedule, seed=2)
    if rate == 1.0:
        return played
    return played._replace(join=joining.draw_by_coins, sampling_rate=rate)


@pytest.mark.parametrize("shuffles", [False, True])
@pytest.mark.parametrize("canaries", [1, 7])
def test_each_epoch_has_a_canary_in_one_step_each_as_often(shuffles, canaries):
    batches, epochs = 5, 3
    join = joining.draw_by_epochs(batches, shuffles=shuffles)
    assert not join(jnp.zeros(canaries), RUN_KEYS[0], 3).any()
    by_step = jax.vmap(join, (None, None, 0))
    presence = jnp.ones(canaries)
    found = np.asarray(
        jax.vmap(by_step, (None, 0, None))(presence, RUN_KEYS, jnp.arange(batches * epochs))
    )
    by_epoch = found.reshape(len(RUN_KEYS), epochs, batches, canaries)
    assert (by_epoch.sum(axis=2) == 1).all()
    counts = by_epoch.sum(axis=(0, 1))  # of places and canaries
    for of_canary in counts.T:
        assert stats.chisquare(of_canary).pvalue > 1e-4
    first, second = (by_epoch[:, epoch, :, 0].argmax(axis=1) for epoch in (0, 1))
    table = np.histogram2d(first, second, bins=batches)[0]
    assert stats.chi2_contingency(table).pvalue > 1e-4


@pytest.mark.slow
def test_bounds_stay_below_the_exact_accountant_and_come_near(model, silent_choices, data):
    """Nothing but canaries and noise moves the model: the bound is that of the mechanism alone."""
    adversary = biased.at_coordinates(
        functools.partial(biased._choose_at_random, 32), 32, lambda craft, state, theta_0: theta_0
    )
    silent = dpsgd.mechanism(silent_choices)
    found = {}
    for rate in (0.5, 1.0):
        [scores] = game.Player(_game(model, silent, data, adversary, rate), 1500).play_all(
            [(0, 1500)]
        )
        design = coins(scores.scores, scores.presence)
        family = exact.approximate_dp(1e-2)
        found[rate] = betting.lower_bound(family, lifted.count(design, family, 0.05), 0.05)
        truth = accounting.participant_upper_bound(accounting.Composition(1.0, 10, rate), 1e-2)
        assert 0.2 * truth < found[rate] <= truth
    assert found[0.5] < 0.8 * found[1.0]
