"""An adversary of one's own: a constant direction, inserted every k steps, scored by how far the model moved
along it.

./run.sh python experiments/examples/own_adversary.py
"""

import jax.numpy as jnp
import numpy as np
from jax import Array

import audit
from audit.adversaries.base import Adversary


def constant_direction() -> Adversary:
    """Returns the adversary whose canary is C * (1, ..., 1) / sqrt(p): p parameters, clipping norm C."""

    def init(key: Array, theta_0: Array, clipping_norm: Array) -> Array:
        """Returns the adversary's state, made before training: here the canary (p,)."""
        entry = clipping_norm / np.sqrt(theta_0.size)
        return jnp.full_like(theta_0, entry)  # a state may be any tree of arrays

    def craft(state: Array, step: Array, theta: Array) -> Array:
        """Returns the canary that a step inserts."""
        return state[None]  # (canaries, p), of norm C

    def score(state: Array, seen: object, theta_t: Array, theta_0: Array) -> Array:
        """Returns how far the model moved along the canary; steps subtract gradients.

        `seen` is (), since this adversary does not observe the models during training.
        """
        movement = theta_0 - theta_t
        return jnp.vdot(state, movement)[None]  # (canaries,); higher means in

    return Adversary(init, craft, score)


def loss(params: Array, labelled: tuple[Array, Array]) -> Array:
    """Returns the squared error of a linear regression on a single example (features, label)."""
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
