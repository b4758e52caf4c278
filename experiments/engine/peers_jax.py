"""The engines that `throughput` times in JAX: ours, jax_privacy, and a matrix product."""

import functools
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from audit import game
from audit.mechanism import ensemble
from audit.mechanism.base import Data, Hyperparameters, Schedule, no_canaries
from audit.mechanism.clipping.base import separate
from audit.model import Model
from audit.settings import build
from audit.settings.make import changed, setting_of
from audit.settings.setting import Setting
from audit.task import Dataset, Sources
from experiments.engine.problem import GEMM_SIZE, About, Engine, Layout, Problem, Run, fastest
from models.catalogue import task
from models.convnet import ConvNet
from models.data.cifar10 import CIFAR10_MEAN, CIFAR10_STD

_RUNS = 5000  # of the audit whose chunk is taken
_BLOCKS: dict[str, dict[str, int]] = {  # a measurement's; all engines cycle through its mini-batches
    "fcnn": {"steps": 250},
    "convnet": {"steps": 10},
    "resnet18": {"steps": 8, "batch_size": 8},
}


def write_problem(model: str, file: str | None, tfds_dir: str | None, path: Path) -> int:
    """Loads the data, writes the Problem that `./run.sh audit --model=...` trains; returns its batch size."""
    dataset = task(model).data.load(Sources(data_file=file, tfds_dir=tfds_dir))
    problem = problem_of(_setting(model, **_BLOCKS[model]), dataset)
    problem.save(path)
    return problem.batch_size


def _setting(model: str, **fields: int) -> Setting:
    """`audit`'s defaults, but for GC-R: a step costs the same, and it needs no simulation."""
    return setting_of(model, adversary="gc_r", **fields)


def problem_of(setting: Setting, dataset: Dataset) -> Problem:
    """The Problem of a setting, with our noiseless step."""
    played, fields = build.build(setting, dataset), setting.mechanism
    theta_0 = played.init(game.root(setting.seed, "theta"))
    hyper = Hyperparameters(1.0, fields.clipping_norm, 0.0)
    first = Schedule(played.schedule.batches[:1], jnp.zeros(1))

    @jax.jit
    def stepped(theta: Array, data: Data) -> Array:
        state = played.mechanism.start(theta)
        return played.mechanism.segment(hyper, state, data, first, no_canaries(), jax.random.key(0)).theta

    return Problem(
        setting.model,
        dataset.features,
        dataset.labels,
        np.asarray(played.schedule.batches),
        np.asarray(theta_0),
        np.asarray(stepped(theta_0, played.data)),
        layout_of(build.trainee(setting.model, dataset).model, dataset.features[0]),
        fields.learning_rate,
        fields.clipping_norm,
        fields.noise_multiplier,
    )


def layout_of(model: Model, example: NDArray[Any]) -> Layout:
    """Where each layer's kernel or scale and its bias stand in theta, in the order in which the layers are
    called."""
    called: list[tuple[str, ...]] = []

    def note(call: Callable[..., Any], arguments: Any, keywords: Any, context: Any) -> Any:
        called.append(context.module.path)
        return call(*arguments, **keywords)

    tree = model.unravel(jnp.arange(model.n_parameters, dtype=jnp.float32))
    with nn.intercept_methods(note):
        jax.eval_shape(model.module.init, jax.random.key(0), example)
    own = [
        functools.reduce(lambda part, name: part.get(name, {}), path, tree) for path in dict.fromkeys(called)
    ]
    layers = [[one[name] for name in ("kernel", "scale", "bias") if name in one] for one in own]
    return [tuple(np.asarray(one).astype(np.int64) for one in layer) for layer in layers if layer]


def ours(path: Path) -> Engine:
    """Audit's training of 5,000 runs in chunks of the size that it chooses, with noise and insertion."""
    problem = Problem.load(path)
    setting = changed(
        _setting(problem.model, steps=len(problem.batches)),
        learning_rate=problem.learning_rate,
        clipping_norm=problem.clipping_norm,
        noise_multiplier=problem.noise_multiplier,
        batch_size=problem.batch_size,
    )
    played = build.build(setting, Dataset(problem.features, problem.labels, "", ""))
    chunk = game.chunk_size(played, _RUNS)
    chunks = game.play(played, [(0, 2**31)], chunk)

    def run() -> int:
        return len(next(chunks).scores) * setting.schedule.steps

    return engine_of(run, chunk, 0.0)


class OrdinaryConvNet(nn.Module):
    """The ConvNet's function and parameters in Flax's own layers, as its users write it; models.layers,
    which are part of our engine, would make jax_privacy several times faster."""

    @nn.compact
    def __call__(self, image: Array) -> Array:
        mean, deviation = jnp.array(CIFAR10_MEAN, jnp.float32), jnp.array(CIFAR10_STD, jnp.float32)
        x = (image.astype(jnp.float32) / 255 - mean) / deviation
        for i, features in enumerate((6, 16)):
            x = nn.Conv(features, (5, 5), padding="VALID", name=f"Convolution_{i}")(x)
            x = nn.max_pool(nn.relu(x), (2, 2), (2, 2))
        x = jnp.moveaxis(x, -1, -3).reshape(*x.shape[:-3], -1)
        for features in (120, 84):
            x = nn.relu(nn.Dense(features)(x))
        return nn.Dense(10)(x)


def _ordinary(model: Model) -> Model:
    """The model as its users write it."""
    if not isinstance(model.module, ConvNet):
        return model
    module = OrdinaryConvNet()

    def loss(theta: Array, labelled: tuple[Array, Array]) -> Array:
        logits: Any = module.apply({"params": model.unravel(theta)}, labelled[0])
        return model.criterion(logits, labelled[1])

    return model._replace(module=module, loss=loss)


def jax_privacy(path: Path, models: int = 0) -> Engine:
    """jax_privacy's clipped_grad and Gaussian noise, mapped over so many models (0: the fastest), which
    are spread over the devices as ours are."""
    from jax_privacy import clipping, noise_addition

    problem = Problem.load(path)
    placement, devices = ensemble.Placement.local(), len(jax.local_devices())
    data = placement.everywhere((problem.features, problem.labels))
    model = _ordinary(task(problem.model).make(problem.features.shape[1:]))
    norm, size = problem.clipping_norm, problem.batch_size
    gradient = clipping.clipped_grad(
        model.loss, l2_clip_norm=norm, keep_batch_dim=False, normalize_by=float(size)
    )

    def train(theta: Array, key: Array, batches: Array, data: Data, rate: Array, sigma: Array) -> Array:
        noise = noise_addition.gaussian_privatizer(stddev=sigma * norm / size, prng_key=key)

        def step(carry: Any, indices: Array) -> tuple[Any, None]:
            theta, state = carry
            batch = separate(theta, (data[0][indices], data[1][indices]))
            update, state = noise.update(gradient(theta, batch), state)
            return (theta - rate * update, state), None

        return jax.lax.scan(step, (theta, noise.init(theta)), batches)[0][0]

    theta_0, batches = placement.everywhere((problem.theta_0, problem.batches))
    stepped = jax.jit(train)(theta_0, jax.random.key(0), batches[:1], data, 1.0, 0.0)
    many = placement.over_runs(train, (0, 0, None, None, None, None), donated=(0,))

    def train_many(models: int) -> Run:
        thetas = placement.by_run(jnp.tile(theta_0, (models, 1)))
        blocks = _blocks(jnp.asarray(batches), models // devices * size * theta_0.size)
        keys = (placement.by_run(jax.random.split(jax.random.key(i), models)) for i in itertools.count())

        def run() -> int:
            nonlocal thetas
            block = next(blocks)
            rate, sigma = problem.learning_rate, problem.noise_multiplier
            thetas = jax.block_until_ready(many(thetas, next(keys), block, data, rate, sigma))
            return models * len(block)

        return run

    counts = [models] if models else [devices * m for m in problem.models_to_try(_platform())]
    models, run = fastest(train_many, counts)
    return engine_of(run, models, float(np.linalg.norm(stepped - problem.stepped)))


def _blocks(batches: Array, floats: int) -> Iterator[Array]:
    """Mini-batches cut into blocks of one length, shorter ones where a step takes longer."""
    length = min(len(batches), max(5, (1 << 24) // floats))
    return itertools.cycle([batches[i : i + length] for i in range(0, len(batches) - length + 1, length)])


def gemm(path: Path) -> Engine:
    """float32 products of two square matrices, on all cores or the GPU; a "model-step" is one product."""
    left, right = jax.random.normal(jax.random.key(0), (2, GEMM_SIZE, GEMM_SIZE))
    product = jax.jit(functools.partial(jnp.matmul, precision="float32"))

    def run() -> int:
        jax.block_until_ready(product(left, right))
        return 1

    return engine_of(run, 1, 0.0)


def engine_of(run: Run, models: int, distance: float) -> Engine:
    """On JAX's device."""
    device = jax.local_devices()[0]

    def peak() -> int:
        return int((device.memory_stats() or {}).get("peak_bytes_in_use", 0))

    about = About(models, _platform(), device.device_kind, distance)
    return Engine(about, run, None if about.platform == "cpu" else peak)


def _platform() -> str:
    """cpu or gpu."""
    return "cpu" if jax.local_devices()[0].platform == "cpu" else "gpu"
