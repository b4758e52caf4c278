"""The records of a sweep: its cells, the figures drawn from those in the store, and the rows of its table.

Importing this starts no JAX, no matplotlib and no statistics.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments.cells.cell import Audited, Cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Axis(NamedTuple):
    """A figure's x axis.

    Attributes:
      name: The axis's label, such as "clipping norm C".
      symbol: The symbol of x, such as "C".
    """

    name: str
    symbol: str


# What a paper says about a series, in short, and its section. "tight" is a lower bound that matches the
# accountant's upper bound. Keys are (the sweep's name, the series, x). x is None: at every x. The papers
# print no epsilons of their figures as numbers.
PaperClaims = Mapping[tuple[str, str, float | None], tuple[str, str]]


class OwnTable(NamedTuple):
    """A sweep's table with a layout of its own.

    Attributes:
      text: The table for people, 80 columns wide.
      csv: The table for programs.
    """

    text: str
    csv: bytes


class Drawn(NamedTuple):
    """All that is drawn of a sweep.

    Attributes:
      figures: (name, figure) for each figure.
      missing: The number of cells that the store lacks.
      rows: The sweep's rows of the common table (`table.make_rows`), if any.
      table: A table of the sweep's own; None where it has none.
    """

    figures: "list[tuple[str, Figure]]"
    missing: int
    rows: Sequence[dict[str, Any]] = ()
    table: OwnTable | None = None


@dataclass(frozen=True)
class Sweep:
    """The cells of a figure.

    Attributes:
      name: The name in flags and tables.
      title: The figure's title.
      cells: The cells.
      axis: The figure's x axis; None where x means nothing.
    """

    name: str
    title: str
    cells: Sequence[Cell]
    axis: Axis | None = None

    def audits(self) -> list[Audited]:
        """Returns the audits of trained models among the cells; cells of other kinds are left out."""
        return [cell.audited for cell in self.cells if cell.audited is not None]
