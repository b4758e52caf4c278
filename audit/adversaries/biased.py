"""Gradients of norm C along a single coordinate: random (GC-R) and simulated (GC-S) biased dimension.

Hidden-state paper, Section 4 and Appendix C, Algorithms 2 to 4. The update subtracts the gradient, so
the score is theta_0[d] - theta_T[d] (Errata H3). Importing this starts no JAX.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from audit.adversaries.base import (
    Adversary,
    AdversaryFields,
    AdversaryRow,
    Expect,
    Knowledge,
    NullLaw,
)
from audit.adversaries.lazily import jax, jnp, mechanism
from audit.adversaries.ranked import count_below
from audit.errors import require
from audit.settings.fields import described

if TYPE_CHECKING:
    from jax import Array

    from audit.mechanism.base import Coordinates, Trajectory, Tree

# (key, theta_0) -> a training run without the canary.
Simulate = Callable[["Array", "Array"], "Trajectory"]

_NOISY_SIMULATIONS = 4  # training runs by which GC-S ranks coordinates, where they are noisy

# `_biased` and `_many` keep their names: `audit.audit_loss` stores an audit of such an adversary under the
# name of the function that made it.


class GcSVariant(NamedTuple):
    """How GC-S finds the coordinate that moves least.

    Attributes:
      noisy: if True, simulations have the training run's noise and clipping; if False, neither.
      per_step: if True, it adds up the movement of each step; if False, it looks at the final model alone.
    """

    noisy: bool
    per_step: bool


GC_S_VARIANTS = {
    "noiseless_per_step": GcSVariant(noisy=False, per_step=True),
    "noisy_per_step": GcSVariant(noisy=True, per_step=True),
    "noiseless_final_model": GcSVariant(noisy=False, per_step=False),
    "noisy_final_model": GcSVariant(noisy=True, per_step=False),
}
_MOST_RANKED = 2**24  # float32, in which ranks are counted, is exact up to here


@dataclasses.dataclass(frozen=True)
class GcS(AdversaryFields):
    """The fields of GC-S, the simulated biased dimension (hidden-state paper, Algorithm 3)."""

    name: ClassVar[str] = "gc_s"
    gc_s: str = described(
        "GC-S: {noiseless,noisy}_{per_step,final_model}.",
        default="noiseless_per_step",
        choices=tuple(GC_S_VARIANTS),
    )


@dataclasses.dataclass(frozen=True)
class GcR(AdversaryFields):
    """The fields of GC-R, the random biased dimension (hidden-state paper, Algorithm 2)."""

    name: ClassVar[str] = "gc_r"
    afresh: bool = described(
        "gc_r: every run draws coordinates of its own, all in, and ranks them among all others.",
        default=False,
    )

    @property
    def any_time(self) -> bool:
        """Whether the audit may stop at any run: the bound of coordinates drawn afresh holds then."""
        return self.afresh

    @property
    def usual_runs(self) -> int:
        """Returns the number of runs where none is given; for fresh coordinates, as for fresh directions."""
        return 60 if self.afresh else super().usual_runs


class BiasedDimension(NamedTuple):
    """The chosen coordinate d (), and the canary C * e_d (1, p): C at d and 0 elsewhere."""

    dimension: Array
    gradient: Array

    def craft(self, step: Array, theta: Array) -> Array:
        return self.gradient

    def score(self, seen: Tree, theta_t: Array, theta_0: Array) -> Array:
        """Returns the score as an array (1,), of the single canary."""
        return (theta_0[self.dimension] - theta_t[self.dimension])[None]


def random_biased_dimension(canaries: int = 1, expect: Expect | None = None) -> Adversary:
    """Returns GC-R (hidden-state paper, Algorithm 2), whose canaries are gradients along random coordinates.

    Each canary is a gradient of norm C along a coordinate of the model. The coordinates are drawn uniformly,
    and those of several canaries are distinct. A canary's score is how far below its initial value its
    coordinate ends; for several canaries, how far below its expected value.

    Args:
      canaries: K.
      expect: (craft, state, theta_0) -> the expected final model, from which the scores of several canaries
        are measured; None for a single canary.
    """

    def choose_alone(key: Array, theta_0: Array) -> Array:
        """Draws a coordinate, as an array ()."""
        return jax.random.randint(key, (), 0, theta_0.size)

    def choose_distinct(key: Array, theta_0: Array) -> Array:
        """Draws K distinct coordinates, (K,)."""
        return jax.random.choice(key, theta_0.size, (canaries,), replace=False)

    if expect is None:  # a single canary
        return _biased(choose_alone)
    return _many(choose_distinct, canaries, expect)


def simulated_biased_dimension(
    simulate: Simulate,
    simulations: int,
    per_step: bool,
    canaries: int = 1,
    expect: Expect | None = None,
) -> Adversary:
    """Returns GC-S (hidden-state paper, Algorithm 3): canaries at the coordinates that training moves least.

    Each canary is a gradient of norm C along a coordinate. A coordinate's movement is the sum of its
    movements in several simulated training runs. A canary's score is how far below its initial value its
    coordinate ends; for several canaries, how far below its expected value.

    Args:
      simulate: (key, theta_0) -> a training run without the canary, noisy or noiseless.
      simulations: the number of runs to simulate.
      per_step: if True, a run's movement is the sum of squared updates. The paper takes the root of the sum
        over all runs (Errata H4), which ranks coordinates in the same order. If False, a run's movement is
        the distance of the final model from theta_0.
      canaries: K.
      expect: (craft, state, theta_0) -> the expected final model, from which the scores of several canaries
        are measured; None for a single canary.
    """

    def rank(key: Array, theta_0: Array) -> Array:
        return _sum_movements(simulate, simulations, per_step, key, theta_0)

    return _least(rank, canaries, expect)


def _least(
    rank: Callable[[Array, Array], Array], canaries: int, expect: Expect | None
) -> Adversary:
    """Returns the adversary of canaries at the K coordinates that rank lowest.

    Args:
      rank: (key, theta_0 (p,)) -> a value for each coordinate, (p,).
      canaries: K.
      expect: (craft, state, theta_0) -> the expected final model, from which the scores of several canaries
        are measured; None for a single canary.

    Returns:
      The adversary. Its `init` raises InputError for values that are not finite.
    """

    def choose_alone(key: Array, theta_0: Array) -> Array:
        return jnp.argmin(_require_finite(rank(key, theta_0)))

    def choose(key: Array, theta_0: Array) -> Array:
        return jnp.argsort(_require_finite(rank(key, theta_0)))[:canaries]

    if expect is None:  # a single canary
        return _biased(choose_alone)
    return _many(choose, canaries, expect)


def _require_finite(values: Array) -> Array:
    """Returns the values (p,) by which coordinates are ranked; raises InputError unless all are finite.

    Values that are not finite have no order: the first such coordinate would be taken, whatever it is.
    """
    # Where only the shapes of an audit are wanted, JAX traces it and there are no values to check.
    if isinstance(values, jax.core.Tracer):
        return values
    infinite = int(jnp.sum(~jnp.isfinite(values)))
    # Noiseless simulations do not clip either, and diverge sooner than the training run.
    fix = "lower `learning_rate`, or choose another `gc_s` (the noisy variants clip)"
    require(
        not infinite,
        f"`gc_s`: the simulated training diverges at {infinite} of {values.size} coordinates: {fix}",
    )
    return values


def _sum_movements(
    simulate: Simulate, simulations: int, per_step: bool, key: Array, theta_0: Array
) -> Array:
    """Returns how far each coordinate moves, (p,), summed over simulated runs without a canary.

    Args:
      simulate: (key, theta_0) -> a training run.
      simulations: how many runs to simulate.
      per_step: if True, a run's movement is the sum of its squared updates; if False, |theta_T - theta_0|.
      key: the key of the simulations.
      theta_0: the initial model (p,).
    """

    def movement(index: int) -> Array:
        run = simulate(jax.random.fold_in(key, index), theta_0)
        return run.squared_updates if per_step else jnp.abs(run.theta - theta_0)

    movements = [movement(index) for index in range(simulations)]
    return jnp.sum(jnp.stack(movements), axis=0)


def _biased(choose: Callable[[Array, Array], Array]) -> Adversary:
    """Returns the adversary of a single canary C e_d, for the coordinate d = choose(key, theta_0).

    The score is theta_0[d] - theta_T[d]. A step subtracts the canary, so that an inserted canary raises it.
    """

    def init(key: Array, theta_0: Array, clipping_norm: Array) -> BiasedDimension:
        dimension = choose(key, theta_0)
        # C e_d, to which [None] gives the axis of canaries: (1, p).
        gradient = jnp.zeros_like(theta_0).at[dimension].set(clipping_norm)
        return BiasedDimension(dimension, gradient[None])

    return Adversary(init, BiasedDimension.craft, BiasedDimension.score)


class BiasedDimensions(NamedTuple):
    """What the adversary of several coordinates decides before training.

    Attributes:
      dimensions: (K,) the distinct coordinates, one for each canary.
      values: (K,) each canary's entry at its coordinate: the clipping norm C.
      expected: (K,) the values of these coordinates after training without noise, with half of every canary.
    """

    dimensions: Array
    values: Array
    expected: Array

    def craft(self, step: Array, theta: Array) -> Coordinates:
        return mechanism.Coordinates(self.dimensions, self.values)

    def score(self, seen: Tree, theta_t: Array, theta_0: Array) -> Array:
        return self.expected - theta_t[self.dimensions]


def _many(choose: Callable[[Array, Array], Array], canaries: int, expect: Expect) -> Adversary:
    """Returns the adversary of K canaries C e_d, for the coordinates d (K,) that choose(key, theta_0) gives.

    A canary's score is expected[d] - theta_T[d]: how far below its expected value the coordinate ends. The
    expected model is trained without noise, and with half of every canary, since a fair coin decides whether
    a canary is in. theta_0[d] - theta_T[d] would be a worse score: it also contains what training itself
    moves the coordinate, which is many times the noise.

    Args:
      choose: (key, theta_0) -> distinct coordinates (K,).
      canaries: K.
      expect: (craft, state, theta_0) -> the final model of training with half of every canary and no noise.
    """

    def init(key: Array, theta_0: Array, clipping_norm: Array) -> BiasedDimensions:
        """Chooses K distinct coordinates, and computes the values at which they are expected to end.

        These are the values after training without noise and with half of every canary, by `expect`.

        Args:
          key: the key of the choice.
          theta_0: the initialisation (p,) as the adversary knows it.
          clipping_norm: C, the entry of every canary at its coordinate.
        """
        dimensions = choose(key, theta_0)
        values = jnp.full(canaries, clipping_norm, theta_0.dtype)
        unknown = jnp.zeros(canaries, theta_0.dtype)
        state = BiasedDimensions(dimensions, values, expected=unknown)
        # `craft` does not read what is expected, so that this state is enough to train with.
        expected_theta = expect(BiasedDimensions.craft, state, theta_0)
        return state._replace(expected=expected_theta[dimensions])

    return Adversary(init, BiasedDimensions.craft, BiasedDimensions.score, canaries=canaries)


class OwnCoordinates(NamedTuple):
    """The canaries of a single run along K coordinates.

    Attributes:
      dimensions: (K,) the distinct coordinates.
      values: (K,) the canaries' entries there: the clipping norm C.
      ties: the key by which ties are broken.
      expected: (p,) the final model of training without noise and canaries.
    """

    dimensions: Array
    values: Array
    ties: Array
    expected: Array

    def draw(self, key: Array) -> OwnCoordinates:
        """Draws a run's K distinct coordinates, and the key that breaks its ties, from the run's key."""
        coordinate_key, tie_key = jax.random.split(key)
        shape = self.dimensions.shape  # (K,)
        dimensions = jax.random.choice(coordinate_key, self.expected.size, shape, replace=False)
        return self._replace(dimensions=dimensions, ties=tie_key)

    def craft(self, step: Array, theta: Array) -> Coordinates:
        return mechanism.Coordinates(self.dimensions, self.values)

    def score(self, seen: Tree, theta_t: Array, theta_0: Array) -> Array:
        """Returns for each canary how many of the p - K coordinates without a canary moved down less, (K,).

        A coordinate's movement down is expected - theta_T there, which a canary raises. Ties are broken at
        random.
        """
        movement = self.expected - theta_t
        return count_below(movement, self.dimensions, self.ties)


def fresh_coordinates(
    canaries: int, parameters: int, rehearse: Callable[[Array], Array]
) -> Adversary:
    """Returns the GC-R in which every run draws K distinct coordinates, each ranked among the p - K others.

    Coordinates are ranked by expected - theta_T, how far below its expected value each ends (hidden-state
    paper, Algorithm 2). A score is the number of coordinates without a canary that rank lower.

    Args:
      canaries: K, the number of canaries of a run, all in.
      parameters: p, the number of coordinates.
      rehearse: theta_0 (p,) -> the expected final model (p,), trained without noise and canaries.
    """

    def init(key: Array, theta_0: Array, clipping_norm: Array) -> OwnCoordinates:
        """Trains the expected model; the coordinates drawn here are replaced in every run by `draw`."""
        values = jnp.full(canaries, clipping_norm, theta_0.dtype)
        placeholders = jnp.arange(canaries)  # `draw` reads only their number
        undrawn = OwnCoordinates(placeholders, values, key, rehearse(theta_0))
        return undrawn.draw(key)

    return Adversary(
        init,
        OwnCoordinates.craft,
        OwnCoordinates.score,
        canaries,
        crafts_constant=True,
        draw=OwnCoordinates.draw,
        # A canary's coordinate is ranked among the others.
        null=NullLaw(all_in=True, draws=parameters - canaries),
    )


def _make_gc_s(fields: GcS, knowledge: Knowledge) -> Adversary:
    """Makes GC-S: gradients of norm C along the coordinates that simulated training moves least.

    Simulated runs are trained without canaries: with the noise and clipping of the real training, or with
    neither. Raises InputError for more canaries than coordinates.
    """
    from audit.mechanism import dpsgd  # loads JAX

    knowledge.require_coordinates()
    variant = GC_S_VARIANTS[fields.gc_s]
    if variant.noisy:
        hyper = knowledge.hyper
        simulations = _NOISY_SIMULATIONS
    else:
        hyper = dpsgd.without_privacy(knowledge.hyper)
        simulations = 1  # without noise, all are the same
    simulate = partial(knowledge.simulate, hyper)
    return simulated_biased_dimension(
        simulate,
        simulations,
        per_step=variant.per_step,
        canaries=knowledge.canaries,
        expect=knowledge.expect_of_several(),
    )


def _make_gc_r(fields: GcR, knowledge: Knowledge) -> Adversary:
    """Makes GC-R: gradients of norm C along random coordinates, the same in all runs or drawn afresh in each.

    Raises InputError for more canaries than coordinates.
    """
    knowledge.require_coordinates()
    if fields.afresh:
        return _make_fresh_coordinates(knowledge)
    return random_biased_dimension(knowledge.canaries, knowledge.expect_of_several())


def _make_fresh_coordinates(knowledge: Knowledge) -> Adversary:
    """Makes the GC-R in which every run draws its own coordinates, each ranked among those without a canary.

    Raises InputError for canaries at more than half of the coordinates, so that too few are left to rank them
    among, and for more coordinates than ranks can count.
    """
    canaries = knowledge.canaries
    parameters = knowledge.model.n_parameters
    most = parameters // 2
    require(
        2 * canaries <= parameters,
        f"`canaries={canaries}`: give at most {most}, half the parameters, to be ranked among others",
    )
    others = parameters - canaries
    require(
        others <= _MOST_RANKED,
        f"`afresh` ranks among at most {_MOST_RANKED:,} other coordinates, not {others:,}: drop it",
    )
    # Movements are measured from the final model of training without noise and canaries.
    return fresh_coordinates(canaries, parameters, knowledge.rehearsal())


GC_S = AdversaryRow(
    GcS,
    "GC-S",
    "a gradient along the coordinate that moves least",
    "GC-S: simulates training, picks the coordinate of the model that moves least, and inserts a "
    "gradient of norm C along it. Its score is how far the final model moved along that coordinate.",
    _make_gc_s,
    biased=True,
)
GC_R = AdversaryRow(
    GcR,
    "GC-R",
    "along a random coordinate",
    "GC-R: draws a coordinate of the model at random and inserts a gradient of norm C along it. Its "
    "score is how far the final model moved along that coordinate; where every run draws its own, the rank "
    "of that among all other coordinates.",
    _make_gc_r,
    biased=True,
)
