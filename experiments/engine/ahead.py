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

from audit.errors import require
from audit.report.table import Column, Table
from audit.runtime import processes
from audit.settings.federated import FederatedSetting
from audit.settings.make import setting_of
from audit.settings.setting import Setting
from audit.tasks.task import Clients, Dataset
from models.catalogue import FEDERATED_TASKS, TASKS, task

if TYPE_CHECKING:
    import jax

    from audit.mechanism.memory import Hardware
    from audit.training.game import Game

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
_NO_DEVICE_FLAGS = (
    "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false"  # both would time kernels
)
DP_SGD = "dp_sgd"
DP_FEDAVG = "dp_fedavg"
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
    """Returns the devices of a name; raises InputError for one that is unknown."""
    kind, _, shape = name.partition(":")
    choices = "choose of v5e:2x2, v6e:2x2 (or another grid) and h200"
    require(kind in CHIPS, f"`device={name}` is unknown: {choices}")
    if kind == "h200":
        require(not shape, f"`device={name}`: an H200 is compiled for alone; write h200")
        return Target(name, CHIPS[kind], 1)
    require(
        shape in _GRIDS,
        f"`device={name}`: give {kind} with a grid of chips, of {', '.join(_GRIDS)}",
    )
    return Target(name, CHIPS[kind], _GRIDS[shape])


def require_compiler(name: str) -> None:
    """Raises InputError where the compiler of a device's kind is not installed."""
    module = "libtpu"
    extra = "tpu"
    if name == "h200":
        module = "jax_plugins.xla_cuda12"
        extra = "cuda12"
    label = module.removeprefix("jax_plugins.")
    package = f"jax[{extra}]=={metadata.version('jax')}"
    require(
        is_installed(module),
        f"`device={name}` wants {label}, which is not installed: "
        f"{sys.executable} -m pip install '{package}' brings it",
    )


def is_installed(module: str) -> bool:
    """Returns whether a module, whose package need not be there, can be imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def prepare_for(name: str) -> None:
    """Sets the environment before JAX is imported, to compile for the devices and start none of them."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    if name == "h200":
        os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_NO_DEVICE_FLAGS}"
        return
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"
    os.environ["TPU_WORKER_HOSTNAMES"] = "localhost"
    os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"  # nobody holds a chip
    kind = name.partition(":")[0]
    os.environ["TPU_ACCELERATOR_TYPE"] = {"v5e": "v5litepod-4", "v6e": "v6e-4"}[kind]


def devices(name: str) -> "list[jax.Device]":
    """Returns devices that JAX compiles for, in a process that `prepare_for` prepared."""
    from jax.experimental.topologies import get_topology_desc

    if name == "h200":
        topology = get_topology_desc(name, "cuda", topology="1x1x1", target_config=_H200)
    else:
        bounds = (1, 1, 1) if name.endswith(":1x1") else (2, 2, 1)
        topology = get_topology_desc(name, "tpu", chips_per_host_bounds=bounds)
    return list(topology.devices)


class TrainingProgram(NamedTuple):
    """What trains: DP-SGD or DP-FedAvg, a model, and the precision of its products."""

    mechanism: str
    model: str
    precision: str = "float32"


class CompiledTraining(NamedTuple):
    """A program as it was compiled for devices.

    Attributes:
      program: That was compiled.
      seconds_to_compile: By the clock.
      models_at_once: On all devices.
      bytes_a_device: That a device holds in all.
      bytes_a_model: A model's share of these.
      failure: Why it does not compile; the numbers are 0 then.
    """

    program: TrainingProgram
    seconds_to_compile: float = 0.0
    models_at_once: int = 0
    bytes_a_device: int = 0
    bytes_a_model: int = 0
    failure: str = ""


def programs(precision: str) -> list[TrainingProgram]:
    """Returns all programs, DP-SGD's first; DP-FedAvg has no other precision than float32."""
    rows = [TrainingProgram(DP_SGD, model, precision) for model in TASKS]
    if precision == "float32":
        rows += [TrainingProgram(DP_FEDAVG, model) for model in FEDERATED_TASKS]
    return rows


def compiled_for(devices: Target, program: TrainingProgram) -> CompiledTraining:
    """Compiles the program with its defaults, in a process that ends with it, whatever befalls it."""
    here, there = processes.pipe(duplex=False)
    process = processes.begin(_send_compiled, there, devices, program)
    there.close()
    try:
        compiled: CompiledTraining = here.recv()
        return compiled
    except EOFError:
        return CompiledTraining(program, failure="the compiler ended its process")
    finally:
        process.kill()  # a compiler does not react to Ctrl-C
        process.join()


def _send_compiled(there: Connection, devices: Target, program: TrainingProgram) -> None:
    """Compiles a program, and sends what came of it or why it does not compile."""
    try:
        answer = compiled_here(devices, program)
    except Exception as error:  # whatever a compiler raises is a row of the table
        answer = _describe_failure(program, error)
    there.send(answer)


def _describe_failure(program: TrainingProgram, error: Exception) -> CompiledTraining:
    """Returns the row of a program that does not compile, with the first line of the error."""
    lines = str(error).splitlines() or [""]
    failure = f"{type(error).__name__}: {lines[0]}"
    return CompiledTraining(program, failure=failure[:200])


def compiled_here(target: Target, program: TrainingProgram) -> CompiledTraining:
    """Compiles a program as `compiled_for` does, in this process, which has not touched JAX's devices.

    Tries chunks, each half of the one before, until one fits.
    """
    prepare_for(target.name)
    import jax

    jax.config.update("jax_default_matmul_precision", "float32")
    places = devices(target.name)
    from audit.mechanism.memory import Hardware

    hardware = Hardware(False, target.number, target.chip.memory, target.chip.scratch)
    if program.mechanism == DP_FEDAVG:
        game, chunk = _build_federated(program, hardware)
    else:
        game, chunk = _build_dpsgd(program, hardware)
    while True:
        try:
            compiled = measured(program, game, chunk, places)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            compiled = _describe_failure(program, error)
        if not compiled.failure and compiled.bytes_a_device <= target.chip.memory:
            return compiled
        if chunk <= target.number:
            return compiled._replace(failure=compiled.failure or "needs more memory than there is")
        chunk //= 2


def measured(
    program: TrainingProgram, played: "Game", chunk: int, places: "Sequence[jax.Device]"
) -> CompiledTraining:
    """Compiles a game's chunk for these devices, and measures it; raises what the compiler raises."""
    from audit.mechanism.ensemble import Placement
    from audit.training import game

    placement = (
        Placement.spread(chunk, places) if played.mechanism.spreads else Placement.over(places)
    )
    begin = time.perf_counter()
    compiled = game.traced_for(played, placement, chunk).lower().compile()
    memory = compiled.memory_analysis()
    seconds = time.perf_counter() - begin

    own_outputs = memory.output_size_in_bytes - memory.alias_size_in_bytes
    temporary = own_outputs + memory.temp_size_in_bytes
    models_a_device = max(chunk // len(places), 1)
    return CompiledTraining(
        program,
        seconds_to_compile=seconds,
        models_at_once=chunk,
        bytes_a_device=memory.argument_size_in_bytes + temporary,
        bytes_a_model=temporary // models_a_device,
    )


def _build_dpsgd(program: TrainingProgram, hardware: "Hardware") -> "tuple[Game, int]":
    """Returns DP-SGD as `audit` trains it, and its chunk.

    With GC-R, whose training costs the same, nothing is simulated.
    """
    from audit.mechanism import dpsgd
    from audit.settings import build
    from audit.training import game

    setting: Setting = setting_of(program.model, adversary="gc_r", precision=program.precision)
    number, shape, kind = task(program.model).data.examples
    dataset = Dataset(np.zeros((number, *shape), kind), np.zeros(number, "<i4"), "", "")
    model = build.trainee(program.model, dataset).model
    mechanism = dpsgd.mechanism(build.choices(setting, model, hardware))
    played = build.build(setting, dataset)._replace(mechanism=mechanism)
    return played, game.chunk_size(played, _RUNS, hardware)


def _build_federated(program: TrainingProgram, hardware: "Hardware") -> "tuple[Game, int]":
    """Returns DP-FedAvg as `federated` trains it, and its chunk: one model at once.

    All clients have as many examples.
    """
    from audit.mechanism import fedavg
    from audit.settings import build_federated

    setting = FederatedSetting(program.model, clients=_CLIENTS)
    row = FEDERATED_TASKS[program.model]
    number, shape, kind = row.examples
    label_shape = (number,) if row.padding is None else (number, *shape)
    features = np.zeros((number, *shape), kind)
    labels = np.zeros(label_shape, "<i4")
    counts = np.full(_CLIENTS, number // _CLIENTS, np.int32)
    starts = np.cumsum(counts) - counts
    clients = Clients(features, labels, starts, counts, "", "")
    rounds = build_federated.rounds(setting, clients, None)
    mechanism = fedavg.mechanism(build_federated.choices(setting, clients, hardware))
    played = build_federated.build(setting, clients, rounds)._replace(mechanism=mechanism)
    return played, 1


def as_json(compiled: Sequence[tuple[Target, Sequence[CompiledTraining]]]) -> str:
    """Returns one object: `programs`, an object for each program and device; if it does not compile, why."""
    rows = []
    for devices, trainings in compiled:
        for training in trainings:
            fields = training._asdict()
            program = fields.pop("program")
            failure = fields.pop("failure")
            result = {"failure": failure} if failure else fields
            row = {"device": devices.name, **program._asdict(), "compiles": not failure, **result}
            rows.append(row)
    return json.dumps({"programs": rows})


def as_text(compiled: Sequence[tuple[Target, Sequence[CompiledTraining]]]) -> str:
    """Returns a table for each device and mechanism, in 80 columns."""
    return "\n\n".join(_make_tables(devices, trainings) for devices, trainings in compiled)


def _make_tables(devices: Target, trainings: Sequence[CompiledTraining]) -> str:
    """Returns the tables of a device."""
    count = ""
    if devices.number > 1:
        count = f"{devices.number} chips, each "
    parts = [f"{devices.name}: {devices.chip.label}, {count}{devices.chip.memory / 1e9:g} GB"]
    for mechanism, label in ((DP_SGD, "DP-SGD"), (DP_FEDAVG, "DP-FedAvg")):
        rows = [training for training in trainings if training.program.mechanism == mechanism]
        if rows:
            parts.append(_make_table(label, rows))
    return "\n\n".join(parts)


def _make_table(label: str, trainings: Sequence[CompiledTraining]) -> str:
    """Returns the table of a mechanism; below are the programs that do not compile."""
    columns = (
        Column(None, lambda row: row.program.model, label, width=15, left=True),
        Column(None, lambda row: row.seconds_to_compile, "compile", "{:.0f} s".format, 8),
        Column(None, lambda row: row.models_at_once, "at once", "{:,}".format, 8),
        Column(None, lambda row: row.bytes_a_model, "B/model", _shorten, 8),
    )
    rows = []
    failures = []
    for training in trainings:
        if training.failure:
            line = f"{training.program.model:<15} {training.failure}"
            failures.append(line[:80])
        else:
            rows.append(training)
    return Table(columns, rows, after=failures, gap="").text()


def _shorten(number: float) -> str:
    """Returns three digits and a prefix, as 1.23M."""
    for prefix in ("", "k", "M", "G"):
        if number < 999.5:
            return f"{number:.3g}{prefix}"
        number = number / 1000
    return f"{number:.3g}T"
