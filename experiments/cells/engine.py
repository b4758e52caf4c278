"""An engine: who does cells and trains audits, on this machine or elsewhere."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from audit.progress import Progress
from audit.storage.store import Store
from audit.task import Dataset
from audit.training import Trained
from experiments.cells.cell import Cell, GameRecipe
from experiments.cells.work import Outcome, Workplace


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

    def train(self, wanted: Wanted, /) -> Trained:
        """Trains what is missing and reads all."""

    def about(self) -> dict[str, Any]:
        """The circumstances, to be kept beside the scores."""


class TrainingEngine(NamedTuple):
    """trainer: of a recipe on data, chunks as of so many runs; raises InputError where the two don't fit.
    do_all: see `experiments.cells.work`."""

    trainer: Callable[[GameRecipe, Dataset], Trainer]
    do_all: Callable[[list[Cell], Workplace], Outcome]
