"""Audits a linear regression with a custom adversary.

The canary is a constant direction, inserted every k steps. Its score is the model's movement along it.

./run.sh python experiments/examples/own_adversary.py
"""

import jax.numpy as jnp
import numpy as np
from jax import Array

import audit
from audit.adversaries.base import Adversary


def constant_direction() -> Adversary:
    """Returns an adversary with the canary C * (1, ..., 1) / sqrt(p), for p parameters and norm C."""

    def init(key: Array, theta_0: Array, clipping_norm: Array) -> Array:
        """Returns the state before training, which can be any tree of arrays. Here it is the canary (p,)."""
        entry = clipping_norm / np.sqrt(theta_0.size)
        return jnp.full_like(theta_0, entry)

    def craft(state: Array, step: Array, theta: Array) -> Array:
        """Returns the canaries (K, p) to insert in a step. Here K = 1."""
        return state[None]

    def score(state: Array, seen: object, theta_t: Array, theta_0: Array) -> Array:
        """Returns the scores (K,). A higher score means "inserted".

        `seen` is () because this adversary does not observe intermediate models.
        """
        movement = theta_0 - theta_t  # steps subtract gradients
        return jnp.vdot(state, movement)[None]

    return Adversary(init, craft, score)


def loss(params: Array, labelled: tuple[Array, Array]) -> Array:
    """Returns the squared error of a linear regression on an example (features (8,), label)."""
    feature, label = labelled
    return (params @ feature - label) ** 2


def main() -> None:
    """Trains 400 models and prints the bounds."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(500, 8)).astype(np.float32)
    labels = features.sum(1)
    result = audit.audit_loss(
        loss,
        jnp.zeros(8),
        features,
        labels,
        runs=400,
        adversary=constant_direction(),
        steps=50,
    )
    print(result)


if __name__ == "__main__":
    main()
