"""A training run that is frozen every so many rounds and measured.

A canary is designed against the frozen model, mock rounds are played, and what their scores show is compared
with what is exact. Each measured round is a file; killed at any moment, a training run goes on with the same
bits.
"""

import zlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

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
from experiments.canife import designed, measured, populations, round_game
from experiments.canife.attacked import Attacked
from experiments.canife.cohort_law import score_densities
from experiments.canife.designed import Designer
from experiments.canife.measured import Measured
from experiments.canife.populations import Population, Split
from experiments.canife.samples import Sample
from experiments.cells.cell import DataSets

_BLOCK = 256  # clients whose updates are computed at once
_CONFIDENCE = 0.95
_STATES = "rounds"  # the checkpoints' name


def prepare(setting: Attacked, out: Path, data: DataSets) -> tuple[Attacked, Split, Store]:
    """Loads a setting's clients and opens its store under `out`.

    Args:
      setting: The setting; its pool or population may be 0, which stands for a number that suits the data.
      out: The folder of all stores.
      data: The models' data.

    Returns:
      The setting, fitted to the numbers of clients; the clients; and the store.

    Raises:
      InputError: The data can't be loaded, or do not fit the setting.
    """
    split = populations.split_clients(setting, data)
    setting = settings.fit_to_clients(setting, split.train.number, split.mock.number)
    return setting, split, measured.open_store(setting, split.checksum, out)


def measure_missing(
    setting: Attacked, split: Split, store: Store, numbers: Sequence[int]
) -> Iterator[Measured]:
    """Trains up to each requested round that is not stored yet, measures it and stores it.

    A round is measured with the model that is about to play it. Training is cut into stretches of
    `setting.every` rounds, which end before a round that may be measured: a single compiled program serves
    all.

    Args:
      setting: The setting.
      split: The setting's clients.
      store: The setting's store.
      numbers: The rounds to measure, some or all of `setting.measured()`.

    Yields:
      Each newly measured round, once it is on disk.

    Raises:
      InputError: The model diverged.
    """
    stored = {one.number for one in measured.read_rounds(store, numbers)}
    missing = sorted(set(numbers) - stored)
    if not missing:
        return
    population = populations.make_population(setting, split)
    designer = _make_designer(setting, population)
    checkpoints = Checkpoints(store.checkpoints)
    # The number of trained rounds, and the state after them; 0 and the first state without a checkpoint.
    trained, state = checkpoints.resume(_STATES, population.start)
    if trained >= missing[0]:  # the checkpoint's model has played the first missing round already
        trained, state = 0, population.start

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


def _make_designer(setting: Attacked, population: Population) -> Designer:
    """Returns the function that designs a setting's canaries."""
    norm = setting.clipping_norm
    penalties = {
        "as_run": partial(designed.as_run, setting.norm_constant, norm),
        "as_printed": partial(designed.as_printed, norm),
        "of_the_mean": partial(designed.of_the_mean, norm),
    }
    return designed.designer(
        population.samples.loss,
        penalties[setting.penalty],
        optax.adam(setting.design_rate),
        setting.design_batch or setting.cohort,  # 0: as many updates as the cohort has clients
    )


def _measure(
    setting: Attacked, population: Population, designer: Designer, theta: Array, number: int
) -> Measured:
    """Designs a canary against the frozen model (p,) of a round, and measures the round by mock rounds.

    Of the clients to train on, `setting.population` take part, drawn by the seed; they are the same for all
    rounds. Lower bounds come from further mock rounds.
    """
    canary, health = _design_canary(setting, population, designer, theta, number)
    gradient = designer.gradient(theta, canary)
    length = float(jnp.linalg.norm(gradient))
    message = f"the canary's gradient has norm {length:g}: design it with another `seed`"
    require(0 < length < np.inf, message)

    # All dot products are with the canary's direction, over C. The canary's own is 1 if it is clipped. As
    # published, its client sends its gradient as it is, without a learning rate (Errata C2).
    rate = 1.0 if setting.as_published else population.rate
    own = min(rate * length / setting.clipping_norm, 1.0)
    train = population.split.train
    members = populations.draw_clients(setting, "population", train.number, setting.population)
    updates = _in_blocks(population, theta, train, members)
    dots = [np.asarray(block @ (gradient / length), np.float64) for block in updates]
    known = np.concatenate(dots) / setting.clipping_norm

    sigma = setting.noise_multiplier
    rng = populations.make_generator(setting, f"mock {number}")
    play = partial(round_game.mock_scores, rng, known, setting.cohort, own, sigma)
    if setting.as_published:
        scores = round_game.published_scores(rng, known, setting.cohort, own, sigma, setting.scores)
    else:
        scores = play(setting.scores // 2)  # an odd n is rounded down
    # Bounds are about the accountant's neighbours: the canary is added, rather than replacing a client.
    proven = estimate.assumption_free(*play(setting.mock_rounds), setting.delta, _CONFIDENCE)

    exact = np.inf  # a score without noise identifies its world
    exact_then = np.inf
    if sigma:
        pair = score_densities(known, setting.cohort, sigma, own, setting.as_published)
        exact = densities.epsilon_at(pair, setting.delta)
        exact_then = densities.epsilon_at(pair, 1 / setting.scores)
    return Measured(
        number=number,
        clients=train.number,
        accuracy=population.accuracy(theta),
        health=health,
        norm=length,
        own=own,
        known=known,
        scores_in=scores[0],
        scores_out=scores[1],
        exact=exact,
        exact_then=exact_then,
        proven=proven.epsilon,
        canary=population.samples.show(canary),
        label=np.asarray(jax.nn.softmax(canary.label)),
    )


def _in_blocks(
    population: Population, theta: Array, clients: Clients, members: NDArray[np.int64]
) -> Iterator[Array]:
    """Yields the clipped updates (n, p) of clients, block by block."""
    for start in range(0, len(members), _BLOCK):
        yield population.updates(theta, clients, members[start : start + _BLOCK])


def _design_canary(
    setting: Attacked, population: Population, designer: Designer, theta: Array, number: int
) -> tuple[Sample, float]:
    """Designs a round's canary against a frozen model, on the updates of a pool of mock clients.

    A sample is settled when the characters of a text are drawn, which are distributions during the design.

    Returns:
      The canary's settled sample; and its health, the share of the settled first sample's penalty that the
        design removed.
    """
    samples = population.samples
    mock = population.split.mock
    pool = populations.draw_clients(setting, "pool", mock.number, setting.pool)

    # The first sample is random, or the first example of a random client of the pool.
    rng = populations.make_generator(setting, f"sample {number}")
    chosen = int(rng.integers(len(pool)))
    if setting.start == "random":
        first = samples.draw(rng)
    else:
        features, labels = mock.of(int(pool[chosen]))
        first = samples.from_example(features[0], labels[0])
        pool = np.delete(pool, chosen)  # the canary is designed on all other clients of the pool

    updates = jnp.concatenate(list(_in_blocks(population, theta, mock, pool)))
    key = jax.random.fold_in(root(setting.seed, "design"), number)
    result = designer.run(theta, first, updates, setting.design_steps, key)

    # A text's characters are drawn now, by a key that differs from all keys of the design. `fold_in` takes a
    # number: the checksum of a word.
    first_key, last_key = jax.random.split(jax.random.fold_in(key, zlib.crc32(b"settle")))
    canary = samples.settle(result.best if setting.keep_best else result.last, last_key)
    penalties = []
    for sample in (samples.settle(first, first_key), canary):
        penalties.append(float(designer.penalty(designer.gradient(theta, sample), updates)))
    before, after = penalties
    return canary, (before - after) / before if before else 0.0
