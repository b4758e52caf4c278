"""Builds the engines that `throughput` times in JAX, and the problem that all engines get."""

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from audit.mechanism import ensemble
from audit.mechanism.base import Data, Hyperparameters, Schedule, no_canaries
from audit.mechanism.clipping.base import separate
from audit.runtime.machine import prepare_jax
from audit.settings.make import changed, setting_of
from audit.settings.setting import Setting
from audit.tasks.model import Model
from audit.tasks.task import Dataset, Sources
from audit.training import build, game
from models.catalogue import task
from models.convolutional import ConvNet
from models.data.images import CIFAR10_MEAN, CIFAR10_STD
from models.layers import normalised

Run = Callable[[], int]  # trains for a moment; returns the number of model-steps
Tree = dict[str, Any]

_RUNS = 5000  # of an audit, for which our engine chooses its number of models at once
_ENDLESS = 2**31  # more runs than a measurement has time for
_TRIAL_SECONDS = 0.5  # for which each number of models at once is timed
_MAX_CPU_FLOATS = 1 << 26  # in all models' per-example gradients of a step
_MAX_GPU_FLOATS = 1 << 30
_CALL_STEPS = 10  # of a call of jax_privacy: they share its overhead


class Problem(NamedTuple):
    """A training run of DP-SGD, with fixed mini-batches, that every engine gets.

    Attributes:
      setting: the setting of the training run.
      features: (n, ...) the examples' features.
      labels: (n,) the examples' labels.
      batches: (steps, B) the indices of each mini-batch's examples.
      theta_0: (p,) the initial parameters.
      stepped: (p,) the parameters after our step from theta_0 on the first mini-batch, without noise, at
        learning rate 1.
      places: for each of the network's parameters, in the order of calls, the places of its entries in
        theta. The arrays have Flax's shapes.
    """

    setting: Setting
    features: NDArray[Any]
    labels: NDArray[Any]
    batches: NDArray[np.int32]
    theta_0: NDArray[np.float32]
    stepped: NDArray[np.float32]
    places: list[NDArray[np.int64]]


class Engine(NamedTuple):
    """An engine that is ready to be timed.

    Attributes:
      run: trains for a moment, and returns the number of model-steps; None outside its process.
      models: the number of models that it trains at once.
      device: the device's name; "cpu" for any CPU.
      distance: the Euclidean distance between its first step and ours, without noise at learning rate 1.
    """

    run: Run | None
    models: int
    device: str
    distance: float


def make_problem(model: str, steps: int, batch_size: int | None, sources: Sources) -> Problem:
    """Makes the problem of training a model as `audit` does by default.

    The adversary is GC-R in place of the default, GC-S. A step costs the same, but GC-S first simulates
    training runs to choose its coordinate.

    Args:
      model: the model's name.
      steps: the number of steps of a run.
      batch_size: the size of mini-batches; None for the model's own.
      sources: where the data come from.
    """
    prepare_jax()
    dataset = task(model).data.load(sources)
    setting = setting_of(model, adversary="gc_r", steps=steps)
    if batch_size is not None:
        setting = changed(setting, batch_size=batch_size)
    return problem_of(setting, dataset)


def problem_of(setting: Setting, dataset: Dataset) -> Problem:
    """Returns the problem of a setting, with our first step."""
    played = build.build(setting, dataset)
    mechanism = played.mechanism
    theta_0 = played.init(game.root(setting.seed, "theta"))
    norm = setting.mechanism.clipping_norm
    hyper = Hyperparameters(learning_rate=1.0, clipping_norm=norm, noise_multiplier=0.0)
    first_step = Schedule(played.schedule.batches[:1], mask=jnp.zeros(1))  # without an insertion

    @jax.jit
    def take_step(theta: Array, data: Data) -> Array:
        state = mechanism.start(theta)
        key = jax.random.key(0)  # the noise that it draws is multiplied by 0
        stepped = mechanism.segment(hyper, state, data, first_step, no_canaries(), key)
        return stepped.theta

    return Problem(
        setting=setting,
        features=dataset.features,
        labels=dataset.labels,
        batches=np.asarray(played.schedule.batches),
        theta_0=np.asarray(theta_0),
        stepped=np.asarray(take_step(theta_0, played.data)),
        places=find_places(build.trainee(setting.model, dataset).model, dataset.features[0]),
    )


def find_places(model: Model, example: NDArray[Any]) -> list[NDArray[np.int64]]:
    """Returns where the entries of each of a network's parameters are in theta, in the order of calls.

    Args:
      model: the network, with fewer than 2^24 parameters.
      example: the features of an example.
    """
    # The places as Flax nests parameters; float32 holds integers below 2^24 exactly.
    places = model.unravel(jnp.arange(model.n_parameters, dtype=jnp.float32))
    created = model.module.init(jax.random.key(0), example)["params"]
    return list(_list_leaves(places, created))


def _list_leaves(tree: Tree, created: Tree) -> Iterator[NDArray[np.int64]]:
    """Yields the leaves of nested parameters, in the order of `created`, which JAX's functions lose."""
    for name, part in created.items():
        if isinstance(part, dict):
            yield from _list_leaves(tree[name], part)
        else:
            yield np.asarray(tree[name]).astype(np.int64)


def measure_rate(run: Run, seconds: float) -> float:
    """Returns the model-steps a second of `run`, called again and again for some seconds."""
    begin = time.perf_counter()
    done = 0
    while True:
        done += run()
        elapsed = time.perf_counter() - begin
        if elapsed >= seconds:
            return done / elapsed


def find_fastest(build: Callable[[int], Run], problem: Problem, devices: int, on_cpu: bool) -> Any:
    """Finds how many models an engine trains at once to do the most model-steps a second.

    It tries 1, 8, 64, 512 and 4,096 models a device, as far as the per-example gradients fit in memory.

    Args:
      build: (models at once) -> the function that trains so many models.
      problem: the problem.
      devices: the number of devices.
      on_cpu: whether they are a CPU's.

    Returns:
      (the fastest number of models, the function that trains so many)
    """
    floats = problem.setting.mechanism.batch_size * problem.theta_0.size
    max_floats = _MAX_CPU_FLOATS if on_cpu else _MAX_GPU_FLOATS
    best_rate = 0.0
    for models in (1, 8, 64, 512, 4096):
        if models > 1 and models * floats > max_floats:
            break
        run = build(devices * models)
        run()  # compiles
        rate = measure_rate(run, _TRIAL_SECONDS)
        if rate > best_rate:
            best_rate = rate
            fastest = devices * models, run
    return fastest


def ours(problem: Problem) -> Engine:
    """Builds our engine: trains as `audit` does, with noise and insertions, in chunks of runs."""
    prepare_jax()
    dataset = Dataset(problem.features, problem.labels, source="", checksum="")
    played = build.build(problem.setting, dataset)
    chunk_size = game.chunk_size(played, _RUNS)
    chunks = game.play(played, [(0, _ENDLESS)], chunk_size)

    def run() -> int:
        """Trains a chunk."""
        trained = next(chunks)
        return len(trained.scores) * problem.setting.schedule.steps

    return Engine(run, chunk_size, _name_device(), distance=0.0)  # it is our own step


class OrdinaryConvNet(nn.Module):
    """The ConvNet in Flax's own layers, as a user of Flax would write it.

    Our ConvNet's layers are a part of our engine: with them jax_privacy would be several times faster.
    """

    @nn.compact
    def __call__(self, image: Array) -> Array:
        """Returns the logits (10,) of an image (32, 32, 3)."""
        x = normalised(image, CIFAR10_MEAN, CIFAR10_STD)
        for i, features in enumerate((6, 16)):
            name = f"Convolution_{i}"  # as ConvNet's, so that a vector of parameters fits both
            x = nn.Conv(features, (5, 5), padding="VALID", name=name)(x)
            x = nn.relu(x)
            x = nn.max_pool(x, (2, 2), (2, 2))
        x = jnp.moveaxis(x, -1, -3)  # ConvNet's dense layers read channels first
        x = x.reshape(*x.shape[:-3], -1)
        for features in (120, 84):
            x = nn.Dense(features)(x)
            x = nn.relu(x)
        return nn.Dense(10)(x)


def _make_ordinary_loss(model: Model) -> Callable[[Array, tuple[Array, Array]], Array]:
    """Returns a model's loss of parameters (p,) on an example; of the ConvNet by Flax's own layers."""
    if model.module != ConvNet():
        return model.loss

    def loss(theta: Array, example: tuple[Array, Array]) -> Array:
        features, label = example
        logits: Any = OrdinaryConvNet().apply({"params": model.unravel(theta)}, features)
        return model.criterion(logits, label)

    return loss


def jax_privacy(problem: Problem) -> Engine:
    """Builds the engine of jax_privacy: DP-SGD by its clipped_grad and its Gaussian noise.

    It trains several models at once, by a map over their parameters.
    """
    prepare_jax()
    placement = ensemble.Placement.local()
    devices = len(jax.local_devices())
    fields = problem.setting.mechanism
    train = _make_jax_privacy_training(problem)
    data = placement.everywhere((problem.features, problem.labels))
    first_batches = problem.batches[:_CALL_STEPS]
    theta_0, batches = placement.everywhere((problem.theta_0, first_batches))

    key = jax.random.key(0)
    stepped = jax.jit(train)(theta_0, key, batches[:1], data, rate=1.0, sigma=0.0)
    distance = float(np.linalg.norm(stepped - problem.stepped))
    # Each model has its own theta and key. Trained parameters may take the memory of those before.
    train_models = placement.over_runs(train, (0, 0, None, None, None, None), donated=(0,))

    def build_run(models: int) -> Run:
        thetas = placement.by_run(jnp.tile(theta_0, (models, 1)))
        calls = itertools.count()

        def run() -> int:
            """Takes a step on each of the first mini-batches with all models."""
            nonlocal thetas
            keys = placement.by_run(jax.random.split(jax.random.key(next(calls)), models))
            rate = fields.learning_rate
            thetas = train_models(thetas, keys, batches, data, rate, fields.noise_multiplier)
            jax.block_until_ready(thetas)
            return models * len(batches)

        return run

    device = _name_device()
    models, run = find_fastest(build_run, problem, devices, device == "cpu")
    return Engine(run, models, device, distance)


def _make_jax_privacy_training(problem: Problem) -> Callable[..., Array]:
    """Makes the function that trains a single model by jax_privacy.

    Returns:
      (theta (p,), key, batches (steps, B), data, learning rate, sigma) -> the parameters (p,) after a step on
      each mini-batch. sigma is the noise multiplier.
    """
    from jax_privacy import clipping, noise_addition

    norm = problem.setting.mechanism.clipping_norm
    batch_size = problem.setting.mechanism.batch_size
    model = task(problem.setting.model).make(problem.features.shape[1:])
    # (theta, batch) -> the sum of the examples' clipped gradients, divided by B.
    clipped_gradient = clipping.clipped_grad(
        _make_ordinary_loss(model),
        l2_clip_norm=norm,
        keep_batch_dim=False,
        normalize_by=float(batch_size),
    )

    def train(
        theta: Array, key: Array, batches: Array, data: Data, rate: Array, sigma: Array
    ) -> Array:
        features, labels = data
        deviation = sigma * norm / batch_size
        noise = noise_addition.gaussian_privatizer(stddev=deviation, prng_key=key)

        def take_step(carry: Any, indices: Array) -> tuple[Any, None]:
            theta, noise_state = carry
            # `separate` keeps all values. Without it JAX cannot take per-example gradients of convolutions
            # when models on several devices share their features.
            batch = separate(theta, (features[indices], labels[indices]))
            gradient = clipped_gradient(theta, batch)
            update, noise_state = noise.update(gradient, noise_state)
            return (theta - rate * update, noise_state), None

        end, _ = jax.lax.scan(take_step, (theta, noise.init(theta)), batches)
        trained, _ = end
        return trained

    return train


def _name_device() -> str:
    """Returns the name of JAX's first device; "cpu" for any CPU."""
    return str(jax.local_devices()[0].device_kind)
