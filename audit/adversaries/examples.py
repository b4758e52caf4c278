"""Canaries that are examples: their own gradients are inserted, their losses are the scores."""

from collections.abc import Callable

import jax
from jax import Array

from audit.adversaries.base import Adversary, Init
from audit.mechanism.base import Tree

Example = tuple[Array, Array]
Loss = Callable[[Array, Example], Array]


def inserted_examples(loss: Loss, init: Init, canaries: int) -> Adversary:
    """The adversary of K examples, which init gives as features (K, ...) and labels (K,).

    Each inserts its gradient at the current model, as training on it would; the mechanism clips it. A score
    is minus the final model's loss: training on an example lowers it. The gradients (K, p) are in memory: for
    few canaries or small models.
    """

    def craft(state: Example, step: Array, theta: Array) -> Array:
        gradients: Array = jax.vmap(jax.grad(loss), (None, 0))(theta, state)
        return gradients

    def score(state: Example, seen: Tree, theta_t: Array, theta_0: Array) -> Array:
        losses: Array = jax.vmap(loss, (None, 0))(theta_t, state)
        return -losses

    return Adversary(init, craft, score, canaries=canaries, reads_theta=True)
