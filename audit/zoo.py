"""The models that the repository brings, where it is there: `audit` installed alone has none."""

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType

from audit.errors import InputError
from audit.task import FederatedTask, Task

_ZOO = "models"
_ROOT = Path(__file__).resolve().parents[1]
_ALONE = "give a model of your own to audit.audit_loss, or run your script in a clone of the repository"


def tasks() -> Mapping[str, Task]:
    """The zoo's models that train on examples, by name; empty without the repository."""
    found: Mapping[str, Task] = {} if _missing() else _catalogue().TASKS
    return found


def federated_tasks() -> Mapping[str, FederatedTask]:
    """The zoo's models that train on clients, by name; empty without the repository."""
    found: Mapping[str, FederatedTask] = {} if _missing() else _catalogue().FEDERATED_TASKS
    return found


def task(model: str) -> Task:
    """A model's row; raises InputError for one that has none, or that trains on clients alone."""
    _require_zoo(model)
    found: Task = _catalogue().task(model)
    return found


def federated_task(model: str) -> FederatedTask:
    """A federated model's row; raises InputError for one that has none."""
    _require_zoo(model)
    found: FederatedTask = _catalogue().federated_task(model)
    return found


def _catalogue() -> ModuleType:
    return importlib.import_module(f"{_ZOO}.catalogue")  # the library's one word of the zoo


def _require_zoo(model: str) -> None:
    if missing := _missing():
        raise InputError(f"`model={model}` is a model of the repository: {missing}")


@cache
def _missing() -> str:
    """Why there is no zoo; empty where there is one, which can be imported from now on."""
    if not ((_ROOT / _ZOO / "catalogue.py").is_file() and (_ROOT / "run.sh").is_file()):
        return _ALONE  # a folder of that name beside an installed `audit` is somebody else's
    spec = importlib.util.find_spec(_ZOO)
    if spec is None:  # import it from its folder, wherever sys.path leads
        spec = importlib.util.spec_from_file_location(_ZOO, _ROOT / _ZOO / "__init__.py")
        assert spec is not None and spec.loader is not None
        spec.submodule_search_locations = [str(_ROOT / _ZOO)]
        sys.modules[_ZOO] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return ""
    place = Path([*(spec.submodule_search_locations or []), spec.origin or ""][0])
    if place.resolve() == _ROOT / _ZOO:
        return ""
    return f"{place} stands in its way; rename that, or start your script with ./run.sh python"
