"""A sweep's cells as work, shared by any number of workers on a store, whichever engine trains.

What is done is read off the store alone, so that neither data nor JAX are needed to see that a sweep is
finished.
"""

import random
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tqdm import tqdm

from audit.errors import InputError
from audit.runtime.progress import Progress, shortened
from audit.settings import stored
from audit.storage import files
from audit.storage.store import Store
from audit.tasks.task import Dataset
from experiments.cells.cell import Cell, DataSets, GameRecipe

if TYPE_CHECKING:
    from audit.training.training import Trained

_POLL_SECONDS = 1.0


class Workplace(NamedTuple):
    """The root of the store that cells are in, and the data that they are on."""

    out: Path
    data: DataSets


class Outcome(NamedTuple):
    """The names of the cells that have ended.

    Attributes:
      here: Those that this worker did.
      elsewhere: Those that other workers did, or that the store had.
      failed: Those that failed here.
    """

    here: list[str]
    elsewhere: list[str]
    failed: list[str]


class RunsRequest(NamedTuple):
    """A request that a store have so many runs; those that it does not have are to be trained.

    Attributes:
      store: The store.
      runs: How many runs the store is to have.
      most_trained: How many runs are to be trained at most: chunks are no larger.
      chunk: How many runs a chunk has; 0 for as many as fit into memory.
      progress: (runs) -> anything; called with 0 once all is compiled, then with the runs trained since.
    """

    store: Store
    runs: int
    most_trained: int
    chunk: int
    progress: Progress


class Trainer(Protocol):
    """What trains a game."""

    def train(self, request: RunsRequest, /) -> "Trained":
        """Trains the runs that the store does not have, and returns the scores of all."""

    def stage(self, runs: int) -> int:
        """Returns how many of these runs are best trained between two looks at what they prove."""

    def about(self) -> dict[str, Any]:
        """Returns the versions and devices of the training, to be stored beside the scores."""


class TrainingEngine(NamedTuple):
    """What does cells and trains audits, on this machine or elsewhere.

    Attributes:
      trainer: (recipe, data) -> a trainer; raises InputError where the two don't fit.
      do_all: See `do_all` below.
    """

    trainer: Callable[[GameRecipe, Dataset], Trainer]
    do_all: Callable[[list[Cell], Workplace], Outcome]


class LocalTrainer:
    """A trainer in this process, on the devices of this machine."""

    def __init__(self, recipe: GameRecipe, data: Dataset) -> None:
        self._recipe = recipe
        self._data = data
        self._game = recipe.make(data)

    def train(self, request: RunsRequest) -> "Trained":
        """Trains the runs that the store does not have, and returns the scores of all."""
        from audit.training import training

        store = request.store
        chunk = request.chunk
        if training.count_missing(store, request.runs):
            chunk = training.chunk_size(self._game, request.most_trained, request.chunk)
        return training.train(self._game, store, request.runs, chunk, progress=request.progress)

    def stage(self, runs: int) -> int:
        """Returns how many of these runs make the largest chunk that fits into memory."""
        from audit.training import training

        return training.chunk_size(self._game, runs, 0)

    def about(self) -> dict[str, Any]:
        """Returns the versions and devices of the training, to be stored beside the scores."""
        return self._recipe.about(self._data)


class SweepProgress:
    """A line on stderr: cells done, the current cell, runs a second, time left."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self._n_cells = len(cells)
        self._n_done = 0
        self._seconds_done = 0.0  # by the cells' own estimates, as the bar's total is
        total = sum(cell.seconds for cell in cells)
        layout = "{desc} {percentage:3.0f}% {elapsed}, {remaining} left{postfix}"
        self._bar = tqdm(total=total, bar_format=layout, smoothing=0.1)
        self._runs = 0.0
        self._begin = time.perf_counter()

    def begin(self, cell: Cell) -> Progress:
        """Shows a cell as the current cell, and returns what is to be called with its runs."""
        self._bar.set_description_str(f"{self._n_done}/{self._n_cells} {shortened(cell.name, 32)}:")
        self._bar.set_postfix_str("compiling")
        self._runs = 0.0
        self._begin = time.perf_counter()
        seconds_per_run = cell.seconds / cell.runs

        def progress(runs: float) -> None:
            if not runs:  # the first call says that all is compiled
                self._begin = time.perf_counter()
                return
            self._runs += runs
            rate = self._runs / (time.perf_counter() - self._begin)
            shown_rate = f"{rate:.2g}"
            if rate >= 10:
                shown_rate = f"{rate:.0f}"
            self._bar.set_postfix_str(f"{shown_rate} runs/s", False)
            # The bar goes no further than the cell's estimate, which `end` then completes.
            left_of_cell = self._seconds_done + cell.seconds - self._bar.n
            self._bar.update(min(runs * seconds_per_run, left_of_cell))

        return progress

    def end(self, cell: Cell) -> None:
        """Counts a cell as done, here or in another process."""
        self._n_done += 1
        self._seconds_done += cell.seconds
        self._bar.update(self._seconds_done - self._bar.n)

    def say(self, line: str) -> None:
        """Prints a line above the progress."""
        tqdm.write(line, file=sys.stderr)

    def close(self) -> None:
        """Leaves the line as it is."""
        self._bar.set_description_str(f"{self._n_done}/{self._n_cells} cells:")
        self._bar.close()


def distinct(cells: Iterable[Cell]) -> list[Cell]:
    """Returns a cell for each identity, that with the most runs, in the order in which they come."""
    by_identity: dict[str, Cell] = {}
    for cell in cells:
        other = by_identity.get(cell.identity)
        if other is None or cell.runs > other.runs:
            by_identity[cell.identity] = cell
    return list(by_identity.values())


def do_all(cells: list[Cell], place: Workplace) -> Outcome:
    """Trains all that the store does not have of some cells; reports in a line each cell that fails.

    Workers that share the store each take cells that no other holds. At the end a worker helps with those
    of others that can be shared, and waits for the rest: a worker that dies gives its cell back.

    Raises:
      InputError: Where the store can't be written.
    """
    progress = SweepProgress(cells)
    outcome = Outcome([], [], [])
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
            if len(left) == len(waiting):  # all are with others
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
    """Does a cell that is not done yet, unless another worker holds it.

    Args:
      cell: The cell.
      place: Its store and data.
      progress: Shows the cell while it is done.
      outcome: Gets the cell's name in the list that fits, once the cell has ended.
      helps: Whether to do a part of the cell even where another worker holds it.

    Returns:
      Whether the cell has ended, by success or by failure.
    """
    ended = outcome.elsewhere
    try:
        if not is_done(cell, place):
            store = cell.open(place.out, place.data)
            with store.claim() as is_claimed:
                if not (is_claimed or helps):
                    return False
                if not is_done(cell, place):  # by a worker that held it until now
                    cell.do(store, place.data, progress.begin(cell))
                    if is_claimed:
                        ended = outcome.here
    except files.CannotWriteError:
        raise
    except InputError as error:
        progress.say(f"failed: {cell.name}: {error}")
        ended = outcome.failed
    ended.append(cell.name)
    progress.end(cell)
    return True


def _help(
    cells: list[Cell], place: Workplace, progress: SweepProgress, outcome: Outcome
) -> list[Cell]:
    """Helps with a random cell that others hold and share, or waits; returns the cells that are left."""
    shared = [cell for cell in cells if cell.shared]
    if not shared:
        time.sleep(_POLL_SECONDS)
        return cells
    cell = random.choice(shared)
    _attempt(cell, place, progress, outcome, helps=True)
    return [other for other in cells if other is not cell]
