"""A cell: a piece of a sweep's work, as a record of functions.

A kind of cell is a module that makes such records; nothing else knows kinds. Importing this starts no JAX.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from audit.progress import Progress
from audit.settings.setting import Setting
from audit.storage.index import Holdings
from audit.storage.store import Store
from audit.task import Dataset
from experiments.cells.data import DataSets

if TYPE_CHECKING:
    from audit.game import Game

DELTA, CONFIDENCE = 1e-5, 0.95  # of what audit.json concludes; scores are kept, others need no training


class Levels(NamedTuple):
    """delta and confidence of bounds."""

    delta: float = DELTA
    confidence: float = CONFIDENCE


class Audited(NamedTuple):
    """An audit of trained models and its place in a figure: the panel, the series in it, where it stands on
    the x axis."""

    panel: str
    series: str
    x: float
    setting: Setting
    runs: int


class GameRecipe(NamedTuple):
    """A training that processes without a store can do, who get it pickled.

    key: equal for equal games on equal data. make: data -> the game; raises InputError where that can't be.
    about: data -> what is kept of the circumstances.
    """

    key: str
    make: "Callable[[Dataset], Game]"
    about: Callable[[Dataset], dict[str, Any]]


class Parts(NamedTuple):
    """A cell as a training of runs, and what is concluded from these.

    data: what it is trained on. recipe: of the training; raises InputError where it can't be done. conclude:
    once the store has all runs, with what the recipe's `about` says on a worker.
    """

    data: Callable[[DataSets], Dataset]
    recipe: Callable[[Dataset], GameRecipe]
    conclude: Callable[[Store, dict[str, Any]], object]


class Cell(NamedTuple):
    """A piece of work.

    name: for people. identity: equal for cells that are one piece of work; of those the one of most runs is
    done. seconds: on two cores, as an estimate. is_done: off the store alone, without JAX or data that nobody
    named. open: its store. do: all that is missing. audited: where it is an audit. shared: whether several
    workers can do it at once, each a part. parts: where its runs can be trained by who has no store. request:
    what it computes, in its own kind's terms, for its paper's figures.
    """

    name: str
    identity: str
    runs: int
    seconds: float
    is_done: Callable[[Holdings, DataSets], bool]
    open: Callable[[Path, DataSets], Store]
    do: Callable[[Store, DataSets, Progress], object]
    audited: Audited | None = None
    shared: bool = False
    parts: Parts | None = None
    request: object = None
