"""The crafted landscape's results, computed (exact laws by quadrature, audits by simulation) and kept.

JAX is imported by what simulates, so that the processes that solve laws do without it; the command prepares
it beforehand.
"""

import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from audit.landscape import law, optimal
from audit.landscape.optimal import Thresholds
from audit.landscape.process import Process, constant, upper_bound
from audit.machine import cores
from audit.processes import as_completed
from audit.statistics import conversions, densities, estimate
from audit.storage.index import Holdings
from audit.storage.results import finding_fields
from audit.storage.store import Scores, Store
from experiments.hidden_state import landscape
from experiments.hidden_state.landscape import Exact, ExactLaw, Simulated, SimulatedAudit, Simulation, Study

Array = NDArray[np.float64]
ADVERSARIES: dict[str, Callable[[Process, float], Thresholds]] = {
    name: getattr(optimal, name) for name in landscape.ADVERSARIES
}
_LARGEST_BATCH = 40_000_000  # thetas that a compiled call returns at most


def simulates(held: Holdings, study: Study) -> bool:
    """Whether `keep_simulations` has anything to do, for which the command prepares JAX."""
    return any(not landscape.holds(held, request) for request in study.simulations())


def keep(out: Path, study: Study, progress: Callable[[], object] = lambda: None) -> None:
    """Simulates and solves all that the store lacks of a study."""
    keep_simulations(out, study)
    keep_laws(out, study, progress)


def keep_simulations(out: Path, study: Study) -> None:
    """Simulates what the store lacks and keeps each result, an audit's scores beside it, as soon as it is
    there.

    Raises InputError where the store can't be written.
    """
    held = landscape.holdings(out)
    missing = [one for one in map(study.audit, study.cells) if landscape.lacks(held, one)]
    stores = {one: _open(held, one) for one in missing}
    for one, scores, result in simulate(missing):
        stores[one].save(scores)
        stores[one].write_text(landscape.RESULT, landscape.text(result))
    for request in study.searches():
        if landscape.lacks(held, request):
            _open(held, request).write_text(landscape.RESULT, landscape.text(search(request)))


def keep_laws(out: Path, study: Study, progress: Callable[[], object] = lambda: None) -> None:
    """Solves the laws that the store lacks, a process a core, keeping each as soon as it is there.

    `progress` hears of each of `study.all_laws()`, stored or solved. Raises InputError for a cell out of
    range, and where the store can't be written.
    """
    laws, held = study.all_laws(), landscape.holdings(out)
    missing = [one for one in laws if landscape.lacks(held, one)]
    for _ in range(len(laws) - len(missing)):
        progress()
    stores = {one: _open(held, one) for one in missing}
    for one, result in _solved(missing):
        stores[one].write_text(landscape.RESULT, landscape.text(result))
        progress()


def solve(request: ExactLaw) -> Exact:
    """Exact epsilon and the Gaussian conversion's claim, step by step.

    The claim takes the mu of the threshold that the landscape itself splits at, the last one at T.
    Raises InputError for a cell out of range.
    """
    process, delta, chosen = Process(*request.cell[:3]), request.cell.delta, request.thresholds
    if isinstance(chosen, str):
        thresholds = ADVERSARIES[chosen](process, delta).values
    else:
        thresholds = constant(process, chosen)
    upper = upper_bound(process, delta)
    pairs = law.laws(process, thresholds)
    tests = [*thresholds, thresholds[-1] if process.steps > 1 else 0.5]
    mus = [float(densities.mu_at(pair, test)) for pair, test in zip(pairs, tests, strict=True)]
    return Exact(
        [float(h) for h in thresholds],
        [upper] + [densities.epsilon_at(pair, delta) for pair in pairs[1:]],
        [conversions.epsilon_from_mu(max(mu, 0.0), delta) for mu in mus],
        upper,
    )


def simulate(requests: Sequence[SimulatedAudit]) -> Iterator[tuple[SimulatedAudit, Scores, Simulated]]:
    """The simulated audits of cells of one length, in one call where memory allows, with scores at T."""
    for batch in _batches(requests):
        present = _presence(batch[0].simulation)
        for one, thetas in zip(batch, _thetas(batch), strict=True):
            levels = one.cell.delta, one.simulation.confidence
            in_sample = [_in_sample(row, present, *levels) for row in thetas]
            ends = [estimate.findings(row[present], row[~present], *levels) for row in thetas[[0, -1]]]
            bounds = [[finding_fields(finding) for finding in end] for end in ends]
            yield one, Scores(0, thetas[-1][:, None], present[:, None]), Simulated(in_sample, *bounds)


def search(request: landscape.ThresholdSearch) -> landscape.Search:
    """Algorithm 6: the claims of its thresholds, from the same random draws."""
    cell, simulation = request
    present, claimed = _presence(simulation), list[float]()
    for batch in _batches([SimulatedAudit(cell, h, simulation) for h in request.thresholds()]):
        last = _thetas(batch)[:, -1]
        claimed += [_in_sample(scores, present, cell.delta, simulation.confidence) for scores in last]
    return landscape.Search(claimed)


def _open(held: Holdings, request: landscape.Request) -> Store:
    found = held.open(request.setting())
    return Store(held.root / landscape.CELLS, request.setting()) if found is None else found


def _solved(requests: Sequence[ExactLaw]) -> Iterator[tuple[ExactLaw, Exact]]:
    return as_completed(solve, requests, min(cores(), len(requests)))


def _batches(requests: Sequence[SimulatedAudit]) -> Iterator[Sequence[SimulatedAudit]]:
    if requests:
        size = max(1, _LARGEST_BATCH // (requests[0].cell.steps * requests[0].simulation.runs))
        yield from (requests[i : i + size] for i in range(0, len(requests), size))


def _presence(simulation: Simulation) -> NDArray[np.bool_]:
    from audit import game

    return game.presence(np.arange(simulation.runs))[:, 0]


def _thetas(requests: Sequence[SimulatedAudit]) -> Array:
    """theta (requests, T, runs) of audits of one length and simulation."""
    import jax.numpy as jnp

    from audit import game
    from audit.landscape import simulate

    cells, simulation = [one.cell for one in requests], requests[0].simulation
    names = [f"landscape {cell.noise_multiplier} {cell.batch_size}" for cell in cells]
    keys = jnp.stack([game.root(simulation.seed, f"{zlib.crc32(name.encode())}") for name in names])
    thresholds = jnp.array([one.threshold for one in requests], jnp.float32)
    every_step = jnp.tile(thresholds[:, None], (1, cells[0].steps - 1))
    sigmas = jnp.array([cell.noise_multiplier for cell in cells], jnp.float32)
    sizes = jnp.array([cell.batch_size for cell in cells], jnp.float32)
    runs, presence = jnp.arange(simulation.runs, dtype=jnp.uint32), jnp.asarray(_presence(simulation))
    thetas = simulate.simulate_cells(keys, runs, presence, sigmas, sizes, every_step)
    return np.asarray(thetas, np.float64)


def _in_sample(scores: Array, present: NDArray[np.bool_], delta: float, confidence: float) -> float:
    return estimate.in_sample(scores[present], scores[~present], delta, confidence).epsilon
