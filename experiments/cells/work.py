"""A sweep's cells as work: each is done where the store lacks it, by however many workers share the store.

What is done is read off the store alone, so that a finished sweep is known as such without data or JAX.
"""

import random
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from audit.errors import InputError
from audit.settings import stored
from audit.storage import files
from experiments.cells.cell import Cell
from experiments.cells.data import DataSets
from experiments.cells.progress import SweepProgress

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
            left = [cell for cell in waiting if not _attempt(cell, place, progress, outcome)]
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


def _attempt(
    cell: Cell, place: Workplace, progress: SweepProgress, outcome: Outcome, helps: bool = False
) -> bool:
    """Whether a cell ended, which the outcome then says; otherwise another worker holds it. Who helps does a
    part of it then."""
    try:
        if is_done(cell, place):
            outcome.elsewhere.append(cell.name)
        elif not _do(cell, place, progress, outcome, helps):
            return False
    except files.CannotWriteError:
        raise
    except InputError as error:
        progress.say(f"failed: {cell.name}: {error}")
        outcome.failed.append(cell.name)
    progress.end(cell)
    return True


def _do(cell: Cell, place: Workplace, progress: SweepProgress, outcome: Outcome, helps: bool) -> bool:
    """Whether a cell ended; it is done under its claim, or beside who has that."""
    store = cell.open(place.out, place.data)
    with store.claim() as mine:
        if not (mine or helps):
            return False
        if is_done(cell, place):
            outcome.elsewhere.append(cell.name)
        else:
            cell.do(store, place.data, progress.begin(cell))
            (outcome.here if mine else outcome.elsewhere).append(cell.name)
    return True


def _help(cells: list[Cell], place: Workplace, progress: SweepProgress, outcome: Outcome) -> list[Cell]:
    """Helps with one of the cells that others hold, of those that can be shared any, so that helpers spread;
    waits where there is none. Returns the cells that are left."""
    shared = [cell for cell in cells if cell.shared]
    if not shared:
        time.sleep(_POLL_SECONDS)
        return cells
    cell = random.choice(shared)
    _attempt(cell, place, progress, outcome, helps=True)
    return [other for other in cells if other is not cell]
