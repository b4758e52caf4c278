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
from audit.training.game import root
from experiments.canife import attacked as settings
from experiments.canife import cohort_law, designed, populations, round_game
from experiments.canife import measured as rounds
from experiments.canife.attacked import Attacked
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
    return setting, split, rounds.open_store(setting, split.checksum, out)


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
    stored = {measured.number for measured in rounds.read_rounds(store, numbers)}
    missing = sorted(set(numbers) - stored)
    if not missing:
        return
    population = Population(setting, split)
    designer = _make_designer(setting, population)
    checkpoints = Checkpoints(store.checkpoints)
    # The number of trained rounds, and the state after them; 0 and the first state without a checkpoint.
    trained, state = checkpoints.resume(_STATES, population.start())
    if trained >= missing[0]:  # the checkpoint's model has played the first missing round already
        trained, state = 0, population.start()

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
            measured = _measure(setting, population, designer, jnp.asarray(state.theta), number)
            rounds.save_round(store, measured)
            yield measured
    checkpoints.clear()


def _make_designer(setting: Attacked, population: Population) -> Designer:
    """Returns the function that designs a setting's canaries."""
    penalties = {
        "as_run": designed.as_run(setting.norm_constant, setting.clipping_norm),
        "as_printed": designed.as_printed(setting.clipping_norm),
        "of_the_mean": designed.of_the_mean(setting.clipping_norm),
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
    """Measures the round that a frozen model is about to play.

    Designs a canary against the model, computes the dot product of clients' updates with the canary's
    direction, and plays mock rounds. Of the clients to train on, `setting.population` take part, drawn by the
    seed; they are the same for all rounds. Lower bounds come from further mock rounds.

    All epsilons are at the training run's delta, except `exact_then`: it is at the published estimate's delta
    1/n. The exact epsilons follow from the law of the scores, and are infinite without noise.

    Args:
      setting: The setting.
      population: The model and its clients.
      designer: The function that designs the setting's canaries.
      theta: The frozen model (p,).
      number: The number of the round, from 1.
    """
    canary, health = _design_canary(setting, population, designer, theta, number)
    gradient = designer.gradient(theta, canary)
    # As published, the canary's client sends its gradient as it is, without a learning rate.
    rate = 1.0 if setting.as_published else population.rate
    inserted = round_game.inserted(gradient, rate, setting.clipping_norm)

    clients = population.split.train.number
    members = populations.draw_clients(setting, "population", clients, setting.population)

    def project(places: NDArray[np.int64], direction: Array) -> Array:
        """Returns the dot products (n,) of the clients at places (n,) of `members` with a direction."""
        return population.updates(theta, population.split.train, members[places]) @ direction

    norm = setting.clipping_norm
    dots = round_game.dots(project, setting.population, inserted, norm, _BLOCK)
    own = round_game.own_dot(inserted, norm)
    sigma = setting.noise_multiplier
    rng = populations.make_generator(setting, f"mock {number}")
    play = partial(round_game.mock_scores, rng, dots, setting.cohort, own, sigma)
    if setting.as_published:
        scores_in, scores_out = round_game.published_scores(
            rng, dots, setting.cohort, own, sigma, setting.scores
        )
    else:
        scores_in, scores_out = play(setting.scores // 2)  # an odd n is rounded down

    # Bounds are about the accountant's neighbours: the canary is added, rather than replacing a client.
    proven = estimate.assumption_free(*play(setting.mock_rounds), setting.delta, _CONFIDENCE)

    exact = np.inf  # a score without noise identifies its world
    exact_then = np.inf
    if sigma:
        compute_law = cohort_law.replacing if setting.as_published else cohort_law.added
        pair = compute_law(dots, setting.cohort, sigma, own)
        exact = densities.epsilon_at(pair, setting.delta)
        exact_then = densities.epsilon_at(pair, 1 / setting.scores)

    return Measured(
        number=number,
        clients=clients,
        accuracy=population.accuracy(theta),
        health=health,
        norm=float(jnp.linalg.norm(gradient)),
        own=own,
        known=dots,
        scores_in=scores_in,
        scores_out=scores_out,
        exact=exact,
        exact_then=exact_then,
        proven=proven.epsilon,
        canary=population.samples.show(canary),
        label=np.asarray(jax.nn.softmax(canary.label)),
    )


def _design_canary(
    setting: Attacked, population: Population, designer: Designer, theta: Array, number: int
) -> tuple[Sample, float]:
    """Designs a round's canary against a frozen model, on the updates of a pool of mock clients.

    A sample is settled when the characters of a text are drawn, which are distributions during the design.
    The arguments are those of `_measure`.

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

    blocks = []
    for start in range(0, len(pool), _BLOCK):
        blocks.append(population.updates(theta, mock, pool[start : start + _BLOCK]))
    updates = jnp.concatenate(blocks)
    key = jax.random.fold_in(root(setting.seed, "design"), number)
    result = designer.run(theta, first, updates, setting.design_steps, key)
    chosen_sample = result.best if setting.keep_best else result.last

    # A text's characters are drawn now, by a key that differs from all keys of the design. `fold_in` takes a
    # number: the checksum of a word.
    first_key, last_key = jax.random.split(jax.random.fold_in(key, zlib.crc32(b"settle")))
    settled_first = samples.settle(first, first_key)
    canary = samples.settle(chosen_sample, last_key)

    def judge(sample: Sample) -> float:
        """Returns a settled sample's penalty on all updates of the pool."""
        return float(designer.penalty(designer.gradient(theta, sample), updates))

    return canary, designed.health(judge(settled_first), judge(canary))
