"""Canaries that are examples: their own gradients are inserted, and their losses give the scores."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from audit.adversaries.base import Adversary, Expect, Init
from audit.mechanism.base import Craft, Examples, Tree

Example = tuple[Array, Array]
Loss = Callable[[Array, Example], Array]


class ScoredExamples(NamedTuple):
    """K canaries, and the losses (K,) with which the final model's are compared."""

    examples: Examples
    expected: Array


def inserted_examples(loss: Loss, init: Init, canaries: int, expect: Expect) -> Adversary:
    """The adversary of K examples, which init gives.

    Each inserts its clipped gradient at the current model, as training on it would. A score is how far the
    final model's loss lies below that of the expected model: training on an example lowers it. `plain`
    expects losses of 0.
    """

    def losses(theta: Array, examples: Examples) -> Array:
        found: Array = jax.vmap(loss, (None, 0))(theta, (examples.features, examples.labels))
        return found

    def begin(key: Array, theta_0: Array, clipping_norm: Array) -> ScoredExamples:
        blank = ScoredExamples(init(key, theta_0, clipping_norm), jnp.zeros(canaries))
        if expect is plain:
            return blank
        return blank._replace(expected=losses(expect(_craft, blank, theta_0), blank.examples))

    def score(state: ScoredExamples, seen: Tree, theta_t: Array, theta_0: Array) -> Array:
        return state.expected - losses(theta_t, state.examples)

    return Adversary(begin, _craft, score, canaries=canaries, reads_theta=True)


def plain(craft: Craft, state: Tree, theta_0: Array) -> Array:
    """No expectation: scores are minus the losses (LiDP paper, Section 6)."""
    return theta_0


def _craft(state: ScoredExamples, step: Array, theta: Array) -> Examples:
    """The canaries, whatever the step."""
    return state.examples
