"""The contract of a mechanism: pure functions for a single run, in the shape of an Optax transformation.

`ensemble` maps these functions over many runs. A mechanism does not know which adversary made its canaries.
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

from audit.mechanism.clipping.base import ClippedSum, clip

Tree = Any
Scalar = Array | float
# Features (N, ...), labels (N, ...), and further arrays that a mechanism needs.
Data = tuple[Array, ...]

# The maximum number of entries (K, p) of drawn directions that a segment keeps in memory.
_MAX_STORED = 1 << 25
BLOCK = 1 << 12  # coordinates per key
# The mesh axis of the devices that share each step of a run.
STEP_AXIS = "parts"


class Hardware(NamedTuple):
    """The devices that run programs. All are of the same kind.

    Attributes:
      is_cpu: True for a CPU, False for an accelerator.
      number: the number of devices.
      memory: the memory of each device in bytes.
    """

    is_cpu: bool
    number: int
    memory: int


def local_hardware() -> Hardware:
    """Returns the kind, number and memory of this process's devices."""
    devices = jax.local_devices()
    if devices[0].platform == "cpu":
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return Hardware(is_cpu=True, number=len(devices), memory=memory // len(devices))
    stats = devices[0].memory_stats() or {}  # a device may keep no statistics
    # The default is low. This is safe, because it only makes fewer runs train at once.
    memory = stats.get("bytes_limit", 4 << 30)
    return Hardware(is_cpu=False, number=len(devices), memory=memory)


def step_memory(function: Callable[..., object], theta: jax.ShapeDtypeStruct, *shared: Any) -> int:
    """Estimates the bytes per run that decide how many runs take a training step at once.

    On a CPU, these are the results of all operations that depend on the run's parameters, because they should
    fit into the cache. On other devices, these are the bytes that the compiled step uses at once. The step
    does not run, and its arguments do not count.

    Args:
      function: the step, a function of theta (p,) and of `shared`.
      theta: the shape and dtype of the run's parameters (p,).
      *shared: the arguments that all runs share, or their shapes and dtypes.
    """
    if not local_hardware().is_cpu:
        step = jax.jit(function).lower(theta, *shared).compile()
        analysis: Any = step.memory_analysis()
        return int(analysis.temp_size_in_bytes)
    mapped = jax.vmap(function, (0, *[None] * len(shared)))
    written = []
    for runs in (1, 2):
        thetas = jax.ShapeDtypeStruct((runs, *theta.shape), theta.dtype)
        program = jax.make_jaxpr(mapped)(thetas, *shared)
        written.append(_count_written(program.jaxpr))
    # The difference leaves out results that do not depend on the run, which runs compute once.
    return written[1] - written[0]


def _count_written(jaxpr: Jaxpr) -> int:
    """Counts the bytes of the results of all equations of a program, including the programs inside it.

    The body of a `lax.scan` counts once per iteration, that of a `lax.while_loop` once. The branches of a
    `lax.cond` do not count, because they are a tuple of programs, which we do not search.
    """
    total = 0
    for equation in jaxpr.eqns:
        programs = []  # inside this equation
        for value in equation.params.values():
            program = getattr(value, "jaxpr", value)  # unwraps a ClosedJaxpr
            if hasattr(program, "eqns"):
                programs.append(program)
        if programs:
            repeats = equation.params.get("length", 1)
            total += repeats * sum(map(_count_written, programs))
        else:
            for result in equation.outvars:
                aval: Any = result.aval
                total += aval.size * aval.dtype.itemsize
    return total


class Hyperparameters(NamedTuple):
    """The traced scalars of a training run.

    Attributes:
      learning_rate: eta.
      clipping_norm: C, the maximum L2 norm of a clipped gradient.
      noise_multiplier: sigma; the noise has standard deviation sigma * C.
      own: hyperparameters of only one mechanism, such as `fedavg.Federated`.
      weight_decay: lambda, the weight decay of DP-SGD. None leaves the term out of the program.
    """

    learning_rate: Scalar
    clipping_norm: Scalar
    noise_multiplier: Scalar
    own: Tree = ()
    weight_decay: Scalar | None = None


class Schedule(NamedTuple):
    """The mini-batches and insertion mask of a segment.

    Attributes:
      batches: indices of examples (steps, B).
      mask: 1 if a step inserts canaries, else 0; (steps,) for all canaries, or (steps, K) for each canary.
    """

    batches: Array
    mask: Array


class State(NamedTuple):
    """A run between two steps.

    Attributes:
      theta: the parameters (p,).
      optimizer: the optimizer's state.
      step: the number of completed steps, ().
      seen: the memory of an adversary that sees every iterate; () if it sees only the last iterate.
      noise: the earlier noise that correlated noise depends on; () if it depends on none.
    """

    theta: Array
    optimizer: Tree
    step: Array
    seen: Tree = ()
    noise: Tree = ()


class Coordinates(NamedTuple):
    """K canaries along single coordinates.

    Canary k is a vector (p,) that is values[k] at coordinate indices[k], and 0 elsewhere. Both arrays are
    (K,).
    """

    indices: Array
    values: Array


class Directions(NamedTuple):
    """K canaries in random directions, each drawn when it is used.

    Attributes:
      keys: (K,), or (K, blocks) with a key for every BLOCK coordinates.
      norm: the norm of every canary, ().
      within: (m,), the indices of the coordinates in which directions are drawn; None for all.
    """

    keys: Array
    norm: Array
    within: Array | None = None

    def select(self, theta: Array) -> Array:
        """Returns the coordinates (m,) of theta (p,) in which directions are drawn."""
        return theta if self.within is None else theta[self.within]

    def spread(self, values: Array, theta: Array) -> Array:
        """Returns the vector (p,) with `values` (m,) at the directions' coordinates, and 0 elsewhere."""
        if self.within is None:
            return values
        return jnp.zeros_like(theta).at[self.within].set(values)


class Examples(NamedTuple):
    """Canaries that are examples (K, ...) with labels (K, ...). A step inserts their clipped gradients."""

    features: Array
    labels: Array


Crafted = Array | Coordinates | Directions | Examples  # an array is (K, p)


# (the adversary's state, step from 0, theta (p,)) -> canaries; the mechanism clips each to C
Craft = Callable[[Tree, Array, Array], Crafted]
# (the adversary's state, its memory, step, the iterate (p,) after the step) -> the next memory
Observe = Callable[[Tree, Tree, Array, Array], Tree]
# (presence (K,), the run's key, step) -> (K,), 1.0 for a canary that joins the step, else 0.0
Join = Callable[[Array, Array, Array], Array]


class Canaries(NamedTuple):
    """The K canaries of a single run.

    Attributes:
      craft: (step, theta) -> the canaries of that step.
      presence: (K,), traced: 1 for a canary that is in, 0 for a canary that is out, or a probability for
        `join`.
      observe: (seen, step, iterate after the step) -> the next State.seen; None if the adversary sees only
        the last iterate.
      crafts_constant: True if craft returns the same canaries at every step and for every theta.
      join: draws the canaries that join a step; None if all canaries that are in join every masked step.
    """

    craft: Callable[[Array, Array], Crafted]
    presence: Array
    observe: Callable[[Tree, Array, Array], Tree] | None = None
    crafts_constant: bool = False
    join: Join | None = None

    def joining(self, step: Array, run_key: Array) -> "Canaries":
        """Returns the canaries with their presence in a step, which is 0 for canaries that do not join it."""
        if self.join is None:
            return self
        return self._replace(presence=self.join(self.presence, run_key, step))

    def remember(self, step: Array, after: State) -> State:
        """Returns the state `after` a step with the memory of an adversary that has seen its iterate."""
        if self.observe is None:
            return after
        seen = self.observe(after.seen, step, after.theta)
        return after._replace(seen=seen)


# (step, theta, mask) -> the clipped sum (p,) of canaries.
Inserter = Callable[[Array, Array, Array], Array]
# (hyper, state before, data, schedule, canaries, the run's key) -> the state after the schedule's last step.
# The draws of step t come from fold_in(run_key, t), so they do not depend on where segments begin. All
# arguments are traced except the functions in `canaries`: one program serves runs with and without canaries.
Segment = Callable[[Hyperparameters, State, Data, Schedule, Canaries, Array], State]


class Mechanism(NamedTuple):
    """A private training algorithm.

    Attributes:
      start: theta_0 (p,) -> the state before the first step.
      segment: takes the steps of a schedule.
      memory: (theta_0, data, batch size) -> the estimated bytes of a run's step (`step_memory`).
      spreads: True if the devices of STEP_AXIS share the work of a step.
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
    """Returns sum_k mask_k presence_k clip(v_k, C), (p,), over the canaries v_k of a single step.

    Args:
      canaries: the functions that make K canaries, and their presence.
      step: the number of the step, from 0.
      theta: the model (p,) before the step.
      clipping_norm: C.
      mask: 1 to insert canaries, else 0; () for all, or (K,) for each.
      clipped_sum: the function that sums clipped gradients of examples, for canaries that are examples.
    """
    crafted = canaries.craft(step, theta)
    weights = canaries.presence * mask  # (K,), 0 for canaries that are not inserted

    if isinstance(crafted, Examples):
        assert clipped_sum is not None

        def weighted_gradient(weight: Array, k: Array) -> Array:
            """Returns the weighted clipped gradient (p,) of canary k, as the sum over a batch of 1."""
            example = (crafted.features[k][None], crafted.labels[k][None])
            return weight * clipped_sum(theta, example, clipping_norm)

        return _sum_positive(weights, theta, weighted_gradient)

    if isinstance(crafted, Coordinates):
        clipped = jnp.clip(crafted.values, -clipping_norm, clipping_norm)
        zeros = jnp.zeros_like(theta)
        return zeros.at[crafted.indices].add(weights * clipped)

    if isinstance(crafted, Directions):
        norm = jnp.minimum(crafted.norm, clipping_norm)
        like = crafted.select(theta)
        # Only the mask decides which directions are drawn, even if their canaries are out. Runs under `vmap`
        # share the mask but not the presence. So their loops over canaries take the same steps.
        masks = jnp.broadcast_to(mask, weights.shape)

        def weighted_direction(weight: Array, k: Array) -> Array:
            """Draws canary k's unit direction (m,), times its mask (`weight`) and its presence."""
            weight_in = weight * canaries.presence[k]
            return weight_in * draw_unit_direction(crafted.keys[k], like)

        total = _sum_positive(masks, like, weighted_direction)
        return crafted.spread(norm * total, theta)

    clipped = jax.vmap(clip, (0, None))(crafted, clipping_norm)
    return jnp.sum(weights[:, None] * clipped, axis=0)


def _sum_positive(weights: Array, theta: Array, term: Callable[[Array, Array], Array]) -> Array:
    """Returns the sum (p,) of term(weights[k], k) over all k with weights[k] > 0, one term at a time.

    Args:
      weights: (K,).
      theta: any array with the shape and dtype of the sum.
      term: (weight, k) -> the term (p,) of k.
    """

    Carry = tuple[Array, Array]  # (the weights (K,) that remain to be added, the total (p,))

    def any_left(carry: Carry) -> Array:
        remaining, _ = carry
        return jnp.any(remaining > 0)

    def add_largest(carry: Carry) -> Carry:
        """Adds the term of the largest remaining weight to the total, and sets its weight to 0."""
        remaining, total = carry
        k = jnp.argmax(remaining)
        total = total + term(remaining[k], k)
        return remaining.at[k].set(0), total

    total: Array
    initial = (weights, jnp.zeros_like(theta))
    _, total = jax.lax.while_loop(any_left, add_largest, initial)
    return total


def draw_unit_direction(key: Array, like: Array) -> Array:
    """Draws a uniformly random unit vector with the shape (p,) and dtype of `like`.

    `key` is a single key (), or keys (blocks,) with one for every BLOCK coordinates.
    """
    if jnp.ndim(key):
        blocks = jax.vmap(lambda block_key: draw_block(block_key, like))(key)
        normal = blocks.ravel()[: like.size]  # the last block may exceed p
    else:
        normal = jax.random.normal(key, like.shape, like.dtype)
    return jnp.asarray(normal / jnp.linalg.norm(normal))


def draw_block(key: Array, like: Array) -> Array:
    """Draws a block of the standard normal vector (p,) that `draw_unit_direction` scales to length 1.

    Every block has min(BLOCK, p) coordinates. Callers must drop those beyond p.
    """
    size = min(BLOCK, like.size)
    return jax.random.normal(key, (size,), like.dtype)


def make_inserter(
    canaries: Canaries,
    state: State,
    clipping_norm: Array,
    run_key: Array,
    clipped_sum: ClippedSum,
) -> Inserter:
    """Returns the function (step, theta, mask) -> the clipped sum (p,) of the canaries of a step.

    Canaries that are the same at every step are summed once per segment, unless they join steps at random or
    the mask is (K,). Random directions that join at random are drawn once per segment, if they fit into
    memory.

    Args:
      canaries: the canaries to insert.
      state: the run before the segment's first step.
      clipping_norm: C.
      run_key: the run's key, for the draws of `canaries.join`.
      clipped_sum: the function that sums clipped gradients of examples, for canaries that are examples.
    """
    constant_sum = None  # (p,)
    clipped_directions = None  # (K, p)
    if canaries.crafts_constant and canaries.join is None:
        one = jnp.float32(1)
        constant_sum = sum_canaries(
            canaries, state.step, state.theta, clipping_norm, one, clipped_sum
        )
    elif canaries.crafts_constant:
        crafted = canaries.craft(state.step, state.theta)
        if isinstance(crafted, Directions) and crafted.keys.size * state.theta.size <= _MAX_STORED:
            draw = jax.vmap(draw_unit_direction, (0, None))
            units = draw(crafted.keys, crafted.select(state.theta))
            spread = jax.vmap(crafted.spread, (0, None))
            norm = jnp.minimum(crafted.norm, clipping_norm)
            clipped_directions = spread(norm * units, state.theta)

    def insert(step: Array, theta: Array, mask: Array) -> Array:
        """Returns the clipped sum (p,) of the step's canaries, weighted by mask, () or (K,), and presence."""
        if constant_sum is not None and not jnp.ndim(mask):
            return mask * constant_sum
        joining = canaries.joining(step, run_key)
        if clipped_directions is not None:
            return (mask * joining.presence) @ clipped_directions
        return sum_canaries(joining, step, theta, clipping_norm, mask, clipped_sum)

    return insert


def no_canaries() -> Canaries:
    """Returns K = 0 canaries, for a run without insertion."""

    def craft(step: Array, theta: Array) -> Array:
        """Returns an array without canaries, (0, p)."""
        return jnp.zeros((0, theta.size), theta.dtype)

    return Canaries(craft, jnp.zeros(0))


def fixed_shuffle(key: Array, n_examples: int, batch_size: int, steps: int) -> Array:
    """Draws mini-batches (steps, B) of example indices. Each epoch is a shuffle, cut into whole batches.

    An epoch drops the examples that do not fill a batch.
    """
    per_epoch = n_examples // batch_size
    epochs = math.ceil(steps / per_epoch)

    fold_in_all = jax.vmap(jax.random.fold_in, (None, 0))
    keys = fold_in_all(key, jnp.arange(epochs))
    shuffle = partial(jax.random.permutation, x=n_examples)
    shuffles = jax.vmap(shuffle)(keys)
    whole_batches = shuffles[:, : per_epoch * batch_size]
    batches = whole_batches.reshape(-1, batch_size)
    return batches[:steps].astype(jnp.int32)


def insertion_mask(steps: int, periodicity: int, place: int = 0) -> Array:
    """Returns the mask (steps,) that is 1.0 if a step inserts the canaries, else 0.0.

    Every k-th step inserts them, with k = `periodicity` (hidden-state paper, Algorithm 4). `place` is the
    first such step, counted from 1. The default of 0 means step k.
    """
    numbers = jnp.arange(1, steps + 1)
    inserts = numbers % periodicity == place % periodicity
    return inserts.astype(jnp.float32)


class Trajectory(NamedTuple):
    """A simulated run: the final theta (p,), and the sum (p,) of each coordinate's squared updates."""

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

    For a canary that a coin inserts, set its presence to the coin's probability.
    """
    silent = hyper._replace(noise_multiplier=jnp.float32(0))
    # The key only matters to a federated mechanism, which shuffles its clients' examples. We name the
    # generator, so that the result does not depend on JAX's default.
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
    """Trains a single run without canaries on batches (steps, B) (hidden-state paper, Algorithm 3).

    Each segment has a single step, so that we see every update.
    """

    Carry = tuple[State, Array]

    def advance(carry: Carry, batch: Array) -> tuple[Carry, None]:
        """Takes a step on a mini-batch (B,) of indices, and adds its squared update to the sum (p,)."""
        state, squares = carry
        schedule = Schedule(batch[None], jnp.zeros(1))
        after = mechanism.segment(hyper, state, data, schedule, no_canaries(), run_key)
        squares = squares + (after.theta - state.theta) ** 2
        return (after, squares), None

    initial = (mechanism.start(theta_0), jnp.zeros_like(theta_0))
    (final, squares), _ = jax.lax.scan(advance, initial, batches)
    return Trajectory(final.theta, squares)
