"""A linear classifier by jax_privacy's clipped gradients. ./run.sh check --example=jax_privacy"""

from typing import Any

import jax
import jax.numpy as jnp
import jax_privacy
import numpy as np
import optax

import audit

rng = np.random.default_rng(0)
params = {"kernel": jnp.asarray(0.1 * rng.normal(size=(8, 3)), jnp.float32), "bias": jnp.zeros(3)}
batch = rng.normal(size=(32, 8)).astype(np.float32), rng.integers(0, 3, 32)
stated: dict[str, Any] = dict(clipping_norm=1.5, noise_multiplier=1.1, learning_rate=0.5, batch_size=32)


def loss(params: Any, x: Any, y: Any) -> Any:
    """The mean loss of a batch, as jax_privacy calls it with one example."""
    logits = x @ params["kernel"] + params["bias"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


clipped = jax_privacy.clipped_grad(loss, batch_argnums=(1, 2), l2_clip_norm=1.5, normalize_by=32.0)


@jax.jit
def step(params: Any, batch: Any, seed: int) -> Any:
    """One step: the mean of clipped gradients and noise of the sensitivity that it says it has."""
    gradients = clipped(params, *batch)
    deviation = 1.1 * clipped.sensitivity()
    keys = dict(zip(params, jax.random.split(jax.random.key(seed), len(params)), strict=True))
    noise = {name: deviation * jax.random.normal(keys[name], value.shape) for name, value in params.items()}
    return {name: value - 0.5 * (gradients[name] + noise[name]) for name, value in params.items()}


if __name__ == "__main__":
    print(audit.check_step(step, params, batch, **stated))
