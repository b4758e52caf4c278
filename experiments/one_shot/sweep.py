"""The one-shot paper's federated experiments as data, at three scales.

    smoke    seconds: a few rounds, to see that all is in its place
    laptop   Fashion-MNIST dealt to 1,000 clients, each of which takes part once, in place of EMNIST's
             writers; Shakespeare's roles in place of Stack Overflow's users
    paper    the paper's own: EMNIST's writers and Stack Overflow's users, from files that --emnist and
             --stackoverflow name, with adaptive clipping

Noise multipliers have the paper's analytical epsilons (infinite, 300, 100, 30) at delta = 1e-5; at paper
scale they are the paper's. Each canary is in by its own coin, and those that are out are the unobserved ones.
One training gives the cosines of all iterates and those of the final model.
"""

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

from audit.progress import counted
from audit.settings.federated import FederatedSetting
from experiments.cells.cell import Cell
from experiments.cells.federated import federated_cell
from experiments.sweeps.sweep import Sweep


class Trainings(NamedTuple):
    """Clients and a model under audit: how they are trained, noise multipliers, numbers of repetitions,
    trainable parameters, and seconds of a training on two cores. counterpart: the paper's."""

    label: str
    counterpart: str
    setting: FederatedSetting
    noises: tuple[float, ...]
    repetitions: tuple[int, ...]
    dimension: int
    seconds: float

    def at(self, noise: float, repetitions: int = 1) -> FederatedSetting:
        """The audit with so much noise and so many rounds a canary."""
        return dataclasses.replace(self.setting, noise_multiplier=noise, repetitions=repetitions)

    def audited(self) -> list[FederatedSetting]:
        """The audits with each amount of noise and number of repetitions."""
        return [self.at(noise, times) for noise in self.noises for times in self.repetitions]

    def plain(self, noise: float) -> FederatedSetting:
        """Training without canaries: of a single one that of run 0 is out. The server's learning rate makes
        up for its mean over fewer clients, so that clients and noise move the model equally far."""
        one = self.at(noise)
        mean, bare = (one.cohort + 0.5 * canaries / one.rounds for canaries in (one.canaries, 1))
        rate = round(one.learning_rate * bare / mean, 6)
        return dataclasses.replace(one, canaries=1, observe="final", learning_rate=rate)


class Splits(NamedTuple):
    """Figure 4: experiments of one run with all canaries against several with their share of them each."""

    trainings: Trainings
    experiments: int
    runs: int = 10

    def one(self, noise: float) -> FederatedSetting:
        """All canaries in one run."""
        return self.trainings.at(noise)

    def several(self, noise: float) -> FederatedSetting:
        """Their share of them a run."""
        fewer = self.trainings.setting.canaries // self.runs
        return dataclasses.replace(self.one(noise), canaries=fewer)


class FederatedSizes(NamedTuple):
    """A scale: images, text, and what is split over runs."""

    images: Trainings
    text: Trainings
    splits: Splits


_NOISES = (0.0, 0.0484613, 0.0946699, 0.21472)  # analytical epsilons at delta 1e-5: 300, 100, 30
_REPETITIONS = (1, 2, 4, 8)
_IMAGES = FederatedSetting(clients=1000, cohort=10, observe="all")
_TEXT = FederatedSetting(
    "character_lstm",
    clients=0,
    cohort=2,
    rounds=50,
    client_learning_rate=0.8,
    learning_rate=0.03,  # at 0.1 the noise of epsilon = 30 lets the LSTM diverge
    canaries=320,  # as many directions as the observer keeps
    observe="all",
)
_TINY = FederatedSetting("linear", clients=20, cohort=4, rounds=12, canaries=200, observe="all")
_TINY_TEXT = dataclasses.replace(_TEXT, clients=4, rounds=2, canaries=100)
_EMNIST = FederatedSetting(
    "emnist_cnn",
    clients=0,
    cohort=34,
    rounds=498,
    client_learning_rate=0.031,
    learning_rate=1.0,
    clipping_norm=0.1,
    quantile=0.5,
    observe="all",
)
_STACKOVERFLOW = FederatedSetting(
    "word_lstm",
    clients=0,
    cohort=167,
    rounds=2048,
    client_learning_rate=1.0,
    learning_rate=0.56,
    clipping_norm=0.1,
    quantile=0.5,
    observe="all",
)
_LINEAR = dataclasses.replace(_IMAGES, model="linear")
_FASHION, _SHAKESPEARE = "Fashion-MNIST", "Shakespeare"
SIZES = {
    "smoke": FederatedSizes(
        Trainings(_FASHION, "EMNIST", _TINY, _NOISES[::2], (1, 2), 7850, 3),
        Trainings(_SHAKESPEARE, "StackOverflow", _TINY_TEXT, _NOISES[:1], (1,), 820_522, 30),
        Splits(Trainings(_FASHION, "StackOverflow", _TINY, _NOISES[2:3], (1,), 7850, 3), 4, 2),
    ),
    "laptop": FederatedSizes(
        Trainings(_FASHION, "EMNIST", _IMAGES, _NOISES, _REPETITIONS, 101_770, 30),
        Trainings(_SHAKESPEARE, "StackOverflow", _TEXT, _NOISES, _REPETITIONS, 820_522, 90),
        Splits(Trainings(_FASHION, "StackOverflow", _LINEAR, _NOISES[2:], (1,), 7850, 60), 20),
    ),
    "paper": FederatedSizes(
        Trainings(
            "EMNIST", "EMNIST", _EMNIST, (0.0, 0.16, 0.18, 0.195, 0.25, 0.315), _REPETITIONS, 1_206_590, 2e4
        ),
        Trainings(
            "Stack Overflow", "StackOverflow", _STACKOVERFLOW, (0.0, 0.0496, 0.0986, 0.2317), _REPETITIONS,
            4_050_748, 1e6,
        ),
        Splits(Trainings(_FASHION, "StackOverflow", _IMAGES, _NOISES[2:], (1,), 101_770, 600), 50),
    ),
}  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class RepeatedSweep(Sweep):
    """A sweep of kinds of clients, each trained at its noise multipliers with some numbers of repetitions."""

    trainings: tuple[Trainings, ...]
    plain: bool = False  # once more without canaries


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitSweep(Sweep):
    """A sweep of experiments of one run against several."""

    splits: Splits


def sweeps(scale: str) -> dict[str, Sweep]:
    """Every sweep of a scale, by name."""
    images, text, splits = SIZES[scale]
    often = "canaries that take part often"
    found = [
        _table("one_shot_table_2", text),
        _table("one_shot_table_5", images),
        _repeated("one_shot_figure_1", "Densities of cosines", text, images),
        _repeated("one_shot_figure_2", f"{text.label}: {often}", text),
        _repeated("one_shot_figure_3", f"{images.label}: {often}", images),
        _split("one_shot_figure_4", splits),
    ]
    return {sweep.name: sweep for sweep in found}


def _table(name: str, asked: Trainings) -> Sweep:
    once = asked._replace(repetitions=(1,))
    cells = [*_audits(once), *(_cell(asked, asked.plain(noise), "no canaries") for noise in asked.noises)]
    title = f"{asked.label}: all iterates and the final model"
    return RepeatedSweep(name, title, tuple(cells), trainings=(once,), plain=True)


def _repeated(name: str, title: str, *asked: Trainings) -> Sweep:
    return RepeatedSweep(name, title, tuple(cell for one in asked for cell in _audits(one)), trainings=asked)


def _split(name: str, asked: Splits) -> Sweep:
    inner, runs = asked.trainings, asked.experiments * asked.runs
    cells = []
    for noise in inner.noises:
        cells.append(_cell(inner, asked.one(noise), "one run", asked.experiments))
        cells.append(_cell(inner, asked.several(noise), counted(asked.runs, "run"), runs))
    return SplitSweep(name, "One run or ten with as many canaries", tuple(cells), splits=asked)


def _audits(asked: Trainings) -> Iterator[Cell]:
    """A cell a noise multiplier and number of repetitions."""
    for setting in asked.audited():
        yield _cell(asked, setting, counted(setting.repetitions, "repetition"))


def _cell(asked: Trainings, setting: FederatedSetting, words: str, runs: int = 1) -> Cell:
    name = f"{asked.label}, sigma {setting.noise_multiplier:.3g}, {words}"
    return federated_cell(setting, runs, name, asked.seconds)
