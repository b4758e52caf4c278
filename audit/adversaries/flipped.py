"""The loss baseline (L): a training point with its label flipped, its own gradient, its loss as score
(hidden-state paper, Section 5.1, "Baseline adversary")."""

import jax
from jax import Array

from audit.adversaries.base import Adversary, Expect
from audit.adversaries.examples import Example, Loss, inserted_examples
from audit.mechanism.base import Examples, Tree


def flipped_labels(
    loss: Loss, features: Array, labels: Array, classes: int, canaries: int, expect: Expect
) -> Adversary:
    """K canaries of the kind of `flipped_label`, of distinct examples; see `examples.inserted_examples`."""

    def init(key: Array, theta_0: Array, clipping_norm: Array) -> Examples:
        indices = jax.random.choice(jax.random.fold_in(key, 0), len(labels), (canaries,), replace=False)
        shifts = jax.random.randint(jax.random.fold_in(key, 1), (canaries,), 1, classes)
        return Examples(features[indices], (labels[indices] + shifts) % classes)

    return inserted_examples(loss, init, canaries, expect)


def flipped_label(loss: Loss, features: Array, labels: Array, classes: int) -> Adversary:
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
