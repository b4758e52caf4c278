"""A training run that is frozen every so many rounds and measured, and its cell.

A canary is designed against the frozen model, mock rounds are played, and what their scores show is compared
with what is exact. Each measured round is a file; killed at any moment, a training run goes on from the last
measured round with the same bits.
"""

import contextlib
import hashlib
import io
import json
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache, partial
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
from audit.mechanism.base import State
from audit.methods import estimate
from audit.runtime.progress import Progress
from audit.storage import files
from audit.storage.index import Holdings
from audit.storage.store import Store
from audit.training.game import root
from experiments.canife import attacked as settings
from experiments.canife import cohort_law, designed, populations, round_game
from experiments.canife.attacked import SEED, Attacked, Combination, Value, VariedGrid
from experiments.canife.cohort_law import Cohort
from experiments.canife.designed import Designed, SampleDesign
from experiments.canife.populations import DataPaths, Population, Split
from experiments.canife.samples import Canary, Sample
from experiments.cells.cell import Cell, DataSets

Floats = NDArray[np.float64]
Designer = Callable[..., Designed]
CONFIDENCE = 0.95
_BLOCK = 256  # clients whose updates are computed at once
_DESCENT_POINTS = 200  # of a design's penalties that are stored, about
_STEP_SECONDS = 0.006  # of a canary's design, on two cores, compilation included
_STATE_FILE = "state.npz"
_ROUND_FILE = "round_{:07d}.npz"
_FETCHED = DataPaths()
LoadSplit = Callable[[Attacked], Split]


class Measured(NamedTuple):
    """What is stored of a measured round; the names are those in its file.

    Attributes:
      number: The round, from 1.
      accuracy: The frozen model's accuracy on the test set.
      health: The canary's health, over the whole pool.
      norm: The norm of the canary's gradient.
      own: The canary's dot product with its own direction, over C.
      known: The clients' dot products (M,) with that direction, over C.
      scores_in: Scores of mock rounds with the canary, as published.
      scores_out: Scores of mock rounds without it, as published.
      exact: epsilon of the score's law at the training run's delta.
      exact_then: epsilon of the score's law at delta 1/n.
      proven: A lower bound from mock rounds, without an assumption.
      proven_if_gaussian: A lower bound from mock rounds if the trade-off curve is Gaussian.
      canary: The canary's normalised pixels, or its text.
      label: The probabilities of its label.
      descent: The design's penalties on its minibatches.
    """

    number: int
    accuracy: float
    health: float
    norm: float
    own: float
    known: Floats
    scores_in: Floats
    scores_out: Floats
    exact: float
    exact_then: float
    proven: float
    proven_if_gaussian: float
    canary: Canary
    label: NDArray[np.float32]
    descent: NDArray[np.float32]


def prepared(
    setting: Attacked, out: Path, paths: DataPaths = _FETCHED
) -> tuple[Attacked, Population, Store]:
    """Loads a setting's clients and opens its store under `out`.

    Returns:
      The setting with its numbers of clients, the population, and the store.

    Raises:
      InputError: Setting and data do not fit.
    """
    settings.require_model(setting.model)
    split = populations.load_split(setting, paths)
    setting = settings.fit_to_clients(setting, split.train.number, split.mock.number)
    population = populations.make_population(setting, split)
    return setting, population, open_store(setting, split.checksum, out)


def get_store(setting: Attacked, checksum: str, out: Path) -> Store:
    """Returns the store of a setting on clients of that checksum; creates nothing."""
    identity = settings.identity(setting, checksum)
    text = json.dumps(identity, indent=1, sort_keys=True) + "\n"
    return Store.of(out / "canife" / settings.folder_name(setting, checksum), text)


def open_store(setting: Attacked, checksum: str, out: Path) -> Store:
    """Returns that store, after writing the setting in plain text."""
    store = get_store(setting, checksum, out)
    store.write_text("setting.json", store.text)
    return store


def kept(
    setting: Attacked, store: Store, numbers: Collection[int] | None = None
) -> dict[int, Measured]:
    """Returns the measured rounds that a store holds, by number.

    A damaged file, or one of another setting, counts as missing.

    Args:
      setting: The setting.
      store: Its store.
      numbers: The rounds to read; None: all that the setting measures.
    """
    if numbers is None:
        numbers = setting.measured()
    measured = {}
    for number in numbers:
        path = store.path / _ROUND_FILE.format(number)
        content = files.read(path)
        if content is None:
            continue
        measured_round = None
        if not store.is_foreign(content):
            measured_round = parse_round(content)
        if measured_round is None:
            store.distrust(path, "measured again")
        else:
            measured[number] = measured_round
    return measured


def measure_missing(
    setting: Attacked,
    population: Population,
    store: Store,
    numbers: Collection[int] | None = None,
) -> Iterator[Measured]:
    """Trains up to each round that is not stored, measures and stores it.

    The state is stored before a round's file, so that training goes on from the last measured round.

    Args:
      setting: The setting.
      population: Its model and clients.
      store: Its store.
      numbers: Those of the setting's measured rounds to measure; None: all.

    Yields:
      Each measured round, when it is on disk.

    Raises:
      InputError: The model diverged.
    """
    every = setting.measured()
    requested = set(every if numbers is None else numbers)
    missing = sorted(requested - set(kept(setting, store, numbers)))
    if not missing:
        return
    measurement = compile_measurement(setting, population)
    number, state = _load_state_before(population, store, missing[0])
    for target in every:
        if not missing[0] <= target <= missing[-1]:
            continue
        for first in every:
            if number <= first < target:  # one compiled length
                state = population.train(state, first, setting.every)
        number = target
        message = (
            f"the model diverged before round {number}: lower `learning_rate` or `noise_multiplier`"
        )
        require(bool(jnp.isfinite(state.theta).all()), message)
        leaves = {f"leaf_{i}": leaf for i, leaf in enumerate(jax.tree.leaves(state))}
        store.write_arrays(_STATE_FILE, {"number": number, **leaves})
        if number in missing:
            measured_round = measure(measurement, state.theta, number)
            store.write_arrays(_ROUND_FILE.format(number), measured_round._asdict())
            yield measured_round


def _load_state_before(population: Population, store: Store, target: int) -> tuple[int, State]:
    """Returns the next round and the state before it: those stored, unless they are beyond the target.

    Without a stored state they are the first round and the first state.
    """
    start = population.start()
    leaves, structure = jax.tree.flatten(start)
    path = store.path / _STATE_FILE
    content = files.read(path)
    if content is None:
        return 1, start
    stored_state = None
    if not store.is_foreign(content):
        stored_state = _parse_state(content, len(leaves))
    if stored_state is None:
        store.distrust(path, "trained again")
        return 1, start
    number, stored_leaves = stored_state
    if number > target:
        return 1, start
    return number, jax.tree.unflatten(structure, stored_leaves)


def _parse_state(content: bytes, leaves: int) -> tuple[int, list[Array]] | None:
    """Returns the next round and the state's leaves in a file's bytes; None for other bytes."""
    with (
        contextlib.suppress(*files.NOT_AN_ARCHIVE),
        np.load(io.BytesIO(content)) as archive,
    ):
        number = int(archive["number"])
        return number, [jnp.asarray(archive[f"leaf_{i}"]) for i in range(leaves)]
    return None


class RoundMeasurement(NamedTuple):
    """A training run under measurement, with compiled functions.

    Attributes:
      setting: The setting.
      population: The model and its clients.
      design: Designs a canary; see `designed.designer`.
      penalty: (gradient, updates) -> the design's penalty.
      gradient: (theta, sample) -> the sample's gradient.
    """

    setting: Attacked
    population: Population
    design: Designer
    penalty: Callable[[Array, Array], Array]
    gradient: Callable[[Array, Sample], Array]


def compile_measurement(setting: Attacked, population: Population) -> RoundMeasurement:
    """Returns a training run under measurement."""
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
        setting.design_batch or setting.cohort,
        population.samples.project,
    )

    @jax.jit
    def compute_gradient(theta: Array, sample: Sample) -> Array:
        gradient: Array = jax.grad(loss)(theta, sample, jax.random.key(0))
        return gradient

    design = designed.designer(sample_design)
    return RoundMeasurement(setting, population, design, jax.jit(penalty), compute_gradient)


def measure(measurement: RoundMeasurement, theta: Array, number: int) -> Measured:
    """Measures the round that a frozen model theta (p,) is about to play."""
    setting = measurement.setting
    population = measurement.population
    norm = setting.clipping_norm
    canary, health, losses = _design_canary(measurement, theta, number)
    gradient = measurement.gradient(theta, canary)
    rate = None if setting.as_published else population.rate
    inserted = round_game.inserted(gradient, rate, norm)

    members = populations.draw_clients(
        setting, "population", population.train_clients, setting.population
    )

    def project(places: NDArray[np.int64], direction: Array) -> Array:
        return population.train_dots(theta, members[places], direction)

    dots = round_game.dots(project, setting.population, inserted, norm, _BLOCK)
    own = round_game.own_dot(inserted, norm)
    scores = _score_mock_rounds(setting, dots, own, number)
    every = -(-len(losses) // _DESCENT_POINTS)
    return Measured(
        number,
        accuracy=population.accuracy(theta),
        health=health,
        norm=float(jnp.linalg.norm(gradient)),
        own=own,
        known=dots,
        scores_in=scores.scores_in,
        scores_out=scores.scores_out,
        exact=scores.exact,
        exact_then=scores.exact_then,
        proven=scores.proven,
        proven_if_gaussian=scores.proven_if_gaussian,
        canary=population.samples.show(canary),
        label=np.asarray(jax.nn.softmax(canary.label)),
        descent=losses[::every],
    )


def parse_round(content: bytes) -> Measured | None:
    """Returns the measured round in a file's bytes; None for other bytes."""
    with contextlib.suppress(*files.NOT_AN_ARCHIVE):
        fields = {}
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            for name in Measured._fields:
                value = archive[name]
                fields[name] = value.item() if value.ndim == 0 else value
        return Measured(**fields)
    return None


def _design_canary(
    measurement: RoundMeasurement, theta: Array, number: int
) -> tuple[Sample, float, NDArray[np.float32]]:
    """Designs a canary.

    Returns:
      The canary as its client has it, its health, and the design's penalties. Health compares two settled
      samples, the first and the canary.
    """
    setting = measurement.setting
    population = measurement.population
    samples = population.samples
    pool = populations.draw_clients(setting, "pool", population.mock.number, setting.pool)
    rng = populations.make_generator(setting, f"sample {number}")
    chosen = int(rng.integers(len(pool)))
    if setting.start == "random":
        first = samples.draw(rng)
    else:
        features, labels = population.mock.of(int(pool[chosen]))
        first = samples.from_example(features[0], labels[0])
        pool = np.delete(pool, chosen)  # it is designed on all others

    def compute_updates(places: range) -> Array:
        members = pool[places.start : places.stop]
        updates = []
        for start in range(0, len(members), _BLOCK):
            updates.append(population.mock_updates(theta, members[start : start + _BLOCK]))
        return jnp.concatenate(updates)

    parts = designed.in_blocks(len(pool), theta.size, setting.memory)
    blocks = [partial(compute_updates, part) for part in parts]
    key = jax.random.fold_in(root(setting.seed, "design"), number)
    result = measurement.design(theta, first, blocks, setting.design_steps, key)
    last = result.best if setting.keep_best else result.last
    settle_key = jax.random.fold_in(key, zlib.crc32(b"settle"))
    first_key, last_key = jax.random.split(settle_key)
    first = samples.settle(first, first_key)
    canary = samples.settle(last, last_key)

    def average_penalty(sample: Sample) -> float:
        gradient = measurement.gradient(theta, sample)
        penalties = [float(measurement.penalty(gradient, block())) for block in blocks]
        return float(np.mean(penalties))

    health = designed.health(average_penalty(first), average_penalty(canary))
    return canary, health, np.asarray(result.losses)


class _MockScores(NamedTuple):
    """What mock rounds show; see `Measured`."""

    scores_in: Floats
    scores_out: Floats
    exact: float
    exact_then: float
    proven: float
    proven_if_gaussian: float


def _score_mock_rounds(setting: Attacked, dots: Floats, own: float, number: int) -> _MockScores:
    """Plays mock rounds and concludes from their scores."""
    cohort = Cohort(setting.cohort)
    sigma = setting.noise_multiplier
    rng = populations.make_generator(setting, f"mock {number}")
    if setting.as_published:
        scores_in, scores_out = round_game.published_scores(
            rng, dots, cohort, own, sigma, setting.scores
        )
    else:
        half = setting.scores // 2
        scores_in, scores_out = round_game.mock_scores(rng, dots, cohort, own, sigma, half)
    many_in, many_out = round_game.mock_scores(rng, dots, cohort, own, sigma, setting.mock_rounds)
    free = estimate.assumption_free(many_in, many_out, setting.delta, CONFIDENCE)
    gaussian = estimate.if_gaussian(many_in, many_out, setting.delta, CONFIDENCE)

    exact = np.inf  # without noise
    exact_then = np.inf
    if sigma:
        compute_law = cohort_law.replacing if setting.as_published else cohort_law.added
        pair = compute_law(dots, cohort, sigma, own)
        exact = densities.epsilon_at(pair, setting.delta)
        exact_then = densities.epsilon_at(pair, 1 / setting.scores)
    return _MockScores(scores_in, scores_out, exact, exact_then, free.epsilon, gaussian.epsilon)


class Request(NamedTuple):
    """A setting whose rounds are to be measured.

    Attributes:
      values: The values of the grid's fields.
      setting: The setting, with its numbers of clients.
      clients: How many clients it trains on.
      checksum: The clients' checksum.
      rounds: The rounds to be measured.
    """

    values: tuple[Value, ...]
    setting: Attacked
    clients: int
    checksum: str
    rounds: list[int]


def make_split_loader(leaf: str | None, data_file: str | None, tfds_dir: str | None) -> LoadSplit:
    """Returns a function from a setting to its clients, of the data that a user names.

    They are read again only where they differ from the last.
    """
    paths = DataPaths(leaf, data_file, tfds_dir)

    @lru_cache(maxsize=1)  # a data set is large, and most grids share a single one
    def load(split_fields: Attacked) -> Split:
        return populations.load_split(split_fields, paths)

    return lambda setting: load(populations.select_split_fields(setting))


def make_requests(
    combinations: Sequence[Combination], load_split: LoadSplit, only_last: bool = False
) -> list[Request]:
    """Returns the requests for a grid's settings.

    Args:
      combinations: The settings.
      load_split: Loads a setting's clients.
      only_last: Whether to request the last measured round alone, or all.

    Raises:
      InputError: A setting is out of range.
    """
    for combination in combinations:
        settings.require_model(combination.setting.model)
    requests = []
    for values, setting in combinations:
        split = load_split(setting)
        fitted = settings.fit_to_clients(setting, split.train.number, split.mock.number)
        rounds = fitted.measured()
        if only_last:
            rounds = rounds[-1:]
        request = Request(values, fitted, split.train.number, split.checksum, rounds)
        requests.append(request)
    return requests


def training_cell(request: Request, load_split: LoadSplit) -> Cell:
    """Returns the cell of a training run that is measured; a round stands for a run."""
    setting = request.setting
    rounds = request.rounds

    def is_done(held: Holdings, data: DataSets) -> bool:
        store = get_store(setting, request.checksum, held.root)
        return len(kept(setting, store, rounds)) == len(rounds)

    def open_cell(out: Path, data: DataSets) -> Store:
        return open_store(setting, request.checksum, out)

    def do(store: Store, data: DataSets, progress: Progress) -> None:
        population = populations.make_population(setting, load_split(setting))
        for _ in measure_missing(setting, population, store, rounds):
            progress(1)

    seconds = len(rounds) * setting.design_steps * _STEP_SECONDS
    values = [str(value) for value in request.values]
    name = ", ".join([setting.model, *values, f"seed {setting.seed}"])
    key = settings.folder_name(setting, request.checksum)
    return Cell(name, key, len(rounds), seconds, is_done, open_cell, do)


def figure_folder(grid: VariedGrid, requests: Sequence[Request], out: Path) -> Path:
    """Returns the folder of a grid's figure, named by the grid's fields and by the stored settings."""
    names = [settings.folder_name(request.setting, request.checksum) for request in requests]
    checksum = hashlib.sha256(" ".join(names).encode()).hexdigest()[:12]
    fields = "-".join(grid.fields) or SEED
    return out / "canife" / f"varied-{fields}-{checksum}"
