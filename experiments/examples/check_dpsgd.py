"""This project's own DP-SGD: canaries beside a fixed mini-batch. ./run.sh check --example=dpsgd"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import audit
from audit.mechanism import base, dpsgd
from audit.mechanism.clipping.base import per_example

rng = np.random.default_rng(0)
features = rng.normal(size=(32, 8))
labels = rng.integers(0, 2, 32)
data = jnp.asarray(features, jnp.float32), jnp.asarray(labels)
params = jnp.zeros(9)
canary_features = rng.normal(size=(6, 8)).astype(np.float32)
canary_labels = rng.integers(0, 2, 6)
batch = canary_features, canary_labels
stated: dict[str, Any] = {
    "clipping_norm": 1.5,
    "noise_multiplier": 1.1,
    "learning_rate": 0.5,
    "batch_size": 32,
}


def loss(theta: Any, example: Any) -> Any:
    """Returns the logistic loss of an example."""
    features, label = example
    logit = features @ theta[:8] + theta[8]
    return jnp.logaddexp(0, (1 - 2 * label) * logit)


mechanism = dpsgd.mechanism(dpsgd.DPSGD(per_example(loss)))
hyper = base.Hyperparameters(0.5, 1.5, 1.1)  # learning rate, clipping norm, noise multiplier


@jax.jit
def step(params: Any, batch: Any, seed: int) -> Any:
    """Returns the parameters after a step of DP-SGD on the mini-batch `data` and the examples of `batch`.

    The mini-batch, all 32 examples of `data`, is the same in all steps. The examples of `batch` are canaries:
    their clipped gradients are added to those of the mini-batch.

    Args:
      params: (9,) the parameters theta.
      batch: Features (count, 8) and labels (count,) of the examples to add; there may be none.
      seed: The seed of the noise.
    """
    count = len(batch[1])
    canaries = base.no_canaries()
    if count:
        examples = base.Examples(*batch)
        # The canaries are the same at every step and for all parameters, and all of them are present.
        canaries = base.Canaries(lambda step, theta: examples, presence=jnp.ones(count))
    # A single step, on the mini-batch of all 32 rows. The mask's 1 says that it inserts the canaries.
    schedule = base.Schedule(jnp.arange(32)[None], mask=jnp.ones(1))
    state = mechanism.start(params)
    key = jax.random.key(seed)
    return mechanism.segment(hyper, state, data, schedule, canaries, key).theta


if __name__ == "__main__":
    print(audit.check_step(step, params, batch, **stated))
