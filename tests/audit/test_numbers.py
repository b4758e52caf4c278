"""`import audit` accepts numbers and arrays of NumPy, JAX and other libraries."""

import jax.numpy as jnp
import numpy as np
import pytest

import audit
from audit import directions

IN, OUT = np.random.default_rng(0).normal(size=(2, 60))
IN = IN + 2


def test_numpys_and_jaxs_numbers_are_numbers():
    levels = {"delta": np.float32(1e-5), "confidence": np.float64(0.95)}
    mechanism = {
        "noise_multiplier": np.float32(1),
        "insertions": np.int64(4),
        "sampling_rate": jnp.float32(1),
    }
    found = audit.bounds(IN, OUT, audit.DpSgd(**mechanism), **levels)
    assert found.upper_bound == pytest.approx(
        audit.bounds(IN, OUT, audit.DpSgd(1.0, 4)).upper_bound, rel=1e-3
    )
    assert audit.bounds(IN, OUT, audit.EpsilonDelta(np.int32(3), 1e-5)).upper_bound == 3
    numbers = (np.uint8(1), np.int64(2), jnp.int32(3), np.int16(9))
    canary, *_ = directions.canaries(*numbers)
    assert np.array_equal(canary, next(directions.canaries(1, 2, 3, 9)))


@pytest.mark.slow
def test_arrays_of_every_library_are_scores():
    class Series:  # as pandas' is to NumPy
        def __array__(self, dtype=None, copy=None):
            return np.asarray(IN, dtype)

    expected = audit.bounds(IN, OUT).bounds
    unmasked = np.ma.masked_array(IN, np.zeros(60, bool))
    for scores in (Series(), unmasked):
        assert audit.bounds(scores, OUT).bounds == expected
    rounded = jnp.asarray(IN, jnp.bfloat16)
    again = audit.bounds(np.asarray(rounded, np.float32), OUT).bounds
    assert (
        audit.bounds(rounded, OUT).bounds == audit.bounds(np.asarray(rounded), OUT).bounds == again
    )
