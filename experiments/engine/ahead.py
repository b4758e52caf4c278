"""Every program that trains, compiled for accelerators that need not be there, each in a process of its own.

Data are zeros of the real data's shapes: nothing is fetched, and nothing runs but what a game is built of.
Importing this starts no JAX.
"""

import multiprocessing
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from audit.settings.federated import FederatedSetting
from audit.settings.make import setting_of
from audit.settings.setting import Setting
from audit.task import Clients, Dataset
from experiments.engine import accelerators
from experiments.engine.accelerators import Described
from models.catalogue import FEDERATED_TASKS, TASKS, task

if TYPE_CHECKING:
    from audit.game import Game
    from audit.mechanism.memory import Hardware

DP_SGD, DP_FEDAVG = "dp_sgd", "dp_fedavg"
RUNS = 5000  # of an audit whose chunk is compiled
_SHAPES: dict[str, tuple[int, tuple[int, ...], str]] = {  # examples; an example's shape and type
    "california_housing": (20_640, (8,), "f4"),
    "cifar10": (50_000, (32, 32, 3), "u1"),
    "fashion_mnist": (60_000, (28, 28), "u1"),
    "purchase100": (20_000, (600,), "f4"),
    "mobilenet_features": (50_000, (1280,), "f4"),
    "alexnet_features": (50_000, (4096,), "f4"),
    "emnist": (60_000, (28, 28), "f4"),
    "shakespeare": (18_000, (80,), "u1"),
    "stackoverflow": (76_800, (20,), "u2"),
}
_CONTEXT = multiprocessing.get_context("spawn")
_SAID = 200  # letters of an error
_CLIENTS = 600  # among whom the examples of a federated program are dealt evenly


class TrainingProgram(NamedTuple):
    """A training: DP-SGD or DP-FedAvg, a model, and the precision of its products."""

    mechanism: str
    model: str
    precision: str = "float32"


class CompiledTraining(NamedTuple):
    """A program as it was compiled for devices.

    seconds: to compile. models: at once on all devices. memory: bytes a device holds in all, and `own` a
    model's share. A unit is a model-step of DP-SGD, a client's update of DP-FedAvg: its operations in
    products, the bytes that it moves, and how many an audit takes (5,000 runs; one federated training).
    failure: why it does not compile; the rest is 0 then.
    """

    program: TrainingProgram
    seconds: float = 0.0
    models: int = 0
    memory: int = 0
    own: int = 0
    flops: float = 0.0
    moved: float = 0.0
    units: int = 0
    failure: str = ""


def programs(precision: str) -> list[TrainingProgram]:
    """All of them, DP-SGD's first; DP-FedAvg has no other precision than float32."""
    of_steps = [TrainingProgram(DP_SGD, model, precision) for model in TASKS]
    return of_steps + [
        TrainingProgram(DP_FEDAVG, model) for model in FEDERATED_TASKS if precision == "float32"
    ]


def compiled_for(described: Described, program: TrainingProgram) -> CompiledTraining:
    """The program with its defaults, compiled in a process that ends with it, whatever befalls it."""
    if program.mechanism == DP_FEDAVG:
        return _in_a_process(described, program, FederatedSetting(program.model, clients=_CLIENTS), 1)
    setting = setting_of(program.model, adversary="gc_r", precision=program.precision)
    return _in_a_process(described, program, setting, RUNS)


def compiled_setting(described: Described, setting: Setting, runs: int) -> CompiledTraining:
    """Likewise the training of an audit of so many runs."""
    program = TrainingProgram(DP_SGD, setting.model, setting.mechanism.precision)
    return _in_a_process(described, program, setting, runs)


def _in_a_process(
    described: Described, program: TrainingProgram, setting: Setting | FederatedSetting, runs: int
) -> CompiledTraining:
    """The program of a setting, from a process that ends with it, and with whoever waits for it."""
    here, there = _CONTEXT.Pipe(duplex=False)
    arguments = (there, described.name, program, setting, runs)
    process = _CONTEXT.Process(target=_answer, args=arguments, daemon=True)
    process.start()
    there.close()
    try:
        found: CompiledTraining = here.recv()
        return found
    except EOFError:
        return CompiledTraining(program, failure="the compiler ended its process")
    finally:
        process.kill()  # a compiler hears no Ctrl-C
        process.join()


def _answer(
    there: Connection, name: str, program: TrainingProgram, setting: Setting | FederatedSetting, runs: int
) -> None:
    """A process's life: it compiles, or says why it does not; Ctrl-C is its parent's affair."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        found = _compile(name, program, setting, runs)
    except Exception as error:  # whatever a compiler raises is a row of the table
        found = _failed(program, error)
    there.send(found)


def _failed(program: TrainingProgram, error: Exception) -> CompiledTraining:
    """With an error's first line."""
    line = (str(error).splitlines() or [""])[0]
    return CompiledTraining(program, failure=f"{type(error).__name__}: {line}"[:_SAID])


class _Work(NamedTuple):
    """A game, its chunk, the units of a segment and of an audit."""

    game: "Game"
    chunk: int
    segment_units: Callable[[int], int]
    units: int
    loops: int


def _compile(
    name: str, program: TrainingProgram, setting: Setting | FederatedSetting, runs: int
) -> CompiledTraining:
    """In a process that has not imported JAX."""
    accelerators.prepare_for(name)
    import jax

    jax.config.update("jax_default_matmul_precision", "float32")
    described, devices = accelerators.described(name), accelerators.devices(name)
    from audit.mechanism.memory import Hardware

    chip = described.chip
    hardware = Hardware(False, described.number, int(chip.memory), chip.scratch)
    if isinstance(setting, FederatedSetting):
        work = _of_rounds(setting, hardware)
    else:
        work = _of_steps(setting, runs, hardware)
    while True:
        try:
            found = _measured(program, work, devices)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            found = _failed(program, error)
        if not found.failure and found.memory <= described.chip.memory:
            return found
        if work.chunk <= described.number:
            return found._replace(failure=found.failure or "needs more memory than there is")
        work = work._replace(chunk=work.chunk // 2)


def _measured(program: TrainingProgram, work: _Work, devices: list[Any]) -> CompiledTraining:
    """The chunk, compiled and measured."""
    from audit import game
    from audit.mechanism.ensemble import Placement
    from experiments.engine import arithmetic, traffic

    spreads = work.game.mechanism.spreads
    placement = Placement.spread(work.chunk, devices) if spreads else Placement.over(devices)
    begin = time.perf_counter()
    traced = game.traced_for(work.game, placement, work.chunk)
    compiled = traced.lower().compile()
    seconds = time.perf_counter() - begin
    stats = compiled.memory_analysis()
    temporary = stats.output_size_in_bytes - stats.alias_size_in_bytes + stats.temp_size_in_bytes
    each = max(work.chunk // len(devices), 1)
    share = len(devices) / work.segment_units(work.chunk)
    return CompiledTraining(
        program,
        seconds,
        work.chunk,
        stats.argument_size_in_bytes + temporary,
        temporary // each,
        share * arithmetic.product_flops(traced.jaxpr.jaxpr, work.loops),
        share * traffic.moved(traffic.parsed(compiled.as_text()), work.loops),
        work.units,
    )


def _of_steps(setting: Setting, runs: int, hardware: "Hardware") -> _Work:
    """DP-SGD as `audit` trains it; with GC-R, whose steps cost the same as others', nothing is simulated."""
    from audit import game
    from audit.mechanism import dpsgd
    from audit.mechanism.ensemble import segments
    from audit.settings import build

    number, shape, kind = _SHAPES[task(setting.model).data.name]
    dataset = Dataset(np.zeros((number, *shape), kind), np.zeros(number, "<i4"), "", "")
    played = build.build(setting, dataset)
    model = build.trainee(setting.model, dataset).model
    played = played._replace(mechanism=dpsgd.mechanism(build.choices(setting, model, hardware)))
    steps = len(segments(played.schedule)[0].mask)
    chunk = game.chunk_size(played, runs, hardware)
    return _Work(played, chunk, lambda models: models * steps, runs * setting.schedule.steps, 1)


def _of_rounds(setting: FederatedSetting, hardware: "Hardware") -> _Work:
    """DP-FedAvg as `federated` trains it, on clients with as many examples each."""
    from audit.mechanism import fedavg
    from audit.mechanism.ensemble import segments
    from audit.settings import build_federated

    row = FEDERATED_TASKS[setting.model]
    number, shape, kind = _SHAPES[row.file]
    counts = np.full(_CLIENTS, number // _CLIENTS, np.int32)
    labels = np.zeros((number,) if row.padding is None else (number, *shape), "<i4")
    starts = np.cumsum(counts) - counts
    clients = Clients(np.zeros((number, *shape), kind), labels, starts, counts, "", "")
    who = build_federated.rounds(setting, clients, None)
    choices = build_federated.choices(setting, clients, hardware)
    played = build_federated.build(setting, clients, who)._replace(mechanism=fedavg.mechanism(choices))
    rounds = len(segments(played.schedule, played.segment_steps)[0].mask)
    loops = setting.client_epochs * -(-int(counts.max()) // setting.batch_size)
    units = setting.rounds * setting.cohort
    return _Work(played, 1, lambda runs: runs * rounds * setting.cohort, units, loops)
