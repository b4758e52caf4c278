"""The crafted landscape's study as data: audits of landscapes, searches of thresholds, stored results.

Nothing here solves, simulates or draws. Importing this starts neither JAX nor SciPy nor matplotlib.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from audit.storage.index import Holdings
from experiments.cells.cell import Cell, read_answer

AUDIT = "landscape_audit"
SEARCH = "landscape_thresholds"
HALF = 0.5  # the paper's threshold, in units of C


class Process(NamedTuple):
    """The process of a crafted landscape; lengths are in units of C.

    Attributes:
      noise_multiplier: sigma > 0.
      batch_size: B >= 1.
      steps: T >= 1.
    """

    noise_multiplier: float
    batch_size: int
    steps: int

    @property
    def step_deviation(self) -> float:
        """Standard deviation of a later step's noise, sigma / B."""
        return self.noise_multiplier / self.batch_size


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


class Study(NamedTuple):
    """A study of a landscape, which names its result in the store.

    Attributes:
      kind: AUDIT for exact laws of all adversaries and a simulated audit, SEARCH for the paper's Algorithm 6.
      process: The landscape.
      delta: The delta of every epsilon.
      simulation: How it is simulated.
    """

    kind: str
    process: Process
    delta: float
    simulation: Simulation

    def setting(self) -> dict[str, Any]:
        """Returns the setting that names the result in the store."""
        values = {**self.simulation._asdict(), **self.process._asdict()}
        if self.kind == AUDIT:
            values["threshold"] = HALF
        return {"kind": self.kind, "delta": self.delta, **values}


class Grid(NamedTuple):
    """The landscapes of a study (Section 6): each noise multiplier with each batch size, and T steps."""

    noise_multipliers: Sequence[float]
    batch_sizes: Sequence[int]
    steps: int


Result = tuple[Study, dict[str, Any]]  # with the answer that `landscape_solve` computes


def read(held: Holdings, cells: Sequence[Cell], kind: str) -> list[Result]:
    """Returns the stored results of the cells of a kind."""
    studies = [cell.request for cell in cells if isinstance(cell.request, Study)]
    answers = [(study, read_answer_of(held, study)) for study in studies if study.kind == kind]
    return [(study, answer) for study, answer in answers if answer is not None]


def read_answer_of(held: Holdings, study: Study) -> dict[str, Any] | None:
    """Returns a study's stored answer; None where it is missing or damaged."""
    store = held.open(study.setting())
    return None if store is None else read_answer(store)
