"""The records of a sweep: its cells, figures and table.

Importing this module does not import JAX, matplotlib or statistics.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments.cells.cell import Audited, Cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Axis(NamedTuple):
    """A figure's x axis: its label, such as "clipping norm C", and the symbol of x, such as "C"."""

    name: str
    symbol: str


class OwnTable(NamedTuple):
    """A sweep's custom table, as 80-column text and as CSV."""

    text: str
    csv: bytes


class Drawn(NamedTuple):
    """The figure and table of a sweep.

    Attributes:
      figure: The figure, or None for a sweep without a figure or with too few stored cells.
      missing: The number of cells that are not stored.
      rows: The sweep's rows in the common table (`points.make_rows`), if any.
      table: The sweep's custom table, if any.
    """

    figure: "Figure | None"
    missing: int
    rows: Sequence[dict[str, Any]] = ()
    table: OwnTable | None = None


@dataclass(frozen=True)
class Sweep:
    """A figure and its cells.

    Attributes:
      name: The name in flags and tables.
      cells: The audits and measurements that the figure needs.
      axis: The figure's x axis, if any.
    """

    name: str
    title: str
    cells: Sequence[Cell]
    axis: Axis | None = None

    def audits(self) -> list[Audited]:
        """Returns the cells that audit trained models."""
        return [cell.audited for cell in self.cells if cell.audited is not None]
