"""Cells: the units of work of a sweep, with their data sets and results.

Importing this module does not start JAX.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from audit.errors import InputError
from audit.runtime.machine import Progress
from audit.settings.federated import FederatedTraining
from audit.settings.setting import Setting
from audit.storage import files
from audit.storage.index import Holdings
from audit.storage.store import Store
from audit.tasks.task import Dataset, Federation
from models.catalogue import FEDERATED_TASKS, TASKS, federated_task, task

_ANSWER = "answer.json"


class Audited(NamedTuple):
    """An audit of trained models, and its place in a figure.

    Attributes:
      panel, series, x: The panel, the curve in the panel, and the position on the x axis.
    """

    panel: str
    series: str
    x: float
    setting: Setting
    runs: int


class DataSets:
    """The models' data sets, loaded on first use. The user's files replace the sources that `audit` uses."""

    def __init__(self, data_files: Mapping[str, str | None]) -> None:
        """Stores the user's files or folders, or None for published data, keyed by the data set's name."""
        self._files = data_files
        self._loaded: dict[str, Dataset | InputError] = {}
        self._federations: dict[tuple[object, ...], Federation] = {}

    def checksum(self, model: str) -> str | None:
        """Returns the checksum of a model's data, from the user's file or a published source.

        The checksum of computed features is None, because their last bits differ between machines.
        """
        data = task(model).data
        # A user's file is loaded to compute its checksum.
        if data.checksum is not None and self._files.get(data.file) is not None:
            return self.load(model).checksum
        return data.checksum

    def load(self, model: str) -> Dataset:
        """Returns a model's data. The first call loads them.

        Raises InputError if the data cannot be loaded. Later calls raise the same error without trying again.
        """
        data = task(model).data
        if data.name not in self._loaded:
            try:
                self._loaded[data.name] = data.load(self._files.get(data.file))
            except InputError as error:
                self._loaded[data.name] = error
        dataset = self._loaded[data.name]
        if isinstance(dataset, InputError):
            raise dataset
        return dataset

    def clients(self, setting: FederatedTraining) -> Federation:
        """Returns a federated setting's clients and test data, and frees the data of earlier settings.

        Raises InputError if the data cannot be loaded.
        """
        task = federated_task(setting.model)
        # All values that determine the clients.
        key = (task.file, setting.clients, setting.alpha, setting.seed)
        if key not in self._federations:
            self._federations = {key: task.load(setting, self._files.get(task.file))}
        return self._federations[key]

    def require_files(self) -> None:
        """Loads the user's data files; raises InputError for a file without the expected data."""
        for model in TASKS:
            self.checksum(model)  # loads the model's data if the user gave a file


def file_names() -> list[str]:
    """Returns the distinct names of the data sets that a user's file can replace."""
    names = [task.data.file for task in TASKS.values()]
    names += [task.file for task in FEDERATED_TASKS.values()]
    return list(dict.fromkeys(names))


class Cell(NamedTuple):
    """A unit of a sweep's work, such as the audit of a single setting.

    Attributes:
      name: The displayed name.
      identity: A string that identifies the work, apart from the number of runs. A sweep completes only the
        largest cell with each identity.
      runs: The number of runs, the unit of `progress`.
      is_done: (the existing stores, data sets) -> True if the cell's store is complete. The function does not
        start JAX, and loads only the user's data files.
      open: (the root of all stores, data sets) -> the cell's store.
      do: (store, data sets, progress); computes the missing results.
      request: The specification of the work; figures use it to find the results.
      audited: The audit, or None for other kinds of cells.
    """

    name: str
    identity: str
    runs: int
    is_done: Callable[[Holdings, DataSets], bool]
    open: Callable[[Path, DataSets], Store]
    do: Callable[[Store, DataSets, Progress], object]
    request: Any = None
    audited: Audited | None = None


def write_answer(store: Store, values: dict[str, Any]) -> None:
    """Writes an experiment's result to its store, as JSON; raises InputError if writing fails."""
    store.write_text(_ANSWER, json.dumps(values) + "\n")


def read_answer(store: Store) -> dict[str, Any] | None:
    """Returns the answer written by `write_answer`; None if it is missing or damaged."""
    content = files.read(store.path / _ANSWER)
    if content is None:
        return None
    try:
        return dict(json.loads(content))
    except (ValueError, TypeError):
        files.set_aside(store.path / _ANSWER, "it counts as missing")  # renames it
        return None


def find_answer(held: Holdings, setting: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the stored answer for a setting's identity; None if it is missing or damaged."""
    store = held.open(setting)
    if store is None:
        return None
    return read_answer(store)
