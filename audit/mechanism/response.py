"""Linear response: what one rehearsed training says of how canaries and noise move the final model.

A training without noise carries along the covariance of theta_t and how far a canary has shifted theta_t. In
place of a step's derivatives these take its differences over the distances that the noise spans (Norgaard,
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

MOST_PARAMETERS = 1024  # a step takes 2 p of the training's, and a QR decomposition of (2 p, p)
_DISTANCE = math.sqrt(3)  # in standard deviations: a Gaussian's fourth moments (DD1)
_RESOLVED = 3e-5  # of the largest parameter: what float32 tells apart within a percent
_AT_ONCE = 256  # models

_Carry = tuple[Array, Array, Array]


class Response(NamedTuple):
    """How D canaries (D, p) and the noise move the final model, an estimate.

    covariance: of theta_T (p, p). shifts: theta_T with a canary less theta_T without it (D, p). optimal: mu
    (D,) of each canary's best linear score, |J_v|_(Sigma^-1).
    """

    covariance: Array
    shifts: Array
    optimal: Array

    def projected(self, canaries: Array) -> Array:
        """mu (D,) of the scores <v, theta_0 - theta_T> of the canaries v (D, p), as GC-R's and GC-S's."""
        spread = jnp.einsum("dp,pq,dq->d", canaries, self.covariance, canaries)
        return -jnp.sum(canaries * self.shifts, axis=1) / jnp.sqrt(spread)


def respond(
    mechanism: base.Mechanism,
    hyper: base.Hyperparameters,
    theta_0: Array,
    data: base.Data,
    schedule: base.Schedule,
    canaries: Array,
) -> Response:
    """The response to canaries (D, p) of norm at most C that are inserted at the steps of a mask (T,).

    For noise above 0, and mechanisms whose steps are linear in what is inserted: SGD with momentum or
    without, not Adam. In float32; mu is within 1% of that from float64.
    """
    silent = hyper._replace(noise_multiplier=jnp.float32(0))
    key = jax.random.key(0, impl="threefry2x32")
    first, p = mechanism.start(theta_0), theta_0.size
    start, unravel = ravel_pytree((first.theta, first.optimizer))
    units = hyper.clipping_norm * jnp.eye(p, dtype=theta_0.dtype)
    entering = canaries.T / (hyper.noise_multiplier * hyper.clipping_norm)

    def step(x: Array, at: tuple[Array, Array], pushed: Array) -> Array:
        batch, number = at
        inserted = base.Canaries(lambda step, theta: pushed[None], jnp.ones(1))
        theta, optimizer = unravel(x)
        state, one = base.State(theta, optimizer, number), base.Schedule(batch[None], jnp.ones(1))
        after = mechanism.segment(silent, state, data, one, inserted, key)
        flat: Array = ravel_pytree((after.theta, after.optimizer))[0]
        return flat

    def advance(carry: _Carry, now: tuple[tuple[Array, Array], Array]) -> tuple[_Carry, None]:
        x, factor, part = carry
        at, mask = now
        after = step(x, at, jnp.zeros(p))
        drawn = hyper.noise_multiplier * (jax.vmap(lambda one: step(x, at, one))(units) - after)
        least = _RESOLVED * jnp.max(jnp.abs(x)) / jnp.max(jnp.abs(drawn))
        far = jnp.maximum(_DISTANCE, least)
        around = jnp.concatenate([x + far * factor, x - far * factor])
        moved = jax.lax.map(lambda one: step(one, at, jnp.zeros(p)), around, batch_size=_AT_ONCE)
        ahead, behind = jnp.split(moved, 2)
        unit, factor = jnp.linalg.qr(jnp.concatenate([(ahead - behind) / (2 * far), drawn]))
        part = unit.T @ jnp.concatenate([part, mask * entering])
        return (after, factor, part), None

    size = start.size
    initial = start, jnp.zeros((size, size)), jnp.zeros((size, len(canaries)))
    steps = (schedule.batches, jnp.arange(len(schedule.mask))), schedule.mask
    (_, factor, part), _ = jax.lax.scan(advance, initial, steps)
    seen, within = jnp.linalg.qr(factor[:, :p])  # the optimizer's state is not released
    part = seen.T @ part
    return Response(within.T @ within, part.T @ within, jnp.linalg.norm(part, axis=0))
