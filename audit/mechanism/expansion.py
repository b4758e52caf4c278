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
from collections.abc import Callable
from functools import lru_cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

from audit.mechanism.base import Hyperparameters
from audit.mechanism.clipping.base import Batch, ClippedSum
from audit.mechanism.ensemble import MOST_PROGRAMS

_KRYLOV_VECTORS = 12  # that Lanczos iterations keep: `eigsh`'s ncv
_TOLERANCE = 0.02  # relative, of the eigenvalue m
# Parameters up to which the whole Jacobian is computed, by a product each, all in a single call. Lanczos
# iterations take fewer products, but a call for each, and that takes longer than small products.
MOST_WHOLE = 128
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
    step: StepMap, theta: Array, batch: Batch, start: NDArray[np.float64] | None = None
) -> Expansion:
    """Returns the largest singular value of a step's Jacobian J, and the direction that it stretches.

    With the largest eigenvalue m of (J'J - I) / eta, the singular value is sqrt(1 + eta m). Beyond MOST_WHOLE
    parameters Lanczos iterations approach it from below, to within 5% of its excess over 1.

    Args:
      step: The step's functions.
      theta: The model (p,) before the step.
      batch: The mini-batch of the step.
      start: (p,) where Lanczos iterations start, such as the direction found at the step before; by default
        the same random vector each time.
    """
    p = theta.size

    # For few parameters the whole matrix is built. `eigh` gives eigenvalues in rising order.
    if p <= MOST_WHOLE:
        jacobian = np.asarray(step.jacobian(theta, batch), np.float64)
        matrix = step.learning_rate * jacobian.T @ jacobian - jacobian - jacobian.T
        eigenvalues, eigenvectors = np.linalg.eigh(matrix)
        return _make_expansion(step, eigenvalues[-1], eigenvectors[:, -1])

    if start is None:
        start = np.random.default_rng(0).normal(size=p)

    pull_back = step.linearise(theta, batch)

    def multiply(v: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns (J'J - I) v / eta, for ARPACK in float64."""
        product = step.stretch(pull_back, jnp.asarray(np.float32(v.reshape(p))))
        return np.asarray(product, np.float64)

    operator = LinearOperator((p, p), matvec=multiply, dtype=np.float64)
    find = partial(eigsh, operator, k=1, which="LA", tol=_TOLERANCE)
    # A product of 0 means that J'J leaves `start` as it is. Then J'J counts as I, which stretches nothing and
    # gives the iterations nothing to find.
    if not multiply(start).any():
        return Expansion(1.0, start / np.linalg.norm(start))
    try:
        values, vectors = find(ncv=_KRYLOV_VECTORS, v0=start)
    except ArpackNoConvergence:
        # Again from a random start, with more vectors; `eigsh` refuses more than the matrix has rows.
        values, vectors = find(ncv=min(4 * _KRYLOV_VECTORS, p))
    return _make_expansion(step, values[-1], vectors[:, -1])


def _make_expansion(step: StepMap, eigenvalue: float, direction: NDArray[np.float64]) -> Expansion:
    """Returns the expansion of an eigenvalue m of (J'J - I) / eta; J's singular value is sqrt(1 + eta m)."""
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
