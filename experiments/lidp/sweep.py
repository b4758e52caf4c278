"""The LiDP paper's experiments as data, at three scales: the Gaussian mechanism (Section 4, Appendix E) and
trained models (Section 6, Appendix F).

    smoke    seconds: a few runs of a few steps, to see that all is in its place
    laptop   the mechanism: the paper's seeds, its sizes as far as they take seconds, up to 4,096 runs of 64
             canaries. Models: the linear one alone. Canaries join a step with probability 1/60 in 600 steps,
             as in ten epochs of a tenth of the data; each step's genuine examples are others, as in one epoch
             of all
    paper    the mechanism: Appendix E's grid, as far as its rule goes: n K at most 1e8, K d at most 1e9.
             Models: all of the paper's table, 30 or 100 epochs, 1,000 runs a cell, 1 to 512 canaries

Trained models' runs toss a coin for each canary, instead of the paper's two sets of runs; canaries join steps
by Poisson sampling and are added to the mini-batch, so that the worlds are those of the accountant.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from audit.settings.adversaries import ClipBkd, CotS, Poisoned
from audit.settings.make import setting_of
from audit.settings.setting import AdversaryFields
from experiments.cells.audits import audit_cell
from experiments.cells.cell import Audited, Levels
from experiments.lidp.cells import MechanismAudit, PlacedAudit, mechanism_cell
from experiments.sweeps.sweep import Axis, Claim, PaperClaims, Sweep
from models.catalogue import task

DIMENSIONS, _DIMENSION = (100, 1000, 10_000, 100_000, 1_000_000), 10_000  # over d; of the other panels
_FEW, _MANY = 1.0, 4.0  # the paper's epsilons of the panel over n and of the others


class MechanismGrid(NamedTuple):
    """How much is audited: runs with sqrt(n) canaries and with one; canaries and dimensions, at `runs`."""

    lifted_runs: tuple[int, ...]
    single_runs: tuple[int, ...]
    canaries: tuple[int, ...]
    dimensions: tuple[int, ...]
    runs: int
    seeds: int


class Training(NamedTuple):
    """How a model is trained: the clipping norm by epsilon (paper's table), sampling as in `NOISE`."""

    model: str
    steps: int
    sampling_rate: float
    batch_size: int
    learning_rate: float
    clipping_norms: Mapping[float, float]


class Workload(NamedTuple):
    """How much is trained: models at some epsilons, runs a cell, canaries in the table, the numbers of
    canaries in the figure and the epsilon there."""

    trainings: tuple[Training, ...]
    epsilons: tuple[float, ...]
    runs: int
    canaries: int
    series: tuple[int, ...]
    epsilon: float


_RUNS = (256, 1024, 4096, 16384, 65536)
GRIDS = {
    "smoke": MechanismGrid((64, 256), (64, 256), (1, 4, 16), DIMENSIONS[:2], 256, 2),
    "laptop": MechanismGrid(_RUNS[:3], _RUNS, tuple(2**i for i in range(9)), DIMENSIONS, 1024, 25),
    "paper": MechanismGrid(_RUNS, _RUNS, tuple(2**i for i in range(11)), DIMENSIONS, 1024, 25),
}
NOISE: dict[tuple[float, int], dict[float, float]] = {  # by Renyi DP at delta = 1e-5, by RDP
    (1 / 600, 18000): {1: 1.14911, 2: 0.830892, 4: 0.656085, 8: 0.543645, 16: 0.457639, 32: 0.391546},
    (1 / 200, 20000): {1: 2.95908, 2: 1.68134, 4: 1.06176, 8: 0.768472, 16: 0.612068, 32: 0.508690},
    (1 / 60, 600): {1: 1.86921, 2: 1.18583, 4: 0.865884, 8: 0.668095, 16: 0.527418, 32: 0.425276},
}
_LINEAR = {1.0: 4.0, 2.0: 4.0, 4.0: 4.0, 8.0: 8.0, 16.0: 8.0, 32.0: 8.0}
_MLP = {1.0: 2.0, 2.0: 4.0, 4.0: 4.0, 8.0: 8.0, 16.0: 8.0, 32.0: 8.0}
_PURCHASE = {1.0: 0.25, 2.0: 0.5, 4.0: 1.0, 8.0: 1.0, 16.0: 1.0, 32.0: 2.0}
_POISONED = Poisoned(poison_mean=False, poison_scale=10.0, loss_score="excess")  # Errata L10
_TAILS = {  # where a model's data have another number of directions
    "purchase_mlp": dataclasses.replace(_POISONED, first_direction=400, end_direction=600)
}
_SHORT = Training("linear", 600, 1 / 60, 100, 0.02, _LINEAR)
_WHOLE = (
    Training("linear", 18000, 1 / 600, 100, 0.02, _LINEAR),
    Training("mlp", 18000, 1 / 600, 100, 0.01, _MLP),
    Training("purchase_mlp", 20000, 1 / 200, 100, 0.05, _PURCHASE),
)
SIZES = {
    "smoke": Workload((_SHORT,), (8,), 40, 4, (1, 2, 4), 8),
    "laptop": Workload((_SHORT,), (4, 8, 16, 32), 1000, 32, (1, 2, 8, 32, 128), 16),
    "paper": Workload(_WHOLE, (1, 2, 4, 8, 16, 32), 1000, 32, tuple(2**i for i in range(10)), 4),
}
ATTACKS: dict[str, tuple[AdversaryFields, AdversaryFields]] = {  # with one canary a run, and with several
    "poisoned data": (ClipBkd(), _POISONED),
    "random gradients": (CotS(), CotS()),
    "final weights": (CotS("weights"), CotS("weights")),
}

CLAIMS: PaperClaims = {  # the paper's words for its figures' panels
    ("lidp_figure_3", "over n", None): Claim("orders 2 and 4 need 4 to 16 times fewer runs than K = 1", "4"),
    ("lidp_figure_3", "over K", None): Claim("rises up to a point, then falls; 32 to 256 are good", "4"),
    ("lidp_figure_3", "over d", None): Claim("tighter monotonically as d grows", "4"),
    ("lidp_figure_4", "gains", None): Claim("bias falls with K; variance gain rises, then saturates", "4"),
    ("lidp_figure_4", "over K", None): Claim("both decay roughly as 1/K", "4"),
    ("lidp_figure_4", "over d", None): Claim("both decay roughly as 1/d", "4"),
}


def sweeps(scale: str) -> dict[str, Sweep]:
    """Every sweep of a scale, by name."""
    places, size = mechanism_places(GRIDS[scale]), SIZES[scale]
    over_k_and_d = [place for place in places if place.panel != "over n"]
    table = itertools.product(size.trainings, ATTACKS, size.epsilons, (1, size.canaries))  # K alternates
    figure = itertools.product(size.trainings[:1], ATTACKS, [size.epsilon], size.series)
    found = [
        _of_mechanism("lidp_figure_3", "epsilon over runs, canaries and dimension", places),
        _of_mechanism("lidp_figure_4", "bias, variance and correlation", over_k_and_d),
        _of_models("lidp_table_1", "How many times fewer runs", table, size.runs),
        _of_models("lidp_figure_5", "Trained models: epsilon over n and K", figure, size.runs),
    ]
    return {sweep.name: sweep for sweep in found}


def mechanism_places(grid: MechanismGrid) -> list[PlacedAudit]:
    """A grid's audits: over n with one canary and with sqrt(n), over K, over d."""

    def place(panel: str, runs: int, canaries: int, dimension: int, epsilon: float) -> PlacedAudit:
        return PlacedAudit(panel, MechanismAudit(runs, canaries, dimension, epsilon, grid.seeds, *Levels()))

    return [
        *(place("over n", n, 1, _DIMENSION, _FEW) for n in grid.single_runs),
        *(place("over n", n, math.isqrt(n), _DIMENSION, _FEW) for n in grid.lifted_runs),
        *(place("over K", grid.runs, k, _DIMENSION, _MANY) for k in grid.canaries),
        *(place("over d", grid.runs, math.isqrt(grid.runs), d, _MANY) for d in grid.dimensions),
    ]


def _of_mechanism(name: str, title: str, places: Iterable[PlacedAudit]) -> Sweep:
    return Sweep(name, f"Gaussian mechanism: {title}", tuple(map(mechanism_cell, places)))


def _of_models(name: str, title: str, places: Iterable[tuple[Training, str, float, int]], runs: int) -> Sweep:
    cells = tuple(audit_cell(_audited(*place, runs)) for place in places)
    return Sweep(name, title, cells, axis=Axis("canaries K", "K"))


def _audited(training: Training, attack: str, epsilon: float, canaries: int, runs: int) -> Audited:
    fields = ATTACKS[attack][canaries > 1]
    if fields == _POISONED:
        fields = _TAILS.get(training.model, fields)
    setting = setting_of(
        training.model,
        adversary=fields.name,
        **fields.deciding(),
        canaries=canaries,
        steps=training.steps,
        sampling_rate=training.sampling_rate,
        batch_size=training.batch_size,
        learning_rate=training.learning_rate,
        clipping_norm=training.clipping_norms[epsilon],
        noise_multiplier=NOISE[training.sampling_rate, training.steps][epsilon],
    )
    panel = f"{task(training.model).label}, epsilon {epsilon:g}"
    return Audited(panel, attack, canaries, setting, runs)
