"""The engines by name, each for a block."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from audit.errors import require
from audit.machine import prepare_jax

if TYPE_CHECKING:
    from audit.task import Dataset
    from audit.training import Trained
    from experiments.cells.cell import GameRecipe
    from experiments.cells.engine import TrainingEngine, Wanted


@contextlib.contextmanager
def _here(address: str | None) -> Iterator["TrainingEngine"]:
    """This process, on the devices of this machine."""
    require(address is None, f"`ray_address={address}` goes with `engine=ray`: give both")
    prepare_jax()
    from experiments.cells import work
    from experiments.cells.engine import TrainingEngine

    yield TrainingEngine(_Here, work.do_all)


@contextlib.contextmanager
def _ray(address: str | None) -> Iterator["TrainingEngine"]:
    """A Ray cluster, one of this machine alone where no address is given."""
    from experiments.cells import cluster, on_ray

    with cluster.joined(cluster.LOCAL if address is None else address) as joined:
        yield on_ray.engine(joined)


ENGINES: dict[str, Callable[[str | None], AbstractContextManager["TrainingEngine"]]] = {
    "local": _here,
    "ray": _ray,
}


def engine(name: str, address: str | None) -> AbstractContextManager["TrainingEngine"]:
    """The engine of a name; raises InputError for another, and where it can't be had."""
    require(name in ENGINES, f"`engine={name}` is unknown: choose one of {', '.join(ENGINES)}")
    return ENGINES[name](address)


class _Here:
    """A trainer in this process."""

    def __init__(self, recipe: "GameRecipe", data: "Dataset") -> None:
        self._recipe, self._data = recipe, data
        self._played = recipe.make(data)

    def train(self, wanted: "Wanted") -> "Trained":
        """See `Trainer`."""
        from audit import training

        chunk, store = wanted.chunk, wanted.store
        if training.lacking(store, wanted.runs):
            chunk = training.chunk_size(self._played, wanted.added, chunk)
        return training.train(self._played, store, wanted.runs, chunk, progress=wanted.progress)

    def about(self) -> dict[str, Any]:
        """See `Trainer`."""
        return self._recipe.about(self._data)
