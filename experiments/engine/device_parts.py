"""What an accelerator is tried on, part by part in order of worth: whether it computes what was recorded, how
fast it trains, what it proves, and whether memory was foretold. Each part runs in a process of its own, and
tells a row as soon as it has it. Importing this starts no JAX.
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

from audit.machine import prepare_jax
from audit.settings.make import Usual, make_setting, setting_of
from audit.settings.setting import PRECISIONS, Setting
from audit.task import Dataset, Sources
from experiments.engine import ahead
from models.catalogue import task
from models.data.sources import cache_folder

if TYPE_CHECKING:
    from audit.storage.store import Scores

Row = dict[str, str | int | float | None]
Rows = Iterator[Row]

RECORDED = Path(__file__).resolve().parents[2] / "tests" / "system" / "golden" / "scores.json"
TOLERANCES = {"float32": 1e-5, "tf32": 1e-2, "bf16": 3e-2}  # CPUs reach 0, 6e-3 and 1.2e-2
_CHUNKS = (256, 512, 1024, 2048)
_DELTA, _CONFIDENCE = 1e-5, 0.95
_GEMM = 8192  # of square matrices
MADE_UP = "random numbers of the same shapes"


class Trial(NamedTuple):
    """How large the parts are, and their data. scale: of the number of models; steps, mini-batches of the
    ResNet and the sides of matrices go with its square root. A file that is not named is looked for in the
    cache, and replaced by random numbers where it is not there either: nothing is fetched.
    """

    scale: float = 1.0
    california_housing: str | None = None
    cifar10: str | None = None

    def models(self, whole: int, least: int = 4) -> int:
        """So many at this scale."""
        return max(round(self.scale * whole), least)

    def length(self, whole: int, least: int = 2) -> int:
        """So many steps, examples or rows at this scale."""
        return max(round(math.sqrt(self.scale) * whole), least)

    def dataset(self, model: str) -> Dataset:
        """A model's data, or what stands in for them, as `source` says."""
        row = task(model)
        file = {"california_housing": self.california_housing, "cifar10": self.cifar10}[row.data.file]
        if file or (cache_folder() / f"{row.data.file}.npz").exists():
            return row.data.load(Sources(data_file=file))
        rng, (number, shape, kind) = np.random.default_rng(0), row.data.examples
        features = (
            rng.integers(0, 256, (number, *shape)) if kind == "u1" else rng.normal(size=(number, *shape))
        )
        labels = rng.integers(0, row.classes, number)
        return Dataset(features.astype(kind), labels.astype(np.int32), MADE_UP, "0" * 64)


class Part(NamedTuple):
    """A name, what it measures in a sentence, and what does so. on_device: JAX may start its devices."""

    name: str
    measures: str
    rows: Callable[[Trial], Rows]
    on_device: bool = True


def tell(name: str, trial: Trial) -> Rows:
    """A part's rows, after one on where it runs."""
    part = next(part for part in PARTS if part.name == name)
    yield _about() if part.on_device else {}
    yield from part.rows(trial)


def _about() -> Row:
    prepare_jax()
    import jax

    devices = jax.local_devices()
    limit = (devices[0].memory_stats() or {}).get("bytes_limit")
    versions = {name: metadata.version(name) for name in ("jax", "jaxlib", "flax", "optax", "numpy")}
    facts = {"device": devices[0].device_kind, "devices": len(devices), "memory_bytes": limit}
    return {**facts, "python": platform.python_version(), **versions}


def _gemm_rows(trial: Trial) -> Rows:
    for precision in PRECISIONS:
        size = trial.length(_GEMM, 256)
        yield {"precision": precision, "rows": size, "flops_per_s": _gemm(precision, size)}


def _gemm(precision: str, size: int, seconds: float = 1.0) -> float:
    """Operations a second of products of square matrices."""
    import jax
    import jax.numpy as jnp

    from experiments.engine.engines import rate

    left, right = jax.random.normal(jax.random.key(0), (2, size, size), jnp.float32)
    if precision == "bf16":
        left, right = left.astype(jnp.bfloat16), right.astype(jnp.bfloat16)
    allowed = "highest" if precision == "float32" else "high"
    product = jax.jit(lambda a, b: jnp.matmul(a, b, precision=allowed, preferred_element_type=jnp.float32))

    def run() -> int:
        jax.block_until_ready([product(left, right) for _ in range(4)])
        return 4

    run()
    return 2.0 * size**3 * rate(run, seconds)


def _golden_rows(trial: Trial) -> Rows:
    recorded = json.loads(RECORDED.read_text())["settings"]
    for precision in PRECISIONS:
        for name, golden in recorded.items():
            own, fields = golden["fields"]["precision"], {**golden["fields"], "precision": precision}
            expected = np.array([float.fromhex(score) for score in golden["scores"]])
            distance = float(np.max(np.abs(scored_again(fields, len(expected)) - expected)))
            tolerance = max(TOLERANCES[precision], TOLERANCES[own])
            agrees = "yes" if distance <= tolerance else "no"
            row: Row = {"precision": precision, "setting": name, "recorded_in": own, "distance": distance}
            yield {**row, "tolerance": tolerance, "agrees": agrees}


def scored_again(fields: dict[str, Any], runs: int) -> np.ndarray:
    """The scores (runs,) of a setting on made-up data, by the fields under which scores.json has them."""
    from audit import game
    from audit.settings import build

    rest = {name: value for name, value in fields.items() if name != "model"}
    setting = make_setting(fields["model"], Usual(*(rest[part] for part in Usual._fields)), rest)
    (chunk,) = game.play(build.build(setting, _made_up(fields["model"])), [(0, runs)], runs)
    return chunk.scores[:, 0]


def _made_up(model: str) -> Dataset:
    if model == "convnet":
        rng = np.random.default_rng(1)
        images, labels = rng.integers(0, 256, (64, 32, 32, 3)), rng.integers(0, 10, 64)
        return Dataset(images.astype(np.uint8), labels.astype(np.int32), "made up", "1" * 64)
    rng = np.random.default_rng(0)
    features = rng.normal(size=(200, 8)).astype(np.float32)
    labels = (features @ rng.normal(size=8) + rng.normal(size=200) > 0).astype(np.int32)
    return Dataset(features, labels, "made up", "0" * 64)


def _fcnn_rows(trial: Trial) -> Rows:
    yield _audited(setting_of("fcnn", steps=trial.length(250)), trial)


def _chunk_rows(trial: Trial) -> Rows:
    setting = setting_of("convnet", adversary="gc_r", steps=trial.length(50))
    for chunk in sorted({trial.models(chunk, 16) for chunk in _CHUNKS}):  # peak memory only rises
        yield _trained(setting, trial, chunk, chunk)[0]


def _convnet_rows(trial: Trial) -> Rows:
    yield _audited(setting_of("convnet", adversary="gc_r", steps=trial.length(250)), trial)


def _audited(setting: Setting, trial: Trial) -> Row:
    """A training of 5,000 models, and what their scores prove."""
    from audit.statistics import estimate

    row, scores = _trained(setting, trial, trial.models(5000))
    proven = estimate.if_gaussian(*scores.worlds(), _DELTA, _CONFIDENCE).epsilon
    return {**row, "epsilon_if_gaussian": proven, "upper_bound": _upper_bound(setting)}


def _directions_rows(trial: Trial) -> Rows:
    from audit.statistics import exact_null

    setting = setting_of("convnet", adversary="sphere", canaries="auto", steps=trial.length(250))
    row, scores = _trained(setting, trial, trial.models(60))
    path, upper = exact_null.of_fresh(scores.directions(), _DELTA, _CONFIDENCE).path, _upper_bound(setting)
    for runs in sorted({min(runs, len(path)) for runs in (1, 2, 5, 10, 20, 40, 60)}):
        yield {
            **row,
            "directions": setting.canaries,
            "runs": runs,
            "proven": path[runs - 1],
            "upper_bound": upper,
        }


def _upper_bound(setting: Setting) -> float:
    """epsilon of as many Gaussian mechanisms as there are insertions."""
    from audit.statistics import conversions

    mu = math.sqrt(setting.insertions) / setting.mechanism.noise_multiplier
    return conversions.epsilon_from_mu(mu, _DELTA)


def _resnet_rows(trial: Trial) -> Rows:
    """Of a smaller trial in float32 alone: on a CPU this takes longer to compile than all else."""
    for precision in ("float32", "bf16") if trial.scale == 1 else ("float32",):
        size = {"batch_size": trial.length(128), "steps": trial.length(25), "precision": precision}
        setting = setting_of("resnet18", adversary="gc_r", **size)
        yield _trained(setting, trial, trial.models(4, 2))[0]


def _trained(
    setting: Setting, trial: Trial, runs: int, chunk: int = 0, seconds: float = 240.0
) -> "tuple[Row, Scores]":
    """Trains runs in chunks, none of which begins after so many seconds; 0: in those that an audit takes."""
    import jax

    from audit import game
    from audit.mechanism import ensemble
    from audit.settings import build

    dataset, fields, begin = trial.dataset(setting.model), setting.mechanism, time.perf_counter()
    played = build.build(setting, dataset)
    size, steps = chunk or game.chunk_size(played, runs), setting.schedule.steps
    foretold: int | None = None
    if played.adversary.draw is None:  # else a training is simulated, which can't be traced
        program = ahead.TrainingProgram(ahead.DP_SGD, setting.model, fields.precision)
        foretold = ahead.measured(program, played, size, jax.local_devices()).bytes_a_device
    marks, parts = list[float](), list["Scores"]()
    for part in game.play(played, [(0, runs)], size, lambda *done: marks.append(time.perf_counter())):
        parts.append(part)
        if marks[-1] - marks[0] > seconds:
            break
    trained, spent = sum(len(part.scores) for part in parts), marks[-1] - marks[0]
    rate = trained * steps / spent
    share = rate * _arithmetic(setting, dataset) / _gemm("float32", trial.length(4096, 256), 0.5)
    row: Row = {
        **{"model": setting.model, "precision": fields.precision, "batch_size": fields.batch_size},
        **{"models": trained, "at_once": size, "steps": steps, "data": dataset.source},
        **{"compile_s": marks[0] - begin, "train_s": spent, "model_steps_per_s": rate},
        **{"share_of_float32_gemm": share},
        **{"peak_bytes": ensemble.peak_memory(), "foretold_bytes": foretold},
    }
    scores, present = (np.concatenate([part[place] for part in parts]) for place in (1, 2))
    return row, parts[0]._replace(scores=scores, presence=present)


def _arithmetic(setting: Setting, dataset: Dataset) -> int:
    """Floating-point operations of a model-step."""
    from audit.settings import build
    from experiments.engine import peers_jax

    layers = peers_jax.layers_of(build.trainee(setting.model, dataset).model, dataset.features[0])
    return peers_jax.flops(layers.uses, setting.mechanism.batch_size)


def _compile_rows(trial: Trial) -> Rows:
    ahead.require_compiler("h200")
    for model in ("fcnn", "convnet", "resnet18"):
        program = ahead.TrainingProgram(ahead.DP_SGD, model)
        found = ahead.compiled_here(ahead.target("h200"), program)._asdict()
        yield {"model": model, **{name: value for name, value in found.items() if name != "program"}}


_SPEED = (
    "how fast they train, beside a product of matrices, and their memory beside what the compiler foretold"
)
PARTS: Sequence[Part] = (
    Part("gemm", "What products of square matrices reach, by the vendor's library.", _gemm_rows),
    Part(
        "golden",
        "Scores recorded on a CPU, computed again: the largest distance, and the most that is tolerated.",
        _golden_rows,
    ),
    Part("fcnn", f"5,000 FCNNs, 250 steps: {_SPEED}.", _fcnn_rows),
    Part("chunks", f"Chunks of 256 to 2,048 ConvNets, 50 steps: {_SPEED}.", _chunk_rows),
    Part("convnet", f"5,000 ConvNets, 250 steps: {_SPEED}.", _convnet_rows),
    Part("directions", "60 ConvNets with fresh directions: what the exact null proves.", _directions_rows),
    Part("resnet18", f"4 ResNet18s, 25 steps: {_SPEED}.", _resnet_rows),
    Part("compile", "What `compile` foretells of an H200 without one.", _compile_rows, on_device=False),
)
