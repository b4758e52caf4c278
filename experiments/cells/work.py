"""A sweep's cells as work: each is done where the store lacks it, by however many workers share the store.

What is done is read off the store alone, so that a finished sweep is known as such without data or JAX.
"""

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from audit.errors import InputError
from audit.storage import files, index
from audit.storage.index import Holdings
from audit.storage.store import Store
from experiments.hidden_state import norms as norm_cells
from experiments.hidden_state import sweep as sweeps
from experiments.hidden_state.sweep import Cell, Landscape, Norms
from experiments.settings.setting import Setting
from models.data.base import Dataset
from models.data.cifar10 import CIFAR10
from models.data.housing import HOUSING

DELTA, CONFIDENCE = 1e-5, 0.95  # of what audit.json concludes; scores are kept, others need no training
_POLL_SECONDS = 1.0
_NAME_WIDTH = 32
_RECIPES = {"fcnn": HOUSING, "convnet": CIFAR10, "resnet18": CIFAR10}
_FILES = {"mobilenet_head": CIFAR10.name, "alexnet_head": CIFAR10.name}

Heard = Callable[[float], object]  # of so many more runs that ended


class Work(NamedTuple):
    """One cell to be done.

    name: for people. runs: of the cell. seconds: what it takes on two cores, as an estimate.
    is_done(what the store holds); open() -> its store; do(store, heard) does all that is missing.
    """

    name: str
    runs: int
    seconds: float
    is_done: Callable[[Holdings], bool]
    open: Callable[[], Store]
    do: Callable[[Store, Heard], object]


class Outcome(NamedTuple):
    """The names of cells that were done here, by other workers meanwhile, and of those that failed."""

    here: list[str]
    elsewhere: list[str]
    failed: list[str]


class Data:
    """The data sets of a sweep: each is loaded once, when a cell first needs it."""

    def __init__(self, named: dict[str, str | None]) -> None:
        """`named` has the files that stand in for published data sets, by the data sets' names."""
        self._named = named
        self._loaded: dict[str, Dataset | InputError] = {}

    def checksum(self, model: str) -> str | None:
        """Of a model's data; None for features that are computed, of which none is published."""
        recipe = _RECIPES.get(model)
        if recipe is None:
            return None
        return recipe.checksum if self._named.get(recipe.name) is None else self.load(model).checksum

    def load(self, model: str) -> Dataset:
        """A model's data; raises InputError, the same each time, where they can't be loaded."""
        recipe = _RECIPES.get(model)
        key = model if recipe is None else recipe.name
        if key not in self._loaded:
            try:
                self._loaded[key] = self._load(model, _FILES.get(model, key))
            except InputError as error:
                self._loaded[key] = error
        found = self._loaded[key]
        if isinstance(found, InputError):
            raise found
        return found

    def require_named(self) -> None:
        """Loads what was named; raises InputError where it can't be used."""
        for model, recipe in _RECIPES.items():
            if self._named.get(recipe.name) is not None:
                self.load(model)

    def _load(self, model: str, name: str) -> Dataset:
        """From the file that is named, or as `audit` finds it."""
        from experiments.settings import build as auditing

        return auditing.TASKS[model].load(file=self._named.get(name), tfds_dir=None)


class Progress:
    """One line: cells done, the current one, runs a second, time left."""

    def __init__(self, works: list[Work]) -> None:
        self._cells, self._done, self._seconds = len(works), 0, 0.0
        total = sum(work.seconds for work in works)
        layout = "{desc} {percentage:3.0f}% {elapsed}, {remaining} left{postfix}"
        self._bar = tqdm(total=total, bar_format=layout, smoothing=0.1)
        self._runs, self._begin = 0.0, time.perf_counter()

    def begin(self, work: Work) -> Heard:
        """Hears of the runs of a cell that now begins."""
        self._bar.set_description_str(f"{self._done}/{self._cells} {work.name[:_NAME_WIDTH]}:")
        self._runs, self._begin = 0.0, time.perf_counter()
        scale = work.seconds / work.runs

        def heard(runs: float) -> None:
            self._runs += runs
            rate = self._runs / (time.perf_counter() - self._begin)
            self._bar.set_postfix_str(f"{rate:.0f} runs/s" if rate >= 10 else f"{rate:.2g} runs/s", False)
            self._bar.update(min(runs * scale, self._seconds + work.seconds - self._bar.n))

        return heard

    def end(self, work: Work) -> None:
        """The cell ended, here or in another process."""
        self._done += 1
        self._seconds += work.seconds
        self._bar.update(self._seconds - self._bar.n)

    def say(self, line: str) -> None:
        """A line above the progress."""
        tqdm.write(line, file=sys.stderr)

    def close(self) -> None:
        """Leaves the line as it is."""
        self._bar.set_description_str(f"{self._done}/{self._cells} cells:")
        self._bar.close()


def works(cells: Iterable[sweeps.AnyCell], out: Path, data: Data) -> list[Work]:
    """The work of cells, one for all those of one setting."""
    most: dict[Any, sweeps.AnyCell] = {}
    for cell in cells:
        key = cell if isinstance(cell, Landscape) else (type(cell), cell.setting)
        if key not in most or cell.runs > most[key].runs:
            most[key] = cell
    return [_work(cell, out, data) for cell in most.values()]


def do_all(every: list[Work], out: Path) -> Outcome:
    """Does what the store lacks; a cell that fails is said in a line, and the others go on.

    Of workers that share the store each takes cells that no other holds, and waits for those of others
    at the end: one that dies gives its cell back. Raises InputError where the store can't be written.
    """
    progress, outcome, waiting = Progress(every), Outcome([], [], []), every
    try:
        while waiting:
            left = [work for work in waiting if not _attempt(work, out, progress, outcome)]
            if left and len(waiting) == len(every):
                progress.say(f"{len(left)} cells are with other workers: waiting for them")
            if len(left) == len(waiting):
                time.sleep(_POLL_SECONDS)
            waiting = left
    finally:
        progress.close()
    return outcome


def _attempt(work: Work, out: Path, progress: Progress, outcome: Outcome) -> bool:
    """Whether a cell ended, which the outcome then says; otherwise another worker holds it."""
    if work.is_done(index.holdings(out)):
        outcome.elsewhere.append(work.name)
        progress.end(work)
        return True
    try:
        store = work.open()
        with store.claim() as mine:
            if not mine:
                return False
            if work.is_done(index.holdings(out)):
                outcome.elsewhere.append(work.name)
            else:
                work.do(store, progress.begin(work))
                outcome.here.append(work.name)
    except files.CannotWriteError:
        raise
    except InputError as error:
        progress.say(f"failed: {work.name}: {error}")
        outcome.failed.append(work.name)
    progress.end(work)
    return True


def _work(cell: sweeps.AnyCell, out: Path, data: Data) -> Work:
    """A cell's work."""
    seconds = sweeps.seconds(cell)
    if isinstance(cell, Landscape):
        return _landscape_work(cell, out, seconds)
    if isinstance(cell, Norms):
        return _norms_work(cell, out, data, seconds)
    return _audit_work(cell, out, data, seconds)


def _audit_work(cell: Cell, out: Path, data: Data, seconds: float) -> Work:
    """An audit: scores and audit.json."""
    setting, runs = cell.setting, cell.runs

    def is_done(held: Holdings) -> bool:
        store = held.open(dataclasses.asdict(setting))
        if store is None or not _is_on(store, data.checksum(setting.model)):
            return False
        return _concluded_runs(store) >= runs and not store.missing(runs)

    def open_store() -> Store:
        from experiments.settings import build as auditing

        return auditing.open_store(out, setting, data.load(setting.model))

    def do(store: Store, heard: Heard) -> None:
        _audit(setting, runs, data.load(setting.model), store, heard)

    name = f"{cell.series}, seed {setting.seed}, {cell.panel}"
    return Work(name, runs, seconds, is_done, open_store, do)


def _audit(setting: Setting, runs: int, dataset: Dataset, store: Store, heard: Heard) -> None:
    """Trains what is missing and concludes."""
    from experiments import conclusions
    from experiments.settings import build as auditing

    auditing.validate(setting, runs)
    trained: Any = auditing.train(auditing.build(setting, dataset), store, runs, 0, heard=heard)
    noise = (setting.noise_multiplier, setting.insertions)
    conclusions.keep_result(
        store,
        conclusions.conclude(trained.scores.worlds(), noise, DELTA, CONFIDENCE),
        setting=dataclasses.asdict(setting),
        runs=runs,
        provenance=auditing.provenance(dataset),
        out=str(store.path),
    )


def _norms_work(cell: Norms, out: Path, data: Data, seconds: float) -> Work:
    """Figure 8's norms of a model."""
    setting, runs = cell.setting, cell.runs

    def is_done(held: Holdings) -> bool:
        store = held.open(norm_cells.setting_of(setting))
        known = store is not None and _is_on(store, data.checksum(setting.model))
        return known and norm_cells.read(held, setting, runs) is not None

    def open_store() -> Store:
        return norm_cells.open_store(out, setting, data.load(setting.model))

    def do(store: Store, heard: Heard) -> None:
        norm_cells.kept(store, setting, data.load(setting.model), runs, heard)

    return Work(f"norms of L's canary, {setting.model}", runs, seconds, is_done, open_store, do)


def _landscape_work(cell: Landscape, out: Path, seconds: float) -> Work:
    """The landscape's exact and simulated cells and Algorithm 6, under one claim."""
    from experiments.hidden_state import landscape_cells, landscape_stored

    study = landscape_cells.study(cell, DELTA, CONFIDENCE)

    def is_done(held: Holdings) -> bool:
        return not landscape_stored.missing(held, study)

    def do(store: Store, heard: Heard) -> None:
        from experiments.hidden_state import landscape_work

        laws = len(study.all_laws())
        landscape_work.do(out, study, progress=lambda: heard(cell.runs / laws))

    marker = {"kind": "landscape_sweep", **dataclasses.asdict(cell)}
    return Work("crafted landscape", cell.runs, seconds, is_done, lambda: Store(out, marker), do)


def _is_on(store: Store, checksum: str | None) -> bool:
    """Whether a store's cells stand on the data of that checksum, or on any where it is None."""
    config = json.loads((store.path / "config.json").read_bytes())
    return checksum in (None, config.get("data_sha256"))


def _concluded_runs(store: Store) -> int:
    """The runs that audit.json concludes from; 0 where there is none or it can't be read."""
    try:
        return int(json.loads((store.path / "audit.json").read_bytes())["runs"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0
