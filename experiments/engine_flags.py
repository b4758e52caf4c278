"""The flags of who trains, for the commands that let a cluster do it."""

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from absl import flags

if TYPE_CHECKING:
    from experiments.cells.work import TrainingEngine


def define_engine() -> None:
    """Defines the flags of who trains."""
    flags.DEFINE_string("engine", "local", "local, or ray: a Ray cluster trains.")
    define_ray_address("one of this machine alone")


def define_ray_address(otherwise: str) -> None:
    """Defines the flag of a Ray cluster, and says what goes without it."""
    flags.DEFINE_string("ray_address", None, f"A Ray cluster: host:port, or auto; without it {otherwise}.")


def engine() -> "AbstractContextManager[TrainingEngine]":
    """The engine that the flags name, for a block; raises InputError where it can't be had."""
    from experiments.cells import engines

    return engines.engine(flags.FLAGS.engine, flags.FLAGS.ray_address)
