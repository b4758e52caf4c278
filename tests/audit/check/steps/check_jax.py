"""A small network in plain JAX: gradients by vmap, and one norm for all gradients of an example."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

rng = np.random.default_rng(0)
params = {
    "c": jnp.zeros(4),
    "v": jnp.asarray(0.4 * rng.normal(size=(6, 4)), jnp.float32),
    "w": jnp.asarray(0.5 * rng.normal(size=(4, 3)), jnp.float32),
}
batch = rng.normal(size=(16, 6)).astype(np.float32), rng.integers(0, 3, 16)
stated = {
    "clipping_norm": 1.2,
    "noise_multiplier": 0.9,
    "learning_rate": 0.25,
    "batch_size": 16,
}


def loss(params, x, y):
    """Returns the loss of an example."""
    logits = jnp.tanh(x @ params["v"] + params["c"]) @ params["w"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, y)


@jax.jit
def step(params, batch, seed):
    """Returns the parameters after a step."""
    x, y = batch
    gradients = jax.vmap(jax.grad(loss), (None, 0, 0))(params, x, y)
    clipped = jax.vmap(lambda g: optax.projections.projection_l2_ball(g, 1.2))(gradients)
    sums = jax.tree.map(lambda g: g.sum(0), clipped)
    keys = jax.random.split(jax.random.key(seed), 3)
    after = {}
    for key, name in zip(keys, params, strict=True):
        noise = 0.9 * 1.2 * jax.random.normal(key, params[name].shape)
        after[name] = params[name] - 0.25 * (sums[name] + noise) / 16
    return after
