"""A sweep: the cells of a figure, and how it is drawn from what the store holds of them.

Importing this starts no JAX, no matplotlib and no statistics.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from experiments.cells.cell import Audited, Cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from experiments.sweeps.points import Evidence
    from experiments.sweeps.rows import Row


class Axis(NamedTuple):
    """A figure's x axis: "clipping norm C" and "C"."""

    name: str
    symbol: str


class OwnTable(NamedTuple):
    """A table of a sweep's own form: for people (80 columns) and for programs."""

    text: str
    csv: bytes


class Drawn(NamedTuple):
    """A sweep's figures by name, how many of its cells are missing, and the rows of the audits' table, or a
    table of its own."""

    figures: "list[tuple[str, Figure]]"
    missing: int
    rows: "list[Row]"
    table: OwnTable | None = None


class Draw(Protocol):
    """A sweep's figures of the cells that are there: none where none is. Trains and solves nothing."""

    def __call__(self, sweep: "Sweep", evidence: "Evidence", /) -> Drawn: ...


@dataclass(frozen=True)
class Sweep:
    """A figure: its cells; `axis` is None where x tells nothing. `draw`: in place of its paper's figures."""

    name: str
    title: str
    cells: tuple[Cell, ...]
    draw: Draw | None = None
    axis: Axis | None = None

    def audits(self) -> list[Audited]:
        """Those of its cells that are audits of trained models."""
        return [cell.audited for cell in self.cells if cell.audited is not None]
