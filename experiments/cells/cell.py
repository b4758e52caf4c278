"""The cell, a piece of a sweep's work; the data sets that cells use; and the answers that cells store.

A cell is a record of functions. A kind of cell is a module that makes such records, and nothing else knows
which kinds there are. Importing this starts no JAX.
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
from audit.tasks.task import Dataset, Federation, Sources
from models.catalogue import FEDERATED_TASKS, TASKS, federated_task

_ANSWER = "answer.json"


class Audited(NamedTuple):
    """An audit of trained models, and its place in a figure.

    Attributes:
      panel: The name of the figure's panel.
      series: The name of the series.
      x: The value on the horizontal axis.
      setting: The audit's setting.
      runs: The number of the audit's runs.
    """

    panel: str
    series: str
    x: float
    setting: Setting
    runs: int


class DataSets:
    """The models' data, from the user's files or as `audit` finds them; each is loaded when first needed."""

    def __init__(self, data_files: Mapping[str, str | None], tfds_dir: str | None = None) -> None:
        """Takes the places of the user's files, and loads nothing yet.

        Args:
          data_files: the user's file or folder in place of a published data set, by the data set's name;
            None for a data set that is used as published.
          tfds_dir: a folder of data sets that TensorFlow Datasets has prepared.
        """
        self._files = data_files
        self._tfds_dir = tfds_dir
        self._loaded: dict[str, Dataset | InputError] = {}
        # The clients that were loaded last, by all that decides them.
        self._federations: dict[tuple[object, ...], Federation] = {}

    def checksum(self, model: str) -> str | None:
        """Returns the checksum of a model's data; None for data that are computed on this machine.

        The latter differ between machines in their last bits, and so does their checksum.
        """
        data = TASKS[model].data
        if data.checksum is not None and self._files.get(data.file) is not None:
            return self.load(model).checksum  # of the user's file
        return data.checksum

    def load(self, model: str) -> Dataset:
        """Returns a model's data, which are loaded at the first call.

        Raises InputError if they can't be loaded. The error is kept: each call raises it at once.
        """
        data = TASKS[model].data
        if data.name not in self._loaded:
            sources = Sources(self._files.get(data.file), self._tfds_dir)
            try:
                self._loaded[data.name] = data.load(sources)
            except InputError as error:
                self._loaded[data.name] = error
        dataset = self._loaded[data.name]
        if isinstance(dataset, InputError):
            raise dataset
        return dataset

    def clients(self, setting: FederatedTraining) -> Federation:
        """Returns a federated setting's clients; raises InputError if they can't be loaded.

        Only the clients of the last call stay in memory.
        """
        task = federated_task(setting.model)
        key = (task.file, setting.clients, setting.alpha, setting.seed)
        if key not in self._federations:
            sources = Sources(self._files.get(task.file), self._tfds_dir)
            self._federations = {key: task.load(setting, sources)}
        return self._federations[key]

    def require_files(self) -> None:
        """Loads each of the user's files that replaces a data set; raises InputError if one can't be used."""
        for model in TASKS:
            self.checksum(model)


def file_names() -> list[str]:
    """Returns the names of the data sets that a user's file may replace."""
    names = [task.data.file for task in TASKS.values()]
    names += [task.file for task in FEDERATED_TASKS.values()]
    return list(dict.fromkeys(names))


class Cell(NamedTuple):
    """A piece of a sweep's work, such as the audit of a single setting.

    Attributes:
      name: The name for people.
      identity: A text that is the same for cells that are the same work but for their number of runs. Of such
        cells only the one with the most runs is done.
      runs: The number of runs.
      seconds: An estimate of the seconds that it takes on two cores.
      is_done: (holdings, data sets) -> whether the store has all of it. Needs no JAX, and loads no data but
        the user's files.
      open: (the store's root, data sets) -> the cell's store.
      do: (store, data sets, progress) -> anything; computes all that the store lacks.
      request: What it computes, in the terms of its kind; read by its paper's figures.
      audited: The audit, where the cell is one, else None. Processes without a store can train an audit's
        runs.
    """

    name: str
    identity: str
    runs: int
    seconds: float
    is_done: Callable[[Holdings, DataSets], bool]
    open: Callable[[Path, DataSets], Store]
    do: Callable[[Store, DataSets, Progress], object]
    request: Any = None
    audited: Audited | None = None


def write_answer(store: Store, values: dict[str, Any]) -> None:
    """Writes an answer, a JSON object, to a store; raises InputError if it can't be written."""
    store.write_text(_ANSWER, json.dumps(values) + "\n")


def read_answer(store: Store) -> dict[str, Any] | None:
    """Returns a store's answer; None if it is missing, or damaged and so to be computed again."""
    content = files.read(store.path / _ANSWER)
    if content is None:
        return None
    try:
        return dict(json.loads(content))
    except (ValueError, TypeError):
        files.set_aside(store.path / _ANSWER, "it counts as missing")
        return None


def find_answer(held: Holdings, setting: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the answer in the store of a setting's identity; None if there is none, or it is damaged."""
    store = held.open(setting)
    return None if store is None else read_answer(store)
