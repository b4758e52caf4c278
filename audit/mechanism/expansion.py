"""How much a step of DP-SGD moves two models away from each other, measured along a training run.

A step without canaries and noise is phi(theta) = theta - eta d(theta), where

    d(theta) = sum_i clip(g_i) / B + lambda theta.

To first order, it stretches distances by at most the largest singular value of its Jacobian J = I - eta H,
where H is that of d. The square of it is 1 + eta m, with m the largest eigenvalue of

    (J'J - I) / eta = -(H + H') + eta H'H,

which `largest_expansion` finds by Lanczos iterations, since the spectrum of J'J itself crowds at 1. Products
with H' pull a vector back through the clipped sum, whatever its strategy; those with H transpose that, since
layers with a backward pass of their own cannot be differentiated forwards.

A derivative at a point misses what jumps beside it. `largest_secant` searches for displacements u of a given
length for which |phi(theta + u) - phi(theta)| / |u| is largest.
"""

import math
from collections.abc import Callable, Hashable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

from audit.mechanism.base import Hyperparameters
from audit.mechanism.clipping.base import Batch, ClippedSum
from audit.mechanism.ensemble import Programs

_KRYLOV_VECTORS = 12  # that Lanczos iterations keep: `eigsh`'s ncv
_TOLERANCE = 0.02  # relative, of the eigenvalue m
# Parameters up to which the whole matrix is built, by a product each: Lanczos iterations need as many.
MOST_WHOLE = 24
ROUNDS = 12  # of a search, by default
_STARTS_AT_ONCE = 16
_LARGE = 10_000  # parameters from which on programs for several starts at once take long to compile
_STEP_LENGTHS = (1.0, 10.0, 100.0)  # tried in each round, the best is taken


class Expansion(NamedTuple):
    """How much a step stretches distances at most.

    Attributes:
      constant: The largest singular value of the step's Jacobian.
      direction: (p,) the displacement that is stretched so much, of length 1.
    """

    constant: float
    direction: NDArray[np.float64]


class SecantSearch(NamedTuple):
    """A search for the displacement that a step stretches most.

    Attributes:
      length: Of the displacements.
      starts: How many directions it climbs from.
      seed: Of random directions.
    """

    length: float
    starts: int = 64
    seed: int = 0


class StepMap(NamedTuple):
    """The compiled functions of a step theta -> phi(theta) without canaries and noise.

    Attributes:
      stretch: (theta (p,), batch, v (p,)) -> (J'J - I) v / eta, (p,).
      matrix: (theta (p,), batch) -> (J'J - I) / eta, (p, p).
      search: (theta (p,), batch, starts (n, p), length ()) -> the largest |phi(theta + u) - phi(theta)| / |u|
        less 1 that a climb from each start reaches, (n,), over u of that length.
      learning_rate: eta.
    """

    stretch: Callable[[Array, Batch, Array], Array]
    matrix: Callable[[Array, Batch], Array]
    search: Callable[[Array, Batch, Array, Array], Array]
    learning_rate: float


class _Scale(NamedTuple):
    """What steps that share a program differ in: eta, lambda and C, traced."""

    rate: Array
    decay: Array
    norm: Array


class _Functions(NamedTuple):
    """The functions of a `StepMap`, compiled for any `_Scale`, which is their first argument."""

    stretch: Callable[[_Scale, Array, Batch, Array], Array]
    matrix: Callable[[_Scale, Array, Batch], Array]
    search: Callable[[_Scale, Array, Batch, Array, Array], Array]


_COMPILED: Programs[_Functions] = Programs()


def make_step_map(
    clipped_sum: ClippedSum,
    hyper: Hyperparameters,
    rounds: int = ROUNDS,
    program: Hashable = None,
) -> StepMap:
    """Returns the step map of plain SGD with a clipping strategy and these hyperparameters.

    Args:
      clipped_sum: The strategy.
      hyper: The hyperparameters.
      rounds: How often a search for the largest secant climbs from each start.
      program: Strategies with the same `program` must be the same function, and then share what is compiled;
        None: shared with no other.
    """
    rate = float(hyper.learning_rate)
    decay = float(hyper.weight_decay or 0.0)
    norm = float(hyper.clipping_norm)
    scale = _Scale(jnp.float32(rate), jnp.float32(decay), jnp.float32(norm))
    key = None if program is None else (program, rounds)
    functions = _COMPILED.get(key, lambda: _make_functions(clipped_sum, rounds))
    return StepMap(
        stretch=partial(functions.stretch, scale),
        matrix=partial(functions.matrix, scale),
        search=partial(functions.search, scale),
        learning_rate=rate,
    )


def _make_functions(clipped_sum: ClippedSum, rounds: int) -> _Functions:
    """Returns the functions of step maps with a clipping strategy, compiled when they are first used."""

    def descend(scale: _Scale, theta: Array, batch: Batch) -> Array:
        """Returns d(theta), (p,)."""
        return clipped_sum(theta, batch, scale.norm) / len(batch[1]) + scale.decay * theta

    def stretch(scale: _Scale, theta: Array, batch: Batch, v: Array) -> Array:
        """Returns (J'J - I) v / eta, (p,), as eta H'H v - H v - H'v."""
        _, pull = jax.vjp(lambda theta: descend(scale, theta, batch), theta)

        def pull_back(w: Array) -> Array:
            """Returns H'w."""
            pulled: Array = pull(w)[0]
            return pulled

        _, transpose = jax.vjp(pull_back, jnp.zeros_like(theta))
        pushed: Array = transpose(v)[0]  # H v
        return scale.rate * pull_back(pushed) - pushed - pull_back(v)

    def matrix(scale: _Scale, theta: Array, batch: Batch) -> Array:
        units = jnp.eye(theta.size, dtype=theta.dtype)
        products = jax.vmap(lambda unit: stretch(scale, theta, batch, unit))(units)
        return (products + products.T) / 2

    def search_from(
        scale: _Scale, theta: Array, batch: Batch, start: Array, length: Array
    ) -> Array:
        """Climbs from a start, along the gradient of |phi(theta + u) - phi(theta)|^2 on the sphere."""
        descent = descend(scale, theta, batch)

        def place(u: Array) -> Array:
            placed: Array = theta + length * u / jnp.linalg.norm(u)
            return placed

        def moved(there: Array) -> tuple[Array, Array]:
            """Returns u, as float32 rounds it, and phi(theta + u) - phi(theta) - u."""
            return there - theta, scale.rate * (descent - descend(scale, there, batch))

        def measure(u: Array) -> Array:
            """Returns the stretch less 1, which does not cancel."""
            displacement, change = moved(place(u))
            squared = displacement @ displacement
            gain = (2 * displacement @ change + change @ change) / squared
            return gain / (jnp.sqrt(1 + gain) + 1)

        def climb(carry: tuple[Array, Array], now: None) -> tuple[tuple[Array, Array], None]:
            """Takes the best of the step lengths, unless it stretches less than the direction (p,) does now.

            `carry` is (the direction u, its stretch less 1).
            """
            u, best = carry
            there = place(u)
            displacement, change = moved(there)
            _, pull = jax.vjp(lambda theta: descend(scale, theta, batch), there)
            # J'(u + change) - u, so that a step of length 1 is one of the power method.
            uphill = change - scale.rate * pull(displacement + change)[0]
            candidates = jnp.stack([displacement + step * uphill for step in _STEP_LENGTHS])
            gains = jax.lax.map(measure, candidates)
            highest = jnp.argmax(gains)
            improves = gains[highest] > best
            u = jnp.where(improves, candidates[highest], u)
            return (u, jnp.maximum(gains[highest], best)), None

        (_, best), _ = jax.lax.scan(climb, (start, measure(start)), None, rounds)
        return best

    def search(scale: _Scale, theta: Array, batch: Batch, starts: Array, length: Array) -> Array:
        at_once = _STARTS_AT_ONCE if theta.size < _LARGE else None

        def search_one(start: Array) -> Array:
            return search_from(scale, theta, batch, start, length)

        gains: Array = jax.lax.map(search_one, starts, batch_size=at_once)
        return gains

    return _Functions(jax.jit(stretch), jax.jit(matrix), jax.jit(search))


def largest_expansion(
    step: StepMap, theta: Array, batch: Batch, start: NDArray[np.float64] | None = None
) -> Expansion:
    """Returns the largest singular value of a step's Jacobian, from below, within 5% of its excess over 1.

    Args:
      step: The step's functions.
      theta: The model (p,) before the step.
      batch: The mini-batch of the step.
      start: (p,) where Lanczos iterations start, as the direction of the step before; by default the same
        random vector each time.
    """
    p = theta.size

    if p <= MOST_WHOLE:
        whole = np.asarray(step.matrix(theta, batch), np.float64)
        eigenvalues, eigenvectors = np.linalg.eigh(whole)
        return _make_expansion(step, eigenvalues[-1], eigenvectors[:, -1])

    if start is None:
        start = np.random.default_rng(0).normal(size=p)

    def multiply(v: NDArray[np.float64]) -> NDArray[np.float64]:
        product = step.stretch(theta, batch, jnp.asarray(v.reshape(p), jnp.float32))
        return np.asarray(product, np.float64)

    operator = LinearOperator((p, p), matvec=multiply, dtype=np.float64)
    find = partial(eigsh, operator, k=1, which="LA", tol=_TOLERANCE)
    try:
        values, vectors = find(ncv=_KRYLOV_VECTORS, v0=start)
    except ArpackNoConvergence:
        # From a random start; more vectors than the matrix has rows are refused.
        values, vectors = find(ncv=min(4 * _KRYLOV_VECTORS, p))
    return _make_expansion(step, values[-1], vectors[:, -1])


def _make_expansion(step: StepMap, eigenvalue: float, direction: NDArray[np.float64]) -> Expansion:
    constant = math.sqrt(max(1 + step.learning_rate * float(eigenvalue), 0.0))
    return Expansion(constant, direction)


def largest_secant(
    step: StepMap,
    theta: Array,
    batch: Batch,
    search: SecantSearch,
    directions: NDArray[np.float64] | None = None,
) -> float:
    """Returns the largest |phi(theta + u) - phi(theta)| / |u| that a search finds.

    It is a lower limit: a jump in a direction that no start comes near stays unseen.

    Args:
      step: The step's functions.
      theta: The model (p,) before the step.
      batch: The mini-batch of the step.
      search: Over which u, and from how many starts.
      directions: (n, p) starts in place of random starts, both ways, as the direction that the derivative
        stretches most.
    """
    starts = np.random.default_rng(search.seed).normal(size=(search.starts, theta.size))
    if directions is not None:
        starts[: 2 * len(directions)] = np.concatenate([directions, -directions])
    length = jnp.float32(search.length)
    gains = step.search(theta, batch, jnp.asarray(starts, jnp.float32), length)
    return 1 + float(jnp.max(gains))
