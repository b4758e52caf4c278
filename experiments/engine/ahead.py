"""Every program that trains, compiled for accelerators that need not be there, each in a process of its own.

Data are zeros of the real data's shapes: nothing is fetched, and nothing runs but what a game is built of.
Importing this starts no JAX. Sources of the chips' numbers, read in November 2026:

    v5e, v6e   Google Cloud TPU documentation, "TPU v5e" and "TPU v6e": HBM capacity of a chip; JAX's
               jax.experimental.pallas.tpu.get_tpu_info: VMEM
    H200       NVIDIA H200 datasheet, SXM
"""

import importlib.util
import json
import os
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from audit import processes
from audit.errors import require
from audit.report.table import Column, Table
from audit.settings.federated import FederatedSetting
from audit.settings.make import setting_of
from audit.settings.setting import Setting
from audit.task import Clients, Dataset
from models.catalogue import FEDERATED_TASKS, TASKS, task

if TYPE_CHECKING:
    import jax

    from audit.game import Game
    from audit.mechanism.memory import Hardware

_H200 = """
gpu_device_info {
  cuda_compute_capability { major: 9 }
  core_count: 132  fpus_per_core: 128  clock_rate_ghz: 1.98  threads_per_warp: 32
  threads_per_block_limit: 1024  threads_per_core_limit: 2048
  registers_per_core_limit: 65536  registers_per_block_limit: 65536
  shared_memory_per_block: 49152  shared_memory_per_block_optin: 232448  shared_memory_per_core: 233472
  block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
  l2_cache_size: 52428800  memory_bandwidth: 4800000000000  device_memory_size: 141000000000
}
platform_name: "CUDA"
device_description_str: "NVIDIA H200"
runtime_version { major: 12 minor: 9 }
dnn_version_info { major: 9 minor: 10 }
"""
_WITHOUT_ONE = "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false"  # both would time kernels
DP_SGD, DP_FEDAVG = "dp_sgd", "dp_fedavg"
_RUNS = 5000  # of an audit whose chunk is compiled
_CLIENTS = 600  # among whom the examples of a federated program are dealt evenly


class Chip(NamedTuple):
    """An accelerator: bytes of memory, and of scratch memory in which XLA keeps what fits."""

    label: str
    memory: int
    scratch: int = 0


class Target(NamedTuple):
    """Devices as a user names them, `v5e:2x2`: a chip and how many."""

    name: str
    chip: Chip
    number: int


CHIPS = {
    "v5e": Chip("TPU v5e", 16 * 10**9, 128 << 20),
    "v6e": Chip("TPU v6e", 32 * 10**9, 128 << 20),
    "h200": Chip("NVIDIA H200", 141 * 10**9),
}
_GRIDS = {"1x1": 1, "2x2": 4, "2x4": 8, "4x4": 16, "4x8": 32, "8x8": 64, "8x16": 128, "16x16": 256}


def target(name: str) -> Target:
    """The devices of a name; raises InputError for one that is unknown."""
    kind, _, shape = name.partition(":")
    choices = "choose of v5e:2x2, v6e:2x2 (or another grid) and h200"
    require(kind in CHIPS, f"`device={name}` is unknown: {choices}")
    if kind == "h200":
        require(not shape, f"`device={name}`: an H200 is compiled for alone; write h200")
        return Target(name, CHIPS[kind], 1)
    require(shape in _GRIDS, f"`device={name}`: give {kind} with a grid of chips, of {', '.join(_GRIDS)}")
    return Target(name, CHIPS[kind], _GRIDS[shape])


def require_compiler(name: str) -> None:
    """Raises InputError where the compiler of a device's kind is not installed."""
    needs, extra = ("jax_plugins.xla_cuda12", "cuda12") if name == "h200" else ("libtpu", "tpu")
    wanted = f"jax[{extra}]=={metadata.version('jax')}"
    require(
        is_installed(needs),
        f"`device={name}` wants {needs.partition('.')[2] or needs}, which is not installed: "
        f"{sys.executable} -m pip install '{wanted}' brings it",
    )


def is_installed(module: str) -> bool:
    """Whether a module, whose package need not be there, can be imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def prepare_for(name: str) -> None:
    """Sets the environment before JAX is imported, to compile for the devices and start none of them."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    if name == "h200":
        os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_WITHOUT_ONE}"
        return
    os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost"}
    os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"  # nobody holds a chip
    os.environ["TPU_ACCELERATOR_TYPE"] = {"v5e": "v5litepod-4", "v6e": "v6e-4"}[name.partition(":")[0]]


def devices(name: str) -> "list[jax.Device]":
    """Devices that JAX compiles for, in a process that `prepare_for` prepared."""
    from jax.experimental.topologies import get_topology_desc

    if name != "h200":
        bounds = (1, 1, 1) if name.endswith(":1x1") else (2, 2, 1)
        return list(get_topology_desc(name, "tpu", chips_per_host_bounds=bounds).devices)
    return list(get_topology_desc(name, "cuda", topology="1x1x1", target_config=_H200).devices)


class TrainingProgram(NamedTuple):
    """A training: DP-SGD or DP-FedAvg, a model, and the precision of its products."""

    mechanism: str
    model: str
    precision: str = "float32"


class CompiledTraining(NamedTuple):
    """A program as it was compiled for devices.

    models_at_once: on all devices. bytes_a_device: that a device holds in all, and bytes_a_model a model's
    share. failure: why it does not compile; the rest is 0 then.
    """

    program: TrainingProgram
    seconds_to_compile: float = 0.0
    models_at_once: int = 0
    bytes_a_device: int = 0
    bytes_a_model: int = 0
    failure: str = ""


def programs(precision: str) -> list[TrainingProgram]:
    """All of them, DP-SGD's first; DP-FedAvg has no other precision than float32."""
    federated = FEDERATED_TASKS if precision == "float32" else ()
    of_rounds = [TrainingProgram(DP_FEDAVG, model) for model in federated]
    return [TrainingProgram(DP_SGD, model, precision) for model in TASKS] + of_rounds


def compiled_for(devices: Target, program: TrainingProgram) -> CompiledTraining:
    """The program with its defaults, compiled in a process that ends with it, whatever befalls it."""
    here, there = processes.pipe(duplex=False)
    process = processes.begin(_answer, there, devices, program)
    there.close()
    try:
        compiled: CompiledTraining = here.recv()
        return compiled
    except EOFError:
        return CompiledTraining(program, failure="the compiler ended its process")
    finally:
        process.kill()  # a compiler hears no Ctrl-C
        process.join()


def _answer(there: Connection, devices: Target, program: TrainingProgram) -> None:
    """A process's life: it compiles, or says why it does not."""
    try:
        answer = compiled_here(devices, program)
    except Exception as error:  # whatever a compiler raises is a row of the table
        answer = _failed(program, error)
    there.send(answer)


def _failed(program: TrainingProgram, error: Exception) -> CompiledTraining:
    line = (str(error).splitlines() or [""])[0]
    return CompiledTraining(program, failure=f"{type(error).__name__}: {line}"[:200])


def compiled_here(target: Target, program: TrainingProgram) -> CompiledTraining:
    """`compiled_for` in this process, which has not touched JAX's devices: chunks, each half of the one
    before, until one fits."""
    prepare_for(target.name)
    import jax

    jax.config.update("jax_default_matmul_precision", "float32")
    places = devices(target.name)
    from audit.mechanism.memory import Hardware

    hardware = Hardware(False, target.number, target.chip.memory, target.chip.scratch)
    federated = program.mechanism == DP_FEDAVG
    game, chunk = _of_rounds(program, hardware) if federated else _of_steps(program, hardware)
    while True:
        try:
            compiled = measured(program, game, chunk, places)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            compiled = _failed(program, error)
        if not compiled.failure and compiled.bytes_a_device <= target.chip.memory:
            return compiled
        if chunk <= target.number:
            return compiled._replace(failure=compiled.failure or "needs more memory than there is")
        chunk //= 2


def measured(
    program: TrainingProgram, played: "Game", chunk: int, places: "Sequence[jax.Device]"
) -> CompiledTraining:
    """A game's chunk as the compiler of these devices makes it; raises what the compiler raises."""
    from audit import game
    from audit.mechanism.ensemble import Placement

    placement = Placement.spread(chunk, places) if played.mechanism.spreads else Placement.over(places)
    begin = time.perf_counter()
    stats = game.traced_for(played, placement, chunk).lower().compile().memory_analysis()
    seconds = time.perf_counter() - begin
    temporary = stats.output_size_in_bytes - stats.alias_size_in_bytes + stats.temp_size_in_bytes
    share = temporary // max(chunk // len(places), 1)
    return CompiledTraining(program, seconds, chunk, stats.argument_size_in_bytes + temporary, share)


def _of_steps(program: TrainingProgram, hardware: "Hardware") -> "tuple[Game, int]":
    """DP-SGD as `audit` trains it, and its chunk; with GC-R, which costs the same, nothing is simulated."""
    from audit import game
    from audit.mechanism import dpsgd
    from audit.settings import build

    setting: Setting = setting_of(program.model, adversary="gc_r", precision=program.precision)
    number, shape, kind = task(program.model).data.examples
    dataset = Dataset(np.zeros((number, *shape), kind), np.zeros(number, "<i4"), "", "")
    model = build.trainee(program.model, dataset).model
    mechanism = dpsgd.mechanism(build.choices(setting, model, hardware))
    played = build.build(setting, dataset)._replace(mechanism=mechanism)
    return played, game.chunk_size(played, _RUNS, hardware)


def _of_rounds(program: TrainingProgram, hardware: "Hardware") -> "tuple[Game, int]":
    """DP-FedAvg as `federated` trains it, on clients with as many examples each; one training at once."""
    from audit.mechanism import fedavg
    from audit.settings import build_federated

    setting, row = FederatedSetting(program.model, clients=_CLIENTS), FEDERATED_TASKS[program.model]
    number, shape, kind = row.examples
    counts = np.full(_CLIENTS, number // _CLIENTS, np.int32)
    labels = np.zeros((number,) if row.padding is None else (number, *shape), "<i4")
    clients = Clients(np.zeros((number, *shape), kind), labels, np.cumsum(counts) - counts, counts, "", "")
    who = build_federated.rounds(setting, clients, None)
    mechanism = fedavg.mechanism(build_federated.choices(setting, clients, hardware))
    return build_federated.build(setting, clients, who)._replace(mechanism=mechanism), 1


def as_json(compiled: Sequence[tuple[Target, Sequence[CompiledTraining]]]) -> str:
    """One object: `programs`, an object a program and device; of one that does not compile, why."""
    rows = []
    for devices, trainings in compiled:
        for one in trainings:
            program, *_, failure = one
            sizes = {key: value for key, value in one._asdict().items() if key not in ("program", "failure")}
            rest = {"failure": failure} if failure else sizes
            rows.append({"device": devices.name, **program._asdict(), "compiles": not failure, **rest})
    return json.dumps({"programs": rows})


def as_text(compiled: Sequence[tuple[Target, Sequence[CompiledTraining]]]) -> str:
    """A table a device and mechanism, in 80 columns."""
    return "\n\n".join(_tables(devices, trainings) for devices, trainings in compiled)


def _tables(devices: Target, trainings: Sequence[CompiledTraining]) -> str:
    count = f"{devices.number} chips, each " if devices.number > 1 else ""
    parts = [f"{devices.name}: {devices.chip.label}, {count}{devices.chip.memory / 1e9:g} GB"]
    for mechanism, label in ((DP_SGD, "DP-SGD"), (DP_FEDAVG, "DP-FedAvg")):
        rows = [one for one in trainings if one.program.mechanism == mechanism]
        columns = (
            Column(None, lambda one: one.program.model, label, width=15, left=True),
            Column(None, lambda one: one.seconds_to_compile, "compile", "{:.0f} s".format, 8),
            Column(None, lambda one: one.models_at_once, "at once", "{:,}".format, 8),
            Column(None, lambda one: one.bytes_a_model, "B/model", _short, 8),
        )
        failed = [f"{one.program.model:<15} {one.failure}"[:80] for one in rows if one.failure]
        table = Table(columns, [one for one in rows if not one.failure], after=failed, gap="")
        parts += [table.text()] if rows else []
    return "\n\n".join(parts)


def _short(number: float) -> str:
    """Three digits and a prefix, as 1.23M."""
    prefixes = iter(("", "k", "M", "G", "T"))
    prefix = next(prefixes)
    while number >= 999.5 and prefix != "T":
        number, prefix = number / 1000, next(prefixes)
    return f"{number:.3g}{prefix}"
