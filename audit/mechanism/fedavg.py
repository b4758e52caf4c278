"""DP-FedAvg (McMahan et al., 2018) over a flat parameter vector, with canary clients. A step is a round:

    Delta_i = theta_t - (theta after client i's epochs of SGD from theta_t)
    theta_{t+1} = optimizer(theta_t, (sum_i clip(Delta_i, C_t) + sum_k m_tk b_k clip(v_tk, C_t) + Z_t) / n)

Here Z_t ~ N(0, (sigma C_t)^2 I), m_tk is 1 if canary k joins round t, b_k is its presence, and n is a fixed
denominator, the mean number of clients per round. If quantile_rate is above 0, C_t follows a quantile of the
updates' norms (Andrew et al., 2021). If a client's SGD diverges, the model becomes NaN.

All draws in round t derive from the key fold_in(run_key, t).
"""

import math
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.flatten_util import ravel_pytree

from audit.mechanism.base import (
    STEP_AXIS,
    Canaries,
    Data,
    Hyperparameters,
    Mechanism,
    Scalar,
    Schedule,
    State,
    Tree,
    step_memory,
    sum_canaries,
)
from audit.mechanism.clipping.base import scale_to_norm
from audit.mechanism.cohorts import ABSENT

# We fold these numbers into a round's key. They exceed any p, because the noise uses counters below p with
# the same key.
_SHUFFLE = zlib.crc32(b"shuffle")
_COUNT = zlib.crc32(b"count")
_THETAS_IN_MEMORY = 6  # vectors (p,) held in memory by a run's round


class Federated(NamedTuple):
    """The traced scalars specific to DP-FedAvg: its `Hyperparameters.mechanism_specific`.

    Attributes:
      client_learning_rate: the learning rate of the clients' SGD.
      denominator: n, the mean number of clients per round.
      target_quantile: the target fraction of unclipped updates.
      quantile_rate: eta in C <- C exp(-eta (b - target_quantile)), where b is the fraction of unclipped
        updates; 0 for a fixed C.
      count_noise: the standard deviation of the noise on b n, the number of unclipped updates.
    """

    client_learning_rate: Scalar
    denominator: Scalar
    target_quantile: Scalar = 0.5
    quantile_rate: Scalar = 0.0
    count_noise: Scalar = 0.0


class FedAvg(NamedTuple):
    """The DP-FedAvg settings that are compiled into programs.

    Attributes:
      losses: (parameter tree, (features (B, ...), labels (B, ...))) -> each example's loss, (B,).
      unravel: theta (p,) -> the parameter tree.
      batch_size, epochs: the batch size and the number of epochs of the clients' SGD.
      most_examples: the number of examples that the largest client has.
      block: the number of clients that `vmap` trains at once. Blocks train one after another.
      optimizer: learning rate -> the server's Optax optimizer.
      spreads: True if the clients of a round are split across devices.
    """

    losses: Callable[[Tree, tuple[Array, Array]], Array]
    unravel: Callable[[Array], Tree]
    batch_size: int
    epochs: int
    most_examples: int
    block: int = 4
    optimizer: Callable[[Any], optax.GradientTransformation] = optax.sgd
    spreads: bool = False


class Server(NamedTuple):
    """The server's state between two rounds: its optimizer's state, and `norm_scale`, C_t / C_0."""

    optimizer: Tree
    norm_scale: Array


class Sums(NamedTuple):
    """A round's sums over clients and canaries.

    Attributes:
      updates: the sum of the clipped updates, of shape (p,).
      centred_count: (), the sum of 1/2 for each unclipped update and -1/2 for each clipped update.
    """

    updates: Array
    centred_count: Array


def mechanism(choices: FedAvg) -> Mechanism:
    """Returns DP-FedAvg as a `Mechanism` (`audit.mechanism.base`).

    The data are (features (N, ...), labels (N, ...), starts (M,), counts (M,)). Client i has the examples
    starts[i] : starts[i] + counts[i]. A schedule's batches are client indices (rounds, W), padded with
    ABSENT. `Hyperparameters.mechanism_specific` is a `Federated`. Canaries are client updates, so they cannot
    be `Examples`. With `choices.spreads`, devices share a round's clients.
    """

    def start(theta_0: Array) -> State:
        """Returns the state before the first round, with C_t / C_0 = 1."""
        optimizer = choices.optimizer(0.0)
        server = Server(optimizer.init(theta_0), jnp.float32(1))
        return State(theta_0, server, jnp.int32(0))

    def segment(
        hyper: Hyperparameters,
        state: State,
        data: Data,
        schedule: Schedule,
        canaries: Canaries,
        run_key: Array,
    ) -> State:
        """Runs the rounds of a schedule. `state.optimizer` is a `Server`."""

        def advance(before: State, now: Schedule) -> tuple[State, None]:
            """Runs one round, given its cohort (W,) and its insertion mask, () or (K,)."""
            cohort, mask = now
            step = before.step
            key = jax.random.fold_in(run_key, step)
            norm = hyper.clipping_norm * before.optimizer.norm_scale  # C_t
            sums = cohort_sums(
                choices, hyper.mechanism_specific, before.theta, norm, data, cohort, key
            )
            joining = canaries.joining(step, run_key)  # presence (K,) is 1 for canaries in this run
            inserted = sum_canaries(joining, step, before.theta, norm, mask)
            # Canaries are scaled to norm C_t, so each counts as clipped (-1/2).
            centred_count = sums.centred_count - 0.5 * jnp.sum(joining.presence * mask)
            total = Sums(sums.updates + inserted, centred_count)
            after = _update_server(choices, hyper, before, norm, total, key)
            return canaries.record(step, after), None

        final, _ = jax.lax.scan(advance, state, schedule)
        return final

    def memory(theta_0: Array, data: Data, batch_size: int) -> int:
        """Estimates the bytes that a round needs for a block of clients and a few vectors of length p."""
        clients = min(choices.block, batch_size)
        bytes_of_clients = clients * client_memory(choices, jax.typeof(theta_0), data)
        return bytes_of_clients + _THETAS_IN_MEMORY * theta_0.nbytes

    return Mechanism(start, segment, memory, choices.spreads)


def client_memory(choices: FedAvg, theta: Any, data: tuple[Any, ...]) -> int:
    """Estimates the bytes needed to train one client in a round (`base.step_memory`).

    `theta` is (p,), and `data` is (features, labels, starts, counts), as in `mechanism`. Their shapes and
    dtypes are enough.
    """
    client = jnp.int32(0)
    steps = jnp.int32(0)
    rate = jnp.float32(0)
    shuffles = jax.random.key(0)
    train = partial(_local_update, choices)
    return step_memory(train, theta, data, client, steps, rate, shuffles)


def _update_server(
    choices: FedAvg,
    hyper: Hyperparameters,
    state: State,
    norm: Array,
    sums: Sums,
    key: Array,
) -> State:
    """Adds noise to a round's sums, takes the server's step, and adapts C (Andrew et al., 2021).

    `norm` is C_t = C `norm_scale`, and `key` is the round's key. `state.optimizer` is a `Server`. Returns the
    state before the next round.
    """
    federated: Federated = hyper.mechanism_specific
    normal = jax.random.normal(key, state.theta.shape, state.theta.dtype)
    # An update is the old model minus the trained one, so it has the sign of a gradient.
    pseudo_gradient = (sums.updates + hyper.deviation(norm) * normal) / federated.denominator

    optimizer = choices.optimizer(hyper.learning_rate)
    updates, optimizer_state = optimizer.update(
        pseudo_gradient, state.optimizer.optimizer, state.theta
    )
    theta: Any = optax.apply_updates(state.theta, updates)

    count_key = jax.random.fold_in(key, _COUNT)
    noisy_count = sums.centred_count + federated.count_noise * jax.random.normal(count_key)
    # Each update counts as 1/2 or -1/2, so adding 1/2 yields the noisy fraction of unclipped updates.
    fraction = 0.5 + noisy_count / federated.denominator
    excess = fraction - federated.target_quantile
    scale = state.optimizer.norm_scale * jnp.exp(-federated.quantile_rate * excess)
    server = Server(optimizer_state, scale)
    return State(theta, server, state.step + 1, state.seen)


def cohort_sums(
    choices: FedAvg,
    federated: Federated,
    theta: Array,
    norm: Array,
    data: Data,
    cohort: Array,
    key: Array,
) -> Sums:
    """Returns the sum of a cohort's clipped updates in one round, and the centred count for adapting C.

    This count (`Sums.centred_count`) has a sensitivity of only 1/2. If `choices.spreads`, each device trains
    some of the clients.

    Args:
      theta, data: the model before the round, (p,), and the data of `mechanism`.
      norm: C_t.
      cohort: the indices of the clients, (W,), padded with ABSENT.
    """
    shuffles = jax.random.fold_in(key, _SHUFFLE)

    def add_block(sums: Sums, members: Array) -> tuple[Sums, None]:
        """Adds the clipped updates and centred counts of a block's clients (b,), which may be ABSENT."""
        is_present = members != ABSENT
        _features, _labels, _starts, all_counts = data
        counts = jnp.where(is_present, all_counts[members], 0)
        # Under `vmap`, every client in a block takes as many steps as the largest one needs.
        steps = choices.epochs * _count_batches(choices, jnp.max(counts))
        train = partial(  # client -> update (p,)
            _local_update,
            choices,
            theta,
            data,
            steps=steps,
            rate=federated.client_learning_rate,
            shuffles=shuffles,
        )
        updates = jax.vmap(train)(members)  # (b, p)

        squared_norms = jnp.sum(updates**2, axis=1)
        # If an update's squared norm overflows, we use NaN, because clipping would silently return 0.
        squared_norms = jnp.where(squared_norms < jnp.inf, squared_norms, jnp.nan)
        weights = is_present.astype(theta.dtype)
        centred = (squared_norms <= norm**2) - 0.5  # 1/2 if unclipped, else -1/2, to adapt C
        centred_count = sums.centred_count + jnp.sum(weights * centred)
        scales = weights * scale_to_norm(squared_norms, norm)
        return Sums(sums.updates + scales @ updates, centred_count), None

    zero = Sums(jnp.zeros_like(theta), jnp.zeros((), theta.dtype))
    blocks = _cut_into_blocks(choices, cohort)
    sums, _ = jax.lax.scan(add_block, zero, blocks)
    if choices.spreads:
        sums = jax.lax.psum(sums, STEP_AXIS)
    return sums


def _cut_into_blocks(choices: FedAvg, cohort: Array) -> Array:
    """Returns the clients of a cohort (W,) that this device trains, as blocks (n, choices.block).

    Blocks are padded with ABSENT.
    """
    devices = jax.lax.axis_size(STEP_AXIS) if choices.spreads else 1
    clients = math.ceil(cohort.size / devices)  # of this device, without padding
    block = min(choices.block, clients)
    per_device = math.ceil(clients / block) * block
    missing = per_device * devices - cohort.size
    padded = jnp.pad(cohort, (0, missing), constant_values=ABSENT)
    by_device = padded.reshape(per_device, devices)  # a column per device
    # Cohorts list the largest clients first. To balance the load, we reverse every other row.
    backwards = by_device[1::2, ::-1]
    by_device = by_device.at[1::2].set(backwards)
    device = jax.lax.axis_index(STEP_AXIS) if choices.spreads else 0
    return by_device[:, device].reshape(-1, block)


def _local_update(
    choices: FedAvg,
    theta: Array,
    data: Data,
    client: Array,
    steps: Array,
    rate: Scalar,
    shuffles: Array,
) -> Array:
    """Returns a client's update (p,): theta minus the model after local SGD; zeros for an absent client.

    Args:
      theta, data: the model before the round, (p,), and the data of `mechanism`.
      client: the client's index, or ABSENT.
      steps: the number of SGD steps, at least as many as this client needs; further steps have no effect.
      shuffles: the round's key for the clients' shuffles.
    """
    features, labels, starts, counts = data
    count = jnp.where(client != ABSENT, counts[client], 0)
    order_key = jax.random.fold_in(shuffles, client)
    order = _draw_orders(choices, order_key, count)  # (epochs, most_examples)
    # An absent client has no batches, so a count of 1 avoids division by 0.
    per_epoch = jnp.maximum(_count_batches(choices, count), 1)

    def advance(i: Array, before: Tree) -> Tree:
        """Returns the parameters after step i of the client's SGD, on its next mini-batch."""
        # The mini-batch is at `places` (batch_size,) in the epoch's order. Positions after the client's last
        # example, and all positions in steps after the last epoch, are padding. Their indices may be out of
        # range, so we clamp them.
        epoch = jnp.minimum(i // per_epoch, choices.epochs - 1)
        places = (i % per_epoch) * choices.batch_size + jnp.arange(choices.batch_size)
        is_example = (places < count) & (i < choices.epochs * per_epoch)
        last_place = order.shape[1] - 1
        drawn = order[epoch, jnp.minimum(places, last_place)]
        rows = starts[client] + jnp.where(is_example, drawn, 0)

        def mean_loss(parameters: Tree) -> Array:
            """Returns the mean loss over the mini-batch, excluding padding; 0 if there is only padding."""
            batch = (features[rows], labels[rows])
            losses = choices.losses(parameters, batch)
            total = jnp.sum(jnp.where(is_example, losses, 0.0))
            return total / jnp.maximum(jnp.sum(is_example), 1)

        gradient = jax.grad(mean_loss)(before)
        return jax.tree.map(lambda value, slope: value - rate * slope, before, gradient)

    initial = choices.unravel(theta)
    trained = jax.lax.fori_loop(0, steps, advance, initial)
    return theta - ravel_pytree(trained)[0]


def _count_batches(choices: FedAvg, examples: Array) -> Array:
    """Returns the number of mini-batches in an epoch over `examples` examples, rounded up."""
    return -(-examples // choices.batch_size)


def _draw_orders(choices: FedAvg, key: Array, count: Array) -> Array:
    """Draws the order of a client's examples in each epoch, as indices (epochs, most_examples).

    The first `count` indices are the client's examples, shuffled. If every client's examples fit into one
    mini-batch, we skip the draw, since the order does not matter.
    """
    shape = (choices.epochs, choices.most_examples)
    positions = jnp.arange(choices.most_examples)
    if choices.most_examples <= choices.batch_size:
        return jnp.broadcast_to(positions, shape)
    draws = jax.random.uniform(key, shape)
    # A key of 2 exceeds any uniform draw, so positions without an example are sorted to the end.
    sort_keys = jnp.where(positions < count, draws, 2.0)
    return jnp.argsort(sort_keys, axis=1)
