"""Canaries that every run draws afresh, ranked among further draws from the same generator.

Without canary k, it and M fresh draws are exchangeable given the model, whatever the model and the scores
are. So the rank of canary k among itself and the fresh draws is uniform on 1 to M + 1 where it is out, with
ties broken at random, and its law is known exactly (`audit.methods.exact_null`). An audit needs no world
without canaries, no coins and no access to gradients.

A score here is the number of fresh draws below the canary, from 0 to M; the rank is M + 1 less the score.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from audit.adversaries.base import Adversary
from audit.mechanism.base import Coordinates, Examples, Tree

_BLOCK = 512  # fresh examples that are scored at once: memory does not grow with M
_TINY = 1e-30  # in the place of a gradient's length 0

Loss = Callable[[Array, tuple[Array, Array]], Array]
Rehearse = Callable[[Array], Array]


class Generator(Protocol):
    """(key, number) -> random examples (number, ...) with labels (number, ...)."""

    def __call__(self, key: Array, number: int, /) -> Examples: ...


class RandomGenerator(NamedTuple):
    """A generator of random examples.

    Attributes:
      draw: draws them.
      words: equal for generators that draw the same.
    """

    draw: Generator
    words: str


class ScoreExamples(Protocol):
    """(examples (n, ...), theta_T (p,), the model (p,) that it is compared with) -> scores (n,): higher means
    in."""

    def __call__(self, examples: Examples, theta_t: Array, reference: Array, /) -> Array: ...


class Draws(NamedTuple):
    """What one run draws.

    Attributes:
      examples: the K canaries.
      fresh: the key of the fresh draws.
      ties: the key by which ties are broken.
      reference: the model (p,) that all runs' final models are compared with.
    """

    examples: Examples
    fresh: Array
    ties: Array
    reference: Array


def fresh_examples(
    generate: Generator,
    score_examples: ScoreExamples,
    refer: Rehearse,
    canaries: int,
    fresh: int,
) -> Adversary:
    """Returns the adversary of K random examples, each ranked among M fresh examples.

    Each inserts its clipped gradient at the current model, as training on it would.

    Args:
      generate: draws canaries and fresh examples alike.
      score_examples: of any examples; it may depend on the models, not on which examples are in.
      refer: theta_0 (p,) -> the model (p,) that the final model is compared with.
      canaries: K, all in.
      fresh: M.
    """

    def init(key: Array, theta_0: Array, clipping_norm: Array) -> Draws:
        return _draw(key, refer(theta_0))

    def draw(state: Draws, key: Array) -> Draws:
        return _draw(key, state.reference)

    def _draw(key: Array, reference: Array) -> Draws:
        canary_key, fresh_key, tie_key = jax.random.split(key, 3)
        return Draws(generate(canary_key, canaries), fresh_key, tie_key, reference)

    def craft(state: Draws, step: Array, theta: Array) -> Examples:
        return state.examples

    def score(state: Draws, seen: Tree, theta_t: Array, theta_0: Array) -> Array:
        """Returns each canary's number of fresh draws below it, (K,), scored block by block.

        The last block is drawn whole; what it has beyond M fresh draws is not counted.
        """
        scores = score_examples(state.examples, theta_t, state.reference)
        block = min(_BLOCK, fresh)

        def count_block(counts: _Counts, start: Array) -> tuple[_Counts, None]:
            """Draws the block of fresh examples from number `start` on, and compares it with the canaries.

            Adds how many of the block score below each canary (K,) and how many the same to the counts.
            """
            examples = generate(jax.random.fold_in(state.fresh, start), block)
            fresh_scores = score_examples(examples, theta_t, state.reference)
            is_counted = start + jnp.arange(block) < fresh
            is_below = (fresh_scores < scores[:, None]) & is_counted
            is_tied = (fresh_scores == scores[:, None]) & is_counted
            return _Counts(counts.below + is_below.sum(1), counts.tied + is_tied.sum(1)), None

        zeros = jnp.zeros(canaries, jnp.int32)
        starts = jnp.arange(0, fresh, block)
        counts, _ = jax.lax.scan(count_block, _Counts(zeros, zeros), starts)
        return break_ties(state.ties, counts.below, counts.tied)

    return Adversary(
        init, craft, score, canaries, reads_theta=True, draw=draw, all_in=True, draws=fresh
    )


class _Counts(NamedTuple):
    """How many fresh draws score below each canary (K,), and how many the same."""

    below: Array
    tied: Array


def break_ties(key: Array, below: Array, tied: Array) -> Array:
    """Returns how many fresh draws are below each canary (K,), each tie above or below it at random.

    If t draws score as the canary does, a uniform number of them, 0 to t, are taken to be below it, so that
    the canary's rank among them is uniform.

    Args:
      key: of the draws.
      below: how many fresh draws score below each canary, (K,).
      tied: how many score the same, (K,).
    """
    ties_below = jax.random.randint(key, below.shape, 0, tied + 1)
    return (below + ties_below).astype(jnp.float32)


def loss_drops(loss: Loss) -> ScoreExamples:
    """Returns the black-box score: how far an example's loss is below that on the reference model."""

    def score(examples: Examples, theta_t: Array, reference: Array) -> Array:
        losses = jax.vmap(loss, (None, 0))
        labelled = (examples.features, examples.labels)
        drops: Array = losses(reference, labelled) - losses(theta_t, labelled)
        return drops

    return score


def gradient_products(loss: Loss) -> ScoreExamples:
    """Returns the white-box score: how far the model moved along an example's unit gradients.

    The movement is from the final model to the reference; it is projected on the gradients at both.
    """

    def score(examples: Examples, theta_t: Array, reference: Array) -> Array:
        """Returns the scores (n,) of examples (n, ...), each <g / |g|, movement> at both models added up."""
        movement = reference - theta_t

        def project(theta: Array, labelled: tuple[Array, Array]) -> Array:
            gradient: Array = jax.grad(loss)(theta, labelled)
            return gradient @ movement / jnp.maximum(jnp.linalg.norm(gradient), _TINY)

        def score_example(labelled: tuple[Array, Array]) -> Array:
            return project(reference, labelled) + project(theta_t, labelled)

        products: Array = jax.vmap(score_example)((examples.features, examples.labels))
        return products

    return score


def random_examples(features: Array, labels: Array, classes: int) -> RandomGenerator:
    """Returns the generator of random examples of the shape and scale of data.

    Features are independent: normal with the mean and the deviation of all of the data's, or, where the
    data are whole numbers, uniform from 0 to their largest. So are labels, but classes are uniform.

    Args:
      features: (N, ...) of the data.
      labels: (N, ...) of the data.
      classes: the number of classes; 0 where labels are no classes.
    """
    feature_law = _measure(features)
    label_law = _measure(labels)
    if classes:
        label_law = label_law._replace(largest=classes - 1)

    def generate(key: Array, number: int) -> Examples:
        feature_key, label_key = jax.random.split(key)
        return Examples(
            _draw_alike(feature_key, number, feature_law), _draw_alike(label_key, number, label_law)
        )

    return RandomGenerator(generate, f"{feature_law}, {label_law}")


class _Law(NamedTuple):
    """What arrays are drawn from: normal, or uniform whole numbers from 0 where the type is of those."""

    shape: tuple[int, ...]
    dtype: str
    mean: float = 0.0
    deviation: float = 0.0
    largest: int = 0


def _measure(values: Array) -> _Law:
    """Returns the law of one entry of an array (N, ...), over all its entries."""
    shape = values.shape[1:]
    if jnp.issubdtype(values.dtype, jnp.integer):
        return _Law(shape, str(values.dtype), largest=int(values.max()))
    return _Law(shape, str(values.dtype), float(values.mean()), float(values.std()))


def _draw_alike(key: Array, number: int, law: _Law) -> Array:
    """Draws independent entries of a law, (number, ...): an array of examples of the law's shape."""
    shape = (number, *law.shape)
    if jnp.issubdtype(law.dtype, jnp.integer):
        whole: Array = jax.random.randint(key, shape, 0, law.largest + 1)
        return whole.astype(law.dtype)
    normal: Array = jax.random.normal(key, shape, law.dtype)
    return law.mean + law.deviation * normal


class OwnCoordinates(NamedTuple):
    """A run's K coordinates (K,), their entries C (K,), the key of ties, and the expected model (p,)."""

    dimensions: Array
    values: Array
    ties: Array
    expected: Array


def fresh_coordinates(canaries: int, parameters: int, rehearse: Rehearse) -> Adversary:
    """Returns GC-R whose K distinct coordinates every run draws afresh, each ranked among all p - K others.

    A score is how far below its expected place a coordinate ends (hidden-state paper, Algorithm 2).

    Args:
      canaries: K, all in.
      parameters: p.
      rehearse: theta_0 (p,) -> the final model without noise and canaries.
    """

    def init(key: Array, theta_0: Array, clipping_norm: Array) -> OwnCoordinates:
        values = jnp.full(canaries, clipping_norm, theta_0.dtype)
        first_coordinates = jnp.arange(canaries)  # in their place until `draw` draws others
        undrawn = OwnCoordinates(first_coordinates, values, key, rehearse(theta_0))
        return draw(undrawn, key)

    def draw(state: OwnCoordinates, key: Array) -> OwnCoordinates:
        coordinate_key, tie_key = jax.random.split(key)
        # Read off the state: games of one program share this function.
        number = len(state.dimensions)
        dimensions = jax.random.choice(coordinate_key, parameters, (number,), replace=False)
        return state._replace(dimensions=dimensions, ties=tie_key)

    def craft(state: OwnCoordinates, step: Array, theta: Array) -> Coordinates:
        return Coordinates(state.dimensions, state.values)

    def score(state: OwnCoordinates, seen: Tree, theta_t: Array, theta_0: Array) -> Array:
        """Returns how many of the p - K coordinates without a canary moved less than each canary's, (K,).

        A coordinate's movement is how far below its expected place it ends.
        """
        movement = state.expected - theta_t
        scores = movement[state.dimensions]
        is_fresh = jnp.ones(movement.size, bool).at[state.dimensions].set(False)
        below = ((movement < scores[:, None]) & is_fresh).sum(1)
        tied = ((movement == scores[:, None]) & is_fresh).sum(1)
        return break_ties(state.ties, below, tied)

    return Adversary(
        init,
        craft,
        score,
        canaries,
        crafts_constant=True,
        draw=draw,
        all_in=True,
        draws=parameters - canaries,
        variant="afresh",
    )
