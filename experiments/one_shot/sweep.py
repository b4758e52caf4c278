"""The experiments of the one-shot paper as sweeps, at three scales.

    smoke    a few rounds, to test the code in seconds
    laptop   Fashion-MNIST instead of EMNIST, and Shakespeare instead of Stack Overflow
    paper    the paper's data from the files given by --emnist and --stackoverflow, with adaptive clipping

The `paper` scale uses the paper's noise multipliers. The others use the paper's analytical epsilons.
"""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import NamedTuple

from audit.settings.federated import FederatedSetting
from audit.written import counted
from experiments.cells.cell import Cell
from experiments.cells.federated import federated_cell
from experiments.sweeps.sweep import Sweep


class TrainingPlan(NamedTuple):
    """Training runs to audit, with several noise multipliers and repetition counts.

    Attributes:
      label: The data set's name, for titles.
      counterpart: The name of the corresponding data set in the paper.
      setting: The settings shared by all runs, except for `noises` and `repetitions`.
      repetitions: The repetition counts. With a count of r, a canary takes part in r rounds.
      dimension: The number of trainable parameters.
    """

    label: str
    counterpart: str
    setting: FederatedSetting
    noises: tuple[float, ...]
    repetitions: tuple[int, ...]
    dimension: int

    def with_noise(self, noise: float, repetitions: int = 1) -> FederatedSetting:
        """Returns the setting with this noise multiplier and number of repetitions."""
        return dataclasses.replace(self.setting, noise_multiplier=noise, repetitions=repetitions)

    def audit_settings(self) -> Iterator[FederatedSetting]:
        """Yields the setting for each noise multiplier and number of repetitions."""
        for noise in self.noises:
            for repetitions in self.repetitions:
                yield self.with_noise(noise, repetitions)

    def without_canaries(self, noise: float) -> FederatedSetting:
        """Returns the setting of a training run without canaries, for comparing accuracies.

        A setting needs at least one canary, but run 0 does not insert it. The server divides a round's sum of
        updates by the expected number of participants, cohort + canaries / (2 rounds). With a single canary,
        this number is smaller, so we reduce the learning rate by the same factor to preserve the step length.
        """
        setting = self.with_noise(noise)
        with_all_canaries = setting.cohort + 0.5 * setting.canaries / setting.rounds
        with_single_canary = setting.cohort + 0.5 / setting.rounds
        # The rate identifies the setting in the store, so we round it to six decimals.
        learning_rate = round(setting.learning_rate * with_single_canary / with_all_canaries, 6)
        return dataclasses.replace(
            setting, canaries=1, observe="final", learning_rate=learning_rate
        )


class SplitPlan(NamedTuple):
    """Figure 4: experiments with all canaries in one training run, or split across several runs.

    Attributes:
      training: The plan of a run with all canaries.
      experiments: The number of experiments of each kind.
      runs: The number of training runs across which an experiment's canaries are split.
    """

    training: TrainingPlan
    experiments: int
    runs: int = 10

    def several_runs(self, noise: float) -> FederatedSetting:
        """Returns the setting of one of several runs that share an experiment's canaries."""
        canaries = self.training.setting.canaries // self.runs
        return dataclasses.replace(self.training.with_noise(noise), canaries=canaries)


class FederatedSizes(NamedTuple):
    """The plans at one scale: for image data, for text data, and for Figure 4."""

    images: TrainingPlan
    text: TrainingPlan
    splits: SplitPlan


DELTA = 1e-6  # for the paper's Table 1
SIMULATIONS = 50  # for each cell of the paper's Table 1
# Analytical epsilons at delta 1e-5: infinite, 300, 100, 30.
_NOISES = (0.0, 0.0484613, 0.0946699, 0.21472)
_IMAGES = FederatedSetting(clients=1000, cohort=10, observe="all")
_TEXT = FederatedSetting(  # with learning rate 0.1 and the noise for epsilon 30, the LSTM diverges
    "character_lstm", clients=0, cohort=2, rounds=50, client_learning_rate=0.8, learning_rate=0.03,
    canaries=320, observe="all",  # few, since this observer stores a direction for each
)  # fmt: skip
_TINY = FederatedSetting("linear", clients=20, cohort=4, rounds=12, canaries=200, observe="all")
_TINY_TEXT = dataclasses.replace(_TEXT, clients=4, rounds=2, canaries=100)
_EMNIST = FederatedSetting(
    "emnist_cnn", clients=0, cohort=34, rounds=498, client_learning_rate=0.031, learning_rate=1.0,
    clipping_norm=0.1, quantile=0.5, observe="all",
)  # fmt: skip
_STACKOVERFLOW = dataclasses.replace(
    _EMNIST,
    model="word_lstm",
    cohort=167,
    rounds=2048,
    client_learning_rate=1.0,
    learning_rate=0.56,
)
_IMAGES_PLAN = TrainingPlan(
    "Fashion-MNIST",
    counterpart="EMNIST",
    setting=_IMAGES,
    noises=_NOISES,
    repetitions=(1, 2, 4, 8),
    dimension=101_770,
)
_TEXT_PLAN = _IMAGES_PLAN._replace(
    label="Shakespeare", counterpart="StackOverflow", setting=_TEXT, dimension=820_522
)
_TINY_PLAN = _IMAGES_PLAN._replace(
    setting=_TINY, noises=_NOISES[::2], repetitions=(1, 2), dimension=7850
)
_SPLIT_PLAN = _IMAGES_PLAN._replace(
    setting=dataclasses.replace(_IMAGES, model="linear"),
    noises=_NOISES[2:],
    dimension=7850,
)
_SMOKE = FederatedSizes(
    images=_TINY_PLAN,
    text=_TEXT_PLAN._replace(setting=_TINY_TEXT, noises=_NOISES[:1], repetitions=(1,)),
    splits=SplitPlan(_TINY_PLAN._replace(noises=_NOISES[2:3]), experiments=4, runs=2),
)
_LAPTOP = FederatedSizes(_IMAGES_PLAN, _TEXT_PLAN, SplitPlan(_SPLIT_PLAN, experiments=20))
_PAPER = FederatedSizes(
    images=_IMAGES_PLAN._replace(
        label="EMNIST",
        setting=_EMNIST,
        noises=(0.0, 0.16, 0.18, 0.195, 0.25, 0.315),
        dimension=1_206_590,
    ),
    text=_TEXT_PLAN._replace(
        label="Stack Overflow",
        setting=_STACKOVERFLOW,
        noises=(0.0, 0.0496, 0.0986, 0.2317),
        dimension=4_050_748,
    ),
    splits=SplitPlan(_SPLIT_PLAN._replace(setting=_IMAGES, dimension=101_770), experiments=50),
)
SIZES = {"smoke": _SMOKE, "laptop": _LAPTOP, "paper": _PAPER}


class Simulations(NamedTuple):
    """Table 1: simulations of a Gaussian mechanism, without training.

    Attributes:
      sigmas: The standard deviations of the noise, for sensitivity 1.
      dimensions: The dimensions d. A simulation has sqrt(d) canaries.
      simulations: The number of simulations for each sigma and dimension.
    """

    sigmas: tuple[float, ...] = (0.541, 1.54, 4.22)
    dimensions: tuple[int, ...] = (10**4, 10**5, 10**6, 10**7)
    simulations: int = SIMULATIONS


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedSweep(Sweep):
    """A sweep with its plan: a tuple of training plans, or the plan of Figure 4 or Table 1."""

    plan: tuple[TrainingPlan, ...] | SplitPlan | Simulations


def sweeps(scale: str) -> dict[str, Sweep]:
    """Returns the sweeps for the one-shot paper's Tables 1, 2, 5 and Figures 1 to 4, keyed by name.

    Cells train models, and a sweep's plan determines which results to show. Tables also need the accuracy of
    models without canaries. `scale` is a key of SIZES.
    """
    images, text, splits = SIZES[scale]
    simulations = Simulations()
    if scale == "smoke":  # for speed
        simulations = Simulations(sigmas=(1.0, 2.0), dimensions=(1000,), simulations=5)
    all_sweeps = [
        PlannedSweep("one_shot_table_1", "Estimates of a known epsilon", cells=(), plan=simulations)
    ]
    for number, plan in ((2, text), (5, images)):
        # In the tables, canaries take part in one round; in Figures 1 to 3, in several rounds.
        once = plan._replace(repetitions=(1,))
        cells = list(_audit_cells(once))
        for noise in plan.noises:
            cells.append(_make_cell(plan, plan.without_canaries(noise), "no canaries"))
        title = f"{plan.label}: all iterates and the final model"
        all_sweeps.append(PlannedSweep(f"one_shot_table_{number}", title, cells, plan=(once,)))
    repeated = {  # Figures 1 to 3
        "Densities of cosines": (text, images),
        f"{text.label}: canaries in several rounds": (text,),
        f"{images.label}: canaries in several rounds": (images,),
    }
    for number, (title, plans) in enumerate(repeated.items(), start=1):
        cells = list(itertools.chain(*map(_audit_cells, plans)))
        all_sweeps.append(PlannedSweep(f"one_shot_figure_{number}", title, cells, plan=plans))
    # Figure 4: canaries split across runs
    all_sweeps.append(_make_splits_sweep(splits))
    return {sweep.name: sweep for sweep in all_sweeps}


def _make_splits_sweep(splits: SplitPlan) -> PlannedSweep:
    """Returns the sweep of Figure 4: experiments with all canaries in one run, or split across runs."""
    training, experiments, runs = splits  # `runs` per experiment with split canaries
    cells = []
    for noise in training.noises:
        cells.append(_make_cell(training, training.with_noise(noise), "one run", experiments))
        several = splits.several_runs(noise)
        cells.append(_make_cell(training, several, counted(runs, "run"), experiments * runs))
    title = f"{experiments} experiments, {training.setting.canaries:,} canaries in 1 or {runs} runs"
    return PlannedSweep("one_shot_figure_4", title, cells, plan=splits)


def _audit_cells(plan: TrainingPlan) -> Iterator[Cell]:
    """Yields a cell for each audited training run in a plan."""
    for setting in plan.audit_settings():
        yield _make_cell(plan, setting, counted(setting.repetitions, "repetition"))


def _make_cell(plan: TrainingPlan, setting: FederatedSetting, detail: str, runs: int = 1) -> Cell:
    """Returns a cell that trains runs of a setting.

    `detail` is part of the cell's name, and must differ between a plan's cells with the same noise.
    """
    name = f"{plan.label}, sigma {setting.noise_multiplier:.3g}, {detail}"
    return federated_cell(setting, runs, name)
