"""Does a sweep's cells; any number of workers share the work by a common store, whichever engine trains.

Which cells are done is read from the store alone, so that neither data nor JAX is needed to see that a sweep
is finished.
"""

import random
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tqdm import tqdm

from audit.errors import InputError
from audit.runtime.progress import Progress, shortened
from audit.settings import stored
from audit.storage import files
from audit.tasks.task import Dataset
from experiments.cells.cell import Cell, DataSets

if TYPE_CHECKING:
    from audit.training.driver import GameRecipe, Trainer

_POLL_SECONDS = 1.0  # between two looks at cells that other workers hold


class Workplace(NamedTuple):
    """The root of the store that holds the cells, and the data sets that they use."""

    out: Path
    data: DataSets


class Outcome(NamedTuple):
    """The names of the cells that have ended.

    Attributes:
      here: The cells that this worker did.
      elsewhere: The cells that other workers did, or that the store had already.
      failed: The cells that failed in this worker.
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
    """A line of progress on stderr: cells done, the current cell, runs a second, and the time left."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        """Shows the line for a sweep's cells."""
        self._n_cells = len(cells)
        self._n_done = 0
        self._seconds_done = 0.0  # of the cells that have ended, by their own estimates
        total = sum(cell.seconds for cell in cells)  # the bar's unit is an estimated second
        layout = "{desc} {percentage:3.0f}% {elapsed}, {remaining} left{postfix}"
        # The latest rate has a weight of 0.1 in the time that is left, so that this does not jump.
        self._bar = tqdm(total=total, bar_format=layout, smoothing=0.1)
        # Of the current cell: the runs that were trained so far, and when their training began.
        self._runs = 0.0
        self._begin = time.perf_counter()

    def begin(self, cell: Cell) -> Progress:
        """Shows a cell as the current cell, and returns the function to call when its runs are trained."""
        self._bar.set_description_str(f"{self._n_done}/{self._n_cells} {shortened(cell.name, 32)}:")
        self._bar.set_postfix_str("compiling")
        self._runs = 0.0
        self._begin = time.perf_counter()
        seconds_per_run = cell.seconds / cell.runs

        def progress(runs: float) -> None:
            """Shows in the line that `runs` more runs were trained since the last call."""
            if not runs:  # the first call, with 0, says that training begins now
                self._begin = time.perf_counter()
                return
            self._runs += runs
            rate = self._runs / (time.perf_counter() - self._begin)
            shown_rate = f"{rate:.2g}"
            if rate >= 10:
                shown_rate = f"{rate:.0f}"  # since .2g shows 100 as 1e+02
            self._bar.set_postfix_str(f"{shown_rate} runs/s", refresh=False)  # `update` redraws
            # The bar, which is at `n`, counts estimated seconds. It goes no further than the cell's estimate;
            # `end` fills up what is missing.
            left_of_cell = self._seconds_done + cell.seconds - self._bar.n
            self._bar.update(min(runs * seconds_per_run, left_of_cell))

        return progress

    def end(self, cell: Cell) -> None:
        """Counts a cell as ended, whether here or in another process."""
        self._n_done += 1
        self._seconds_done += cell.seconds
        self._bar.update(self._seconds_done - self._bar.n)

    def say(self, line: str) -> None:
        """Prints a line of text above the line of progress."""
        tqdm.write(line, file=sys.stderr)

    def close(self) -> None:
        """Shows the number of ended cells, and leaves the line on the screen."""
        self._bar.set_description_str(f"{self._n_done}/{self._n_cells} cells:")
        self._bar.close()


def distinct(cells: Iterable[Cell]) -> list[Cell]:
    """Returns a single cell for each identity: of equal cells, that with the most runs.

    Cells whose identity is equal differ in their number of runs alone. The cells are in the order in which
    their identities first occur.
    """
    by_identity: dict[str, Cell] = {}
    for cell in cells:
        largest = by_identity.get(cell.identity)
        if largest is None or cell.runs > largest.runs:
            by_identity[cell.identity] = cell
    return list(by_identity.values())


def do_all(cells: list[Cell], place: Workplace) -> Outcome:
    """Does the cells of a sweep in this process, as far as the store lacks them.

    A line is printed for each cell that fails.

    Each of the workers that share a store takes cells that no other worker holds. When other workers hold all
    cells that are left, this worker helps with cells that can be shared, and waits for the others. It goes on
    until all cells have ended, since a worker that dies gives its cell back.

    Args:
      cells: The cells.
      place: The store's root, and the cells' data.

    Returns:
      The names of the cells, by how they ended.

    Raises:
      InputError: The store can't be written.
    """
    progress = SweepProgress(cells)
    outcome = Outcome(here=[], elsewhere=[], failed=[])
    waiting = cells
    is_first_pass = True
    try:
        while waiting:
            left = []
            for cell in waiting:
                if not _attempt(cell, place, progress, outcome, helps=False):
                    left.append(cell)
            if left and is_first_pass:
                cells_are = f"{len(left)} cells are"
                if len(left) == 1:
                    cells_are = "1 cell is"
                progress.say(f"{cells_are} with other workers: helping, or waiting")
            is_first_pass = False
            if len(left) == len(waiting):  # other workers hold all of them
                left = _help(left, place, progress, outcome)
            waiting = left
    finally:
        progress.close()
    return outcome


def is_done(cell: Cell, place: Workplace) -> bool:
    """Returns whether the store has all of a cell."""
    return cell.is_done(stored.holdings(place.out), place.data)


def _attempt(
    cell: Cell, place: Workplace, progress: SweepProgress, outcome: Outcome, helps: bool
) -> bool:
    """Does what the store lacks of a cell, unless another worker holds the cell.

    Args:
      cell: The cell.
      place: The store's root, and the cell's data.
      progress: Shows the cell's progress.
      outcome: Gets the cell's name, in the list for how the cell ended.
      helps: Whether to do a part of the cell even where another worker holds it.

    Returns:
      Whether the cell has ended, by success or by failure.
    """
    # The list that gets the cell's name: `elsewhere`, unless this worker does the cell, or it fails.
    ended = outcome.elsewhere
    try:
        if not is_done(cell, place):
            store = cell.open(place.out, place.data)
            with store.claim() as is_claimed:
                if not (is_claimed or helps):
                    return False
                # Again, since the worker that held it until now may have done it.
                if not is_done(cell, place):
                    cell.do(store, place.data, progress.begin(cell))
                    # Without the claim this worker has only helped the worker that holds the cell.
                    if is_claimed:
                        ended = outcome.here
    except files.CannotWriteError:
        raise  # no other cell could be stored either
    except InputError as error:
        progress.say(f"failed: {cell.name}: {error}")
        ended = outcome.failed
    ended.append(cell.name)
    progress.end(cell)
    return True


def _help(
    cells: list[Cell], place: Workplace, progress: SweepProgress, outcome: Outcome
) -> list[Cell]:
    """Helps with a random cell that several workers can share; waits a moment where no cell can be shared.

    It returns once that cell has ended, or after the moment.

    Args:
      cells: The cells that other workers hold.
      place: The store's root, and the cells' data.
      progress: Shows the cell's progress.
      outcome: Gets the cell's name.

    Returns:
      The cells that are left.
    """
    shared = [cell for cell in cells if cell.shared]
    if not shared:
        time.sleep(_POLL_SECONDS)
        return cells
    cell = random.choice(shared)  # at random, so that helpers spread over the cells
    # With `helps` it returns only when the cell has ended.
    _attempt(cell, place, progress, outcome, helps=True)
    return [other for other in cells if other is not cell]
