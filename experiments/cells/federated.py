"""Cells that audit federated training. Their stores contain each run's scores and accuracy."""

import dataclasses
import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.runtime.machine import Progress
from audit.settings.federated import FINAL, FederatedSetting, federated_identity
from audit.storage.index import Holdings
from audit.storage.store import Scores, Store, hold
from audit.tasks.task import Federation
from experiments.cells.cell import Cell, DataSets, read_answer, write_answer

if TYPE_CHECKING:
    from audit.training.game import Game, Midway

_ACCURACIES = "accuracies"  # the field of answer.json that holds {run number: accuracy}


class FederatedScores(NamedTuple):
    """The cosines of a federated audit's first runs, and the stored accuracies of their final models."""

    scores: Scores
    accuracies: list[float]


def federated_cell(setting: FederatedSetting, runs: int, name: str) -> Cell:
    """Returns the cell that trains a federated audit's runs.

    If the adversary observes every iterate, the same training runs also fill the store of an adversary that
    observes only the final model.
    """
    settings = [setting]
    if setting.observe not in FINAL:
        settings.append(final(setting))

    def is_done(held: Holdings, data: DataSets) -> bool:
        """Returns True if the store of each setting has all runs."""
        return all(read(held, each, runs) for each in settings)

    def open_cell(out: Path, data: DataSets) -> Store:
        """Returns the store of the given setting."""
        return open_store(out, setting, data.clients(setting))

    def do(store: Store, data: DataSets, progress: Progress) -> None:
        root_of_stores = store.path.parent
        train(settings, runs, root_of_stores, data.clients(setting), progress)

    return Cell(
        name=name,
        identity=json.dumps(federated_identity(setting)),
        runs=runs,
        is_done=is_done,
        open=open_cell,
        do=do,
    )


def final(setting: FederatedSetting) -> FederatedSetting:
    """Returns the setting with an adversary that observes only the final model."""
    return dataclasses.replace(setting, observe="final")


def open_store(out: Path, setting: FederatedSetting, federation: Federation) -> Store:
    """Returns the store of a setting with these clients, under the root folder `out`."""
    from audit.training import build_federated

    checksum = build_federated.checksum(federation.clients)
    identity = {**federated_identity(setting), "data_sha256": checksum}
    return Store(out, identity, f"federated-{setting.model}")


def read(held: Holdings, setting: FederatedSetting, runs: int) -> FederatedScores | None:
    """Returns the stored cosines and accuracies of a setting's first runs.

    It ignores the checksum of the clients' data, to avoid loading them. Returns None if any run's cosines
    are missing. Some accuracies may be missing.
    """
    store = held.open(federated_identity(setting))
    if store is None or store.missing(runs):
        return None
    return FederatedScores(store.load(runs), read_accuracies(store, runs))


def read_accuracies(store: Store, runs: int) -> list[float]:
    """Returns the stored accuracies of the first runs, in order. Some may be missing."""
    by_run = _read_by_run(store)
    return [by_run[str(run)] for run in range(runs) if str(run) in by_run]


def _read_by_run(store: Store) -> dict[str, float]:
    """Returns the stored accuracies, keyed by run number as a string."""
    answer = read_answer(store) or {}
    return dict(answer.get(_ACCURACIES, {}))


def _add_accuracies(store: Store, first: int, accuracies: NDArray[np.float64]) -> None:
    """Adds the accuracies (R,) of R runs, numbered from `first`, to the stored accuracies."""
    with hold(store.path):
        by_run = _read_by_run(store)
        for run, accuracy in enumerate(accuracies, first):
            by_run[str(run)] = float(accuracy)
        write_answer(store, {_ACCURACIES: by_run})


def train(
    settings: Sequence[FederatedSetting],
    runs: int,
    out: Path,
    federation: Federation,
    progress: Progress,
) -> None:
    """Trains any of the first `runs` runs missing from the settings' stores under the root `out`.

    The settings differ only in what the adversary sees, so one training run gives scores for all stores.
    `progress` is called with the number of newly trained runs.
    """
    from audit.training import build_federated
    from audit.training import game as games

    clients = federation.clients
    participation = build_federated.rounds(settings[0], clients)
    measure_accuracy = build_federated.accuracy(settings[0], clients, federation.test)
    # Each setting's game (training and adversary), and its store.
    pairs = [
        (
            build_federated.build(setting, clients, participation),
            open_store(out, setting, federation),
        )
        for setting in settings
    ]

    def watch(trained: Store, others: Sequence[tuple["Game", Store]], midway: "Midway") -> None:
        """Stores a chunk's final accuracies in all stores, and its final scores in the `others`.

        The runs of a chunk train together, from run `midway.first`. `games.train` calls this function during
        training, and afterwards stores the scores in `trained`. Accuracies are stored first, so even if the
        process dies, every run with stored scores has an accuracy.
        """
        if midway.steps < settings[0].rounds:  # not the final models
            return
        accuracies = np.asarray(measure_accuracy(midway.thetas), np.float64)
        _add_accuracies(trained, midway.first, accuracies)
        for game, store in others:
            _add_accuracies(store, midway.first, accuracies)
            # The store may already have some of these runs; copies do no harm.
            store.save(games.final_scores(game, midway.thetas, midway.first))

    for i, (game, store) in enumerate(pairs):
        # Each store may be missing different runs. `games.train` trains those missing from `store`, and
        # `watch` also adds them to later stores. Earlier stores are complete.
        watch_chunk = functools.partial(watch, store, pairs[i + 1 :])
        games.train(game, store, runs, progress=progress, watch=watch_chunk)
