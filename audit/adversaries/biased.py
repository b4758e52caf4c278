"""Gradients of norm C along one coordinate: random (GC-R) and simulated (GC-S) biased dimension.

Hidden-state paper, Section 4 and Appendix C, Algorithms 2 to 4. The update subtracts the gradient, so
the score is theta_0[d] - theta_T[d] (Errata H3).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from audit.adversaries.base import Adversary, Expect
from audit.mechanism.base import Coordinates, Trajectory, Tree

Simulate = Callable[[Array, Array], Trajectory]  # (key, theta_0) -> a training without the canary
Respond = Callable[[Array], Array]  # theta_0 -> the mu (p,) that linear response forecasts by coordinate


class BiasedDimension(NamedTuple):
    """The chosen coordinate, and the canary C * e_d (1, p)."""

    dimension: Array
    gradient: Array


def random_biased_dimension() -> Adversary:
    """GC-R (Algorithm 2): a coordinate drawn uniformly."""

    def choose(key: Array, theta_0: Array) -> Array:
        return jax.random.randint(key, (), 0, theta_0.size)

    return _biased(choose)


def fixed_biased_dimension(dimension: int) -> Adversary:
    """A coordinate that the user names, to see how the leak depends on it."""
    return _biased(lambda key, theta_0: jnp.int32(dimension))


def simulated_biased_dimension(simulate: Simulate, simulations: int, per_step: bool) -> Adversary:
    """GC-S (Algorithm 3): the coordinate that simulated training moves least. Trainings are noisy or
    noiseless. Movement is accumulated over them: with `per_step` the root of the summed squared updates, else
    the distance of the final model from theta_0 (Errata H4)."""

    def choose(key: Array, theta_0: Array) -> Array:
        return jnp.argmin(_movement(simulate, simulations, per_step, key, theta_0))

    return _biased(choose)


def responsive_biased_dimension(respond: Respond) -> Adversary:
    """GC-S's fifth way, which is not the paper's: the coordinate of the largest mu by linear response."""
    return _biased(lambda key, theta_0: jnp.argmax(respond(theta_0)))


def _movement(simulate: Simulate, simulations: int, per_step: bool, key: Array, theta_0: Array) -> Array:
    def moved(index: int) -> Array:
        run = simulate(jax.random.fold_in(key, index), theta_0)
        return run.squared_updates if per_step else jnp.abs(run.theta - theta_0)

    return jnp.sum(jnp.stack([moved(index) for index in range(simulations)]), axis=0)


def _biased(choose: Callable[[Array, Array], Array]) -> Adversary:
    def init(key: Array, theta_0: Array, clipping_norm: Array) -> BiasedDimension:
        dimension = choose(key, theta_0)
        gradient = jnp.zeros_like(theta_0).at[dimension].set(clipping_norm)
        return BiasedDimension(dimension, gradient[None])

    def craft(state: BiasedDimension, step: Array, theta: Array) -> Array:
        return state.gradient

    def score(state: BiasedDimension, seen: Tree, theta_t: Array, theta_0: Array) -> Array:
        return (theta_0[state.dimension] - theta_t[state.dimension])[None]

    return Adversary(init, craft, score)


class BiasedDimensions(NamedTuple):
    """K distinct coordinates (K,), the canaries' entries C (K,), and where they are expected (K,)."""

    dimensions: Array
    values: Array
    expected: Array


def random_biased_dimensions(canaries: int, expect: Expect) -> Adversary:
    """GC-R with K canaries: distinct coordinates drawn uniformly, one each."""

    def choose(key: Array, theta_0: Array) -> Array:
        return jax.random.choice(key, theta_0.size, (canaries,), replace=False)

    return _many(choose, canaries, expect)


def simulated_biased_dimensions(
    simulate: Simulate, simulations: int, per_step: bool, canaries: int, expect: Expect
) -> Adversary:
    """GC-S with K canaries: the K coordinates that simulated training moves least."""

    def choose(key: Array, theta_0: Array) -> Array:
        return jnp.argsort(_movement(simulate, simulations, per_step, key, theta_0))[:canaries]

    return _many(choose, canaries, expect)


def responsive_biased_dimensions(respond: Respond, canaries: int, expect: Expect) -> Adversary:
    """`responsive_biased_dimension` with K canaries: the K coordinates of the largest mu."""
    return _many(lambda key, theta_0: jnp.argsort(-respond(theta_0))[:canaries], canaries, expect)


def _many(choose: Callable[[Array, Array], Array], canaries: int, expect: Expect) -> Adversary:
    """K coordinates; a score is a displacement less the expected one, which is many times the noise."""

    def init(key: Array, theta_0: Array, clipping_norm: Array) -> BiasedDimensions:
        dimensions = choose(key, theta_0)
        values = jnp.full(canaries, clipping_norm, theta_0.dtype)
        blank = BiasedDimensions(dimensions, values, jnp.zeros(canaries, theta_0.dtype))
        return blank._replace(expected=expect(craft, blank, theta_0)[dimensions])

    def craft(state: BiasedDimensions, step: Array, theta: Array) -> Coordinates:
        return Coordinates(state.dimensions, state.values)

    def score(state: BiasedDimensions, seen: Tree, theta_t: Array, theta_0: Array) -> Array:
        return state.expected - theta_t[state.dimensions]

    return Adversary(init, craft, score, canaries=canaries)
