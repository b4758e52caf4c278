"""The missing part of the crafted landscape, solved or simulated and kept; nothing else does both."""

import concurrent.futures
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from audit.machine import cores
from audit.storage.index import Holdings
from audit.storage.store import Store
from experiments.hidden_state import landscape_solve, landscape_stored
from experiments.hidden_state.landscape_cells import (
    Exact,
    ExactLaw,
    Question,
    Search,
    Simulated,
    SimulatedAudit,
    Study,
)


def simulates(held: Holdings, study: Study) -> bool:
    """Whether `simulate` has anything to do, for which the command prepares JAX."""
    return any(not landscape_stored.holds(held, asked) for asked in study.simulations())


def do(out: Path, study: Study, progress: Callable[[], object] = lambda: None) -> None:
    """Simulates and solves all that the store lacks of a study."""
    simulate(out, study)
    solve(out, study, progress)


def simulate(out: Path, study: Study) -> None:
    """Simulates what the store lacks, keeping each result as soon as it is there.

    Raises InputError where the store can't be written.
    """
    held = landscape_stored.holdings(out)
    _simulate(held, [one for one in map(study.audit, study.cells) if _lacks(held, one)])
    for search in study.searches():
        if _lacks(held, search):
            _keep(_open(held, search), landscape_solve.search(search))


def solve(out: Path, study: Study, progress: Callable[[], object] = lambda: None) -> None:
    """Solves the laws that the store lacks, a process a core, keeping each as soon as it is there.

    `progress` hears of each of `study.all_laws()`, stored or solved. Raises InputError for a cell out of
    range, and where the store can't be written.
    """
    laws, held = study.all_laws(), landscape_stored.holdings(out)
    missing = [law for law in laws if _lacks(held, law)]
    for _ in range(len(laws) - len(missing)):
        progress()
    stores = {law: _open(held, law) for law in missing}
    for law, result in _solved(missing):
        _keep(stores[law], result)
        progress()


def _lacks(held: Holdings, asked: Question) -> bool:
    """Whether a result is to be computed; one that is damaged is set aside."""
    landscape_stored.set_damaged_aside(held, asked)
    return not landscape_stored.holds(held, asked)


def _open(held: Holdings, asked: Question) -> Store:
    """The store of what is asked, where it is or among the landscape's cells."""
    found = held.open(asked.setting())
    return Store(held.root / landscape_stored.CELLS, asked.setting()) if found is None else found


def _simulate(held: Holdings, asked: Sequence[SimulatedAudit]) -> None:
    """Simulates audits and keeps them, their scores beside."""
    stores = {one: _open(held, one) for one in asked}
    for one, scores, result in landscape_solve.simulate(asked):
        stores[one].save(scores)
        _keep(stores[one], result)


def _solved(asked: Sequence[ExactLaw]) -> Iterator[tuple[ExactLaw, Exact]]:
    """Laws as they are solved."""
    if not asked:
        return
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(min(cores(), len(asked)), spawn) as pool:
        waiting = {pool.submit(landscape_solve.solve, law): law for law in asked}
        for future in concurrent.futures.as_completed(waiting):
            yield waiting[future], future.result()


def _keep(store: Store, result: Exact | Simulated | Search) -> None:
    """Writes a result."""
    store.write_text(landscape_stored.RESULT, landscape_stored.text(result))
