"""The crafted landscape's study as data: its requests, the store's name for each, and the results.

Nothing here solves, simulates or draws. It imports neither JAX nor SciPy nor matplotlib, so that a command
can look up its study before it needs them.
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

# Names of functions of experiments.hidden_state.landscape_optimal.
ADVERSARIES = ("half", "best_constant", "optimal")
SEED = 0  # of the sweep's simulations
CLIPPING_NORM = 1.0  # of the sweep
THRESHOLD = 0.5  # at which the sweep's simulated audits split, in units of C: the paper's C / 2
CELLS = Path("landscape", "cells")  # in a store's root
RESULT = "result.json"  # in a result's folder
_DAMAGES = (ValueError, TypeError, RecursionError)  # what reading a damaged result raises
_SEARCH_THRESHOLDS = 49  # how many Algorithm 6 tries


@dataclasses.dataclass(frozen=True)
class Grid:
    """The crafted loss landscape's cells (Section 6), exact and simulated.

    Attributes:
      noise_multipliers: The noise multipliers sigma.
      batch_sizes: The batch sizes B; each goes with every noise multiplier.
      steps: The number of steps T.
      runs: Simulated runs for each cell.
    """

    noise_multipliers: tuple[float, ...]
    batch_sizes: tuple[int, ...]
    steps: int
    runs: int


class LandscapeCell(NamedTuple):
    """A crafted landscape's process, and the delta at which its epsilon is computed.

    Attributes:
      noise_multiplier: sigma.
      batch_size: B.
      steps: T.
      delta: The delta of every epsilon.
    """

    noise_multiplier: float
    batch_size: int
    steps: int
    delta: float


class Simulation(NamedTuple):
    """How a cell is simulated.

    Attributes:
      runs: The number of runs, half of which insert the canary.
      seed: The seed of the noise.
      confidence: The confidence of the bounds from the runs' scores.
    """

    runs: int
    seed: int
    confidence: float


class ExactLaw(NamedTuple):
    """A request for `Exact`: a cell under an adversary, or under a constant threshold in units of C.

    Attributes:
      cell: The cell.
      thresholds: A name in ADVERSARIES, or the constant threshold.
    """

    cell: LandscapeCell
    thresholds: str | float

    def setting(self) -> dict[str, Any]:
        """Returns the setting that names the result in the store."""
        key = "adversary" if isinstance(self.thresholds, str) else "threshold"
        return {"kind": "landscape_exact", key: self.thresholds, **self.cell._asdict()}


class SimulatedAudit(NamedTuple):
    """A request for `Simulated`: a cell under a constant threshold in units of C."""

    cell: LandscapeCell
    threshold: float
    simulation: Simulation

    def setting(self) -> dict[str, Any]:
        """Returns the setting that names the result in the store."""
        return {
            "kind": "landscape_simulated",
            "threshold": self.threshold,
            **self.simulation._asdict(),
            **self.cell._asdict(),
        }


class ThresholdSearch(NamedTuple):
    """A request for `Search`: the hidden-state paper's Algorithm 6 on a cell.

    The algorithm simulates the cell at constant thresholds, and looks for the one that leaks most.
    """

    cell: LandscapeCell
    simulation: Simulation

    def setting(self) -> dict[str, Any]:
        """Returns the setting that names the result in the store."""
        return {
            "kind": "landscape_search",
            "thresholds": self.thresholds(),
            **self.simulation._asdict(),
            **self.cell._asdict(),
        }

    def thresholds(self) -> list[float]:
        """Returns the constant thresholds that Algorithm 6 tries (Errata H7), in units of C.

        They are symmetric about 1/2. The largest is 15% above the place where the likelihood ratio of theta_1
        is e^epsilon, for the accountant's epsilon: no threshold beyond leaks more. The ratio is that of
        N(1, sigma^2) over N(0, sigma^2). Its log is (theta - 1/2) / sigma^2, so that the place is
        1/2 + sigma^2 epsilon.
        """
        from audit.laws import conversions  # loads SciPy

        sigma = self.cell.noise_multiplier
        epsilon = conversions.epsilon_from_mu(1 / sigma, self.cell.delta)  # the accountant's
        top = 1.15 * (0.5 + sigma**2 * epsilon)
        return [float(threshold) for threshold in np.linspace(1 - top, top, _SEARCH_THRESHOLDS)]

    def laws(self) -> list[ExactLaw]:
        """Returns a request for the exact law of each threshold, to compare the search's claims with."""
        return [ExactLaw(self.cell, threshold) for threshold in self.thresholds()]


@dataclasses.dataclass(frozen=True)
class Exact:
    """An adversary's epsilon after each step, exact by quadrature and by the Gaussian conversion.

    Attributes:
      thresholds: The adversary's thresholds in units of C, one for each step after the first.
      epsilon_exact: (T,) the exact epsilon after each step.
      epsilon_gaussian: (T,) the epsilon to which mu at the threshold is converted after each step, as if the
        trade-off curve were Gaussian.
      epsilon_upper: The accountant's epsilon.
    """

    thresholds: list[float]
    epsilon_exact: list[float]
    epsilon_gaussian: list[float]
    epsilon_upper: float


@dataclasses.dataclass(frozen=True)
class Simulated:
    """The estimates and the bounds of a simulated audit.

    Attributes:
      in_sample: (T,) the paper's estimate of epsilon after each step. It is no bound, as its threshold is
        chosen on the scores that it counts.
      first: Every bound at step 1, each as its fields by name.
      last: Every bound at step T, each as its fields by name.
    """

    in_sample: list[float]
    first: list[dict[str, Any]]
    last: list[dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Search:
    """Algorithm 6 on one cell: the in-sample epsilon at T (see `Simulated`) of each constant threshold."""

    claimed: list[float]


Request = ExactLaw | SimulatedAudit | ThresholdSearch
Result = Exact | Simulated | Search
_Kind = TypeVar("_Kind", bound=Result)
_KINDS: dict[type, type[Result]] = {
    ExactLaw: Exact,
    SimulatedAudit: Simulated,
    ThresholdSearch: Search,
}


class Study(NamedTuple):
    """A study of the crafted landscape: cells under several adversaries, and Algorithm 6 on two more cells.

    Attributes:
      cells: The cells, all with the same number of steps and the same delta.
      threshold: The constant threshold of the simulated audits, in units of C.
      simulation: How cells are simulated.
    """

    cells: tuple[LandscapeCell, ...]
    threshold: float
    simulation: Simulation

    def laws(self, cell: LandscapeCell) -> list[ExactLaw]:
        """Returns the requests for a cell's exact laws: every adversary's, and that of the simulated audit.

        The audit's threshold may be that of an adversary, whose law is then requested only once.
        """
        laws = [ExactLaw(cell, adversary) for adversary in ADVERSARIES]
        simulated = ExactLaw(cell, self.simulated_thresholds())
        if simulated not in laws:
            laws.append(simulated)
        return laws

    def audit(self, cell: LandscapeCell) -> SimulatedAudit:
        """Returns the request for the simulation of a cell."""
        return SimulatedAudit(cell, self.threshold, self.simulation)

    def simulated_thresholds(self) -> str | float:
        """Returns the simulated threshold as `ExactLaw` names it; C / 2 is the adversary "half"."""
        return "half" if self.threshold == 0.5 else self.threshold

    def searches(self) -> list[ThresholdSearch]:
        """Returns the requests for Algorithm 6, on two cells of two steps (Errata H13)."""
        delta = self.cells[0].delta
        cells = (LandscapeCell(4.0, 4, 2, delta), LandscapeCell(1.0, 1, 2, delta))
        return [ThresholdSearch(cell, self.simulation) for cell in cells]

    def all_laws(self) -> list[ExactLaw]:
        """Returns the requests for all exact laws: of the cells, then of all thresholds of Algorithm 6."""
        laws = []
        for cell in self.cells:
            laws += self.laws(cell)
        for search in self.searches():
            laws += search.laws()
        return laws

    def simulations(self) -> list[SimulatedAudit | ThresholdSearch]:
        """Returns the requests for all simulations: the audits of the cells, then the threshold searches."""
        return [*(self.audit(cell) for cell in self.cells), *self.searches()]


class CellResults(NamedTuple):
    """All results of a single cell.

    Attributes:
      cell: The cell.
      exact: The exact laws by adversary.
      at_threshold: The exact law of the simulated threshold.
      simulated: The simulated audit.
    """

    cell: LandscapeCell
    exact: dict[str, Exact]
    at_threshold: Exact
    simulated: Simulated


class SearchResults(NamedTuple):
    """Algorithm 6 on a single cell.

    Attributes:
      cell: The cell.
      thresholds: The thresholds in units of C.
      exact: The exact law of each threshold.
      claimed: The in-sample epsilon of each threshold.
    """

    cell: LandscapeCell
    thresholds: list[float]
    exact: list[Exact]
    claimed: list[float]


class StudyResults(NamedTuple):
    """What is stored of a study.

    Attributes:
      cells: The results of those cells that are complete.
      searches: Algorithm 6's results; empty where any is missing.
      missing: How many cells are incomplete, and searches not shown.
    """

    cells: list[CellResults]
    searches: list[SearchResults]
    missing: int


def study(grid: Grid, delta: float, confidence: float) -> Study:
    """Returns the study of a grid: a cell for each noise multiplier and batch size.

    The simulated audits split at THRESHOLD, the hidden-state paper's C / 2. The study's requests also include
    the cells' exact laws and the paper's Algorithm 6 (see `Study`).

    Args:
      grid: The noise multipliers, batch sizes, number of steps and number of runs.
      delta: The delta of every epsilon.
      confidence: The confidence of the simulated audits' bounds.
    """
    cells = []
    for sigma, batch_size in itertools.product(grid.noise_multipliers, grid.batch_sizes):
        cells.append(LandscapeCell(sigma, batch_size, grid.steps, delta))
    return Study(tuple(cells), THRESHOLD, Simulation(grid.runs, SEED, confidence))


def holdings(out: Path) -> Holdings:
    """Lists the settings that a store's folder holds, with those of the landscape in its subfolder CELLS."""
    return with_cells(index.holdings(out))


def with_cells(held: Holdings) -> Holdings:
    """Returns holdings with the settings in the subfolder CELLS added to those in the root.

    A root's holdings leave out subfolders of subfolders, and the landscape's results are stored in CELLS.
    Where a setting is in both, the folder under CELLS comes first: `Holdings.open` takes the folder with the
    most runs, and the first of folders with equally many.

    Args:
      held: What the root holds.
    """
    in_cells = index.holdings(held.root / CELLS).folders
    folders = {}
    for name in {**held.folders, **in_cells}:
        folders[name] = [*in_cells.get(name, []), *held.folders.get(name, [])]
    return Holdings(held.root, folders)


def results(held: Holdings, study: Study) -> StudyResults:
    """Reads the stored results of a study.

    A cell is returned if all of its results are stored. The searches of Algorithm 6 are shown side by side in
    a single figure, so that they are returned only if all of them are complete. What is not returned counts
    as missing.

    Args:
      held: The folders under the store's root.
      study: The study.

    Raises:
      InputError: A result can't be read now.
    """
    cell_results = [_read_cell(held, study, cell) for cell in study.cells]
    complete_cells = [result for result in cell_results if result is not None]
    missing = len(cell_results) - len(complete_cells)

    search_results = [_read_search(held, search) for search in study.searches()]
    complete_searches = [result for result in search_results if result is not None]
    if len(complete_searches) < len(search_results):
        complete_searches = []
    missing += len(search_results) - len(complete_searches)
    return StudyResults(complete_cells, complete_searches, missing)


def read(held: Holdings, request: Request, kind: type[_Kind]) -> _Kind | None:
    """Returns the stored result of a request; None if nothing is stored, or what is stored is damaged.

    A damaged result is reported on stderr, by `Store.distrust`.

    Args:
      held: The folders under the store's root.
      request: The request whose result is read.
      kind: The type of the request's result: `Exact` for `ExactLaw`, `Simulated` for `SimulatedAudit`,
        `Search` for `ThresholdSearch`.

    Raises:
      InputError: The result can't be read.
    """
    store = held.open(request.setting())
    if store is None:
        return None
    return _read(store, kind)


def is_stored(held: Holdings, request: Request) -> bool:
    """Returns whether a request's result is stored and undamaged; reports a damaged result as `read` does."""
    return read(held, request, _KINDS[type(request)]) is not None


def must_compute(held: Holdings, request: Request) -> bool:
    """Returns whether a request's result has to be computed: it is not stored, or damaged.

    A damaged result is reported on stderr. It is also set aside, unless another process has claimed the
    store.

    Args:
      held: The folders under the store's root.
      request: The request whose result may have to be computed.
    """
    store = held.open(request.setting())
    if store is None:
        return True
    kind = _KINDS[type(request)]
    content = files.read(store.path / RESULT)
    if content is None:
        return True
    try:
        _parse(content, kind)
    except _DAMAGES:
        with store.claim():
            # Reads it again, since another process may have replaced it meanwhile. Where it is still
            # damaged, `_read` reports it and, with the claim, sets it aside.
            return _read(store, kind) is None
    return False


def text(result: Result) -> str:
    """Returns a result as it is written: its values, and their SHA-256 beside them."""
    return answer_text(dataclasses.asdict(result))


def _read_cell(held: Holdings, study: Study, cell: LandscapeCell) -> CellResults | None:
    """Reads the results of a single cell; returns None unless all of them are stored.

    Args:
      held: The folders under the store's root.
      study: The study, which decides the simulated audit's threshold.
      cell: The cell.
    """
    requests = study.laws(cell)
    # By thresholds: an adversary's name, or the number at which the simulated audit splits if no adversary
    # has it.
    stored: dict[str | float, Exact] = {}
    for request in requests:
        exact = read(held, request, Exact)
        if exact is not None:
            stored[request.thresholds] = exact
    simulated = read(held, study.audit(cell), Simulated)
    if simulated is None or len(stored) < len(requests):
        return None
    by_adversary = {adversary: stored[adversary] for adversary in ADVERSARIES}
    return CellResults(cell, by_adversary, stored[study.simulated_thresholds()], simulated)


def _read_search(held: Holdings, request: ThresholdSearch) -> SearchResults | None:
    """Reads the results of Algorithm 6 on a single cell; returns None unless all of them are stored."""
    result = read(held, request, Search)
    laws = [read(held, law, Exact) for law in request.laws()]
    stored = [law for law in laws if law is not None]
    if result is None or len(stored) < len(laws):
        return None
    return SearchResults(request.cell, request.thresholds(), stored, result.claimed)


def _read(store: Store, kind: type[_Kind]) -> _Kind | None:
    """Returns a store's result; None if it is missing or damaged.

    Reports a damaged result on stderr, and sets it aside if the caller has claimed the store.

    Args:
      store: The store.
      kind: The type of the result.
    """
    content = files.read(store.path / RESULT)
    if content is None:
        return None
    try:
        return _parse(content, kind)
    except _DAMAGES:
        store.distrust(store.path / RESULT, "it is computed again")
        return None


def _parse(content: bytes, kind: type[_Kind]) -> _Kind:
    """Returns the result in a file's bytes; a result without a checksum is taken as it is.

    Args:
      content: The bytes of the file.
      kind: The type of the result.

    Raises:
      ValueError, TypeError, RecursionError: The result is damaged, or a field has another type.
    """
    result = kind(**parsed_answer(content, unsigned=True))  # keys are the type's fields
    for field in dataclasses.fields(kind):
        # Of a type such as list[float] only `list` is checked.
        expected = get_origin(field.type) or field.type
        assert isinstance(expected, type)
        # `require` raises InputError, which is a ValueError.
        require(isinstance(getattr(result, field.name), expected), field.name)
    return result
