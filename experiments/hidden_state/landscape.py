"""The crafted landscape's study as data: its requests, and the results in the store.

Nothing here solves, simulates or draws. Importing this starts neither JAX nor SciPy nor matplotlib.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from audit.storage.index import Holdings
from experiments.cells.cell import Cell, read_answer

_NUM_SEARCHED = 49  # thresholds that Algorithm 6 tries


class Landscape(NamedTuple):
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
    """How a landscape is simulated.

    Attributes:
      runs: The number of runs, half of which insert the canary.
      seed: The seed of the noise.
      confidence: The confidence of the bounds from the runs' scores.
    """

    runs: int
    seed: int
    confidence: float


class LandscapeAudit(NamedTuple):
    """A request for `AuditResult`: exact laws of all adversaries, and a simulated audit.

    Attributes:
      landscape: The landscape.
      threshold: The constant threshold of the simulation, in units of C.
      simulation: How it is simulated.
    """

    landscape: Landscape
    threshold: float
    simulation: Simulation

    def setting(self) -> dict[str, Any]:
        """Returns the setting that names the result in the store."""
        values = {**self.simulation._asdict(), **self.landscape._asdict()}
        return {"kind": "landscape_audit", "threshold": self.threshold, **values}


class ThresholdSearch(NamedTuple):
    """A request for `SearchResult`: the paper's Algorithm 6, which seeks the threshold that leaks most."""

    landscape: Landscape
    simulation: Simulation

    def setting(self) -> dict[str, Any]:
        """Returns the setting that names the result in the store."""
        values = {**self.simulation._asdict(), **self.landscape._asdict()}
        return {"kind": "landscape_thresholds", **values}

    def thresholds(self) -> list[float]:
        """Returns the constant thresholds that Algorithm 6 tries (Errata H7), in units of C.

        They are symmetric about 1/2. The largest is 15% above the place where the likelihood ratio of theta_1
        is e^epsilon, for the accountant's epsilon: no threshold beyond leaks more. The log of the ratio is
        (theta - 1/2) / sigma^2, so that the place is 1/2 + sigma^2 epsilon.
        """
        from audit.laws import conversions  # loads SciPy

        sigma = self.landscape.noise_multiplier
        epsilon = conversions.epsilon_from_mu(1 / sigma, self.landscape.delta)
        top = 1.15 * (0.5 + sigma**2 * epsilon)
        return [float(threshold) for threshold in np.linspace(1 - top, top, _NUM_SEARCHED)]


@dataclasses.dataclass(frozen=True)
class Exact:
    """What an adversary leaks after each of T steps.

    Attributes:
      epsilon: (T,) the exact epsilon.
      claimed: (T,) the epsilon of the Gaussian conversion, from mu at a threshold.
    """

    epsilon: list[float]
    claimed: list[float]


@dataclasses.dataclass(frozen=True)
class AuditResult:
    """All results of a landscape.

    Attributes:
      upper: The accountant's epsilon.
      exact: What each adversary leaks, by its name.
      at_threshold: What the simulated threshold leaks.
      in_sample: (T,) the paper's estimate of epsilon from the simulated runs. It is no bound, as its
        threshold is chosen on the scores that it counts.
      first: Every bound from the simulated runs at step 1, each as its fields by name.
      last: Every bound at step T, likewise.
    """

    upper: float
    exact: dict[str, Exact]
    at_threshold: Exact
    in_sample: list[float]
    first: list[dict[str, Any]]
    last: list[dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class SearchResult:
    """Algorithm 6 on a landscape.

    Attributes:
      upper: The accountant's epsilon.
      thresholds: The thresholds in units of C.
      epsilon: The exact epsilon at step T of each threshold.
      claimed: The in-sample estimate of each threshold.
    """

    upper: float
    thresholds: list[float]
    epsilon: list[float]
    claimed: list[float]


Audited = tuple[LandscapeAudit, AuditResult]
Searched = tuple[ThresholdSearch, SearchResult]


class Grid(NamedTuple):
    """The landscapes of a study (Section 6), each noise multiplier with each batch size.

    Attributes:
      noise_multipliers: The noise multipliers sigma.
      batch_sizes: The batch sizes B.
      steps: The number of steps T.
    """

    noise_multipliers: Sequence[float]
    batch_sizes: Sequence[int]
    steps: int


def read_audits(held: Holdings, cells: Sequence[Cell]) -> list[Audited]:
    """Returns the audits of cells whose results are stored."""
    audits = []
    for cell in cells:
        if isinstance(cell.request, LandscapeAudit):
            values = read(held, cell.request)
            if values is not None:
                exact = {name: Exact(**fields) for name, fields in values.pop("exact").items()}
                at_threshold = Exact(**values.pop("at_threshold"))
                result = AuditResult(exact=exact, at_threshold=at_threshold, **values)
                audits.append((cell.request, result))
    return audits


def read_searches(held: Holdings, cells: Sequence[Cell]) -> list[Searched]:
    """Returns the threshold searches of cells whose results are stored."""
    searches = []
    for cell in cells:
        if isinstance(cell.request, ThresholdSearch):
            values = read(held, cell.request)
            if values is not None:
                searches.append((cell.request, SearchResult(**values)))
    return searches


def read(held: Holdings, request: LandscapeAudit | ThresholdSearch) -> dict[str, Any] | None:
    """Returns a request's stored answer; None where it is missing or damaged."""
    store = held.open(request.setting())
    return None if store is None else read_answer(store)
