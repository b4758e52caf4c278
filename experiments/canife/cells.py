"""Training runs under attack as cells of a sweep.

Importing this starts no JAX.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from audit.runtime.progress import Progress
from audit.storage.index import Holdings
from audit.storage.store import Store
from experiments.canife import measured
from experiments.canife.attacked import Attacked, identity
from experiments.cells.cell import Cell, DataSets

_STEP_SECONDS = 0.006  # seconds of a step of a canary's design on two cores, compilation included


def attacked_cell(setting: Attacked, numbers: Sequence[int], name: str) -> Cell:
    """Returns the cell, a piece of a sweep's work, that measures rounds of a training run under attack.

    Args:
      setting: The setting of the attacked training run, with its numbers of clients.
      numbers: Numbers of the rounds to measure; the cell counts each as a run.
      name: A name for people.
    """
    # The functions of a cell have the parameters that every kind of cell has. They import what starts JAX
    # when they are called, so that listing cells does not start it.

    def is_done(held: Holdings, data: DataSets) -> bool:
        """Returns whether all rounds are measured already, by what the folder of stores holds (`held`)."""
        return len(measured.read(held, setting, numbers)) == len(numbers)

    def open_cell(out: Path, data: DataSets) -> Store:
        """Opens the store of the measured rounds, in the folder `out`."""
        from experiments.canife import populations

        # The data are a part of the store's identity.
        checksum = populations.split_clients(setting, data).checksum
        return measured.open_store(setting, checksum, out)

    def do(store: Store, data: DataSets, progress: Progress) -> None:
        """Measures the rounds in `numbers` that the store lacks, and reports each."""
        from experiments.canife import populations, training

        split = populations.split_clients(setting, data)
        for _ in training.measure_missing(setting, split, store, numbers):
            progress(1)

    # Most of a round's time goes to the design of its canary.
    runs = len(numbers)
    return Cell(
        name=name,
        identity=json.dumps(identity(setting)),
        runs=runs,
        seconds=runs * setting.design_steps * _STEP_SECONDS,
        is_done=is_done,
        open=open_cell,
        do=do,
        request=setting,
    )
