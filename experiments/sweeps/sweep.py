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


class Claim(NamedTuple):
    """A paper's word for a series, and the section that has it: "tight" is a lower bound that matches the
    accountant's. The heights in figures are not printed as numbers, so none is given."""

    says: str
    section: str


PaperClaims = Mapping[tuple[str, str, float | None], Claim]


class Seeds(NamedTuple):
    """How much a row stands on: runs a seed, seeds that are there, seeds that are missing, canaries a run."""

    runs: int
    found: int
    missing: int
    canaries: int = 1


class Row(NamedTuple):
    """One point of a figure beside a paper's words; epsilons at one delta, by method, None where there is
    nothing to say.

    interval: the ends of the two-sided interval where scores are normal; None with several seeds.
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
    claim: Claim | None


class OwnTable(NamedTuple):
    """A table of a sweep's own form: for people (80 columns) and for programs."""

    text: str
    csv: bytes


class Drawn(NamedTuple):
    """A sweep's figures by name, how many cells it lacks, and its rows or a table of its own."""

    figures: "list[tuple[str, Figure]]"
    missing: int
    rows: list[Row]
    table: OwnTable | None = None


@dataclass(frozen=True)
class Sweep:
    """A figure: its cells; `axis` is None where x tells nothing."""

    name: str
    title: str
    cells: tuple[Cell, ...]
    axis: Axis | None = None

    def audits(self) -> list[Audited]:
        """Those of its cells that are audits of trained models."""
        return [cell.audited for cell in self.cells if cell.audited is not None]
