"""A cell: a piece of a sweep's work, as a record of functions.

A kind of cell is a module that makes such records; nothing else knows kinds. Importing this starts no JAX.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from audit.progress import Progress
from audit.storage.index import Holdings
from audit.storage.store import Store
from experiments.cells.data import DataSets
from experiments.settings.setting import Setting

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


class Cell(NamedTuple):
    """A piece of work.

    name: for people. identity: equal for cells that are one piece of work; of those the one of most runs is
    done. seconds: on two cores, as an estimate. is_done: off the store alone, without JAX or data that nobody
    named. open: its store. do: all that is missing. audited: where it is an audit. shared: whether several
    workers can do it at once, each a part.
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
