"""The interface of a mechanism: pure functions for a single run, as in an Optax transformation.

`ensemble` maps these functions over many runs. A mechanism does not know which adversary crafted its
canaries.
"""

import math
import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import Jaxpr

from audit.mechanism.clipping.base import ClippedSum, Loss, clip

Tree = Any
Scalar = Array | float
# Features (N, ...), labels (N, ...), and further arrays that a mechanism needs.
Data = tuple[Array, ...]

# The maximum size K * p of the drawn directions (K, p) that a segment keeps in memory.
_MAX_STORED = 1 << 25
BLOCK = 1 << 12  # the number of coordinates drawn with one key
# The mesh axis along which devices share each step of a run.
STEP_AXIS = "parts"


class Hardware(NamedTuple):
    """The devices that run programs, all of the same kind and with the same `memory` in bytes."""

    is_cpu: bool
    number: int
    memory: int


def local_hardware() -> Hardware:
    """Returns the kind, number and memory of this process's devices."""
    devices = jax.local_devices()
    if devices[0].platform == "cpu":
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return Hardware(is_cpu=True, number=len(devices), memory=memory // len(devices))
    stats = devices[0].memory_stats() or {}  # None if the device reports no memory statistics
    # The default of 4 GiB is conservative.
    memory = stats.get("bytes_limit", 4 << 30)
    return Hardware(is_cpu=False, number=len(devices), memory=memory)


def step_memory(function: Callable[..., object], theta: jax.ShapeDtypeStruct, *shared: Any) -> int:
    """Estimates how many bytes a run's step needs, to choose how many runs to train at once.

    On a CPU, the estimate is the total size of all results that depend on the run's parameters, because they
    should fit into the cache. On other devices, the estimate is the peak memory of the compiled step.

    `function` takes the step, given theta (p,) and the arguments `shared` by all runs. Only the shapes and
    dtypes of arguments matter.
    """
    if not local_hardware().is_cpu:
        step = jax.jit(function).lower(theta, *shared).compile()
        analysis: Any = step.memory_analysis()
        return int(analysis.temp_size_in_bytes)
    mapped = jax.vmap(function, (0, *[None] * len(shared)))
    written = []  # bytes, for 1 and 2 runs
    for runs in (1, 2):
        thetas = jax.ShapeDtypeStruct((runs, *theta.shape), theta.dtype)
        program = jax.make_jaxpr(mapped)(thetas, *shared)
        written.append(_count_written(program.jaxpr))
    # The difference excludes results that all runs share.
    return written[1] - written[0]


def _count_written(jaxpr: Jaxpr) -> int:
    """Returns the total size in bytes of all results in a program.

    The body of a `lax.scan` is counted once per iteration, and any other nested program once. The branches of
    a `lax.cond` are not counted: JAX stores them in a tuple, without `eqns`.
    """
    total = 0
    for equation in jaxpr.eqns:
        programs = []  # nested in this equation
        for value in equation.params.values():
            program = getattr(value, "jaxpr", value)  # unwraps a ClosedJaxpr
            if hasattr(program, "eqns"):
                programs.append(program)
        if programs:
            repeats = equation.params.get("length", 1)  # of a `lax.scan`
            total += repeats * sum(map(_count_written, programs))
        else:
            for result in equation.outvars:
                aval: Any = result.aval
                total += aval.size * aval.dtype.itemsize
    return total


class Hyperparameters(NamedTuple):
    """The hyperparameters of a training run, as traced scalars.

    Attributes:
      learning_rate: eta.
      clipping_norm: C, the maximum L2 norm of a clipped gradient.
      noise_multiplier: sigma; the noise has standard deviation sigma * C.
      mechanism_specific: hyperparameters specific to this mechanism, such as `fedavg.Federated`.
      weight_decay: lambda, the weight decay of DP-SGD. If None, programs omit it.
    """

    learning_rate: Scalar
    clipping_norm: Scalar
    noise_multiplier: Scalar
    mechanism_specific: Tree = ()
    weight_decay: Scalar | None = None

    def deviation(self, norm: Scalar) -> Array:
        """Returns sigma * norm, the noise's standard deviation; 0, not NaN, if sigma is 0 and norm is inf."""
        return jnp.where(self.noise_multiplier > 0, self.noise_multiplier * norm, 0.0)


class Schedule(NamedTuple):
    """The mini-batches and insertion mask of a segment.

    Attributes:
      batches: example indices, of shape (steps, B).
      mask: 1 if a step inserts canaries, else 0; (steps,) for all canaries together, or (steps, K).
    """

    batches: Array
    mask: Array


class State(NamedTuple):
    """The state of a run between two steps.

    Attributes:
      theta: the parameters, of shape (p,).
      optimizer: the optimizer's state.
      step: the number of completed steps, ().
      seen: the adversary's record of the iterates; () if it sees only the last iterate.
      noise: the past noise that correlated noise depends on; () if noise is independent.
    """

    theta: Array
    optimizer: Tree
    step: Array
    seen: Tree = ()
    noise: Tree = ()


class Coordinates(NamedTuple):
    """K canaries, each along a single coordinate.

    Canary k is a vector (p,) with values[k] at coordinate indices[k], and 0 elsewhere. Both arrays are (K,).
    """

    indices: Array
    values: Array


class Directions(NamedTuple):
    """K canaries of norm C in random directions. The mechanism draws the directions when needed.

    Attributes:
      keys: one per direction, (K,), or one per BLOCK coordinates of each direction, (K, blocks).
      within: (m,), the coordinates in which directions are drawn; None for all.
    """

    keys: Array
    within: Array | None = None

    def select(self, theta: Array) -> Array:
        """Returns the entries (m,) of theta at `within`; all of theta if that is None."""
        return theta if self.within is None else theta[self.within]

    def spread(self, values: Array, theta: Array) -> Array:
        """Returns the vector (p,) with `values` (m,) at `within`, and 0 elsewhere."""
        if self.within is None:
            return values
        return jnp.zeros_like(theta).at[self.within].set(values)


class Examples(NamedTuple):
    """Canaries that are examples (K, ...) with labels (K, ...). A step inserts their clipped gradients."""

    features: Array
    labels: Array

    def losses(self, loss: Loss, theta: Array) -> Array:
        """Returns loss(theta, (feature, label)) for each example, of shape (K,)."""
        return jax.vmap(loss, (None, 0))(theta, (self.features, self.labels))


Crafted = Array | Coordinates | Directions | Examples  # an array is (K, p)


# (the adversary's state, step from 0, theta (p,)) -> canaries; the mechanism clips each to C
Craft = Callable[[Tree, Array, Array], Crafted]
# (the adversary's state, its record, step, the iterate (p,) after the step) -> the next record
Observe = Callable[[Tree, Tree, Array, Array], Tree]
# (presence (K,), the run's key, step) -> (K,), 1.0 for a canary that joins the step, else 0.0
Join = Callable[[Array, Array, Array], Array]


class Canaries(NamedTuple):
    """The K canaries of a single run.

    Attributes:
      craft: (step, theta) -> the canaries of that step.
      presence: (K,), traced: 1 for an inserted canary, 0 for a held-out canary, or a probability for `join`.
      observe: (seen, step, iterate after the step) -> the next State.seen; None to see only the last iterate.
      crafts_constant: True if craft returns the same canaries for every step and theta.
      join: draws the canaries that join a step; None if they join all steps that the mask allows.
    """

    craft: Callable[[Array, Array], Crafted]
    presence: Array
    observe: Callable[[Tree, Array, Array], Tree] | None = None
    crafts_constant: bool = False
    join: Join | None = None

    def joining(self, step: Array, run_key: Array) -> "Canaries":
        """Returns the canaries with their presence in this step: 0 for canaries that do not join it."""
        if self.join is None:
            return self
        return self._replace(presence=self.join(self.presence, run_key, step))

    def record(self, step: Array, after: State) -> State:
        """Returns the state `after` a step, with its iterate added to `seen` if iterates are observed."""
        if self.observe is None:
            return after
        return after._replace(seen=self.observe(after.seen, step, after.theta))


# (hyper, state before, data, schedule, canaries, the run's key) -> the state after the schedule's last step.
# The draws of step t come from fold_in(run_key, t), so they do not depend on where segments begin. All
# arguments are traced except the functions in `canaries`, so one program serves runs with and without
# canaries.
Segment = Callable[[Hyperparameters, State, Data, Schedule, Canaries, Array], State]


class Mechanism(NamedTuple):
    """A private training algorithm.

    Attributes:
      start: theta_0 (p,) -> the state before the first step.
      segment: takes the steps of a schedule.
      memory: (theta_0, data, batch size) -> the estimated bytes of a run's step (`step_memory`).
      spreads: True if the work of a step is split across the devices of STEP_AXIS.
    """

    start: Callable[[Array], State]
    segment: Segment
    memory: Callable[[Array, Data, int], int]
    spreads: bool = False


def sum_canaries(
    canaries: Canaries,
    step: Array,
    theta: Array,
    clipping_norm: Array,
    mask: Array,
    clipped_sum: ClippedSum | None = None,
) -> Array:
    """Returns sum_k mask_k presence_k clip(v_k, C), of shape (p,), over the canaries v_k of a single step.

    Args:
      canaries: K canaries of any type.
      step, theta: the step, and the model (p,) before it.
      clipping_norm: C.
      mask: 1 to insert canaries at this step, else 0; () for all of them, or (K,) for each.
      clipped_sum: the clipping strategy; needed only for canaries that are examples.
    """
    crafted = canaries.craft(step, theta)
    weights = canaries.presence * mask  # (K,)

    if isinstance(crafted, Examples):
        assert clipped_sum is not None

        def clipped_gradient(k: Array) -> Array:
            """Returns the clipped gradient of canary k, of shape (p,), as the sum over a batch of 1."""
            batch = (crafted.features[k][None], crafted.labels[k][None])
            return clipped_sum(theta, batch, clipping_norm)

        return _add_terms(
            selected=weights, weights=weights, like=theta, compute_term=clipped_gradient
        )

    if isinstance(crafted, Coordinates):
        # The norm of a canary is the magnitude of its only entry.
        clipped = jnp.clip(crafted.values, -clipping_norm, clipping_norm)
        zeros = jnp.zeros_like(theta)
        return zeros.at[crafted.indices].add(weights * clipped)

    if isinstance(crafted, Directions):
        like = crafted.select(theta)  # has the shape (m,) of a drawn direction

        def unit_direction(k: Array) -> Array:
            """Draws the direction of canary k, a unit vector (m,)."""
            return draw_unit_direction(crafted.keys[k], like)

        # We also draw the directions of absent canaries, with weight 0. Otherwise, the loops of runs under
        # `vmap` would differ in length, because runs share the mask but not the presence.
        selected = jnp.broadcast_to(mask, weights.shape)
        total = _add_terms(selected, weights, like, unit_direction)
        # Canaries have norm C, so they need no clipping.
        return crafted.spread(clipping_norm * total, theta)

    vectors = crafted  # (K, p)
    clipped = jax.vmap(clip, (0, None))(vectors, clipping_norm)
    return jnp.sum(weights[:, None] * clipped, axis=0)


def _add_terms(
    selected: Array, weights: Array, like: Array, compute_term: Callable[[Array], Array]
) -> Array:
    """Returns the sum of weights[k] * compute_term(k) over all k with selected[k] > 0.

    Computing one term at a time saves memory. `selected` and `weights` are (K,). `like` is any array with the
    shape and dtype of a term.
    """

    Carry = tuple[Array, Array]  # (`selected`, with 0 for terms already in the total; the total)

    def is_incomplete(carry: Carry) -> Array:
        """Returns True until all selected terms have been added."""
        remaining, _ = carry
        return jnp.any(remaining > 0)

    def add_term(carry: Carry) -> Carry:
        """Adds the remaining term with the largest `selected` to the total."""
        remaining, total = carry
        k = jnp.argmax(remaining)
        return remaining.at[k].set(0), total + weights[k] * compute_term(k)

    _, total = jax.lax.while_loop(is_incomplete, add_term, (selected, jnp.zeros_like(like)))
    return total


def draw_unit_direction(key: Array, like: Array) -> Array:
    """Draws a uniformly random unit vector with the shape (p,) and dtype of `like`.

    `key` is a scalar key, or an array (blocks,) with one key for every BLOCK coordinates.
    """
    if jnp.ndim(key) == 1:  # a key per block
        blocks = jax.vmap(draw_normal_block, (0, None))(key, like)
        normal = blocks.ravel()[: like.size]  # the last block may extend beyond p
    else:
        normal = jax.random.normal(key, like.shape, like.dtype)
    return normal / jnp.linalg.norm(normal)


def draw_normal_block(key: Array, like: Array) -> Array:
    """Draws BLOCK consecutive coordinates of a standard normal vector, or all p if p < BLOCK.

    `like` has the shape (p,) and dtype of the vector. Callers concatenate blocks and keep the first p
    coordinates.
    """
    size = min(BLOCK, like.size)
    return jax.random.normal(key, (size,), like.dtype)


def make_inserter(
    canaries: Canaries,
    state: State,
    clipping_norm: Array,
    run_key: Array,
    clipped_sum: ClippedSum,
) -> Callable[[Array, Array, Array], Array]:
    """Returns a function (step, theta, mask) -> the sum of a step's clipped canaries, of shape (p,).

    If possible, canaries that are the same at all steps are summed or drawn only once. Otherwise the function
    calls `sum_canaries` at every step.

    `state` is the run's state before the segment, and `run_key` is the run's key. See `sum_canaries` for the
    other arguments.
    """

    def sum_at(step: Array, theta: Array, mask: Array) -> Array:
        """Sums the canaries that join a step."""
        joining = canaries.joining(step, run_key)
        return sum_canaries(joining, step, theta, clipping_norm, mask, clipped_sum)

    if not canaries.crafts_constant:
        return sum_at

    if canaries.join is None:  # the same canaries join all steps, so we sum them once
        constant_sum = sum_at(state.step, state.theta, jnp.float32(1))

        def insert_constant(step: Array, theta: Array, mask: Array) -> Array:
            """Scales the constant sum by a scalar mask, or recomputes the sum for a mask (K,)."""
            if jnp.ndim(mask) == 0:
                return mask * constant_sum
            return sum_at(step, theta, mask)

        return insert_constant

    # A random subset joins each step. If canaries are directions that fit into memory, we draw them once.
    crafted = canaries.craft(state.step, state.theta)
    if not isinstance(crafted, Directions) or crafted.keys.size * state.theta.size > _MAX_STORED:
        return sum_at

    like = crafted.select(state.theta)
    units = jax.vmap(draw_unit_direction, (0, None))(crafted.keys, like)  # (K, m)
    spread = jax.vmap(crafted.spread, (0, None))  # to all p coordinates, with 0 elsewhere
    directions = spread(clipping_norm * units, state.theta)  # (K, p); norm C, so clipped already

    def insert_directions(step: Array, theta: Array, mask: Array) -> Array:
        """Sums the stored directions of canaries that join a step."""
        presence = canaries.joining(step, run_key).presence
        return (mask * presence) @ directions

    return insert_directions


def no_canaries() -> Canaries:
    """Returns an empty set of canaries (K = 0)."""
    return Canaries(
        craft=lambda step, theta: jnp.zeros((0, theta.size), theta.dtype),
        presence=jnp.zeros(0),
    )


def fixed_shuffle(key: Array, n_examples: int, batch_size: int, steps: int) -> Array:
    """Draws mini-batches (steps, B) of example indices.

    In each epoch, we shuffle the examples, cut them into batches, and drop the remainder.
    """
    per_epoch = n_examples // batch_size
    epochs = math.ceil(steps / per_epoch)

    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(epochs))
    shuffle = partial(jax.random.permutation, x=n_examples)
    shuffles = jax.vmap(shuffle)(keys)  # (epochs, n_examples)
    whole_batches = shuffles[:, : per_epoch * batch_size]
    batches = whole_batches.reshape(-1, batch_size)
    return batches[:steps].astype(jnp.int32)


def insertion_mask(steps: int, periodicity: int, place: int = 0) -> Array:
    """Returns the mask, of shape (steps,): 1.0 if a step inserts the canaries, else 0.0.

    Every k-th step inserts the canaries, with k = `periodicity` (hidden-state paper, Algorithm 4). `place` is
    the first such step, counted from 1; 0 means step k.
    """
    numbers = jnp.arange(1, steps + 1)
    # Place 0 and step k both have remainder 0.
    inserts = numbers % periodicity == place % periodicity
    return inserts.astype(jnp.float32)


class Trajectory(NamedTuple):
    """A simulated run: the final theta (p,), and each coordinate's sum of squared updates, (p,)."""

    theta: Array
    squared_updates: Array


def rehearse(
    mechanism: Mechanism,
    hyper: Hyperparameters,
    theta_0: Array,
    data: Data,
    schedule: Schedule,
    canaries: Canaries,
) -> Array:
    """Returns the final theta (p,) of a training run without noise.

    If a coin flip decides whether a canary is inserted, set its presence to the probability of insertion.
    """
    silent = hyper._replace(noise_multiplier=jnp.float32(0))
    # Only a federated mechanism needs the key, to shuffle its clients' examples.
    key = jax.random.key(0, impl="threefry2x32")
    start = mechanism.start(theta_0)
    final = mechanism.segment(silent, start, data, schedule, canaries, key)
    return final.theta


def simulate(
    mechanism: Mechanism,
    hyper: Hyperparameters,
    theta_0: Array,
    data: Data,
    batches: Array,
    run_key: Array,
) -> Trajectory:
    """Trains a single run without canaries on the given batches (hidden-state paper, Algorithm 3).

    Adversaries may place canaries along coordinates with small squared updates.
    """

    def add_square(seen: tuple[Array, Array], step: Array, theta: Array) -> tuple[Array, Array]:
        """Returns (the model after a step, each coordinate's sum of squared updates so far)."""
        previous, squares = seen
        return theta, squares + (theta - previous) ** 2

    # The mechanism calls `add_square` after every step, as if an adversary observed iterates.
    start = mechanism.start(theta_0)._replace(seen=(theta_0, jnp.zeros_like(theta_0)))
    schedule = Schedule(batches, mask=jnp.zeros(len(batches)))
    canaries = no_canaries()._replace(observe=add_square)
    final = mechanism.segment(hyper, start, data, schedule, canaries, run_key)
    _, squares = final.seen
    return Trajectory(final.theta, squares)
