"""Linear response: what a rehearsed training run says of how canaries and noise move the final model.

A training run without noise carries along the covariance of theta_t and how far a canary has shifted theta_t.
In place of a step's derivatives these take its differences over the distances that the noise spans (Norgaard,
Poulsen and Ravn, 2000, "New developments in state estimation for nonlinear systems", the filter DD1): the
gradient of a ReLU network jumps where a unit switches, which no derivative at a point sees, but the noise
does. The mechanism's own step is differenced, with clipping and all.

Covariance and shifts are factored, Sigma = F' F and J = F' P, and a QR decomposition a step keeps them so:
J_v' Sigma^-1 J_v is |P_v|^2, which no rounding takes above what composition allows.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from audit.mechanism import base

# A step takes 2 p steps of the training run, and a QR decomposition of (2 p, p).
MOST_PARAMETERS = 1024
# The distance of differences, in standard deviations, by which DD1 matches a Gaussian's fourth moments.
_DISTANCE = math.sqrt(3)
# float32 resolves differences over this share of the largest parameter within a percent.
_RESOLUTION = 3e-5
_MODELS_AT_ONCE = 256


class Response(NamedTuple):
    """An estimate of how D canaries (D, p) and the noise move the final model theta_T.

    Attributes:
      covariance: Sigma (p, p), the covariance of theta_T.
      shifts: (D, p), for each canary v its shift J_v: theta_T with the canary less theta_T without it.
      optimal: (D,), for each canary the mu of its best linear score, sqrt(J_v' Sigma^-1 J_v).
    """

    covariance: Array
    shifts: Array
    optimal: Array

    def projected(self, canaries: Array) -> Array:
        """Returns the mu (D,) of the scores <v, theta_0 - theta_T> of canaries v (D, p).

        mu is how far the canary shifts the score's mean, over the score's standard deviation. GC-R and GC-S
        (`audit.adversaries.biased`) score in this way, with canaries along a single coordinate.
        """
        variances = jnp.einsum("dp,pq,dq->d", canaries, self.covariance, canaries)
        # The score falls by what theta_T is shifted along the canary.
        return -jnp.sum(canaries * self.shifts, axis=1) / jnp.sqrt(variances)


class _Carry(NamedTuple):
    """The noiseless run before a step.

    Attributes:
      flat: the parameters and the optimizer's state, flattened (n,).
      factor: F (n, n), where F' F is the covariance of `flat`.
      whitened_shifts: P (n, D), where the columns of F' P are the canaries' shifts of `flat`: the shifts in
        standard deviations of the noise.
    """

    flat: Array
    factor: Array
    whitened_shifts: Array


class _Step(NamedTuple):
    """What a step reads: its mini-batch (B,), its number () and its insertion mask ()."""

    batch: Array
    number: Array
    mask: Array


def respond(
    mechanism: base.Mechanism,
    hyper: base.Hyperparameters,
    theta_0: Array,
    data: base.Data,
    schedule: base.Schedule,
    canaries: Array,
) -> Response:
    """Estimates how canaries and noise move the final model, by linear response along a noiseless run.

    The run's state has n entries: the p parameters and the optimizer's state. Two factors are carried along
    the run. F (n, n) gives the state's covariance, F' F. P (n, D) gives the shifts of the state by the D
    canaries, the columns of F' P. At the end both are restricted to the p parameters. The mu of a canary is
    then the norm of its column of P, which is sqrt(shift' covariance^-1 shift).

    The estimate is for noise above 0, and for mechanisms whose steps are linear in what is inserted: SGD with
    momentum or without, not Adam. It is computed in float32; mu is within 1% of that from float64.

    Args:
      mechanism: the mechanism whose steps are differenced.
      hyper: its hyperparameters, the noise multiplier above 0.
      theta_0: the initial model (p,).
      data: what the mechanism trains on.
      schedule: the mini-batches (T, B), and the mask (T,) of the steps that insert.
      canaries: (D, p), each of norm at most C.

    Returns:
      The covariance of the final model, each canary's shift of it, and the mu of each canary's best score.
    """
    silent = hyper._replace(noise_multiplier=jnp.float32(0))
    # A segment of steps takes a key, although no noise is drawn. The key states its random generator, so that
    # nothing depends on JAX's default.
    key = jax.random.key(0, impl="threefry2x32")
    first = mechanism.start(theta_0)
    p = theta_0.size
    start, unravel = ravel_pytree((first.theta, first.optimizer))
    # What is inserted to measure the effect of noise along each coordinate: C, the largest length that
    # clipping leaves alone. A step is linear in what is inserted, so that effects scale.
    pushes = hyper.clipping_norm * jnp.eye(p, dtype=theta_0.dtype)
    # What an insertion adds to P, (p, D): the canaries in standard deviations of a step's noise, which are
    # sigma C along each coordinate.
    inserted = canaries.T / (hyper.noise_multiplier * hyper.clipping_norm)

    def take_step(flat: Array, now: _Step, push: Array) -> Array:
        """Returns the state after the mechanism's step without noise from `flat`, with `push` (p,) inserted.

        States are flattened, (n,): the parameters and the optimizer's state. The push is inserted as a canary
        would be. `now` has the step's mini-batch and number.
        """
        # A single canary that is in, and a schedule of a single step that inserts it.
        pushing = base.Canaries(craft=lambda step, theta: push[None], presence=jnp.ones(1))
        schedule = base.Schedule(now.batch[None], jnp.ones(1))
        theta, optimizer = unravel(flat)
        state = base.State(theta, optimizer, now.number)
        after = mechanism.segment(silent, state, data, schedule, pushing, key)
        flat_after: Array = ravel_pytree((after.theta, after.optimizer))[0]
        return flat_after

    def advance(carry: _Carry, now: _Step) -> tuple[_Carry, None]:
        """Takes a single step and carries the factors F of the covariance and P of the shifts through it.

        F' F is the covariance of the state (n,), and the columns of F' P are the canaries' shifts of it. Each
        row of F is thus a move of the state by a standard deviation of what the noise so far has spread.

        Two blocks of differences say how the next state changes: with each such move (n, n), and with a
        standard deviation of this step's noise along each coordinate (p, n). Stacked, they are A, (n + p, n),
        and the next covariance is A' A. With A = Q R it is R' R, so that the next F is R. S stacks P and what
        this step inserts. The next shifts are A' S = R' (Q' S), so that the next P is Q' S.
        """
        after = take_step(carry.flat, now, jnp.zeros(p))

        # How a standard deviation of this step's noise, along each coordinate, moves the next state: (p, n).
        # A push has length C, and the noise has standard deviation sigma C.
        pushed = jax.vmap(lambda push: take_step(carry.flat, now, push))(pushes)
        noise_moves = hyper.noise_multiplier * (pushed - after)

        # How the next state changes with each row of F, (n, n): central differences, between the state moved
        # ahead by `distance` times the row and the state moved behind as far. The usual distance, sqrt(3)
        # standard deviations, matches a Gaussian's fourth moments. It is enlarged where float32 could not
        # resolve such a move beside the largest entry of the state. The largest entry of `noise_moves` is
        # taken for the size of a move by a row of F.
        resolvable_distance = (
            _RESOLUTION * jnp.max(jnp.abs(carry.flat)) / jnp.max(jnp.abs(noise_moves))
        )
        distance = jnp.maximum(_DISTANCE, resolvable_distance)
        ahead = carry.flat + distance * carry.factor
        behind = carry.flat - distance * carry.factor
        # In batches, which bound the memory.
        moved = jax.lax.map(
            lambda flat: take_step(flat, now, jnp.zeros(p)),
            jnp.concatenate([ahead, behind]),
            batch_size=_MODELS_AT_ONCE,
        )
        moved_ahead, moved_behind = jnp.split(moved, 2)
        state_moves = (moved_ahead - moved_behind) / (2 * distance)

        rotation, factor = jnp.linalg.qr(jnp.concatenate([state_moves, noise_moves]))
        # The mask is 1 for a step that inserts, else 0.
        stacked = jnp.concatenate([carry.whitened_shifts, now.mask * inserted])
        return _Carry(after, factor, rotation.T @ stacked), None

    # Before the first step there is neither noise nor a shift: F and P are 0.
    size = start.size
    initial = _Carry(start, jnp.zeros((size, size)), jnp.zeros((size, len(canaries))))
    steps = _Step(schedule.batches, jnp.arange(len(schedule.mask)), schedule.mask)
    final, _ = jax.lax.scan(advance, initial, steps)

    released = final.factor[:, :p]  # the optimizer's state is not released
    # With these columns of F = Q R, Sigma is R' R, the shifts are R' (Q' P), and mu is the norm of Q' P.
    rotation, factor = jnp.linalg.qr(released)
    whitened_shifts = rotation.T @ final.whitened_shifts
    shifts = whitened_shifts.T @ factor
    return Response(factor.T @ factor, shifts, jnp.linalg.norm(whitened_shifts, axis=0))
