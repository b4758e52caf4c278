"""Gradients of norm C along uniformly random directions, redrawn in every run.

A score is the cosine between a canary's direction and u = reference - final. The reference model is trained
without noise or canaries, or is theta_0 if the noise moves models much further than the examples do. The
distribution of a held-out canary's score is known exactly (`audit.methods.exact_null`).
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
    ComputeReference,
    Knowledge,
    NullLaw,
    Tree,
    craft_same,
    jax,
    jnp,
    mechanism,
)
from audit.adversaries.directions import initial_model
from audit.adversaries.subspace import ALL, choose_tensors
from audit.errors import require
from audit.settings.fields import described

if TYPE_CHECKING:
    from audit.tasks.model import Model

_TINY = 1e-30  # avoids 0 / 0
_INVERSION_ERROR = 1e-8  # the norm of I - G X for the computed inverse X of a Gram matrix G
_MIN_EDGE = 0.2  # see `_eigenvalue_limits`
# We use leave-one-out scores if the other canaries increase a score's variance by more than this fraction.
_MAX_INTERFERENCE = 0.01


@dataclass(frozen=True)
class SphereFields(AdversaryFields):
    """Fresh directions: gradients of norm C along random directions, redrawn in every run."""

    name = "sphere"
    canary = "directions that every run draws anew"
    description = (
        "Fresh directions: every run draws new directions on the sphere and inserts a gradient of norm C "
        "along each. A score is the cosine between a direction and the difference between the model that the "
        "adversary expects and the final model. With many canaries, the other directions are projected out "
        "first."
    )
    has_fresh_canaries = True
    usual_runs = 60
    coins: bool = described(
        "sphere: flip a coin for each canary instead of inserting all, to check the null distribution.",
        default=False,
        has_flag=False,
    )
    within: str = described(
        "sphere: draw directions only within this tensor of the model, such as Dense_0/kernel; or auto.",
        default=ALL,
    )

    @property
    def all_in(self) -> bool:
        """True if every run inserts all canaries, without coin flips."""
        return not self.coins

    def make(self, knowledge: Knowledge) -> Adversary:
        """Returns an adversary that inserts gradients along random directions, redrawn in every run.

        Raises InputError for an unsuitable tensor or too many canaries.
        """
        canaries = knowledge.canaries
        require(canaries > 1 or self.all_in, "`coins` needs several canaries: increase `canaries`")
        indices = _find_indices(knowledge.model, canaries, self.within)
        parameters = knowledge.model.n_parameters if indices is None else len(indices)
        compute_reference: ComputeReference = initial_model
        if knowledge.is_rehearsed(parameters):
            # Training may move the model further than the noise does, which would reduce all cosines. A
            # rehearsal without noise or canaries predicts this movement.
            compute_reference = knowledge.rehearsal()
        return fresh_directions(
            canaries,
            compute_reference,
            leave_one_out=canaries > 1 and _do_canaries_interfere(knowledge, parameters),
            null=NullLaw(self.all_in, dimension=parameters),
            indices=indices,
        )


def _do_canaries_interfere(knowledge: Knowledge, parameters: int) -> bool:
    """Returns True if the other canaries add noticeably to the variance of a score.

    Directions are uniformly random in `parameters` dimensions.
    """
    # Consider how far the model moves along a canary's direction, in units of learning rate * C / batch size.
    # The noise contributes a variance of noise_steps * sigma^2. Another canary, which moves the model by
    # `insertions` along its own direction, contributes insertions^2 / parameters. We multiply both by
    # `parameters`.
    sigma = float(knowledge.hyper.noise_multiplier)
    from_noise = parameters * knowledge.noise_steps * sigma**2
    from_canaries = knowledge.canaries * knowledge.insertions**2
    return from_canaries > _MAX_INTERFERENCE * from_noise


def _find_indices(model: Model, canaries: int, within: str) -> Array | None:
    """Returns the indices (m,) in theta of the parameters that the directions use, or None for all of theta.

    `within` is a tensor's name, "auto" or "all". Raises InputError if no tensor has that name, or if
    `canaries` exceeds half the number of chosen parameters.
    """
    tensors = model.tensors()  # in the order of theta
    names = choose_tensors(tensors, canaries, within).names
    if within == ALL:
        return None
    is_chosen = [jnp.full(tensor.size, name in names) for name, tensor in tensors.items()]
    return jnp.flatnonzero(jnp.concatenate(is_chosen))


class Sphere(NamedTuple):
    """The state of the adversary in a run: K fresh directions, and a reference model.

    Attributes:
      canaries: the directions; their keys are (K, blocks).
      reference: (m,) the reference model at the m coordinates of the directions.
    """

    canaries: mechanism.Directions
    reference: Array

    def draw(self, key: Array) -> Sphere:
        """Returns the state for the run with this key, with its own K directions."""
        keys = jax.random.split(key, self.canaries.keys.shape)
        return self._replace(canaries=self.canaries._replace(keys=keys))

    def score(self, seen: Tree, final: Array, theta_0: Array) -> Array:
        """Returns the cosines (K,) between the canaries' directions and u = reference - final; 0 if u is 0.

        The reference is the model expected without canaries. If a canary is held out, u does not depend on
        its direction. The score then has the distribution of the cosine between a uniformly random direction
        in R^m and a fixed vector (`audit.laws.cosine_law`).
        """
        u = self.reference - self.canaries.select(final)
        # Directions are normal vectors drawn by `_sum_blocks` and divided by their lengths.
        products, squares = _sum_blocks(
            self.canaries.keys, u, lambda block: jnp.sum(block**2, axis=1)
        )
        lengths = jnp.sqrt(squares) * jnp.linalg.norm(u)
        return products / jnp.maximum(lengths, _TINY)

    def score_leaving_one_out(self, seen: Tree, final: Array, theta_0: Array) -> Array:
        """Returns the cosines (K,) between each direction and the part of u orthogonal to the others.

        Here u = reference - final, at the m coordinates of the directions. Let H be the inverse of the Gram
        matrix of the unit directions V (K, m), and w = H V u. Then

            cos_k = (w_k / H_kk) / sqrt(|u|^2 - (V u)' w + w_k^2 / H_kk),

        or 0 if the root is 0. The projection of u onto all directions has squared length (V u)' w. The part
        of direction k orthogonal to the others has squared length 1 / H_kk and dot product w_k / H_kk with u.
        So the component of u along that part has squared length w_k^2 / H_kk.
        """
        u = self.reference - self.canaries.select(final)
        # Directions are normal vectors divided by their lengths. We sum the vectors' dot products with u, and
        # with each other, over blocks of coordinates.
        products, gram = _sum_blocks(self.canaries.keys, u, lambda block: block @ block.T)
        lengths = jnp.sqrt(jnp.diagonal(gram))
        products = products / lengths  # V u
        # This is H. Newton's method needs eigenvalue bounds, which depend on m.
        inverse = _inverse(gram / jnp.outer(lengths, lengths), parameters=u.size)

        weights = inverse @ products  # w
        diagonal = jnp.diagonal(inverse)
        # The squared length of the part of u orthogonal to all directions; rounding may make it negative.
        squared_rest = jnp.maximum(jnp.vdot(u, u) - jnp.vdot(products, weights), 0.0)
        along = weights / diagonal
        length_off_others = jnp.sqrt(squared_rest + weights**2 / diagonal)
        return along / jnp.maximum(length_off_others, _TINY)


def fresh_directions(
    canaries: int,
    compute_reference: ComputeReference,
    leave_one_out: bool,
    null: NullLaw,
    indices: Array | None = None,
) -> Adversary:
    """Returns the adversary that inserts C * v_k for K uniformly random unit vectors v_k, drawn in every run.

    C is the clipping norm. The score of canary k is the cosine between v_k and u = reference - final.

    Args:
      canaries: K.
      compute_reference: theta_0 (p,) -> the reference model (p,).
      leave_one_out: True to project the other canaries' directions out of u before computing each cosine. K
        must then be at most half the number of parameters, to keep the Gram matrix well conditioned.
      null: whether all canaries are inserted (`all_in`), and m (`dimension`), the number of coordinates of a
        direction.
      indices: (m,) the indices of these coordinates; None for all.
    """

    def init(key: Array, theta_0: Array, clipping_norm: Array) -> Sphere:
        """Returns the keys of K directions, and the reference model at their m coordinates.

        Every run's `draw` replaces the placeholder keys. To save memory, each direction has one key per block
        of `mechanism.BLOCK` coordinates. The mechanism scales directions to the clipping norm.
        """
        blocks = math.ceil(null.dimension / mechanism.BLOCK)
        placeholders = jax.random.split(key, (canaries, blocks))
        directions = mechanism.Directions(placeholders, indices)
        return Sphere(directions, directions.select(compute_reference(theta_0)))

    return Adversary(
        init,
        craft_same,
        Sphere.score_leaving_one_out if leave_one_out else Sphere.score,
        canaries,
        crafts_constant=True,
        draw=Sphere.draw,
        null=null,
    )


def _sum_blocks(keys: Array, u: Array, reduce: Callable[[Array], Array]) -> tuple[Array, Array]:
    """Returns the dot products (K,) of K random vectors with u, and the sum of reduce(block) over blocks.

    The vectors (m,) are standard normal. To save memory, we draw them in blocks of B coordinates, and pad the
    last block with zeros.

    Args:
      keys: (K, blocks), the keys that draw the blocks of the vectors.
      u: (m,).
      reduce: maps a block (K, B) to an array, such as its rows' squared lengths; must map zeros to zeros.
    """
    blocks = keys.shape[1]
    size = min(mechanism.BLOCK, u.size)
    padded_size = blocks * size
    u_blocks = jnp.pad(u, (0, padded_size - u.size)).reshape(blocks, size)
    is_coordinate = jnp.arange(padded_size).reshape(blocks, size) < u.size

    Sums = tuple[Array, Array]  # as returned

    def add_block(sums: Sums, inputs: tuple[Array, Array, Array]) -> tuple[Sums, None]:
        """Draws a block (K, B) of K normal vectors, and adds block @ u_block and reduce(block) to the sums.

        `inputs` contains a key per vector (K,), the block's coordinates of u (B,), and a mask (B,) that is
        False for padding.
        """
        block_keys, u_block, is_inside = inputs
        # u (m,) determines only B = min(BLOCK, m) and the dtype.
        block = jax.vmap(mechanism.draw_normal_block, (0, None))(block_keys, u) * is_inside
        products, reduced = sums
        return (products + block @ u_block, reduced + reduce(block)), None

    zeros = jnp.zeros((len(keys), size))
    zero_sums = (zeros[:, 0], reduce(zeros))
    sums, _ = jax.lax.scan(add_block, zero_sums, (keys.T, u_blocks, is_coordinate))
    return sums


def _inverse(gram: Array, parameters: int) -> Array:
    """Inverts the Gram matrix G (K, K) of K <= p / 2 uniformly random unit vectors of R^p.

    We use Newton's iteration X <- X (2 I - G X), because LAPACK hangs if one process calls it on several CPU
    devices. Each iteration squares the error |I - G X|. If the eigenvalues of G are between `low` and `high`,
    we start from the multiple of I with the smallest error, X = 2 / (high + low) I. Its error
    is (high - low) / (high + low).
    """
    low, high = _eigenvalue_limits(len(gram), parameters)
    first_error = (high - low) / (high + low)
    # After n iterations, the error is first_error^(2^n). We choose n to make it at most _INVERSION_ERROR.
    power = math.log(_INVERSION_ERROR) / math.log(first_error)
    iterations = math.ceil(math.log2(power))
    identity = jnp.eye(len(gram))
    inverse = identity * (2 / (high + low))
    for _ in range(iterations):
        inverse = inverse @ (2 * identity - gram @ inverse)
    return inverse


def _eigenvalue_limits(canaries: int, parameters: int) -> tuple[float, float]:
    """Returns (low, high), bounds on the eigenvalues of the Gram matrix of K <= p / 2 random unit vectors.

    The vectors are uniform in R^p. For large p, the eigenvalues lie between the edges (1 - s)^2 and (1 + s)^2
    with s^2 = K / p (Marchenko and Pastur). The extreme eigenvalues fluctuate around the edges (Johnstone
    2001, Theorem 1.1). Our margin is six times the scale of the fluctuations, or almost five standard
    deviations. For small p, the margin may exceed the lower edge, so `low` is at least _MIN_EDGE times that
    edge.
    """
    lower_root = math.sqrt(parameters) - math.sqrt(canaries)
    upper_root = math.sqrt(parameters) + math.sqrt(canaries)
    # Relative to the edge root^2 / p, the fluctuations have the scale (K p)^(-1/6) root^(-2/3).
    scale = 6 * (canaries * parameters) ** (-1 / 6)
    lower_factor = max(1 - scale * lower_root ** (-2 / 3), _MIN_EDGE)
    upper_factor = 1 + scale * upper_root ** (-2 / 3)
    low = lower_root**2 * lower_factor / parameters
    high = upper_root**2 * upper_factor / parameters
    return low, high
