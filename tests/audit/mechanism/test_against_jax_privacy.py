"""DP-SGD by jax_privacy, which knows nothing of this project, goes the same way."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from audit.mechanism import base, dpsgd
from audit.mechanism.clipping.base import per_example

theirs = pytest.importorskip("jax_privacy.clipping")


@pytest.mark.filterwarnings("ignore:optax.global_norm is deprecated")  # their call
@pytest.mark.parametrize("clipping_norm", [0.4, pytest.param(0.02, marks=pytest.mark.slow)])
def test_noiseless_steps_agree(data, model, choices, clipping_norm):
    theta = jnp.asarray(0.4 * np.random.default_rng(0).normal(size=model.n_parameters), jnp.float32)
    batches = base.fixed_shuffle(jax.random.key(1), 200, 20, 8)
    hyper = base.Hyperparameters(0.5, clipping_norm, 0.0)
    schedule = base.Schedule(batches, jnp.zeros(8))

    def ours(choices):
        mechanism = dpsgd.mechanism(choices)
        start, key = mechanism.start(theta), jax.random.key(2)
        return mechanism.segment(hyper, start, data, schedule, base.no_canaries(), key).theta

    how = {"l2_clip_norm": clipping_norm, "keep_batch_dim": False, "normalize_by": 20.0}
    clipped = theirs.clipped_grad(model.loss, **how)
    optimizer, expected = optax.sgd(0.5), theta

    @jax.jit
    def one(theta, indices):
        gradient = clipped(theta, (data[0][indices], data[1][indices]))
        return optax.apply_updates(theta, optimizer.update(gradient, optimizer.init(theta))[0])

    for indices in batches:
        expected = one(expected, indices)
    assert np.abs(expected - theta).max() > 1e-3
    np.testing.assert_allclose(jax.jit(ours, static_argnums=0)(choices), expected, rtol=0, atol=1e-5)
    slow = choices._replace(clipped_sum=per_example(model.loss))
    np.testing.assert_allclose(jax.jit(ours, static_argnums=0)(slow), expected, rtol=0, atol=1e-5)
