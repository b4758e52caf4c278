"""Gradients of norm C along a single coordinate: random (GC-R) and simulated (GC-S) biased dimension.

Hidden-state paper, Section 4 and Appendix C, Algorithms 2 to 4. The update subtracts the gradient, so the
score is theta_0[d] - theta_T[d] (Errata H3).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from audit.adversaries.base import (
    Adversary,
    AdversaryFields,
    Expect,
    Knowledge,
    NullLaw,
    jax,
    jnp,
    mechanism,
)
from audit.adversaries.ranked import count_below
from audit.errors import require
from audit.settings.fields import described

if TYPE_CHECKING:
    from jax import Array

    from audit.mechanism.base import Coordinates, Tree

# (key, theta_0) -> the distinct coordinates of K canaries, (K,).
Choose = Callable[["Array", "Array"], "Array"]

_NUM_NOISY_SIMULATIONS = 4  # in the noisy variants of GC-S
_MAX_RANKED = 2**24  # float32 counts ranks exactly up to here


# Simulations with the run's noise and clipping or with neither, by each step's movement or the final model.
GC_S_VARIANTS = (
    "noiseless_per_step",
    "noisy_per_step",
    "noiseless_final_model",
    "noisy_final_model",
)


def _check_number(knowledge: Knowledge) -> None:
    """Raises InputError if there are more canaries than coordinates."""
    most = knowledge.model.n_parameters
    message = f"`canaries` must be at most {most}, the number of the model's coordinates"
    require(knowledge.canaries <= most, f"{message}, got {knowledge.canaries}")


@dataclasses.dataclass(frozen=True)
class GcS(AdversaryFields):
    """GC-S, the simulated biased dimension (hidden-state paper, Algorithm 3).

    It sums a coordinate's movements in several simulated training runs. In a variant "per_step", a movement
    is the sum of squared updates. The paper takes the root of the sum over all runs (Errata H4), which ranks
    coordinates in the same order. In the others, it is the distance of the final model from theta_0.
    """

    name: ClassVar[str] = "gc_s"
    canary: ClassVar[str] = "a gradient along the coordinate that moves least"
    description: ClassVar[str] = (
        "GC-S: simulates training, picks the coordinate of the model that moves least, and inserts a "
        "gradient of norm C along it. Its score is how far the final model moved along that coordinate."
    )
    biased: ClassVar[bool] = True
    gc_s: str = described(
        "GC-S: {noiseless,noisy}_{per_step,final_model}.",
        default="noiseless_per_step",
        choices=GC_S_VARIANTS,
    )

    def make(self, knowledge: Knowledge) -> Adversary:
        _check_number(knowledge)
        hyper = knowledge.hyper
        simulations = _NUM_NOISY_SIMULATIONS
        if self.gc_s.startswith("noiseless"):
            hyper = hyper._replace(clipping_norm=jnp.inf, noise_multiplier=0.0)
            simulations = 1  # all are the same
        per_step = self.gc_s.endswith("per_step")

        def choose(key: Array, theta_0: Array) -> Array:
            """Returns the K coordinates that move least; raises InputError if a simulated run diverges."""
            movements = []
            for index in range(simulations):
                run = knowledge.simulate(hyper, jax.random.fold_in(key, index), theta_0)
                moved = run.squared_updates if per_step else jnp.abs(run.theta - theta_0)
                movements.append(moved)
            total = jnp.sum(jnp.stack(movements), axis=0)
            if not isinstance(total, jax.core.Tracer):  # an audit may only ask for shapes
                infinite = int(jnp.sum(~jnp.isfinite(total)))
                # Noiseless simulations do not clip either.
                fix = "lower `learning_rate`, or choose another `gc_s` (the noisy variants clip)"
                place = f"{infinite} of {total.size} coordinates"
                require(not infinite, f"`gc_s`: the simulated training diverges at {place}: {fix}")
            return jnp.argsort(total)[: knowledge.canaries]

        return at_coordinates(choose, knowledge.canaries, knowledge.expect)


@dataclasses.dataclass(frozen=True)
class GcR(AdversaryFields):
    """GC-R, the random biased dimension (hidden-state paper, Algorithm 2)."""

    name: ClassVar[str] = "gc_r"
    canary: ClassVar[str] = "along a random coordinate"
    description: ClassVar[str] = (
        "GC-R: draws a coordinate of the model at random and inserts a gradient of norm C along it. Its "
        "score is how far the final model moved along that coordinate. If every run draws its own, the "
        "score is the rank of this movement among all other coordinates."
    )
    biased: ClassVar[bool] = True
    afresh: bool = described(
        "gc_r: every run draws new coordinates, all in, and ranks them among all others.",
        default=False,
    )

    @property
    def any_time(self) -> bool:
        return self.afresh

    @property
    def usual_runs(self) -> int:
        return 60 if self.afresh else super().usual_runs

    def make(self, knowledge: Knowledge) -> Adversary:
        _check_number(knowledge)
        canaries = knowledge.canaries
        if not self.afresh:
            choose = partial(_choose_at_random, canaries)
            return at_coordinates(choose, canaries, knowledge.expect)
        parameters = knowledge.model.n_parameters
        allowed = f"at most {parameters // 2}, half the parameters"
        message = f"`canaries` must be {allowed}, with `afresh`, got {canaries}"
        require(2 * canaries <= parameters, message)
        others = parameters - canaries
        require(
            others <= _MAX_RANKED,
            f"`afresh` ranks among at most {_MAX_RANKED:,} other coordinates, not {others:,}: drop it",
        )
        rehearse = knowledge.rehearsal()

        def init(key: Array, theta_0: Array, clipping_norm: Array) -> OwnCoordinates:
            """Trains the expected model. In every run, `draw` replaces the coordinates."""
            values = jnp.full(canaries, clipping_norm, theta_0.dtype)
            placeholders = jnp.arange(canaries)
            return OwnCoordinates(placeholders, values, key, rehearse(theta_0)).draw(key)

        return Adversary(
            init,
            OwnCoordinates.craft,
            OwnCoordinates.score,
            canaries,
            crafts_constant=True,
            draw=OwnCoordinates.draw,
            null=NullLaw(all_in=True, draws=others),
        )


def _choose_at_random(canaries: int, key: Array, theta_0: Array) -> Array:
    """Draws the distinct coordinates of K canaries uniformly, (K,)."""
    if canaries == 1:
        return jax.random.randint(key, (1,), 0, theta_0.size)
    return jax.random.choice(key, theta_0.size, (canaries,), replace=False)


class BiasedDimensions(NamedTuple):
    """The state of the adversary of K coordinates.

    Attributes:
      dimensions: (K,) the distinct coordinates, one for each canary.
      crafted: the canaries, C e_d for each coordinate d; a single canary as an array (1, p).
      expected: (K,) the expected final values of these coordinates.
    """

    dimensions: Array
    crafted: Array | Coordinates
    expected: Array

    def score(self, seen: Tree, theta_t: Array, theta_0: Array) -> Array:
        return self.expected - theta_t[self.dimensions]


def _craft(state: BiasedDimensions, step: Array, theta: Array) -> Array | Coordinates:
    return state.crafted


def at_coordinates(choose: Choose, canaries: int, expect: Expect) -> Adversary:
    """Returns the adversary of K canaries C e_d, for the coordinates d (K,) that choose(key, theta_0) gives.

    A canary's score is expected[d] - theta_T[d]. A step subtracts the canary, so an inserted canary raises
    the score. `expect` gives the expected model of several canaries, trained without noise and with half of
    every canary, since a fair coin decides whether a canary is in. For a single canary it is theta_0. That
    would be worse for several: the score would contain the coordinate's movement by training, many times the
    noise.
    """

    def init(key: Array, theta_0: Array, clipping_norm: Array) -> BiasedDimensions:
        dimensions = choose(key, theta_0)
        if canaries == 1:
            # A program with `Coordinates` rounds differently: stored scores would change.
            gradient = jnp.zeros_like(theta_0).at[dimensions].set(clipping_norm)
            return BiasedDimensions(dimensions, gradient[None], theta_0[dimensions])
        values = jnp.full(canaries, clipping_norm, theta_0.dtype)
        crafted = mechanism.Coordinates(dimensions, values)
        # `_craft` does not read the expected values.
        state = BiasedDimensions(dimensions, crafted, theta_0[dimensions])
        return state._replace(expected=expect(_craft, state, theta_0)[dimensions])

    return Adversary(init, _craft, BiasedDimensions.score, canaries=canaries)


class OwnCoordinates(NamedTuple):
    """The canaries of a single run along K coordinates.

    Attributes:
      dimensions: (K,) the distinct coordinates.
      values: (K,) the canaries' entries there: the clipping norm C.
      ties: the key that breaks ties.
      expected: (p,) the final model of training without noise and canaries.
    """

    dimensions: Array
    values: Array
    ties: Array
    expected: Array

    def craft(self, step: Array, theta: Array) -> Coordinates:
        return mechanism.Coordinates(self.dimensions, self.values)

    def draw(self, key: Array) -> OwnCoordinates:
        """Draws a run's K distinct coordinates, and the key that breaks its ties."""
        coordinate_key, tie_key = jax.random.split(key)
        shape = self.dimensions.shape  # (K,)
        dimensions = jax.random.choice(coordinate_key, self.expected.size, shape, replace=False)
        return self._replace(dimensions=dimensions, ties=tie_key)

    def score(self, seen: Tree, theta_t: Array, theta_0: Array) -> Array:
        """Returns for each canary how many of the p - K coordinates without a canary moved down less, (K,).

        A coordinate's movement down is expected - theta_T, which a canary raises. Ties are broken at random.
        """
        return count_below(self.expected - theta_t, self.dimensions, self.ties)
