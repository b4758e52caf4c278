"""Canaries that are examples: their own gradients are inserted, minus their losses are the scores."""

from collections.abc import Callable

import jax
from jax import Array

from audit.adversaries.base import Adversary, Init
from audit.mechanism.base import Examples, Tree

Example = tuple[Array, Array]
Loss = Callable[[Array, Example], Array]


def inserted_examples(loss: Loss, init: Init, canaries: int) -> Adversary:
    """The adversary of K examples, which init gives.

    Each inserts its clipped gradient at the current model, as training on it would. A score is minus the
    final model's loss: training on an example lowers it.
    """

    def craft(state: Examples, step: Array, theta: Array) -> Examples:
        return state

    def score(state: Examples, seen: Tree, theta_t: Array, theta_0: Array) -> Array:
        losses: Array = jax.vmap(loss, (None, 0))(theta_t, (state.features, state.labels))
        return -losses

    return Adversary(init, craft, score, canaries=canaries, reads_theta=True)
