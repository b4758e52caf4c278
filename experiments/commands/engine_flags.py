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
    """Defines the flags that choose an engine."""
    flags.DEFINE_string("engine", "local", "local, or ray: a Ray cluster trains.")
    define_ray_address("one of this machine alone")


def define_ray_address(otherwise: str) -> None:
    """Defines the flag of a Ray cluster; `otherwise` says in its help what happens without it."""
    flags.DEFINE_string(
        "ray_address", None, f"A Ray cluster: host:port, or auto; without it {otherwise}."
    )


def engine() -> "AbstractContextManager[TrainingEngine]":
    """Returns the engine that the flags name, which trains inside a `with` block.

    Raises:
      InputError: For flags that do not go together; when the block begins, where the engine can't start.
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
    """Yields an engine: this process's, or a Ray cluster's, which stays joined for the block.

    Args:
      name: "local" or "ray".
      address: Of the cluster, host:port or auto; None: a cluster of this machine alone, which is started.
    """
    if name == "ray":
        from experiments.cells import cluster, jobs

        if address is None:
            address = cluster.LOCAL
        with cluster.join(address) as ray_cluster:
            yield jobs.make_engine(ray_cluster)
    else:
        prepare_jax()
        from experiments.cells import work

        yield work.TrainingEngine(work.LocalTrainer, work.do_all)
