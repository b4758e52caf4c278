"""Measures how much a step of DP-SGD can increase the distance between two models.

A step without canaries or noise is phi(theta) = theta - eta d(theta) with

    d(theta) = sum_i clip(g_i) / B + lambda theta.

To first order, phi stretches distances by at most the largest singular value of its Jacobian J = I - eta H,
where H is the Jacobian of d. The square of this value is 1 + eta m, where m is the largest eigenvalue of

    (J'J - I) / eta = -(H + H') + eta H'H.

`largest_expansion` finds m with Lanczos iterations on this matrix.

Derivatives at a point do not reveal nearby jumps in d, so `worst_on_lines` uses secants to look for them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from scipy.linalg import eigh, eigh_tridiagonal
from scipy.stats import norm

from audit.mechanism.base import Hyperparameters
from audit.mechanism.clipping.base import Batch, ClippedSum

# The measured constant c may be too low by at most this fraction of |c - 1|, plus _ROUNDING.
TOLERANCE = 0.05
_ROUNDING = 1e-6
_MISSED = 0.003  # the probability that a random start misses a larger constant
# For up to this number of parameters, we compute the whole Jacobian. Lanczos iterations need fewer products,
# but compute each in a separate call.
MAX_WHOLE = 128
# If these iterations are not enough, we compute the whole Jacobian for up to _MAX_WHOLE_AFTERWARDS
# parameters.
_MAX_ITERATIONS = 200
_MAX_WHOLE_AFTERWARDS = 2000
_LARGE = 10_000  # in parameters
_MAX_ITERATIONS_OF_LARGE = 48  # each stores a vector (p,)
_LINES_AT_ONCE = 16
# If derivatives stretch by 1 + x, secants may stretch by 1 + (1 + _RELATIVE) x + _ABSOLUTE.
_RELATIVE = 0.1
_ABSOLUTE = 5e-4
# If derivatives at models stretch by at most 1 + x, we cap derivatives on lines at 1 + MAX_MARGIN x.
MAX_MARGIN = 10
_SLOPES_PER_SECANT = 4  # derivatives measured along a secant, excluding its end

Vector = NDArray[np.float64]
Stretches = TypeVar("Stretches", float, Vector)


class Expansion(NamedTuple):
    """The largest factor by which a step stretches distances at a model, and in which direction.

    Attributes:
      constant: The largest singular value of the step's Jacobian.
      direction: (p,) the unit vector that the Jacobian stretches by `constant`.
    """

    constant: float
    direction: Vector


class Line(NamedTuple):
    """Consecutive secants on a line through a model.

    Attributes:
      length: The length of each secant.
      reach: The number of secants on either side of the model.
      stretch_at_models: The largest factor by which this step's Jacobian at a run's model stretches a vector.
      largest_stretch_at_models: The largest `stretch_at_models` of all measured steps.
    """

    length: float
    reach: int
    stretch_at_models: float
    largest_stretch_at_models: float


class Stretch(NamedTuple):
    """The factor by which a step phi stretches the displacement u between models x and x + u.

    Attributes:
      secant: |phi(x + u) - phi(x)| / |u|.
      derivative: The largest stretch that is consistent with derivatives along the displacement.
    """

    secant: float
    derivative: float


# w (p,) -> (H'w,), as `jax.vjp` returns it.
_PullBack = Callable[[Array], tuple[Array]]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StepMap:
    """A step without canaries or noise, phi(theta) = theta - eta d(theta)."""

    clipped_sum: ClippedSum = field(metadata={"static": True})
    learning_rate: float
    weight_decay: float
    clipping_norm: float

    @jax.jit
    def descend(self, theta: Array, batch: Batch) -> Array:
        """Returns d(theta), of shape (p,): the mean clipped gradient plus the weight decay term."""
        total = self.clipped_sum(theta, batch, jnp.float32(self.clipping_norm))
        return total / len(batch[1]) + self.weight_decay * theta


def make_step_map(clipped_sum: ClippedSum, hyper: Hyperparameters) -> StepMap:
    """Returns the map of a plain SGD step with these hyperparameters."""
    return StepMap(
        clipped_sum,
        learning_rate=float(hyper.learning_rate),
        weight_decay=float(hyper.weight_decay or 0.0),
        clipping_norm=float(hyper.clipping_norm),
    )


@jax.jit
def _linearise(step: StepMap, theta: Array, batch: Batch) -> _PullBack:
    """Returns w -> (H'w,), for the Jacobian H (p, p) of `step.descend` at theta."""
    _, pull_back = jax.vjp(lambda model: step.descend(model, batch), theta)
    return pull_back  # a pytree, so `jit` can return it


def _push_forward(pull_back: _PullBack, v: Array) -> Array:
    """Returns H v, (p,), for the Jacobian H of a descent, by transposing `pull_back`, w -> (H'w,).

    We do not use `jax.jvp`, because layers with a custom backward pass do not support it.
    """
    # A linear function has the same derivative everywhere, so we take it at 0.
    zeros = jnp.zeros_like(v)
    _, transpose = jax.vjp(lambda w: pull_back(w)[0], zeros)
    return transpose(v)[0]


@jax.jit
def _multiply(step: StepMap, pull_back: _PullBack, v: Array) -> Array:
    """Returns (J'J - I) v / eta = H'(eta H v - v) - H v, (p,), for a step's Jacobian J = I - eta H."""
    pushed = _push_forward(pull_back, v)
    return pull_back(step.learning_rate * pushed - v)[0] - pushed


@jax.jit
def _compute_descent_jacobian(step: StepMap, theta: Array, batch: Batch) -> Array:
    """Returns the Jacobian H of `step.descend` at theta, of shape (p, p), row by row."""
    pull_back = _linearise(step, theta, batch)
    units = jnp.eye(theta.size)
    return jax.lax.map(lambda unit: pull_back(unit)[0], units)


@partial(jax.jit, static_argnums=0)
def _on_lines(
    measure_along: Callable[..., Array],
    step: StepMap,
    theta: Array,
    batch: Batch,
    directions: Array,
    positions: Array,
) -> Array:
    """Returns the step's stretch factors minus 1 along lines through theta, one row per line.

    `measure_along` is `_measure_secants` or `_measure_slopes`. `directions` (n, p) may have any length. A
    direction of length 0 gives a row of zeros. `positions` (m,) are signed distances from theta.
    """

    def measure(direction: Array) -> Array:
        """Measures along the line with direction (p,)."""
        length = jnp.linalg.norm(direction)
        unit = direction / jnp.where(length > 0, length, 1.0)
        return measure_along(step, theta, batch, unit, positions)

    # For large models, a program that measures several lines at once takes long to compile.
    at_once = _LINES_AT_ONCE if theta.size < _LARGE else None
    return jax.lax.map(measure, directions, batch_size=at_once)


def _measure_secants(
    step: StepMap, theta: Array, batch: Batch, unit: Array, positions: Array
) -> Array:
    """Returns |phi(x + u) - phi(x)| / |u| - 1, (m - 1,), for consecutive models x and x + u on a line.

    phi is the step. The models are theta + positions (m,) * unit.
    """
    models = theta + positions[:, None] * unit
    descents = jax.lax.map(lambda model: step.descend(model, batch), models)
    displacements = jnp.diff(models, axis=0)
    changes = -step.learning_rate * jnp.diff(descents, axis=0)  # phi(x + u) - phi(x) - u
    return jax.vmap(_measure_stretch)(displacements, changes)


def _measure_slopes(
    step: StepMap, theta: Array, batch: Batch, unit: Array, positions: Array
) -> Array:
    """Returns |J unit| - 1, (m,), for the step's Jacobian J at m models on a line.

    The models are theta + t * unit for each t in `positions` (m,).
    """

    def measure(position: Array) -> Array:
        """Returns |J unit| - 1 at a position."""
        pull_back = _linearise(step, theta + position * unit, batch)
        # J = I - eta H, so J unit - unit = -eta H unit. Subtracting would lose precision, because J is close
        # to I.
        change = -step.learning_rate * _push_forward(pull_back, unit)
        return _measure_stretch(unit, change)

    return jax.lax.map(measure, positions)


def _measure_stretch(displacement: Array, change: Array) -> Array:
    """Returns |u + change| / |u| - 1 for a displacement u of shape (p,); 0 if u is 0.

    With gain = |u + change|^2 / |u|^2 - 1, this is sqrt(1 + gain) - 1 = gain / (sqrt(1 + gain) + 1). The last
    form avoids cancellation.
    """
    squared = displacement @ displacement
    is_nonzero = squared > 0
    added = 2 * displacement @ change + change @ change  # |u + change|^2 - |u|^2
    divisor = jnp.where(is_nonzero, squared, 1.0)
    gain = jnp.where(is_nonzero, added / divisor, 0.0)
    gain = jnp.maximum(gain, -1.0)  # in case of rounding errors
    return gain / (jnp.sqrt(1 + gain) + 1)


def largest_expansion(
    step: StepMap,
    theta: Array,
    batch: Batch,
    start: Vector | None = None,
    seed: int | tuple[int, ...] = 0,
) -> Expansion:
    """Returns the largest factor by which a step stretches distances near theta, and its direction.

    The factor is the largest singular value c of the step's Jacobian. For up to MAX_WHOLE parameters, we
    compute the whole Jacobian. For more, Lanczos iterations from a random start find a value that is too low
    by at most TOLERANCE |c - 1| + _ROUNDING, except with probability _MISSED. If iterations do not converge,
    we compute the whole Jacobian or, above 2,000 parameters, return an upper bound on c.

    Args:
      start: (p,) a guess at the direction, such as the result for an earlier step, to save iterations. A
        wrong guess does no harm.
      seed: The seed for the random start, to which we add the guess.
    """
    p = theta.size
    if p <= MAX_WHOLE:
        return _decompose(step, theta, batch)

    pull_back = _linearise(step, theta, batch)

    def multiply(v: Vector) -> Vector:
        """Returns (J'J - I) v / eta, (p,). J'J v would lose precision, because J'J is close to I."""
        return np.asarray(_multiply(step, pull_back, jnp.float32(v)), np.float64)

    def add_tolerance(eigenvalue: float) -> float:
        """Adds the tolerance for J's singular value. Iterations stop once no eigenvalue exceeds the sum."""
        constant = _find_constant(step, eigenvalue)
        largest = constant + TOLERANCE * abs(constant - 1) + _ROUNDING
        return (largest**2 - 1) / step.learning_rate  # inverts `_find_constant`

    vector = np.random.default_rng(seed).normal(size=p)
    if start is not None:
        # The random vector has a length of about sqrt(p). We scale the guess to the same length.
        vector += math.sqrt(p) / np.linalg.norm(start) * start
    max_iterations = _MAX_ITERATIONS if p < _LARGE else _MAX_ITERATIONS_OF_LARGE
    eigenvalue, direction, is_close = _find_largest_eigenvalue(
        multiply, vector, min(p, max_iterations), add_tolerance
    )
    if not is_close and p <= _MAX_WHOLE_AFTERWARDS:
        return _decompose(step, theta, batch)
    return Expansion(_find_constant(step, eigenvalue), direction)  # an upper bound unless is_close


def _decompose(step: StepMap, theta: Array, batch: Batch) -> Expansion:
    """Returns the largest singular value of a step's Jacobian J at theta, and its direction."""
    h = np.asarray(_compute_descent_jacobian(step, theta, batch), np.float64)
    matrix = step.learning_rate * h.T @ h - h - h.T
    last = theta.size - 1  # the index of the largest eigenvalue
    eigenvalues, eigenvectors = eigh(matrix, subset_by_index=(last, last))
    constant = _find_constant(step, eigenvalues[0])
    return Expansion(constant, eigenvectors[:, 0])


def _find_constant(step: StepMap, eigenvalue: float) -> float:
    """Returns the singular value sqrt(1 + eta m) of J for an eigenvalue m of (J'J - I) / eta."""
    square = 1 + step.learning_rate * float(eigenvalue)
    return math.sqrt(max(square, 0.0))  # in case of rounding errors


def _find_largest_eigenvalue(
    multiply: Callable[[Vector], Vector],
    start: Vector,
    max_iterations: int,
    add_tolerance: Callable[[float], float],
) -> tuple[float, Vector, bool]:
    """Finds the largest eigenvalue of a symmetric matrix, or an upper bound, with Lanczos iterations.

    The iterations converge once no eigenvalue can exceed the largest one found by more than the tolerance,
    except with probability at most _MISSED. At an eigenvalue x, the Lanczos polynomials p_j satisfy sum_j
    p_j(x)^2 <= limit (`_limit_at_eigenvalues`).

    Args:
      multiply: Returns the product of the matrix and a vector of shape (p,).
      start: (p,) independent N(0, 1) numbers, plus any fixed vector, such as a guess.
      max_iterations: At most p.
      add_tolerance: Adds the tolerance to an eigenvalue.

    Returns:
      (the largest eigenvalue found, its unit eigenvector (p,), True) if iterations converge; else (an upper
      bound on all eigenvalues, the same vector, False).
    """
    squared_length = float(start @ start)
    limit_at_eigenvalues = _limit_at_eigenvalues(squared_length)
    basis = np.empty((max_iterations, len(start)))
    # In this basis, the matrix is tridiagonal.
    diagonal: list[float] = []
    off_diagonal: list[float] = []
    vector = start / math.sqrt(squared_length)
    for k in range(1, max_iterations + 1):
        basis[k - 1] = vector
        product = multiply(vector)
        diagonal.append(float(vector @ product))
        known = basis[:k]
        for _ in range(2):  # orthogonalises; the second pass removes rounding errors
            product -= known.T @ (known @ product)
        length = float(np.linalg.norm(product))
        off_diagonal.append(length)
        # Larger matrices take longer, so we compute their eigenvalues less often.
        is_due = k % (1 + k // 16) == 0
        if is_due or length == 0 or k == max_iterations:
            values, vectors = eigh_tridiagonal(
                diagonal, off_diagonal[:-1], select="i", select_range=(k - 1, k - 1)
            )
            largest = values[0]
            eigenvector = known.T @ vectors[:, 0]
            bound = add_tolerance(largest)
            # Above `largest`, the sum increases with x, so this excludes all eigenvalues x above `bound`. The
            # sum is infinite if the length is 0.
            if _sum_squared_polynomials(diagonal, off_diagonal, bound) > limit_at_eigenvalues:
                return largest, eigenvector, True
        vector = product / length
    # We keep raising the bound by a tenth of its distance from `largest` until no eigenvalue can exceed it.
    while _sum_squared_polynomials(diagonal, off_diagonal, bound) <= limit_at_eigenvalues:
        bound += 0.1 * (bound - largest)
    return bound, eigenvector, False


def _limit_at_eigenvalues(squared_length: float) -> float:
    """Returns a limit on sum_j p_j(x)^2 at an eigenvalue x. It fails with probability at most _MISSED.

    Lanczos iterations from a vector s yield polynomials p_0, ..., p_k such that the vectors p_j(matrix) s /
    |s| are orthonormal. Let c be the dot product of s and the unit eigenvector of x. The dot product of
    p_j(matrix) s / |s| and the eigenvector is p_j(x) c / |s|. The squares of these products add up to at most
    1 (Bessel's inequality), so sum_j p_j(x)^2 <= (|s| / c)^2. The entries of s are independent N(0, 1)
    numbers, so |c| is below q = 0.0038 only with probability _MISSED. Adding a fixed vector to s makes a tiny
    c less likely. `squared_length` is |s|^2.
    """
    q = norm.ppf((1 + _MISSED) / 2)
    return squared_length / q**2


def _sum_squared_polynomials(diagonal: list[float], off_diagonal: list[float], x: float) -> float:
    """Returns the sum of p_j(x)^2 over the orthonormal polynomials p_0, ..., p_k of k Lanczos iterations.

    If the sum is large, x cannot be an eigenvalue unless its eigenvector is almost orthogonal to the starting
    vector (see `_limit_at_eigenvalues`). `diagonal` and `off_diagonal` (k,) are the coefficients a_j and b_j
    of the recurrence b_j p_(j+1)(x) = (x - a_j) p_j(x) - b_(j-1) p_(j-1)(x) with p_0 = 1. The result is
    infinite if the sum might overflow or the last b_j is 0 (all other eigenvectors are then orthogonal to the
    starting vector).
    """
    previous = 0.0  # p_(j-1)
    value = 1.0  # p_j
    total = 1.0
    previous_b = 0.0
    for a, b in zip(diagonal, off_diagonal, strict=True):
        if b == 0 or total > 1e200:
            return math.inf
        following = ((x - a) * value - previous_b * previous) / b
        previous = value
        value = following
        previous_b = b
        total += value**2
    return total


def worst_on_lines(
    step: StepMap, theta: Array, batch: Batch, directions: Vector, line: Line
) -> Stretch:
    """Searches lines through theta for jumps in a step phi that derivatives do not reveal.

    We cut lines into segments from x to x + u. Without a jump, the secant |phi(x + u) - phi(x)| / |u| is at
    most the largest |J u| / |u| on the segment, for the step's Jacobian J. Returns the secant that exceeds
    this limit the most. Jumps outside the lines are missed.

    Args:
      directions: (n, p) the lines' directions, of any length. A direction of length 0 shows no jump.
      line: The segments of each line, and the Jacobians' largest stretches at the runs' models.
    """
    along = jnp.asarray(directions, jnp.float32)
    numbers = jnp.arange(-line.reach, line.reach + 1, dtype=jnp.float32)
    positions = line.length * numbers
    # Factors are near 1, so float32 keeps more digits of the difference from 1.
    minus_one = _on_lines(_measure_secants, step, theta, batch, along, positions)  # (n, 2 reach)
    secants = 1 + np.asarray(minus_one, np.float64)

    # Measuring Jacobians along lines is slow, so we first compare the secants with `stretch_at_models`.
    derivatives = np.full(secants.shape, line.stretch_at_models)
    if (compute_excess(secants, derivatives) > 0).any():
        along_segments = _find_slopes(step, theta, batch, along, line)
        # At a steep jump, J stretches vectors far more than at any model. Without a limit, this stretch would
        # hide the jump.
        limit = 1 + MAX_MARGIN * max(line.largest_stretch_at_models - 1, 0)
        trusted = np.minimum(along_segments, limit)
        derivatives = np.maximum(derivatives, trusted)

    worst = np.argmax(compute_excess(secants, derivatives))
    return Stretch(float(secants.flat[worst]), float(derivatives.flat[worst]))


def _find_slopes(
    step: StepMap, theta: Array, batch: Batch, directions: Array, line: Line
) -> Vector:
    """Returns the largest factor by which a step's Jacobians stretch segments of n lines, (n, 2 reach)."""
    # On each side of theta, `reach` segments of `line.length`, each cut into _SLOPES_PER_SECANT intervals.
    places = jnp.arange(2 * line.reach * _SLOPES_PER_SECANT + 1, dtype=jnp.float32)
    positions = line.length * (places / _SLOPES_PER_SECANT - line.reach)
    # As in `worst_on_lines`, we measure the difference from 1.
    minus_one = _on_lines(_measure_slopes, step, theta, batch, directions, positions)
    slopes = 1 + np.asarray(minus_one, np.float64)
    # A window that begins with a segment contains all of the segment's points, including both ends.
    windows = sliding_window_view(slopes, _SLOPES_PER_SECANT + 1, axis=1)
    return windows[:, ::_SLOPES_PER_SECANT].max(axis=2)


def compute_excess(secant: Stretches, derivative: Stretches) -> Stretches:
    """Returns how far secants exceed the stretch that derivatives allow; above 0 if the gradient jumps.

    Both arguments are factors, such as 1.002, by which a step increases distances. We compare the increases,
    here 0.002. Relative and absolute margins allow for float32 rounding and for larger derivatives between
    the measured points.
    """
    allowed = (1 + _RELATIVE) * (derivative - 1) + _ABSOLUTE
    return secant - 1 - allowed
