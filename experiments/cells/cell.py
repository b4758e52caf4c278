"""A cell: a piece of a sweep's work, as a record of functions. A figure is drawn from the cells of a sweep.

A kind of cell is a module that makes such records; nothing else knows kinds. Importing this starts no JAX and
no matplotlib.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from audit.storage.index import Holdings
from audit.storage.store import Store
from experiments.cells.data import DataSets
from experiments.settings.setting import Setting

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from experiments.plots.points import Evidence
    from experiments.plots.table import Row

DELTA, CONFIDENCE = 1e-5, 0.95  # of what audit.json concludes; scores are kept, others need no training


class Levels(NamedTuple):
    """delta and confidence of bounds."""

    delta: float = DELTA
    confidence: float = CONFIDENCE


class Progress(Protocol):
    """Hears of runs that ended, parts of runs too."""

    def __call__(self, runs: float, /) -> object: ...


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
    done. seconds: the time that it takes on two cores, as an estimate. is_done: off the store alone, without
    JAX, nor data that were not named. open: its store. do: all that is missing. audited: where it is an audit.
    """

    name: str
    identity: str
    runs: int
    seconds: float
    is_done: Callable[[Holdings, DataSets], bool]
    open: Callable[[Path, DataSets], Store]
    do: Callable[[Store, DataSets, Progress], object]
    audited: Audited | None = None


class Axis(NamedTuple):
    """A figure's x axis: "clipping norm C" and "C"."""

    name: str
    symbol: str


class Drawn(NamedTuple):
    """A sweep's figures by name, how many of its cells are missing, and the table's rows."""

    figures: "list[tuple[str, Figure]]"
    missing: int
    rows: "list[Row]"


class Draw(Protocol):
    """A sweep's figures of the cells that are there: none where none is. Trains and solves nothing."""

    def __call__(self, sweep: "Sweep", evidence: "Evidence", /) -> Drawn: ...


class Sweep(NamedTuple):
    """A figure: its cells, and how it is drawn."""

    name: str
    title: str
    cells: tuple[Cell, ...]
    draw: Draw
    axis: Axis | None = None

    def audits(self) -> list[Audited]:
        """Those of its cells that are audits of trained models."""
        return [cell.audited for cell in self.cells if cell.audited is not None]
