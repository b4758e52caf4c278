"""Measured trainings as cells, each with a store of its own, whether it is of a grid or alone."""

import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from audit.progress import Progress
from audit.storage.index import Holdings
from audit.storage.store import Store
from experiments.canife import attacked as settings
from experiments.canife import curves, populations, training
from experiments.canife.attacked import Attacked
from experiments.canife.curves import MeasuredSetting
from experiments.canife.populations import Named, Split
from experiments.canife.sweep import SEED, Combination, Value, VariedGrid
from experiments.cells.cell import Cell, DataSets

_STEP_SECONDS = 0.006  # of a canary's design, on two cores, compilation included
SplitOf = Callable[[Attacked], Split]


class Request(NamedTuple):
    """A combination whose setting has its numbers of clients; how many train, their checksum, and the rounds
    that are to be measured."""

    values: tuple[Value, ...]
    attacked: Attacked
    clients: int
    checksum: str
    rounds: list[int]


def splits(leaf: str | None, data_file: str | None, tfds_dir: str | None) -> SplitOf:
    """setting -> its clients, of what a user names (`Named`), read again only where they differ from the last
    setting's."""
    named = Named(leaf, data_file, tfds_dir)

    @lru_cache(maxsize=1)  # a data set is large, and most grids share one
    def load(dealing: Attacked) -> Split:
        return populations.load(dealing, named)

    return lambda attacked: load(populations.dealing(attacked))


def requests(combinations: Sequence[Combination], split: SplitOf, last: bool = False) -> list[Request]:
    """What is wanted of settings: all their measured rounds, or the last. Raises InputError for the first
    setting out of range."""
    for one in combinations:
        settings.require_model(one.attacked.model)
    wanted = []
    for values, attacked in combinations:
        clients = split(attacked)
        fitted = training.fitted(attacked, clients)
        rounds = fitted.measured()[-1:] if last else fitted.measured()
        wanted.append(Request(values, fitted, clients.train.number, clients.checksum, rounds))
    return wanted


def training_cell(request: Request, split: SplitOf) -> Cell:
    """The cell of a training that is measured; a round stands for a run."""
    attacked, checksum, rounds = request.attacked, request.checksum, request.rounds

    def is_done(held: Holdings, data: DataSets) -> bool:
        store = training.store_of(attacked, checksum, held.root)
        return len(training.kept(attacked, store, rounds)) == len(rounds)

    def open_store(out: Path, data: DataSets) -> Store:
        return training.opened(attacked, checksum, out)

    def do(store: Store, data: DataSets, progress: Progress) -> None:
        population = populations.population(attacked, split(attacked))
        for _ in training.measure_missing(attacked, population, store, rounds):
            progress(1)

    seconds = len(rounds) * attacked.design_steps * _STEP_SECONDS
    name = ", ".join([attacked.model, *map(str, request.values), f"seed {attacked.seed}"])
    key = settings.folder_name(attacked, checksum)
    return Cell(name, key, len(rounds), seconds, is_done, open_store, do)


def stored(request: Request, out: Path) -> MeasuredSetting:
    """A setting with those of its rounds that are stored under `out`."""
    values, attacked, clients, checksum, wanted = request
    kept = training.kept(attacked, training.store_of(attacked, checksum, out), wanted)
    return MeasuredSetting(values, attacked, clients, [curves.row(attacked, one) for one in kept.values()])


def folder(grid: VariedGrid, wanted: Sequence[Request], out: Path) -> Path:
    """Where a grid's figure goes: named by its fields, and by the stored settings."""
    names = " ".join(settings.folder_name(one.attacked, one.checksum) for one in wanted)
    fields = "-".join(grid.fields) or SEED
    return out / "canife" / f"varied-{fields}-{hashlib.sha256(names.encode()).hexdigest()[:12]}"
