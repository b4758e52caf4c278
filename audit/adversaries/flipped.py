"""The loss baseline (L): a training point with its label flipped, its own gradient, its loss as score
(hidden-state paper, Section 5.1, "Baseline adversary")."""

from collections.abc import Callable

import jax
from jax import Array

from audit.adversaries.base import Adversary
from audit.mechanism.base import Tree

Example = tuple[Array, Array]


def flipped_labels(
    loss: Callable[[Array, Example], Array], features: Array, labels: Array, classes: int, canaries: int
) -> Adversary:
    """K canaries of the kind of `flipped_label`, of distinct examples. Their gradients (K, p) are in
    memory: for few canaries or small models."""

    def init(key: Array, theta_0: Array, clipping_norm: Array) -> Example:
        indices = jax.random.choice(jax.random.fold_in(key, 0), len(labels), (canaries,), replace=False)
        shifts = jax.random.randint(jax.random.fold_in(key, 1), (canaries,), 1, classes)
        return features[indices], (labels[indices] + shifts) % classes

    def craft(state: Example, step: Array, theta: Array) -> Array:
        gradients: Array = jax.vmap(jax.grad(loss), (None, 0))(theta, state)
        return gradients

    def score(state: Example, seen: Tree, theta_t: Array, theta_0: Array) -> Array:
        losses: Array = jax.vmap(loss, (None, 0))(theta_t, state)
        return -losses

    return Adversary(init, craft, score, canaries=canaries, reads_theta=True)


def flipped_label(
    loss: Callable[[Array, Example], Array], features: Array, labels: Array, classes: int
) -> Adversary:
    """The canary is a random example (x, y) of the data with a wrong label, drawn uniformly.

    Its gradient at the current model is inserted, as training on it would; the mechanism clips it.
    The score is minus its loss: training on the canary lowers it.
    """

    def init(key: Array, theta_0: Array, clipping_norm: Array) -> Example:
        index = jax.random.randint(jax.random.fold_in(key, 0), (), 0, len(labels))
        shift = jax.random.randint(jax.random.fold_in(key, 1), (), 1, classes)
        return features[index], (labels[index] + shift) % classes

    def craft(state: Example, step: Array, theta: Array) -> Array:
        gradient: Array = jax.grad(loss)(theta, state)
        return gradient[None]

    def score(state: Example, seen: Tree, theta_t: Array, theta_0: Array) -> Array:
        return -loss(theta_t, state)[None]

    return Adversary(init, craft, score, reads_theta=True)
