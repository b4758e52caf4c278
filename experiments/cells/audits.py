"""Makes audits of trained models into cells, whose stores then have scores and audit.json."""

import json
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from audit.errors import InputError
from audit.runtime.progress import Progress
from audit.settings import stored
from audit.settings.adversaries import adversary_row
from audit.settings.setting import Setting, flat, identity, validate
from audit.storage.index import Holdings
from audit.storage.store import LOOKS, Store
from audit.tasks.task import Dataset
from experiments.cells.cell import Audited, Cell, DataSets, GameRecipe
from models.catalogue import task

# Seconds in which a program compiles on two cores, as measured: 4 for the ConvNet, 8 for the FCNN.
_COMPILING_SECONDS = 8.0


def audit_cell(audited: Audited) -> Cell:
    """Returns an audit as a cell: it trains the audit's runs, and writes audit.json.

    Its `open` raises InputError for a store whose scores were looked at under declared looks, and such a
    store is never done: a conclusion from all its runs would be another look.
    """
    setting = audited.setting
    runs = audited.runs

    def is_complete(store: Store) -> bool:
        """Returns whether the store has all runs, and an audit.json that concludes from at least as many.

        False where that audit.json is of a declared look.
        """
        was_looked_at = (store.path / LOOKS).exists()
        return not was_looked_at and concluded_runs(store) >= runs and not store.missing(runs)

    def do(store: Store, dataset: Dataset, progress: Progress) -> None:
        """Trains the runs that the store lacks, and writes the conclusion from all runs."""
        from audit.training import training

        game_recipe = recipe(setting, runs, dataset)
        training.train(game_recipe.make(dataset), store, runs, progress=progress)
        conclude(audited, store, game_recipe.about(dataset))

    name = f"{audited.series}, seed {setting.seed}, {audited.panel}"
    cell = setting_cell(name, setting, runs, is_complete, do)

    def open_store(out: Path, data: DataSets) -> Store:
        """Returns the cell's store below `out`; raises InputError where looks were declared for it."""
        from audit.conclusions import results  # loads SciPy

        store = cell.open(out, data)
        results.require_declared(store, [])
        return store

    # Shared: several workers can train the runs of an audit at once, each a part.
    return cell._replace(open=open_store, shared=True, audited=audited)


def setting_cell(
    name: str,
    setting: Setting,
    runs: int,
    is_complete: Callable[[Store], bool],
    do: Callable[[Store, Dataset, Progress], object],
    experiment: str = "audit",
) -> Cell:
    """Returns the cell of an experiment with a setting, which has a store of its own.

    Args:
      name: The cell's name for people.
      setting: The setting.
      runs: The number of the cell's runs.
      is_complete: (store) -> whether the store has all results of the cell.
      do: (store, the model's data, progress) -> anything; computes what the store lacks.
      experiment: The experiment's name, which is a part of the cell's identity.
    """
    cell_identity = identity(setting, experiment)

    def is_done(held: Holdings, data: DataSets) -> bool:
        """Returns whether the cell's store is of the same data, and has all results of the cell."""
        store = held.open(cell_identity)
        if store is None:
            return False
        # Features that are computed here differ in their last bits between machines. Data of such features
        # have None for a checksum, and any stored checksum passes.
        checksum = data.checksum(setting.model)
        is_on_same_data = checksum in (None, store.config().get("data_sha256"))
        return is_on_same_data and is_complete(store)

    def open_store(out: Path, data: DataSets) -> Store:
        """Returns the cell's store below `out`."""
        return stored.open_store(out, setting, data.load(setting.model), experiment)

    return Cell(
        name=name,
        identity=json.dumps(cell_identity),
        runs=runs,
        seconds=runs * setting.schedule.steps * step_seconds(setting),
        is_done=is_done,
        open=open_store,
        do=lambda store, data, progress: do(store, data.load(setting.model), progress),
    )


def step_seconds(setting: Setting) -> float:
    """Returns the seconds that a model-step of a setting takes on two cores, as measured for its model."""
    return task(setting.model).step_seconds.of(setting.mechanism.batch_size)


def compiling_seconds(cells: Sequence[Cell]) -> float:
    """Estimates the seconds of compiling for all cells; cells with equal programs share them."""
    programs = {_program_shape(cell) for cell in cells}
    return _COMPILING_SECONDS * len(programs)


def _program_shape(cell: Cell) -> Hashable:
    """Returns a key that two cells have in common if they share a compiled program.

    Two audits share a program if all that decides the shapes of arrays and the compiled functions is equal. A
    cell of another kind shares it with those whose requests have the same type, unless that is a setting.
    """
    if cell.audited is None:
        if isinstance(cell.request, Setting):
            return cell.identity
        return type(cell.request).__name__
    setting = cell.audited.setting
    row = adversary_row(setting.adversary.name)
    return (
        setting.model,
        row.biased or row.fields.name,  # those along a coordinate have the same functions
        setting.mechanism.batch_size,
        setting.schedule.steps,
        cell.runs,
        setting.unknown_initialisation,
    )


def recipe(setting: Setting, runs: int, dataset: Dataset) -> GameRecipe:
    """Returns the recipe of a setting's training: how any process makes the game that trains its runs.

    Raises InputError where this number of runs can't audit the setting.
    """
    from audit.settings import build

    validate(setting, runs)
    key = json.dumps([identity(setting), dataset.checksum])
    return GameRecipe(key, partial(build.build, setting), build.provenance)


def conclude(audited: Audited, store: Store, provenance: dict[str, Any]) -> None:
    """Draws the conclusion from the stored scores at the usual levels, and writes it as audit.json."""
    from audit.conclusions import results
    from audit.conclusions.concluded import conclude_setting

    setting = audited.setting
    runs = audited.runs
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
    """Returns the number of runs from which audit.json concludes; 0 where it is missing or can't be read."""
    try:
        result = store.result()
    except InputError:
        return 0
    if result is None or result.runs is None:
        return 0
    return result.runs
