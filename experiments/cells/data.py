"""The data sets of a sweep: each is loaded once, when a cell first needs it."""

from collections.abc import Mapping

from audit.errors import InputError
from audit.settings.federated import FederatedSetting
from audit.task import Data, Dataset, Federation, Sources
from models.catalogue import FEDERATED_TASKS, TASKS, federated_task


class DataSets:
    """The models' data, from files that the caller names or as `audit` finds them."""

    def __init__(self, named: Mapping[str, str | None], tfds_dir: str | None = None) -> None:
        """`named` has the files that stand in for published data sets, by the data sets' names; tfds_dir: a
        prepared TFDS folder."""
        self._named, self._tfds_dir = named, tfds_dir
        self._loaded: dict[str, Dataset | InputError] = {}
        self._clients: dict[tuple[object, ...], Federation] = {}

    def checksum(self, model: str) -> str | None:
        """Of a model's data; None for features that are computed, of which none is published."""
        data = TASKS[model].data
        return (
            data.checksum if self._file(data) is None or data.checksum is None else self.load(model).checksum
        )

    def load(self, model: str) -> Dataset:
        """A model's data; raises InputError, the same each time, where they can't be loaded."""
        data = TASKS[model].data
        if data.name not in self._loaded:
            try:
                self._loaded[data.name] = data.load(Sources(self._file(data), self._tfds_dir))
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
            if task.data.checksum is not None and self._file(task.data) is not None:
                self.load(model)

    def _file(self, data: Data) -> str | None:
        """The file that was named for it."""
        return self._named.get(data.file)


def file_names() -> list[str]:
    """The data sets that a file may stand in for."""
    examples = (task.data.file for task in TASKS.values())
    return list(dict.fromkeys([*examples, *(task.file for task in FEDERATED_TASKS.values())]))
