"""Gradients of norm C along one coordinate: random (GC-R) and simulated (GC-S) biased dimension.

Hidden-state paper, Section 4 and Appendix C, Algorithms 2 to 4. The update subtracts the gradient, so
the score is theta_0[d] - theta_T[d] (Errata H3).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from audit.adversaries.base import Adversary
from audit.mechanism.base import Trajectory, Tree


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


def simulated_biased_dimension(
    simulate: Callable[[Array, Array], Trajectory], simulations: int, per_step: bool
) -> Adversary:
    """GC-S (Algorithm 3): the coordinate that simulated training moves least.

    simulate(key, theta_0) -> Trajectory trains once without the canary, noisy or noiseless. Movement
    is accumulated over the simulations: with `per_step` the root of the summed squared updates, else
    the distance of the final model from theta_0 (Errata H4).
    """

    def choose(key: Array, theta_0: Array) -> Array:
        def moved(index: int) -> Array:
            run = simulate(jax.random.fold_in(key, index), theta_0)
            return run.squared_updates if per_step else jnp.abs(run.theta - theta_0)

        return jnp.argmin(jnp.sum(jnp.stack([moved(index) for index in range(simulations)]), axis=0))

    return _biased(choose)


def _biased(choose: Callable[[Array, Array], Array]) -> Adversary:
    """The adversary of a way to choose the coordinate."""

    def init(key: Array, theta_0: Array, clipping_norm: Array) -> BiasedDimension:
        dimension = choose(key, theta_0)
        gradient = jnp.zeros_like(theta_0).at[dimension].set(clipping_norm)
        return BiasedDimension(dimension, gradient[None])

    return Adversary(init, _craft, _score)


def _craft(state: BiasedDimension, step: Array, theta: Array) -> Array:
    """One gradient, whatever the step."""
    return state.gradient


def _score(state: BiasedDimension, seen: Tree, theta_t: Array, theta_0: Array) -> Array:
    """How far the coordinate went down."""
    return (theta_0[state.dimension] - theta_t[state.dimension])[None]
