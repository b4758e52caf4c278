"""Canaries that are examples: steps insert their clipped gradients, and scores are based on their losses.

- The loss baseline (L, hidden-state paper, Section 5.1, "Baseline adversary") flips a training point's label.
- Data poisoning (LiDP paper, Section 6 and Appendix F) uses examples along low-variance directions.
  ClipBKD (Jagielski et al., 2020) uses a single example.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.adversaries.base import (
    Adversary,
    AdversaryFields,
    Array,
    ExampleLoss,
    Init,
    Knowledge,
    PredictFinal,
    Tree,
    craft_same,
    jax,
    jnp,
    mechanism,
)
from audit.errors import require
from audit.settings.fields import described

_BLOCK = 4096  # examples to convert to float64 at a time, to save memory
_POISON_LABEL = 5  # as in the LiDP paper's code (Errata L10)


@dataclass(frozen=True)
class Loss(AdversaryFields):
    """L, the loss baseline (hidden-state paper, Section 5.1)."""

    name = "loss"
    reads_theta = True
    canary = "an example with a wrong label"
    description = (
        "L: inserts the gradient of a training example with a wrong label. Its score is the final "
        "model's negated loss on that example."
    )

    def make(self, knowledge: Knowledge) -> Adversary:
        """Returns the adversary; raises InputError for regression, or with more canaries than examples."""
        features, labels = knowledge.data
        classes = knowledge.count_classes()
        loss = knowledge.model.loss
        canaries = knowledge.canaries
        require(
            canaries <= len(labels),
            f"`canaries` must be at most {len(labels)}, the number of examples, got {canaries}",
        )

        def init(key: Array, theta_0: Array, clipping_norm: Array) -> mechanism.Examples:
            """Draws K training examples with random wrong labels; without a leading axis if K = 1."""
            index_key = jax.random.fold_in(key, 0)
            shift_key = jax.random.fold_in(key, 1)
            if canaries == 1:
                indices = jax.random.randint(index_key, (), 0, len(labels))
            else:
                indices = jax.random.choice(index_key, len(labels), (canaries,), replace=False)
            # Shifting a label by 1 to classes - 1 (modulo classes) always makes it wrong.
            shifts = jax.random.randint(shift_key, indices.shape, 1, classes)
            return mechanism.Examples(features[indices], (labels[indices] + shifts) % classes)

        if canaries == 1:
            # `inserted_examples` would round differently and change stored scores.
            return Adversary(init, _CraftGradient(loss), _MinusLoss(loss), reads_theta=True)
        return inserted_examples(loss, init, canaries)


@dataclass(frozen=True)
class Poisoned(AdversaryFields):
    """Data poisoning: examples along low-variance directions, as in ClipBKD.

    Canaries use principal directions drawn at random from `first_direction` to `end_direction` - 1. Direction
    0 has the largest variance. The defaults fit 784 pixels.
    """

    name = "poisoned"
    reads_theta = True
    canary = "examples along low-variance directions"
    description = (
        "Poisoned data: inserts gradients of same-label examples that lie along low-variance directions of "
        "the data. A score is the final model's negated loss on such an example."
    )
    as_printed: bool = described(
        "Follow the LiDP paper's text instead of its code.", default=False, has_flag=False
    )
    first_direction: int = described(
        "Index of the first principal direction for canaries.", default=600, least=0, has_flag=False
    )
    end_direction: int = described(
        "Index of the last principal direction for canaries, plus one.",
        default=784,
        least=1,
        has_flag=False,
    )

    def make(self, knowledge: Knowledge) -> Adversary:
        """Returns an adversary whose examples lie along random principal directions of the data.

        With `as_printed`, examples and scores follow the LiDP paper's text instead of its code (Errata L10).
        Raises InputError if the data or the labels are unsuitable.
        """
        most = knowledge.count_inputs()
        require(
            self.first_direction < self.end_direction <= most,
            f"`first_direction` must be less than `end_direction`, and both at most {most}, the number of "
            f"directions of the data, got {self.first_direction} and {self.end_direction}",
        )
        canaries = knowledge.canaries
        label = min(_POISON_LABEL, knowledge.count_classes() - 1)  # the data may have fewer classes
        labels = jnp.full(canaries, label, jnp.int32)
        # In the text, a score is relative to the loss under the predicted final model.
        predict_final = knowledge.predict_final if self.as_printed else None

        def init(key: Array, theta_0: Array, clipping_norm: Array) -> mechanism.Examples:
            """Makes K independent examples along random directions in the chosen range."""
            mean, directions = find_principal(knowledge)  # largest variance first
            drawn = jax.random.randint(key, (canaries,), self.first_direction, self.end_direction)
            chosen = directions[np.asarray(drawn)]
            # The text scales directions by 10; the code adds them to the mean.
            features = 10 * chosen if self.as_printed else mean + chosen
            return mechanism.Examples(jnp.asarray(features, jnp.float32), labels)

        return inserted_examples(knowledge.model.loss, init, canaries, predict_final)


@dataclass(frozen=True)
class ClipBkd(AdversaryFields):
    """ClipBKD: a single poisoned example.

    The example has the label with the highest loss under one model trained without it. The LiDP paper
    averages the losses of 100 models.
    """

    name = "clip_bkd"
    reads_theta = True
    canary = "an example along the direction of smallest variance"
    description = (
        "ClipBKD: inserts the gradient of an example that lies along the data's direction of smallest "
        "variance and has the label that a model trained without it finds least likely. Its score is the "
        "final model's negated loss on that example."
    )

    def make(self, knowledge: Knowledge) -> Adversary:
        """Returns the ClipBKD adversary (Jagielski et al., 2020), which inserts one poisoned example.

        The example differs from the data's mean in the direction of smallest variance, because other examples
        hardly move the model along that direction. Raises InputError for multiple canaries, or if the data or
        labels are unsuitable.
        """
        require(
            knowledge.canaries == 1,
            f"`canaries={knowledge.canaries}`: ClipBKD has one canary; choose `adversary=poisoned`",
        )
        knowledge.count_inputs()  # raises InputError if inputs are integers
        classes = knowledge.count_classes()
        loss = knowledge.model.loss
        train_without_canary = knowledge.rehearsal()

        def init(key: Array, theta_0: Array, clipping_norm: Array) -> mechanism.Examples:
            """Makes ClipBKD's example and chooses its label."""
            mean, directions = find_principal(knowledge)
            theta = train_without_canary(theta_0)
            # The last direction has the smallest variance. The paper does not specify a scale for the
            # direction, so we use 1.
            features = jnp.asarray(mean + directions[-1], jnp.float32)

            losses = jax.vmap(lambda label: loss(theta, (features, label)))(jnp.arange(classes))
            label = jnp.argmax(losses)[None].astype(jnp.int32)
            return mechanism.Examples(features[None], label)

        return inserted_examples(loss, init, canaries=1)


class ScoredExamples(NamedTuple):
    """K examples as canaries, and their losses (K,) under the predicted final model."""

    canaries: mechanism.Examples
    predicted_losses: Array


@dataclass(frozen=True)
class _LossDrops:
    """Scores examples by how much their losses drop."""

    loss: ExampleLoss

    def __call__(self, state: ScoredExamples, seen: Tree, final: Array, theta_0: Array) -> Array:
        """Returns the losses (K,) under the predicted final model minus those under the final model."""
        return state.predicted_losses - state.canaries.losses(self.loss, final)


def inserted_examples(
    loss: ExampleLoss, init: Init, canaries: int, predict_final: PredictFinal | None = None
) -> Adversary:
    """Returns the adversary that inserts K examples and scores each by predicted loss - final loss.

    Args:
      init: (key, theta_0, C) -> the examples.
      canaries: K.
      predict_final: see `PredictFinal`. If it is None, scores are the negated final losses (LiDP paper,
        Section 6).
    """

    def init_with_losses(key: Array, theta_0: Array, clipping_norm: Array) -> ScoredExamples:
        """Makes the examples, and computes their losses under the predicted final model (0 without one)."""
        examples = init(key, theta_0, clipping_norm)
        state = ScoredExamples(examples, predicted_losses=jnp.zeros(canaries))
        if predict_final is None:
            return state
        # `predict_final` trains with the examples in `state` and ignores the placeholder losses.
        final = predict_final(craft_same, state, theta_0)
        return state._replace(predicted_losses=examples.losses(loss, final))

    return Adversary(init_with_losses, craft_same, _LossDrops(loss), canaries, reads_theta=True)


@dataclass(frozen=True)
class _CraftGradient:
    """Crafts the gradient of a single example."""

    loss: ExampleLoss

    def __call__(self, state: mechanism.Examples, step: Array, theta: Array) -> Array:
        """Returns the gradient (1, p) at theta for the example in `state`; the mechanism clips it."""
        return jax.grad(self.loss)(theta, state)[None]


@dataclass(frozen=True)
class _MinusLoss:
    """Scores a single example."""

    loss: ExampleLoss

    def __call__(
        self, state: mechanism.Examples, seen: Tree, final: Array, theta_0: Array
    ) -> Array:
        """Returns the negated loss (1,) of the example in `state` under the final model."""
        return -self.loss(final, state)[None]


class Principal(NamedTuple):
    """The float64 mean and principal directions of examples of shape (...), with d entries each.

    Attributes:
      mean: the mean of the examples, (...).
      directions: (d, ...) the right singular vectors of the centred data, largest singular value first.
    """

    mean: NDArray[np.float64]
    directions: NDArray[np.float64]


def principal(examples: NDArray[np.float32]) -> Principal:
    """Returns the mean and the principal directions of N examples (N, ...), computed in float64.

    Directions of zero variance come last, as an arbitrary basis of their span.
    """
    shape = examples.shape[1:]
    rows = examples.reshape(len(examples), -1)
    blocks = [rows[start : start + _BLOCK] for start in range(0, len(rows), _BLOCK)]

    block_sums = [block.sum(0, np.float64) for block in blocks]
    mean = np.sum(block_sums, axis=0) / len(rows)
    scatter = np.zeros((len(mean), len(mean)))
    for block in blocks:
        centred = block - mean
        scatter += centred.T @ centred

    # `eigh` returns eigenvectors as columns, largest eigenvalue last.
    _, eigenvectors = np.linalg.eigh(scatter)
    directions = eigenvectors.T[::-1]
    # The sign of an eigenvector is arbitrary, so we make its largest entry positive.
    largest = np.abs(directions).argmax(axis=1, keepdims=True)  # its index in each row
    signs = np.sign(np.take_along_axis(directions, largest, axis=1))
    return Principal(mean.reshape(shape), (directions * signs).reshape(-1, *shape))


def find_principal(knowledge: Knowledge) -> Principal:
    """Returns the principal directions of the training data as they enter the model's first layer."""
    inputs = jax.vmap(knowledge.model.inputs)(knowledge.data[0])
    return principal(np.asarray(inputs))
