"""Audits of trained models as cells: scores, and audit.json."""

import json
from collections.abc import Hashable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from audit.errors import InputError
from audit.progress import Progress
from audit.settings import stored
from audit.settings.adversaries import adversary_row
from audit.settings.setting import Setting, flat, identity
from audit.storage.index import Holdings
from audit.storage.store import Store
from audit.task import Dataset
from experiments.cells.cell import Audited, Cell, DataSets, GameRecipe, Levels, Parts
from models.catalogue import task

_COMPILING = 8.0  # seconds of a program on two cores, as measured: 4 for the ConvNet, 8 for the FCNN


def audit_cell(audited: Audited) -> Cell:
    """The cell of an audit."""
    setting, runs = audited.setting, audited.runs

    def is_done(held: Holdings, data: DataSets) -> bool:
        store = held.open(identity(setting))
        if store is None or not is_on(store, data.checksum(setting.model)):
            return False
        return concluded_runs(store) >= runs and not store.missing(runs)

    def open_store(out: Path, data: DataSets) -> Store:
        return stored.open_store(out, setting, data.load(setting.model))

    def do(store: Store, data: DataSets, progress: Progress) -> None:
        from audit import training

        dataset = data.load(setting.model)
        wanted = recipe(setting, runs, dataset)
        training.train(wanted.make(dataset), store, runs, progress=progress)
        conclude(store, wanted.about(dataset))

    conclude = partial(_conclude, setting, runs)
    parts = Parts(lambda data: data.load(setting.model), partial(recipe, setting, runs), conclude)
    seconds = runs * setting.schedule.steps * step_seconds(setting)
    name = f"{audited.series}, seed {setting.seed}, {audited.panel}"
    key = json.dumps(identity(setting))
    return Cell(name, key, runs, seconds, is_done, open_store, do, audited, True, parts)


def step_seconds(setting: Setting) -> float:
    """Of a model-step on two cores, as measured."""
    return task(setting.model).step_seconds.of(setting.mechanism.batch_size)


def compiling_seconds(cells: Sequence[Cell]) -> float:
    """Of all that cells compile, about: cells whose programs are of one shape share them."""
    return _COMPILING * len({_program(cell) for cell in cells})


def _program(cell: Cell) -> Hashable:
    if cell.audited is None:
        return cell.identity
    it = cell.audited.setting
    shape = it.mechanism.batch_size, it.schedule.steps, cell.runs, it.unknown_initialisation
    return it.model, adversary_row(it.adversary.name).functions, *shape


def is_on(store: Store, checksum: str | None) -> bool:
    """Whether a store's cells stand on the data of that checksum, or on any where it is None."""
    return checksum in (None, store.config().get("data_sha256"))


def recipe(setting: Setting, runs: int, dataset: Dataset) -> GameRecipe:
    """The training of a setting; raises InputError where it can't be audited with so many runs."""
    from audit.settings import build

    build.validate(setting, runs)
    key = json.dumps([identity(setting), dataset.checksum])
    return GameRecipe(key, partial(build.build, setting), build.provenance)


def _conclude(setting: Setting, runs: int, store: Store, about: dict[str, Any]) -> None:
    from audit.concluded import of_setting
    from audit.storage import results

    about_it = {"setting": flat(setting), "runs": runs, "provenance": about, "out": str(store.path)}
    results.keep_result(store, of_setting(store.load(runs), setting, *Levels()), **about_it)


def concluded_runs(store: Store) -> int:
    """The runs that audit.json concludes from; 0 where there is none or it can't be read."""
    try:
        kept = store.result()
    except InputError:
        return 0
    return 0 if kept is None or kept.runs is None else kept.runs
