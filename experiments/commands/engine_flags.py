"""The flag that chooses what trains: this machine, or a Ray cluster."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from absl import flags

from audit.runtime.machine import prepare_jax

if TYPE_CHECKING:
    from experiments.cells.work import TrainingEngine


def define_engine() -> None:
    """Defines the flag --ray_address, which `engine` reads."""
    flags.DEFINE_string(
        "ray_address",
        None,
        "A Ray cluster trains: host:port, auto, or local to start one; by default this machine trains.",
    )


@contextlib.contextmanager
def engine() -> "Iterator[TrainingEngine]":
    """Yields what trains: this process, or a Ray cluster to which this process belongs in the block.

    Raises InputError if there is no cluster.
    """
    address = flags.FLAGS.ray_address
    if address is not None:
        from experiments.cells import ray_engine

        with ray_engine.join(address) as joined:
            yield joined
    else:
        prepare_jax()
        from audit.training.driver import LocalTrainer
        from experiments.cells import work

        yield work.TrainingEngine(LocalTrainer, work.do_all)
