"""Audits of trained models as cells: scores, and audit.json."""

import json
from collections.abc import Hashable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from audit.errors import InputError
from audit.runtime.progress import Progress
from audit.settings import stored
from audit.settings.adversaries import adversary_row
from audit.settings.setting import Setting, flat, identity
from audit.storage.index import Holdings
from audit.storage.store import Store
from audit.tasks.task import Dataset
from experiments.cells.cell import Audited, Cell, DataSets, GameRecipe, Parts
from models.catalogue import task

# Seconds that a program takes to compile on two cores, as measured: 4 for the ConvNet, 8 for the FCNN.
_COMPILING_SECONDS = 8.0


def audit_cell(audited: Audited) -> Cell:
    """Returns the cell of an audit."""
    setting = audited.setting
    runs = audited.runs
    conclude = partial(_conclude, setting, runs)

    def is_done(held: Holdings, data: DataSets) -> bool:
        store = held.open(identity(setting))
        if store is None or not is_on(store, data.checksum(setting.model)):
            return False
        return concluded_runs(store) >= runs and not store.missing(runs)

    def open_store(out: Path, data: DataSets) -> Store:
        return stored.open_store(out, setting, data.load(setting.model))

    def do(store: Store, data: DataSets, progress: Progress) -> None:
        from audit.training import training

        dataset = data.load(setting.model)
        game_recipe = recipe(setting, runs, dataset)
        training.train(game_recipe.make(dataset), store, runs, progress=progress)
        conclude(store, game_recipe.about(dataset))

    return Cell(
        name=f"{audited.series}, seed {setting.seed}, {audited.panel}",
        identity=json.dumps(identity(setting)),
        runs=runs,
        seconds=runs * setting.schedule.steps * step_seconds(setting),
        is_done=is_done,
        open=open_store,
        do=do,
        audited=audited,
        shared=True,
        parts=Parts(
            lambda data: data.load(setting.model), partial(recipe, setting, runs), conclude
        ),
    )


def step_seconds(setting: Setting) -> float:
    """Returns the seconds of a model-step on two cores, as measured."""
    return task(setting.model).step_seconds.of(setting.mechanism.batch_size)


def compiling_seconds(cells: Sequence[Cell]) -> float:
    """Estimates the seconds of compiling for all cells; cells whose programs have one shape share them."""
    programs = {_program_shape(cell) for cell in cells}
    return _COMPILING_SECONDS * len(programs)


def _program_shape(cell: Cell) -> Hashable:
    """Returns what is equal for two cells of audits that share a compiled program."""
    if cell.audited is None:
        return cell.identity
    setting = cell.audited.setting
    return (
        setting.model,
        adversary_row(setting.adversary.name).functions,
        setting.mechanism.batch_size,
        setting.schedule.steps,
        cell.runs,
        setting.unknown_initialisation,
    )


def is_on(store: Store, checksum: str | None) -> bool:
    """Returns whether a store's cells are on the data of that checksum; None allows any data."""
    return checksum in (None, store.config().get("data_sha256"))


def recipe(setting: Setting, runs: int, dataset: Dataset) -> GameRecipe:
    """Returns how a setting is trained; raises InputError where it can't be audited with so many runs."""
    from audit.settings import build

    build.validate(setting, runs)
    key = json.dumps([identity(setting), dataset.checksum])
    return GameRecipe(key, partial(build.build, setting), build.provenance)


def _conclude(setting: Setting, runs: int, store: Store, provenance: dict[str, Any]) -> None:
    """Computes what the stored scores show at the usual levels, and keeps it as audit.json."""
    from audit.conclusions import results
    from audit.conclusions.concluded import conclude_setting

    conclusion = conclude_setting(store.load(runs), setting)
    results.keep_result(
        store,
        conclusion,
        setting=flat(setting),
        runs=runs,
        provenance=provenance,
        out=str(store.path),
    )


def concluded_runs(store: Store) -> int:
    """Returns the runs that audit.json concludes from; 0 where there is none or it can't be read."""
    try:
        result = store.result()
    except InputError:
        return 0
    if result is None or result.runs is None:
        return 0
    return result.runs
