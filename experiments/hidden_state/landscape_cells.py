"""The crafted landscape's cells: exact laws and simulated audits, kept in the store."""

import concurrent.futures
import dataclasses
import json
import multiprocessing
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.errors import InputError, require
from audit.landscape import law
from audit.statistics import conversions, densities, estimate
from audit.storage.results import finding_fields
from audit.storage.scores import Scores
from audit.storage.store import Store
from experiments import cli

Array = NDArray[np.float64]
ADVERSARIES = {
    "half": law.half,
    "best_constant": law.best_constant,
    "optimal": law.optimal,
}
RESULT = "result.json"
_SEARCH = 49  # thresholds of Algorithm 6
_CHUNK_NUMBERS = 40_000_000  # thetas that a compiled call returns at most


class Cell(NamedTuple):
    """One process and the delta at which it is bounded."""

    noise_multiplier: float
    batch_size: int
    steps: int
    delta: float


@dataclasses.dataclass(frozen=True)
class Exact:
    """What the quadrature says of an adversary, by step (T,) where it is a list."""

    thresholds: list[float]
    epsilon_exact: list[float]
    epsilon_gaussian: list[float]
    epsilon_upper: float


@dataclasses.dataclass(frozen=True)
class Simulated:
    """What a simulated audit claims: in-sample epsilon by step, and every bound at steps 1 and T."""

    in_sample: list[float]
    first: list[dict[str, Any]]
    last: list[dict[str, Any]]


def exact_setting(cell: Cell, adversary: str) -> dict[str, Any]:
    """What the store knows `exact` by."""
    return {"kind": "landscape_exact", "adversary": adversary, **cell._asdict()}


def exact_at_setting(cell: Cell, threshold: float) -> dict[str, Any]:
    """What the store knows `exact_at` by."""
    return {"kind": "landscape_exact", "threshold": threshold, **cell._asdict()}


def simulated_setting(
    cell: Cell, threshold: float, runs: int, seed: int, confidence: float
) -> dict[str, Any]:
    """What the store knows `simulated` by, a cell."""
    values = {"threshold": threshold, "runs": runs, "seed": seed, "confidence": confidence}
    return {"kind": "landscape_simulated", **values, **cell._asdict()}


def search_setting(cell: Cell, runs: int, seed: int, confidence: float) -> dict[str, Any]:
    """What the store knows `searched` by."""
    values = {"thresholds": thresholds(cell), "runs": runs, "seed": seed, "confidence": confidence}
    return {"kind": "landscape_search", **values, **cell._asdict()}


def exact(out: Path, cell: Cell, adversary: str) -> Exact:
    """The exact result of an adversary of ADVERSARIES, from the store if it is there."""
    choose = ADVERSARIES[adversary]
    setting = exact_setting(cell, adversary)
    return _kept(out, setting, Exact, lambda: _solve(cell, choose(_process(cell), cell.delta)))


def exact_everywhere(
    out: Path, cells: list[Cell], done: Callable[[], object]
) -> dict[tuple[Cell, str], Exact]:
    """Every adversary's exact result on every cell, a process a core; `done` hears of each."""
    tasks = [(cell, name) for cell in cells for name in ADVERSARIES]
    spawn = multiprocessing.get_context("spawn")
    found = {}
    with concurrent.futures.ProcessPoolExecutor(min(os.cpu_count() or 1, len(tasks)), spawn) as pool:
        waiting = {pool.submit(exact, out, *task): task for task in tasks}
        for future in concurrent.futures.as_completed(waiting):
            found[waiting[future]] = future.result()
            done()
    return found


def exact_at(out: Path, cell: Cell, threshold: float) -> Exact:
    """The same for a constant threshold, in units of C."""
    setting = exact_at_setting(cell, threshold)
    constant = law.constant(_process(cell), threshold)
    return _kept(out, setting, Exact, lambda: _solve(cell, law.Adversary(constant, np.nan)))


def _process(cell: Cell) -> law.Process:
    """The cell's process."""
    return law.Process(cell.noise_multiplier, cell.batch_size, cell.steps)


def _solve(cell: Cell, adversary: law.Adversary) -> Exact:
    """Exact epsilon and the Gaussian conversion's claim, step by step.

    The claim takes the mu of the threshold that the landscape itself splits at, the last one at T.
    """
    process = _process(cell)
    upper = law.upper_bound(process, cell.delta)
    pairs = law.laws(process, adversary.thresholds)
    tests = [*adversary.thresholds, adversary.thresholds[-1] if process.steps > 1 else 0.5]
    mus = [float(densities.mu_at(pair, test)) for pair, test in zip(pairs, tests, strict=True)]
    return Exact(
        [float(h) for h in adversary.thresholds],
        [upper] + [densities.epsilon_at(pair, cell.delta) for pair in pairs[1:]],
        [conversions.epsilon_from_mu(max(mu, 0.0), cell.delta) for mu in mus],
        upper,
    )


def simulated(
    out: Path, cells: list[Cell], threshold: float, runs: int, seed: int, confidence: float
) -> list[Simulated]:
    """The simulated audits of cells of one length under a constant threshold; those that the store
    lacks are simulated together, in one compiled call where memory allows."""
    stores = [Store(out, simulated_setting(cell, threshold, runs, seed, confidence)) for cell in cells]
    results = [_read(store, Simulated) for store in stores]
    lacking = [i for i, result in enumerate(results) if result is None]
    for batch in _batches(lacking, cells[0].steps * runs):
        thetas = _simulate([cells[i] for i in batch], [threshold] * len(batch), runs, seed)
        for i, scores in zip(batch, thetas, strict=True):
            present = np.arange(runs) % 2 == 1
            stores[i].save(Scores(0, scores[-1], present))
            results[i] = _audit(scores, present, cells[i].delta, confidence)
            _write(stores[i], results[i])
    return results


@dataclasses.dataclass(frozen=True)
class Search:
    """Algorithm 6 on one cell: the in-sample epsilon at T of each constant threshold."""

    claimed: list[float]


def search_cells(delta: float) -> tuple[Cell, Cell]:
    """The cells of two steps on which Algorithm 6 is run."""
    return Cell(4.0, 4, 2, delta), Cell(1.0, 1, 2, delta)


def thresholds(cell: Cell) -> list[float]:
    """Those that Algorithm 6 tries, in units of C: symmetric about C / 2, past any that helps."""
    sigma = cell.noise_multiplier
    top = 1.15 * (0.5 + sigma**2 * conversions.epsilon_from_mu(1 / sigma, cell.delta))
    return [float(h) for h in np.linspace(1 - top, top, _SEARCH)]


def searched(out: Path, cell: Cell, runs: int, seed: int, confidence: float) -> Search:
    """The simulated claims of Algorithm 6's thresholds, from the same random draws."""
    tried = thresholds(cell)

    def compute() -> Search:
        present = np.arange(runs) % 2 == 1
        claimed = []
        for batch in _batches(list(range(len(tried))), cell.steps * runs):
            thetas = _simulate([cell] * len(batch), [tried[i] for i in batch], runs, seed)
            last = thetas[:, -1]
            bounds = [estimate.in_sample(s[present], s[~present], cell.delta, confidence) for s in last]
            claimed += [bound.epsilon for bound in bounds]
        return Search(claimed)

    return _kept(out, search_setting(cell, runs, seed, confidence), Search, compute)


def _batches(indices: list[int], numbers: int) -> list[list[int]]:
    """Indices in batches whose results fit."""
    size = max(1, _CHUNK_NUMBERS // numbers)
    return [indices[i : i + size] for i in range(0, len(indices), size)]


def _simulate(cells: list[Cell], thresholds: list[float], runs: int, seed: int) -> NDArray[np.float64]:
    """theta (cells, T, runs) of cells of one length, a constant threshold each."""
    cli.prepare_jax()
    import jax.numpy as jnp

    from audit import game
    from audit.landscape import simulate

    names = [f"landscape {cell.noise_multiplier} {cell.batch_size}" for cell in cells]
    keys = jnp.stack([game.root(seed, f"{zlib.crc32(name.encode())}") for name in names])
    constant = jnp.tile(jnp.array(thresholds, jnp.float32)[:, None], (1, cells[0].steps - 1))
    sigmas = jnp.array([cell.noise_multiplier for cell in cells], jnp.float32)
    sizes = jnp.array([cell.batch_size for cell in cells], jnp.float32)
    run = simulate.compile_cells(runs)
    return np.asarray(run(keys, sigmas, sizes, constant), np.float64)


def _audit(scores: Array, present: NDArray[np.bool_], delta: float, confidence: float) -> Simulated:
    """Bounds on the scores (T, runs)."""

    def bounds(row: Array) -> list[dict[str, Any]]:
        found = estimate.findings(row[present], row[~present], delta, confidence)
        return [finding_fields(finding) for finding in found]

    in_sample = [estimate.in_sample(row[present], row[~present], delta, confidence).epsilon for row in scores]
    return Simulated(in_sample, bounds(scores[0]), bounds(scores[-1]))


def _kept(out: Path, setting: dict[str, Any], kind: type, compute: Any) -> Any:
    """The stored result of a setting, computed where it is missing."""
    store = Store(out, setting)
    result = _read(store, kind)
    if result is None:
        result = compute()
        _write(store, result)
    return result


def _write(store: Store, result: Any) -> None:
    """Keeps a result."""
    store.write_text(RESULT, json.dumps(dataclasses.asdict(result)) + "\n")


def _read(store: Store, kind: type) -> Any:
    """A kept result, None where there is none; raises InputError for one that can't be read."""
    path = store.path / RESULT
    if not path.exists():
        return None
    try:
        return kind(**json.loads(path.read_text()))
    except (ValueError, TypeError):
        raise InputError(f"{path} is damaged: remove it, it is computed again") from None


def validate(cell: Cell, runs: int) -> None:
    """Raises InputError for a cell out of range."""
    law.validate(_process(cell))
    conversions.require_delta(cell.delta)
    require(runs >= 4, f"--runs={runs}: give at least 4")
