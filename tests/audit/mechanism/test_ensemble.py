"""Runs in a chunk are what they are alone, chunks fit, and programs are found by value."""

import math
import types

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies

from audit.mechanism import base, ensemble
from audit.mechanism.base import StepMemory, local_hardware, step_memory

HYPER = base.Hyperparameters(*map(jnp.float32, (0.3, 0.5, 2.0)))
KEY = jax.random.key(7, impl="threefry2x32")


def _train(mechanism, theta, data, schedule, runs):
    placement = ensemble.Placement.local()

    def bind(canary, presence, key):
        return base.Canaries(lambda step, theta: canary, presence)

    train = ensemble.map_segment(mechanism, bind, placement)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(KEY, jnp.asarray(runs))
    states = jax.vmap(lambda key: mechanism.start(theta))(keys)
    presence = jnp.asarray([[run % 2] for run in runs], jnp.float32)
    canary = jnp.ones((1, theta.size))
    return np.asarray(
        train(HYPER, states, data, schedule, canary, (presence, keys, keys)).theta
    ), keys


@pytest.fixture(scope="module")
def schedule(data):
    return base.Schedule(base.fixed_shuffle(KEY, len(data[1]), 20, 12), base.insertion_mask(12, 5))


def test_noise_of_run_7_is_bit_equal_alone_and_in_a_chunk(silent, data, schedule):
    one_step = jax.tree.map(lambda leaf: leaf[:1], schedule)  # t = 1 is no insertion
    alone, _ = _train(silent, jnp.zeros(50), data, one_step, [7])
    together, _ = _train(silent, jnp.zeros(50), data, one_step, list(range(16)))
    np.testing.assert_array_equal(together[7], alone[0])
    assert len(np.unique(together, axis=0)) == 16


@pytest.mark.slow
def test_run_7_has_one_model_alone_and_in_a_chunk(data, model, mechanism, schedule):
    theta = model.init(jax.random.key(0))
    alone, _ = _train(mechanism, theta, data, schedule, [7])
    together, _ = _train(mechanism, theta, data, schedule, [3, 4, 5, 6, 7, 8])
    distances = np.abs(together - alone).max(axis=1)
    assert distances[4] < 2e-6 and np.delete(distances, 4).min() > 1e-3


@pytest.mark.parametrize("steps", [1, 250, 251])
def test_segments_are_the_schedule(steps):
    schedule = base.Schedule(np.arange(2 * steps).reshape(steps, 2), np.arange(steps) % 3)
    parts = ensemble.segments(schedule)
    np.testing.assert_array_equal(
        np.concatenate([part.batches for part in parts]), schedule.batches
    )
    np.testing.assert_array_equal(np.concatenate([part.mask for part in parts]), schedule.mask)
    assert all(0 < len(part.mask) <= 250 for part in parts)


def _check_chunks(runs, step, bytes_per_run, budget, devices):
    size = ensemble.chunk_size(runs, step)
    assert 1 <= size <= min(runs, 8192 * devices)
    assert size <= devices or size * bytes_per_run <= budget * devices
    chunks = math.ceil(runs / size)
    assert chunks * size - runs < chunks  # padding: less than a run a chunk
    if chunks > 1:  # and no more chunks than the limits ask for
        assert math.ceil(runs / (chunks - 1)) > devices * min(8192, max(budget // bytes_per_run, 1))


RUNS, EXPONENTS = strategies.integers(1, 100_000), strategies.integers(0, 40)


@hypothesis.given(RUNS, EXPONENTS, strategies.sampled_from([1, 2, 64]))
@hypothesis.settings(deadline=None)
def test_chunks_on_a_cpu_fit_and_are_even(runs, exponent, cores):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "local_devices", lambda: [types.SimpleNamespace(platform="cpu")] * cores)
        patch.setattr(base.os, "sysconf", lambda name: 4096 if "SIZE" in name else 1 << 20)
        wanted = max(
            32 << 20, 4 << exponent
        )  # cache, but four runs where a quarter of 4 GiB holds them
        step = StepMemory(1 << exponent, 1)
        _check_chunks(runs, step, 1 << exponent, min(wanted, (1 << 30) // cores), cores)


@hypothesis.given(RUNS, EXPONENTS, strategies.sampled_from([1, 8]))
@hypothesis.settings(deadline=None)
def test_chunks_on_gpus_take_a_quarter_of_their_memory(runs, exponent, count):
    device = types.SimpleNamespace(platform="gpu", memory_stats=lambda: {"bytes_limit": 80 << 30})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "local_devices", lambda: [device] * count)
        _check_chunks(runs, StepMemory(1 << 60, 1 << exponent), 1 << exponent, 20 << 30, count)


X = jax.ShapeDtypeStruct((100,), jnp.float32)
ONE = 400  # bytes


def chain(x):
    return jnp.exp(jnp.sin(jnp.cos(x)))


def kept(x):
    first = jnp.cos(x)
    return jnp.exp(jnp.sin(first)), first


def branching(x):
    return jax.lax.cond(x[0] > 0, lambda: jnp.sin(jnp.cos(x)), lambda: x)


CASES = {
    **{"a chain": (chain, 3 * ONE, 2 * ONE), "what is needed later": (kept, 3 * ONE, 3 * ONE)},
    **{"in a call": (jax.jit(chain), 3 * ONE, 3 * ONE), "nothing": (lambda x: x, 0, 0)},
}


@pytest.mark.parametrize("case", CASES)
def test_a_programs_memory_is_that_of_its_results(case):
    function, written, held = CASES[case]
    assert step_memory(function, X) == StepMemory(written, held)


def test_what_is_written_and_what_is_held():
    found = step_memory(lambda x, data: x + jnp.sin(jnp.cos(data)), X, X)
    assert found == StepMemory(ONE, 2 * ONE)

    def repeated(x):
        return jax.lax.scan(lambda total, _: (jnp.sin(jnp.cos(total)), None), x, None, length=50)[0]

    found = step_memory(repeated, X)
    assert found == StepMemory(50 * 2 * ONE, 3 * ONE)  # the result, beside the body's two
    assert step_memory(branching, X).held >= 3 * ONE and StepMemory(10, 4).times(
        3, 5
    ) == StepMemory(35, 17)
    found = local_hardware()
    assert found.number == len(jax.local_devices()) and found.memory > 1 << 20
    assert found.is_cpu == (jax.local_devices()[0].platform == "cpu")
