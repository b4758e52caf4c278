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
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from audit.settings.federated import FederatedSetting
from audit.words import counted
from experiments.cells.cell import Cell
from experiments.cells.federated import federated_cell
from experiments.one_shot.trainings import Splits, Trainings
from experiments.sweeps.sweep import Draw, Drawn, Sweep

if TYPE_CHECKING:
    from experiments.sweeps.points import Evidence


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


def sweeps(scale: str) -> dict[str, Sweep]:
    """Every sweep of a scale, by name."""
    images, text, splits = SIZES[scale]
    found = [
        _table("one_shot_table_2", text),
        _table("one_shot_table_5", images),
        _densities((text, images)),
        _repeated("one_shot_figure_2", text),
        _repeated("one_shot_figure_3", images),
        _split(splits),
    ]
    return {sweep.name: sweep for sweep in found}


def _table(name: str, asked: Trainings) -> Sweep:
    plain = [_cell(asked, asked.plain(noise), "no canaries") for noise in asked.noises]
    cells = (*_audits(asked, (1,)), *plain)
    title = f"{asked.label}: all iterates and the final model"
    return _sweep(name, title, cells, partial(_draw_table, asked=asked))


def _densities(asked: tuple[Trainings, ...]) -> Sweep:
    cells = tuple(cell for one in asked for cell in _audits(one, one.repetitions))
    return _sweep("one_shot_figure_1", "Densities of cosines", cells, partial(_draw_densities, asked=asked))


def _repeated(name: str, asked: Trainings) -> Sweep:
    title = f"{asked.label}: canaries that take part often"
    cells = tuple(_audits(asked, asked.repetitions))
    return _sweep(name, title, cells, partial(_draw_repeated, asked=asked))


def _split(asked: Splits) -> Sweep:
    inner, runs = asked.trainings, asked.experiments * asked.runs
    cells = []
    for noise in inner.noises:
        cells.append(_cell(inner, asked.one(noise), "one run", asked.experiments))
        cells.append(_cell(inner, asked.several(noise), counted(asked.runs, "run"), runs))
    title = "One run or ten with as many canaries"
    return _sweep("one_shot_figure_4", title, tuple(cells), partial(_draw_split, asked=asked))


def _audits(asked: Trainings, repetitions: tuple[int, ...]) -> Iterator[Cell]:
    """A cell a noise multiplier and number of repetitions."""
    for noise in asked.noises:
        for times in repetitions:
            yield _cell(asked, asked.at(noise, times), counted(times, "repetition"))


def _cell(asked: Trainings, setting: FederatedSetting, words: str, runs: int = 1) -> Cell:
    """The cell of a setting."""
    name = f"{asked.label}, sigma {setting.noise_multiplier:.3g}, {words}"
    return federated_cell(setting, runs, name, asked.seconds)


def _sweep(name: str, title: str, cells: tuple[Cell, ...], draw: Draw) -> Sweep:
    return Sweep(name, title, cells, draw)


def _draw_table(sweep: Sweep, evidence: "Evidence", asked: Trainings) -> Drawn:
    from experiments.one_shot import federated_figures  # matplotlib, which work on cells does not need

    return federated_figures.draw_table(sweep, evidence, asked)


def _draw_densities(sweep: Sweep, evidence: "Evidence", asked: tuple[Trainings, ...]) -> Drawn:
    from experiments.one_shot import federated_figures

    return federated_figures.draw_densities(sweep, evidence, asked)


def _draw_repeated(sweep: Sweep, evidence: "Evidence", asked: Trainings) -> Drawn:
    from experiments.one_shot import federated_figures

    return federated_figures.draw_repeated(sweep, evidence, asked)


def _draw_split(sweep: Sweep, evidence: "Evidence", asked: Splits) -> Drawn:
    from experiments.one_shot import federated_figures

    return federated_figures.draw_split(sweep, evidence, asked)
