"""Does a sweep's cells that the store lacks.

Which cells are done is read from the store alone, so that neither data nor JAX is needed to see that a sweep
is finished.
"""

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
    """The root of the store that holds the cells, and the data sets that they use."""

    out: Path
    data: DataSets


class Outcome(NamedTuple):
    """The names of the cells that have ended.

    Attributes:
      here: The cells that this process did.
      elsewhere: The cells that the store had already.
      failed: The cells that failed.
    """

    here: list[str]
    elsewhere: list[str]
    failed: list[str]


class TrainingEngine(NamedTuple):
    """What trains single audits and does whole cells, on this machine or elsewhere.

    Attributes:
      trainer: (recipe, data) -> a trainer; raises InputError where recipe and data don't fit.
      do_all: (cells, workplace) -> the outcome; does what the store lacks of the cells (see `do_all` below).
    """

    trainer: "Callable[[GameRecipe, Dataset], Trainer]"
    do_all: Callable[[list[Cell], Workplace], Outcome]


class SweepProgress:
    """A line of progress on stderr: cells done, the current cell, and the time left."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        """Shows the line for a sweep's cells."""
        self._cells = len(cells)
        self._done = 0
        self._seconds_done = 0.0  # of the cells that have ended, by their own estimates
        total = sum(cell.seconds for cell in cells)  # the bar's unit is an estimated second
        layout = "{desc} {percentage:3.0f}% {elapsed}, {remaining} left"
        # The latest rate has a weight of 0.1 in the time that is left, which then does not jump.
        self._bar = tqdm(total=total, bar_format=layout, smoothing=0.1)

    def begin(self, cell: Cell) -> Progress:
        """Shows a cell as the current cell, and returns the function to call when its runs are trained."""
        self._bar.set_description_str(f"{self._done}/{self._cells} {shortened(cell.name, 32)}:")

        def progress(runs: float) -> None:
            """Moves the bar on, no further than the cell's estimate; `end` fills up what is missing."""
            left_of_cell = self._seconds_done + cell.seconds - self._bar.n
            self._bar.update(min(runs * cell.seconds / cell.runs, left_of_cell))

        return progress

    def end(self, cell: Cell) -> None:
        """Counts a cell as ended, whether here or in another process."""
        self._done += 1
        self._seconds_done += cell.seconds
        self._bar.update(self._seconds_done - self._bar.n)

    def close(self) -> None:
        """Shows the number of ended cells, and leaves the line on the screen."""
        self._bar.set_description_str(f"{self._done}/{self._cells} cells:")
        self._bar.close()


def distinct(cells: Iterable[Cell]) -> list[Cell]:
    """Returns a single cell for each identity: of equal cells, that with the most runs.

    Cells whose identity is equal differ only in their number of runs. The cells are in the order in which
    their identities first occur.
    """
    by_identity: dict[str, Cell] = {}
    for cell in cells:
        largest = by_identity.get(cell.identity)
        if largest is None or cell.runs > largest.runs:
            by_identity[cell.identity] = cell
    return list(by_identity.values())


def do_all(cells: list[Cell], place: Workplace) -> Outcome:
    """Does the cells of a sweep in this process, as far as the store lacks them; returns how they ended.

    If another process does a cell, this one waits for it. A line reports each cell that fails. Raises
    InputError if the store can't be written.
    """
    outcome = Outcome(here=[], elsewhere=[], failed=[])
    with contextlib.closing(SweepProgress(cells)) as progress:
        for cell in cells:
            with failing(cell, progress, outcome):
                ended = outcome.elsewhere
                if not is_done(cell, place):
                    store = cell.open(place.out, place.data)
                    with hold(store.path):
                        if not is_done(cell, place):  # by the process that had the lock
                            cell.do(store, place.data, progress.begin(cell))
                            ended = outcome.here
                ended.append(cell.name)
                progress.end(cell)
    return outcome


@contextlib.contextmanager
def failing(cell: Cell, progress: SweepProgress, outcome: Outcome) -> Iterator[None]:
    """Reports an InputError of the block as the failure of a cell, unless nothing can be written."""
    try:
        yield
    except files.CannotWriteError:
        raise  # no other cell could be stored either
    except InputError as error:
        tqdm.write(f"failed: {cell.name}: {error}", file=sys.stderr)
        outcome.failed.append(cell.name)
        progress.end(cell)


def is_done(cell: Cell, place: Workplace) -> bool:
    """Returns whether the store has all of a cell."""
    return cell.is_done(make.holdings(place.out), place.data)
