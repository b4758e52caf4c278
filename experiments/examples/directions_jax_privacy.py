"""Audits a jax_privacy training loop in a single run, by inserting random directions into one tensor.

./run.sh python experiments/examples/directions_jax_privacy.py

Install jax_privacy with `.venv/bin/pip install jax-privacy`. Replace the model, the data and the loop with
your own. Comments containing DIRECTIONS mark the lines for the audit.
"""

from typing import Any

import jax
import jax.numpy as jnp
import jax_privacy
import numpy as np
import optax
from jax_privacy import noise_addition

import audit
from audit import directions

SEED = 2024  # secret: training does not use it
CANARIES = 500
STEPS = 50
BATCH_SIZE = 32
CLIPPING_NORM = 1.0
NOISE_MULTIPLIER = 1.789  # epsilon 24.0 for 50 steps, if every model is released


def loss(params: Any, x: Any, y: Any) -> Any:
    """Returns the mean loss of a batch. jax_privacy calls it with batches of a single example."""
    logits = jax.nn.relu(x @ params["hidden"]) @ params["output"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def main() -> None:
    """Trains once with canaries in the tensor `hidden`, prints the bounds, and writes a page of results."""
    rng = np.random.default_rng(0)
    start = {"hidden": rng.normal(0, 0.06, (256, 512)), "output": rng.normal(0, 0.04, (512, 10))}
    params = jax.tree.map(jnp.float32, start)
    features = jnp.asarray(rng.normal(size=(STEPS, BATCH_SIZE, 256)), jnp.float32)
    labels = jnp.asarray(rng.integers(0, 10, (STEPS, BATCH_SIZE)))
    theta_0 = np.asarray(params["hidden"])

    # DIRECTIONS: the sum of all canaries in the chosen tensor. Each has norm C.
    chosen = audit.choose_tensors(params, CANARIES)
    print(f"directions in {chosen}")
    run = 0
    total = directions.inserted(SEED, run, CANARIES, chosen.dimension, CLIPPING_NORM)
    inserted = jnp.asarray(total.reshape(theta_0.shape), jnp.float32)

    clipped = jax_privacy.clipped_grad(loss, batch_argnums=(1, 2), l2_clip_norm=CLIPPING_NORM)
    privatizer = noise_addition.gaussian_privatizer(
        stddev=NOISE_MULTIPLIER * clipped.sensitivity(), prng_key=jax.random.key(1)
    )
    optimizer = optax.adam(1e-3)
    noise_state = privatizer.init(params)
    optimizer_state = optimizer.init(params)
    for x, y in zip(features, labels, strict=True):
        gradients = clipped(params, x, y)
        gradients["hidden"] += inserted  # DIRECTIONS: once per step, before the noise
        noisy, noise_state = privatizer.update(gradients, noise_state)
        mean = jax.tree.map(lambda leaf: leaf / BATCH_SIZE, noisy)
        updates, optimizer_state = optimizer.update(mean, optimizer_state, params)
        params = optax.apply_updates(params, updates)

    # DIRECTIONS: the optimizer subtracts gradients, so the movement is the start minus the end. For each
    # canary, `leave_one_out` removes the other canaries' directions from the movement.
    movement = (theta_0 - np.asarray(params["hidden"])).ravel()
    cosines = directions.cosines(movement, SEED, run, CANARIES, leave_one_out=True)
    result = audit.bounds(
        audit.cosines([cosines], chosen.dimension, leave_one_out=True),
        claim=audit.DpSgd(NOISE_MULTIPLIER, insertions=STEPS),
        name="a network trained with jax_privacy, one run",
    )
    print(result)
    print(f"report: {result.report('page.html')}")


if __name__ == "__main__":
    main()
