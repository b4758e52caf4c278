"""A training that is frozen every so many rounds and measured, and its cell: a canary is designed against the
frozen model, mock rounds are played, and what their scores say stands beside what is exact.

Each measured round is a file; killed at any moment, a training goes on from the last one with the same bits.
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

from audit import round_game
from audit.adversaries import designed
from audit.adversaries.designed import Designed, SampleDesign
from audit.errors import require
from audit.game import root
from audit.mechanism.base import State
from audit.progress import Progress
from audit.statistics import cohort_law, densities, estimate
from audit.statistics.cohort_law import Cohort
from audit.storage import files
from audit.storage.index import Holdings
from audit.storage.store import Store
from experiments.canife import attacked as settings
from experiments.canife import populations
from experiments.canife.attacked import SEED, Attacked, Combination, Value, VariedGrid
from experiments.canife.populations import Named, Population, Split
from experiments.canife.samples import Canary, Sample
from experiments.cells.cell import Cell, DataSets

Floats = NDArray[np.float64]
Designer = Callable[..., Designed]
CONFIDENCE = 0.95
_BLOCK = 256
_DESCENT = 200
_STEP_SECONDS = 0.006  # of a canary's design, on two cores, compilation included
_STATE, _FILE = "state.npz", "round_{:07d}.npz"
_FETCHED = Named()
SplitOf = Callable[[Attacked], Split]


class Measured(NamedTuple):
    """What is kept of a measured round.

    number: of the round, from 1. accuracy: of the frozen model on the test set. health: of the canary, over
    the whole pool. norm: of its gradient. own: its dot product with its own direction, over C. known (M,):
    the clients'. scores_in, scores_out: mock rounds as published. exact, exact_then: epsilon of the score's
    law at the training's delta and at 1/n. proven: a bound from mock rounds that assumes nothing. canary: its
    pixels, normalised, or its text; label: its probabilities.
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


def prepared(attacked: Attacked, out: Path, named: Named = _FETCHED) -> tuple[Attacked, Population, Store]:
    """A setting with its clients and its store under `out`; raises InputError where they don't fit."""
    settings.require_model(attacked.model)
    split = populations.load(attacked, named)
    attacked = settings.fitted(attacked, split.train.number, split.mock.number)
    return attacked, populations.population(attacked, split), opened(attacked, split.checksum, out)


def store_of(attacked: Attacked, checksum: str, out: Path) -> Store:
    """The store of a setting on clients of that checksum; creates nothing."""
    text = json.dumps(settings.identity(attacked, checksum), indent=1, sort_keys=True) + "\n"
    return Store.of(out / "canife" / settings.folder_name(attacked, checksum), text)


def opened(attacked: Attacked, checksum: str, out: Path) -> Store:
    """That store, with the setting in plain text on disk."""
    store = store_of(attacked, checksum, out)
    store.write_text("setting.json", store.text)
    return store


def kept(attacked: Attacked, store: Store, numbers: Collection[int] | None = None) -> dict[int, Measured]:
    """The measured rounds that a store holds, by number; a damaged or foreign one counts as missing."""
    found = {}
    for number in attacked.measured() if numbers is None else numbers:
        path = store.path / _FILE.format(number)
        content = files.read(path)
        one = None if content is None or store.is_foreign(content) else from_bytes(content)
        if one is not None:
            found[number] = one
        elif content is not None:
            store.distrust(path, "measured again")
    return found


def measure_missing(
    attacked: Attacked, population: Population, store: Store, numbers: Collection[int] | None = None
) -> Iterator[Measured]:
    """Trains up to each round that is not kept, measures and keeps it; yields it when it is on disk. numbers:
    which of the setting's measured rounds are wanted, by default all.

    The state is kept before a round's file, so that training goes on from the last measured round.
    """
    every = attacked.measured()
    missing = sorted(set(every if numbers is None else numbers) - set(kept(attacked, store, numbers)))
    if not missing:
        return
    task = measuring(attacked, population)
    number, state = _state_before(population, store, missing[0])
    for wanted in [n for n in every if missing[0] <= n <= missing[-1]]:
        for first in [n for n in every if number <= n < wanted]:  # one compiled length
            state = population.train(state, first, attacked.every)
        number = wanted
        message = f"the model diverged before round {number}: lower `learning_rate` or `noise_multiplier`"
        require(bool(jnp.isfinite(state.theta).all()), message)
        leaves = {f"leaf_{i}": leaf for i, leaf in enumerate(jax.tree.leaves(state))}
        store.write_arrays(_STATE, {"number": number, **leaves})
        if wanted in missing:
            one = measure(task, state.theta, number)
            store.write_arrays(_FILE.format(number), one._asdict())
            yield one


def _state_before(population: Population, store: Store, wanted: int) -> tuple[int, State]:
    """(next round, state): the kept one where it is not beyond the wanted round, or else the start."""
    start = population.start()
    leaves, structure = jax.tree.flatten(start)
    content = files.read(store.path / _STATE)
    if content is not None:
        found = None if store.is_foreign(content) else _numbered(content, len(leaves))
        if found is None:
            store.distrust(store.path / _STATE, "trained again")
        elif found[0] <= wanted:
            return found[0], jax.tree.unflatten(structure, found[1])
    return 1, start


def _numbered(content: bytes, leaves: int) -> tuple[int, list[Array]] | None:
    """(next round, the state's leaves) of a file's bytes; None for others."""
    with contextlib.suppress(*files.NOT_AN_ARCHIVE), np.load(io.BytesIO(content)) as archive:
        return int(archive["number"]), [jnp.asarray(archive[f"leaf_{i}"]) for i in range(leaves)]
    return None


class Measuring(NamedTuple):
    """A training under measurement: clients, and compiled: a design, its penalty, a sample's gradient."""

    attacked: Attacked
    population: Population
    design: Designer
    penalty: Callable[[Array, Array], Array]
    gradient: Callable[[Array, Sample], Array]


def measuring(attacked: Attacked, population: Population) -> Measuring:
    """A training under measurement."""
    penalties: dict[str, designed.Penalty] = {
        "as_run": designed.as_run(attacked.norm_constant, attacked.clipping_norm),
        "as_printed": designed.as_printed(attacked.clipping_norm),
        "of_the_mean": designed.of_the_mean(attacked.clipping_norm),
    }
    penalty, loss = penalties[attacked.penalty], population.samples.loss
    adam, batch = optax.adam(attacked.design_rate), attacked.design_batch or attacked.cohort
    design = designed.designer(SampleDesign(loss, penalty, adam, batch, population.samples.project))

    @jax.jit
    def gradient(theta: Array, sample: Sample) -> Array:
        descent: Array = jax.grad(loss)(theta, sample, jax.random.key(0))
        return descent

    return Measuring(attacked, population, design, jax.jit(penalty), gradient)


def measure(task: Measuring, theta: Array, number: int) -> Measured:
    """Measures the round that a frozen model theta (p,) is about to play."""
    attacked, population = task.attacked, task.population
    canary, health, losses = _canary(task, theta, number)
    gradient = task.gradient(theta, canary)
    sent = None if attacked.as_published else population.rate
    inserted = round_game.inserted(gradient, sent, attacked.clipping_norm)
    chosen = populations.drawn(attacked, "population", population.train_clients, attacked.population)
    dots = round_game.dots(
        lambda members, direction: population.train_dots(theta, chosen[members], direction),
        attacked.population,
        inserted,
        attacked.clipping_norm,
        _BLOCK,
    )
    own = round_game.own_dot(inserted, attacked.clipping_norm)
    return Measured(
        number,
        population.accuracy(theta),
        health,
        float(jnp.linalg.norm(gradient)),
        own,
        dots,
        *_scored(attacked, dots, own, number),
        population.samples.shown(canary),
        np.asarray(jax.nn.softmax(canary.label)),
        losses[:: -(-len(losses) // _DESCENT)],
    )


def from_bytes(content: bytes) -> Measured | None:
    """The round in a file's bytes; None for others."""
    with contextlib.suppress(*files.NOT_AN_ARCHIVE):
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            fields = {name: archive[name] for name in Measured._fields}
        return Measured(**{name: v.item() if v.ndim == 0 else v for name, v in fields.items()})
    return None


def _canary(task: Measuring, theta: Array, number: int) -> tuple[Sample, float, NDArray[np.float32]]:
    """A designed sample as its client has it, its health, two settled samples, and its penalties."""
    attacked, population = task.attacked, task.population
    mock = populations.drawn(attacked, "pool", population.mock.number, attacked.pool)
    rng = populations.generator(attacked, f"sample {number}")
    chosen = int(rng.integers(len(mock)))
    if attacked.start == "random":
        first = population.samples.random(rng)
    else:
        first = population.samples.taken(*(of[0] for of in population.mock.of(int(mock[chosen]))))
        mock = np.delete(mock, chosen)  # it is designed on all others

    def block(part: range) -> Array:
        members = mock[part.start : part.stop]
        starts = range(0, len(members), _BLOCK)
        pieces = [population.mock_updates(theta, members[start : start + _BLOCK]) for start in starts]
        return jnp.concatenate(pieces)

    parts = designed.in_blocks(len(mock), theta.size, attacked.memory)
    blocks = [partial(block, part) for part in parts]
    key = jax.random.fold_in(root(attacked.seed, "design"), number)
    made = task.design(theta, first, blocks, attacked.design_steps, key)
    both = first, made.best if attacked.keep_best else made.last
    draws = jax.random.split(jax.random.fold_in(key, zlib.crc32(b"settle")))
    first, canary = (population.samples.settled(*pair) for pair in zip(both, draws, strict=True))

    def over_pool(sample: Sample) -> float:
        gradient = task.gradient(theta, sample)
        return float(np.mean([float(task.penalty(gradient, one())) for one in blocks]))

    return canary, designed.health(over_pool(first), over_pool(canary)), np.asarray(made.losses)


def _scored(
    attacked: Attacked, dots: Floats, own: float, number: int
) -> tuple[Floats, Floats, float, float, float, float]:
    cohort, sigma = Cohort(attacked.cohort), attacked.noise_multiplier
    rng = populations.generator(attacked, f"mock {number}")
    if attacked.as_published:
        s_in, s_out = round_game.published_scores(rng, dots, cohort, own, sigma, attacked.scores)
    else:
        s_in, s_out = round_game.mock_scores(rng, dots, cohort, own, sigma, attacked.scores // 2)
    many = round_game.mock_scores(rng, dots, cohort, own, sigma, attacked.mock_rounds)
    free = estimate.assumption_free(*many, attacked.delta, CONFIDENCE)
    gaussian = estimate.if_gaussian(*many, attacked.delta, CONFIDENCE)
    exact = then = np.inf  # without noise
    if sigma:
        worlds = cohort_law.replacing if attacked.as_published else cohort_law.added
        pair, deltas = worlds(dots, cohort, sigma, own), (attacked.delta, 1 / attacked.scores)
        exact, then = (densities.epsilon_at(pair, delta) for delta in deltas)
    return s_in, s_out, exact, then, free.epsilon, gaussian.epsilon


class Request(NamedTuple):
    """A combination with its numbers of clients, their checksum, and the rounds to be measured."""

    values: tuple[Value, ...]
    attacked: Attacked
    clients: int
    checksum: str
    rounds: list[int]


def splits(leaf: str | None, data_file: str | None, tfds_dir: str | None) -> SplitOf:
    """setting -> its clients, of what a user names; read again only where they differ from the last."""
    named = Named(leaf, data_file, tfds_dir)

    @lru_cache(maxsize=1)  # a data set is large, and most grids share one
    def load(dealing: Attacked) -> Split:
        return populations.load(dealing, named)

    return lambda attacked: load(populations.dealing(attacked))


def requests(combinations: Sequence[Combination], split: SplitOf, last: bool = False) -> list[Request]:
    """The wanted rounds of settings: all measured, or the last; raises InputError out of range."""
    for one in combinations:
        settings.require_model(one.attacked.model)
    wanted = []
    for values, attacked in combinations:
        clients = split(attacked)
        fitted = settings.fitted(attacked, clients.train.number, clients.mock.number)
        rounds = fitted.measured()[-1:] if last else fitted.measured()
        wanted.append(Request(values, fitted, clients.train.number, clients.checksum, rounds))
    return wanted


def training_cell(request: Request, split: SplitOf) -> Cell:
    """The cell of a training that is measured; a round stands for a run."""
    attacked, checksum, rounds = request.attacked, request.checksum, request.rounds

    def is_done(held: Holdings, data: DataSets) -> bool:
        store = store_of(attacked, checksum, held.root)
        return len(kept(attacked, store, rounds)) == len(rounds)

    def open_store(out: Path, data: DataSets) -> Store:
        return opened(attacked, checksum, out)

    def do(store: Store, data: DataSets, progress: Progress) -> None:
        population = populations.population(attacked, split(attacked))
        for _ in measure_missing(attacked, population, store, rounds):
            progress(1)

    seconds = len(rounds) * attacked.design_steps * _STEP_SECONDS
    name = ", ".join([attacked.model, *map(str, request.values), f"seed {attacked.seed}"])
    key = settings.folder_name(attacked, checksum)
    return Cell(name, key, len(rounds), seconds, is_done, open_store, do)


def folder(grid: VariedGrid, wanted: Sequence[Request], out: Path) -> Path:
    """Where a grid's figure goes: named by its fields, and by the stored settings."""
    names = " ".join(settings.folder_name(one.attacked, one.checksum) for one in wanted)
    fields = "-".join(grid.fields) or SEED
    return out / "canife" / f"varied-{fields}-{hashlib.sha256(names.encode()).hexdigest()[:12]}"
