"""The cells for the LiDP paper's figures and Table 1, at three scales.

They audit the Gaussian mechanism (Section 4, Appendix E) and trained models (Section 6, Appendix F).

    smoke    a few runs of a few steps, to test the code in seconds
    laptop   the paper's seeds, up to 4,096 runs of 64 canaries; only the linear model, with 600 steps
    paper    Appendix E's grid, with its limits n K <= 1e8 and K d <= 1e9; all of the paper's models, 30 or
             100 epochs, 1,000 runs for each cell, 1 to 512 canaries

Errata L7 and L9 describe how the trained models differ from the paper's.
"""

import dataclasses
import itertools
import json
import math
from collections.abc import Sequence
from typing import NamedTuple

from audit.adversaries.base import AdversaryFields
from audit.adversaries.directions import CotS
from audit.adversaries.examples import ClipBkd, Poisoned
from audit.runtime.machine import Progress, cores
from audit.settings.make import setting_of
from audit.storage.store import Store
from audit.written import Level
from experiments.cells.audits import audit_cell
from experiments.cells.cell import Audited, Cell, DataSets, find_answer, write_answer
from experiments.lidp.mechanism_audit import MechanismAudit
from experiments.sweeps.sweep import Sweep
from models.catalogue import task

EPSILONS = (1, 2, 4, 8, 16, 32)  # claimed for trained models, by Renyi DP at delta = 1e-5
_DIMENSION = 10_000  # in the "over n" and "over K" panels
_BATCH_SIZE = 100
# With fewer scores per seed, starting processes takes more time than it saves.
_WORTH_PROCESSES = 50_000
_POISONED = Poisoned(as_printed=True)  # Errata L10


class Training(NamedTuple):
    """The hyperparameters of a model, as in the paper's table.

    Attributes:
      sampling_rate: The probability that a step samples an inserted canary.
      clipping_norms: The clipping norm for each of EPSILONS.
      noise: The noise multiplier for each of EPSILONS.
      poisoned: The adversary for several poisoned canaries, which lie along the data's last principal
        directions.
    """

    model: str
    steps: int
    sampling_rate: float
    learning_rate: float
    clipping_norms: tuple[float, ...]
    noise: tuple[float, ...]
    poisoned: Poisoned = _POISONED


class Extent(NamedTuple):
    """The sizes of all audits at one scale: numbers of runs n, canaries K in a run, and dimensions d.

    Attributes:
      lifted_runs: The values of n in the "over n" panel, each with sqrt(n) canaries.
      single_runs: The values of n in the "over n" panel, each with a single canary.
      over_canaries: The values of K in the "over K" panel.
      dimensions: The values of d in the "over d" panel.
      mechanism_runs: n in the "over K" and "over d" panels.
      seeds: The number of seeds for each audit of the Gaussian mechanism.
      trainings: The trained models.
      epsilons: The epsilons in Table 1.
      runs: n for each audit of a trained model.
      canaries: The value of K that Table 1 compares with K = 1.
      series: The values of K in Figure 5.
      epsilon: The epsilon in Figure 5.
    """

    lifted_runs: tuple[int, ...]
    single_runs: tuple[int, ...]
    over_canaries: tuple[int, ...]
    dimensions: tuple[int, ...]
    mechanism_runs: int
    seeds: int
    trainings: tuple[Training, ...]
    epsilons: tuple[int, ...]
    runs: int
    canaries: int
    series: tuple[int, ...]
    epsilon: int


_SHORT_TRAINING = Training(
    "linear",
    steps=600,
    sampling_rate=1 / 60,
    learning_rate=0.02,
    clipping_norms=(4.0, 4.0, 4.0, 8.0, 8.0, 8.0),
    noise=(1.86921, 1.18583, 0.865884, 0.668095, 0.527418, 0.425276),
)
_LINEAR = _SHORT_TRAINING._replace(
    steps=18000,
    sampling_rate=1 / 600,
    noise=(1.14911, 0.830892, 0.656085, 0.543645, 0.457639, 0.391546),
)
_MLP = _LINEAR._replace(
    model="mlp", learning_rate=0.01, clipping_norms=(2.0, 4.0, 4.0, 8.0, 8.0, 8.0)
)
_PURCHASE = Training(
    "purchase_mlp",
    steps=20000,
    sampling_rate=1 / 200,
    learning_rate=0.05,
    clipping_norms=(0.25, 0.5, 1.0, 1.0, 1.0, 2.0),
    noise=(2.95908, 1.68134, 1.06176, 0.768472, 0.612068, 0.508690),
    poisoned=dataclasses.replace(_POISONED, first_direction=400, end_direction=600),
)
_RUNS = (256, 1024, 4096, 16384, 65536)
_LAPTOP = Extent(
    lifted_runs=_RUNS[:3],
    single_runs=_RUNS,
    over_canaries=tuple(2**i for i in range(9)),
    dimensions=(100, 1000, 10_000, 100_000, 1_000_000),
    mechanism_runs=1024,
    seeds=25,
    trainings=(_SHORT_TRAINING,),
    epsilons=(4, 8, 16, 32),
    runs=1000,
    canaries=32,
    series=(1, 2, 8, 32, 128),
    epsilon=16,
)
_SMOKE = _LAPTOP._replace(
    lifted_runs=(64, 256),
    single_runs=(64, 256),
    over_canaries=(1, 4, 16),
    dimensions=(100, 1000),
    mechanism_runs=256,
    seeds=2,
    epsilons=(8,),
    runs=40,
    canaries=4,
    series=(1, 2, 4),
    epsilon=8,
)
_PAPER = _LAPTOP._replace(
    lifted_runs=_RUNS,
    over_canaries=tuple(2**i for i in range(11)),
    trainings=(_LINEAR, _MLP, _PURCHASE),
    epsilons=EPSILONS,
    series=tuple(2**i for i in range(10)),
    epsilon=4,
)
SIZES = {"smoke": _SMOKE, "laptop": _LAPTOP, "paper": _PAPER}
_POISONED_DATA = "poisoned data"
ATTACKS: dict[str, AdversaryFields] = {
    _POISONED_DATA: ClipBkd(),
    "random gradients": CotS(),
    "final weights": CotS("weights"),
}


def sweeps(scale: str) -> dict[str, Sweep]:
    """Returns the sweeps for the paper's Figures 3, 4 and 5 and Table 1 at a given scale, keyed by name."""
    size = SIZES[scale]
    mechanisms = _list_mechanisms(size)
    # n is fixed in Figure 4. A cell's request is (panel, audit).
    not_over_runs = [cell for cell in mechanisms if cell.request[0] != "over n"]
    # Table 1 shows all trained models, but Figure 5 shows only the first.
    table = _make_audits(size.trainings, size.epsilons, (1, size.canaries), size.runs)
    figure = _make_audits(size.trainings[:1], [size.epsilon], size.series, size.runs)
    all_sweeps = [
        Sweep("lidp_figure_3", "Gaussian mechanism: epsilon over n, K and d", mechanisms),
        Sweep("lidp_figure_4", "Gaussian mechanism: bias, variance, correlation", not_over_runs),
        Sweep("lidp_table_1", "Trained models: runs saved by several canaries", table),
        Sweep("lidp_figure_5", "Trained models: epsilon over n and K", figure),
    ]
    return {sweep.name: sweep for sweep in all_sweeps}


def _list_mechanisms(size: Extent) -> list[Cell]:
    """Returns the audits of the Gaussian mechanism for panels that vary runs n, canaries K or dimension d.

    Unless the panel varies them, d is 10,000 and K is sqrt(n), rounded down. Epsilon is 1 in the "over n"
    panel and 4 in the others. The "over n" panel also includes K = 1.
    """
    runs = size.mechanism_runs
    base = MechanismAudit(
        runs,
        canaries=math.isqrt(runs),
        dimension=_DIMENSION,
        epsilon=4.0,
        seeds=size.seeds,
        **Level()._asdict(),
    )
    cells = []
    over_n = base._replace(epsilon=1.0)
    for n in size.single_runs:
        cells.append(_make_mechanism_cell("over n", over_n._replace(runs=n, canaries=1)))
    for n in size.lifted_runs:
        audit = over_n._replace(runs=n, canaries=math.isqrt(n))
        cells.append(_make_mechanism_cell("over n", audit))
    for canaries in size.over_canaries:
        cells.append(_make_mechanism_cell("over K", base._replace(canaries=canaries)))
    for dimension in size.dimensions:
        cells.append(_make_mechanism_cell("over d", base._replace(dimension=dimension)))
    return cells


def _make_mechanism_cell(panel: str, audit: MechanismAudit) -> Cell:
    """Returns a panel's cell, which audits the Gaussian mechanism with all seeds."""

    def do(store: Store, data: DataSets, progress: Progress) -> None:
        from experiments.lidp import gaussian_mechanism  # loads SciPy

        processes = cores() if audit.runs * audit.canaries > _WORTH_PROCESSES else 1
        write_answer(store, gaussian_mechanism.find_epsilons(audit, processes, progress))

    return Cell(
        name=f"Gaussian mechanism, n = {audit.runs}, K = {audit.canaries}",
        identity=json.dumps(audit.setting()),
        runs=audit.runs * audit.seeds,
        is_done=lambda held, data: find_answer(held, audit.setting()) is not None,
        open=lambda out, data: Store(out, audit.setting()),
        do=do,
        request=(panel, audit),
    )


def _make_audits(
    trainings: Sequence[Training], epsilons: Sequence[int], numbers: Sequence[int], runs: int
) -> list[Cell]:
    """Returns the cells that audit trained models with each attack.

    Args:
      trainings: The models and their hyperparameters.
      epsilons: The claimed epsilons, from EPSILONS.
      numbers: The numbers of canaries in a run.
      runs: The number of runs in a cell.
    """
    cells = []
    combinations = itertools.product(trainings, ATTACKS.items(), epsilons, numbers)
    for training, (attack, adversary), epsilon, canaries in combinations:
        # ClipBKD has only one poisoned example.
        if attack == _POISONED_DATA and canaries > 1:
            adversary = training.poisoned
        index = EPSILONS.index(epsilon)
        setting = setting_of(
            training.model,
            adversary=adversary.name,
            **adversary.deciding(),  # the adversary's non-default fields
            canaries=canaries,
            steps=training.steps,
            sampler=f"poisson:{training.sampling_rate!r}",
            batch_size=_BATCH_SIZE,
            learning_rate=training.learning_rate,
            clipping_norm=training.clipping_norms[index],
            noise_multiplier=training.noise[index],
        )
        panel = f"{task(training.model).label}, epsilon {epsilon:g}"
        audited = Audited(panel, series=attack, x=canaries, setting=setting, runs=runs)
        cells.append(audit_cell(audited))
    return cells
