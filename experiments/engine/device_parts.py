"""The parts of the trial of an accelerator, the most valuable first.

The parts ask whether the device computes the scores that were recorded, how fast it trains, what its scores
prove, and whether its use of memory was predicted. Each part runs in a process of its own, and yields each
row as soon as it is measured. Importing this starts no JAX.
"""

import json
import math
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from audit.runtime.machine import prepare_jax
from audit.settings.make import Usual, make_setting, setting_of
from audit.settings.setting import PRECISIONS, Setting
from audit.tasks.task import Dataset, Sources
from experiments.engine import ahead
from models.catalogue import task
from models.data.sources import cache_folder

if TYPE_CHECKING:
    import jax

    from audit.storage.store import Scores
    from audit.training.game import Game

Row = dict[str, str | int | float | None]
Rows = Iterator[Row]

RECORDED = Path(__file__).resolve().parents[2] / "tests" / "system" / "golden" / "scores.json"
TOLERANCES = {"float32": 1e-5, "tf32": 1e-2, "bf16": 3e-2}  # CPUs reach 0, 6e-3 and 1.2e-2
MADE_UP = "random numbers of the same shapes"
_CHUNKS = (256, 512, 1024, 2048)
_DELTA = 1e-5
_CONFIDENCE = 0.95
_GEMM = 8192  # rows of the square matrices that the part "gemm" multiplies
_SMALL_GEMM = 4096  # rows of those whose product a training run's speed is compared with
_LEAST_GEMM = 256
_LONGEST_TRAINING = 240.0  # seconds after which no chunk begins
_COUNTED_RUNS = (1, 2, 5, 10, 20, 40, 60)  # at which fresh directions' bound is shown


class Trial(NamedTuple):
    """The size of the parts, and the files of their data.

    Where a file is None, the cache is searched for the data; random numbers take their place where the cache
    lacks them. Nothing is fetched.

    Attributes:
      scale: The factor on the numbers of models. Its square root is the factor on the numbers of steps, on
        the ResNet's mini-batches and on the sides of matrices.
      california_housing: The path of the California Housing file, or None.
      cifar10: The path of the CIFAR-10 file, or None.
    """

    scale: float = 1.0
    california_housing: str | None = None
    cifar10: str | None = None

    def models(self, whole: int, least: int = 4) -> int:
        """Returns the number of models at this scale: scale * whole, rounded, but at least `least`."""
        return max(round(self.scale * whole), least)

    def length(self, whole: int, least: int = 2) -> int:
        """Returns a number of steps, examples or rows: sqrt(scale) * whole, rounded, but at least `least`."""
        return max(round(math.sqrt(self.scale) * whole), least)

    def dataset(self, model: str) -> Dataset:
        """Returns a model's data: from the trial's file, or the cache, or else random numbers in their place.

        The result's `source` says which. Nothing is downloaded.
        """
        data = task(model).data
        # The only data sets that the parts use.
        files = {"california_housing": self.california_housing, "cifar10": self.cifar10}
        file = files[data.file]
        is_cached = (cache_folder() / f"{data.file}.npz").exists()
        if file or is_cached:
            return data.load(Sources(data_file=file))
        return _make_up_like(model)


def _make_up_like(model: str) -> Dataset:
    """Returns random features and labels with the shapes and types of a model's data."""
    row = task(model)
    number, shape, kind = row.data.examples
    rng = np.random.default_rng(0)
    features = _draw_features(rng, (number, *shape), kind)
    labels = rng.integers(0, row.classes, number)
    return Dataset(
        features.astype(kind),
        labels.astype(np.int32),
        source=MADE_UP,
        checksum="0" * 64,  # there is no file to compute a checksum of
    )


def _draw_features(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> np.ndarray:
    """Draws features: uniform pixels from 0 to 255 where `kind` is "u1" (bytes), else normal numbers."""
    if kind == "u1":
        return rng.integers(0, 256, shape)
    return rng.normal(size=shape)


class Part(NamedTuple):
    """A part of the trial.

    Attributes:
      name: The name in flags and on the page.
      measures: A sentence that says what the part measures.
      rows: (trial) -> the rows; measures them one after the other.
    """

    name: str
    measures: str
    rows: Callable[[Trial], Rows]


def tell(name: str, trial: Trial) -> Rows:
    """Yields a row that describes the device, then the rows of a part.

    Args:
      name: The name of a part in PARTS.
      trial: The size of the part, and its data.
    """
    part = next(part for part in PARTS if part.name == name)
    yield _describe_device()
    yield from part.rows(trial)


def _describe_device() -> Row:
    """Returns a row on this machine: the devices' kind, number and memory, and the libraries' versions.

    The memory is None where the device does not tell it.
    """
    prepare_jax()
    import jax

    devices = jax.local_devices()
    statistics = devices[0].memory_stats() or {}
    row: Row = {
        "device": devices[0].device_kind,
        "devices": len(devices),
        "memory_bytes": statistics.get("bytes_limit"),
        "python": platform.python_version(),
    }
    for name in ("jax", "jaxlib", "flax", "optax", "numpy"):
        row[name] = metadata.version(name)
    return row


def _tell_gemm(trial: Trial) -> Rows:
    """Yields, for each precision, the floating-point operations a second of products of square matrices."""
    size = trial.length(_GEMM, _LEAST_GEMM)
    for precision in PRECISIONS:
        yield {"precision": precision, "rows": size, "flops_per_s": _time_gemm(precision, size)}


def _time_gemm(precision: str, size: int, seconds: float = 1.0) -> float:
    """Returns the floating-point operations a second that products of square matrices reach.

    Args:
      precision: The operands' precision: float32, tf32 or bf16; sums are float32.
      size: The number of rows, and of columns, of a matrix; a product has 2 size^3 operations.
      seconds: The least time for which products are timed.
    """
    import jax
    import jax.numpy as jnp

    from experiments.engine.engines import rate

    key = jax.random.key(0)
    left, right = jax.random.normal(key, (2, size, size), jnp.float32)
    if precision == "bf16":
        left = left.astype(jnp.bfloat16)
        right = right.astype(jnp.bfloat16)
    # JAX's "highest" is float32 proper. "high" lets a GPU round float32 operands to tf32.
    allowed = "highest" if precision == "float32" else "high"

    @jax.jit
    def multiply(a: "jax.Array", b: "jax.Array") -> "jax.Array":
        """Returns the product of two square matrices, with sums in float32."""
        return jnp.matmul(a, b, precision=allowed, preferred_element_type=jnp.float32)

    def run() -> int:
        """Multiplies four times, so that the device need not wait for Python between two products."""
        jax.block_until_ready([multiply(left, right) for _ in range(4)])
        return 4

    run()  # compiles
    products_per_second = rate(run, seconds)
    return 2.0 * size**3 * products_per_second


def _tell_golden(trial: Trial) -> Rows:
    """Yields how far recorded ("golden") scores are from those of the same runs on this device.

    There is a row for each precision and recorded setting. `distance` is the largest absolute difference
    between a recorded score and its counterpart. `tolerance` is that of the coarser of two precisions: the
    precision in which the scores were recorded, and the precision in which this device computes them.
    """
    recorded = json.loads(RECORDED.read_text())["settings"]
    for precision in PRECISIONS:
        for name, golden in recorded.items():
            recorded_in = golden["fields"]["precision"]
            fields = {**golden["fields"], "precision": precision}
            # Recorded in hexadecimal, which keeps every bit.
            expected = np.array([float.fromhex(score) for score in golden["scores"]])
            scores = scored_again(fields, len(expected))
            distance = float(np.max(np.abs(scores - expected)))
            tolerance = max(TOLERANCES[precision], TOLERANCES[recorded_in])
            yield {
                "precision": precision,
                "setting": name,
                "recorded_in": recorded_in,
                "distance": distance,
                "tolerance": tolerance,
                "agrees": "yes" if distance <= tolerance else "no",
            }


def scored_again(fields: dict[str, Any], runs: int) -> np.ndarray:
    """Computes the scores (runs,) of a recorded setting on this device, on the made-up data of the recording.

    Args:
      fields: The setting's fields, as scores.json has them.
      runs: The number of runs to score, each with a single canary.
    """
    from audit.settings import build
    from audit.training import game

    model = fields["model"]
    given = {name: value for name, value in fields.items() if name not in ("model", "clipping")}
    # `make_setting` needs the model's usual values, though the recorded fields replace all of them.
    usual = Usual(*(given[name] for name in Usual._fields))
    setting = make_setting(model, usual, given)
    dataset = _make_up_recorded(model)
    trainee = build.trainee(model, dataset)._replace(clipping=fields["clipping"])
    played = build.build_for(setting, dataset, trainee)
    (chunk,) = game.play(played, [(0, runs)], chunk=runs)  # all runs in a single chunk
    return chunk.scores[:, 0]  # of the single canary


def _make_up_recorded(model: str) -> Dataset:
    """Makes the random data on which the recorded scores of a model were computed.

    Nothing here may change, or the recorded scores no longer belong to these data.
    """
    if model == "convnet":
        rng = np.random.default_rng(1)
        images = rng.integers(0, 256, (64, 32, 32, 3)).astype(np.uint8)
        classes = rng.integers(0, 10, 64).astype(np.int32)
        return Dataset(images, classes, "made up", "1" * 64)
    rng = np.random.default_rng(0)
    features = rng.normal(size=(200, 8)).astype(np.float32)
    weights = rng.normal(size=8)
    labels = features @ weights + rng.normal(size=200) > 0
    return Dataset(features, labels.astype(np.int32), "made up", "0" * 64)


def _tell_fcnn(trial: Trial) -> Rows:
    """Yields the row of an audit of the FCNN (see `_audit`)."""
    yield _audit(setting_of("fcnn", steps=trial.length(250)), trial)


def _tell_chunks(trial: Trial) -> Rows:
    """Yields a row for each size of chunk: how fast it trains ConvNets, and the memory that it takes.

    A chunk is the runs that are trained at once. Small trials have smaller chunks and fewer steps.
    """
    setting = setting_of("convnet", adversary="gc_r", steps=trial.length(50))
    sizes = {trial.models(chunk, least=16) for chunk in _CHUNKS}  # a set: scaled sizes may coincide
    for size in sorted(sizes):  # the smallest first: a process's peak memory only rises
        row, _ = _train(setting, trial, size, size)
        yield row


def _tell_convnet(trial: Trial) -> Rows:
    """Yields the row of an audit of the ConvNet (see `_audit`)."""
    yield _audit(setting_of("convnet", adversary="gc_r", steps=trial.length(250)), trial)


def _audit(setting: Setting, trial: Trial) -> Row:
    """Trains 5,000 models at scale 1, and returns a row on their speed, their memory and what they prove.

    The row has the lower bound on epsilon that holds if the trade-off curve is Gaussian, and the accountant's
    upper bound.

    Args:
      setting: A setting with a single canary a run.
      trial: The scale and the data.
    """
    from audit.methods import estimate

    row, scores = _train(setting, trial, trial.models(5000))
    conclusion = estimate.if_gaussian(*scores.worlds(), _DELTA, _CONFIDENCE)
    return {
        **row,
        "epsilon_if_gaussian": conclusion.epsilon,
        "upper_bound": _compute_upper_bound(setting),
    }


def _tell_directions(trial: Trial) -> Rows:
    """Yields what fresh directions prove from several numbers of trained ConvNets, a row for each number."""
    from audit.methods import exact_null

    setting = setting_of("convnet", adversary="sphere", canaries="auto", steps=trial.length(250))
    row, scores = _train(setting, trial, trial.models(60))
    # path[n - 1] is the lower bound after n runs.
    path = exact_null.bound_directions(scores.directions(), _DELTA, _CONFIDENCE).path
    upper_bound = _compute_upper_bound(setting)
    # Fewer runs than planned may have been trained: larger counts become the number of trained runs.
    counts = {min(runs, len(path)) for runs in _COUNTED_RUNS}
    for runs in sorted(counts):
        yield {
            **row,
            "directions": setting.canaries,
            "runs": runs,
            "proven": path[runs - 1],
            "upper_bound": upper_bound,
        }


def _compute_upper_bound(setting: Setting) -> float:
    """Returns the upper bound on a training run's epsilon by composition.

    Each insertion is a Gaussian mechanism with noise multiplier sigma. All of them together are mu-GDP with
    mu = sqrt(insertions) / sigma.
    """
    from audit.laws import conversions

    mu = math.sqrt(setting.insertions) / setting.mechanism.noise_multiplier
    return conversions.epsilon_from_mu(mu, _DELTA)


def _tell_resnet(trial: Trial) -> Rows:
    """Yields a row for each precision: how fast ResNets train, and the memory that they take.

    The precisions are float32 and bf16 at scale 1, and float32 alone at any other scale: small trials are for
    CPUs, where compiling this part takes longer than all other parts.
    """
    precisions = ("float32", "bf16") if trial.scale == 1 else ("float32",)
    for precision in precisions:
        setting = setting_of(
            "resnet18",
            adversary="gc_r",
            batch_size=trial.length(128),
            steps=trial.length(25),
            precision=precision,
        )
        row, _ = _train(setting, trial, trial.models(4, least=2))
        yield row


def _train(setting: Setting, trial: Trial, runs: int, chunk: int = 0) -> "tuple[Row, Scores]":
    """Trains runs chunk by chunk, and measures their speed and memory.

    No chunk begins after _LONGEST_TRAINING seconds, so that fewer runs may be trained than requested.

    Args:
      setting: The setting of the runs.
      trial: The scale and the data.
      runs: The number of runs to train.
      chunk: The number of runs to train at once; 0 for as many as an audit takes.

    Returns:
      (a row on the model, its speed and its memory, the scores of the trained runs)
    """
    import jax

    from audit.mechanism import ensemble
    from audit.settings import build
    from audit.training import game

    dataset = trial.dataset(setting.model)
    # The training runs; their memory is foretold where that is possible.
    begin = time.perf_counter()
    played = build.build(setting, dataset)
    size = chunk or game.chunk_size(played, runs)
    foretold: int | None = None
    # An adversary with `draw` gives each run canaries of its own. A training run is simulated for it first,
    # which can't be traced, so that the memory can't be foretold.
    if played.adversary.draw is None:
        foretold = ahead.measure_memory(played, size, jax.local_devices()).device
    chunks, marks = _play_chunks(played, runs, size)  # marks[0]: when all was compiled

    # The speed, also as a share of what products of large matrices reach on this device.
    trained = sum(len(part.scores) for part in chunks)
    seconds = marks[-1] - marks[0]
    steps = setting.schedule.steps
    rate = trained * steps / seconds
    gemm = _time_gemm("float32", trial.length(_SMALL_GEMM, _LEAST_GEMM), seconds=0.5)
    row: Row = {
        "model": setting.model,
        "precision": setting.mechanism.precision,
        "batch_size": setting.mechanism.batch_size,
        "models": trained,
        "at_once": size,
        "steps": steps,
        "data": dataset.source,
        "compile_s": marks[0] - begin,
        "train_s": seconds,
        "model_steps_per_s": rate,
        "share_of_float32_gemm": rate * _count_operations(setting, dataset) / gemm,
        "peak_bytes": ensemble.peak_memory(),
        "foretold_bytes": foretold,
    }
    # The first chunk's record, with the scores of all chunks.
    scores = np.concatenate([part.scores for part in chunks])
    presence = np.concatenate([part.presence for part in chunks])
    return row, chunks[0]._replace(scores=scores, presence=presence)


def _play_chunks(played: "Game", runs: int, size: int) -> "tuple[list[Scores], list[float]]":
    """Trains runs in chunks, none of which begins after _LONGEST_TRAINING seconds.

    Args:
      played: The game whose runs are trained.
      runs: The number of runs in all chunks together.
      size: The number of runs in a chunk.

    Returns:
      (the scores of each chunk, marks); marks[0] is the time, in seconds, at which all was compiled, and the
      others are the times at which segments of training steps ended.
    """
    from audit.training import game

    marks: list[float] = []

    def mark(*done: int) -> None:
        """Notes the time; called when all is compiled, and after each segment of steps.

        It has no use for `done`, the numbers of runs and of steps that `play` passes.
        """
        marks.append(time.perf_counter())

    chunks = []
    for chunk in game.play(played, [(0, runs)], size, mark):  # of runs 0 to runs - 1
        chunks.append(chunk)
        if marks[-1] - marks[0] > _LONGEST_TRAINING:
            break
    return chunks, marks


def _count_operations(setting: Setting, dataset: Dataset) -> int:
    """Returns the floating-point operations of a model-step, the step of a single model on a mini-batch."""
    from audit.settings import build
    from experiments.engine import peers_jax

    model = build.trainee(setting.model, dataset).model
    layers = peers_jax.layers_of(model, dataset.features[0])  # any example: its shape counts
    # `uses` has the multiplications by each layer's weights in the forward pass of a single example.
    return peers_jax.flops(layers.uses, setting.mechanism.batch_size)


_SPEED = (
    "how fast they train, beside a product of matrices, and their memory beside what the compiler "
    "foretold"
)
PARTS: Sequence[Part] = (
    Part("gemm", "What products of square matrices reach, by the vendor's library.", _tell_gemm),
    Part(
        "golden",
        "Scores recorded on a CPU, computed again: the largest distance, and the most that is tolerated.",
        _tell_golden,
    ),
    Part("fcnn", f"5,000 FCNNs, 250 steps: {_SPEED}.", _tell_fcnn),
    Part("chunks", f"Chunks of 256 to 2,048 ConvNets, 50 steps: {_SPEED}.", _tell_chunks),
    Part("convnet", f"5,000 ConvNets, 250 steps: {_SPEED}.", _tell_convnet),
    Part(
        "directions",
        "60 ConvNets with fresh directions: what the exact null proves.",
        _tell_directions,
    ),
    Part("resnet18", f"4 ResNet18s, 25 steps: {_SPEED}.", _tell_resnet),
)
