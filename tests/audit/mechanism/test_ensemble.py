"""Tests the segments of a schedule, the size of chunks, and the estimated memory of a step."""

import math
import types

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies

from audit.mechanism import base, ensemble
from audit.mechanism.base import local_hardware, step_memory


@pytest.mark.parametrize("steps", [1, 250, 251])
def test_segments_are_the_schedule(steps):
    schedule = base.Schedule(np.arange(2 * steps).reshape(steps, 2), np.arange(steps) % 3)
    parts = ensemble.segments(schedule)
    np.testing.assert_array_equal(
        np.concatenate([part.batches for part in parts]), schedule.batches
    )
    np.testing.assert_array_equal(np.concatenate([part.mask for part in parts]), schedule.mask)
    assert all(0 < len(part.mask) <= 250 for part in parts)


def _check_chunks(runs, bytes_per_run, budget, devices):
    size = ensemble.chunk_size(runs, bytes_per_run)
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
        _check_chunks(runs, 1 << exponent, min(wanted, (1 << 30) // cores), cores)


@hypothesis.given(RUNS, EXPONENTS, strategies.sampled_from([1, 8]))
@hypothesis.settings(deadline=None)
def test_chunks_on_gpus_take_a_quarter_of_their_memory(runs, exponent, count):
    device = types.SimpleNamespace(platform="gpu", memory_stats=lambda: {"bytes_limit": 80 << 30})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "local_devices", lambda: [device] * count)
        _check_chunks(runs, 1 << exponent, 20 << 30, count)


X = jax.ShapeDtypeStruct((100,), jnp.float32)
ONE = 400  # bytes


def chain(x):
    return jnp.exp(jnp.sin(jnp.cos(x)))


def repeated(x):
    return jax.lax.scan(lambda total, _: (jnp.sin(jnp.cos(total)), None), x, None, length=50)[0]


CASES = [(chain, 3 * ONE), (jax.jit(chain), 3 * ONE), (lambda x: x, 0), (repeated, 100 * ONE)]


@pytest.mark.parametrize(("function", "written"), CASES)
def test_on_a_cpu_a_steps_memory_is_that_of_its_results(function, written):
    assert step_memory(function, X) == written


def test_a_steps_memory_leaves_out_what_runs_share():
    assert step_memory(lambda x, data: x + jnp.sin(jnp.cos(data)), X, X) == ONE


def test_on_a_gpu_a_steps_memory_is_the_compilers(monkeypatch):
    gpu = local_hardware()._replace(is_cpu=False)
    monkeypatch.setattr(base, "local_hardware", lambda: gpu)
    several = step_memory(lambda x, y: jnp.sort(jnp.sin(x[:, None] * y)).sum(), X, X)
    assert 100 * ONE <= several <= 300 * ONE
