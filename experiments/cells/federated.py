"""Makes federated audits into cells, whose stores then have scores and the accuracy of each run's model."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.runtime.machine import Progress
from audit.settings.federated import FINAL, FederatedSetting, federated_identity
from audit.storage.index import Holdings
from audit.storage.store import Scores, Store, hold
from audit.tasks.task import Federation
from experiments.cells.cell import Cell, DataSets, read_answer, write_answer

if TYPE_CHECKING:
    from jax import Array

    from audit.training.game import Game, Midway, Watch

_ACCURACIES = "accuracies"


class FederatedScores(NamedTuple):
    """What is stored of the first runs of a federated audit.

    Attributes:
      scores: The runs' cosines.
      accuracies: The accuracies of the runs' final models, in order; runs without a stored accuracy are left
        out.
    """

    scores: Scores
    accuracies: list[float]


def federated_cell(setting: FederatedSetting, runs: int, name: str, seconds: float) -> Cell:
    """Returns the cell of a federated audit.

    Where the setting observes every iterate, the cosines with the final model are stored too, in the store of
    the setting that observes the final model alone: the same training run gives both.

    Args:
      setting: The setting.
      runs: The number of runs.
      name: The cell's name for people.
      seconds: An estimate of the seconds that it takes on two cores.
    """

    def is_done(held: Holdings, data: DataSets) -> bool:
        """Returns whether all observed settings' stores have the scores of all runs."""
        return all(read(held, observed, runs) for observed in _observed_settings(setting))

    def open_store(out: Path, data: DataSets) -> Store:
        """Returns the setting's store below `out`."""
        from audit.training import build_federated

        return _make_store(out, setting, build_federated.checksum(data.clients(setting).clients))

    def do(store: Store, data: DataSets, progress: Progress) -> None:
        """Trains the runs that the stores of all observed settings lack."""
        _train(setting, runs, store, data.clients(setting), progress)

    identity = json.dumps(make_identity(setting))
    return Cell(name, identity, runs, seconds, is_done, open_store, do)


def final(setting: FederatedSetting) -> FederatedSetting:
    """Returns the same setting, but with an adversary that observes the final model alone."""
    return dataclasses.replace(setting, observe="final")


def make_identity(setting: FederatedSetting) -> dict[str, Any]:
    """Returns the fields by which the store identifies a setting, without its clients' checksum."""
    # None: rounds have a checksum only where a user lists them, and here they are drawn.
    return federated_identity(setting, "")


def read(held: Holdings, setting: FederatedSetting, runs: int) -> FederatedScores | None:
    """Returns the cosines and accuracies that are stored of a setting's first runs.

    The store is looked up by the setting alone, whatever its clients are. None where the cosines of any of
    these runs are missing. Accuracies of some runs may be missing.
    """
    store = held.open(make_identity(setting))
    if store is None or store.missing(runs):
        return None
    by_run = read_accuracies(store)
    measured = [by_run[str(run)] for run in range(runs) if str(run) in by_run]
    return FederatedScores(store.load(runs), measured)


def read_accuracies(store: Store) -> dict[str, float]:
    """Returns the stored accuracies, by the run's number as text."""
    answer = read_answer(store) or {}
    return {run: float(value) for run, value in answer.get(_ACCURACIES, {}).items()}


def keep_accuracies(store: Store, first: int, values: NDArray[np.float64]) -> None:
    """Adds the accuracies (R,) of runs first, ..., first + R - 1 to those that are stored already.

    No other process can read and write the file at the same time.
    """
    measured = {str(run): float(value) for run, value in enumerate(values, first)}
    with hold(store.path):
        write_answer(store, {_ACCURACIES: read_accuracies(store) | measured})


def _observed_settings(setting: FederatedSetting) -> list[FederatedSetting]:
    """Returns the settings whose scores a training run gives, the given setting first.

    A setting that observes every iterate also gives the scores of the one that observes the final model
    alone.
    """
    if setting.observe in FINAL:
        return [setting]
    return [setting, final(setting)]


def _make_store(out: Path, setting: FederatedSetting, checksum: str) -> Store:
    """Returns the store of a setting on clients with a checksum, under the root `out`."""
    return Store(out, federated_identity(setting, checksum), f"federated-{setting.model}")


def _train(
    setting: FederatedSetting, runs: int, store: Store, federation: Federation, progress: Progress
) -> None:
    """Trains the runs that the stores lack.

    A training run gives the scores of all observed settings (`_observed_settings`). First come the runs that
    the first setting's store lacks: they fill all stores. Then each further store gets the runs that it still
    lacks.

    Args:
      setting: The setting.
      runs: The number of runs that each store is to have.
      store: The setting's store. The stores of other observed settings are beside it.
      federation: The clients and the test set.
      progress: Called with the number of runs that were trained since the last call.
    """
    from audit.training import build_federated
    from audit.training import game as games

    clients = federation.clients
    checksum = store.config()["data_sha256"]
    build_federated.require_clients(clients)
    participation = build_federated.rounds(setting, clients)
    rounds = len(participation.clients)
    measure = build_federated.accuracy(setting, clients, federation.test)

    # The game and the store of each observed setting, the given setting first.
    observations: list[tuple[Game, Store]] = []
    for observed in _observed_settings(setting):
        game = build_federated.build(observed, clients, participation)
        own_store = store
        if observations:
            own_store = _make_store(store.path.parent, observed, checksum)
        observations.append((game, own_store))
    for i, (game, own_store) in enumerate(observations):
        # While a game's runs are trained, the games after it are scored too.
        watch = _make_watch(own_store, observations[i + 1 :], rounds, measure)
        games.train(game, own_store, runs, progress=progress, watch=watch)


def _make_watch(
    store: Store,
    others: list[tuple["Game", Store]],
    rounds: int,
    measure: "Callable[[Array], Array]",
) -> "Watch":
    """Returns a watch: a function that looks at a chunk of runs while they train.

    It stores the accuracies of final models, and the scores that other settings give these models.

    Accuracies are stored before the scores of the same runs: the trained setting's scores are stored after
    the last call. So a process that dies in between leaves no run with a score and without an accuracy.

    Args:
      store: The store of the setting that is trained, which gets accuracies.
      others: The games of other settings on the same training runs, each with its store, which gets scores
        and accuracies.
      rounds: The number of rounds after which models are final.
      measure: (models (R, p)) -> accuracies (R,).
    """

    def watch(midway: "Midway") -> None:
        """Stores the accuracies and the other settings' scores of a chunk's models, if they are final."""
        from audit.training import game as games

        if midway.steps < rounds:  # the watch is called after each segment of training
            return
        accuracies = np.asarray(measure(midway.thetas), np.float64)
        keep_accuracies(store, midway.first, accuracies)
        for other_game, other_store in others:
            scores = games.final_scores(other_game, midway.thetas, midway.first)
            # Before the scores, which tell that a run is complete.
            keep_accuracies(other_store, midway.first, accuracies)
            other_store.save(scores)

    return watch
