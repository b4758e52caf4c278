"""Completes the cells of a sweep. To check a finished sweep, this module needs neither data nor JAX."""

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tqdm import tqdm

from audit.errors import InputError
from audit.runtime.machine import Progress
from audit.settings import make
from audit.storage import files
from audit.storage.store import hold
from audit.tasks.task import Dataset
from audit.written import shortened
from experiments.cells.cell import Cell, DataSets

if TYPE_CHECKING:
    from audit.training.driver import GameRecipe, Trainer


class Workplace(NamedTuple):
    """The root folder of the cells' stores, and their data sets."""

    out: Path
    data: DataSets


class Outcome(NamedTuple):
    """The names of the cells that this process completed, and of those that failed."""

    completed: list[str]
    failed: list[str]


class TrainingEngine(NamedTuple):
    """Trains single audits and completes cells, on this machine or on a cluster.

    Attributes:
      trainer: (recipe, data) -> a trainer; raises InputError if recipe and data do not fit.
      do_all: (cells, workplace) -> the outcome; see `do_all` below.
    """

    trainer: "Callable[[GameRecipe, Dataset], Trainer]"
    do_all: Callable[[list[Cell], Workplace], Outcome]


class SweepProgress:
    """A line of progress on stderr: cells done, the current cell, and the time left.

    A cell counts with its estimated seconds.
    """

    def __init__(self, cells: Sequence[Cell]) -> None:
        """Shows the line."""
        self._cells = len(cells)
        self._done = 0
        self._seconds_done = 0.0  # the estimated seconds of finished cells
        total = sum(cell.seconds for cell in cells)
        layout = "{desc} {percentage:3.0f}% {elapsed}, {remaining} left"
        # A small weight of the latest rate keeps the displayed time left from jumping.
        self._bar = tqdm(total=total, bar_format=layout, smoothing=0.1)
        self.close = self._bar.close

    def begin(self, cell: Cell) -> Progress:
        """Shows a cell as the current cell, and returns the function that reports its finished runs."""
        self._bar.set_description_str(f"{self._done}/{self._cells} {shortened(cell.name, 32)}:")
        return lambda runs: self._bar.update(runs * cell.seconds / cell.runs)

    def end(self, cell: Cell) -> None:
        """Counts a cell as finished."""
        self._done += 1
        self._seconds_done += cell.seconds
        self._bar.update(self._seconds_done - self._bar.n)
        self._bar.set_description_str(f"{self._done}/{self._cells} cells:")


def distinct(cells: Iterable[Cell]) -> list[Cell]:
    """Returns the cell with the most runs for each identity, in the order of their first occurrence."""
    by_identity: dict[str, Cell] = {}
    for cell in cells:
        largest = by_identity.setdefault(cell.identity, cell)
        if cell.runs > largest.runs:
            by_identity[cell.identity] = cell
    return list(by_identity.values())


def find_missing(cells: Iterable[Cell], place: Workplace) -> list[Cell]:
    """Returns the cells that are not complete in the stores."""
    held = make.holdings(place.out)
    return [cell for cell in cells if not cell.is_done(held, place.data)]


def do_all(cells: list[Cell], place: Workplace) -> Outcome:
    """Completes the cells of a sweep in this process, and reports each failed cell on stderr.

    If another process works on a cell, it waits for it. Raises InputError if the store cannot be written.
    """
    outcome = Outcome(completed=[], failed=[])
    with contextlib.closing(SweepProgress(cells)) as progress:
        for cell in cells:
            with failing(cell, progress, outcome):
                store = cell.open(place.out, place.data)
                with hold(store.path):
                    if find_missing([cell], place):  # no other process has completed it since
                        cell.do(store, place.data, progress.begin(cell))
                        outcome.completed.append(cell.name)
                progress.end(cell)
    return outcome


@contextlib.contextmanager
def failing(cell: Cell, progress: SweepProgress, outcome: Outcome) -> Iterator[None]:
    """Reports an InputError in the block as a failed cell, and adds the cell to the outcome.

    The error that the store cannot be written is raised again, since other cells would fail too.
    """
    try:
        yield
    except files.CannotWriteError:
        raise
    except InputError as error:
        tqdm.write(f"failed: {cell.name}: {error}", file=sys.stderr)
        outcome.failed.append(cell.name)
        progress.end(cell)
