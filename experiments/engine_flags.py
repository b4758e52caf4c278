"""The flags of who trains, and the engine that they name, for the commands that let a cluster do it."""

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from absl import flags

from audit.errors import require
from audit.machine import prepare_jax

if TYPE_CHECKING:
    from experiments.cells.work import TrainingEngine

ENGINES = ("local", "ray")


def define_engine() -> None:
    """Defines the flags of who trains."""
    flags.DEFINE_string("engine", "local", "local, or ray: a Ray cluster trains.")
    define_ray_address("one of this machine alone")


def define_ray_address(otherwise: str) -> None:
    """Defines the flag of a Ray cluster, and says what goes without it."""
    flags.DEFINE_string("ray_address", None, f"A Ray cluster: host:port, or auto; without it {otherwise}.")


def engine() -> "AbstractContextManager[TrainingEngine]":
    """The engine that the flags name, for a block; raises InputError for other flags, and the block where it
    can't be had."""
    name, address = flags.FLAGS.engine, flags.FLAGS.ray_address
    require(name in ENGINES, f"`engine={name}` is unknown: choose one of {', '.join(ENGINES)}")
    require(name == "ray" or address is None, f"`ray_address={address}` goes with `engine=ray`: give both")
    return _started(name, address)


@contextlib.contextmanager
def _started(name: str, address: str | None) -> "Iterator[TrainingEngine]":
    if name == "ray":
        from experiments.cells import cluster, jobs

        with cluster.joined(cluster.LOCAL if address is None else address) as joined:
            yield jobs.engine(joined)
        return
    prepare_jax()
    from experiments.cells import work

    yield work.TrainingEngine(work.LocalTrainer, work.do_all)
