"""A sweep's cells as work: each is done where the store lacks it, by however many workers share the store,
and by whichever engine trains.

What is done is read off the store alone, so that a finished sweep is known as such without data or JAX.
"""

import random
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tqdm import tqdm

from audit.errors import InputError
from audit.progress import Progress, shortened
from audit.settings import stored
from audit.storage import files
from audit.storage.store import Store
from audit.task import Dataset
from experiments.cells.cell import Cell, DataSets, GameRecipe

if TYPE_CHECKING:
    from audit.training import Trained

_POLL_SECONDS = 1.0


class Workplace(NamedTuple):
    """Where cells are kept, and the data that they are on."""

    out: Path
    data: DataSets


class Outcome(NamedTuple):
    """The names of cells that were done here, by other workers meanwhile, and of those that failed."""

    here: list[str]
    elsewhere: list[str]
    failed: list[str]


class Wanted(NamedTuple):
    """Runs that a store is to have, and who hears of them.

    added, chunk: chunks have so many runs, or (0) as many as fit where `added` are trained.
    """

    store: Store
    runs: int
    added: int
    chunk: int
    progress: Progress


class Trainer(Protocol):
    """A training whose game can be made."""

    def train(self, wanted: Wanted, /) -> "Trained":
        """Trains what is missing and reads all."""

    def stage(self, runs: int) -> int:
        """Of so many runs, as many as are best trained between two looks at what they prove."""

    def about(self) -> dict[str, Any]:
        """The circumstances, to be kept beside the scores."""


class TrainingEngine(NamedTuple):
    """Who does cells and trains audits, on this machine or elsewhere.

    trainer: of a recipe on data; raises InputError where the two don't fit. do_all: see `do_all` below."""

    trainer: Callable[[GameRecipe, Dataset], Trainer]
    do_all: Callable[[list[Cell], Workplace], Outcome]


class LocalTrainer:
    """A trainer in this process, on the devices of this machine."""

    def __init__(self, recipe: GameRecipe, data: Dataset) -> None:
        self._recipe, self._data = recipe, data
        self._played = recipe.make(data)

    def train(self, wanted: Wanted) -> "Trained":
        from audit import training

        chunk, store = wanted.chunk, wanted.store
        if training.lacking(store, wanted.runs):
            chunk = training.chunk_size(self._played, wanted.added, chunk)
        return training.train(self._played, store, wanted.runs, chunk, progress=wanted.progress)

    def stage(self, runs: int) -> int:
        from audit import training

        return training.chunk_size(self._played, runs, 0)

    def about(self) -> dict[str, Any]:
        return self._recipe.about(self._data)


class SweepProgress:
    """One line on stderr: cells done, the current one, runs a second, time left."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self._cells, self._done, self._seconds = len(cells), 0, 0.0
        total = sum(cell.seconds for cell in cells)
        layout = "{desc} {percentage:3.0f}% {elapsed}, {remaining} left{postfix}"
        self._bar = tqdm(total=total, bar_format=layout, smoothing=0.1)
        self._runs, self._begin = 0.0, time.perf_counter()

    def begin(self, cell: Cell) -> Progress:
        """Hears of the runs of a cell that now begins."""
        self._bar.set_description_str(f"{self._done}/{self._cells} {shortened(cell.name, 32)}:")
        self._bar.set_postfix_str("compiling")
        self._runs, self._begin = 0.0, time.perf_counter()
        scale = cell.seconds / cell.runs

        def progress(runs: float) -> None:
            if not runs:  # the first call says that all is compiled
                self._begin = time.perf_counter()
                return
            self._runs += runs
            rate = self._runs / (time.perf_counter() - self._begin)
            self._bar.set_postfix_str(f"{rate:.0f} runs/s" if rate >= 10 else f"{rate:.2g} runs/s", False)
            self._bar.update(min(runs * scale, self._seconds + cell.seconds - self._bar.n))

        return progress

    def end(self, cell: Cell) -> None:
        """The cell ended, here or in another process."""
        self._done += 1
        self._seconds += cell.seconds
        self._bar.update(self._seconds - self._bar.n)

    def say(self, line: str) -> None:
        """A line above the progress."""
        tqdm.write(line, file=sys.stderr)

    def close(self) -> None:
        """Leaves the line as it is."""
        self._bar.set_description_str(f"{self._done}/{self._cells} cells:")
        self._bar.close()


def distinct(cells: Iterable[Cell]) -> list[Cell]:
    """One cell an identity, that of most runs, in the order in which they come."""
    most: dict[str, Cell] = {}
    for cell in cells:
        if cell.identity not in most or cell.runs > most[cell.identity].runs:
            most[cell.identity] = cell
    return list(most.values())


def do_all(cells: list[Cell], place: Workplace) -> Outcome:
    """Does what the store lacks; a cell that fails is said in a line, and the others go on.

    Of workers that share the store each takes cells that no other holds. At the end it helps with those of
    others that can be shared, and waits for the rest: one that dies gives its cell back. Raises InputError
    where the store can't be written.
    """
    progress, outcome, waiting = SweepProgress(cells), Outcome([], [], []), cells
    try:
        while waiting:
            left = [cell for cell in waiting if not _attempt(cell, place, progress, outcome, False)]
            if left and len(waiting) == len(cells):
                which = "1 cell is" if len(left) == 1 else f"{len(left)} cells are"
                progress.say(f"{which} with other workers: helping, or waiting")
            waiting = _help(left, place, progress, outcome) if len(left) == len(waiting) else left
    finally:
        progress.close()
    return outcome


def is_done(cell: Cell, place: Workplace) -> bool:
    """Whether the store has all of a cell."""
    return cell.is_done(stored.holdings(place.out), place.data)


def _attempt(cell: Cell, place: Workplace, progress: SweepProgress, outcome: Outcome, helps: bool) -> bool:
    """Whether a cell ended, as the outcome then says; a helper does a part beside who has its claim."""
    where = outcome.elsewhere
    try:
        if not is_done(cell, place):
            store = cell.open(place.out, place.data)
            with store.claim() as mine:
                if not (mine or helps):
                    return False
                if not is_done(cell, place):
                    cell.do(store, place.data, progress.begin(cell))
                    where = outcome.here if mine else outcome.elsewhere
    except files.CannotWriteError:
        raise
    except InputError as error:
        progress.say(f"failed: {cell.name}: {error}")
        where = outcome.failed
    where.append(cell.name)
    progress.end(cell)
    return True


def _help(cells: list[Cell], place: Workplace, progress: SweepProgress, outcome: Outcome) -> list[Cell]:
    """Helps with a random cell that others hold and share, or waits; returns the cells that are left."""
    shared = [cell for cell in cells if cell.shared]
    if not shared:
        time.sleep(_POLL_SECONDS)
        return cells
    cell = random.choice(shared)
    _attempt(cell, place, progress, outcome, True)
    return [other for other in cells if other is not cell]
