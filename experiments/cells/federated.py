"""Federated audits as cells: scores, and beside them each run's accuracy."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.progress import Progress
from audit.settings.federated import FINAL, FederatedSetting, federated_identity
from audit.storage.index import Holdings
from audit.storage.store import Scores, Store, gaps
from audit.task import Federation
from experiments.cells.cell import Cell, DataSets, read_answer, write_answer

if TYPE_CHECKING:
    from jax import Array

    from audit.game import Game, Midway, Watch

_ACCURACIES = "accuracies"


class FederatedScores(NamedTuple):
    """The cosines of some runs, and the accuracies of those of them that were measured."""

    scores: Scores
    accuracies: list[float]


def federated_cell(setting: FederatedSetting, runs: int, name: str, seconds: float) -> Cell:
    """The cell of so many trainings. Where every iterate is observed, the cosines with the final model are
    kept too, as those of the setting that observes it alone: one training gives both."""

    def is_done(held: Holdings, data: DataSets) -> bool:
        found = [read(held, one, runs) for one in _observations(setting)]
        return all(one is not None and len(one.accuracies) == runs for one in found)

    def open_store(out: Path, data: DataSets) -> Store:
        from audit.settings import build_federated

        return _store(out, setting, build_federated.checksum(data.clients(setting).clients))

    def do(store: Store, data: DataSets, progress: Progress) -> None:
        _train(setting, runs, store, data.clients(setting), progress)

    return Cell(name, json.dumps(named(setting)), runs, seconds, is_done, open_store, do, shared=True)


def final(setting: FederatedSetting) -> FederatedSetting:
    """The setting that observes the final model alone."""
    return dataclasses.replace(setting, observe="final")


def named(setting: FederatedSetting) -> dict[str, Any]:
    """A setting's name in the store, but for its clients' checksum."""
    return federated_identity(setting, "", None)


def read(held: Holdings, setting: FederatedSetting, runs: int) -> FederatedScores | None:
    """What is stored of the first runs, on whatever clients; None where some of their cosines are missing."""
    store = held.open(named(setting))
    if store is None or store.missing(runs):
        return None
    known = accuracies(store)
    return FederatedScores(store.load(runs), [known[str(i)] for i in range(runs) if str(i) in known])


def accuracies(store: Store) -> dict[str, float]:
    """The kept accuracies by run."""
    found = read_answer(store) or {}
    return {run: float(value) for run, value in found.get(_ACCURACIES, {}).items()}


def keep_accuracies(store: Store, first: int, values: NDArray[np.float64]) -> None:
    """Keeps the accuracies of runs first, first + 1, ... beside those that are there."""
    measured = {str(first + i): float(value) for i, value in enumerate(values)}
    with store.turn("accuracies"):
        write_answer(store, {_ACCURACIES: accuracies(store) | measured})


def keep_lost_accuracies(played: "Game", store: Store, runs: int, watch: "Watch") -> None:
    """Trains again, for `watch` to keep their accuracies, those runs whose scores alone are stored: a file of
    accuracies that is damaged is set aside."""
    from audit import game, training
    from audit.storage.checkpoints import Checkpoints

    with store.claim():
        lost = gaps(((int(run), int(run) + 1) for run in accuracies(store)), runs)
        if lost:
            chunk = training.chunk_size(played, runs, 0)
            for _ in game.play(played, lost, chunk, checkpoints=Checkpoints(store.checkpoints), watch=watch):
                pass


def _observations(setting: FederatedSetting) -> list[FederatedSetting]:
    return [setting] if setting.observe in FINAL else [setting, final(setting)]


def _store(out: Path, setting: FederatedSetting, data: str) -> Store:
    return Store(out, federated_identity(setting, data, None), f"federated-{setting.model}")


def _train(
    setting: FederatedSetting, runs: int, store: Store, federation: Federation, progress: Progress
) -> None:
    """Trains what is missing: of all observations together, or of those that the first left out."""
    from audit import training
    from audit.settings import build_federated

    clients, data = federation.clients, store.config()["data_sha256"]
    build_federated.require_clients(clients)
    who = build_federated.rounds(setting, clients, None)
    measure = build_federated.accuracy(setting, clients, federation.test)
    every = _observations(setting)
    games = [build_federated.build(one, clients, who) for one in every]
    stores = [store, *(_store(store.path.parent, one, data) for one in every[1:])]
    observed = list(zip(games, stores, strict=True))
    for i, (played, place) in enumerate(observed):
        watch = _keep(place, observed[i + 1 :], len(who.clients), measure)
        training.train(played, place, runs, progress=progress, watch=watch)
        keep_lost_accuracies(played, place, runs, _keep(place, [], len(who.clients), measure))


def _keep(
    store: Store, others: list[tuple["Game", Store]], rounds: int, measure: "Callable[[Array], Array]"
) -> "Watch":
    """Keeps what final models give before the scores are kept: accuracies, other observations."""

    def watch(midway: "Midway") -> None:
        from audit import game

        if midway.steps < rounds:
            return
        measured = np.asarray(measure(midway.thetas), np.float64)
        keep_accuracies(store, midway.first, measured)
        for played, other in others:
            found = game.final_scores(played, midway.thetas, midway.first)
            keep_accuracies(other, midway.first, measured)
            other.save(found)

    return watch
