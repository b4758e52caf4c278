"""Tests GC-S against a plain implementation of Algorithm 3, and in cases with an obvious choice."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from audit.adversaries import biased
from audit.errors import InputError
from audit.mechanism import base, dpsgd
from audit.mechanism.clipping.base import per_example

HYPER = base.Hyperparameters(0.8, 0.4, 0.2)
STEPS, BATCH = 5, 10


def _make_gc_s(variant, simulate, parameters, canaries=1):
    """Returns GC-S; simulate: (hyper, key, theta_0) -> a training run."""
    model = types.SimpleNamespace(n_parameters=parameters)
    knowledge = types.SimpleNamespace(
        model=model, hyper=HYPER, canaries=canaries, simulate=simulate
    )
    knowledge.predict_final = lambda craft, state, theta: theta
    return biased.GcS(gc_s=variant).make(knowledge)


@pytest.fixture(scope="module")
def batches(data):
    return base.fixed_shuffle(jax.random.key(3), len(data[1]), BATCH, STEPS)


def _algorithm_3(gradient, theta_0, data, batches, key, noisy, per_step, simulations):
    """S of Algorithm 3, line by line, with Errata H1 and H4: noise of deviation sigma * C; S
    accumulates over the simulations; noiseless means no clipping either; one root at the end."""
    rate, norm, sigma = HYPER[:3]
    total = np.zeros(theta_0.size)
    for j in range(simulations):
        theta = np.asarray(theta_0, np.float64)
        for t, indices in enumerate(np.asarray(batches)):
            update = np.zeros(theta.size)
            for i in indices:
                g = np.asarray(gradient(jnp.float32(theta), (data[0][i], data[1][i])), np.float64)
                update += g * min(1, norm / np.linalg.norm(g)) if noisy else g
            if noisy:
                noise_key = jax.random.fold_in(jax.random.fold_in(key, j), t)
                update += sigma * norm * np.asarray(jax.random.normal(noise_key, theta.shape))
            after = theta - rate / len(indices) * update
            if per_step:
                total += (after - theta) ** 2
            theta = after
        if not per_step:
            total += np.abs(theta - np.asarray(theta_0))
    return np.sqrt(total) if per_step else total


@pytest.mark.slow
@pytest.mark.parametrize("variant", biased.GC_S_VARIANTS)
def test_gc_s_is_algorithm_3(data, model, mechanism, batches, variant):
    theta_0 = model.init(jax.random.key(0))
    noisy, per_step = variant.startswith("noisy"), variant.endswith("per_step")
    simulations = biased._NUM_NOISY_SIMULATIONS if noisy else 1

    @jax.jit
    def simulate(hyper, key, theta):
        return base.simulate(mechanism, hyper, theta, data, batches, key)

    adversary = _make_gc_s(variant, simulate, theta_0.size)
    gradient = jax.jit(jax.grad(model.loss))
    chosen = []
    for seed in range(3) if noisy else range(1):
        key = jax.random.key(seed)
        state = adversary.init(key, theta_0, jnp.float32(0.4))
        moved = _algorithm_3(gradient, theta_0, data, batches, key, noisy, per_step, simulations)
        least, next_least = np.sort(moved)[:2]
        assert next_least > least * (1 + 1e-5)  # else rounding decides, and the test says nothing
        assert state.dimensions == np.argmin(moved)
        np.testing.assert_array_equal(
            state.canaries, np.eye(68)[[np.argmin(moved)]] * np.float32(0.4)
        )
        chosen.append(int(state.dimensions[0]))
    assert not noisy or len(set(chosen)) > 1


NOISELESS = ("noiseless_per_step", "noiseless_final_model")


@pytest.mark.parametrize("variant", NOISELESS)
def test_a_dead_coordinate_is_chosen(variant):
    """A linear loss in which coordinate 4 never moves, and 1 goes forth and back."""

    def loss(theta, example):
        return jnp.dot(theta, example[0])

    slopes = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32) + 3
    slopes[:, 4] = 0
    slopes[:, 1] = np.tile([5, 5, -5, -5], 2)
    data = (jnp.asarray(slopes), jnp.zeros(8, int))
    mechanism = dpsgd.mechanism(dpsgd.DPSGD(per_example(loss)))
    batches = jnp.arange(8).reshape(4, 2)

    def simulate(hyper, key, theta_0):
        return base.simulate(mechanism, hyper, theta_0, data, batches, key)

    adversary = _make_gc_s(variant, simulate, 6)
    chosen = adversary.init(jax.random.key(0), jnp.zeros(6), jnp.float32(1)).dimensions
    assert chosen == 4 if variant == NOISELESS[0] else chosen in (1, 4)


@pytest.mark.parametrize("canaries", [1, 2])
@pytest.mark.parametrize("variant", NOISELESS)
def test_a_simulation_that_diverges_ranks_no_coordinates(variant, canaries):
    moved = jnp.array([1.0, np.nan, 0.5])
    trajectory = base.Trajectory(moved, moved)
    adversary = _make_gc_s(variant, lambda hyper, key, theta: trajectory, 3, canaries)
    with pytest.raises(InputError, match="`gc_s`: the simulated training diverges at 1 of 3 coord"):
        adversary.init(jax.random.key(0), jnp.zeros(3), jnp.float32(1))


def test_gc_r_draws_every_coordinate_alike():
    choose = functools.partial(biased._choose_at_random, 1)
    init = jax.jit(jax.vmap(biased.at_coordinates(choose, 1, None).init, (0, None, None)))
    states = init(jax.random.split(jax.random.key(0), 6800), jnp.zeros(68), jnp.float32(2))
    chosen = states.dimensions[:, 0]
    counts = np.bincount(chosen, minlength=68)
    assert len(counts) == 68 and stats.chisquare(counts).pvalue > 1e-4
    np.testing.assert_array_equal(np.argmax(states.canaries[:, 0], axis=1), chosen)
