"""The contract of a mechanism: pure functions, in the shape of an Optax transformation.

Everything is written for a single run; `ensemble` maps it over many. A mechanism deals with a loss, a
configuration and canaries to insert; it refers to no adversary by name.
"""

import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import Jaxpr, jaxpr_as_fun

from audit.mechanism.clipping.base import ClippedSum, clip

Tree = Any  # a pytree of arrays, whose structure only its maker knows
# Features (N, ...), labels (N, ...), and what else a mechanism's data have.
Data = tuple[Array, ...]

# The most entries (K, p) of drawn directions that a segment holds in memory.
_MAX_STORED = 1 << 25
BLOCK = 1 << 12  # coordinates that each key gives, where a direction is drawn in blocks
# The axis of devices over which a mechanism that `spreads` divides a run's step.
PARTS = "parts"


class Hardware(NamedTuple):
    """The devices, all of one kind, that programs run on.

    Attributes:
      is_cpu: whether they are CPU cores, whose caches decide what is fast.
      number: the number of devices.
      memory: the bytes of memory of each.
    """

    is_cpu: bool
    number: int
    memory: int


def local_hardware() -> Hardware:
    """Returns what kind of devices this process has, how many, and how much memory each has."""
    devices = jax.local_devices()
    if devices[0].platform == "cpu":
        # The machine's memory, of which each device gets an equal share.
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return Hardware(is_cpu=True, number=len(devices), memory=memory // len(devices))
    stats = devices[0].memory_stats() or {}  # None for devices that count nothing
    # Where a device does not say, a low guess, 4 GiB: too low a value only makes fewer runs train at once.
    return Hardware(is_cpu=False, number=len(devices), memory=stats.get("bytes_limit", 4 << 30))


class StepMemory(NamedTuple):
    """Bytes of a single run's step, counted before anything is fused: a compiled program takes less.

    Attributes:
      written: the bytes of all results that depend on the run's parameters; runs that are trained at once
        share the others. This decides what stays in a cache.
      held: the most bytes that are in use at once, by a single run.
    """

    written: int
    held: int

    def times(self, count: int, beside: int = 0) -> "StepMemory":
        """Returns the memory of `count` such steps at once, plus `beside` bytes whatever their number."""
        return StepMemory(count * self.written + beside, count * self.held + beside)


def step_memory(
    function: Callable[..., object], theta: jax.ShapeDtypeStruct, *shared: Any
) -> StepMemory:
    """Returns the memory that the results of a step of a training run take, intermediate results too.

    The step is traced, not run. Its arguments are not counted.

    Args:
      function: the step, a function of theta (p,) and of `shared`.
      theta: the shape and dtype of the run's parameters (p,).
      *shared: the further arguments, which runs share: arrays or pytrees, or their shapes and dtypes.

    Returns:
      The bytes of all results that each run has for itself, beyond what runs that are trained at once share;
      and the most bytes that a single run holds at a time.
    """
    program = jax.make_jaxpr(function)(theta, *shared)
    _, *others = program.in_avals  # the types of the flattened arguments; theta is the first
    # The step of several runs at once, which differ in theta only.
    mapped = jax.vmap(jaxpr_as_fun(program), (0, *[None] * len(others)))
    written = []
    for runs in (1, 2):
        thetas = jax.ShapeDtypeStruct((runs, *theta.shape), theta.dtype)
        written.append(_count_written(jax.make_jaxpr(mapped)(thetas, *others).jaxpr))
    # What a second run adds leaves out the results that both runs share.
    return StepMemory(written[1] - written[0], held=_count_held(program.jaxpr))


def _count_written(jaxpr: Jaxpr) -> int:
    """Counts the bytes that a program writes: those of the results of all its equations.

    The body of a `lax.scan` counts as often as it is repeated. The body of a `lax.while_loop`, whose number
    of rounds is unknown, counts once. Of a `lax.cond` only the results count, not its branches.
    """
    total = 0
    for equation in jaxpr.eqns:
        inner = _inner_programs(equation)
        if inner:
            total += equation.params.get("length", 1) * sum(map(_count_written, inner))
        else:
            for result in equation.outvars:
                aval: Any = result.aval
                total += aval.size * aval.dtype.itemsize
    return total


def _count_held(jaxpr: Jaxpr) -> int:
    """Returns the most bytes that a program's live results take while any of its equations runs.

    A result is live until its last use. The program's arguments do not count. An equation with programs of
    its own (a loop, a call, branches) adds the most that any of these holds.
    """
    # Variables go by their ids, since some of an equation's inputs (literals) cannot be keys of a dictionary.
    last_use: dict[int, int] = {}
    for i, equation in enumerate(jaxpr.eqns):
        last_use |= dict.fromkeys(map(id, equation.invars), i)
    last_use |= dict.fromkeys(map(id, jaxpr.outvars), len(jaxpr.eqns))

    live: dict[int, int] = {}
    most = 0
    for i, equation in enumerate(jaxpr.eqns):
        programs = _inner_programs(equation)
        for branch in equation.params.get("branches", ()):
            programs.append(branch.jaxpr)
        # Not the sum: programs run one after the other, and of branches only one runs.
        held_inside = max(map(_count_held, programs), default=0)
        for result in equation.outvars:
            aval: Any = result.aval
            live[id(result)] = aval.size * aval.dtype.itemsize
        most = max(most, sum(live.values()) + held_inside)
        # A result that is never used is dropped at once.
        for variable in [*live]:
            if last_use.get(variable, -1) <= i:
                del live[variable]
    return most


def _inner_programs(equation: Any) -> list[Jaxpr]:
    """Returns the programs among an equation's parameters, such as the body of a `lax.scan`.

    The branches of a `lax.cond` are not among them: that parameter is a tuple, which is passed over.
    """
    programs = []
    for value in equation.params.values():
        program = getattr(value, "jaxpr", value)  # of a ClosedJaxpr, its Jaxpr
        if hasattr(program, "eqns"):
            programs.append(program)
    return programs


class Hyperparameters(NamedTuple):
    """The traced scalars of a training run.

    Attributes:
      learning_rate: eta.
      clipping_norm: C, the L2 norm to which gradients are clipped.
      noise_multiplier: sigma; the noise has standard deviation sigma * C.
      own: further hyperparameters that only this mechanism has.
      weight_decay: lambda, the weight decay of DP-SGD. None: steps have no such term; a decay of 0 gives the
        same steps up to rounding.
    """

    learning_rate: Array | float
    clipping_norm: Array | float
    noise_multiplier: Array | float
    own: Tree = ()
    weight_decay: Array | float | None = None


class Schedule(NamedTuple):
    """What each step of a segment reads and whether it inserts.

    Attributes:
      batches: the mini-batches, indices of examples (steps, B).
      mask: the insertion mask, 1 where a step inserts canaries, else 0: (steps,) for all canaries alike, or
        (steps, K) for each.
    """

    batches: Array
    mask: Array


class State(NamedTuple):
    """A run between two steps.

    Attributes:
      theta: the parameters (p,).
      optimizer: the optimizer's state.
      step: the number of steps done, ().
      seen: what an adversary that sees every iterate remembers; () if it sees only the last iterate.
    """

    theta: Array
    optimizer: Tree
    step: Array
    seen: Tree = ()


class Coordinates(NamedTuple):
    """K canaries along coordinates: canary k is values[k] (K,) at indices[k] (K,), and 0 elsewhere."""

    indices: Array
    values: Array


class Directions(NamedTuple):
    """K canaries in random directions, each drawn when it is needed, so that (K, p) is never in memory.

    Attributes:
      keys: (K,), one key for each uniform direction; or (K, blocks), one key for every BLOCK coordinates of
        each direction.
      norm: the norm of every canary, ().
    """

    keys: Array
    norm: Array


class Examples(NamedTuple):
    """Canaries that are examples (K, ...) with labels (K, ...): each inserts its clipped gradient."""

    features: Array
    labels: Array


Crafted = Array | Coordinates | Directions | Examples  # an array is (K, p)


# (state, step from 0, theta (p,)) -> canaries, each of which the mechanism clips to C by itself
Craft = Callable[[Tree, Array, Array], Crafted]
# (state, what was remembered, step, the iterate (p,) after the step) -> what is remembered now
Observe = Callable[[Tree, Tree, Array, Array], Tree]
# (presence (K,), the run's key, step) -> which canaries (K,) join the step, 1.0 or 0.0
Join = Callable[[Array, Array, Array], Array]


class Canaries(NamedTuple):
    """The K canaries of a single run.

    Attributes:
      craft: (step, theta) -> the canaries of that step.
      presence: (K,), traced: 1 for a canary that is in, 0 for one that is out; with `join`, what that takes
        as presence.
      observe: (seen, step, iterate after the step) -> what goes into State.seen; None if the adversary sees
        only the last iterate.
      crafts_constant: whether craft gives the same at every step and for every theta, so that a segment sums
        the canaries once.
      join: the draw, at each step, of the canaries that join it. None: every canary that is in joins all
        steps of the insertion mask.
    """

    craft: Callable[[Array, Array], Crafted]
    presence: Array
    observe: Callable[[Tree, Array, Array], Tree] | None = None
    crafts_constant: bool = False
    join: Join | None = None


# (step, theta, mask) -> the clipped sum (p,) of canaries.
Inserter = Callable[[Array, Array, Array], Array]
# (hyper, state before, data, schedule, canaries, the run's key) -> the state after the schedule's last step.
# The draws of step t come from fold_in(run_key, t), wherever segments begin. Each canary is clipped by itself
# (see `sum_canaries`): no insertion exceeds the sensitivity C. All arguments are traced except the functions
# in `canaries`: one compiled program serves both worlds, with canaries and without, and every setting of the
# same shapes.
Segment = Callable[[Hyperparameters, State, Data, Schedule, Canaries, Array], State]


class Mechanism(NamedTuple):
    """A private training algorithm.

    Attributes:
      start: theta_0 (p,) -> the state before the first step.
      segment: the function that takes the steps of a schedule.
      memory: (theta_0, data, batch size) -> an estimate of the memory of a single run's step.
      spreads: whether a step is divided over the devices of the axis PARTS, along which the segment
        is mapped.
    """

    start: Callable[[Array], State]
    segment: Segment
    memory: Callable[[Array, Data, int], StepMemory]
    spreads: bool = False


def sum_canaries(
    canaries: Canaries,
    step: Array,
    theta: Array,
    clipping_norm: Array,
    mask: Array,
    clipped_sum: ClippedSum,
) -> Array:
    """Returns sum_k mask_k presence_k clip(v_k, C), (p,), over the canaries v_k of a single step.

    Args:
      canaries: K canaries, and which of them are present.
      step: the number of the step, from 0.
      theta: the model (p,) before the step.
      clipping_norm: C.
      mask: 1 where canaries are inserted, else 0: () for all canaries alike, or (K,) for each.
      clipped_sum: sums clipped gradients of examples; used where canaries are examples.
    """
    crafted = canaries.craft(step, theta)
    weights = canaries.presence * mask  # (K,), 0 for a canary that is not inserted

    if isinstance(crafted, Examples):

        def weighted_gradient(weight: Array, k: Array) -> Array:
            """Returns the clipped gradient (p,) of canary k times its weight: the sum over a batch of 1."""
            example = (crafted.features[k][None], crafted.labels[k][None])
            return weight * clipped_sum(theta, example, clipping_norm)

        return _sum_positive(weights, theta, weighted_gradient)

    if isinstance(crafted, Coordinates):
        # The norm of a canary along a single coordinate is its absolute value there.
        clipped = jnp.clip(crafted.values, -clipping_norm, clipping_norm)
        return jnp.zeros_like(theta).at[crafted.indices].add(weights * clipped)

    if isinstance(crafted, Directions):
        # All canaries have the same norm: clipping multiplies the sum.
        norm = jnp.minimum(crafted.norm, clipping_norm)
        if jnp.ndim(mask):
            # If each canary has its own mask, few may join a step, and only their directions are drawn. Only
            # the mask decides which are drawn: runs that are trained at once, by `vmap`, share the mask but
            # not the presence, and so they share the draws.
            def weighted_direction(weight: Array, k: Array) -> Array:
                """Draws canary k's unit direction (p,), times its mask (`weight`) and its presence."""
                weight_in = weight * canaries.presence[k]
                return weight_in * draw_unit_direction(crafted.keys[k], theta)

            return norm * _sum_positive(mask, theta, weighted_direction)

        def add_direction(total: Array, canary: tuple[Array, Array]) -> tuple[Array, None]:
            """Adds a canary's weighted unit direction to the total; only one direction is in memory."""
            key, weight = canary
            return total + weight * draw_unit_direction(key, theta), None

        total, _ = jax.lax.scan(add_direction, jnp.zeros_like(theta), (crafted.keys, weights))
        return norm * total

    # The canaries are an array (K, p).
    clipped = jax.vmap(clip, (0, None))(crafted, clipping_norm)
    return jnp.sum(weights[:, None] * clipped, axis=0)


def _sum_positive(weights: Array, theta: Array, term: Callable[[Array, Array], Array]) -> Array:
    """Returns the sum (p,) of term(weights[k], k) over all k with a weight above 0, one term at a time.

    The loop has as many rounds as there are positive weights: a canary that is out costs nothing, and only
    one term is in memory. Each round adds the term of the largest remaining weight, and sets the weight to 0.

    Args:
      weights: (K,).
      theta: an array of the shape and dtype of a term, (p,).
      term: (weight (), k ()) -> (p,).
    """

    Carry = tuple[Array, Array]  # (remaining weights (K,), total (p,))

    def any_left(carry: Carry) -> Array:
        remaining, _ = carry
        return jnp.any(remaining > 0)

    def add_largest(carry: Carry) -> Carry:
        """Moves the term of the largest remaining weight to the total."""
        remaining, total = carry
        k = jnp.argmax(remaining)
        return remaining.at[k].set(0), total + term(remaining[k], k)

    total: Array
    _, total = jax.lax.while_loop(any_left, add_largest, (weights, jnp.zeros_like(theta)))
    return total


def draw_unit_direction(key: Array, like: Array) -> Array:
    """Draws a uniformly random unit vector (p,): a standard normal vector, scaled to length 1.

    Args:
      key: the direction's key (), or keys (blocks,), one for every BLOCK coordinates.
      like: an array (p,) whose size and dtype the vector takes.
    """
    if jnp.ndim(key):
        blocks = jax.vmap(lambda block_key: draw_block(block_key, like))(key)
        # The last block may reach beyond p.
        normal = blocks.ravel()[: like.size]
    else:
        normal = jax.random.normal(key, like.shape, like.dtype)
    return jnp.asarray(normal / jnp.linalg.norm(normal))


def draw_block(key: Array, like: Array) -> Array:
    """Draws a block of the standard normal vector (p,) that `draw_unit_direction` scales to length 1.

    Every block has min(BLOCK, p) coordinates. Those of the last block that lie beyond p are not used.

    Args:
      key: the block's key.
      like: an array (p,), of which only size and dtype are read.
    """
    return jax.random.normal(key, (min(BLOCK, like.size),), like.dtype)


def make_inserter(
    canaries: Canaries,
    state: State,
    clipping_norm: Array,
    run_key: Array,
    clipped_sum: ClippedSum,
) -> Inserter:
    """Returns the function (step, theta, mask) -> the clipped sum (p,) of the canaries of a step.

    Canaries that are the same at every step are summed once for the whole segment, if each step inserts all
    that are in, or none. They are summed at each step if the mask is (K,), or if they join steps by chance.
    Random directions that join by chance are drawn only once a segment, if they fit into memory.

    Args:
      canaries: what is inserted.
      state: the run before the segment's first step.
      clipping_norm: C.
      run_key: the run's key, from which `canaries.join` draws which canaries join a step.
      clipped_sum: sums clipped gradients of examples; used where canaries are examples.
    """
    join = canaries.join
    stored = None
    total = None
    if canaries.crafts_constant and join is None:
        # The sum of all canaries that are in, with the mask 1; another mask () only multiplies it.
        everywhere = jnp.float32(1)
        total = sum_canaries(
            canaries, state.step, state.theta, clipping_norm, everywhere, clipped_sum
        )
    elif canaries.crafts_constant:
        crafted = canaries.craft(state.step, state.theta)
        # The product is K p, the size of the result, if each direction has a single key; else it is larger.
        if isinstance(crafted, Directions) and crafted.keys.size * state.theta.size <= _MAX_STORED:
            units = jax.vmap(draw_unit_direction, (0, None))(crafted.keys, state.theta)
            stored = jnp.minimum(crafted.norm, clipping_norm) * units

    def insert(step: Array, theta: Array, mask: Array) -> Array:
        """Returns the clipped sum (p,) of the step's canaries, weighted by mask, () or (K,), and presence."""
        if join is not None:
            weights = mask * join(canaries.presence, run_key, step)
            if stored is not None:
                return weights @ stored
            joining = canaries._replace(presence=weights)
            return sum_canaries(joining, step, theta, clipping_norm, jnp.ones(()), clipped_sum)
        # A mask (K,) leaves out some canaries, which `total` has.
        if total is not None and not jnp.ndim(mask):
            return mask * total
        return sum_canaries(canaries, step, theta, clipping_norm, mask, clipped_sum)

    return insert


def no_canaries() -> Canaries:
    """Returns K = 0 canaries, for a run into which nothing is inserted."""

    def craft(step: Array, theta: Array) -> Array:
        return jnp.zeros((0, theta.size), theta.dtype)

    return Canaries(craft, jnp.zeros(0))


def fixed_shuffle(key: Array, n_examples: int, batch_size: int, steps: int) -> Array:
    """Draws mini-batches (steps, B) of example indices: each epoch is a shuffle, cut into whole batches.

    Examples that are left over at the end of an epoch are dropped. The batch of step t does not depend on
    `steps`. The adversary knows all batches.

    Args:
      key: the key of all shuffles.
      n_examples: N, the size of the training set.
      batch_size: B, at most N.
      steps: the number of mini-batches to draw.
    """
    per_epoch = n_examples // batch_size
    epochs = -(-steps // per_epoch)  # rounded up

    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(epochs))
    shuffles = jax.vmap(partial(jax.random.permutation, x=n_examples))(keys)
    whole_batches = shuffles[:, : per_epoch * batch_size]
    return whole_batches.reshape(epochs * per_epoch, batch_size)[:steps].astype(jnp.int32)


def insertion_mask(steps: int, periodicity: int, place: int = 0) -> Array:
    """Returns the mask (steps,) that is 1.0 where a step inserts the canaries, else 0.0.

    Args:
      steps: the number of steps of the training run.
      periodicity: k; one step in k inserts.
      place: the first step that inserts, from 1 to k; place + k, place + 2 k, ... insert too. 0 means k
        itself (hidden-state paper, Algorithm 4).
    """
    numbers = jnp.arange(1, steps + 1)
    inserts = numbers % periodicity == place % periodicity
    return inserts.astype(jnp.float32)


class Trajectory(NamedTuple):
    """A simulated run: the final theta (p,), and the sum over all steps of the squared updates (p,)."""

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

    An adversary that knows everything but the noise and the coins expects this final model.

    Args:
      mechanism: what trains.
      hyper: its hyperparameters, whose noise is set to 0.
      theta_0: the initial model (p,).
      data: what the mechanism trains on.
      schedule: mini-batches and the insertion mask.
      canaries: what is inserted. Where a coin decides if a canary is in, its presence is the coin's
        probability, so that the canary is inserted with that weight.
    """
    silent = hyper._replace(noise_multiplier=jnp.float32(0))
    # The key draws no noise, only the clients' shuffles of a federated mechanism. It states its random
    # generator, so that the shuffles do not depend on JAX's default.
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
    """Trains a single run without canaries (hidden-state paper, Algorithm 3).

    Segments have a single step each, so that every update can be seen. The result is the final theta, and the
    sum over steps of the squared update of each parameter.

    Args:
      mechanism: what trains.
      hyper: its hyperparameters.
      theta_0: the initial model (p,).
      data: what the mechanism trains on.
      batches: the mini-batches, indices (steps, B).
      run_key: the key of the run's noise.
    """

    def advance(carry: tuple[State, Array], batch: Array) -> tuple[tuple[State, Array], None]:
        """Takes a single step on a mini-batch (B,), and adds the square of its update to the sum (p,)."""
        state, squares = carry
        schedule = Schedule(batch[None], jnp.zeros(1))  # a single step, which inserts nothing
        after = mechanism.segment(hyper, state, data, schedule, no_canaries(), run_key)
        squares = squares + (after.theta - state.theta) ** 2
        return (after, squares), None

    initial = (mechanism.start(theta_0), jnp.zeros_like(theta_0))
    (final, squares), _ = jax.lax.scan(advance, initial, batches)
    return Trajectory(final.theta, squares)
