"""Programs that train, compiled without running them, also for a TPU chip that need not be there.

Data are zeros of the real data's shapes: nothing is fetched. The chip is a v5e: 16 GB of memory (Google Cloud
TPU documentation, "TPU v5e") and 128 MiB of VMEM (JAX's jax.experimental.pallas.tpu.get_tpu_info).
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
_VMEM_BYTES = 128 << 20
_CLIENTS = 600  # among whom the examples of a federated program are dealt evenly


class ProgramMemory(NamedTuple):
    """Bytes that a compiled program takes on a device.

    Attributes:
      device: In all: its arguments, its outputs, and what its steps hold on the way.
      model: For each of its models: the outputs and what steps hold. Arguments are left out: their bulk are
        the data, which all models share.
    """

    device: int
    model: int


class CompiledRow(NamedTuple):
    """What came of compiling a training.

    Attributes:
      mechanism: "DP-SGD" or "DP-FedAvg".
      model: The model's name.
      bytes: Of a model; 0 where the training does not compile.
      failure: Why it does not compile; empty where it does.
    """

    mechanism: str
    model: str
    bytes: int = 0
    failure: str = ""


def compile_for_tpu(mechanism: str, model: str) -> CompiledRow:
    """Compiles a model's training program for a TPU v5e, in a process of its own.

    Whatever befalls that process is a row of the table too.

    Args:
      mechanism: "DP-SGD" or "DP-FedAvg".
      model: The model's name.
    """
    try:
        return processes.run_in_own_process(partial(_compile_here, mechanism, model))
    except InputError:
        return CompiledRow(mechanism, model, failure="the compiler ended its process")


def _compile_here(mechanism: str, model: str) -> CompiledRow:
    """Compiles a training program in this process, which must not have touched JAX's devices.

    JAX itself runs on the CPU; the TPU exists only for its compiler.
    """
    os.environ["JAX_PLATFORMS"] = "cpu"
    prepare_jax(1)
    import jax
    from jax.experimental.topologies import get_topology_desc

    from audit.mechanism.memory import Hardware

    # What is cached for a chip can be read on that chip alone.
    jax.config.update("jax_enable_compilation_cache", False)
    hardware = Hardware(is_cpu=False, number=1, memory=_CHIP_BYTES, scratch=_VMEM_BYTES)
    build = _build_dpsgd if mechanism == "DP-SGD" else _build_federated
    try:
        chips = get_topology_desc("v5e:1x1", "tpu", chips_per_host_bounds=(1, 1, 1)).devices
        memory = measure_memory(build(model, hardware), 1, chips)
    except Exception as error:  # whatever a compiler raises is a row of the table
        lines = str(error).splitlines() or [""]
        failure = f"{type(error).__name__}: {lines[0]}"
        return CompiledRow(mechanism, model, failure=failure[:200])
    return CompiledRow(mechanism, model, memory.model)


def measure_memory(played: "Game", chunk: int, devices: "Sequence[jax.Device]") -> ProgramMemory:
    """Compiles the training of a chunk, and returns its memory; raises what the compiler raises.

    Args:
      played: What is trained.
      chunk: Runs at once, on all devices together.
      devices: Of this machine, or only described.
    """
    from audit.mechanism.ensemble import Placement
    from audit.training import game

    placement = Placement.over(devices)
    if played.mechanism.spreads:
        placement = Placement.spread(chunk, devices)
    memory = game.traced_for(played, placement, chunk).lower().compile().memory_analysis()
    # Outputs that take the place of arguments, as the runs' states do, need no memory of their own.
    own_outputs = memory.output_size_in_bytes - memory.alias_size_in_bytes
    of_models = own_outputs + memory.temp_size_in_bytes
    models_a_device = count_models_a_device(placement, chunk)
    return ProgramMemory(
        device=memory.argument_size_in_bytes + of_models,
        model=of_models // models_a_device,
    )


def count_models_a_device(placement: "Placement", chunk: int) -> int:
    """Returns how many models of a chunk a device holds, or a share of, where several devices share a model.

    A program trains as many runs as go evenly over its devices: five runs on two devices are three models on
    each.

    Args:
      placement: The devices, and which of them share a run.
      chunk: Runs at once.
    """
    rows: int = placement.mesh.shape["runs"]
    return placement.round_up(chunk) // rows


def _build_dpsgd(name: str, hardware: "Hardware") -> "Game":
    """Returns a model's DP-SGD as `audit` trains it by default, on zeros of its data's shapes.

    With GC-R, whose training costs the same as GC-S's, nothing is simulated.

    Args:
      name: Of the model.
      hardware: For which clipping strategies choose their blocks.
    """
    from audit.mechanism import dpsgd
    from audit.settings import build

    setting = setting_of(name, adversary="gc_r")
    number, shape, kind = TASKS[name].data.examples
    dataset = Dataset(np.zeros((number, *shape), kind), np.zeros(number, "<i4"), "", "")
    model = build.trainee(name, dataset).model
    mechanism = dpsgd.mechanism(build.choices(setting, model, hardware))
    return build.build(setting, dataset)._replace(mechanism=mechanism)


def _build_federated(name: str, hardware: "Hardware") -> "Game":
    """Returns a model's DP-FedAvg as `federated` trains it by default, on zeros, dealt evenly to _CLIENTS.

    Args:
      name: Of the model.
      hardware: For which the number of clients that are trained at once is chosen.
    """
    from audit.mechanism import fedavg
    from audit.settings import build_federated

    setting = FederatedSetting(name, clients=_CLIENTS)
    row = FEDERATED_TASKS[name]
    number, shape, kind = row.examples
    label_shape = (number,) if row.padding is None else (number, *shape)
    counts = np.full(_CLIENTS, number // _CLIENTS, np.int32)
    clients = Clients(
        features=np.zeros((number, *shape), kind),
        labels=np.zeros(label_shape, "<i4"),
        starts=np.cumsum(counts) - counts,
        counts=counts,
        source="",
        checksum="",
    )
    rounds = build_federated.rounds(setting, clients, None)
    mechanism = fedavg.mechanism(build_federated.choices(setting, clients, hardware))
    return build_federated.build(setting, clients, rounds)._replace(mechanism=mechanism)
