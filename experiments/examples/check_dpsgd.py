"""This project's own DP-SGD: canaries beside a fixed mini-batch. ./run.sh check --example=dpsgd"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import audit
from audit.mechanism import base, dpsgd
from audit.mechanism.clipping.base import per_example

rng = np.random.default_rng(0)
data = jnp.asarray(rng.normal(size=(32, 8)), jnp.float32), jnp.asarray(rng.integers(0, 2, 32))
params = jnp.zeros(9)
batch = rng.normal(size=(6, 8)).astype(np.float32), rng.integers(0, 2, 6)
stated: dict[str, Any] = dict(clipping_norm=1.5, noise_multiplier=1.1, learning_rate=0.5, batch_size=32)


def loss(theta: Any, example: Any) -> Any:
    """Logistic loss of one example."""
    return jnp.logaddexp(0, (1 - 2 * example[1]) * (example[0] @ theta[:8] + theta[8]))


mechanism = dpsgd.mechanism(dpsgd.DPSGD(per_example(loss)))
hyper = base.Hyperparameters(0.5, 1.5, 1.1)


@jax.jit
def step(params: Any, batch: Any, seed: int) -> Any:
    """One step of the fixed mini-batch, in which the examples of `batch` are the canaries."""
    canaries = base.Canaries(lambda *_: base.Examples(*batch), jnp.ones(len(batch[1])))
    canaries = canaries if len(batch[1]) else base.no_canaries()
    schedule = base.Schedule(jnp.arange(32)[None], jnp.ones(1))
    state = mechanism.start(params)
    return mechanism.segment(hyper, state, data, schedule, canaries, jax.random.key(seed)).theta


if __name__ == "__main__":
    print(audit.check_step(step, params, batch, **stated))
