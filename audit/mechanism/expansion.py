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
length for which |phi(theta + u) - phi(theta)| / |u| is largest. `worst_on_lines` takes secants of that
length end to end along lines through theta, so that no jump between their ends is passed over.
"""

import math
from collections.abc import Callable, Hashable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike, NDArray
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
# By how much of its excess over 1, and by how much beside, a secant may exceed the derivative's stretch:
# rounding to float32, and third derivatives.
_RELATIVE = 0.1
_ABSOLUTE = 5e-4
# Derivatives beside models count up to so many times their excess over 1 at models, a bound's largest margin.
MOST_MARGIN = 10
_SLOPES_A_SECANT = 4  # places along a secant at which derivatives are computed, but for its end
_STEP_LENGTHS = (1.0, 10.0, 100.0)  # tried in each round, the best is taken


class Expansion(NamedTuple):
    """How much a step stretches distances at most.

    Attributes:
      constant: The largest singular value of the step's Jacobian, or the largest secant's stretch.
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


class Line(NamedTuple):
    """Secants end to end on a line through a model.

    Attributes:
      length: Of each secant.
      reach: How many there are to either side of the model.
      derivative: How much the step stretches displacements at models, by its derivative.
      most: The same over all steps so far; what derivatives beside the models say counts up to `MOST_MARGIN`
        times its excess over 1.
    """

    length: float
    reach: int
    derivative: float
    most: float


class Stretch(NamedTuple):
    """How much a step stretches a displacement.

    Attributes:
      secant: |phi(x + u) - phi(x)| / |u|.
      derivative: What derivatives there say at most.
    """

    secant: float
    derivative: float


class StepMap(NamedTuple):
    """The compiled functions of a step theta -> phi(theta) without canaries and noise.

    Attributes:
      descend: (theta (p,), batch) -> d(theta), (p,).
      stretch: (theta (p,), batch, v (p,)) -> (J'J - I) v / eta, (p,).
      matrix: (theta (p,), batch) -> (J'J - I) / eta, (p, p).
      search: (theta (p,), batch, starts (n, p), length ()) -> the largest |phi(theta + u) - phi(theta)| / |u|
        less 1 that a climb from each start reaches, (n,), over u of that length, and these u, (n, p).
      walk: (theta (p,), batch, directions (n, p), positions (m,)) -> the stretch less 1 between neighbouring
        positions on the line through theta along each direction, (n, m - 1).
      slopes: The same for the derivative along each direction, at each position, (n, m).
      learning_rate: eta.
    """

    descend: Callable[[Array, Batch], Array]
    stretch: Callable[[Array, Batch, Array], Array]
    matrix: Callable[[Array, Batch], Array]
    search: Callable[[Array, Batch, Array, Array], tuple[Array, Array]]
    walk: Callable[[Array, Batch, Array, Array], Array]
    slopes: Callable[[Array, Batch, Array, Array], Array]
    learning_rate: float


class _Scale(NamedTuple):
    """What steps that share a program differ in: eta, lambda and C, traced."""

    rate: Array
    decay: Array
    norm: Array


_Descend = Callable[[_Scale, Array, Batch], Array]  # d(theta), (p,)
_Walk = Callable[[_Scale, Array, Batch, Array, Array], Array]
_Search = Callable[[_Scale, Array, Batch, Array, Array], tuple[Array, Array]]


class _Functions(NamedTuple):
    """The functions of a `StepMap`, compiled for any `_Scale`, which is their first argument."""

    descend: _Descend
    stretch: Callable[[_Scale, Array, Batch, Array], Array]
    matrix: Callable[[_Scale, Array, Batch], Array]
    search: _Search
    walk: _Walk
    slopes: _Walk


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
        descend=partial(functions.descend, scale),
        stretch=partial(functions.stretch, scale),
        matrix=partial(functions.matrix, scale),
        search=partial(functions.search, scale),
        walk=partial(functions.walk, scale),
        slopes=partial(functions.slopes, scale),
        learning_rate=rate,
    )


def _make_functions(clipped_sum: ClippedSum, rounds: int) -> _Functions:
    """Returns the functions of step maps with a clipping strategy, compiled when they are first used."""

    def descend(scale: _Scale, theta: Array, batch: Batch) -> Array:
        """Returns d(theta), (p,)."""
        return clipped_sum(theta, batch, scale.norm) / len(batch[1]) + scale.decay * theta

    def stretch(scale: _Scale, theta: Array, batch: Batch, v: Array) -> Array:
        """Returns (J'J - I) v / eta, (p,), as eta H'H v - H v - H'v."""
        products = _make_products(descend, scale, theta, batch)
        pushed = products.push_forward(v)
        return scale.rate * products.pull_back(pushed) - pushed - products.pull_back(v)

    def matrix(scale: _Scale, theta: Array, batch: Batch) -> Array:
        units = jnp.eye(theta.size, dtype=theta.dtype)
        products = jax.vmap(lambda unit: stretch(scale, theta, batch, unit))(units)
        return (products + products.T) / 2

    return _Functions(
        descend=jax.jit(descend),
        stretch=jax.jit(stretch),
        matrix=jax.jit(matrix),
        search=jax.jit(_make_search(descend, rounds)),
        walk=jax.jit(_make_walk(descend)),
        slopes=jax.jit(_make_slopes(descend)),
    )


class _Products(NamedTuple):
    """Products with H, the derivative of d at a model: v (p,) -> H v, and w (p,) -> H'w."""

    push_forward: Callable[[Array], Array]
    pull_back: Callable[[Array], Array]


def _make_products(descend: _Descend, scale: _Scale, theta: Array, batch: Batch) -> _Products:
    """Returns the products with H at theta; H v transposes the pull-back, which is linear."""
    _, pull = jax.vjp(lambda theta: descend(scale, theta, batch), theta)

    def pull_back(w: Array) -> Array:
        pulled: Array = pull(w)[0]
        return pulled

    _, transpose = jax.vjp(pull_back, jnp.zeros_like(theta))

    def push_forward(v: Array) -> Array:
        pushed: Array = transpose(v)[0]
        return pushed

    return _Products(push_forward, pull_back)


def _make_search(descend: _Descend, rounds: int) -> _Search:
    """Returns the function that climbs from each of several starts, for a step that descends along d."""

    def search_from(
        scale: _Scale, theta: Array, batch: Batch, start: Array, length: Array
    ) -> tuple[Array, Array]:
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
            return _measure_stretch(*moved(place(u)))

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

        (highest, best), _ = jax.lax.scan(climb, (start, measure(start)), None, rounds)
        return best, highest

    def search(
        scale: _Scale, theta: Array, batch: Batch, starts: Array, length: Array
    ) -> tuple[Array, Array]:
        def search_one(start: Array) -> tuple[Array, Array]:
            return search_from(scale, theta, batch, start, length)

        climbed: tuple[Array, Array] = jax.lax.map(
            search_one, starts, batch_size=_count_at_once(theta)
        )
        return climbed

    return search


def _make_walk(descend: _Descend) -> _Walk:
    """Returns the function that measures secants end to end on lines, for a step that descends along d."""

    def walk_along(
        scale: _Scale, theta: Array, batch: Batch, unit: Array, positions: Array
    ) -> Array:
        first = theta + positions[0] * unit

        def go_on(carry: tuple[Array, Array], position: Array) -> tuple[tuple[Array, Array], Array]:
            """Goes on to a position; `carry` is (the place before, d there)."""
            place, descent = carry
            there = theta + position * unit
            descent_there = descend(scale, there, batch)
            change = scale.rate * (descent - descent_there)
            return (there, descent_there), _measure_stretch(there - place, change)

        _, gains = jax.lax.scan(go_on, (first, descend(scale, first, batch)), positions[1:])
        return gains

    return _map_over_directions(walk_along)


def _make_slopes(descend: _Descend) -> _Walk:
    """Returns the function that measures derivatives along lines, for a step that descends along d."""

    def slopes_along(
        scale: _Scale, theta: Array, batch: Batch, unit: Array, positions: Array
    ) -> Array:
        def measure(position: Array) -> Array:
            there = theta + position * unit
            products = _make_products(descend, scale, there, batch)
            return _measure_stretch(unit, -scale.rate * products.push_forward(unit))

        gains: Array = jax.lax.map(measure, positions)
        return gains

    return _map_over_directions(slopes_along)


def _map_over_directions(measure_along: _Walk) -> _Walk:
    """Returns a function of directions (n, p), of any length, from that of a unit vector (p,)."""

    def measure(
        scale: _Scale, theta: Array, batch: Batch, directions: Array, positions: Array
    ) -> Array:
        def measure_on_line(direction: Array) -> Array:
            norm = jnp.linalg.norm(direction)
            unit = direction / jnp.where(norm > 0, norm, 1.0)
            return measure_along(scale, theta, batch, unit, positions)

        gains: Array = jax.lax.map(measure_on_line, directions, batch_size=_count_at_once(theta))
        return gains

    return measure


def _count_at_once(theta: Array) -> int | None:
    """Returns how many starts or lines a program takes at once; None: each alone."""
    return _STARTS_AT_ONCE if theta.size < _LARGE else None


def _measure_stretch(displacement: Array, change: Array) -> Array:
    """Returns |u + change| / |u| - 1 of a displacement u (p,), which does not cancel; 0 where u is 0."""
    squared = displacement @ displacement
    is_apart = squared > 0
    gained = 2 * displacement @ change + change @ change
    gain = jnp.where(is_apart, gained / jnp.where(is_apart, squared, 1.0), 0.0)
    gain = jnp.maximum(gain, -1.0)  # rounding may leave less
    return gain / (jnp.sqrt(1 + gain) + 1)


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
    if not multiply(start).any():
        return Expansion(1.0, start / np.linalg.norm(start))
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
) -> Expansion:
    """Returns the largest |phi(theta + u) - phi(theta)| / |u| that a search finds, and its direction.

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
    gains, displacements = step.search(theta, batch, jnp.asarray(starts, jnp.float32), length)
    highest = jnp.argmax(gains)
    direction = np.asarray(displacements[highest], np.float64)
    return Expansion(1 + float(gains[highest]), direction / np.linalg.norm(direction))


def worst_on_lines(
    step: StepMap,
    theta: Array,
    batch: Batch,
    directions: NDArray[np.float64],
    line: Line,
) -> Stretch:
    """Returns the secant that most exceeds derivatives, of those end to end on lines through theta.

    No jump that one of these lines crosses is missed: at least half of it falls within a single secant. What
    jumps beside the lines stays unseen. Derivatives along secants are computed where these stretch more than
    derivatives at theta do.

    Args:
      step: The step's functions.
      theta: The model (p,) before the step.
      batch: The mini-batch of the step.
      directions: (n, p), of the lines; those of length 0 are left out.
      line: The secants of each line.
    """
    along = jnp.asarray(directions, jnp.float32)
    places = jnp.arange(-line.reach, line.reach + 1, dtype=jnp.float32)
    positions = line.length * places
    secants = 1 + np.asarray(step.walk(theta, batch, along, positions), np.float64)
    derivatives = np.full(secants.shape, line.derivative)
    if (compute_excess(secants, derivatives) > 0).any():
        slopes = _find_slopes(step, theta, batch, along, line)
        explained = np.minimum(slopes, 1 + MOST_MARGIN * max(line.most - 1, 0))
        derivatives = np.maximum(derivatives, explained)
    worst = np.argmax(compute_excess(secants, derivatives))
    return Stretch(float(secants.flat[worst]), float(derivatives.flat[worst]))


def _find_slopes(
    step: StepMap, theta: Array, batch: Batch, directions: Array, line: Line
) -> NDArray[np.float64]:
    """Returns what derivatives say at most along each of m secants of n lines, (n, m)."""
    count = 2 * line.reach
    places = jnp.arange(count * _SLOPES_A_SECANT + 1, dtype=jnp.float32)
    positions = line.length * (places / _SLOPES_A_SECANT - line.reach)
    slopes = 1 + np.asarray(step.slopes(theta, batch, directions, positions), np.float64)
    starts = slopes[:, :-1].reshape(-1, count, _SLOPES_A_SECANT)
    ends = slopes[:, _SLOPES_A_SECANT::_SLOPES_A_SECANT]
    largest: NDArray[np.float64] = np.maximum(starts.max(axis=2), ends)
    return largest


def compute_excess(secant: ArrayLike, derivative: ArrayLike) -> NDArray[np.float64]:
    """Returns by how much secants stretch more than smooth steps would; 0 or less: no more."""
    allowed = (1 + _RELATIVE) * (np.asarray(derivative, np.float64) - 1) + _ABSOLUTE
    excess: NDArray[np.float64] = np.asarray(secant, np.float64) - 1 - allowed
    return excess
