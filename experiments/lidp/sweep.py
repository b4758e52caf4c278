"""The LiDP paper's experiments as data, at three scales.

They audit the Gaussian mechanism (Section 4, Appendix E) and trained models (Section 6, Appendix F).

    smoke    seconds: a few runs of a few steps, to see that all is in its place
    laptop   the mechanism: the paper's seeds, its sizes as far as they take seconds, up to 4,096 runs of 64
             canaries. Models: only the linear model. Canaries join a step with probability 1/60 in 600 steps,
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

from audit.adversaries.base import AdversaryFields
from audit.adversaries.directions import CotS
from audit.adversaries.examples import ClipBkd, Poisoned
from audit.methods.level import Level
from audit.settings.make import setting_of
from experiments.cells.audits import audit_cell
from experiments.cells.cell import Audited
from experiments.lidp.cells import MechanismAudit, PlacedAudit, mechanism_cell
from experiments.sweeps.sweep import Axis, Sweep
from models.catalogue import task

DIMENSIONS = (100, 1000, 10_000, 100_000, 1_000_000)  # of the panel over d
_DIMENSION = 10_000  # of the other panels
_BATCH_SIZE = 100  # of trained models


class MechanismGrid(NamedTuple):
    """The audits of the Gaussian mechanism at a scale.

    Attributes:
      lifted_runs: The numbers of runs n in each world, in the panel over n, with sqrt(n) canaries.
      single_runs: The numbers of runs n in each world, in the panel over n, with a single canary.
      canaries: The numbers of canaries K in the panel over K.
      dimensions: The dimensions d in the panel over d.
      runs: The number of runs n in each world, in the panels over K and over d.
      seeds: The number of seeds of each audit.
    """

    lifted_runs: tuple[int, ...]
    single_runs: tuple[int, ...]
    canaries: tuple[int, ...]
    dimensions: tuple[int, ...]
    runs: int
    seeds: int


class Training(NamedTuple):
    """How a model is trained.

    Attributes:
      model: The model.
      steps: The number of steps.
      sampling_rate: The probability with which a canary joins a step; with `steps`, a key of `NOISE`.
      learning_rate: The learning rate.
      clipping_norms: The clipping norm by epsilon, as in the paper's table.
    """

    model: str
    steps: int
    sampling_rate: float
    learning_rate: float
    clipping_norms: Mapping[float, float]


class Workload(NamedTuple):
    """How many audits of trained models there are at a scale, in Table 1 and in Figure 5.

    Attributes:
      trainings: The models and how they are trained. The table has all, the figure the first.
      epsilons: The table's epsilons.
      runs: The number of runs of each audit.
      canaries: The number of canaries in each run, in the table's audits with several canaries.
      series: The figure's numbers of canaries in each run.
      epsilon: The figure's epsilon.
    """

    trainings: tuple[Training, ...]
    epsilons: tuple[float, ...]
    runs: int
    canaries: int
    series: tuple[int, ...]
    epsilon: float


_RUNS = (256, 1024, 4096, 16384, 65536)
GRIDS = {
    "smoke": MechanismGrid(
        lifted_runs=(64, 256),
        single_runs=(64, 256),
        canaries=(1, 4, 16),
        dimensions=DIMENSIONS[:2],
        runs=256,
        seeds=2,
    ),
    "laptop": MechanismGrid(
        lifted_runs=_RUNS[:3],
        single_runs=_RUNS,
        canaries=tuple(2**i for i in range(9)),
        dimensions=DIMENSIONS,
        runs=1024,
        seeds=25,
    ),
}
GRIDS["paper"] = GRIDS["laptop"]._replace(
    lifted_runs=_RUNS, canaries=tuple(2**i for i in range(11))
)
# Noise multipliers by sampling rate and steps, then by the epsilon of Renyi DP at delta = 1e-5.
NOISE: dict[tuple[float, int], dict[float, float]] = {
    (1 / 600, 18000): {
        1: 1.14911,
        2: 0.830892,
        4: 0.656085,
        8: 0.543645,
        16: 0.457639,
        32: 0.391546,
    },
    (1 / 200, 20000): {
        1: 2.95908,
        2: 1.68134,
        4: 1.06176,
        8: 0.768472,
        16: 0.612068,
        32: 0.508690,
    },
    (1 / 60, 600): {
        1: 1.86921,
        2: 1.18583,
        4: 0.865884,
        8: 0.668095,
        16: 0.527418,
        32: 0.425276,
    },
}
_LINEAR = {1.0: 4.0, 2.0: 4.0, 4.0: 4.0, 8.0: 8.0, 16.0: 8.0, 32.0: 8.0}
_MLP = {1.0: 2.0, 2.0: 4.0, 4.0: 4.0, 8.0: 8.0, 16.0: 8.0, 32.0: 8.0}
_PURCHASE = {1.0: 0.25, 2.0: 0.5, 4.0: 1.0, 8.0: 1.0, 16.0: 1.0, 32.0: 2.0}
_POISONED = Poisoned(poison_mean=False, poison_scale=10.0, loss_score="excess")  # Errata L10
# The poisoned canaries of models whose data have another number of principal directions.
_POISONED_OF_MODEL = {
    "purchase_mlp": dataclasses.replace(_POISONED, first_direction=400, end_direction=600)
}
_SHORT_TRAINING = Training(
    "linear",
    steps=600,
    sampling_rate=1 / 60,
    learning_rate=0.02,
    clipping_norms=_LINEAR,
)
_LINEAR_TRAINING = _SHORT_TRAINING._replace(steps=18000, sampling_rate=1 / 600)
_PAPERS_TRAININGS = (
    _LINEAR_TRAINING,
    _LINEAR_TRAINING._replace(model="mlp", learning_rate=0.01, clipping_norms=_MLP),
    Training(
        "purchase_mlp",
        steps=20000,
        sampling_rate=1 / 200,
        learning_rate=0.05,
        clipping_norms=_PURCHASE,
    ),
)
_LAPTOP = Workload(
    (_SHORT_TRAINING,),
    epsilons=(4, 8, 16, 32),
    runs=1000,
    canaries=32,
    series=(1, 2, 8, 32, 128),
    epsilon=16,
)
SIZES = {
    "smoke": _LAPTOP._replace(epsilons=(8,), runs=40, canaries=4, series=(1, 2, 4), epsilon=8),
    "laptop": _LAPTOP,
    "paper": _LAPTOP._replace(
        trainings=_PAPERS_TRAININGS,
        epsilons=(1, 2, 4, 8, 16, 32),
        series=tuple(2**i for i in range(10)),
        epsilon=4,
    ),
}
# The adversaries with a single canary in each run, and with several.
ATTACKS: dict[str, tuple[AdversaryFields, AdversaryFields]] = {
    "poisoned data": (ClipBkd(), _POISONED),
    "random gradients": (CotS(), CotS()),
    "final weights": (CotS("weights"), CotS("weights")),
}


def sweeps(scale: str) -> dict[str, Sweep]:
    """Returns the sweeps of the paper's Figures 3, 4 and 5 and Table 1 at a scale, by name."""
    size = SIZES[scale]
    places = mechanism_places(GRIDS[scale])
    not_over_runs = [place for place in places if place.panel != "over n"]
    # Each audit with a single canary comes before its counterpart with several: the table pairs neighbours.
    one_or_several = (1, size.canaries)
    in_table = itertools.product(size.trainings, ATTACKS, size.epsilons, one_or_several)
    # Figure 5 shows the first training only, at a single epsilon, over numbers of canaries.
    in_figure = itertools.product(size.trainings[:1], ATTACKS, [size.epsilon], size.series)
    all_sweeps = [
        Sweep(
            "lidp_figure_3",
            "Gaussian mechanism: epsilon over runs, canaries and dimension",
            tuple(map(mechanism_cell, places)),
        ),
        Sweep(
            "lidp_figure_4",
            "Gaussian mechanism: bias, variance and correlation",
            tuple(map(mechanism_cell, not_over_runs)),
        ),
        _make_models_sweep("lidp_table_1", "How many times fewer runs", in_table, size.runs),
        _make_models_sweep(
            "lidp_figure_5", "Trained models: epsilon over n and K", in_figure, size.runs
        ),
    ]
    return {sweep.name: sweep for sweep in all_sweeps}


def mechanism_places(grid: MechanismGrid) -> list[PlacedAudit]:
    """Returns a grid's audits, in three panels: over runs n, over canaries K, and over dimension d.

    The panel over n has audits with a single canary and with K = sqrt(n), rounded down, at the paper's
    epsilon 1. The other panels are at epsilon 4. In the panel over d, K is sqrt(n) too. The other panels are
    in 10,000 dimensions.
    """
    root = math.isqrt(grid.runs)
    points: list[tuple[str, int, int, int, float]] = [
        *(("over n", runs, 1, _DIMENSION, 1.0) for runs in grid.single_runs),
        *(("over n", runs, math.isqrt(runs), _DIMENSION, 1.0) for runs in grid.lifted_runs),
        *(("over K", grid.runs, canaries, _DIMENSION, 4.0) for canaries in grid.canaries),
        *(("over d", grid.runs, root, dimension, 4.0) for dimension in grid.dimensions),
    ]
    places = []
    for panel, runs, canaries, dimension, epsilon in points:
        audit = MechanismAudit(runs, canaries, dimension, epsilon, grid.seeds, *Level())
        places.append(PlacedAudit(panel, audit))
    return places


def _make_models_sweep(
    name: str, title: str, places: Iterable[tuple[Training, str, float, int]], runs: int
) -> Sweep:
    """Returns a sweep of audits of trained models.

    Args:
      name: The sweep's name.
      title: The sweep's title.
      places: The training, attack, epsilon and number of canaries of each audit.
      runs: The number of runs of each audit.
    """
    cells = []
    for training, attack, epsilon, canaries in places:
        cells.append(audit_cell(_make_audit(training, attack, epsilon, canaries, runs)))
    return Sweep(name, title, tuple(cells), axis=Axis("canaries K", "K"))


def _make_audit(
    training: Training, attack: str, epsilon: float, canaries: int, runs: int
) -> Audited:
    """Returns the audit of a trained model by an attack.

    Args:
      training: The model, and how it is trained.
      attack: One of ATTACKS.
      epsilon: One of the paper's epsilons, which decides the noise multiplier (by NOISE) and clipping norm.
      canaries: The number of canaries in each run.
      runs: The number of runs.
    """
    with_one_canary, with_several_canaries = ATTACKS[attack]
    adversary = with_several_canaries if canaries > 1 else with_one_canary
    if adversary == _POISONED:
        # Poisoned canaries lie along principal directions of the data, whose number depends on the data set.
        adversary = _POISONED_OF_MODEL.get(training.model, _POISONED)
    setting = setting_of(
        training.model,
        adversary=adversary.name,
        **adversary.deciding(),  # the adversary's own fields, without those at their defaults
        canaries=canaries,
        steps=training.steps,
        sampler=f"poisson:{training.sampling_rate!r}",
        batch_size=_BATCH_SIZE,
        learning_rate=training.learning_rate,
        clipping_norm=training.clipping_norms[epsilon],
        noise_multiplier=NOISE[training.sampling_rate, training.steps][epsilon],
    )
    panel = f"{task(training.model).label}, epsilon {epsilon:g}"
    return Audited(panel, attack, canaries, setting, runs)
