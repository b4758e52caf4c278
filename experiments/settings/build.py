"""From a config to an audit: builds the game, trains the runs that the store lacks, bounds the scores."""

import contextlib
import dataclasses
import functools
import itertools
import platform
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from numpy.typing import NDArray
from tqdm import tqdm

from audit import game, processes
from audit.adversaries import biased, flipped, sphere
from audit.adversaries.base import Adversary
from audit.errors import require
from audit.mechanism import dpsgd, ensemble, precision
from audit.mechanism.clipping import base, dense, layerwise
from audit.storage.checkpoints import Checkpoints
from audit.storage.store import Store
from experiments.settings.setting import Setting
from models.base import Model
from models.convnet import convnet
from models.data.base import Dataset
from models.data.cifar10 import load_cifar10
from models.data.housing import load_housing
from models.fcnn import fcnn
from models.head import head
from models.pretrained.alexnet import ALEXNET
from models.pretrained.features import Body, frozen_features
from models.pretrained.mobilenet import MOBILENET_V2
from models.resnet import resnet18


class Task(NamedTuple):
    """A model, its data, the paper's hyperparameters (Table 2) and the clipping strategies it can take,
    the fastest first. `load` takes a data file, a TFDS folder, a frozen body's weights and input size."""

    model: Callable[[Dataset], Model]
    load: Callable[..., Dataset]
    classes: int
    learning_rate: float
    batch_size: int
    clipping: tuple[str, ...]


class Parts(NamedTuple):
    """What an adversary may need to know."""

    setting: Setting
    model: Model
    classes: int
    mechanism: dpsgd.Mechanism
    hyper: dpsgd.Hyperparameters
    data: tuple[Array, Array]
    batches: Array


class Trained(NamedTuple):
    """The scores, and what training them took."""

    scores: game.Scores
    trained_runs: int
    seconds: float  # of training, compilation and simulation apart
    chunk: int
    model_steps: int = 0  # that the time was taken by: those that a checkpoint held are not among them


OPTIMIZERS: dict[str, Callable[[Array], optax.GradientTransformation]] = {
    "sgd": optax.sgd,
    "momentum": lambda rate: optax.sgd(rate, momentum=0.9),
    "adam": optax.adam,
}
CLIPPING: dict[str, Callable[[Model], base.ClippedSum]] = {
    "book_keeping": lambda m: dense.book_keeping(m.module, m.unravel, m.criterion),
    "unfolded": lambda m: layerwise.unfolded_book_keeping(
        m.module, m.unravel, m.criterion, layerwise.block_bytes()
    ),
    "per_example": lambda m: base.per_example(m.loss),
}


PRECISIONS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "float32": lambda function: function,
    "tf32": lambda function: precision.with_operands(function, precision.TF32),
    "bf16": lambda function: precision.with_operands(function, precision.BF16),
}


_KEPT = 32  # mechanisms, and what else compiled programs are found by

_fcnn = functools.cache(fcnn)
_convnet = functools.cache(convnet)
_resnet18 = functools.cache(resnet18)
_head = functools.cache(head)


def _trained_whole(load: Callable[..., Dataset]) -> Callable[..., Dataset]:
    """The loader of a model that has no frozen body."""

    def loaded(*, weights: str | None = None, input_size: int | None = None, **named: Any) -> Dataset:
        message = "--weights and --input_size are for a frozen body: drop them, or name a model with a head"
        require(weights is None and input_size is None, message)
        return load(**named)

    return loaded


def _head_task(body: Body) -> Task:
    """The last layer on a frozen body's features of CIFAR-10 (Remark 2)."""

    def load(*, file: str | None = None, tfds_dir: str | None = None, **named: Any) -> Dataset:
        return frozen_features(body, partial(load_cifar10, file=file, tfds_dir=tfds_dir), **named)

    strategies = ("book_keeping", "per_example")
    return Task(lambda data: _head(body.n_features), load, 10, 0.01, 128, strategies)


def _load_cifar10(*, file: str | None, tfds_dir: str | None) -> Dataset:
    """CIFAR-10's training images as uint8; the model normalises them."""
    images = load_cifar10(file=file, tfds_dir=tfds_dir)
    return Dataset(images.train_images, images.train_labels, images.source, images.checksum)


TASKS: dict[str, Task] = {
    "fcnn": Task(
        lambda data: _fcnn(data.features.shape[1]),
        _trained_whole(load_housing),
        2,
        0.1,
        400,
        ("book_keeping", "unfolded", "per_example"),
    ),
    "convnet": Task(
        lambda data: _convnet(), _trained_whole(_load_cifar10), 10, 0.01, 128, ("unfolded", "per_example")
    ),
    "resnet18": Task(
        lambda data: _resnet18(), _trained_whole(_load_cifar10), 10, 0.01, 128, ("unfolded", "per_example")
    ),
    "mobilenet_head": _head_task(MOBILENET_V2),
    "alexnet_head": _head_task(ALEXNET),
}


_simulate = jax.jit(dpsgd.simulate, static_argnums=0)


def _simulated(parts: Parts) -> Adversary:
    """GC-S; noiseless simulations are all the same, so one is run."""
    noisy = parts.setting.gc_s_noisy
    hyper = parts.hyper if noisy else dpsgd.without_privacy(parts.hyper)

    def simulate(key: Array, theta_0: Array) -> dpsgd.Trajectory:
        traced = jax.tree.map(jnp.float32, hyper)
        return _simulate(parts.mechanism, traced, theta_0, parts.data, parts.batches, key)

    simulations = parts.setting.gc_s_simulations if noisy else 1
    return biased.simulated_biased_dimension(simulate, simulations, parts.setting.gc_s_per_step)


ADVERSARIES: dict[str, Callable[[Parts], Adversary]] = {
    "gc_s": _simulated,
    "gc_r": lambda parts: biased.random_biased_dimension(),
    "gc_fixed": lambda parts: biased.fixed_biased_dimension(parts.setting.dimension),
    "cots": lambda parts: sphere.random_direction(),
    "loss": lambda parts: flipped.flipped_label(parts.model.loss, *parts.data, classes=parts.classes),
}


def validate(setting: Setting, runs: int) -> None:
    """Raises InputError for a value out of range; what needs the data is checked in `build`."""
    validate_for(setting, runs, TASKS[setting.model].clipping)


def validate_for(setting: Setting, runs: int, strategies: tuple[str, ...]) -> None:
    """The same for a model that can take the named clipping strategies."""
    for name, choices in (
        ("adversary", tuple(ADVERSARIES)),
        ("optimizer", tuple(OPTIMIZERS)),
        ("clipping", strategies),
        ("precision", tuple(PRECISIONS)),
    ):
        value = getattr(setting, name)
        known = f"choose one of {', '.join(choices)}"
        require(value in choices, f"--{name}={value} is none that {setting.model} can take: {known}")
    rate, norm = setting.learning_rate, setting.clipping_norm
    require(0 < rate < float("inf"), f"--learning_rate={rate}: give a positive finite number")
    require(1e-6 <= norm <= 1e6, f"--clipping_norm={norm}: give 1e-6 to 1e6")
    sigma = setting.noise_multiplier
    require(0 <= sigma < float("inf"), f"--noise_multiplier={sigma}: give a finite number, at least 0")
    require(setting.batch_size >= 1, f"--batch_size={setting.batch_size}: give at least 1")
    require(setting.steps >= 1, f"--steps={setting.steps}: give at least 1 step")
    require(setting.periodicity >= 1, f"--k={setting.periodicity}: give a periodicity of at least 1")
    require(
        setting.periodicity <= setting.steps,
        f"--k={setting.periodicity} inserts nothing in {setting.steps} steps: lower it or add steps",
    )
    require(setting.gc_s_simulations >= 1, f"--simulations={setting.gc_s_simulations}: give at least 1")
    require(0 <= setting.seed < 2**32, f"--seed={setting.seed}: give 0 to 2^32 - 1")
    require(runs >= 2, f"--runs={runs}: give at least 2, one a world")


def build(setting: Setting, dataset: Dataset) -> game.Game:
    """The game of a setting on its data; raises InputError where the two don't fit."""
    task = TASKS[setting.model]
    return build_for(setting, dataset, task.model(dataset), task.classes)


def build_for(setting: Setting, dataset: Dataset, model: Model, classes: int) -> game.Game:
    """The same for a given model of so many classes; of the setting, `model` is not looked at."""
    n_examples = len(dataset.labels)
    require(
        setting.batch_size <= n_examples,
        f"--batch_size={setting.batch_size} is more than the data's {n_examples} examples: lower it",
    )
    require(
        0 <= setting.dimension < model.n_parameters,
        f"--dimension={setting.dimension}: give 0 to {model.n_parameters - 1}",
    )
    batches = dpsgd.fixed_shuffle(
        game.root(setting.seed, "batches"), n_examples, setting.batch_size, setting.steps
    )
    parts = Parts(
        setting,
        model,
        classes,
        _mechanism(model, setting.clipping, setting.optimizer, setting.precision),
        dpsgd.Hyperparameters(setting.learning_rate, setting.clipping_norm, setting.noise_multiplier),
        (jnp.asarray(dataset.features), jnp.asarray(dataset.labels)),
        batches,
    )
    adversary = ADVERSARIES[setting.adversary](parts)
    return game.Game(
        parts.mechanism,
        adversary._replace(craft=_in_precision(adversary.craft, setting.precision)),
        model.init,
        parts.data,
        parts.hyper,
        dpsgd.Schedule(batches, dpsgd.insertion_mask(setting.steps, setting.periodicity)),
        setting.seed,
        setting.unknown_initialisation,
    )


@functools.lru_cache(maxsize=_KEPT)
def _mechanism(model: Model, strategy: str, optimizer: str, precise: str) -> dpsgd.Mechanism:
    """The mechanism of these names; the same object each time, so that its compiled programs are reused."""
    return dpsgd.Mechanism(_in_precision(CLIPPING[strategy](model), precise), OPTIMIZERS[optimizer])


@functools.lru_cache(maxsize=_KEPT)
def _in_precision(function: Callable[..., Any], precise: str) -> Callable[..., Any]:
    """The function in a precision; the same object each time."""
    return PRECISIONS[precise](function)


def open_store(out: Path, setting: Setting, dataset: Dataset) -> Store:
    """The store of a setting on its data."""
    return Store(out, {**dataclasses.asdict(setting), "data_sha256": dataset.checksum})


def train(
    table: game.Game,
    store: Store | None,
    runs: int,
    chunk: int,
    checkpoint_seconds: float = 30.0,
    heard: Callable[[float], object] | None = None,
) -> Trained | None:
    """Trains the runs that the store lacks, chunk by chunk (0: chosen by size), and reads all back.

    Of several processes each trains every n-th chunk. Process 0 alone has a store, keeps the scores and
    gets the result; the others give and get None. Where memory runs out anywhere the chunk is halved
    everywhere, which is said on stderr, and training goes on. `heard` hears of runs as they are trained,
    parts of runs too; without it a bar on stderr shows them.

    A process that is alone keeps a chunk's states between two segments, at most every
    `checkpoint_seconds` (0: after each), and goes on from there; of several none does, since all wait
    for the slowest: a round that was cut off is trained again. Raises InputError where another process
    trains the setting.
    """
    if not _missing(store, runs):
        return None if store is None else Trained(store.load(runs), 0, 0.0, 0)
    with _claimed(store):
        missing = _missing(store, runs)
        checkpoints = None
        if store is not None and jax.process_count() == 1:
            checkpoints = Checkpoints(store.path / "checkpoints", checkpoint_seconds)
        count = sum(stop - start for start, stop in missing)
        clock = _Clock()
        bar = _bar(count, store is None) if heard is None else contextlib.nullcontext(heard)
        with bar as hear:

            def advanced(finished: int, steps: int) -> None:
                clock.advance(finished * steps)
                hear(jax.process_count() * finished * steps / len(table.schedule.mask))

            size = _train_missing(table, store, missing, runs, chunk, advanced, checkpoints)
    if store is None:
        return None
    return Trained(store.load(runs), count, clock.seconds(), size, clock.model_steps)


@contextlib.contextmanager
def _claimed(store: Store | None) -> Iterator[None]:
    """Holds the setting for this process; raises InputError where another does."""
    if store is None:
        yield
        return
    with store.claim() as mine:
        require(
            mine,
            f"another process ({store.holder()}) is training this setting ({store.path}): wait, or name "
            "another folder with --out",
        )
        yield


def _train_missing(
    table: game.Game,
    store: Store | None,
    missing: list[tuple[int, int]],
    runs: int,
    chunk: int,
    advanced: Callable[[int, int], object],
    checkpoints: Checkpoints | None,
) -> int:
    """Trains until nothing is missing; returns the runs a chunk."""
    size = agreed_chunk(table, runs, chunk)
    while missing:
        if not _train_chunks(table, store, _chunks(missing, size), size, advanced, checkpoints):
            require(size > 1, "out of memory with one run at a time: lower --batch_size")
            size //= 2
            if store is not None:
                print(f"out of memory: going on with chunks of {size} runs", file=sys.stderr)
        missing = _missing(store, runs)
    return size


@contextlib.contextmanager
def _bar(count: int, silent: bool) -> Iterator[Callable[[float], object]]:
    """A progress bar on stderr that hears of runs as they are trained."""
    layout = "{desc}: {percentage:3.0f}%|{bar}| {n:.0f}/{total} runs [{elapsed}<{remaining}, {rate_fmt}]"
    options = {"total": count, "unit": "runs", "desc": "training", "bar_format": layout}
    with tqdm(**options, disable=silent) as bar:
        yield lambda trained: bar.update(min(trained, count - bar.n))
        bar.update(count - bar.n)


def _missing(store: Store | None, runs: int) -> list[tuple[int, int]]:
    """What process 0's store lacks, known to all processes."""
    own = store.missing(runs) if store is not None else []
    flat = processes.from_first(np.array(own, np.int64).reshape(-1))
    return [(int(start), int(stop)) for start, stop in flat.reshape(-1, 2)]


def agreed_chunk(table: game.Game, runs: int, chunk: int) -> int:
    """Runs a chunk, where none is asked for as many as the smallest machine holds."""
    if chunk:
        return min(chunk, runs)
    theta_0, batch_size = table.init(jax.random.key(0)), table.schedule.batches.shape[1]
    bytes_per_run = ensemble.bytes_per_run(table.mechanism, theta_0, table.data, batch_size)
    own = ensemble.chunk_size(-(-runs // jax.process_count()), bytes_per_run)
    return int(processes.gather(np.array([own])).min())


def _chunks(missing: list[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """The ranges [start, stop) cut into chunks of at most `size` runs."""
    return [(i, min(i + size, stop)) for start, stop in missing for i in range(start, stop, size)]


def _train_chunks(
    table: game.Game,
    store: Store | None,
    chunks: list[tuple[int, int]],
    size: int,
    advanced: Callable[[int, int], object],
    checkpoints: Checkpoints | None,
) -> bool:
    """Trains one chunk a process at a time and keeps what all give; False where one lacks memory."""
    count, index = jax.process_count(), jax.process_index()
    played = _play(table, chunks[index::count], size, advanced, checkpoints)
    for i in range(0, len(chunks), count):
        rows = processes.gather(_next_row(played, size))
        for (first, stop), row in zip(chunks[i : i + count], rows, strict=False):
            if store is not None and not row[-1]:
                store.save(game.Scores(first, row[: stop - first], game.presence(np.arange(first, stop))))
                if checkpoints is not None:
                    checkpoints.clear()
        if rows[:, -1].any():
            return False
    return True


def _play(
    table: game.Game,
    own: list[tuple[int, int]],
    size: int,
    advanced: Callable[[int, int], object],
    checkpoints: Checkpoints | None,
) -> Iterator[game.Scores]:
    """`game.play`, from the first chunk on; nothing where this process has none."""
    if own:
        yield from game.play(table, own, size, advanced, checkpoints)


def _next_row(played: Iterator[game.Scores], size: int) -> NDArray[np.float64]:
    """The next chunk's scores (size,), then whether memory ran out."""
    row = np.zeros(size + 1)
    try:
        for chunk in itertools.islice(played, 1):
            row[: len(chunk.scores)] = chunk.scores
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        row[-1] = True
    return row


class _Clock:
    """Times training from the moment when all is compiled to the end of the last segment."""

    def __init__(self) -> None:
        self._begin = self._end = 0.0
        self.model_steps = 0

    def advance(self, model_steps: int) -> None:
        """Hears of 0 model-steps at the start, then of those that ended."""
        self._end = time.perf_counter()
        self.model_steps = self.model_steps + model_steps if model_steps else 0
        self._begin = self._begin if model_steps else self._end

    def seconds(self) -> float:
        """From start to end."""
        return self._end - self._begin


def provenance(dataset: Dataset) -> dict[str, Any]:
    """What does not decide the scores' law but explains their bits."""
    return {
        "data": dataset.source,
        **{name: metadata.version(name) for name in ("jax", "flax", "optax", "numpy")},
        "python": platform.python_version(),
        "device": jax.local_devices()[0].device_kind,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }
