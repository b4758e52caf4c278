"""DP-SGD with jax_privacy for a linear classifier. Check it: ./run.sh check --example=jax_privacy"""

from typing import Any

import jax
import jax.numpy as jnp
import jax_privacy
import numpy as np
import optax

rng = np.random.default_rng(0)
kernel = 0.1 * rng.normal(size=(8, 3))
params = {
    "kernel": jnp.asarray(kernel, jnp.float32),
    "bias": jnp.zeros(3),
}
features = rng.normal(size=(32, 8)).astype(np.float32)
labels = rng.integers(0, 3, 32)
batch = features, labels
stated: dict[str, Any] = {
    "clipping_norm": 1.5,
    "noise_multiplier": 1.1,
    "learning_rate": 0.5,
    "batch_size": 32,
}


def loss(params: Any, x: Any, y: Any) -> Any:
    """Returns the mean loss of a batch. jax_privacy calls it with batches of a single example."""
    logits = x @ params["kernel"] + params["bias"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


clipped = jax_privacy.clipped_grad(
    loss,
    batch_argnums=(1, 2),
    l2_clip_norm=1.5,
    normalize_by=32.0,
)


@jax.jit
def step(params: Any, batch: Any, seed: int) -> Any:
    """Returns the parameters after a step of DP-SGD. `batch` has features (n, 8) and labels (n,)."""
    gradients = clipped(params, *batch)  # the sum of clipped gradients, divided by the batch size
    deviation = 1.1 * clipped.sensitivity()  # sigma C / B
    keys = jax.random.split(jax.random.key(seed), len(params))  # a key for each layer's noise
    after = {}
    for key, (name, value) in zip(keys, params.items(), strict=True):
        noise = deviation * jax.random.normal(key, value.shape)
        after[name] = value - 0.5 * (gradients[name] + noise)  # eta = 0.5
    return after
