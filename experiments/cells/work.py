"""Trains a sweep's missing cells. If no cell is missing, it loads neither data nor JAX."""

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tqdm import tqdm

from audit.errors import InputError
from audit.runtime.machine import Progress
from audit.storage import files, index
from audit.storage.store import hold
from audit.tasks.task import Dataset
from audit.written import shortened
from experiments.cells.cell import Cell, DataSets

if TYPE_CHECKING:
    from audit.training.driver import GameRecipe, Trainer


class Workplace(NamedTuple):
    """The root folder of the cells' stores, and the cells' data sets."""

    out: Path
    data: DataSets


class Outcome(NamedTuple):
    """The names of the cells that this process completed, and of those that failed."""

    completed: list[str]
    failed: list[str]


class TrainingEngine(NamedTuple):
    """Trains the runs of single audits and completes cells, on this machine or on a cluster.

    Attributes:
      trainer: (recipe, data) -> a trainer; raises InputError if the data do not fit the recipe.
      do_all: (cells, workplace) -> the outcome, like `do_all` below.
    """

    trainer: "Callable[[GameRecipe, Dataset], Trainer]"
    do_all: Callable[[list[Cell], Workplace], Outcome]


class SweepProgress:
    """A progress line on stderr: finished cells, current cell, percentage of finished runs, and time left."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        """Shows the progress line for these cells."""
        self._num_cells = len(cells)
        self._num_finished = 0
        self._runs_finished = 0  # the runs of finished cells
        total = sum(cell.runs for cell in cells)
        layout = "{desc} {percentage:3.0f}% {elapsed}, {remaining} left"
        # Giving the latest rate a small weight smooths the displayed time left.
        self._bar = tqdm(total=total, bar_format=layout, smoothing=0.1)
        self.close = self._bar.close

    def begin(self, cell: Cell) -> Progress:
        """Shows the current cell, and returns the function that counts its finished runs."""
        name = shortened(cell.name, 32)
        self._bar.set_description_str(f"{self._num_finished}/{self._num_cells} {name}:")
        return self._bar.update

    def end(self, cell: Cell) -> None:
        """Counts a cell as finished, even if it did not report all of its runs."""
        self._num_finished += 1
        self._runs_finished += cell.runs
        self._bar.update(self._runs_finished - self._bar.n)  # runs not yet shown
        self._bar.set_description_str(f"{self._num_finished}/{self._num_cells} cells:")


def distinct(cells: Iterable[Cell]) -> list[Cell]:
    """Returns the cell with the most runs for each identity, in order of first occurrence."""
    largest: dict[str, Cell] = {}
    for cell in cells:
        previous = largest.get(cell.identity, cell)
        largest[cell.identity] = max(previous, cell, key=attrgetter("runs"))
    return list(largest.values())


def find_missing(cells: Iterable[Cell], place: Workplace) -> list[Cell]:
    """Returns the cells with missing results."""
    held = index.holdings(place.out)
    return [cell for cell in cells if not cell.is_done(held, place.data)]


def do_all(cells: list[Cell], place: Workplace) -> Outcome:
    """Completes the cells of a sweep in this process, and returns the names of completed and failed cells.

    If another process is working on a cell, this process waits. Raises InputError if it cannot write to the
    store.
    """
    outcome = Outcome(completed=[], failed=[])
    with contextlib.closing(SweepProgress(cells)) as progress:
        for cell in cells:
            with failing(cell, progress, outcome):
                store = cell.open(place.out, place.data)
                with hold(store.path):
                    if find_missing([cell], place):  # otherwise, another process has completed it
                        cell.do(store, place.data, progress.begin(cell))
                        outcome.completed.append(cell.name)
                progress.end(cell)
    return outcome


@contextlib.contextmanager
def failing(cell: Cell, progress: SweepProgress, outcome: Outcome) -> Iterator[None]:
    """Catches an InputError from the block, reports it on stderr, and records the cell as failed.

    Re-raises a CannotWriteError, because other cells would fail too.
    """
    try:
        yield
    except files.CannotWriteError:
        raise
    except InputError as error:
        tqdm.write(f"failed: {cell.name}: {error}", file=sys.stderr)
        outcome.failed.append(cell.name)
        progress.end(cell)
