"""A cell: a piece of a sweep's work, as a record of functions; the data that cells are on, and their answers.

A kind of cell is a module that makes such records; nothing else knows kinds. Importing this starts no JAX.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from audit.errors import InputError, require
from audit.progress import Progress
from audit.settings.federated import FederatedSetting
from audit.settings.setting import Setting
from audit.storage import files
from audit.storage.index import Holdings
from audit.storage.store import Store
from audit.task import Data, Dataset, Federation, Sources
from models.catalogue import FEDERATED_TASKS, TASKS, federated_task

if TYPE_CHECKING:
    from audit.game import Game

_ANSWER, _CHECKSUM = "answer.json", "sha256"


class Levels(NamedTuple):
    """delta and confidence of bounds; by default audit.json's, since scores are kept."""

    delta: float = 1e-5
    confidence: float = 0.95


class Audited(NamedTuple):
    """An audit of trained models and its place in a figure: panel, series, and x."""

    panel: str
    series: str
    x: float
    setting: Setting
    runs: int


class DataSets:
    """The models' data, from named files or as `audit` finds them, each loaded when first needed."""

    def __init__(self, named: Mapping[str, str | None], tfds_dir: str | None = None) -> None:
        """`named`: files in place of published data sets, by name; tfds_dir: a prepared TFDS folder."""
        self._named, self._tfds_dir = named, tfds_dir
        self._loaded: dict[str, Dataset | InputError] = {}
        self._clients: dict[tuple[object, ...], Federation] = {}

    def checksum(self, model: str) -> str | None:
        """Of a model's data; None for features that are computed, of which none is published."""
        data = TASKS[model].data
        return self.load(model).checksum if self._is_published_and_named(data) else data.checksum

    def load(self, model: str) -> Dataset:
        """A model's data; raises InputError, the same each time, where they can't be loaded."""
        data = TASKS[model].data
        if data.name not in self._loaded:
            try:
                self._loaded[data.name] = data.load(Sources(self._named.get(data.file), self._tfds_dir))
            except InputError as error:
                self._loaded[data.name] = error
        found = self._loaded[data.name]
        if isinstance(found, InputError):
            raise found
        return found

    def clients(self, setting: FederatedSetting) -> Federation:
        """A federated setting's clients; raises InputError where they can't be loaded."""
        task = federated_task(setting.model)
        key = task.file, setting.clients, setting.alpha, setting.seed
        if key not in self._clients:
            self._clients = {key: task.load(setting, Sources(data_file=self._named.get(task.file)))}
        return self._clients[key]

    def require_named(self) -> None:
        """Loads published data sets that were named; raises InputError where one can't be used."""
        for model, task in TASKS.items():
            if self._is_published_and_named(task.data):
                self.load(model)

    def _is_published_and_named(self, data: Data) -> bool:
        return data.checksum is not None and self._named.get(data.file) is not None


def file_names() -> list[str]:
    """The data sets that a file may stand in for."""
    examples = (task.data.file for task in TASKS.values())
    return list(dict.fromkeys([*examples, *(task.file for task in FEDERATED_TASKS.values())]))


class GameRecipe(NamedTuple):
    """A training that processes without a store can do, who get it pickled.

    key: equal for equal games on equal data. make: data -> the game; raises InputError where that can't be.
    about: data -> what is kept of the circumstances.
    """

    key: str
    make: "Callable[[Dataset], Game]"
    about: Callable[[Dataset], dict[str, Any]]


class Parts(NamedTuple):
    """A cell as a training of runs, and what is concluded from these.

    data: what it is trained on. recipe: of the training; raises InputError where it can't be done. conclude:
    once the store has all runs, with what the recipe's `about` says on a worker.
    """

    data: Callable[[DataSets], Dataset]
    recipe: Callable[[Dataset], GameRecipe]
    conclude: Callable[[Store, dict[str, Any]], object]


class Cell(NamedTuple):
    """A piece of work.

    name: for people. identity: equal for cells that are one piece of work; of those the one of most runs is
    done. seconds: on two cores, as an estimate. is_done: off the store alone, without JAX or data that nobody
    named. open: its store. do: all that is missing. audited: where it is an audit. shared: whether several
    workers can do it at once, each a part. parts: where its runs can be trained by who has no store. request:
    what it computes, in its own kind's terms, for its paper's figures.
    """

    name: str
    identity: str
    runs: int
    seconds: float
    is_done: Callable[[Holdings, DataSets], bool]
    open: Callable[[Path, DataSets], Store]
    do: Callable[[Store, DataSets, Progress], object]
    audited: Audited | None = None
    shared: bool = False
    parts: Parts | None = None
    request: object = None


def write_answer(store: Store, values: dict[str, Any]) -> None:
    """Keeps an answer, a JSON object beside its SHA-256; raises InputError where it can't be written."""
    store.write_text(_ANSWER, answer_text(values))


def read_answer(store: Store) -> dict[str, Any] | None:
    """The answer; None where there is none that is whole. See `Store.distrust` for a damaged one."""
    content = files.read(store.path / _ANSWER)
    if content is None:
        return None
    try:
        return parsed_answer(content)
    except (ValueError, RecursionError):
        store.distrust(store.path / _ANSWER, "it is computed again")
        return None


def answer_text(values: dict[str, Any]) -> str:
    """An answer as it is written."""
    return json.dumps({**values, _CHECKSUM: _checksum(values)}) + "\n"


def parsed_answer(content: bytes, unsigned: bool = False) -> dict[str, Any]:
    """A written answer; raises ValueError or RecursionError if torn, altered or without checksum."""
    values = json.loads(content)
    require(isinstance(values, dict), "an object")
    checksum = values.pop(_CHECKSUM, None)
    require(checksum == _checksum(values) or (unsigned and checksum is None), "altered")
    return dict(values)


def _checksum(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
