"""A cell: a piece of a sweep's work, as a record of functions; the data that cells are on, and their answers.

A kind of cell is a module that makes such records; nothing else knows which kinds there are. Importing this
starts no JAX.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from audit.errors import InputError, require
from audit.runtime.progress import Progress
from audit.settings.federated import FederatedTraining
from audit.settings.setting import Setting
from audit.storage import files
from audit.storage.index import Holdings
from audit.storage.store import Store
from audit.tasks.task import Data, Dataset, Federation, Sources
from models.catalogue import FEDERATED_TASKS, TASKS, federated_task

if TYPE_CHECKING:
    from audit.training.game import Game

_ANSWER = "answer.json"
_CHECKSUM = "sha256"  # a field of that file


class Audited(NamedTuple):
    """An audit of trained models and its place in a figure: panel, series, and x."""

    panel: str
    series: str
    x: float
    setting: Setting
    runs: int


class DataSets:
    """The models' data, from the user's files or as `audit` finds them, each loaded when first needed."""

    def __init__(self, data_files: Mapping[str, str | None], tfds_dir: str | None = None) -> None:
        """Loads nothing yet.

        Args:
          data_files: The user's file or folder in place of a published data set, by the data set's name;
            None for a data set that is used as published.
          tfds_dir: A folder of data sets that TensorFlow Datasets has prepared.
        """
        self._files = data_files
        self._tfds_dir = tfds_dir
        self._loaded: dict[str, Dataset | InputError] = {}
        # The federation that was loaded last, by what decides it.
        self._federations: dict[tuple[object, ...], Federation] = {}

    def checksum(self, model: str) -> str | None:
        """Returns the checksum of a model's data; None for computed features, of which none is published."""
        data = TASKS[model].data
        if self._is_replaced_by_a_file(data):
            return self.load(model).checksum
        return data.checksum

    def load(self, model: str) -> Dataset:
        """Returns a model's data; raises InputError, the same each time, where they can't be loaded."""
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

    def file(self, name: str) -> str | None:
        """Returns the file, or the folder, in place of a data set; None where the user names none."""
        return self._files.get(name)

    def clients(self, setting: FederatedTraining) -> Federation:
        """Returns a federated setting's clients; raises InputError where they can't be loaded.

        Only the last clients stay in memory.
        """
        task = federated_task(setting.model)
        key = (task.file, setting.clients, setting.alpha, setting.seed)
        if key not in self._federations:
            sources = Sources(self._files.get(task.file), self._tfds_dir)
            self._federations = {key: task.load(setting, sources)}
        return self._federations[key]

    def require_files(self) -> None:
        """Loads the files in place of published data sets; raises InputError if a file can't be used."""
        for model, task in TASKS.items():
            if self._is_replaced_by_a_file(task.data):
                self.load(model)

    def _is_replaced_by_a_file(self, data: Data) -> bool:
        """Returns whether the data are published, and a file takes their place."""
        return data.checksum is not None and self._files.get(data.file) is not None


def file_names() -> list[str]:
    """Returns the names of the data sets that a file may take the place of."""
    names = [task.data.file for task in TASKS.values()]
    names += [task.file for task in FEDERATED_TASKS.values()]
    return list(dict.fromkeys(names))


class GameRecipe(NamedTuple):
    """How to train a game, pickled for processes that have no store.

    Attributes:
      key: A text that is equal for equal games on equal data.
      make: (data) -> the game; raises InputError where it can't be made.
      about: (data) -> the versions and devices of a training, which are stored beside its scores.
    """

    key: str
    make: "Callable[[Dataset], Game]"
    about: Callable[[Dataset], dict[str, Any]]


class Cell(NamedTuple):
    """A piece of work.

    Attributes:
      name: A name for people.
      identity: A text that is equal for cells that are the same piece of work; of those, the cell with the
        most runs is done.
      runs: Its runs.
      seconds: An estimate of how long it takes on two cores.
      is_done: (holdings, data sets) -> whether the store has all of it; takes neither JAX nor data for which
        no file was given.
      open: (the store's root, data sets) -> its store.
      do: (store, data sets, progress) -> anything; does all that is missing.
      shared: Whether several workers can do it at once, each a part.
      request: What it computes, in its own kind's terms, for its paper's figures.
      audited: The audit, if it is an audit; processes without a store can train its runs too.
    """

    name: str
    identity: str
    runs: int
    seconds: float
    is_done: Callable[[Holdings, DataSets], bool]
    open: Callable[[Path, DataSets], Store]
    do: Callable[[Store, DataSets, Progress], object]
    shared: bool = False
    request: object = None
    audited: Audited | None = None


def write_answer(store: Store, values: dict[str, Any]) -> None:
    """Writes an answer, a JSON object with its SHA-256, to a store; raises InputError where it can't."""
    store.write_text(_ANSWER, answer_text(values))


def read_answer(store: Store) -> dict[str, Any] | None:
    """Returns a store's answer; None if it is missing or damaged (see `Store.distrust`)."""
    content = files.read(store.path / _ANSWER)
    if content is None:
        return None
    try:
        return parsed_answer(content)
    except (ValueError, RecursionError):
        store.distrust(store.path / _ANSWER, "it is computed again")
        return None


def answer_text(values: dict[str, Any]) -> str:
    """Returns an answer as it is written."""
    return json.dumps({**values, _CHECKSUM: _checksum(values)}) + "\n"


def parsed_answer(content: bytes, unsigned: bool = False) -> dict[str, Any]:
    """Returns a written answer; `unsigned` allows an answer without a checksum.

    Raises:
      ValueError, RecursionError: Where it is torn or altered, or its checksum is missing.
    """
    values = json.loads(content)
    require(isinstance(values, dict), "an object")
    checksum = values.pop(_CHECKSUM, None)
    is_unsigned = unsigned and checksum is None
    require(is_unsigned or checksum == _checksum(values), "altered")
    return dict(values)


def _checksum(values: dict[str, Any]) -> str:
    """Returns the SHA-256 of an answer without its checksum, in hex."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
