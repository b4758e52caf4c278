"""The LiDP paper's trained models (Section 6, Appendix F) as data, at three scales.

    smoke    seconds: a few runs of a few steps, to see that all is in its place
    laptop   the linear model alone. Canaries join a step with probability 1/60 in 600 steps, as in ten epochs
             of a tenth of the data; each step's genuine examples are others, as in one epoch of all
    paper    every model of the paper's table, 30 or 100 epochs, 1,000 runs a cell, 1 to 512 canaries

Runs toss a coin for each canary, instead of the paper's two sets of runs; canaries join steps by Poisson
sampling and are added to the mini-batch, so that the worlds are those of the accountant.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from audit.settings.adversaries import ClipBkd, CotS, Poisoned
from audit.settings.make import setting_of
from audit.settings.setting import AdversaryFields, Setting
from experiments.cells.audits import audit_cell
from experiments.cells.cell import Audited
from experiments.lidp.comparison import Comparison
from experiments.sweeps.sweep import Axis, Draw, Drawn, Sweep
from models.catalogue import task

if TYPE_CHECKING:
    from experiments.sweeps.points import Evidence


class Training(NamedTuple):
    """How a model is trained: the clipping norm by epsilon (paper's table), sampling as in `NOISE`."""

    model: str
    steps: int
    sampling_rate: float
    batch_size: int
    learning_rate: float
    clipping_norms: Mapping[float, float]

    def noise_multiplier(self, epsilon: float) -> float:
        """At delta = 1e-5, by Renyi DP."""
        return NOISE[self.sampling_rate, self.steps][epsilon]


class Attack(NamedTuple):
    """Canaries of one kind: one a run, and several."""

    label: str
    single: AdversaryFields
    several: AdversaryFields


class Workload(NamedTuple):
    """How much is trained: models at some epsilons, runs a cell, canaries in the table, the numbers of
    canaries in the figure and the epsilon there."""

    trainings: tuple[Training, ...]
    epsilons: tuple[float, ...]
    runs: int
    canaries: int
    series: tuple[int, ...]
    epsilon: float


NOISE: dict[tuple[float, int], dict[float, float]] = {  # by Renyi DP at delta = 1e-5
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
_POWERS = tuple(2**i for i in range(10))
SIZES = {
    "smoke": Workload((_SHORT,), (8,), 40, 4, (1, 2, 4), 8),
    "laptop": Workload((_SHORT,), (4, 8, 16, 32), 1000, 32, (1, 2, 8, 32, 128), 16),
    "paper": Workload(_WHOLE, (1, 2, 4, 8, 16, 32), 1000, 32, _POWERS, 4),
}
ATTACKS = (
    Attack("poisoned data", ClipBkd(), _POISONED),
    Attack("random gradients", CotS(), CotS()),
    Attack("final weights", CotS("weights"), CotS("weights")),
)


def sweeps(scale: str) -> dict[str, Sweep]:
    """Both sweeps of a scale, by name."""
    size = SIZES[scale]
    table, figure = list(comparisons(size)), list(over_canaries(size))
    pairs = [audited for one in table for audited in (one.single, one.several)]
    found = [
        _sweep("lidp_table_1", "How many times fewer runs", pairs, partial(_gains, asked=table)),
        _sweep("lidp_figure_5", "Trained models: epsilon over n and K", figure, _epsilons),
    ]
    return {sweep.name: sweep for sweep in found}


def comparisons(size: Workload) -> Iterator[Comparison]:
    """The entries of Table 1."""
    for training in size.trainings:
        for attack in ATTACKS:
            for epsilon in size.epsilons:
                single = _audited(training, attack, epsilon, 1, size.runs)
                several = _audited(training, attack, epsilon, size.canaries, size.runs)
                yield Comparison(single, several, epsilon)


def over_canaries(size: Workload) -> Iterator[Audited]:
    """The audits of Figure 5: the first model at one epsilon, any number of canaries."""
    for attack in ATTACKS:
        for canaries in size.series:
            yield _audited(size.trainings[0], attack, size.epsilon, canaries, size.runs)


def _audited(training: Training, attack: Attack, epsilon: float, canaries: int, runs: int) -> Audited:
    """One audit, K on the x axis."""
    fields = attack.single if canaries == 1 else attack.several
    if fields == _POISONED:
        fields = _TAILS.get(training.model, fields)
    setting = _setting(training, fields, epsilon, canaries)
    return Audited(
        f"{task(training.model).label}, epsilon {epsilon:g}", attack.label, canaries, setting, runs
    )


def _setting(training: Training, fields: AdversaryFields, epsilon: float, canaries: int) -> Setting:
    """The setting of a model at an epsilon."""
    return setting_of(
        training.model,
        adversary=fields.name,
        **fields.deciding(),
        canaries=canaries,
        steps=training.steps,
        sampling_rate=training.sampling_rate,
        batch_size=training.batch_size,
        learning_rate=training.learning_rate,
        clipping_norm=training.clipping_norms[epsilon],
        noise_multiplier=training.noise_multiplier(epsilon),
    )


def _sweep(name: str, title: str, found: Iterable[Audited], draw: Draw) -> Sweep:
    """The sweep of audits."""
    return Sweep(name, title, tuple(map(audit_cell, found)), draw, Axis("canaries K", "K"))


def _gains(sweep: Sweep, evidence: "Evidence", asked: list[Comparison]) -> Drawn:
    from experiments.lidp import real_figures  # matplotlib, which work on cells does not need

    return real_figures.draw_gains(sweep, evidence, asked)


def _epsilons(sweep: Sweep, evidence: "Evidence") -> Drawn:
    from experiments.lidp import real_figures

    return real_figures.draw_epsilons(sweep, evidence)
