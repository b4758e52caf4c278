"""Canaries that every run draws afresh, ranked among further draws from the same generator.

Without canary k, it and M fresh draws are exchangeable given the model, for any model and any scores. So if
canary k is out, its rank among itself and the fresh draws is uniform on 1 to M + 1, with ties broken at
random (`audit.methods.exact_null`). An audit does not need a world without canaries, coins, or access to
gradients. A score is the number of fresh draws below the canary; the rank is M + 1 minus the score.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from audit.adversaries.base import (
    Adversary,
    AdversaryFields,
    Knowledge,
    NullLaw,
    Rehearse,
    jax,
    jnp,
    mechanism,
)
from audit.settings.fields import described

if TYPE_CHECKING:
    from jax import Array

    from audit.mechanism.base import Examples, Tree

# The number of examples that are drawn and scored at once.
_BLOCK = 512
MAX_DRAWS = 10_000_000  # float32 counts them exactly

Loss = Callable[["Array", "tuple[Array, Array]"], "Array"]
# (key, number) -> random examples (number, ...) with labels (number, ...).
Generator = Callable[["Array", int], "Examples"]
# (examples (n, ...), theta_T (p,), the reference model (p,)) -> scores (n,): higher means in.
ScoreExamples = Callable[["Examples", "Array", "Array"], "Array"]


@dataclasses.dataclass(frozen=True)
class RandomExamples(AdversaryFields):
    """Random examples that every run draws afresh, each ranked among more examples of the same generator."""

    name: ClassVar[str] = "examples"
    canary: ClassVar[str] = "random examples that every run draws anew"
    description: ClassVar[str] = (
        "Random examples: every run draws new examples with random features and labels, and inserts "
        "their gradients. After the run it draws many more from the same generator. A score is an example's "
        "rank among these, by how far training lowered its loss."
    )
    # Version 1 scored canaries in a separate batch, which may round differently.
    version: ClassVar[int] = 2
    fresh: int = described(
        "examples: number of fresh examples that rank a run's canaries.",
        default=50_000,
        least=1,
        most=MAX_DRAWS,
        has_flag=False,
    )

    @property
    def any_time(self) -> bool:
        return True

    @property
    def usual_runs(self) -> int:
        return 20

    def make(self, knowledge: Knowledge) -> Adversary:
        features, labels = knowledge.data[:2]
        label_law = _fit_law(labels)
        if knowledge.classes:  # also those that the data do not have
            label_law = dataclasses.replace(label_law, largest=knowledge.classes - 1)
        return fresh_examples(
            RandomExampleGenerator(_fit_law(features), label_law),
            LossDrops(knowledge.model.loss),
            knowledge.rehearsal(),
            knowledge.canaries,
            self.fresh,
        )


class Draws(NamedTuple):
    """The canaries and keys of a single run.

    Attributes:
      examples: the K canaries.
      fresh: the key of the M fresh examples, and of the canaries' places among them.
      ties: the key that breaks ties.
      reference: the model (p,) to compare all runs' final models with.
    """

    examples: Examples
    fresh: Array
    ties: Array
    reference: Array

    def craft(self, step: Array, theta: Array) -> Examples:
        return self.examples


def fresh_examples(
    generate: Generator,
    score_examples: ScoreExamples,
    refer: Rehearse,
    canaries: int,
    fresh: int,
) -> Adversary:
    """Returns the adversary of K random examples, each ranked among M fresh examples.

    An example's clipped gradient at the current model is inserted, as in training.

    Args:
      generate: (key, number) -> random examples, both canaries and fresh ones.
      score_examples: the score of any examples. It may depend on the models, but not on the inserted
        examples.
      refer: theta_0 (p,) -> the model (p,) to compare the final model with.
      canaries: K, the number of canaries of a run, all in.
      fresh: M, the number of fresh examples.
    """

    draw = _DrawExamples(generate, canaries)

    def init(key: Array, theta_0: Array, clipping_norm: Array) -> Draws:
        placeholder = mechanism.Examples(key, key)
        return draw(Draws(placeholder, key, key, refer(theta_0)), key)

    return Adversary(
        init,
        Draws.craft,
        _RankExamples(generate, score_examples, canaries, fresh),
        canaries,
        reads_theta=True,
        draw=draw,
        null=NullLaw(all_in=True, draws=fresh),
    )


@dataclasses.dataclass(frozen=True)
class _DrawExamples:
    """Draws a run's canaries, and the keys of its fresh examples and its ties, from the run's key."""

    generate: Generator
    canaries: int

    def __call__(self, state: Draws, key: Array) -> Draws:
        canary_key, fresh_key, tie_key = jax.random.split(key, 3)
        canaries = self.generate(canary_key, self.canaries)
        return Draws(canaries, fresh_key, tie_key, state.reference)


@dataclasses.dataclass(frozen=True)
class _RankExamples:
    """Counts for each of K canaries how many of M fresh examples score below it."""

    generate: Generator
    score_examples: ScoreExamples
    canaries: int
    fresh: int

    def __call__(self, state: Draws, seen: Tree, theta_t: Array, theta_0: Array) -> Array:
        """Returns the counts (K,). Canaries are at random places among the fresh examples."""
        total = self.canaries + self.fresh
        places = _draw_places(state.fresh, self.canaries, total)
        block = min(_BLOCK, total)

        def score_block(start: Array) -> Array:
            """Returns the scores of the block of examples that begins with place `start`."""
            drawn = self.generate(jax.random.fold_in(state.fresh, start), block)
            # `set` drops places past the block's end.
            is_here = (start <= places) & (places < start + block)
            rows = jnp.where(is_here, places - start, block)

            def insert(drawn_part: Array, canary_part: Array) -> Array:
                return drawn_part.at[rows].set(canary_part, mode="drop")

            examples: Examples = jax.tree.map(insert, drawn, state.examples)
            return self.score_examples(examples, theta_t, state.reference)

        starts = jnp.arange(0, total, block)
        scores = jax.lax.map(score_block, starts).ravel()
        return count_below(scores[:total], places, state.ties)


def _draw_places(fresh_key: Array, canaries: int, total: int) -> Array:
    """Draws the distinct places (K,) of a run's canaries among all `total` scored examples.

    A compiled program may round a score by its example's place in a block. At random places, canaries and
    fresh examples are exchangeable despite rounding.
    """
    # Fresh examples fold in the first place of a block, which is less than `total`.
    place_key = jax.random.fold_in(fresh_key, total)
    return jax.random.choice(place_key, total, (canaries,), replace=False)


def count_below(scores: Array, places: Array, ties: Array) -> Array:
    """Returns the number of fresh draws that score below each canary, (K,), with ties broken at random.

    It is NaN for all canaries if any score is not finite, as for a diverged model.

    Args:
      scores: (K + M,) the scores of canaries and fresh draws.
      places: (K,) the places of the canaries. All others are fresh draws.
      ties: the key that breaks ties.
    """
    canary_scores = scores[places]
    is_fresh = jnp.ones(scores.size, bool).at[places].set(False)
    below = ((scores < canary_scores[:, None]) & is_fresh).sum(1)
    tied = ((scores == canary_scores[:, None]) & is_fresh).sum(1)
    # Of t draws that tie with a canary, a uniform number, 0 to t, counts as below it. This makes the
    # canary's rank among them uniform.
    ties_below = jax.random.randint(ties, below.shape, 0, tied + 1)
    counts = (below + ties_below).astype(jnp.float32)
    return jnp.where(jnp.isfinite(scores).all(), counts, jnp.nan)


@dataclasses.dataclass(frozen=True)
class LossDrops:
    """The black-box score: the drop of an example's loss from the reference model to the final model."""

    loss: Loss

    def __call__(self, examples: Examples, theta_t: Array, reference: Array) -> Array:
        losses = jax.vmap(self.loss, (None, 0))
        labelled = (examples.features, examples.labels)
        drops: Array = losses(reference, labelled) - losses(theta_t, labelled)
        return drops


@dataclasses.dataclass(frozen=True)
class EntryLaw:
    """The law of the independent entries of an array of a single example.

    Whole numbers are uniform from 0 to `largest`. Others are normal with `mean` and `deviation`.
    """

    shape: tuple[int, ...]
    dtype: str
    mean: float = 0.0
    deviation: float = 0.0
    largest: int = 0

    def draw(self, key: Array, number: int) -> Array:
        """Draws `number` arrays with independent entries, (number, *shape)."""
        shape = (number, *self.shape)
        if jnp.issubdtype(self.dtype, jnp.integer):
            # uint32 has the number after the largest int32.
            end = jnp.uint32(self.largest + 1)
            integers: Array = jax.random.randint(key, shape, 0, end, jnp.uint32)
            return integers.astype(self.dtype)
        normal: Array = jax.random.normal(key, shape, self.dtype)
        return self.mean + self.deviation * normal


@dataclasses.dataclass(frozen=True)
class RandomExampleGenerator:
    """Generates random examples of the shape and scale of data, with independent entries."""

    features: EntryLaw
    labels: EntryLaw

    def __call__(self, key: Array, number: int) -> Examples:
        feature_key, label_key = jax.random.split(key)
        features = self.features.draw(feature_key, number)
        return mechanism.Examples(features, self.labels.draw(label_key, number))


def _fit_law(values: Array) -> EntryLaw:
    """Returns the law of a single entry, fitted to all entries of an array (N, ...)."""
    shape = values.shape[1:]
    if jnp.issubdtype(values.dtype, jnp.integer):
        return EntryLaw(shape, str(values.dtype), largest=max(0, int(values.max())))
    return EntryLaw(shape, str(values.dtype), float(values.mean()), float(values.std()))
