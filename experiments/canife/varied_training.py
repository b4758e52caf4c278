"""The settings of a grid: each with a store of its own, which a single training would find as well."""

import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from experiments.canife import curves, populations, training
from experiments.canife.attacked import Attacked
from experiments.canife.curves import RoundValues
from experiments.canife.populations import Named, Split
from experiments.canife.varied import SEED, Combination, Value, VariedGrid


class Planned(NamedTuple):
    """A setting of a grid with its numbers of clients, how many train, its folder, and which rounds are to
    be measured."""

    values: tuple[Value, ...]
    attacked: Attacked
    clients: int
    folder: Path
    rounds: list[int]


class MeasuredSetting(NamedTuple):
    """A setting of a grid with its measured rounds; clients: how many train."""

    values: tuple[Value, ...]
    attacked: Attacked
    clients: int
    rows: list[RoundValues]


SplitOf = Callable[[Attacked], Split]


def splits(named: Named) -> SplitOf:
    """setting -> its clients, read again only where they differ from the last setting's."""

    @lru_cache(maxsize=1)  # a data set is large, and most grids share one
    def load(dealing: Attacked) -> Split:
        return populations.load(dealing, named)

    return lambda attacked: load(populations.dealing(attacked))


def planned(points: Sequence[Combination], over_rounds: bool, out: Path, split: SplitOf) -> list[Planned]:
    """The settings of a grid, to be stored under `out`: all their measured rounds, or the last. Raises
    InputError for the first setting out of range."""
    found = []
    for point in points:
        training.require_model(point.attacked)
    for values, attacked in points:
        clients = split(attacked)
        fitted, place = training.placed(attacked, clients, out)
        rounds = fitted.measured() if over_rounds else fitted.measured()[-1:]
        found.append(Planned(values, fitted, clients.train.number, place, rounds))
    return found


def missing(one: Planned) -> int:
    """Rounds of a setting that are still to be measured."""
    return len(set(one.rounds) - set(training.kept(one.attacked, one.folder)))


def found(one: Planned, split: SplitOf, progress: Callable[[int], None]) -> MeasuredSetting:
    """A setting with its rounds, of which those that are not kept are measured first."""
    attacked, place = one.attacked, one.folder
    if missing(one):
        clients = split(attacked)
        known = populations.population(attacked, clients)
        training.describe(attacked, clients, place)
        deque(training.measure_missing(attacked, known, place, progress, one.rounds), maxlen=0)
    kept = training.kept(attacked, place)
    return MeasuredSetting(
        one.values, attacked, one.clients, [curves.row(attacked, kept[n]) for n in one.rounds]
    )


def folder(grid: VariedGrid, planned: Sequence[Planned], out: Path) -> Path:
    """Where a grid's figure goes: named by its fields, and by the stored settings."""
    names = "-".join(field.name for field in grid.fields) or SEED
    settings = " ".join(one.folder.name for one in planned)
    return out / "canife" / f"varied-{names}-{hashlib.sha256(settings.encode()).hexdigest()[:12]}"
