"""The crafted landscape's results, computed: exact laws by quadrature, audits by simulation.

Nothing here reads or keeps anything. JAX is imported by what simulates, so that the processes that solve
laws do without it; the command prepares it beforehand.
"""

import dataclasses
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.landscape import law, optimal
from audit.landscape.optimal import Thresholds
from audit.landscape.process import Process, constant, upper_bound
from audit.statistics import conversions, densities, estimate
from audit.storage.scores import Scores
from experiments.hidden_state.landscape_cells import (
    Exact,
    ExactLaw,
    LandscapeCell,
    Search,
    Simulated,
    SimulatedAudit,
    Simulation,
    ThresholdSearch,
    search_thresholds,
)

Array = NDArray[np.float64]
ADVERSARIES: dict[str, Callable[[Process, float], Thresholds]] = {
    "half": optimal.half,
    "best_constant": optimal.best_constant,
    "optimal": optimal.optimal,
}
_LARGEST_BATCH = 40_000_000  # thetas that a compiled call returns at most


def process_of(cell: LandscapeCell) -> Process:
    """The cell's process."""
    return Process(cell.noise_multiplier, cell.batch_size, cell.steps)


def solve(asked: ExactLaw) -> Exact:
    """Exact epsilon and the Gaussian conversion's claim, step by step.

    The claim takes the mu of the threshold that the landscape itself splits at, the last one at T.
    Raises InputError for a cell out of range.
    """
    process, delta = process_of(asked.cell), asked.cell.delta
    thresholds = _thresholds(process, delta, asked.thresholds)
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


def simulate(asked: Sequence[SimulatedAudit]) -> Iterator[tuple[SimulatedAudit, Scores, Simulated]]:
    """The simulated audits of cells of one length and simulation, together in one compiled call where
    memory allows, each with the scores at T."""
    for batch in _batches(asked):
        first = batch[0].simulation
        cells, thresholds = [one.cell for one in batch], [one.threshold for one in batch]
        present = _presence(first)
        for one, thetas in zip(batch, _thetas(cells, thresholds, first), strict=True):
            found = _audit(thetas, present, one.cell.delta, first.confidence)
            yield one, Scores(0, thetas[-1][:, None], present[:, None]), found


def search(asked: ThresholdSearch) -> Search:
    """Algorithm 6: the claims of its thresholds, from the same random draws."""
    cell, simulation = asked
    present = _presence(simulation)
    claimed = []
    for batch in _batches([SimulatedAudit(cell, h, simulation) for h in search_thresholds(cell)]):
        last = _thetas([cell] * len(batch), [one.threshold for one in batch], simulation)[:, -1]
        claimed += [_in_sample(scores, present, cell.delta, simulation.confidence) for scores in last]
    return Search(claimed)


def _thresholds(process: Process, delta: float, chosen: str | float) -> Array:
    """An adversary's thresholds, or a constant one."""
    if isinstance(chosen, str):
        return ADVERSARIES[chosen](process, delta).values
    return constant(process, chosen)


def _batches(asked: Sequence[SimulatedAudit]) -> Iterator[Sequence[SimulatedAudit]]:
    """Audits in batches whose results fit."""
    if asked:
        size = max(1, _LARGEST_BATCH // (asked[0].cell.steps * asked[0].simulation.runs))
        yield from (asked[i : i + size] for i in range(0, len(asked), size))


def _presence(simulation: Simulation) -> NDArray[np.bool_]:
    """Which runs (runs,) are in, as the game has it of one canary."""
    from audit import game

    return game.presence(np.arange(simulation.runs))[:, 0]


def _thetas(cells: Sequence[LandscapeCell], thresholds: Sequence[float], simulation: Simulation) -> Array:
    """theta (cells, T, runs) of cells of one length, a constant threshold each."""
    import jax.numpy as jnp

    from audit import game
    from audit.landscape import simulate

    names = [f"landscape {cell.noise_multiplier} {cell.batch_size}" for cell in cells]
    keys = jnp.stack([game.root(simulation.seed, f"{zlib.crc32(name.encode())}") for name in names])
    every_step = jnp.tile(jnp.array(thresholds, jnp.float32)[:, None], (1, cells[0].steps - 1))
    sigmas = jnp.array([cell.noise_multiplier for cell in cells], jnp.float32)
    sizes = jnp.array([cell.batch_size for cell in cells], jnp.float32)
    runs, presence = jnp.arange(simulation.runs, dtype=jnp.uint32), jnp.asarray(_presence(simulation))
    thetas = simulate.simulate_cells(keys, runs, presence, sigmas, sizes, every_step)
    return np.asarray(thetas, np.float64)


def _audit(scores: Array, present: NDArray[np.bool_], delta: float, confidence: float) -> Simulated:
    """Bounds on the scores (T, runs)."""

    def bounds(row: Array) -> list[dict[str, Any]]:
        found = estimate.all_bounds(row[present], row[~present], delta, confidence)
        return [dataclasses.asdict(bound) for bound in found]

    in_sample = [_in_sample(row, present, delta, confidence) for row in scores]
    return Simulated(in_sample, bounds(scores[0]), bounds(scores[-1]))


def _in_sample(scores: Array, present: NDArray[np.bool_], delta: float, confidence: float) -> float:
    """The paper's epsilon of the scores (runs,)."""
    return estimate.in_sample(scores[present], scores[~present], delta, confidence).epsilon
