"""Federated audits as cells: scores, and beside them each run's accuracy."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.runtime.progress import Progress
from audit.settings.federated import FINAL, FederatedSetting, federated_identity
from audit.storage.index import Holdings
from audit.storage.store import Scores, Store, gaps
from audit.tasks.task import Federation
from experiments.cells.cell import Cell, DataSets, read_answer, write_answer

if TYPE_CHECKING:
    from jax import Array

    from audit.training.game import Game, Midway, Watch

_ACCURACIES = "accuracies"


class FederatedScores(NamedTuple):
    """The cosines of some runs, and the accuracies of those of them that were measured."""

    scores: Scores
    accuracies: list[float]


def federated_cell(setting: FederatedSetting, runs: int, name: str, seconds: float) -> Cell:
    """Returns the cell of so many runs of a federated training.

    Where every iterate is observed, the cosines with the final model are stored too, as those of the setting
    that observes it alone: the same training run gives both.
    """

    def is_done(held: Holdings, data: DataSets) -> bool:
        stored = [read(held, observed, runs) for observed in _observed_settings(setting)]
        return all(scores is not None and len(scores.accuracies) == runs for scores in stored)

    def open_store(out: Path, data: DataSets) -> Store:
        from audit.settings import build_federated

        return _make_store(out, setting, build_federated.checksum(data.clients(setting).clients))

    def do(store: Store, data: DataSets, progress: Progress) -> None:
        _train(setting, runs, store, data.clients(setting), progress)

    identity = json.dumps(make_identity(setting))
    return Cell(name, identity, runs, seconds, is_done, open_store, do, shared=True)


def final(setting: FederatedSetting) -> FederatedSetting:
    """Returns the setting that observes the final model alone."""
    return dataclasses.replace(setting, observe="final")


def make_identity(setting: FederatedSetting) -> dict[str, Any]:
    """Returns what identifies a setting in the store, but for its clients' checksum.

    Rounds are drawn and not listed by a user, and so have no checksum.
    """
    return federated_identity(setting, "", None)


def read(held: Holdings, setting: FederatedSetting, runs: int) -> FederatedScores | None:
    """Returns what is stored of the first runs, on any clients; None where a run's cosines are missing."""
    store = held.open(make_identity(setting))
    if store is None or store.missing(runs):
        return None
    by_run = read_accuracies(store)
    measured = []
    for run in range(runs):
        if str(run) in by_run:
            measured.append(by_run[str(run)])
    return FederatedScores(store.load(runs), measured)


def read_accuracies(store: Store) -> dict[str, float]:
    """Returns the stored accuracies by run."""
    answer = read_answer(store) or {}
    return {run: float(value) for run, value in answer.get(_ACCURACIES, {}).items()}


def keep_accuracies(store: Store, first: int, values: NDArray[np.float64]) -> None:
    """Stores the accuracies of runs first, first + 1, ... beside those that are stored already."""
    measured = {}
    for run, value in enumerate(values, first):
        measured[str(run)] = float(value)
    with store.turn("accuracies"):
        write_answer(store, {_ACCURACIES: read_accuracies(store) | measured})


def keep_lost_accuracies(game: "Game", store: Store, runs: int, watch: "Watch") -> None:
    """Trains those runs again of which only the scores are stored, for `watch` to store their accuracies.

    They are lost where the file of accuracies was damaged, and set aside.
    """
    from audit.storage.checkpoints import Checkpoints
    from audit.training import game as games
    from audit.training import training

    with store.claim():
        measured = []
        for run in read_accuracies(store):
            measured.append((int(run), int(run) + 1))
        lost = gaps(measured, runs)
        if not lost:
            return
        chunk = training.chunk_size(game, runs, 0)
        checkpoints = Checkpoints(store.checkpoints)
        for _ in games.play(game, lost, chunk, checkpoints=checkpoints, watch=watch):
            pass


def _observed_settings(setting: FederatedSetting) -> list[FederatedSetting]:
    """Returns the settings whose scores a training run gives: of every iterate, also the final model's."""
    if setting.observe in FINAL:
        return [setting]
    return [setting, final(setting)]


def _make_store(out: Path, setting: FederatedSetting, checksum: str) -> Store:
    """Returns the store of a setting on clients with that checksum."""
    return Store(out, federated_identity(setting, checksum, None), f"federated-{setting.model}")


def _train(
    setting: FederatedSetting, runs: int, store: Store, federation: Federation, progress: Progress
) -> None:
    """Trains what is missing, all observations together; then the runs that only the first of them had."""
    from audit.settings import build_federated
    from audit.training import training

    clients = federation.clients
    checksum = store.config()["data_sha256"]
    build_federated.require_clients(clients)
    participation = build_federated.rounds(setting, clients, None)
    rounds = len(participation.clients)
    measure = build_federated.accuracy(setting, clients, federation.test)

    observations: list[tuple[Game, Store]] = []
    for observed in _observed_settings(setting):
        game = build_federated.build(observed, clients, participation)
        own_store = store
        if observations:
            own_store = _make_store(store.path.parent, observed, checksum)
        observations.append((game, own_store))
    for i, (game, own_store) in enumerate(observations):
        watch = _make_watch(own_store, observations[i + 1 :], rounds, measure)
        training.train(game, own_store, runs, progress=progress, watch=watch)
        keep_lost_accuracies(game, own_store, runs, _make_watch(own_store, [], rounds, measure))


def _make_watch(
    store: Store,
    others: list[tuple["Game", Store]],
    rounds: int,
    measure: "Callable[[Array], Array]",
) -> "Watch":
    """Returns a watch that stores what final models give, before their scores are stored.

    Args:
      store: Where accuracies go.
      others: Other observations of the same training, each with its store, which get scores and accuracies.
      rounds: Rounds of the training, after which models are final.
      measure: (models) -> accuracies.
    """

    def watch(midway: "Midway") -> None:
        from audit.training import game as games

        if midway.steps < rounds:
            return
        accuracies = np.asarray(measure(midway.thetas), np.float64)
        keep_accuracies(store, midway.first, accuracies)
        for other_game, other_store in others:
            scores = games.final_scores(other_game, midway.thetas, midway.first)
            keep_accuracies(other_store, midway.first, accuracies)
            other_store.save(scores)

    return watch
