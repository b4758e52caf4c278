"""Gradients of norm C along uniformly random directions that every run draws for itself.

A score is the cosine of a canary's direction and u = expected - theta_T. If the canary is out, the
distribution of its score is known exactly (`audit.methods.exact_null`). The expected model comes from a
training run without noise and canaries. If the noise is much larger than all other movement, it is theta_0.

Many canaries blur each other, since u moves along all of them. Leave-one-out scores remove the part of u
along the directions of the other canaries. This does not change the null distribution, because the scored
direction is independent of the others.

Directions are drawn from a run's key in blocks of coordinates, so memory never contains K x p numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from audit.adversaries.base import (
    Adversary,
    AdversaryFields,
    Array,
    Knowledge,
    NullLaw,
    Rehearse,
    Tree,
    jax,
    jnp,
    mechanism,
)
from audit.adversaries.directions import craft_unclipped, initial_model
from audit.adversaries.subspace import ALL, choose_tensors
from audit.errors import require
from audit.settings.fields import described

if TYPE_CHECKING:
    from audit.tasks.model import Model

_TINY = 1e-30  # avoids 0 / 0
_INVERSION_ERROR = 1e-8
_MIN_EDGE = 0.2  # a fraction of the lower bound for large p
# If the other canaries add more than this fraction to the variance of a score, the score leaves them out.
_MAX_INTERFERENCE = 0.01


@dataclass(frozen=True)
class SphereFields(AdversaryFields):
    """Fresh directions: gradients of norm C along random directions that every run draws for itself."""

    name = "sphere"
    canary = "directions that every run draws anew"
    description = (
        "Fresh directions: every run draws new directions on the sphere and inserts a gradient of norm C "
        "along each. A score is the cosine of a direction and the final model's distance from the model that "
        "the adversary expects. If there are many canaries, it leaves out the other directions."
    )
    any_time = True
    usual_runs = 60
    coins: bool = described(
        "sphere: insert each canary by a coin, which checks the null distribution; else insert all.",
        default=False,
        has_flag=False,
    )
    within: str = described(
        "sphere: draw directions only within this tensor of the model, such as Dense_0/kernel, or auto.",
        default=ALL,
    )

    @property
    def inserts_all(self) -> bool:
        return not self.coins

    def make(self, knowledge: Knowledge) -> Adversary:
        """Returns the adversary; raises InputError if the tensor is unsuitable or canaries are too many."""
        canaries = knowledge.canaries
        within = _find_coordinates(knowledge.model, canaries, self.within)
        parameters = knowledge.model.n_parameters if within is None else len(within)
        is_several = canaries > 1
        require(is_several or not self.coins, "`coins` are for several canaries: raise `canaries`")
        # Along a direction, in units of the learning rate times C, the noise has the variance noise_steps *
        # sigma^2. The other canaries add canaries * insertions^2 / parameters. Both are multiplied by
        # `parameters`.
        sigma = float(knowledge.hyper.noise_multiplier)
        noise = parameters * knowledge.noise_steps * sigma**2
        added = canaries * knowledge.insertions**2
        interferes = added > _MAX_INTERFERENCE * noise
        # If the noise hides all other movement, theta_0 is as good as a rehearsed model.
        return fresh_directions(
            canaries,
            knowledge.rehearsal() if knowledge.is_rehearsed(parameters) else initial_model,
            leave_one_out=is_several and interferes,
            all_in=not self.coins,
            within=within,
        )


def _find_coordinates(model: Model, canaries: int, within: str) -> Array | None:
    """Returns the indices (m,) in theta of the tensors in which to draw directions; None for all of theta.

    `within` is a tensor's name, "auto" or "all" (`choose_tensors`). Raises InputError if there is no such
    tensor, or if the number of canaries exceeds half of its parameters.
    """
    tensors = model.tensors()
    names = choose_tensors(tensors, canaries, within).names
    if within == ALL:
        return None
    ranges = []
    start = 0
    for name, tensor in tensors.items():
        if name in names:
            ranges.append(jnp.arange(start, start + tensor.size))
        start += tensor.size
    return jnp.concatenate(ranges)


class Sphere(NamedTuple):
    """The state of an adversary of K fresh directions in a run.

    Attributes:
      keys: (K, blocks) typed keys, one row per direction and one key per block of coordinates.
      expected: (m,) the coordinates of the expected model.
      within: (m,) the indices of these coordinates in theta; None for all p of them.
    """

    keys: Array
    expected: Array
    within: Array | None = None

    def craft(self, step: Array, theta: Array) -> mechanism.Directions:
        """Returns directions of infinite norm at the chosen coordinates; the mechanism clips each to C."""
        return craft_unclipped(self, step, theta)._replace(within=self.within)

    def find_movement(self, theta_t: Array) -> Array:
        """Returns u = expected - theta_T at the chosen coordinates, (m,)."""
        reached = theta_t if self.within is None else theta_t[self.within]
        return self.expected - reached

    def draw(self, key: Array) -> Sphere:
        """Returns the state for a run: its own K directions, drawn from the run's key."""
        return self._replace(keys=_split_keys(key, len(self.keys), self.expected.size))

    def score(self, seen: Tree, theta_t: Array, theta_0: Array) -> Array:
        """Returns the cosine (K,) of each canary's direction with u = expected - theta_T; 0 if u is 0."""
        u = self.find_movement(theta_t)

        def add(total: tuple[Array, Array], directions: Array, u_block: Array) -> Tree:
            """Adds a block to the directions' dot products with u (K,) and to their squared lengths (K,)."""
            products, squares = total
            return products + directions @ u_block, squares + jnp.sum(directions**2, axis=1)

        zeros = jnp.zeros(len(self.keys))
        products, squares = _fold_blocks(self.keys, u, (zeros, zeros), add)
        lengths = jnp.sqrt(squares) * jnp.linalg.norm(u)
        return jnp.asarray(products / jnp.maximum(lengths, _TINY))

    def score_leaving_one_out(self, seen: Tree, theta_t: Array, theta_0: Array) -> Array:
        """Returns the cosine (K,) of each direction with the part of u orthogonal to all other directions.

        Let H be the inverse of the Gram matrix of the directions V (K, p), and w = H V u. Then

            cos_k = (w_k / H_kk) / sqrt(|u|^2 - (V u)' w + w_k^2 / H_kk),

        or 0 if that part of u is 0. The projection of u onto all directions is V' w, with squared length
        (V u)' w. The part of direction k orthogonal to the others has squared length 1 / H_kk and dot product
        w_k / H_kk with u. So the component of u along that part has squared length w_k^2 / H_kk.
        """
        u = self.find_movement(theta_t)

        def add(total: tuple[Array, Array], directions: Array, u_block: Array) -> Tree:
            """Adds a block to the directions' dot products with u (K,) and to their Gram matrix (K, K)."""
            products, gram = total
            return products + directions @ u_block, gram + directions @ directions.T

        size = len(self.keys)
        start = (jnp.zeros(size), jnp.zeros((size, size)))
        products, gram = _fold_blocks(self.keys, u, start, add)

        # Directions are drawn as normal vectors. Divide by their lengths to make them unit vectors.
        lengths = jnp.sqrt(jnp.diagonal(gram))
        products = products / lengths
        inverse = _inverse(gram / jnp.outer(lengths, lengths), u.size)

        weights = inverse @ products  # w
        diagonal = jnp.diagonal(inverse)
        # The squared length of the part of u orthogonal to all directions. Rounding may make it negative.
        off_all = jnp.maximum(jnp.vdot(u, u) - jnp.vdot(products, weights), 0.0)
        along = weights / diagonal
        off_others = jnp.sqrt(off_all + weights**2 / diagonal)
        return jnp.asarray(along / jnp.maximum(off_others, _TINY))


def fresh_directions(
    canaries: int,
    rehearse: Rehearse,
    leave_one_out: bool,
    all_in: bool,
    within: Array | None = None,
) -> Adversary:
    """Returns the adversary that inserts C * v_k for K uniformly random unit vectors v_k, drawn in every run.

    The score of canary k is the cosine of v_k with u = expected - theta_T.

    Args:
      canaries: K.
      rehearse: theta_0 (p,) -> the expected model (p,).
      leave_one_out: True to project the other canaries' directions out of u before each cosine. K must then
        be at most half the number of parameters, so that the Gram matrix is well conditioned in float32.
      all_in: True to insert all canaries, without coins.
      within: (m,), the indices of the coordinates in which directions are drawn; None for all.
    """

    def init(key: Array, theta_0: Array, clipping_norm: Array) -> Sphere:
        """Trains the expected model. In every run, `draw` replaces the keys."""
        expected = rehearse(theta_0)
        if within is not None:
            expected = expected[within]
        return Sphere(_split_keys(key, canaries, expected.size), expected, within)

    return Adversary(
        init,
        Sphere.craft,
        Sphere.score_leaving_one_out if leave_one_out else Sphere.score,
        canaries,
        crafts_constant=True,
        draw=Sphere.draw,
        null=NullLaw(
            all_in=all_in,
            law_is_known=True,
            dimension=None if within is None else len(within),
        ),
    )


def _split_keys(key: Array, canaries: int, parameters: int) -> Array:
    """Splits a key into keys (K, blocks), one for every BLOCK coordinates of each of K directions."""
    blocks = math.ceil(parameters / mechanism.BLOCK)
    return jax.random.split(key, (canaries, blocks))


def _fold_blocks(
    keys: Array, u: Array, start: Tree, add: Callable[[Tree, Array, Array], Tree]
) -> Tree:
    """Accumulates a total over blocks of coordinates of K random directions and of u (p,).

    The directions are standard normal vectors, not yet scaled to length 1. Drawing them block by block saves
    memory. Entries beyond p are 0.

    Args:
      keys: (K, blocks), the keys that draw the directions.
      u: (p,).
      start: the total before the first block.
      add: (total, a block of the directions (K, B), a block of u (B,)) -> the next total.
    """
    blocks = keys.shape[1]
    size = min(mechanism.BLOCK, u.size)
    u_blocks = jnp.pad(u, (0, blocks * size - u.size)).reshape(blocks, size)
    is_coordinate = jnp.arange(blocks * size).reshape(blocks, size) < u.size

    def add_block(total: Tree, block: tuple[Array, Array, Array]) -> tuple[Tree, None]:
        """Draws a block of all directions, (K, B), with 0 for padding, and adds it to the total."""
        block_keys, u_block, is_inside = block
        directions = jax.vmap(mechanism.draw_block, (0, None))(block_keys, u) * is_inside
        return add(total, directions, u_block), None

    total, _ = jax.lax.scan(add_block, start, (keys.T, u_blocks, is_coordinate))
    return total


def _inverse(gram: Array, parameters: int) -> Array:
    """Inverts the Gram matrix G (K, K) of K <= p / 2 uniformly random unit vectors of R^p.

    Newton's iteration X <- X (2 I - G X) needs only products. We do not call LAPACK, because it hangs on a
    CPU if several devices of a process call it. The iteration starts with the multiple of I that has the
    smallest error |I - G X| for all eigenvalues within `_eigenvalue_limits`.
    """
    low, high = _eigenvalue_limits(len(gram), parameters)
    first_error = (high - low) / (high + low)
    # Each iteration squares the error.
    power = math.log(_INVERSION_ERROR) / math.log(first_error)
    steps = math.ceil(math.log2(power))
    identity = jnp.eye(len(gram))

    def improve(inverse: Array, _: None) -> tuple[Array, None]:
        return inverse @ (2 * identity - gram @ inverse), None

    first_guess = identity * (2 / (high + low))
    inverse: Array = jax.lax.scan(improve, first_guess, length=steps)[0]
    return inverse


def _eigenvalue_limits(canaries: int, parameters: int) -> tuple[float, float]:
    """Returns (low, high), bounds on the eigenvalues of the Gram matrix of K uniform unit vectors of R^p.

    For large p, eigenvalues are between (1 - s)^2 and (1 + s)^2 with s^2 = K / p (Marchenko and Pastur). Our
    bounds are wider by six times the scale of the edges' fluctuations (Johnstone 2001, Theorem 1.1). In small
    dimensions this may exceed the lower edge, so `low` is at least _MIN_EDGE * (1 - s)^2.
    """
    lower_root = math.sqrt(parameters) - math.sqrt(canaries)
    upper_root = math.sqrt(parameters) + math.sqrt(canaries)
    # Relative to the edge root^2 / p, its fluctuations have the scale (K p)^(-1/6) root^(-2/3).
    scale = 6 * (canaries * parameters) ** (-1 / 6)
    lower_factor = max(1 - scale * lower_root ** (-2 / 3), _MIN_EDGE)
    upper_factor = 1 + scale * upper_root ** (-2 / 3)
    low = lower_root**2 * lower_factor / parameters
    high = upper_root**2 * upper_factor / parameters
    return low, high
