"""Cells that audit trained models. Their stores contain scores and audit.json."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

from audit.errors import InputError
from audit.runtime.machine import Progress
from audit.settings import make
from audit.settings.setting import Setting, identity
from audit.storage.index import Holdings
from audit.storage.store import Store
from audit.tasks.task import Dataset
from experiments.cells.cell import Audited, Cell, DataSets


def audit_cell(audited: Audited) -> Cell:
    """Returns the cell that trains an audit's runs and writes the conclusion, audit.json."""
    setting = audited.setting
    runs = audited.runs

    def is_complete(store: Store) -> bool:
        """Returns True if the store has all runs and its audit.json covers at least `runs` runs."""
        num_concluded = 0
        with contextlib.suppress(InputError):  # audit.json is missing or damaged
            num_concluded = store.result().runs or 0  # None if not stored
        return num_concluded >= runs and not store.missing(runs)

    def do(store: Store, dataset: Dataset, progress: Progress) -> None:
        """Trains the missing runs and writes audit.json."""
        from audit.training import driver  # loads SciPy

        request = driver.make_request(setting, dataset, runs)
        root_of_stores = store.path.parent
        driver.keep(driver.audit(request, root_of_stores, report=progress))

    name = f"{audited.series}, seed {setting.seed}, {audited.panel}"
    return setting_cell(name, setting, runs, is_complete, do)._replace(audited=audited)


def setting_cell(
    name: str,
    setting: Setting,
    runs: int,
    is_complete: Callable[[Store], bool],
    do: Callable[[Store, Dataset, Progress], object],
    experiment: str = "audit",
) -> Cell:
    """Returns a cell that runs an experiment with one setting, and has its own store.

    Args:
      name, setting, runs: The displayed name, the setting and the number of training runs.
      is_complete: (store) -> True if the store has all results.
      do: (store, the model's data, progress); computes the missing results.
      experiment: The experiment's name, which is part of the cell's identity.
    """
    cell_identity = identity(setting, experiment)

    def is_done(held: Holdings, data: DataSets) -> bool:
        """Returns True if the cell's store is complete and was made with the same data."""
        store = held.open(cell_identity)
        if store is None:
            return False
        # A checksum of None, for computed features (see `DataSets.checksum`), matches any stored checksum.
        checksum = data.checksum(setting.model)
        has_same_data = checksum in (None, store.config().get("data_sha256"))
        return has_same_data and is_complete(store)

    def open_cell(out: Path, data: DataSets) -> Store:
        """Returns the cell's store under the root of all stores; creates it if it does not exist."""
        return make.open_store(out, setting, data.load(setting.model), experiment)

    def do_cell(store: Store, data: DataSets, progress: Progress) -> None:
        """Loads the model's data and computes the missing results."""
        do(store, data.load(setting.model), progress)

    return Cell(
        name=name,
        identity=json.dumps(cell_identity),
        runs=runs,
        is_done=is_done,
        open=open_cell,
        do=do_cell,
    )
