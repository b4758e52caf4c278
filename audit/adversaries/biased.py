"""Gradients of norm C along a single coordinate: the random (GC-R) and simulated (GC-S) biased dimensions.

Both are from the hidden-state paper, Section 4 and Appendix C. An update subtracts the gradient, so the score
of coordinate d is theta_0[d] - final[d] (Errata H3).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from audit.adversaries.base import (
    Adversary,
    AdversaryFields,
    Array,
    Knowledge,
    NullLaw,
    PredictFinal,
    Tree,
    craft_same,
    jax,
    jnp,
    mechanism,
)
from audit.adversaries.ranked import count_below
from audit.errors import require
from audit.settings.fields import described

_NUM_NOISY_SIMULATIONS = 4  # in the noisy variants of GC-S
_MAX_RANKED = 2**24  # up to this size, ranks are exact in float32

GC_S_VARIANTS = (
    "noiseless_per_step",
    "noisy_per_step",
    "noiseless_final_model",
    "noisy_final_model",
)


@dataclass(frozen=True)
class GcS(AdversaryFields):
    """GC-S, the simulated biased dimension (hidden-state paper, Algorithm 3).

    The paper ranks coordinates by the square root of their total movement. We omit the root, which does not
    change the ranking (Errata H4).
    """

    name = "gc_s"
    canary = "a gradient along the coordinate that moves least"
    description = (
        "GC-S: simulates training, picks the coordinate of the model that moves least, and inserts a "
        "gradient of norm C along it. Its score is how far the final model moved along that coordinate."
    )
    biased = True
    gc_s: str = described(
        "Variant of GC-S: {noiseless,noisy}_{per_step,final_model}.",
        default="noiseless_per_step",
        choices=GC_S_VARIANTS,
    )

    def make(self, knowledge: Knowledge) -> Adversary:
        """Returns the adversary that simulates training and uses the coordinates that move least.

        A canary should be easiest to detect there. `gc_s` names the noise and measure of movement, such as
        "noisy_per_step". "noiseless" omits noise and clipping (hidden-state paper, Appendix C).
        """
        noise, _, movement = self.gc_s.partition("_")
        hyper = knowledge.hyper
        simulations = _NUM_NOISY_SIMULATIONS
        if noise == "noiseless":
            hyper = hyper._replace(clipping_norm=jnp.inf, noise_multiplier=0.0)
            simulations = 1  # without noise, all simulations would be the same

        def choose(key: Array, theta_0: Array) -> Array:
            """Returns the K coordinates that move least in simulated training.

            A coordinate's movement is the sum of its squared updates ("per_step") or its final distance from
            theta_0 ("final_model"). Raises InputError if training diverges.
            """
            movements = []
            for index in range(simulations):
                run = knowledge.simulate(hyper, jax.random.fold_in(key, index), theta_0)
                if movement == "per_step":
                    movements.append(run.squared_updates)
                else:
                    movements.append(jnp.abs(run.theta - theta_0))
            total = jnp.sum(jnp.stack(movements), axis=0)  # (p,)
            infinite = int(jnp.sum(~jnp.isfinite(total)))
            require(
                not infinite,
                f"`gc_s`: the simulated training diverges at {infinite} of {total.size} coordinates: "
                "lower `learning_rate`, or choose a noisy `gc_s`, which clips gradients",
            )
            return jnp.argsort(total)[: knowledge.canaries]

        return at_coordinates(choose, knowledge.canaries, knowledge.predict_final)


@dataclass(frozen=True)
class GcR(AdversaryFields):
    """GC-R, the random biased dimension (hidden-state paper, Algorithm 2)."""

    name = "gc_r"
    canary = "along a random coordinate"
    description = (
        "GC-R: draws a coordinate of the model at random and inserts a gradient of norm C along it. Its "
        "score is how far the final model moved along that coordinate. If every run draws its own "
        "coordinate, the score ranks that coordinate's movement among those of all others."
    )
    biased = True
    afresh: bool = described(
        "gc_r: insert along new coordinates in each run, and rank them among all others.",
        default=False,
    )

    @property
    def has_fresh_canaries(self) -> bool:
        """True if every run draws its own coordinates."""
        return self.afresh

    @property
    def usual_runs(self) -> int:
        """The default number of runs."""
        # Bounds from ranks need fewer runs than bounds from coin flips.
        return 60 if self.afresh else super().usual_runs

    def make(self, knowledge: Knowledge) -> Adversary:
        """Returns an adversary with random coordinates, redrawn in every run if `afresh`.

        With `afresh`, raises InputError if canaries use more than half the coordinates, or if too many others
        remain to rank exactly.
        """
        if self.afresh:
            return _at_fresh_coordinates(knowledge)
        choose = partial(_choose_at_random, knowledge.canaries)
        return at_coordinates(choose, knowledge.canaries, knowledge.predict_final)


def _choose_at_random(canaries: int, key: Array, theta_0: Array) -> Array:
    """Draws K distinct coordinates (K,), one per canary, uniformly from those of theta_0 (p,)."""
    if canaries == 1:  # `choice` would draw a different coordinate and change stored scores
        return jax.random.randint(key, (1,), 0, theta_0.size)
    return jax.random.choice(key, theta_0.size, (canaries,), replace=False)


class BiasedDimensions(NamedTuple):
    """The state of the adversary with K coordinates.

    Attributes:
      dimensions: (K,) the distinct coordinates, one per canary.
      canaries: each is C at its coordinate and 0 elsewhere; an array (1, p) if K = 1.
      reference: (K,) the values to compare with the coordinates' final values.
    """

    dimensions: Array
    canaries: Array | mechanism.Coordinates
    reference: Array

    def score(self, seen: Tree, final: Array, theta_0: Array) -> Array:
        """Returns how far each canary's coordinate ended below its reference value, (K,)."""
        return self.reference - final[self.dimensions]


def at_coordinates(
    choose: Callable[[Array, Array], Array], canaries: int, predict_final: PredictFinal
) -> Adversary:
    """Returns the adversary that inserts K canaries C e_d and scores each by reference[d] - final[d].

    Here e_d is the unit vector along coordinate d. A step subtracts the canary, so inserting it increases its
    score. The reference is theta_0 for one canary, as in the paper, and the predicted final model for
    several.

    Args:
      choose: (key, theta_0) -> the distinct coordinates d (K,).
      canaries: K.
      predict_final: see `PredictFinal`; used only for several canaries.
    """

    def init(key: Array, theta_0: Array, clipping_norm: Array) -> BiasedDimensions:
        """Chooses the coordinates, and makes the canaries and the reference values.

        Several canaries need a predicted final model, because training moves some coordinates much further
        than the noise does. Raises InputError if there are more canaries than coordinates.
        """
        most = theta_0.size
        require(
            canaries <= most,
            f"`canaries` must be at most {most}, the number of model coordinates, got {canaries}",
        )
        dimensions = choose(key, theta_0)
        at_start = theta_0[dimensions]
        if canaries == 1:
            # With `Coordinates`, training would round differently and change stored scores.
            gradient = jnp.zeros_like(theta_0).at[dimensions].set(clipping_norm)
            return BiasedDimensions(dimensions, gradient[None], reference=at_start)
        values = jnp.full(canaries, clipping_norm, theta_0.dtype)
        coordinates = mechanism.Coordinates(dimensions, values)
        # `predict_final` trains with these canaries and ignores the placeholder reference.
        state = BiasedDimensions(dimensions, coordinates, reference=at_start)
        final = predict_final(craft_same, state, theta_0)
        return state._replace(reference=final[dimensions])

    return Adversary(init, craft_same, BiasedDimensions.score, canaries=canaries)


def _at_fresh_coordinates(knowledge: Knowledge) -> Adversary:
    """Returns the adversary that draws new coordinates in each run.

    A score ranks a coordinate's movement among those of the coordinates without a canary. Raises InputError
    if there are fewer such coordinates than canaries (a rank among few proves little) or too many to count
    exactly in float32.
    """
    canaries = knowledge.canaries
    parameters = knowledge.model.n_parameters
    require(
        2 * canaries <= parameters,
        f"`canaries` must be at most {parameters // 2}, half the parameters, with `afresh`, "
        f"got {canaries}",
    )
    others = parameters - canaries
    require(
        others <= _MAX_RANKED,
        f"`afresh` ranks among at most {_MAX_RANKED:,} other coordinates, not {others:,}: drop `afresh`",
    )
    train_without_noise = knowledge.rehearsal()

    def init(key: Array, theta_0: Array, clipping_norm: Array) -> FreshCoordinates:
        """Trains the reference model. Every run's `draw` replaces the other fields."""
        values = jnp.full(canaries, clipping_norm, theta_0.dtype)
        coordinates = mechanism.Coordinates(jnp.arange(canaries), values)
        return FreshCoordinates(coordinates, tie_key=key, reference=train_without_noise(theta_0))

    return Adversary(
        init,
        craft_same,
        FreshCoordinates.score,
        canaries,
        crafts_constant=True,
        draw=FreshCoordinates.draw,
        # A held-out canary's rank among these `draws` would be uniform, so runs can insert all canaries.
        null=NullLaw(all_in=True, draws=others),
    )


class FreshCoordinates(NamedTuple):
    """The canaries of a single run, along its own K coordinates.

    Attributes:
      canaries: each is C at its own coordinate and 0 elsewhere.
      tie_key: the key for random tie-breaking.
      reference: (p,) the final model of a training run without noise or canaries.
    """

    canaries: mechanism.Coordinates
    tie_key: Array
    reference: Array

    def draw(self, key: Array) -> FreshCoordinates:
        """Returns the state of a run, with K distinct coordinates drawn from its key."""
        coordinate_key, tie_key = jax.random.split(key)
        shape = self.canaries.indices.shape  # (K,)
        indices = jax.random.choice(coordinate_key, self.reference.size, shape, replace=False)
        canaries = self.canaries._replace(indices=indices)
        return self._replace(canaries=canaries, tie_key=tie_key)

    def score(self, seen: Tree, final: Array, theta_0: Array) -> Array:
        """Returns how many canary-free coordinates decreased less than each canary's coordinate, (K,).

        The decrease of a coordinate is reference - final; a canary makes it larger. Ties are broken at
        random.
        """
        return count_below(self.reference - final, self.canaries.indices, self.tie_key)
