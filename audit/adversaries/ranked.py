"""Random canaries, redrawn in every run and ranked among fresh draws (`audit.evidence.ranks`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from audit.adversaries.base import (
    Adversary,
    AdversaryFields,
    Array,
    ComputeReference,
    ExampleLoss,
    Knowledge,
    NullLaw,
    Tree,
    craft_same,
    jax,
    jnp,
    mechanism,
)
from audit.settings.fields import described

_BLOCK = 512  # examples to draw and score at a time
MAX_DRAWS = 10_000_000  # up to this size, counts are exact in float32

# (key, number) -> mechanism.Examples: random features (number, ...) with labels (number, ...).
Generator = Callable[[Array, int], Any]
# (mechanism.Examples (n, ...), the final model (p,), the reference model (p,)) -> scores (n,).
ScoreExamples = Callable[[Any, Array, Array], Array]


@dataclass(frozen=True)
class RandomExamples(AdversaryFields):
    """Random examples, redrawn in every run and ranked among others from the same generator."""

    name = "examples"
    reads_theta = True
    canary = "random examples that every run draws anew"
    description = (
        "Random examples: every run draws new examples with random features and labels, and inserts "
        "their gradients. After the run it draws many more from the same generator. A score ranks an "
        "example among these by how much training lowered its loss."
    )
    # Version 1 scored canaries in a separate batch, which may round differently.
    version = 2
    has_fresh_canaries = True
    usual_runs = 20
    fresh: int = described(
        "examples: number of fresh examples to rank each run's canaries against.",
        default=50_000,
        least=1,
        most=MAX_DRAWS,
        has_flag=False,
    )

    def make(self, knowledge: Knowledge) -> Adversary:
        """Returns an adversary with random examples that match the training data in shape and scale.

        Canaries are ranked among `fresh` other examples by the drop in loss between a reference model,
        trained without noise or canaries, and the final model.
        """
        features, labels = knowledge.data
        label_entries = _fit_entries(labels)
        if knowledge.classes:  # labels are classes, and the data may lack the largest
            label_entries = replace(label_entries, largest=knowledge.classes - 1)
        return fresh_examples(
            generate=RandomExampleGenerator(_fit_entries(features), label_entries),
            score_examples=LossDrops(knowledge.model.loss),
            compute_reference=knowledge.rehearsal(),
            canaries=knowledge.canaries,
            fresh=self.fresh,
        )


class Draws(NamedTuple):
    """The canaries and keys of a single run.

    Attributes:
      canaries: the K examples.
      fresh_key: the key for the M fresh examples and for the canaries' positions among them.
      tie_key: the key for random tie-breaking.
      reference: (p,) the model to compare with the final model.
    """

    canaries: mechanism.Examples
    fresh_key: Array
    tie_key: Array
    reference: Array


def fresh_examples(
    generate: Generator,
    score_examples: ScoreExamples,
    compute_reference: ComputeReference,
    canaries: int,
    fresh: int,
) -> Adversary:
    """Returns the adversary that inserts K random examples and ranks each among M fresh examples.

    A held-out canary's rank would be uniform on 1 to M + 1. A score is M + 1 minus the rank: the number of
    fresh examples that score lower.

    Args:
      generate: (key, number) -> random examples, used as canaries and as fresh examples.
      score_examples: (examples (n, ...), final model, reference model) -> their scores (n,), which may depend
        on the models but not on the inserted examples.
      compute_reference: see `ComputeReference`.
      canaries: K, all inserted.
      fresh: M, the number of fresh examples.
    """

    def init(key: Array, theta_0: Array, clipping_norm: Array) -> Draws:
        """Computes the reference model. Every run's `draw` replaces the other fields."""
        reference = compute_reference(theta_0)
        return Draws(generate(key, canaries), fresh_key=key, tie_key=key, reference=reference)

    return Adversary(
        init,
        craft_same,
        _RankExamples(generate, score_examples, canaries, fresh),
        canaries,
        reads_theta=True,
        draw=_DrawExamples(generate, canaries),
        null=NullLaw(all_in=True, draws=fresh),
    )


@dataclass(frozen=True)
class _DrawExamples:
    """Draws a run's canaries and keys."""

    generate: Generator
    canaries: int

    def __call__(self, state: Draws, key: Array) -> Draws:
        """Returns the state of the run with this key, with the reference model of `state`."""
        canary_key, fresh_key, tie_key = jax.random.split(key, 3)
        canaries = self.generate(canary_key, self.canaries)
        return Draws(canaries, fresh_key, tie_key, state.reference)


@dataclass(frozen=True)
class _RankExamples:
    """Ranks K canaries among M fresh examples."""

    generate: Generator
    score_examples: ScoreExamples
    canaries: int
    fresh: int

    def __call__(self, state: Draws, seen: Tree, final: Array, theta_0: Array) -> Array:
        """Returns how many of M fresh examples score below each of the run's K canaries, (K,).

        Rounding may depend on the position, so we put the canaries at random positions among the fresh
        examples to keep all examples exchangeable. Drawing and scoring in blocks saves memory.
        """
        total = self.canaries + self.fresh
        places = _draw_places(state.fresh_key, self.canaries, total)
        block = min(_BLOCK, total)

        def score_block(start: Array) -> Array:
            """Returns the scores (block,) of the examples at positions start to start + block - 1."""
            drawn = self.generate(jax.random.fold_in(state.fresh_key, start), block)
            is_here = (start <= places) & (places < start + block)
            # Canaries in other blocks get the out-of-range row index `block`, so `set` drops them.
            rows = jnp.where(is_here, places - start, block)

            def insert(drawn_part: Array, canary_part: Array) -> Array:
                """Replaces drawn features, or labels, with those of the canaries."""
                return drawn_part.at[rows].set(canary_part, mode="drop")

            examples = jax.tree.map(insert, drawn, state.canaries)
            return self.score_examples(examples, final, state.reference)

        starts = jnp.arange(0, total, block)
        scores = jax.lax.map(score_block, starts).ravel()
        # The last block may extend beyond the list.
        return count_below(scores[:total], places, state.tie_key)


def _draw_places(fresh_key: Array, canaries: int, total: int) -> Array:
    """Draws distinct positions (K,) for a run's canaries among the `total` scored examples."""
    # `score_block` folds numbers below `total` into the same key.
    place_key = jax.random.fold_in(fresh_key, total)
    return jax.random.choice(place_key, total, (canaries,), replace=False)


def count_below(scores: Array, places: Array, tie_key: Array) -> Array:
    """Returns the number of fresh draws that score below each canary, (K,), with ties broken at random.

    If any score is not finite, the model has diverged, and all counts are NaN.

    Args:
      scores: (K + M,) the scores of canaries and fresh draws.
      places: (K,) the indices of the canaries' scores. All other scores belong to fresh draws.
      tie_key: the key for random tie-breaking.
    """
    canary_scores = scores[places][:, None]  # (K, 1)
    is_fresh = jnp.ones(scores.size, bool).at[places].set(False)
    below = ((scores < canary_scores) & is_fresh).sum(axis=1)
    tied = ((scores == canary_scores) & is_fresh).sum(axis=1)
    # If t draws tie with a canary, the number that we count as below it is uniformly random from 0 to t. The
    # canary's rank among them is then uniform.
    ties_below = jax.random.randint(tie_key, below.shape, 0, tied + 1)
    counts = jnp.float32(below + ties_below)
    return jnp.where(jnp.isfinite(scores).all(), counts, jnp.nan)


@dataclass(frozen=True)
class LossDrops:
    """Scores examples by their loss at the reference model minus their loss at the final model."""

    loss: ExampleLoss

    def __call__(self, examples: mechanism.Examples, final: Array, reference: Array) -> Array:
        """Returns how much training lowered the loss on each of n examples, (n,)."""
        return examples.losses(self.loss, reference) - examples.losses(self.loss, final)


@dataclass(frozen=True)
class RandomEntries:
    """A distribution of arrays with independent entries.

    Integers are uniform from 0 to `largest`, inclusive. Floats are normal with mean `mean` and standard
    deviation `deviation`.
    """

    shape: tuple[int, ...]
    dtype: str
    mean: float = 0.0
    deviation: float = 0.0
    largest: int = 0

    def draw(self, key: Array, number: int) -> Array:
        """Draws `number` independent arrays, (number, *shape)."""
        shape = (number, *self.shape)
        if jnp.issubdtype(self.dtype, jnp.integer):
            # In uint32, `end` does not overflow even if `largest` is the largest int32.
            end = jnp.uint32(self.largest + 1)
            integers = jax.random.randint(key, shape, 0, end, jnp.uint32)
            return integers.astype(self.dtype)
        return self.mean + self.deviation * jax.random.normal(key, shape, self.dtype)


@dataclass(frozen=True)
class RandomExampleGenerator:
    """Generates random examples with independent entries."""

    features: RandomEntries
    labels: RandomEntries

    def __call__(self, key: Array, number: int) -> mechanism.Examples:
        """Draws `number` examples with labels."""
        feature_key, label_key = jax.random.split(key)
        features = self.features.draw(feature_key, number)
        return mechanism.Examples(features, self.labels.draw(label_key, number))


def _fit_entries(values: Array) -> RandomEntries:
    """Returns a distribution of arrays (...), fitted to all entries of the N arrays in `values` (N, ...)."""
    shape = values.shape[1:]
    dtype = str(values.dtype)
    if jnp.issubdtype(values.dtype, jnp.integer):
        # `RandomEntries` does not draw negative integers.
        return RandomEntries(shape, dtype, largest=max(0, int(values.max())))
    return RandomEntries(shape, dtype, float(values.mean()), float(values.std()))
