"""Linear response against formulas, against trainings that insert at one step alone, and against noise."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from audit.mechanism import base, dpsgd
from audit.mechanism.clipping.base import per_example
from audit.mechanism.response import respond

NORM, RATE = 2.0, 0.3
STEPS, BATCH, PERIODICITY = 12, 5, 3
MOMENTUM = functools.partial(optax.sgd, momentum=0.9)


def _smooth(theta, example):
    """A network of 2 inputs, 2 tanh units and an output without bias: p = 8 with a linear part."""
    x, label = example
    hidden = jnp.tanh(theta[:4].reshape(2, 2) @ x)
    return 0.5 * (theta[4:6] @ hidden + theta[6:] @ x - label) ** 2


@pytest.fixture(scope="module")
def examples():
    rng = np.random.default_rng(0)
    return jnp.float32(rng.normal(size=(STEPS * BATCH, 2))), jnp.float32(
        rng.normal(size=STEPS * BATCH)
    )


@pytest.fixture(scope="module")
def schedule():
    batches = jnp.arange(STEPS * BATCH).reshape(STEPS, BATCH)
    return base.Schedule(batches, base.insertion_mask(STEPS, PERIODICITY))


def _responding(mechanism, sigma, theta_0, data, schedule, canaries):
    hyper = base.Hyperparameters(*jnp.float32([RATE, NORM, sigma]))
    run = jax.jit(functools.partial(respond, mechanism))
    return run(hyper, theta_0, data, schedule, jnp.asarray(canaries, jnp.float32))


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [optax.sgd, MOMENTUM])
def test_a_constant_gradient_leaves_what_composition_and_momentum_give(optimizer, schedule):
    """theta_T is minus the sum of weights times inserts; without momentum they are alike."""
    mechanism = dpsgd.mechanism(
        dpsgd.DPSGD(per_example(lambda theta, one: theta @ one[0]), optimizer)
    )
    slopes, sigma = jnp.float32(np.random.default_rng(1).normal(size=(STEPS * BATCH, 4))), 1.5
    canaries = NORM * np.array([[1, 0, 0, 0], [0, 0.6, 0, 0.8], [-1, 0, 0, 0]])
    data = slopes, jnp.zeros(len(slopes))
    found = _responding(mechanism, sigma, jnp.ones(4), data, schedule, canaries)
    left = np.arange(STEPS, 0, -1)
    weights = RATE / BATCH * (np.ones(STEPS) if optimizer is optax.sgd else (1 - 0.9**left) / 0.1)
    moved = weights @ np.asarray(schedule.mask)
    np.testing.assert_allclose(found.shifts, -moved * canaries, rtol=1e-4, atol=1e-6)
    spread = (weights**2).sum() * (sigma * NORM) ** 2
    np.testing.assert_allclose(found.covariance, spread * np.eye(4), rtol=1e-4, atol=1e-4 * spread)
    mu = moved / sigma / np.linalg.norm(weights)
    assert optimizer is MOMENTUM or mu == pytest.approx(np.sqrt(STEPS / PERIODICITY**2) / sigma)
    np.testing.assert_allclose(found.projected(canaries), mu, rtol=1e-4)
    assert (found.optimal <= np.sqrt(STEPS / PERIODICITY) / sigma * (1 + 1e-5)).all()
    if optimizer is optax.sgd:
        np.testing.assert_allclose(found.optimal, mu, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [optax.sgd, MOMENTUM])
def test_a_smooth_models_response_is_that_of_trainings_that_insert_at_one_step(
    optimizer, examples, schedule
):
    mechanism = dpsgd.mechanism(dpsgd.DPSGD(per_example(_smooth), optimizer))
    theta_0, sigma = 0.5 * jax.random.normal(jax.random.key(2), (8,)), 0.02
    hyper = base.Hyperparameters(RATE, NORM, 0.0)

    @jax.jit
    def final(step, pushed):
        only = base.Schedule(schedule.batches, jnp.zeros(STEPS).at[step].set(1.0))
        canaries = base.Canaries(lambda at, theta: pushed[None], jnp.ones(1))
        return base.rehearse(mechanism, hyper, theta_0, examples, only, canaries)

    small = 0.02 * NORM
    pushes = small * jnp.eye(8)
    over = jax.vmap(jax.vmap(final, (None, 0)), (0, None))
    jacobians = np.float64(over(jnp.arange(STEPS), pushes) - over(jnp.arange(STEPS), -pushes)) / (
        2 * small
    )
    jacobians = jacobians.transpose(0, 2, 1)  # (T, p, p): J_t
    covariance = np.einsum("tij,tkj->ik", jacobians, jacobians) * (sigma * NORM) ** 2
    together = np.einsum("t,tij->ij", schedule.mask, jacobians)
    canaries = NORM * np.vstack([np.eye(8), np.full(8, 8**-0.5)])
    shifts = canaries @ together.T
    found = _responding(mechanism, sigma, theta_0, examples, schedule, canaries)
    scale = np.abs(shifts).max()
    np.testing.assert_allclose(found.shifts, shifts, rtol=0.01, atol=0.01 * scale)
    spreads = np.sqrt(np.einsum("dp,pq,dq->d", canaries, covariance, canaries))
    projected = -np.sum(canaries * shifts, axis=1) / spreads
    np.testing.assert_allclose(found.projected(canaries), projected, rtol=0.01)
    optimal = np.sqrt(np.sum(shifts.T * np.linalg.solve(covariance, shifts.T), axis=0))
    np.testing.assert_allclose(found.optimal, optimal, rtol=0.01)
    assert optimal.max() < 0.97 * np.sqrt(STEPS / PERIODICITY) / sigma  # the data matter


@pytest.mark.slow
def test_the_spread_of_a_relu_network_is_that_of_noisy_trainings(model, mechanism, data):
    """Noise moves examples over kinks: derivatives at a point are off by a third on average here."""
    batches = base.fixed_shuffle(jax.random.key(3), len(data[1]), 50, 30)
    schedule = base.Schedule(batches, base.insertion_mask(30, 1))
    hyper, theta_0 = (
        base.Hyperparameters(*jnp.float32([0.3, 1.0, 3.0])),
        model.init(jax.random.key(0)),
    )
    found = jax.jit(functools.partial(respond, mechanism))(
        hyper, theta_0, data, schedule, jnp.eye(68)[:1]
    )

    @jax.jit
    @jax.vmap
    def trained(key):
        start = mechanism.start(theta_0)
        return mechanism.segment(hyper, start, data, schedule, base.no_canaries(), key).theta

    spread = np.std(trained(jax.random.split(jax.random.key(4), 2000)), axis=0)
    ratios = np.sqrt(np.diagonal(found.covariance)) / spread
    assert np.abs(ratios - 1).max() < 0.1 and np.sqrt(np.mean((ratios - 1) ** 2)) < 0.04
    assert spread.max() > 1.2 * spread.min()
