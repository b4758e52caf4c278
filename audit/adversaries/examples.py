"""Canaries that are examples: their own gradients are inserted, and their losses give the scores.

The loss baseline (L, hidden-state paper, Section 5.1, "Baseline adversary") flips a training point's label.
Data poisoning (LiDP paper, Section 6 and Appendix F) takes examples along directions in which the data hardly
vary, so that nothing else in training moves the model there. The directions are right singular vectors of the
centred data with the smallest singular values; an example is scale * direction + mean, or scale * direction
alone, as the LiDP paper's text has it (Errata L10). ClipBKD (Jagielski et al., 2020) has a single
canary, along the last direction; lifted to many canaries, it draws directions.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from audit.adversaries.base import Adversary, Expect, Init
from audit.mechanism.base import Craft, Examples, Tree

Example = tuple[Array, Array]
Loss = Callable[[Array, Example], Array]
_BLOCK = 4096  # the number of examples that are turned into float64 at once


class ScoredExamples(NamedTuple):
    """K canaries, and the losses (K,) from which their losses on the final model are subtracted."""

    examples: Examples
    expected: Array


@dataclasses.dataclass(frozen=True)
class _ScoreByLosses:
    """The score of several examples: by how much their losses are below what is expected."""

    loss: Loss

    def __call__(self, state: ScoredExamples, seen: Tree, theta_t: Array, theta_0: Array) -> Array:
        return state.expected - self.losses(theta_t, state.examples)

    def losses(self, theta: Array, examples: Examples) -> Array:
        """Returns the loss of each example, (K,)."""
        values: Array = jax.vmap(self.loss, (None, 0))(theta, (examples.features, examples.labels))
        return values


def inserted_examples(loss: Loss, init: Init, canaries: int, expect: Expect) -> Adversary:
    """Returns the adversary of K examples, each scored by its loss.

    An example's clipped gradient at the current model is inserted, as if training took the example. A score
    is the example's loss on the expected model minus its loss on the final model, which training on the
    example lowers.

    Args:
      loss: (theta, (features, label)) -> the loss of a single example.
      init: (key, theta_0, C) -> the examples.
      canaries: K.
      expect: (craft, state, theta_0) -> the final model that is expected without noise. With `plain`, no
        model is expected, and scores are minus the final losses.
    """

    score = _ScoreByLosses(loss)

    def begin(key: Array, theta_0: Array, clipping_norm: Array) -> ScoredExamples:
        """Makes the examples, and computes their losses on the expected final model.

        If `expect` is `plain`, no model is expected: the losses are 0, so that scores are minus the final
        losses.
        """
        # `_craft` does not read the losses, so that this state is enough to train with.
        blank = ScoredExamples(init(key, theta_0, clipping_norm), jnp.zeros(canaries))
        if expect is plain:
            return blank
        expected_theta = expect(_craft, blank, theta_0)
        return blank._replace(expected=score.losses(expected_theta, blank.examples))

    return Adversary(begin, _craft, score, canaries=canaries, reads_theta=True)


def plain(craft: Craft, state: Tree, theta_0: Array) -> Array:
    """Stands in the place of an `Expect` to say that no model is expected; it is never called.

    `inserted_examples` recognises the function, and takes scores that are minus the final losses (LiDP paper,
    Section 6). Only to have the type of an `Expect`, it returns theta_0.
    """
    return theta_0


def _craft(state: ScoredExamples, step: Array, theta: Array) -> Examples:
    """Returns the examples, the same at every step: the mechanism takes their gradients at theta."""
    return state.examples


def flipped_labels(
    loss: Loss,
    features: Array,
    labels: Array,
    classes: int,
    canaries: int,
    expect: Expect,
) -> Adversary:
    """Returns the adversary of K distinct examples, each with a uniformly drawn wrong label.

    Args:
      loss: (theta, (features, label)) -> the loss of a single example.
      features: (N, ...) the training examples' features.
      labels: (N,) their labels, from 0 to classes - 1.
      classes: the number of classes.
      canaries: K.
      expect: (craft, state, theta_0) -> the expected final model. A score compares an example's loss on it
        with the loss on the real final model. `plain`: no model is expected.
    """

    def init(key: Array, theta_0: Array, clipping_norm: Array) -> Examples:
        """Draws examples, and adds 1 to classes - 1 to each label, modulo classes: never the true label."""
        indices = jax.random.choice(
            jax.random.fold_in(key, 0), len(labels), (canaries,), replace=False
        )
        shifts = jax.random.randint(jax.random.fold_in(key, 1), (canaries,), 1, classes)
        return Examples(features[indices], (labels[indices] + shifts) % classes)

    return inserted_examples(loss, init, canaries, expect)


def flipped_label(loss: Loss, features: Array, labels: Array, classes: int) -> Adversary:
    """Returns the adversary of a single random training example with a uniformly drawn wrong label.

    Its gradient at the current model is inserted and clipped as in training. The score is minus its loss on
    the final model, which training on it lowers.

    Args:
      loss: (theta, (features, label)) -> the loss of a single example.
      features: (N, ...) the training examples' features.
      labels: (N,) their labels, from 0 to classes - 1.
      classes: the number of classes.
    """

    def init(key: Array, theta_0: Array, clipping_norm: Array) -> Example:
        """Draws an example, and adds 1 to classes - 1 to its label, modulo classes: never the true label."""
        index = jax.random.randint(jax.random.fold_in(key, 0), (), 0, len(labels))
        shift = jax.random.randint(jax.random.fold_in(key, 1), (), 1, classes)
        return features[index], (labels[index] + shift) % classes

    return Adversary(init, _CraftGradient(loss), _ScoreByLoss(loss), reads_theta=True)


@dataclasses.dataclass(frozen=True)
class _CraftGradient:
    """The gradient (1, p) of a single example at theta, which the mechanism clips."""

    loss: Loss

    def __call__(self, state: Example, step: Array, theta: Array) -> Array:
        gradient: Array = jax.grad(self.loss)(theta, state)
        return gradient[None]


@dataclasses.dataclass(frozen=True)
class _ScoreByLoss:
    """The score of a single example: minus its loss on the final model."""

    loss: Loss

    def __call__(self, state: Example, seen: Tree, theta_t: Array, theta_0: Array) -> Array:
        return -self.loss(theta_t, state)[None]


class Principal(NamedTuple):
    """The principal directions of data, float64.

    Attributes:
      mean: the mean of the examples, (...).
      directions: the right singular vectors of the centred data (d, ...), that of the largest singular value
        first. Signs are such that each vector's entry of the largest size is positive.
    """

    mean: NDArray[np.float64]
    directions: NDArray[np.float64]


class Tail(NamedTuple):
    """A range of principal directions, along which poisoned examples are made.

    Attributes:
      first: the index of the first direction, counted from 0 by falling singular value.
      last: the index after that of the last direction.
      scale: the distance of a canary from the data's mean, or from 0 where the mean is left out.
      label: the label of every canary.
      mean: whether the mean is added to a canary.
    """

    first: int
    last: int
    scale: float
    label: int
    mean: bool = True


def principal(examples: NDArray[np.float32]) -> Principal:
    """Returns the mean and the principal directions of examples (N, ...), computed in float64.

    The directions are the eigenvectors of the scatter matrix sum_i (x_i - mean)(x_i - mean)', those of the
    largest variance first. Directions in which the data do not vary come last, and are an arbitrary basis.
    """
    shape = examples.shape[1:]
    rows = examples.reshape(len(examples), -1)
    # Only a block of rows at a time is in memory as float64.
    blocks = [rows[start : start + _BLOCK] for start in range(0, len(rows), _BLOCK)]

    block_sums = [block.sum(0, np.float64) for block in blocks]
    mean = np.sum(block_sums, axis=0) / len(rows)
    scatter = np.zeros((len(mean), len(mean)))
    for block in blocks:
        centred = block - mean
        scatter += centred.T @ centred

    # eigh returns eigenvectors as columns, that of the largest eigenvalue last.
    directions = np.linalg.eigh(scatter)[1].T[::-1]
    # The sign of an eigenvector is arbitrary: the entry of the largest size is made positive.
    largest_entry = np.abs(directions).argmax(1)[:, None]
    signs = np.sign(np.take_along_axis(directions, largest_entry, 1))
    return Principal(mean.reshape(shape), (directions * signs).reshape(-1, *shape))


def poisoned_examples(
    loss: Loss, data: Callable[[], Principal], tail: Tail, canaries: int, expect: Expect
) -> Adversary:
    """Returns ClipBKD with K canaries: examples of one label along principal directions of the data.

    Each canary's direction is drawn uniformly, with replacement, from a range of directions.

    Args:
      loss: (theta, (features, label)) -> the loss of a single example.
      data: () -> the principal directions of the data.
      tail: the range of directions, and how canaries are made of them.
      canaries: K.
      expect: (craft, state, theta_0) -> the expected final model. A score compares an example's loss on it
        with the loss on the real final model. `plain`: no model is expected.
    """

    def init(key: Array, theta_0: Array, clipping_norm: Array) -> Examples:
        """Makes K examples: scale * a drawn direction, plus the data's mean if `tail.mean` is True."""
        mean, directions = data()
        # Directions tail.first to tail.last - 1.
        drawn = np.asarray(jax.random.randint(key, (canaries,), tail.first, tail.last))
        features = tail.mean * mean + tail.scale * directions[drawn]  # tail.mean is True or False
        labels = jnp.full(canaries, tail.label, jnp.int32)
        return Examples(jnp.asarray(features, jnp.float32), labels)

    return inserted_examples(loss, init, canaries, expect)


def least_direction(
    loss: Loss,
    data: Callable[[], Principal],
    train: Callable[[Array, Array], Array],
    classes: int,
) -> Adversary:
    """Returns ClipBKD: a single example, the mean plus the direction of the smallest singular value.

    The singular vectors are those of the centred data. The example's label is that with the highest loss on a
    model trained without the canary. The LiDP paper averages the losses of 100 such models; here a single
    model is trained.

    Args:
      loss: (theta, (features, label)) -> the loss of a single example.
      data: () -> the principal directions of the data.
      train: (key, theta_0) -> the model (p,) trained without the canary.
      classes: how many labels there are, from 0.
    """

    def init(key: Array, theta_0: Array, clipping_norm: Array) -> Examples:
        """Makes the example, whose label is that with the highest loss on a model trained without it."""
        mean, directions = data()
        theta = train(key, theta_0)
        least = directions[-1]  # that of the smallest singular value
        features = jnp.asarray(mean + least, jnp.float32)

        def loss_of_label(label: Array) -> Array:
            return loss(theta, (features, label))

        losses = jax.vmap(loss_of_label)(jnp.arange(classes))
        # [None] gives label and features the axis of canaries, of length 1.
        label = jnp.argmax(losses)[None].astype(jnp.int32)
        return Examples(features[None], label)

    return inserted_examples(loss, init, 1, plain)
