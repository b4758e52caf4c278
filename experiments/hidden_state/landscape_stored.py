"""The crafted landscape's results as the store holds them: nothing here solves, simulates or draws."""

import json
from typing import Any, NamedTuple, TypeVar

from audit.errors import InputError
from audit.storage.index import Holdings
from experiments.hidden_state.landscape_cells import (
    ADVERSARIES,
    Exact,
    ExactLaw,
    LandscapeCell,
    Question,
    Search,
    Simulated,
    SimulatedAudit,
    Study,
    ThresholdSearch,
    search_laws,
    search_thresholds,
)

RESULT = "result.json"
_Kind = TypeVar("_Kind", Exact, Simulated, Search)


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


def read_exact(held: Holdings, asked: ExactLaw) -> Exact | None:
    """The stored law; None where there is none. Raises InputError for one that can't be read."""
    return _read(held, asked, Exact)


def read_simulated(held: Holdings, asked: SimulatedAudit) -> Simulated | None:
    """The stored audit; None where there is none. Raises InputError for one that can't be read."""
    return _read(held, asked, Simulated)


def read_search(held: Holdings, asked: ThresholdSearch) -> Search | None:
    """The stored search; None where there is none. Raises InputError for one that can't be read."""
    return _read(held, asked, Search)


def holds(held: Holdings, asked: Question) -> bool:
    """Whether a result is there, readable or not."""
    return held.holds(asked.setting(), RESULT)


def missing(held: Holdings, study: Study) -> int:
    """How many cells lack a result: the study's, and all of Algorithm 6's where any of those does."""
    cells = [cell for cell in study.cells if not _holds_cell(held, study, cell)]
    searches = study.searches()
    return len(cells) + (0 if all(_holds_search(held, one) for one in searches) else len(searches))


def cells(held: Holdings, study: Study) -> list[CellResults]:
    """The results of the cells that lack none. Raises InputError for one that can't be read."""
    found = (_cell(held, study, cell) for cell in study.cells)
    return [one for one in found if one is not None]


def searches(held: Holdings, study: Study) -> list[SearchResults]:
    """Algorithm 6's results, [] where one is missing. Raises InputError for one that can't be read."""
    found = [_search(held, one) for one in study.searches()]
    there = [one for one in found if one is not None]
    return there if len(there) == len(found) else []


def _cell(held: Holdings, study: Study, cell: LandscapeCell) -> CellResults | None:
    """A cell's results, None where one is missing."""
    laws = {law.thresholds: read_exact(held, law) for law in study.laws(cell)}
    found = {thresholds: exact for thresholds, exact in laws.items() if exact is not None}
    simulated = read_simulated(held, study.audit(cell))
    if simulated is None or len(found) < len(laws):
        return None
    by_name = {name: found[name] for name in ADVERSARIES}
    return CellResults(cell, by_name, found[study.simulated_thresholds()], simulated)


def _search(held: Holdings, asked: ThresholdSearch) -> SearchResults | None:
    """Algorithm 6's results on a cell, None where one is missing."""
    result = read_search(held, asked)
    laws = [read_exact(held, law) for law in search_laws(asked)]
    exact = [law for law in laws if law is not None]
    if result is None or len(exact) < len(laws):
        return None
    return SearchResults(asked.cell, search_thresholds(asked.cell), exact, result.claimed)


def _holds_cell(held: Holdings, study: Study, cell: LandscapeCell) -> bool:
    """Whether all of a cell's results are there."""
    return holds(held, study.audit(cell)) and all(holds(held, law) for law in study.laws(cell))


def _holds_search(held: Holdings, asked: ThresholdSearch) -> bool:
    """Whether all of Algorithm 6's results on a cell are there."""
    return holds(held, asked) and all(holds(held, law) for law in search_laws(asked))


def _read(held: Holdings, asked: Question, kind: type[_Kind]) -> _Kind | None:
    """A stored result, None where there is none."""
    store = held.open(asked.setting())
    path = None if store is None else store.path / RESULT
    if path is None or not path.exists():
        return None
    try:
        values: dict[str, Any] = json.loads(path.read_bytes())
        return kind(**values)
    except (ValueError, TypeError):
        raise InputError(f"{path} is damaged: remove it, it is computed again") from None
