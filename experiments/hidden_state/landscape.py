"""The crafted landscape's study as data: what it requests, how the store names each request, and the results.

Nothing here solves, simulates or draws. It imports neither JAX nor SciPy nor matplotlib, so that a command
knows its study before it needs them.
"""

import dataclasses
import itertools
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_origin

import numpy as np

from audit.errors import require
from audit.storage import files, index
from audit.storage.index import Holdings
from audit.storage.store import Store
from experiments.cells.cell import answer_text, parsed_answer

ADVERSARIES = ("half", "best_constant", "optimal")  # by their names in audit.landscape.optimal
SEED, CLIPPING_NORM, THRESHOLD = 0, 1.0, 0.5  # of the sweep; the threshold is C / 2 in units of C
CELLS, RESULT = Path("landscape", "cells"), "result.json"  # in a store's root; in a result's folder
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
        values = {"thresholds": self.thresholds(), **self.simulation._asdict()}
        return {"kind": "landscape_search", **values, **self.cell._asdict()}

    def thresholds(self) -> list[float]:
        """Those that are tried (Errata H7), in units of C: symmetric about C / 2, past any that helps."""
        from audit.statistics import conversions

        sigma = self.cell.noise_multiplier
        top = 1.15 * (0.5 + sigma**2 * conversions.epsilon_from_mu(1 / sigma, self.cell.delta))
        return [float(h) for h in np.linspace(1 - top, top, _SEARCH)]

    def laws(self) -> list[ExactLaw]:
        """The exact laws beside the search's claims, a threshold each."""
        return [ExactLaw(self.cell, threshold) for threshold in self.thresholds()]


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


Request = ExactLaw | SimulatedAudit | ThresholdSearch
Result = Exact | Simulated | Search
_Kind = TypeVar("_Kind", bound=Result)
_KINDS: dict[type, type[Result]] = {ExactLaw: Exact, SimulatedAudit: Simulated, ThresholdSearch: Search}


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
        tried = [law for search in self.searches() for law in search.laws()]
        return [law for cell in self.cells for law in self.laws(cell)] + tried

    def simulations(self) -> list[SimulatedAudit | ThresholdSearch]:
        """All that is simulated."""
        return [*map(self.audit, self.cells), *self.searches()]


class CellResults(NamedTuple):
    """All of one cell: the exact laws by adversary, that of the simulated threshold, and the simulation."""

    cell: LandscapeCell
    exact: dict[str, Exact]
    at_threshold: Exact
    simulated: Simulated


class SearchResults(NamedTuple):
    """Algorithm 6 on one cell: its thresholds in units of C, the exact law of each, and what is claimed."""

    cell: LandscapeCell
    thresholds: list[float]
    exact: list[Exact]
    claimed: list[float]


class StudyResults(NamedTuple):
    """A study's whole cells, Algorithm 6's results or [], and how many cells lack something."""

    cells: list[CellResults]
    searches: list[SearchResults]
    missing: int


def study(grid: Grid, delta: float, confidence: float) -> Study:
    """The sweep's study of a grid."""
    places = itertools.product(grid.noise_multipliers, grid.batch_sizes)
    cells = (LandscapeCell(sigma, size, grid.steps, delta) for sigma, size in places)
    return Study(tuple(cells), THRESHOLD, Simulation(grid.runs, SEED, confidence))


def holdings(out: Path) -> Holdings:
    """The landscape's holdings under a store's root."""
    return with_cells(index.holdings(out))


def with_cells(held: Holdings) -> Holdings:
    """The holdings, which have the landscape's that lie in the root, as they once did, and those in CELLS."""
    found = index.holdings(held.root / CELLS).folders
    both = {name: [*found.get(name, []), *held.folders.get(name, [])] for name in {**held.folders, **found}}
    return Holdings(held.root, both)


def results(held: Holdings, study: Study) -> StudyResults:
    """All that is stored of a study. Raises InputError for a result that can't be read now."""
    cells = [_cell(held, study, cell) for cell in study.cells]
    searches = [_search(held, search) for search in study.searches()]
    whole = [] if None in searches else [one for one in searches if one is not None]
    lacking = cells.count(None) + len(searches) - len(whole)
    return StudyResults([one for one in cells if one is not None], whole, lacking)


def read(held: Holdings, request: Request, kind: type[_Kind]) -> _Kind | None:
    """The stored result, None if none is whole (`Store.distrust`); raises InputError if it can't be read."""
    store = held.open(request.setting())
    return None if store is None else _read(store, kind)


def holds(held: Holdings, request: Request) -> bool:
    """Whether a whole result is there; see `read`."""
    return read(held, request, _KINDS[type(request)]) is not None


def lacks(held: Holdings, request: Request) -> bool:
    """Whether a result is to be computed: a damaged one is set aside under its claim, and said on stderr."""
    store, kind = held.open(request.setting()), _KINDS[type(request)]
    if store is None:
        return True
    result, damaged = _look(store, kind)
    if damaged:
        with store.claim():
            return _read(store, kind) is None
    return result is None


def text(result: Result) -> str:
    """A result as it is written: its values, and their SHA-256 beside them."""
    return answer_text(dataclasses.asdict(result))


def _cell(held: Holdings, study: Study, cell: LandscapeCell) -> CellResults | None:
    laws = {law.thresholds: read(held, law, Exact) for law in study.laws(cell)}
    found = {thresholds: exact for thresholds, exact in laws.items() if exact is not None}
    simulated = read(held, study.audit(cell), Simulated)
    if simulated is None or len(found) < len(laws):
        return None
    by_name = {name: found[name] for name in ADVERSARIES}
    return CellResults(cell, by_name, found[study.simulated_thresholds()], simulated)


def _search(held: Holdings, request: ThresholdSearch) -> SearchResults | None:
    result, laws = read(held, request, Search), [read(held, law, Exact) for law in request.laws()]
    exact = [law for law in laws if law is not None]
    if result is None or len(exact) < len(laws):
        return None
    return SearchResults(request.cell, request.thresholds(), exact, result.claimed)


def _read(store: Store, kind: type[_Kind]) -> _Kind | None:
    result, damaged = _look(store, kind)
    if damaged:
        store.distrust(store.path / RESULT, "it is computed again")
    return result


def _look(store: Store, kind: type[_Kind]) -> tuple[_Kind | None, bool]:
    """A stored result, None where none is whole; and whether there is one that is damaged."""
    content = files.read(store.path / RESULT)
    if content is None:
        return None, False
    try:
        result = kind(**parsed_answer(content, unsigned=True))
        for field in dataclasses.fields(kind):
            expected = get_origin(field.type) or field.type
            assert isinstance(expected, type)
            require(isinstance(getattr(result, field.name), expected), field.name)
    except (ValueError, TypeError, RecursionError):
        return None, True
    return result, False
