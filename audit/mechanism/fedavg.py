"""DP-FedAvg (McMahan et al., 2018) over a flat parameter vector, with canary clients. A step is a round:

    Delta_i = theta_t - (theta after client i's epochs of SGD from theta_t)
    theta_{t+1} = optimizer(theta_t, (sum_i clip(Delta_i, C_t) + sum_k m_tk b_k clip(v_tk, C_t) + Z_t) / n)

with Z_t ~ N(0, (sigma C_t)^2 I), m the canaries' rounds, b their presence and n a fixed denominator, the
mean number of clients a round. C_t follows a quantile of the updates' norms (Andrew et al., 2021) where
quantile_rate is above 0. A client whose SGD diverges makes the model NaN.

The draws of round t come from fold_in(run_key, t): noise as in DP-SGD, and, under constants beyond any p,
the noise of the count and each client's shuffles.
"""

import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.flatten_util import ravel_pytree

from audit.mechanism import base
from audit.mechanism.clipping.base import per_example, scale_to_norm
from audit.mechanism.memory import StepMemory, step_memory

_SHUFFLE, _COUNT = zlib.crc32(b"shuffle"), zlib.crc32(b"count")
_KEPT_THETAS = 6  # of a run's state and a round's sums


class Federated(NamedTuple):
    """DP-FedAvg's own hyperparameters, traced scalars: `Hyperparameters.own`.

    denominator: n, the mean number of clients a round. target_quantile: share of updates that the clipping
    norm leaves alone; quantile_rate: eta of C <- C exp(-eta (b - target_quantile)), 0: C is fixed.
    count_noise: deviation of the noise on the number of unclipped updates b n.
    """

    client_learning_rate: Array | float
    denominator: Array | float
    target_quantile: Array | float = 0.5
    quantile_rate: Array | float = 0.0
    count_noise: Array | float = 0.0


class FedAvg(NamedTuple):
    """DP-FedAvg's choices that are compiled in.

    losses(parameters, (features (B, ...), labels (B, ...))) -> (B,), each example's own; parameters is
    unravel(theta).
    most_examples: of any client. block: clients that are trained at once, mapped; blocks follow each other,
    and with blocks of one so do runs.
    optimizer: the server's, learning rate -> Optax optimizer. spreads: see `Mechanism`.
    """

    losses: Callable[[base.Tree, tuple[Array, Array]], Array]
    unravel: Callable[[Array], base.Tree]
    batch_size: int
    epochs: int
    most_examples: int
    block: int = 4
    optimizer: Callable[[Array], optax.GradientTransformation] = optax.sgd
    spreads: bool = False


class Server(NamedTuple):
    """The server between two rounds: its optimizer's state, and C_t / C_0."""

    optimizer: base.Tree
    scale: Array


class Sums(NamedTuple):
    """A round's sums: clipped updates (p,), and 1/2 for each left alone, -1/2 for each clipped."""

    updates: Array
    unclipped: Array


def mechanism(choices: FedAvg) -> base.Mechanism:
    """DP-FedAvg under the contract of `audit.mechanism.base`. Data are (features (N, ...), labels (N, ...),
    starts (M,), counts (M,)): client i has the examples starts[i] : starts[i] + counts[i]. A schedule's
    batches are clients (rounds, W), padded with -1. Hyperparameters.own is a Federated."""

    def start(theta_0: Array) -> base.State:
        server = Server(choices.optimizer(jnp.float32(0)).init(theta_0), jnp.float32(1))
        return base.State(theta_0, server, jnp.int32(0))

    def segment(
        hyper: base.Hyperparameters,
        state: base.State,
        data: base.Data,
        schedule: base.Schedule,
        canaries: base.Canaries,
        run_key: Array,
    ) -> base.State:
        def advance(state: base.State, now: tuple[Array, Array]) -> tuple[base.State, None]:
            key = jax.random.fold_in(run_key, state.step)
            norm = hyper.clipping_norm * state.optimizer.scale
            sums = cohort_sums(choices, hyper.own, state.theta, norm, data, now[0], key)
            total = _with_canaries(choices, canaries, state, norm, now[1], run_key, sums)
            return base.observed(canaries, step(choices, hyper, state, total, key), state.step), None

        return jax.lax.scan(advance, state, schedule)[0]

    def memory(theta_0: Array, data: base.Data, batch_size: int) -> StepMemory:
        client = client_memory(choices, jax.typeof(theta_0), data)
        return client.times(min(choices.block, batch_size), _KEPT_THETAS * theta_0.nbytes)

    return base.Mechanism(start, segment, memory, choices.spreads)


def client_memory(choices: FedAvg, theta: Any, data: tuple[Any, ...]) -> StepMemory:
    """The memory of a client's training from a theta (p,), on data; arrays or their types."""
    rate, client = jax.ShapeDtypeStruct((), jnp.float32), jax.ShapeDtypeStruct((), jnp.int32)
    key = jax.eval_shape(lambda: jax.random.key(0))
    return step_memory(partial(_local_update, choices), theta, data, client, client, rate, key)


def step(
    choices: FedAvg, hyper: base.Hyperparameters, state: base.State, sums: Sums, key: Array
) -> base.State:
    """The server's part of a round, from sums that hold clients and canaries."""
    own: Federated = hyper.own
    norm = hyper.clipping_norm * state.optimizer.scale
    deviation = jnp.where(jnp.asarray(hyper.noise_multiplier) > 0, hyper.noise_multiplier * norm, 0.0)
    noise = deviation * jax.random.normal(key, state.theta.shape, state.theta.dtype)
    mean = (sums.updates + noise) / own.denominator
    optimizer = choices.optimizer(jnp.asarray(hyper.learning_rate))
    updates, kept = optimizer.update(mean, state.optimizer.optimizer, state.theta)
    theta = jnp.asarray(optax.apply_updates(state.theta, updates))
    count = sums.unclipped + own.count_noise * jax.random.normal(jax.random.fold_in(key, _COUNT))
    above = 0.5 + count / own.denominator - own.target_quantile
    scale = state.optimizer.scale * jnp.exp(-own.quantile_rate * above)
    return base.State(theta, Server(kept, scale), state.step + 1, state.seen)


def cohort_sums(
    choices: FedAvg, own: Federated, theta: Array, norm: Array, data: base.Data, cohort: Array, key: Array
) -> Sums:
    """A cohort's sums; where the step is spread, each device trains its share of the clients."""
    shuffles = jax.random.fold_in(key, _SHUFFLE)

    def add(sums: Sums, members: Array) -> tuple[Sums, None]:
        updates = _block_updates(choices, own, theta, data, members, shuffles)
        squares = jnp.sum(updates**2, axis=1)
        squares = jnp.where(squares < jnp.inf, squares, jnp.nan)  # clipped to nothing, it would not be seen
        joined = (members >= 0).astype(theta.dtype)
        unclipped = jnp.sum(joined * ((squares <= norm**2) - 0.5))
        scales = joined * scale_to_norm(squares, norm)
        return Sums(sums.updates + scales @ updates, sums.unclipped + unclipped), None

    zero = Sums(jnp.zeros_like(theta), jnp.zeros((), theta.dtype))
    sums, _ = jax.lax.scan(add, zero, _blocks(choices, cohort))
    summed: Sums = jax.lax.psum(sums, base.PARTS) if choices.spreads else sums
    return summed


def _blocks(choices: FedAvg, cohort: Array) -> Array:
    """This device's share of a cohort (W,), in blocks of clients next to each other (blocks, block)."""
    devices = jax.lax.axis_size(base.PARTS) if choices.spreads else 1
    width = -(-cohort.size // devices)
    block = min(choices.block, width)
    blocks = -(-width // block)
    padded = jnp.pad(cohort, (0, blocks * block * devices - cohort.size), constant_values=-1)
    shares = padded.reshape(blocks * block, devices)
    shares = shares.at[1::2].set(shares[1::2, ::-1])  # by turns, since the largest come first
    mine = shares[:, jax.lax.axis_index(base.PARTS)] if choices.spreads else shares[:, 0]
    return mine.reshape(blocks, block)


def _block_updates(
    choices: FedAvg, own: Federated, theta: Array, data: base.Data, members: Array, shuffles: Array
) -> Array:
    """The updates (b, p) of a block of clients, 0 of those that are absent."""
    counts = jnp.where(members >= 0, data[3][members], 0)
    steps = choices.epochs * -(-jnp.max(counts) // choices.batch_size)
    train = partial(_local_update, choices)
    if choices.block == 1:  # one by one, over runs too: mapped, a client's products would be batched ones
        train = jax.custom_batching.sequential_vmap(train)
    mapped = jax.vmap(train, (None, None, 0, None, None, None))
    return mapped(theta, data, members, steps, jnp.asarray(own.client_learning_rate), shuffles)


def _local_update(
    choices: FedAvg, theta: Array, data: base.Data, client: Array, steps: Array, rate: Array, shuffles: Array
) -> Array:
    """theta minus what a client's epochs of SGD make of it (p,), in at most so many steps; 0 of client -1."""
    features, labels, starts, counts = data
    count = jnp.where(client >= 0, counts[client], 0)
    order = _orders(choices, jax.random.fold_in(shuffles, client), count)
    per_epoch = jnp.maximum(-(-count // choices.batch_size), 1)

    def advance(i: Array, parameters: base.Tree) -> base.Tree:
        epoch, batch = jnp.minimum(i // per_epoch, choices.epochs - 1), i % per_epoch
        places = batch * choices.batch_size + jnp.arange(choices.batch_size)
        live = (places < count) & (i < choices.epochs * per_epoch)
        rows = starts[client] + jnp.where(live, order[epoch, jnp.minimum(places, order.shape[1] - 1)], 0)
        examples = features[rows], labels[rows]

        def mean_loss(parameters: base.Tree) -> Array:
            found = choices.losses(parameters, examples)
            return jnp.sum(jnp.where(live, found, 0.0)) / jnp.maximum(jnp.sum(live), 1)

        gradient = jax.grad(mean_loss)(parameters)
        return jax.tree.map(lambda value, slope: value - rate * slope, parameters, gradient)

    return theta - ravel_pytree(jax.lax.fori_loop(0, steps, advance, choices.unravel(theta)))[0]


def _orders(choices: FedAvg, key: Array, count: Array) -> Array:
    """A shuffle of 0 .. count - 1 an epoch (epochs, most_examples), what is beyond them last."""
    shape = choices.epochs, choices.most_examples
    if choices.most_examples <= choices.batch_size:
        return jnp.broadcast_to(jnp.arange(shape[1]), shape)
    draws = jax.random.uniform(key, shape)
    return jnp.argsort(jnp.where(jnp.arange(shape[1]) < count, draws, 2.0), axis=1)


def _with_canaries(
    choices: FedAvg,
    canaries: base.Canaries,
    state: base.State,
    norm: Array,
    mask: Array,
    run_key: Array,
    sums: Sums,
) -> Sums:
    """The sums with the canaries that join a round, each of which counts as clipped."""
    now = canaries
    if canaries.sampled:
        now = canaries._replace(presence=base.joins(canaries.presence, run_key, state.step))

    def loss(theta: Array, one: tuple[Array, Array]) -> Array:
        return choices.losses(choices.unravel(theta), (one[0][None], one[1][None]))[0]

    extra = base.inserted(now, state.step, state.theta, norm, mask, per_example(loss))
    return Sums(sums.updates + extra, sums.unclipped - 0.5 * jnp.sum(now.presence * mask))
