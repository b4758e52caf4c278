"""This project's own DP-FedAvg: a round, in which an example is a client. ./run.sh check --example=fedavg"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import audit
from audit.mechanism import base, fedavg

rng = np.random.default_rng(0)
params = jnp.zeros(9)
features = rng.normal(size=(16, 5, 8)).astype(np.float32)  # of 16 clients with 5 examples each
labels = rng.integers(0, 2, (16, 5))
batch = features, labels
stated: dict[str, Any] = {
    "clipping_norm": 0.5,
    "noise_multiplier": 1.1,
    "learning_rate": 1.0,
    "batch_size": 16,
}


def losses(theta: Any, examples: Any) -> Any:
    """Returns the logistic losses of a client's examples."""
    features, labels = examples
    logits = features @ theta[:8] + theta[8]
    return jnp.logaddexp(0, (1 - 2 * labels) * logits)


choices = fedavg.FedAvg(losses, lambda theta: theta, batch_size=5, epochs=2, most_examples=5)
federated = fedavg.Federated(0.5, denominator=16.0)  # the clients' learning rate, and their number
# The server's learning rate, clipping norm, noise multiplier.
hyper = base.Hyperparameters(1.0, 0.5, 1.1, own=federated)
mechanism = fedavg.mechanism(choices)


@jax.jit
def step(params: Any, batch: Any, seed: int) -> Any:
    """Returns the parameters after a round of DP-FedAvg in which all clients of the batch take part.

    Each client has 5 examples. A client of zeros that takes no part is appended, so that the arrays of a
    batch without clients are not empty.

    Args:
      params: (9,) the server's parameters.
      batch: The clients' features (clients, 5, 8) and labels (clients, 5).
      seed: The seed of the noise.
    """
    # The clients' examples, client after client: where each client starts, and how many it has.
    clients = len(batch[1])
    features = append_zeros(batch[0])
    labels = append_zeros(batch[1])
    starts = 5 * jnp.arange(clients + 1)
    sizes = jnp.full(clients + 1, 5)
    data = features.reshape(-1, 8), labels.ravel(), starts, sizes

    # A single round. -1 in the place of the appended client means that nobody takes that place.
    cohort = jnp.append(jnp.arange(clients), -1)
    schedule = base.Schedule(cohort[None], mask=jnp.ones(1))  # no effect: the round has no canaries
    state = mechanism.start(params)
    key = jax.random.key(seed)
    return mechanism.segment(hyper, state, data, schedule, base.no_canaries(), key).theta


def append_zeros(rows: Any) -> Any:
    """Returns an array with a row of zeros appended."""
    zeros = jnp.zeros_like(rows, shape=(1, *rows.shape[1:]))
    return jnp.concatenate([rows, zeros])


if __name__ == "__main__":
    print(audit.check_step(step, params, batch, **stated))
