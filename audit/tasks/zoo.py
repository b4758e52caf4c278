"""The models that the repository brings, where it is there: `audit` installed alone has none."""

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType

from audit.errors import InputError
from audit.tasks.task import FederatedTask, Task

_ZOO = "models"
_ROOT = Path(__file__).resolve().parents[2]
_ALONE = (
    "give a model of your own to audit.audit_loss, or run your script in a clone of the repository"
)


def tasks() -> Mapping[str, Task]:
    """Returns the models of `models/` that train on examples, by name; empty where the folder is missing."""
    if _missing():
        return {}
    rows: Mapping[str, Task] = _catalogue().TASKS
    return rows


def federated_tasks() -> Mapping[str, FederatedTask]:
    """Returns the models of `models/` that train on clients, by name; empty where the folder is missing."""
    if _missing():
        return {}
    rows: Mapping[str, FederatedTask] = _catalogue().FEDERATED_TASKS
    return rows


def task(model: str) -> Task:
    """Returns the task of a model of `models/` that trains on examples.

    Raises InputError for an unknown name, for a model that trains only on clients, and if `models/` is
    missing.
    """
    _require_zoo(model)
    row: Task = _catalogue().task(model)
    return row


def federated_task(model: str) -> FederatedTask:
    """Returns the task of a model of `models/` that trains on clients.

    Raises InputError for an unknown name, and if `models/` is missing.
    """
    _require_zoo(model)
    row: FederatedTask = _catalogue().federated_task(model)
    return row


def _catalogue() -> ModuleType:
    """Imports `models.catalogue`, the only module of `models/` to which the library refers."""
    return importlib.import_module(f"{_ZOO}.catalogue")


def _require_zoo(model: str) -> None:
    """Raises InputError, with the model's name, if `models/` cannot be used."""
    if missing := _missing():
        raise InputError(f"`model={model}` is a model of the repository: {missing}")


@cache
def _missing() -> str:
    """Returns why `models/` cannot be used, or "" if it can.

    If it can, `import models` works from now on, even where its folder is not on sys.path.
    """
    has_catalogue = (_ROOT / _ZOO / "catalogue.py").is_file()
    if not has_catalogue or not (_ROOT / "run.sh").is_file():
        # A folder of that name beside an installed `audit` is somebody else's.
        return _ALONE
    spec = importlib.util.find_spec(_ZOO)
    if spec is None:
        _import_from_folder()
        return ""
    # The folder of a package, or the file of a module.
    locations = [*(spec.submodule_search_locations or []), spec.origin or ""]
    place = Path(locations[0])
    if place.resolve() == _ROOT / _ZOO:
        return ""
    # `import models` would import another package or module of that name.
    return f"{place} stands in its way; rename that, or start your script with ./run.sh python"


def _import_from_folder() -> None:
    """Imports the package `models` from the folder beside `audit`, whether or not it is on sys.path."""
    spec = importlib.util.spec_from_file_location(_ZOO, _ROOT / _ZOO / "__init__.py")
    assert spec is not None and spec.loader is not None
    spec.submodule_search_locations = [str(_ROOT / _ZOO)]
    module = importlib.util.module_from_spec(spec)
    sys.modules[_ZOO] = module
    spec.loader.exec_module(module)
