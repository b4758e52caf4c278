"""This project's own DP-FedAvg: a round, in which an example is a client. ./run.sh check --example=fedavg"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import audit
from audit.mechanism import base, fedavg

rng = np.random.default_rng(0)
params = jnp.zeros(9)
batch = rng.normal(size=(16, 5, 8)).astype(np.float32), rng.integers(0, 2, (16, 5))  # of 16 clients
stated: dict[str, Any] = dict(clipping_norm=0.5, noise_multiplier=1.1, learning_rate=1.0, batch_size=16)


def losses(theta: Any, examples: Any) -> Any:
    """Logistic losses of a client's examples."""
    return jnp.logaddexp(0, (1 - 2 * examples[1]) * (examples[0] @ theta[:8] + theta[8]))


choices = fedavg.FedAvg(losses, lambda theta: theta, batch_size=5, epochs=2, most_examples=5)
hyper = base.Hyperparameters(1.0, 0.5, 1.1, own=fedavg.Federated(0.5, denominator=16.0))
mechanism = fedavg.mechanism(choices)


@jax.jit
def step(params: Any, batch: Any, seed: int) -> Any:
    """One round of all clients in the batch; a place for none keeps an empty one a round."""
    clients = len(batch[1])
    features, labels = (
        jnp.concatenate([part, jnp.zeros_like(part, shape=(1, *part.shape[1:]))]) for part in batch
    )
    starts = 5 * jnp.arange(clients + 1)
    data = features.reshape(-1, 8), labels.ravel(), starts, jnp.full(clients + 1, 5)
    cohort = jnp.append(jnp.arange(clients), -1)
    schedule, key = base.Schedule(cohort[None], jnp.ones(1)), jax.random.key(seed)
    return mechanism.segment(hyper, mechanism.start(params), data, schedule, base.no_canaries(), key).theta


if __name__ == "__main__":
    print(audit.check_step(step, params, batch, **stated))
