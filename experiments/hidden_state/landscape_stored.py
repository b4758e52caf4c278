"""The crafted landscape's results as the store holds them: nothing here solves, simulates or draws."""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_origin

from audit.errors import require
from audit.storage import files, index
from audit.storage.index import Holdings
from audit.storage.store import Store
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

CELLS = Path("landscape", "cells")  # in a store's root
RESULT, _CHECKSUM = "result.json", "sha256"
Result = Exact | Simulated | Search
_Kind = TypeVar("_Kind", bound=Result)


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


def holdings(out: Path) -> Holdings:
    """The landscape's holdings under a store's root."""
    return with_cells(index.holdings(out))


def with_cells(held: Holdings) -> Holdings:
    """The holdings, which have the landscape's that lie in the root, as they once did, and those in CELLS."""
    found = index.holdings(held.root / CELLS).folders
    both = {name: [*found.get(name, []), *held.folders.get(name, [])] for name in {**held.folders, **found}}
    return Holdings(held.root, both)


def read_exact(held: Holdings, asked: ExactLaw) -> Exact | None:
    """The stored law; None where there is none that is whole."""
    return _read(held.open(asked.setting()), Exact)


def read_simulated(held: Holdings, asked: SimulatedAudit) -> Simulated | None:
    """The stored audit; None where there is none that is whole."""
    return _read(held.open(asked.setting()), Simulated)


def read_search(held: Holdings, asked: ThresholdSearch) -> Search | None:
    """The stored search; None where there is none that is whole."""
    return _read(held.open(asked.setting()), Search)


def holds(held: Holdings, asked: Question) -> bool:
    """Whether a whole result is there; a damaged one is said. Raises InputError for one that can't be read
    now."""
    return _read(held.open(asked.setting()), _kind(asked)) is not None


def set_damaged_aside(held: Holdings, asked: Question) -> None:
    """Moves a damaged result away, under its claim, and says so on stderr."""
    store = held.open(asked.setting())
    if store is not None and _look(store, _kind(asked))[1]:
        with store.claim():
            _read(store, _kind(asked))


def text(result: Result) -> str:
    """A result as it is written: its values, and their SHA-256 beside them."""
    values = dataclasses.asdict(result)
    return json.dumps({**values, _CHECKSUM: _checksum(values)}) + "\n"


def missing(held: Holdings, study: Study) -> int:
    """How many cells lack a result: the study's, and all of Algorithm 6's where any of those does."""
    cells = [cell for cell in study.cells if not _holds_cell(held, study, cell)]
    searches = study.searches()
    return len(cells) + (0 if all(_holds_search(held, one) for one in searches) else len(searches))


def cells(held: Holdings, study: Study) -> list[CellResults]:
    """The results of the cells that lack none. Raises InputError for one that can't be read now."""
    found = (_cell(held, study, cell) for cell in study.cells)
    return [one for one in found if one is not None]


def searches(held: Holdings, study: Study) -> list[SearchResults]:
    """Algorithm 6's results, [] where one is missing. Raises InputError for one that can't be read now."""
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


def _kind(asked: Question) -> type[Result]:
    """The kind of the answer."""
    if isinstance(asked, ExactLaw):
        return Exact
    return Simulated if isinstance(asked, SimulatedAudit) else Search


def _read(store: Store | None, kind: type[_Kind]) -> _Kind | None:
    """A stored result; None where there is none that is whole. See `Store.distrust` for a damaged one."""
    if store is None:
        return None
    result, damaged = _look(store, kind)
    if damaged:
        store.distrust(store.path / RESULT, "it is computed again")
    return result


def _look(store: Store, kind: type[_Kind]) -> tuple[_Kind | None, bool]:
    """A stored result, None where there is none that is whole; and whether there is one that is damaged."""
    content = files.read(store.path / RESULT)
    try:
        return (None if content is None else _parsed(content, kind)), False
    except (ValueError, TypeError, RecursionError):
        return None, True


def _parsed(content: bytes, kind: type[_Kind]) -> _Kind:
    """A result, with its checksum or, as older ones are, without; raises ValueError, TypeError or
    RecursionError for what is torn or altered."""
    values: dict[str, Any] = json.loads(content)
    checksum = values.pop(_CHECKSUM, None) if isinstance(values, dict) else None
    result = kind(**values)
    require(checksum in (None, _checksum(values)), "altered")
    for field in dataclasses.fields(kind):
        expected = get_origin(field.type) or field.type
        assert isinstance(expected, type)
        require(isinstance(values[field.name], expected), field.name)
    return result


def _checksum(values: dict[str, Any]) -> str:
    """SHA-256 of the values as canonical JSON."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
