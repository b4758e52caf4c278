"""The crafted landscape's study as data: what is asked for, how the store knows it, what the answers hold.

It imports neither JAX nor SciPy nor matplotlib, so that a command knows its study before it needs them.
"""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

ADVERSARIES = ("half", "best_constant", "optimal")  # by their names in audit.landscape.optimal
SEED, CLIPPING_NORM, THRESHOLD = 0, 1.0, 0.5  # of the sweep; the threshold is C / 2 in units of C
_SEARCH = 49  # thresholds of Algorithm 6


@dataclasses.dataclass(frozen=True)
class Grid:
    """The crafted loss landscape's cells (Section 6), exact and simulated with so many runs."""

    noise_multipliers: tuple[float, ...]
    batch_sizes: tuple[int, ...]
    steps: int
    runs: int


class LandscapeCell(NamedTuple):
    """One process and the delta at which it is bounded."""

    noise_multiplier: float
    batch_size: int
    steps: int
    delta: float


class Simulation(NamedTuple):
    """How a cell is simulated, half of its runs in, and at which confidence its scores are bounded."""

    runs: int
    seed: int
    confidence: float


class ExactLaw(NamedTuple):
    """Asks for `Exact`: a cell under an adversary of ADVERSARIES, or a constant threshold in units of C."""

    cell: LandscapeCell
    thresholds: str | float

    def setting(self) -> dict[str, Any]:
        """The store's name for it."""
        chosen = "adversary" if isinstance(self.thresholds, str) else "threshold"
        return {"kind": "landscape_exact", chosen: self.thresholds, **self.cell._asdict()}


class SimulatedAudit(NamedTuple):
    """Asks for `Simulated`: a cell under a constant threshold in units of C."""

    cell: LandscapeCell
    threshold: float
    simulation: Simulation

    def setting(self) -> dict[str, Any]:
        """The store's name for it."""
        values = {"threshold": self.threshold, **self.simulation._asdict()}
        return {"kind": "landscape_simulated", **values, **self.cell._asdict()}


class ThresholdSearch(NamedTuple):
    """Asks for `Search`: Algorithm 6 on a cell."""

    cell: LandscapeCell
    simulation: Simulation

    def setting(self) -> dict[str, Any]:
        """The store's name for it."""
        values = {"thresholds": search_thresholds(self.cell), **self.simulation._asdict()}
        return {"kind": "landscape_search", **values, **self.cell._asdict()}


Question = ExactLaw | SimulatedAudit | ThresholdSearch


@dataclasses.dataclass(frozen=True)
class Exact:
    """The quadrature's result for an adversary, by step (T,) where it is a list."""

    thresholds: list[float]
    epsilon_exact: list[float]
    epsilon_gaussian: list[float]
    epsilon_upper: float


@dataclasses.dataclass(frozen=True)
class Simulated:
    """The claims of a simulated audit: in-sample epsilon by step, and every bound at steps 1 and T."""

    in_sample: list[float]
    first: list[dict[str, Any]]
    last: list[dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Search:
    """Algorithm 6 on one cell: the in-sample epsilon at T of each constant threshold."""

    claimed: list[float]


class Study(NamedTuple):
    """Cells of one length under a constant threshold in units of C, and Algorithm 6 at the same delta."""

    cells: tuple[LandscapeCell, ...]
    threshold: float
    simulation: Simulation

    def laws(self, cell: LandscapeCell) -> list[ExactLaw]:
        """Of a cell: every adversary's, and the simulated threshold's where that is no adversary's."""
        own = ExactLaw(cell, self.simulated_thresholds())
        return list(dict.fromkeys([*(ExactLaw(cell, name) for name in ADVERSARIES), own]))

    def audit(self, cell: LandscapeCell) -> SimulatedAudit:
        """The simulation of a cell."""
        return SimulatedAudit(cell, self.threshold, self.simulation)

    def simulated_thresholds(self) -> str | float:
        """The simulated threshold as `ExactLaw` names it."""
        return "half" if self.threshold == 0.5 else self.threshold

    def searches(self) -> list[ThresholdSearch]:
        """Algorithm 6's, on two cells of two steps."""
        delta = self.cells[0].delta
        cells = (LandscapeCell(4.0, 4, 2, delta), LandscapeCell(1.0, 1, 2, delta))
        return [ThresholdSearch(cell, self.simulation) for cell in cells]

    def all_laws(self) -> list[ExactLaw]:
        """Every exact law: of the cells, and of all that Algorithm 6 tries."""
        return [law for cell in self.cells for law in self.laws(cell)] + [
            law for search in self.searches() for law in search_laws(search)
        ]

    def simulations(self) -> list[SimulatedAudit | ThresholdSearch]:
        """All that is simulated."""
        return [*(self.audit(cell) for cell in self.cells), *self.searches()]


def study(grid: Grid, delta: float, confidence: float) -> Study:
    """The sweep's study of a grid."""
    cells = [
        LandscapeCell(sigma, size, grid.steps, delta)
        for sigma in grid.noise_multipliers
        for size in grid.batch_sizes
    ]
    return Study(tuple(cells), THRESHOLD, Simulation(grid.runs, SEED, confidence))


def search_thresholds(cell: LandscapeCell) -> list[float]:
    """Those that Algorithm 6 tries (Errata H7), in units of C: symmetric about C / 2, past any that helps."""
    from audit.statistics import conversions

    sigma = cell.noise_multiplier
    top = 1.15 * (0.5 + sigma**2 * conversions.epsilon_from_mu(1 / sigma, cell.delta))
    return [float(h) for h in np.linspace(1 - top, top, _SEARCH)]


def search_laws(search: ThresholdSearch) -> list[ExactLaw]:
    """The exact laws beside Algorithm 6's claims, a threshold each."""
    return [ExactLaw(search.cell, threshold) for threshold in search_thresholds(search.cell)]
