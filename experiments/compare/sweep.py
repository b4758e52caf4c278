"""The methods that train, as data: each one's setting of the mechanism, and its training as a cell."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from audit.progress import Progress
from audit.settings import stored
from audit.settings.make import setting_of
from audit.settings.setting import Setting, identity
from audit.statistics.estimate import ASSUMPTION_FREE, IF_GAUSSIAN
from audit.statistics.lifted import CLUSTERED, LIFTED, LIFTED_GAUSSIAN
from audit.storage.index import Holdings
from audit.storage.store import Store
from experiments.cells.audits import is_on, step_seconds
from experiments.cells.cell import Cell, DataSets
from experiments.compare.compared import Compared

COORDINATES, DIRECTIONS = 64, 32  # canaries a run
FINAL, ALL = "final model", "every iterate"


class TrainedMethod(NamedTuple):
    """A method: what it sees, the setting and the runs that it trains, and the bounds of many runs that are
    shown, in their order; () for a single run of many canaries."""

    method: str
    sees: str
    setting: Setting
    runs: int
    shown: tuple[str, ...] = ()

    def cell(self) -> Cell:
        """The training; what the scores say is concluded by who reads them."""
        setting, runs = self.setting, self.runs

        def is_done(held: Holdings, data: DataSets) -> bool:
            store = held.open(identity(setting))
            if store is None or not is_on(store, data.checksum(setting.model)):
                return False
            return not store.missing(runs)

        def open_store(out: Path, data: DataSets) -> Store:
            return stored.open_store(out, setting, data.load(setting.model))

        def do(store: Store, data: DataSets, progress: Progress) -> None:
            from audit import training
            from audit.settings import build

            build.validate(setting, max(runs, 2))  # one run of many canaries has both worlds
            played = build.build(setting, data.load(setting.model))
            training.train(played, store, runs, progress=progress)

        seconds = runs * setting.schedule.steps * step_seconds(setting)
        key = json.dumps(identity(setting))
        return Cell(self.method, key, runs, seconds, is_done, open_store, do, shared=True)


def trained(compared: Compared) -> list[TrainedMethod]:
    """The methods of one mechanism that train it."""

    def setting(adversary: str, **fields: Any) -> Setting:
        return setting_of(
            compared.model,
            adversary=adversary,
            steps=compared.steps,
            batch_size=compared.batch_size,
            learning_rate=compared.learning_rate,
            clipping_norm=compared.clipping_norm,
            noise_multiplier=compared.noise_multiplier,
            seed=compared.seed,
            **fields,
        )

    many, once = f"hidden state, K = {COORDINATES}", compared.one_run_canaries
    single, coordinates = setting("gc_s"), setting("gc_r", canaries=COORDINATES)
    directions = setting("cots", canaries=DIRECTIONS)
    final, every = (setting("one_shot", canaries=once, observe=observe) for observe in ("final", "all"))
    lifted = LIFTED_GAUSSIAN, CLUSTERED, LIFTED
    intervals = "lidp_wilson_2", "lidp_bernstein_2"
    return [
        TrainedMethod("hidden state", FINAL, single, compared.single_runs, (IF_GAUSSIAN, ASSUMPTION_FREE)),
        TrainedMethod(many, FINAL, coordinates, compared.many_runs, lifted),
        TrainedMethod(f"LiDP, K = {DIRECTIONS}", FINAL, directions, compared.lidp_runs, intervals),
        TrainedMethod("one-shot, final", FINAL, final, 1),
        TrainedMethod("one-shot, all", ALL, every, 1),
    ]
