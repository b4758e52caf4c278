"""Trains a model and measures it at regular rounds.

Each measurement designs a canary for the frozen model, simulates mock rounds, and compares their estimates
with exact values. A killed training run continues with bit-for-bit the same results.
"""

import zlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from numpy.typing import NDArray

from audit.errors import require
from audit.laws import densities
from audit.methods import estimate
from audit.storage.store import Checkpoints, Store
from audit.tasks.task import Clients
from audit.training.game import root
from experiments.canife import attacked as settings
from experiments.canife import cohort_law, designed, measured, populations
from experiments.canife.attacked import Attacked
from experiments.canife.designed import Designer
from experiments.canife.measured import Floats, Measured
from experiments.canife.populations import Population, Split
from experiments.canife.samples import Sample
from experiments.cells.cell import DataSets

_BLOCK = 256  # clients per call of the update function
_CONFIDENCE = 0.95
_STATES = "rounds"  # the checkpoints' name


def prepare(setting: Attacked, out: Path, data: DataSets) -> tuple[Attacked, Split, Store]:
    """Loads a setting's clients and opens its store under the root `out`.

    Returns the setting with the numbers of clients (`attacked.fit_to_clients`), the clients, and the store.
    Raises InputError if the data cannot be loaded or do not fit the setting.
    """
    split = populations.split_clients(setting, data)
    setting = settings.fit_to_clients(setting, split.train.number, split.mock.number)
    return setting, split, measured.open_store(setting, split.train.checksum, out)


def measure_missing(
    setting: Attacked, split: Split, store: Store, numbers: Sequence[int]
) -> Iterator[Measured]:
    """Trains up to each missing round of `numbers`, measures it, and yields it after storing it.

    A round is measured with the model before that round. One compiled program trains `setting.every` rounds,
    up to the next round that can be measured. Raises InputError if the model diverges.
    """
    stored = {one.number for one in measured.read_rounds(store, numbers)}
    missing = sorted(set(numbers) - stored)
    if not missing:
        return
    population = populations.make_population(setting, split)
    penalty = getattr(designed, setting.penalty)
    designer = designed.designer(
        population.samples.loss,
        partial(penalty, setting.norm_constant, setting.clipping_norm),
        optax.adam(setting.design_rate),
        setting.design_batch or setting.cohort,
    )
    checkpoints = Checkpoints(store.checkpoints)
    # Without a checkpoint these are 0 and the first state.
    trained, state = checkpoints.resume(_STATES, population.start)
    if trained >= missing[0]:  # the checkpoint is after the first missing round
        trained = 0
        state = population.start

    for number in range(trained + 1, missing[-1] + 1, setting.every):
        if number > trained + 1:
            state = population.train(state, trained + 1, setting.every)
            trained = number - 1
        require(
            jnp.isfinite(state.theta).all(),
            f"the model diverged before round {number}: lower `learning_rate` or `noise_multiplier`",
        )
        checkpoints.offer(_STATES, trained, state)
        if number in missing:
            one = _measure(setting, population, designer, jnp.asarray(state.theta), number)
            measured.save_round(store, one)
            yield one
    checkpoints.clear()


def _measure(
    setting: Attacked,
    population: Population,
    designer: Designer,
    theta: Array,
    number: int,
) -> Measured:
    """Designs a canary for the frozen model (p,) of a round, and measures the round by mock rounds.

    They draw cohorts from `setting.population` training clients, the same for all rounds.
    """
    canary, health = _design_canary(setting, population, designer, theta, number)
    gradient = designer.gradient(theta, canary)
    length = float(jnp.linalg.norm(gradient))
    require(
        0 < length < np.inf,
        f"the canary's gradient has norm {length:g}: design it with another `seed`",
    )

    # Over C. A clipped canary's own dot product is 1. As published, its client sends the gradient without a
    # learning rate (Errata C2).
    rate = 1.0 if setting.as_published else population.rate
    own = min(rate * length / setting.clipping_norm, 1.0)
    train = population.split.train
    members = populations.draw_clients(setting, "population", train.number, setting.population)
    direction = gradient / length
    dots = []
    for updates in _in_blocks(population, theta, train, members):
        dots.append(np.asarray(updates @ direction, np.float64))
    known = np.concatenate(dots) / setting.clipping_norm

    return Measured(
        number=number,
        clients=train.number,
        accuracy=population.accuracy(theta),
        health=health,
        norm=length,
        own=own,
        known=known,
        canary=population.samples.show(canary),
        label=np.asarray(jax.nn.softmax(canary.label)),
        **_attack(setting, known, own, number),
    )


def _attack(setting: Attacked, known: Floats, own: float, number: int) -> dict[str, Any]:
    """Returns the scores of a round's mock rounds, their lower bound and exact epsilons, as in `Measured`.

    `known` (M,) and `own` are the dot products of the clients and of the canary's update with its direction,
    over C. The round's number decides the random draws.
    """
    sigma = setting.noise_multiplier
    rng = populations.make_generator(setting, f"mock {number}")
    play = partial(cohort_law.simulate_scores, rng, known, sigma=sigma)
    # The canary is added to the cohort or, as published, replaces a client of it (Errata C1).
    others = setting.cohort - setting.as_published
    rounds_out = setting.scores // 2
    scores_in = play(cohort=others, rounds=setting.scores - rounds_out) + own
    scores_out = play(cohort=setting.cohort, rounds=rounds_out)
    # The bound uses the accountant's neighbors: the canary is always added.
    many_in = play(cohort=setting.cohort, rounds=setting.mock_rounds) + own
    many_out = play(cohort=setting.cohort, rounds=setting.mock_rounds)
    proven = estimate.assumption_free(many_in, many_out, setting.delta, _CONFIDENCE)

    exact = np.inf  # a score without noise identifies its world
    exact_then = np.inf
    if sigma:
        pair = cohort_law.score_densities(known, setting.cohort, sigma, own, setting.as_published)
        exact = densities.epsilon_at(pair, setting.delta)
        exact_then = densities.epsilon_at(pair, 1 / setting.scores)
    return {
        "scores_in": scores_in,
        "scores_out": scores_out,
        "proven": proven.epsilon,
        "exact": exact,
        "exact_then": exact_then,
    }


def _in_blocks(
    population: Population, theta: Array, clients: Clients, members: NDArray[np.int64]
) -> Iterator[Array]:
    """Yields the clipped updates (n, p) of clients, block by block."""
    for start in range(0, len(members), _BLOCK):
        yield population.updates(theta, clients.arrays, members[start : start + _BLOCK])


def _design_canary(
    setting: Attacked,
    population: Population,
    designer: Designer,
    theta: Array,
    number: int,
) -> tuple[Sample, float]:
    """Designs a round's canary for a frozen model with the updates of a pool of mock clients.

    The first sample is random, or the first example of a random client, who then leaves the pool. Returns the
    canary's settled sample, and its health: the share of the settled first sample's penalty that the design
    removed.
    """
    mock = population.split.mock
    pool = populations.draw_clients(setting, "pool", mock.number, setting.pool)
    rng = populations.make_generator(setting, f"sample {number}")
    chosen = int(rng.integers(len(pool)))
    if setting.start == "random":
        first = population.samples.draw(rng)
    else:
        features, labels = mock.of(int(pool[chosen]))
        first = population.samples.from_example(features[0], labels[0])
        pool = np.delete(pool, chosen)
    blocks = _in_blocks(population, theta, mock, pool)
    updates = jnp.concatenate(list(blocks))
    key = jax.random.fold_in(root(setting.seed, "design"), number)
    result = designer.run(theta, first, updates, setting.design_steps, key)
    last = result.last
    if setting.keep_best:
        last = result.best

    # A key that differs from all keys of the design. `fold_in` takes a number.
    settle_key = jax.random.fold_in(key, zlib.crc32(b"settle"))
    settled = []
    penalties = []
    for sample, sample_key in zip((first, last), jax.random.split(settle_key), strict=True):
        settled.append(population.samples.settle(sample, sample_key))
        gradient = designer.gradient(theta, settled[-1])
        penalties.append(float(designer.penalty(gradient, updates)))
    before, after = penalties
    health = 0.0  # if the first sample had no penalty to remove
    if before:
        health = (before - after) / before
    return settled[-1], health
