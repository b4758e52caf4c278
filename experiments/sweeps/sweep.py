"""A sweep: the cells of a figure, what is drawn of those that the store holds, and the rows of its table.

Importing this starts no JAX, no matplotlib and no statistics.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from experiments.cells.cell import Audited, Cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from experiments.sweeps.points import Spread


class Axis(NamedTuple):
    """A figure's x axis: "clipping norm C" and "C"."""

    name: str
    symbol: str


class Statement(NamedTuple):
    """What a paper says of a series, and in which section.

    "tight" is a lower bound that matches the accountant's. The papers print no heights of their figures as
    numbers, so none is given.
    """

    says: str
    section: str


# By the sweep's name, the series (of LiDP's figures the panel), and x, None for a claim at every x.
PaperClaims = Mapping[tuple[str, str, float | None], Statement]


class Seeds(NamedTuple):
    """How much data a row rests on.

    Attributes:
      runs: Runs a seed.
      stored: Seeds in the store.
      missing: Seeds that are not.
      canaries: Canaries a run.
    """

    runs: int
    stored: int
    missing: int
    canaries: int = 1


class Row(NamedTuple):
    """One point of a figure beside a paper's words; all epsilons are at one delta.

    Attributes:
      figure: The sweep's name.
      panel: The panel.
      series: The series.
      x: The value on the x axis.
      seeds: How much data the row rests on.
      epsilons: Each method's epsilons over the seeds.
      interval: The ends of the two-sided interval where scores are normal; None with several seeds.
      predicted: The predicted epsilon, of the crafted landscape the exact epsilon; None without either.
      upper_bound: The accountant's epsilon.
      claim: What the paper says; None where it says nothing.
    """

    figure: str
    panel: str
    series: str
    x: float
    seeds: Seeds
    epsilons: "dict[str, Spread]"
    interval: tuple[float, float] | None
    predicted: float | None
    upper_bound: float
    claim: Statement | None


class OwnTable(NamedTuple):
    """A table that a sweep lays out itself: for people (80 columns) and for programs."""

    text: str
    csv: bytes


class Drawn(NamedTuple):
    """A sweep's figures by name, how many cells are missing, and its rows or a table of its own."""

    figures: "list[tuple[str, Figure]]"
    missing: int
    rows: list[Row]
    table: OwnTable | None = None


@dataclass(frozen=True)
class Sweep:
    """A figure: its cells, and its x axis, which is None where x means nothing."""

    name: str
    title: str
    cells: tuple[Cell, ...]
    axis: Axis | None = None

    def audits(self) -> list[Audited]:
        """Returns the audits of trained models among its cells, without the cells of any other kind."""
        audits = []
        for cell in self.cells:
            if cell.audited is not None:
                audits.append(cell.audited)
        return audits
