"""Computes and stores the crafted landscape's results: exact laws by quadrature, audits by simulation.

Only the functions that simulate import JAX, so that the processes that solve laws do without it; the command
prepares it beforehand.
"""

import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from audit.conclusions.results import finding_fields
from audit.laws import conversions, densities
from audit.methods import estimate
from audit.runtime.machine import cores
from audit.runtime.processes import as_completed
from audit.storage.index import Holdings
from audit.storage.store import Scores, Store
from experiments.hidden_state import landscape
from experiments.hidden_state import landscape_law as law
from experiments.hidden_state import landscape_optimal as optimal
from experiments.hidden_state.landscape import (
    Exact,
    ExactLaw,
    Simulated,
    SimulatedAudit,
    Simulation,
    Study,
)
from experiments.hidden_state.landscape_optimal import Thresholds
from experiments.hidden_state.landscape_process import Process, constant, upper_bound

Array = NDArray[np.float64]
ADVERSARIES: dict[str, Callable[[Process, float], Thresholds]] = {
    name: getattr(optimal, name) for name in landscape.ADVERSARIES
}
_LARGEST_BATCH = 40_000_000  # thetas that a compiled call returns at most


def simulates(held: Holdings, study: Study) -> bool:
    """Returns whether any simulation of a study is not stored, so that the command has to prepare JAX."""
    return any(not landscape.is_stored(held, request) for request in study.simulations())


def keep(out: Path, study: Study, progress: Callable[[], object] = lambda: None) -> None:
    """Computes the results of a study that the store lacks, simulations and exact laws, and stores them.

    Args:
      out: The store's root.
      study: The study.
      progress: A function that is called once for each law, whether it was stored or is solved now.
    """
    keep_simulations(out, study)
    keep_laws(out, study, progress)


def keep_simulations(out: Path, study: Study) -> None:
    """Simulates the audits and threshold searches of a study that the store lacks.

    Stores each result as soon as it is computed. An audit's scores are stored beside its result.

    Args:
      out: The store's root.
      study: The study.

    Raises:
      InputError: The store can't be written.
    """
    held = landscape.holdings(out)
    audits = [study.audit(cell) for cell in study.cells]
    missing = [audit for audit in audits if landscape.must_compute(held, audit)]
    stores = {audit: _open_store(held, audit) for audit in missing}
    for audit, scores, result in simulate(missing):
        store = stores[audit]
        store.save(scores)
        store.write_text(landscape.RESULT, landscape.text(result))
    for request in study.searches():
        if landscape.must_compute(held, request):
            store = _open_store(held, request)
            store.write_text(landscape.RESULT, landscape.text(search(request)))


def keep_laws(out: Path, study: Study, progress: Callable[[], object] = lambda: None) -> None:
    """Solves the exact laws of a study that the store lacks, on all cores.

    Stores each law as soon as it is solved.

    Args:
      out: The store's root.
      study: The study.
      progress: A function that is called once for each of `study.all_laws()`, stored before or solved now.

    Raises:
      InputError: A cell is out of range, or the store can't be written.
    """
    laws = study.all_laws()
    held = landscape.holdings(out)
    missing = [request for request in laws if landscape.must_compute(held, request)]
    for _ in range(len(laws) - len(missing)):
        progress()
    stores = {request: _open_store(held, request) for request in missing}
    for request, result in _solve_all(missing):
        stores[request].write_text(landscape.RESULT, landscape.text(result))
        progress()


def solve(request: ExactLaw) -> Exact:
    """Returns an adversary's epsilon after each step: the exact one, and what the Gaussian conversion claims.

    Beside them are the adversary's thresholds and the accountant's upper bound.

    The conversion takes mu at one threshold of theta_t and treats the whole trade-off curve as Gaussian with
    that mu. For t < T the threshold is the one at which the next step splits the landscape. For T, which no
    step splits any more, it is the last of these, or C / 2 if T = 1.

    Args:
      request: The cell, and the adversary or the constant threshold.

    Raises:
      InputError: The cell is out of range.
    """
    cell = request.cell
    delta = cell.delta
    process = Process(cell.noise_multiplier, cell.batch_size, cell.steps)
    if isinstance(request.thresholds, str):
        thresholds = ADVERSARIES[request.thresholds](process, delta).values
    else:
        thresholds = constant(process, request.thresholds)

    pairs = law.laws(process, thresholds)  # of theta_1 to theta_T; there are T - 1 thresholds
    # theta_1 is that of a single Gaussian step, of which the accountant's epsilon is exact.
    upper = upper_bound(process, delta)
    exact = [upper]
    for pair in pairs[1:]:
        exact.append(densities.epsilon_at(pair, delta))

    last_threshold = thresholds[-1] if process.steps > 1 else 0.5  # C / 2, in units of C
    gaussian = []
    for pair, threshold in zip(pairs, [*thresholds, last_threshold], strict=True):
        mu = float(densities.mu_at(pair, threshold))
        # The canary only raises theta, so that mu is at least 0. Quadrature may give slightly less.
        gaussian.append(conversions.epsilon_from_mu(max(mu, 0.0), delta))
    return Exact([float(threshold) for threshold in thresholds], exact, gaussian, upper)


def simulate(
    requests: Sequence[SimulatedAudit],
) -> Iterator[tuple[SimulatedAudit, Scores, Simulated]]:
    """Simulates audits of cells with the same number of steps, as many in a compiled call as memory allows.

    Args:
      requests: Audits that have the same number of steps T, and the same runs, seed and confidence.

    Yields:
      Each request; its scores at step T, which are theta_T itself; and its findings: the in-sample estimate
        at every step, and all bounds at steps 1 and T.
    """
    for batch in _split_into_batches(requests):
        present = _compute_presence(batch[0].simulation)
        for request, scores_by_step in zip(batch, _simulate_thetas(batch), strict=True):
            delta = request.cell.delta
            confidence = request.simulation.confidence
            in_sample = []
            for scores in scores_by_step:
                in_sample.append(_in_sample_epsilon(scores, present, delta, confidence))
            bounds = []
            for scores in scores_by_step[[0, -1]]:  # steps 1 and T
                findings = estimate.findings(scores[present], scores[~present], delta, confidence)
                bounds.append([finding_fields(finding) for finding in findings])
            first, last = bounds
            # From run 0 on, with a single canary a run.
            final_scores = Scores(0, scores_by_step[-1][:, None], present[:, None])
            yield request, final_scores, Simulated(in_sample, first, last)


def search(request: landscape.ThresholdSearch) -> landscape.Search:
    """Runs the hidden-state paper's Algorithm 6, which looks for the threshold that leaks most.

    Simulates the cell at each of the request's constant thresholds, all from the same random draws.

    Returns:
      The in-sample epsilon at step T for each threshold.
    """
    cell = request.cell
    simulation = request.simulation
    present = _compute_presence(simulation)
    audits = [SimulatedAudit(cell, threshold, simulation) for threshold in request.thresholds()]
    claimed = []
    for batch in _split_into_batches(audits):
        for scores in _simulate_thetas(batch)[:, -1]:  # theta_T
            claimed.append(_in_sample_epsilon(scores, present, cell.delta, simulation.confidence))
    return landscape.Search(claimed)


def _open_store(held: Holdings, request: landscape.Request) -> Store:
    """Returns the store of a request's result: the existing one, or else a store in the folder CELLS."""
    store = held.open(request.setting())
    if store is None:
        return Store(held.root / landscape.CELLS, request.setting())
    return store


def _solve_all(requests: Sequence[ExactLaw]) -> Iterator[tuple[ExactLaw, Exact]]:
    """Solves exact laws in parallel processes; yields each request and its result as soon as it is solved."""
    return as_completed(solve, requests, min(cores(), len(requests)))


def _split_into_batches(
    requests: Sequence[SimulatedAudit],
) -> Iterator[Sequence[SimulatedAudit]]:
    """Yields the requests in batches that simulate at most _LARGEST_BATCH thetas.

    All requests have the same number of steps and of runs.
    """
    if not requests:
        return
    thetas_per_request = requests[0].cell.steps * requests[0].simulation.runs
    size = max(1, _LARGEST_BATCH // thetas_per_request)  # a larger request is a batch of its own
    for start in range(0, len(requests), size):
        yield requests[start : start + size]


def _compute_presence(simulation: Simulation) -> NDArray[np.bool_]:
    """Returns, for each run (runs,), whether it inserts the canary."""
    from audit.training import game

    return game.presence(np.arange(simulation.runs))[:, 0]


def _simulate_thetas(requests: Sequence[SimulatedAudit]) -> Array:
    """Returns the simulated iterates theta_1, ..., theta_T of audits, (requests, T, runs).

    The draws of a cell depend on the seed, sigma and B alone, so that all thresholds of a cell share them.

    Args:
      requests: Audits that have the same number of steps T, and the same runs, seed and confidence.
    """
    import jax.numpy as jnp

    from audit.training import game
    from experiments.hidden_state import landscape_simulate as simulate

    cells = [request.cell for request in requests]
    simulation = requests[0].simulation
    keys = []
    for cell in cells:
        name = f"landscape {cell.noise_multiplier} {cell.batch_size}"  # without the threshold
        # `root` itself takes a checksum of the text that it gets, so that the name would do. But the draws of
        # results that are stored already depend on this first checksum.
        keys.append(game.root(simulation.seed, f"{zlib.crc32(name.encode())}"))
    thresholds = jnp.array([request.threshold for request in requests], jnp.float32)
    # The same threshold for each of the steps 2 to T. Step 1 has none.
    at_every_step = jnp.tile(thresholds[:, None], (1, cells[0].steps - 1))
    sigmas = jnp.array([cell.noise_multiplier for cell in cells], jnp.float32)
    sizes = jnp.array([cell.batch_size for cell in cells], jnp.float32)
    runs = jnp.arange(simulation.runs, dtype=jnp.uint32)
    presence = jnp.asarray(_compute_presence(simulation))
    thetas = simulate.simulate_cells(jnp.stack(keys), runs, presence, sigmas, sizes, at_every_step)
    return np.asarray(thetas, np.float64)


def _in_sample_epsilon(
    scores: Array, present: NDArray[np.bool_], delta: float, confidence: float
) -> float:
    """Returns the paper's in-sample estimate of epsilon, which is not a lower bound.

    Its threshold is chosen on the same scores that it then counts.

    Args:
      scores: (runs,) the scores of all runs.
      present: (runs,) whether each run inserts the canary.
      delta: The delta at which epsilon is estimated.
      confidence: The confidence of the intervals of both error rates.
    """
    return estimate.in_sample(scores[present], scores[~present], delta, confidence).epsilon
