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
    """Returns the tasks of the models that train on examples, by model; empty if `models/` can't be used."""
    if _find_obstacle():
        return {}
    rows: Mapping[str, Task] = _catalogue().TASKS
    return rows


def federated_tasks() -> Mapping[str, FederatedTask]:
    """Returns the tasks of the models that train on clients, by model; empty if `models/` can't be used."""
    if _find_obstacle():
        return {}
    rows: Mapping[str, FederatedTask] = _catalogue().FEDERATED_TASKS
    return rows


def task(model: str) -> Task:
    """Returns the task of a model of `models/` that trains on examples.

    Raises InputError for an unknown name, for a model that trains only on clients, and if `models/` can't be
    used.
    """
    _require_zoo(model)
    row: Task = _catalogue().task(model)
    return row


def federated_task(model: str) -> FederatedTask:
    """Returns the task of a model of `models/` that trains on clients.

    Raises InputError for an unknown name, and if `models/` can't be used.
    """
    _require_zoo(model)
    row: FederatedTask = _catalogue().federated_task(model)
    return row


def _catalogue() -> ModuleType:
    """Imports `models.catalogue`, the only module of `models/` to which the library refers."""
    return importlib.import_module(f"{_ZOO}.catalogue")


def _require_zoo(model: str) -> None:
    """Raises InputError, with the model's name, if `models/` cannot be used."""
    if obstacle := _find_obstacle():
        raise InputError(f"`model={model}` is a model of the repository: {obstacle}")


@cache
def _find_obstacle() -> str:
    """Returns why the repository's package `models` can't be used, with what to do; "" if it can.

    If it can, `import models` works from now on, even if the repository's root is not on sys.path.
    """
    # `audit` may be installed without the repository: there is no run.sh then.
    if not (_ROOT / "run.sh").is_file():
        return _ALONE
    if importlib.util.find_spec(_ZOO) is None:
        sys.path.append(str(_ROOT))
        importlib.invalidate_caches()
    spec = importlib.util.find_spec(_ZOO)
    assert spec is not None
    # Another package or module of that name may come first: a module has no folder, but a file, its origin.
    locations = [*(spec.submodule_search_locations or []), spec.origin or ""]
    place = Path(locations[0])
    if place.resolve() == _ROOT / _ZOO:
        return ""
    return f"{place} stands in its way; rename that, or start your script with ./run.sh python"
