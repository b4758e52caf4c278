"""Compiles training programs without running them, also for a TPU chip that this machine does not have.

The data are zeros of the real data's shapes, so that nothing is fetched. The chip is a v5e: 16 GB of memory
(Google Cloud TPU documentation, "TPU v5e") and 128 MiB of VMEM (JAX's
jax.experimental.pallas.tpu.get_tpu_info).
"""

import os
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from audit.errors import InputError
from audit.runtime import processes
from audit.runtime.machine import prepare_jax
from audit.settings.federated import FederatedSetting
from audit.settings.make import setting_of
from audit.tasks.task import Clients, Dataset
from models.catalogue import FEDERATED_TASKS, TASKS

if TYPE_CHECKING:
    import jax

    from audit.mechanism.ensemble import Placement
    from audit.mechanism.memory import Hardware
    from audit.training.game import Game

_CHIP_BYTES = 16 * 10**9
_CLIENTS = 600  # in a federated program; the examples are dealt evenly among them
_MOST_LETTERS = 200  # of a compiler's message that a table shows


class ProgramMemory(NamedTuple):
    """The memory, in bytes, that a compiled training program takes on a single device.

    Attributes:
      device: The whole program's bytes: arguments, outputs and temporary buffers.
      model: The bytes of each model that the device trains: outputs and temporary buffers. Arguments are left
        out, since most of them are the data, which all models share.
    """

    device: int
    model: int


class CompiledRow(NamedTuple):
    """The result of compiling a training program.

    Attributes:
      mechanism: "DP-SGD" or "DP-FedAvg".
      model: The model's name.
      bytes: The memory that one model takes (`ProgramMemory.model`); 0 where the program does not compile.
      failure: The reason why the program does not compile; empty where it does.
    """

    mechanism: str
    model: str
    bytes: int = 0
    failure: str = ""


def compile_for_tpu(mechanism: str, model: str) -> CompiledRow:
    """Compiles a model's training program for a TPU v5e, and returns its memory or why it does not compile.

    It is compiled in a process of its own, since a compiler may crash. A crash is returned as a failure too.

    Args:
      mechanism: "DP-SGD" or "DP-FedAvg".
      model: The model's name.
    """
    try:
        return processes.run_in_own_process(partial(_compile_here, mechanism, model))
    except InputError:
        return CompiledRow(mechanism, model, failure="the compiler ended its process")


def _compile_here(mechanism: str, model: str) -> CompiledRow:
    """Compiles a training program for a TPU v5e in this process: its memory, or why it does not compile.

    No TPU is needed: a description of the chip suffices for the compiler, and JAX itself runs on the CPU. JAX
    must not have been used in this process before, since the platform can't be changed afterwards.

    Args:
      mechanism: "DP-SGD" or "DP-FedAvg".
      model: The model's name.
    """
    os.environ["JAX_PLATFORMS"] = "cpu"
    prepare_jax(1)
    import jax
    from jax.experimental.topologies import get_topology_desc

    from audit.mechanism.memory import Hardware

    # Without the cache of compiled programs: only a process on the chip could read this program from it.
    jax.config.update("jax_enable_compilation_cache", False)
    # The chip's memory decides how many examples or clients the program takes at once.
    hardware = Hardware(is_cpu=False, number=1, memory=_CHIP_BYTES)
    build = _build_dpsgd if mechanism == "DP-SGD" else _build_federated
    try:
        # A single chip on a single host.
        chips = get_topology_desc("v5e:1x1", "tpu", chips_per_host_bounds=(1, 1, 1)).devices
        memory = measure_memory(build(model, hardware), chunk=1, devices=chips)
    except Exception as error:  # a compiler may raise anything, which is then the result
        lines = str(error).splitlines() or [""]
        failure = f"{type(error).__name__}: {lines[0]}"
        return CompiledRow(mechanism, model, failure=failure[:_MOST_LETTERS])
    return CompiledRow(mechanism, model, memory.model)


def measure_memory(played: "Game", chunk: int, devices: "Sequence[jax.Device]") -> ProgramMemory:
    """Compiles the training of a chunk of runs, and returns the memory that the program takes.

    Nothing is trained.

    Args:
      played: The game whose runs are trained.
      chunk: The number of runs that all devices together train at once.
      devices: The devices, of this machine or only described.

    Returns:
      The bytes on a single device: those of the whole program, and those that each model adds.

    Raises:
      Exception: Whatever the compiler raises.
    """
    from audit.mechanism.ensemble import Placement
    from audit.training import game

    placement = Placement.over(devices)
    if played.mechanism.spreads:  # such a mechanism can divide a run's steps over several devices
        placement = Placement.spread(chunk, devices)
    memory = game.traced_for(played, placement, chunk).lower().compile().memory_analysis()
    # Outputs that take the place of arguments, as the runs' states do, need no memory of their own.
    own_outputs = memory.output_size_in_bytes - memory.alias_size_in_bytes
    bytes_of_models = own_outputs + memory.temp_size_in_bytes
    models_a_device = count_models_a_device(placement, chunk)
    return ProgramMemory(
        device=memory.argument_size_in_bytes + bytes_of_models,
        model=bytes_of_models // models_a_device,
    )


def count_models_a_device(placement: "Placement", chunk: int) -> int:
    """Returns how many models of a chunk each device holds.

    A chunk is padded until its runs divide evenly: five runs on two devices are three models on each. Where
    several devices share their runs, the number is that of the models that they share.

    Args:
      placement: The devices, and which of them share a run.
      chunk: The number of runs that are trained at once.
    """
    groups: int = placement.mesh.shape["runs"]  # a group is the devices that share their runs
    return placement.round_up(chunk) // groups


def _build_dpsgd(name: str, hardware: "Hardware") -> "Game":
    """Returns the game of DP-SGD that `audit` plays by default with a model, on zeros of its data's shapes.

    The adversary is GC-R in place of the default, GC-S. Training costs the same, but GC-R simulates no
    training run beforehand.

    Args:
      name: The model's name.
      hardware: The devices whose memory decides how many examples are clipped at once.
    """
    from audit.mechanism import dpsgd
    from audit.settings import build

    setting = setting_of(name, adversary="gc_r")
    number, shape, kind = TASKS[name].data.examples
    features = np.zeros((number, *shape), kind)
    dataset = Dataset(features, np.zeros(number, "<i4"), source="", checksum="")
    # `build.build` takes this process's own hardware: only the mechanism depends on it.
    mechanism = dpsgd.mechanism(build.choices(setting, build.trainee(name, dataset), hardware))
    return build.build(setting, dataset)._replace(mechanism=mechanism)


def _build_federated(name: str, hardware: "Hardware") -> "Game":
    """Returns the game of DP-FedAvg that `federated` plays by default with a model.

    The data are zeros of the real data's shapes, dealt evenly to _CLIENTS clients.

    Args:
      name: The model's name.
      hardware: The devices whose memory decides how many clients are trained at once.
    """
    from audit.mechanism import fedavg
    from audit.settings import build_federated

    setting = FederatedSetting(name, clients=_CLIENTS)
    row = FEDERATED_TASKS[name]
    number, shape, kind = row.examples
    # An image has a single label; a text, whose labels may be padding, has a label for each position.
    label_shape = (number,) if row.padding is None else (number, *shape)
    counts = np.full(_CLIENTS, number // _CLIENTS, np.int32)
    clients = Clients(
        features=np.zeros((number, *shape), kind),
        labels=np.zeros(label_shape, "<i4"),
        starts=np.cumsum(counts) - counts,  # each client's first example
        counts=counts,
        source="",
        checksum="",
    )
    rounds = build_federated.rounds(setting, clients, listed=None)  # cohorts are drawn
    # `build_federated.build` takes this process's own hardware: only the mechanism depends on it.
    mechanism = fedavg.mechanism(build_federated.choices(setting, clients, hardware))
    return build_federated.build(setting, clients, rounds)._replace(mechanism=mechanism)
