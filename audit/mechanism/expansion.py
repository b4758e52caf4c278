"""How much a step of DP-SGD moves two models away from each other, measured along a training run.

A step without canaries and noise is phi(theta) = theta - eta d(theta), where

    d(theta) = sum_i clip(g_i) / B + lambda theta.

To first order, it stretches distances by at most the largest singular value of its Jacobian J = I - eta H,
where H is that of d. The square of it is 1 + eta m, with m the largest eigenvalue of

    (J'J - I) / eta = -(H + H') + eta H'H,

which `largest_expansion` finds by Lanczos iterations, since the spectrum of J'J itself crowds at 1. They go
on until no eigenvalue can be far above the largest that they have found. Products with H' pull a vector back
through the clipped sum, whatever its strategy; those with H transpose that, since layers with a backward pass
of their own cannot be differentiated forwards.

A derivative at a point misses what jumps beside it. `largest_secant` searches for displacements u of a given
length for which |phi(theta + u) - phi(theta)| / |u| is largest. `worst_on_lines` takes secants of that
length end to end along lines through theta, so that no jump between their ends is passed over.
"""

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh, eigh_tridiagonal
from scipy.stats import norm

from audit.mechanism.base import Hyperparameters
from audit.mechanism.clipping.base import Batch, ClippedSum
from audit.mechanism.ensemble import MOST_PROGRAMS

# How far the measured constant c may lie below the true one: this share of |c - 1|, and this much beside,
# which is the rounding of products in float32.
TOLERANCE = 0.05
_ROUNDING = 1e-6
_MISSED = 0.003  # the probability with which a random start hides a larger constant
# Parameters up to which the whole Jacobian is computed, by a product each, all in a single call. Lanczos
# iterations take fewer products, but a call for each, and that takes longer than small products.
MOST_WHOLE = 128
# The most Lanczos iterations. If they do not settle the constant, the whole Jacobian of up to so many
# parameters is computed; of more parameters, the constant is an upper limit.
_MOST_ITERATIONS = 200
_MOST_WHOLE_AFTERWARDS = 2000
_MOST_ITERATIONS_OF_LARGE = 48  # which keep a vector of all parameters each
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
    """The most that a step stretches distances at a model, and in which direction.

    Attributes:
      constant: The largest singular value of the step's Jacobian, or the stretch of the largest secant.
      direction: (p,) the displacement that is stretched by `constant`, scaled to length 1.
    """

    constant: float
    direction: NDArray[np.float64]


class SecantSearch(NamedTuple):
    """A search for the displacement that a step stretches most.

    Attributes:
      length: The length |u| of the displacements.
      starts: The number of directions from which the search climbs.
      seed: The seed of random directions.
    """

    length: float
    starts: int = 64
    seed: int = 0


class Line(NamedTuple):
    """Secants end to end on a line through a model.

    Attributes:
      length: The length of each secant.
      reach: The number of secants to either side of the model.
      derivative: The largest stretch by the step's derivative at models.
      most: The largest stretch by derivatives at models over all measured steps. The stretch by derivatives
        beside the models counts only up to 1 + MOST_MARGIN * (most - 1).
    """

    length: float
    reach: int
    derivative: float
    most: float


class Stretch(NamedTuple):
    """How much a step phi stretches a displacement u from x.

    Attributes:
      secant: |phi(x + u) - phi(x)| / |u|.
      derivative: The most that derivatives along the displacement account for.
    """

    secant: float
    derivative: float


# The vector-Jacobian product of d at a model, w (p,) -> (H'w,), as `jax.vjp` returns it.
_PullBack = Callable[[Array], tuple[Array]]


class StepMap(NamedTuple):
    """The compiled functions of a step without canaries and noise, phi(theta) = theta - eta d(theta).

    J is the Jacobian of phi at theta, and a stretch is |phi(theta + u) - phi(theta)| / |u|.

    Attributes:
      descend: (theta (p,), batch) -> d(theta), (p,): the mean clipped gradient plus the weight decay's term.
      linearise: (theta (p,), batch) -> w (p,) -> (H'w,), where H is the Jacobian of d at theta: what products
        with H have in common is computed once.
      stretch: (the function that `linearise` returns, v (p,)) -> (J'J - I) v / eta, (p,).
      jacobian: (theta (p,), batch) -> the Jacobian H of d at theta, (p, p).
      search: (theta (p,), batch, starts (n, p), length ()) -> the largest stretch less 1 that a climb from
        each start reaches, (n,), over u of that length, and the directions of these u, of any length, (n, p).
      walk: (theta (p,), batch, directions (n, p), positions (m,)) -> the stretch less 1 between neighbouring
        positions on the line through theta along each direction, (n, m - 1).
      slopes: (the same arguments) -> |J v| - 1 for the unit vector v along each direction, with J taken at
        each position on the line, (n, m).
      learning_rate: eta.
    """

    descend: Callable[[Array, Batch], Array]
    linearise: Callable[[Array, Batch], _PullBack]
    stretch: Callable[[_PullBack, Array], Array]
    jacobian: Callable[[Array, Batch], Array]
    search: Callable[[Array, Batch, Array, Array], tuple[Array, Array]]
    walk: Callable[[Array, Batch, Array, Array], Array]
    slopes: Callable[[Array, Batch, Array, Array], Array]
    learning_rate: float


class _Scale(NamedTuple):
    """The traced numbers in which steps of a single program differ.

    Attributes:
      rate: the learning rate eta.
      decay: the weight decay lambda.
      norm: the clipping norm C.
    """

    rate: Array
    decay: Array
    norm: Array


_Descend = Callable[[_Scale, Array, Batch], Array]  # d(theta), (p,)
# `walk` and `slopes`, and `search`, of a `StepMap`, after the scale.
_Walk = Callable[[_Scale, Array, Batch, Array, Array], Array]
_Search = Callable[[_Scale, Array, Batch, Array, Array], tuple[Array, Array]]


class _Functions(NamedTuple):
    """The functions of a `StepMap`, compiled for any `_Scale`, which is their first argument."""

    descend: _Descend
    linearise: Callable[[_Scale, Array, Batch], _PullBack]
    stretch: Callable[[_Scale, _PullBack, Array], Array]
    jacobian: Callable[[_Scale, Array, Batch], Array]
    search: _Search
    walk: _Walk
    slopes: _Walk


def make_step_map(
    clipped_sum: ClippedSum,
    hyper: Hyperparameters,
    rounds: int = ROUNDS,
) -> StepMap:
    """Returns the functions of a step of plain SGD with a clipping strategy and these hyperparameters.

    Args:
      clipped_sum: The clipping strategy.
      hyper: The hyperparameters.
      rounds: The number of steps that a search for the largest secant climbs from each start.
    """
    rate = float(hyper.learning_rate)
    decay = float(hyper.weight_decay or 0.0)
    norm = float(hyper.clipping_norm)
    scale = _Scale(jnp.float32(rate), jnp.float32(decay), jnp.float32(norm))
    functions = _make_functions(clipped_sum, rounds)
    return StepMap(
        descend=partial(functions.descend, scale),
        linearise=partial(functions.linearise, scale),
        stretch=partial(functions.stretch, scale),
        jacobian=partial(functions.jacobian, scale),
        search=partial(functions.search, scale),
        walk=partial(functions.walk, scale),
        slopes=partial(functions.slopes, scale),
        learning_rate=rate,
    )


@lru_cache(MOST_PROGRAMS)
def _make_functions(clipped_sum: ClippedSum, rounds: int) -> _Functions:
    """Returns the functions of step maps with a clipping strategy, compiled when they are first used.

    Equal arguments give the same functions.

    A step map is phi(theta) = theta - eta d(theta). H is the Jacobian of d at theta, and J = I - eta H that
    of phi.

    Args:
      clipped_sum: The clipping strategy.
      rounds: The number of steps that a search for the largest secant climbs from each start.
    """

    def descend(scale: _Scale, theta: Array, batch: Batch) -> Array:
        """Returns d(theta), (p,), by which the step descends: theta - eta d(theta)."""
        return clipped_sum(theta, batch, scale.norm) / len(batch[1]) + scale.decay * theta

    def linearise(scale: _Scale, theta: Array, batch: Batch) -> _PullBack:
        """Returns w -> (H'w,), with the Jacobian H of d at theta."""
        return _linearise(descend, scale, theta, batch)

    def stretch(scale: _Scale, pull_back: _PullBack, v: Array) -> Array:
        """Returns (J'J - I) v / eta, (p,). For J = I - eta H this is H'(eta H v - v) - H v."""
        pushed = _push_forward(pull_back, v)
        return pull_back(scale.rate * pushed - v)[0] - pushed

    def jacobian(scale: _Scale, theta: Array, batch: Batch) -> Array:
        """Returns H, (p, p): the product of H' with unit vector i is row i of H."""
        pull_back = linearise(scale, theta, batch)
        units = jnp.eye(theta.size, dtype=theta.dtype)
        rows: Array = jax.lax.map(lambda unit: pull_back(unit)[0], units)
        return rows

    return _Functions(
        descend=jax.jit(descend),
        linearise=jax.jit(linearise),
        stretch=jax.jit(stretch),
        jacobian=jax.jit(jacobian),
        search=jax.jit(_make_search(descend, rounds)),
        walk=jax.jit(_make_walk(descend)),
        slopes=jax.jit(_make_slopes(descend)),
    )


def _linearise(descend: _Descend, scale: _Scale, theta: Array, batch: Batch) -> _PullBack:
    """Returns w -> (H'w,), where H is the Jacobian of `descend` at theta."""
    pull_back: _PullBack
    _, pull_back = jax.vjp(lambda model: descend(scale, model, batch), theta)
    return pull_back


def _push_forward(pull_back: _PullBack, v: Array) -> Array:
    """Returns H v, (p,), from the function w -> (H'w,).

    H'w is linear in w, so that its own vector-Jacobian product is H v. (`jax.jvp` would be simpler, but
    layers with a backward pass of their own have no forward derivative.)
    """
    # A linear function has the same derivative everywhere: at 0 will do.
    _, transpose = jax.vjp(lambda w: pull_back(w)[0], jnp.zeros_like(v))
    pushed: Array = transpose(v)[0]
    return pushed


def _make_search(descend: _Descend, rounds: int) -> _Search:
    """Returns the `search` of a `StepMap`: it climbs to the largest stretch, from each of several starts.

    The stretch of a displacement u is |phi(theta + u) - phi(theta)| / |u|.

    Args:
      descend: (scale, theta, batch) -> d(theta), for the step phi(theta) = theta - eta d(theta).
      rounds: The number of steps of each climb.
    """

    def search_from(
        scale: _Scale, theta: Array, batch: Batch, start: Array, length: Array
    ) -> tuple[Array, Array]:
        """Climbs along the gradient of |phi(theta + u) - phi(theta)|^2 on the sphere |u| = length.

        The training step is phi(theta) = theta - eta d(theta): eta is `scale.rate`, and d is `descend`. What
        the climb raises is the stretch |phi(theta + u) - phi(theta)| / |u|.

        Returns:
          (the largest stretch less 1, its direction u (p,), of any length)
        """
        descent = descend(scale, theta, batch)

        def place(u: Array) -> Array:
            """Returns theta + u (p,), with u scaled to the length."""
            placed: Array = theta + length * u / jnp.linalg.norm(u)
            return placed

        def measure_change(there: Array) -> tuple[Array, Array]:
            """Returns (u, phi(theta + u) - phi(theta) - u), for theta + u = there as float32 rounds it."""
            return there - theta, scale.rate * (descent - descend(scale, there, batch))

        def measure(u: Array) -> Array:
            """Returns the stretch less 1 of u, scaled to the length; computed without cancellation."""
            return _measure_stretch(*measure_change(place(u)))

        def climb(carry: tuple[Array, Array], now: None) -> tuple[tuple[Array, Array], None]:
            """Takes a step to a displacement that is stretched more, by the best of _STEP_LENGTHS.

            It stays where none stretches more. The stretch of u is |phi(theta + u) - phi(theta)| / |u|. The
            training step is phi(theta) = theta - eta d(theta): eta is `scale.rate`, and d is `descend`.

            `carry` is (u (p,), of any length; its stretch less 1 when scaled to `length`).
            """
            u, best = carry
            there = place(u)
            displacement, change = measure_change(there)
            _, pull = jax.vjp(lambda model: descend(scale, model, batch), there)
            # Half the gradient of |phi(theta + u) - phi(theta)|^2 at u is J'(u + change), with the Jacobian J
            # of phi at `there`. `uphill` leads from u to this half. Taken whole (a step length of 1), it is a
            # step of the power method, which finds the largest singular value where phi is linear. It is
            # short where J is near the identity: longer steps are tried too.
            uphill = change - scale.rate * pull(displacement + change)[0]
            candidates = jnp.stack([displacement + step * uphill for step in _STEP_LENGTHS])
            gains = jax.lax.map(measure, candidates)
            highest = jnp.argmax(gains)
            improves = gains[highest] > best
            u = jnp.where(improves, candidates[highest], u)
            return (u, jnp.maximum(gains[highest], best)), None

        (direction, best), _ = jax.lax.scan(climb, (start, measure(start)), None, rounds)
        return best, direction

    def search(
        scale: _Scale, theta: Array, batch: Batch, starts: Array, length: Array
    ) -> tuple[Array, Array]:
        """Climbs from each of the starts (n, p) to the displacement of this length that is stretched most.

        The stretch of a displacement u by the training step phi is |phi(theta + u) - phi(theta)| / |u|. Large
        models climb from a single start at a time, others from several at once.

        Returns:
          (the largest stretch less 1 from each start (n,), the displacements u (n, p), of any length)
        """

        def search_one(start: Array) -> tuple[Array, Array]:
            return search_from(scale, theta, batch, start, length)

        climbed: tuple[Array, Array] = jax.lax.map(
            search_one, starts, batch_size=_count_at_once(theta)
        )
        return climbed

    return search


def _make_walk(descend: _Descend) -> _Walk:
    """Returns the `walk` of a `StepMap`: it measures secants end to end on lines through a model.

    Args:
      descend: (scale, theta, batch) -> d(theta), for the step phi(theta) = theta - eta d(theta).
    """

    def walk_along(
        scale: _Scale, theta: Array, batch: Batch, unit: Array, positions: Array
    ) -> Array:
        """Returns the stretch less 1, (m - 1,), of each secant between neighbouring models on a line.

        The models are x_i = theta + positions[i] * unit, with positions (m,) and unit (p,). The stretch is
        |phi(x_(i + 1)) - phi(x_i)| / |x_(i + 1) - x_i|, with the training step phi.
        """
        first = theta + positions[0] * unit

        def go_on(carry: tuple[Array, Array], position: Array) -> tuple[tuple[Array, Array], Array]:
            """Goes on to the next position, and returns the stretch less 1 of the secant that leads there.

            `carry` is (the model at the position before, d there). The training step is
            phi(theta) = theta - eta d(theta): eta is `scale.rate`, and d is `descend`.
            """
            place, descent = carry
            there = theta + position * unit
            descent_there = descend(scale, there, batch)
            change = scale.rate * (descent - descent_there)
            return (there, descent_there), _measure_stretch(there - place, change)

        _, gains = jax.lax.scan(go_on, (first, descend(scale, first, batch)), positions[1:])
        return gains

    return _map_over_directions(walk_along)


def _make_slopes(descend: _Descend) -> _Walk:
    """Returns the `slopes` of a `StepMap`: it measures derivatives along lines through a model.

    Args:
      descend: (scale, theta, batch) -> d(theta), for the step phi(theta) = theta - eta d(theta).
    """

    def slopes_along(
        scale: _Scale, theta: Array, batch: Batch, unit: Array, positions: Array
    ) -> Array:
        """Returns |J unit| - 1, (m,), with the Jacobian J of phi at each of theta + positions (m,) * unit.

        The training step is phi(theta) = theta - eta d(theta): eta is `scale.rate`, and d is `descend`. So J
        is I - eta H, with the Jacobian H of d.
        """

        def measure(position: Array) -> Array:
            """Returns |J unit| - 1 at a position, from J unit = unit - eta H unit."""
            there = theta + position * unit
            pull_back = _linearise(descend, scale, there, batch)
            return _measure_stretch(unit, -scale.rate * _push_forward(pull_back, unit))

        gains: Array = jax.lax.map(measure, positions)
        return gains

    return _map_over_directions(slopes_along)


def _map_over_directions(measure_along: _Walk) -> _Walk:
    """Maps a function of a single line, which takes a unit vector (p,), over directions (n, p) of any length.

    Along a direction of length 0 the result is 0.
    """

    def measure(
        scale: _Scale, theta: Array, batch: Batch, directions: Array, positions: Array
    ) -> Array:
        """Returns what `measure_along` gives along each of the directions (n, p), a row for each.

        Large models are measured along a single direction at a time, others along several at once.
        """

        def measure_on_line(direction: Array) -> Array:
            """Returns what `measure_along` gives along a direction (p,), scaled to length 1 or left at 0."""
            norm = jnp.linalg.norm(direction)
            unit = direction / jnp.where(norm > 0, norm, 1.0)
            return measure_along(scale, theta, batch, unit, positions)

        gains: Array = jax.lax.map(measure_on_line, directions, batch_size=_count_at_once(theta))
        return gains

    return measure


def _count_at_once(theta: Array) -> int | None:
    """Returns how many starts or lines a program takes at once; None for large models: one at a time."""
    return _STARTS_AT_ONCE if theta.size < _LARGE else None


def _measure_stretch(displacement: Array, change: Array) -> Array:
    """Returns |u + change| / |u| - 1 of a displacement u (p,); 0 where u is 0.

    Computed without cancellation, from gain = |u + change|^2 / |u|^2 - 1, as gain / (sqrt(1 + gain) + 1).
    """
    squared = displacement @ displacement
    is_apart = squared > 0
    gained = 2 * displacement @ change + change @ change
    gain = jnp.where(is_apart, gained / jnp.where(is_apart, squared, 1.0), 0.0)
    gain = jnp.maximum(gain, -1.0)  # rounding may leave it below
    return gain / (jnp.sqrt(1 + gain) + 1)


def largest_expansion(
    step: StepMap,
    theta: Array,
    batch: Batch,
    start: NDArray[np.float64] | None = None,
    seed: int | tuple[int, ...] = 0,
) -> Expansion:
    """Returns the largest singular value c of a step's Jacobian J, and the direction that it stretches.

    With the largest eigenvalue m of (J'J - I) / eta, the singular value is sqrt(1 + eta m). Beyond MOST_WHOLE
    parameters Lanczos iterations approach it from below, to within TOLERANCE of |c - 1| and rounding, with
    probability 99.7% (`_find_largest_eigenvalue`). If they do not get as near, the whole Jacobian gives c, or
    with more than 2,000 parameters their upper limit counts as c.

    Args:
      step: The step's functions.
      theta: The model (p,) before the step.
      batch: The mini-batch of the step.
      start: (p,) a direction near which the most stretched one may lie, such as that of the step before. It
        saves iterations, and need not be right: half of the vector where they start is random.
      seed: The seed of the random half, such as the step's number and the run's.
    """
    p = theta.size
    if p <= MOST_WHOLE:
        return _decompose(step, theta, batch)

    pull_back = step.linearise(theta, batch)

    def multiply(v: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns (J'J - I) v / eta."""
        product = step.stretch(pull_back, jnp.asarray(np.float32(v)))
        return np.asarray(product, np.float64)

    def find_limit(eigenvalue: float) -> float:
        """Returns the eigenvalue of the largest constant that is near enough to that of `eigenvalue`."""
        constant = _find_constant(step, eigenvalue)
        largest = constant + TOLERANCE * abs(constant - 1) + _ROUNDING
        return (largest**2 - 1) / step.learning_rate

    begin = np.random.default_rng(seed).normal(size=p)
    if start is not None:
        begin += (
            math.sqrt(p) / np.linalg.norm(start) * start
        )  # as long as the random half, on average
    most = min(p, _MOST_ITERATIONS if p < _LARGE else _MOST_ITERATIONS_OF_LARGE)
    found = _find_largest_eigenvalue(multiply, begin, most, find_limit)
    if found.is_settled:
        return Expansion(_find_constant(step, found.value), found.vector)
    if p <= _MOST_WHOLE_AFTERWARDS:
        return _decompose(step, theta, batch)
    return Expansion(_find_constant(step, found.limit), found.vector)


def _decompose(step: StepMap, theta: Array, batch: Batch) -> Expansion:
    """Returns the expansion of a step from its whole Jacobian."""
    jacobian = np.asarray(step.jacobian(theta, batch), np.float64)
    matrix = step.learning_rate * jacobian.T @ jacobian - jacobian - jacobian.T
    last = theta.size - 1  # eigenvalues come in rising order
    eigenvalues, eigenvectors = eigh(matrix, subset_by_index=(last, last))
    return Expansion(_find_constant(step, eigenvalues[0]), eigenvectors[:, 0])


def _find_constant(step: StepMap, eigenvalue: float) -> float:
    """Returns the singular value sqrt(1 + eta m) of J for an eigenvalue m of (J'J - I) / eta."""
    return math.sqrt(max(1 + step.learning_rate * float(eigenvalue), 0.0))


class _Eigenvalue(NamedTuple):
    """The largest eigenvalue of a symmetric matrix, as Lanczos iterations find it from below.

    Attributes:
      value: The largest eigenvalue that they found.
      vector: (p,) its eigenvector, of length 1.
      limit: With probability 99.7% no eigenvalue is larger.
      is_settled: Whether the limit is near enough to the value.
    """

    value: float
    vector: NDArray[np.float64]
    limit: float
    is_settled: bool


def _find_largest_eigenvalue(
    multiply: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    start: NDArray[np.float64],
    most: int,
    find_limit: Callable[[float], float],
) -> _Eigenvalue:
    """Finds the largest eigenvalue of a symmetric matrix by Lanczos iterations, and an upper limit on it.

    The iterations are for a random start: independent normal numbers of variance 1, plus any fixed vector.
    After k of them the matrix is known on k + 1 polynomials p_j of it that are applied to the start, and are
    orthonormal. Let w be the share of the start's square that lies along the eigenvectors of an eigenvalue
    lambda. Then w sum_j p_j(lambda)^2 <= 1. But w is at least (q / |start|)^2 with probability 99.7%, since
    a normal number is smaller than q = 0.0038 in size with probability 0.3% at most. So lambda is no
    eigenvalue if the sum exceeds (|start| / q)^2. Above the largest eigenvalue that was found, the sum rises
    with lambda: neither is any number above it.

    Such limits follow from the matrix at hand: an eigenvalue far from the others takes few iterations, and a
    crowd of eigenvalues at the upper end takes many.

    Args:
      multiply: Returns the matrix's product with a vector (p,).
      start: (p,) the random start.
      most: The most iterations, up to p.
      find_limit: Returns the limit that is near enough to the largest eigenvalue that was found. The
        iterations end once it holds.
    """
    squared_length = float(start @ start)
    largest_sum = squared_length / norm.ppf((1 + _MISSED) / 2) ** 2
    basis = np.empty((most, len(start)))
    diagonal: list[float] = []
    beside: list[float] = []  # the diagonal of the tridiagonal matrix, and what lies beside it
    vector = start / math.sqrt(squared_length)
    for k in range(1, most + 1):
        basis[k - 1] = vector
        product = multiply(vector)
        diagonal.append(float(vector @ product))
        known = basis[:k]
        for _ in range(2):  # the second time removes what rounding leaves
            product -= known.T @ (known @ product)
        beside.append(float(np.linalg.norm(product)))
        # Many iterations are not looked at one by one.
        if k % (1 + k // 16) == 0 or beside[-1] == 0 or k == most:
            values, vectors = eigh_tridiagonal(
                diagonal, beside[:-1], select="i", select_range=(k - 1, k - 1)
            )
            limit = find_limit(values[0])
            is_settled = _sum_squares(diagonal, beside, limit) > largest_sum
            if is_settled:
                break
        vector = product / beside[-1]
    while _sum_squares(diagonal, beside, limit) <= largest_sum:
        limit += 0.1 * (limit - values[0])
    return _Eigenvalue(values[0], known.T @ vectors[:, 0], limit, is_settled)


def _sum_squares(diagonal: list[float], beside: list[float], place: float) -> float:
    """Returns the sum of p_j(place)^2, j from 0 to k, of the orthonormal polynomials of Lanczos iterations.

    Infinite beyond the range of floats, and where the last of `beside` is 0: all is known then.

    Args:
      diagonal: (k,) the diagonal of the iterations' tridiagonal matrix.
      beside: (k,) the numbers beside it. The last one leads to the next iteration.
      place: Where the polynomials are evaluated.
    """
    before = 0.0
    value = 1.0
    total = 1.0
    coupling = 0.0
    for center, next_coupling in zip(diagonal, beside, strict=True):
        if next_coupling == 0 or total > 1e200:
            return math.inf
        following = ((place - center) * value - coupling * before) / next_coupling
        before = value
        value = following
        coupling = next_coupling
        total += value**2
    return total


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
      search: The length of u, and the number of starts.
      directions: (n, p) directions u, for example the direction that the derivative stretches most. The
        search starts from u and from -u, in place of 2 n of its random starts: it needs 2 n starts or more.
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
    """Returns the stretch of that secant on lines through theta which most exceeds what derivatives explain.

    A secant joins models x and x + u, and a step phi stretches it by |phi(x + u) - phi(x)| / |u|. The secants
    of a line lie end to end, so that no jump of phi on the line is missed: a jump that is shorter than a
    secant lies within a secant or on the border of two, so that a secant has at least half of it. Jumps
    beside the lines stay unseen.

    Derivatives along the secants are computed only if some secant stretches more than `line.derivative`
    explains.

    Args:
      step: The step's functions.
      theta: The model (p,) before the step.
      batch: The mini-batch of the step.
      directions: (n, p) the directions of the lines. Length 0 gives no line: its secants and its derivatives
        count as 1, so that nothing is exceeded.
      line: The secants of each line.
    """
    along = jnp.asarray(directions, jnp.float32)
    places = jnp.arange(-line.reach, line.reach + 1, dtype=jnp.float32)
    positions = line.length * places
    secants = 1 + np.asarray(step.walk(theta, batch, along, positions), np.float64)  # (n, 2 reach)

    # At first, what derivatives at models explain. If that is too little for a secant, the larger of this and
    # of the derivatives along each secant.
    derivatives = np.full(secants.shape, line.derivative)
    if (compute_excess(secants, derivatives) > 0).any():
        slopes = _find_slopes(step, theta, batch, along, line)
        # Derivatives beside theta may be far larger than `line.most`, the largest at any measured model. Of
        # their excess over 1, at most MOST_MARGIN times that of `line.most` counts: the margins that reports
        # give for a bound go up to this factor.
        explained = np.minimum(slopes, 1 + MOST_MARGIN * max(line.most - 1, 0))
        derivatives = np.maximum(derivatives, explained)

    worst = np.argmax(compute_excess(secants, derivatives))
    return Stretch(float(secants.flat[worst]), float(derivatives.flat[worst]))


def _find_slopes(
    step: StepMap, theta: Array, batch: Batch, directions: Array, line: Line
) -> NDArray[np.float64]:
    """Returns, for each secant, the largest stretch by the step's derivative at places along it, (n, m).

    There are n lines, each with m = 2 reach secants. The stretch at a place is |J v|, with the Jacobian J
    there and the line's unit vector v. The places are the start of a secant, its end, and
    _SLOPES_A_SECANT - 1 evenly spaced between them.

    Args:
      step: The step's functions.
      theta: The model (p,) before the step.
      batch: The mini-batch of the step.
      directions: (n, p) the directions of the lines.
      line: The secants of each line.
    """
    count = 2 * line.reach
    places = jnp.arange(count * _SLOPES_A_SECANT + 1, dtype=jnp.float32)
    positions = line.length * (places / _SLOPES_A_SECANT - line.reach)
    slopes = 1 + np.asarray(step.slopes(theta, batch, directions, positions), np.float64)
    # For each secant, the slopes at its start and inside, (n, m, _SLOPES_A_SECANT), and at its end, (n, m).
    starts = slopes[:, :-1].reshape(-1, count, _SLOPES_A_SECANT)
    ends = slopes[:, _SLOPES_A_SECANT::_SLOPES_A_SECANT]
    largest: NDArray[np.float64] = np.maximum(starts.max(axis=2), ends)
    return largest


def compute_excess(secant: ArrayLike, derivative: ArrayLike) -> NDArray[np.float64]:
    """Returns by how much secants are stretched more than derivatives explain; 0 or less: they explain all.

    With a stretch by derivatives of 1 + x, they explain a secant's stretch up to 1 + (1 + _RELATIVE) x +
    _ABSOLUTE. That leaves some room for rounding to float32, and for derivatives that are a little larger
    between the places where they are computed.

    Args:
      secant: The stretch of secants, an array or a number.
      derivative: The largest stretch by derivatives along each.
    """
    allowed = (1 + _RELATIVE) * (np.asarray(derivative, np.float64) - 1) + _ABSOLUTE
    excess: NDArray[np.float64] = np.asarray(secant, np.float64) - 1 - allowed
    return excess
