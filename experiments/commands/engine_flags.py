"""The flags that choose an engine: this machine trains, or a Ray cluster does."""

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from absl import flags

from audit.errors import require
from audit.runtime.machine import prepare_jax

if TYPE_CHECKING:
    from experiments.cells.work import TrainingEngine

ENGINES = ("local", "ray")


def define_engine() -> None:
    """Defines the flags --engine and --ray_address, which `engine` reads."""
    flags.DEFINE_string("engine", "local", "local, or ray: a Ray cluster trains.")
    define_ray_address("one of this machine alone")


def define_ray_address(otherwise: str) -> None:
    """Defines the flag --ray_address, a Ray cluster; its help says by `otherwise` what happens without it."""
    flags.DEFINE_string(
        "ray_address", None, f"A Ray cluster: host:port, or auto; without it {otherwise}."
    )


def engine() -> "AbstractContextManager[TrainingEngine]":
    """Returns a context that starts the engine which the flags name, and yields it.

    Raises:
      InputError: Flags do not go together. When the context is entered: the engine can't start.
    """
    name = flags.FLAGS.engine
    address = flags.FLAGS.ray_address
    require(name in ENGINES, f"`engine={name}` is unknown: choose one of {', '.join(ENGINES)}")
    require(
        name == "ray" or address is None,
        f"`ray_address={address}` goes with `engine=ray`: give both",
    )
    return _start(name, address)


@contextlib.contextmanager
def _start(name: str, address: str | None) -> "Iterator[TrainingEngine]":
    """Starts and yields the engine that trains, in this process or on a Ray cluster.

    With a cluster, this process belongs to it until the end of the block.

    Args:
      name: "local" for this process, "ray" for a cluster.
      address: The cluster's address, host:port or auto. None: a cluster of this machine alone is started.
    """
    if name == "ray":
        from experiments.cells import cluster, jobs

        if address is None:
            address = cluster.LOCAL
        with cluster.join(address) as ray_cluster:
            yield jobs.make_engine(ray_cluster)
    else:
        prepare_jax()
        from audit.training.driver import LocalTrainer
        from experiments.cells import work

        yield work.TrainingEngine(LocalTrainer, work.do_all)
