"""A training run that is frozen every so many rounds and measured.

A canary is designed against the frozen model, mock rounds are played, and what their scores show is compared
with what is exact. Each measured round is a file; killed at any moment, a training run goes on with the same
bits.
"""

import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from numpy.typing import NDArray

from audit.errors import require
from audit.laws import densities
from audit.methods import estimate
from audit.storage.checkpoints import Checkpoints
from audit.storage.store import Store
from audit.training.game import root
from experiments.canife import attacked as settings
from experiments.canife import cohort_law, designed, populations, round_game
from experiments.canife import measured as rounds
from experiments.canife.attacked import Attacked
from experiments.canife.designed import Designer, SampleDesign
from experiments.canife.measured import CONFIDENCE, Floats, Measured
from experiments.canife.populations import Population, Split
from experiments.canife.samples import Sample
from experiments.cells.cell import DataSets

_BLOCK = 256  # clients whose updates are computed at once
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
    `setting.every` rounds, so that a single compiled program serves all. A stretch begins with a round that
    may be measured, and ends before the next such round.

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
    population = populations.make_population(setting, split)
    measurement = compile_measurement(setting, population)
    checkpoints = Checkpoints(store.checkpoints)
    # The number of trained rounds, and the state after them; 0 and the first state without a checkpoint.
    trained, state = checkpoints.resume(_STATES, population.start())
    # The checkpoint's model may have played the first missing round already. Then training starts afresh. In
    # any case a number of whole stretches is trained, as checkpoints are stored between stretches.
    if trained >= missing[0]:
        trained, state = 0, population.start()

    starts = setting.measured()  # the first rounds of the stretches
    for target in starts:
        # Targets before the first missing round are skipped: the loop below trains up to that round without
        # a stop. After the last missing round there is nothing to do.
        if not missing[0] <= target <= missing[-1]:
            continue
        # Plays the stretches that begin after the trained rounds, up to the round before the target. These
        # may be several for the first target; from there on it is the stretch before the target alone.
        for first in starts:
            if trained < first < target:
                state = population.train(state, first, setting.every)
        trained = target - 1
        message = (
            f"the model diverged before round {target}: lower `learning_rate` or `noise_multiplier`"
        )
        require(bool(jnp.isfinite(state.theta).all()), message)
        checkpoints.offer(_STATES, trained, state)
        if target in missing:
            measured = measure(measurement, jnp.asarray(state.theta), target)
            rounds.save_round(store, measured)
            yield measured
    checkpoints.clear()


class RoundMeasurement(NamedTuple):
    """A training run under measurement, with the compiled functions that measure its rounds.

    Attributes:
      setting: The setting.
      population: The model and its clients.
      design: The function that designs a canary; see `designed.designer`.
      penalty: (gradient, updates) -> the design's penalty.
      gradient: (theta, sample) -> the sample's gradient.
    """

    setting: Attacked
    population: Population
    design: Designer
    penalty: Callable[[Array, Array], Array]
    gradient: Callable[[Array, Sample], Array]


def compile_measurement(setting: Attacked, population: Population) -> RoundMeasurement:
    """Compiles the functions that measure rounds of a training run: designer, penalty and gradient.

    Args:
      setting: The setting, with the design's penalty, learning rate and minibatch.
      population: The model and its clients, with the loss of a canary's sample.
    """
    penalties: dict[str, designed.Penalty] = {
        "as_run": designed.as_run(setting.norm_constant, setting.clipping_norm),
        "as_printed": designed.as_printed(setting.clipping_norm),
        "of_the_mean": designed.of_the_mean(setting.clipping_norm),
    }
    penalty = penalties[setting.penalty]
    loss = population.samples.loss
    sample_design = SampleDesign(
        loss,
        penalty,
        optax.adam(setting.design_rate),
        setting.design_batch or setting.cohort,  # 0: as many updates as the cohort has clients
    )

    @jax.jit
    def compute_gradient(theta: Array, sample: Sample) -> Array:
        """Returns the gradient (p,) of a settled sample. Nothing of it is left to draw: any key will do."""
        gradient: Array = jax.grad(loss)(theta, sample, jax.random.key(0))
        return gradient

    design = designed.designer(sample_design)
    return RoundMeasurement(setting, population, design, jax.jit(penalty), compute_gradient)


def measure(measurement: RoundMeasurement, theta: Array, number: int) -> Measured:
    """Measures the round that a frozen model is about to play.

    Designs a canary against the model, computes the dot product of clients' updates with the canary's
    direction, and plays mock rounds. Of the clients to train on, `setting.population` take part, drawn by the
    seed; they are the same for all rounds.

    Args:
      measurement: The training run and its compiled functions.
      theta: The frozen model (p,).
      number: The number of the round, from 1.
    """
    setting = measurement.setting
    population = measurement.population
    norm = setting.clipping_norm
    canary, health = _design_canary(measurement, theta, number)
    gradient = measurement.gradient(theta, canary)
    # As published, the canary's client sends its gradient as it is, without a learning rate.
    rate = None if setting.as_published else population.training.rate
    inserted = round_game.inserted(gradient, rate, norm)

    clients = population.split.train.number
    members = populations.draw_clients(setting, "population", clients, setting.population)

    def project(places: NDArray[np.int64], direction: Array) -> Array:
        """Returns the dot products (n,) of the clients at places (n,) of `members` with a direction."""
        return population.training.train_dots(theta, members[places], direction)

    dots = round_game.dots(project, setting.population, inserted, norm, _BLOCK)
    own = round_game.own_dot(inserted, norm)
    scores = _score_mock_rounds(setting, dots, own, number)

    return Measured(
        number,
        clients,
        accuracy=population.accuracy(theta),
        health=health,
        norm=float(jnp.linalg.norm(gradient)),
        own=own,
        known=dots,
        **scores._asdict(),
        canary=population.samples.show(canary),
        label=np.asarray(jax.nn.softmax(canary.label)),
    )


def _design_canary(
    measurement: RoundMeasurement, theta: Array, number: int
) -> tuple[Sample, float]:
    """Designs a round's canary against a frozen model, on the updates of a pool of mock clients.

    The design lowers a penalty: the mean squared dot product of the canary's gradient and the clients'
    updates, and a term for a short gradient (`designed.penalty`). A sample is settled when the characters
    of a text are drawn, which are distributions during the design.

    Args:
      measurement: The training run and its compiled functions.
      theta: The frozen model (p,).
      number: The number of the round, from 1.

    Returns:
      The canary's settled sample; and its health, the share of the settled first sample's penalty that the
        design removed.
    """
    setting = measurement.setting
    population = measurement.population
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

    def compute_updates(places: range) -> Array:
        """Returns the clipped updates (n, p) of the clients at these n places of the pool.

        They are computed for _BLOCK clients at a time.
        """
        members = pool[places.start : places.stop]
        updates = []
        for start in range(0, len(members), _BLOCK):
            block = members[start : start + _BLOCK]
            updates.append(population.training.mock_updates(theta, block))
        return jnp.concatenate(updates)

    ranges = designed.in_blocks(len(pool), theta.size, setting.memory)
    update_functions = [partial(compute_updates, places) for places in ranges]
    key = jax.random.fold_in(root(setting.seed, "design"), number)
    result = measurement.design(theta, first, update_functions, setting.design_steps, key)
    chosen_sample = result.best if setting.keep_best else result.last

    # A text's characters are drawn now, by a key that differs from all keys of the design. `fold_in` takes a
    # number: the checksum of a word.
    settle_key = jax.random.fold_in(key, zlib.crc32(b"settle"))
    first_key, last_key = jax.random.split(settle_key)
    settled_first = samples.settle(first, first_key)
    canary = samples.settle(chosen_sample, last_key)

    def average_penalty(sample: Sample) -> float:
        """Returns a settled sample's mean penalty over all parts of the pool's updates."""
        gradient = measurement.gradient(theta, sample)
        penalties = []
        for compute_part in update_functions:
            penalties.append(float(measurement.penalty(gradient, compute_part())))
        return float(np.mean(penalties))

    health = designed.health(average_penalty(settled_first), average_penalty(canary))
    return canary, health


class _MockScores(NamedTuple):
    """What mock rounds show of a canary; each field is the one of this name of `Measured`."""

    scores_in: Floats
    scores_out: Floats
    exact: float
    exact_then: float
    proven: float
    proven_if_gaussian: float


def _score_mock_rounds(setting: Attacked, dots: Floats, own: float, number: int) -> _MockScores:
    """Plays a frozen model's mock rounds; returns their scores, bounds on epsilon, and the exact epsilons.

    The scores are those of the published estimate, n = `setting.scores` in both worlds together. The lower
    bounds come from other mock rounds, `setting.mock_rounds` in each world, whose scores are not returned.

    All epsilons are at the training run's delta, except `exact_then`: it is at the published estimate's delta
    1/n. The exact epsilons follow from the law of the scores, and are infinite without noise.

    Args:
      setting: The setting.
      dots: (M,) the clients' dot products with the canary's direction, over the clipping norm C.
      own: The canary's own dot product with its direction, over C.
      number: The number of the round, by which its draws differ from other rounds'.
    """
    cohort = setting.cohort
    sigma = setting.noise_multiplier
    rng = populations.make_generator(setting, f"mock {number}")
    if setting.as_published:
        scores_in, scores_out = round_game.published_scores(
            rng, dots, cohort, own, sigma, setting.scores
        )
    else:
        half = setting.scores // 2  # an odd n is rounded down to an even number
        scores_in, scores_out = round_game.mock_scores(rng, dots, cohort, own, sigma, half)

    # Bounds are about the accountant's neighbours: the canary is added, rather than replacing a client.
    many_in, many_out = round_game.mock_scores(rng, dots, cohort, own, sigma, setting.mock_rounds)
    free = estimate.assumption_free(many_in, many_out, setting.delta, CONFIDENCE)
    gaussian = estimate.if_gaussian(many_in, many_out, setting.delta, CONFIDENCE)

    exact = np.inf  # a score without noise identifies its world
    exact_then = np.inf
    if sigma:
        compute_law = cohort_law.replacing if setting.as_published else cohort_law.added
        pair = compute_law(dots, cohort, sigma, own)
        exact = densities.epsilon_at(pair, setting.delta)
        exact_then = densities.epsilon_at(pair, 1 / setting.scores)
    return _MockScores(scores_in, scores_out, exact, exact_then, free.epsilon, gaussian.epsilon)
