"""The engines that `throughput` times in JAX (ours, jax_privacy, a matrix product), and the problems that all
engines are given."""

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from audit import game
from audit.mechanism import ensemble, fedavg
from audit.mechanism.base import Data, Hyperparameters, Schedule, State, no_canaries
from audit.mechanism.clipping.base import separate
from audit.model import Model, losses_by_example
from audit.settings import build, build_federated
from audit.settings.federated import FederatedSetting
from audit.settings.make import setting_of
from audit.settings.setting import Setting
from audit.task import Clients, Dataset, Sources
from experiments.engine import engines
from experiments.engine.engines import CHECKED_STEPS, Engine, FederatedProblem, Layout, Problem, Run
from models.catalogue import federated_task, task
from models.convolutional import ConvNet
from models.data.images import CIFAR10_MEAN, CIFAR10_STD
from models.layers import PooledConvolution, normalised

_RUNS = 5000  # of the audit whose chunk is taken


def given(model: str, steps: int, batch_size: int | None, sources: Sources) -> tuple[Problem, int]:
    """The problem that `audit` trains by default on the model's data, but for so many steps and with GC-R,
    whose steps cost the same and need no simulation; and the floating-point operations of a model-step."""
    dataset = task(model).data.load(sources)
    size = {} if batch_size is None else {"batch_size": batch_size}
    setting = setting_of(model, adversary="gc_r", steps=steps, **size)
    layers = layers_of(build.trainee(model, dataset).model, dataset.features[0])
    return problem_of(setting, dataset), flops(layers.uses, setting.mechanism.batch_size)


def given_federated(model: str, rounds: int, sources: Sources) -> tuple[FederatedProblem, int]:
    """Likewise of `federated`, and the operations of a client's update, on average."""
    setting = FederatedSetting(model, rounds=rounds)
    clients = federated_task(model).load(setting, sources).clients
    problem = federated_problem_of(setting, clients)
    layers = layers_of(federated_task(model).make(), clients.features[0])
    return problem, flops(layers.uses, float(clients.counts[problem.cohorts].mean()))


def problem_of(setting: Setting, dataset: Dataset) -> Problem:
    """The Problem of a setting, with our noiseless step."""
    played = build.build(setting, dataset)
    theta_0 = played.init(game.root(setting.seed, "theta"))
    hyper = Hyperparameters(1.0, setting.mechanism.clipping_norm, 0.0)
    first = Schedule(played.schedule.batches[:1], jnp.zeros(1))

    @jax.jit
    def stepped(theta: Array, data: Data) -> Array:
        state = played.mechanism.start(theta)
        return played.mechanism.segment(hyper, state, data, first, no_canaries(), jax.random.key(0)).theta

    return Problem(
        setting,
        dataset.features,
        dataset.labels,
        np.asarray(played.schedule.batches),
        np.asarray(theta_0),
        np.asarray(stepped(theta_0, played.data)),
        layers_of(build.trainee(setting.model, dataset).model, dataset.features[0]).layout,
    )


def federated_problem_of(setting: FederatedSetting, clients: Clients) -> FederatedProblem:
    """The FederatedProblem of a setting with cohorts of a fixed size, with our round."""
    model = federated_task(setting.model).make()
    theta_0 = model.init(game.root(setting.seed, "theta"))
    cohorts = build_federated.rounds(setting, clients, None).clients
    most = int(clients.counts.max())
    choices = fedavg.FedAvg(losses_by_example(model), model.unravel, most, CHECKED_STEPS, most, block=1)
    own = fedavg.Federated(setting.client_learning_rate, setting.cohort)
    data = tuple(map(jnp.asarray, clients.arrays))

    @jax.jit
    def stepped(theta: Array) -> Array:
        norm, key = jnp.float32(setting.clipping_norm), jax.random.key(0)
        sums = fedavg.cohort_sums(choices, own, theta, norm, data, jnp.asarray(cohorts[0]), key)
        return theta - sums.updates / setting.cohort

    layout = layers_of(model, clients.features[0]).layout
    arrays = (clients.features, clients.labels, clients.starts, clients.counts, cohorts)
    return FederatedProblem(setting, *arrays, np.asarray(theta_0), np.asarray(stepped(theta_0)), layout)


class Layers(NamedTuple):
    """A network's layers in the order in which they are called: where their parameters stand in theta, and of
    those that have a kernel, how often an example's forward pass uses a weight."""

    layout: Layout
    uses: list[int]


def layers_of(model: Model, example: NDArray[Any]) -> Layers:
    """The layers of a model for an example of that shape."""
    outputs: dict[tuple[str, ...], int] = {}

    def note(call: Callable[..., Any], arguments: Any, keywords: Any, context: Any) -> Any:
        path = context.module.path
        outputs.setdefault(path, 0)
        result = call(*arguments, **keywords)
        if context.method_name == "__call__":
            pooled = 4 if isinstance(context.module, PooledConvolution) else 1
            outputs[path] = pooled * math.prod(result.shape)
        return result

    tree = model.unravel(jnp.arange(model.n_parameters, dtype=jnp.float32))
    with nn.intercept_methods(note):
        jax.eval_shape(model.module.init, jax.random.key(0), example)
    own = {path: functools.reduce(lambda part, name: part.get(name, {}), path, tree) for path in outputs}
    layers = [[one[name] for name in ("kernel", "scale", "bias") if name in one] for one in own.values()]
    layout = [tuple(np.asarray(one).astype(np.int64) for one in layer) for layer in layers if layer]
    kernels = [(outputs[path], one["kernel"]) for path, one in own.items() if "kernel" in one]
    return Layers(layout, [size * kernel.size // kernel.shape[-1] for size, kernel in kernels])


def flops(uses: list[int], examples: float) -> int:
    """Floating-point operations on so many examples: a multiplication and an addition a use of a weight.

    Weights are used in the forward pass, for the weights' gradients and for the inputs' gradients, which
    the first layer does not form. Biases, activations, clipping and noise are not counted.
    """
    return round(2 * examples * (3 * sum(uses) - uses[0]))


def ours(problem: Problem) -> Engine:
    """Audit's training of 5,000 runs in chunks of the size that it chooses, with noise and insertion."""
    played = build.build(problem.setting, Dataset(problem.features, problem.labels, "", ""))
    chunk = game.chunk_size(played, _RUNS)
    chunks = game.play(played, [(0, 2**31)], chunk)

    def run() -> int:
        return len(next(chunks).scores) * problem.setting.schedule.steps

    return _engine(run, chunk, 0.0)


def ours_federated(problem: FederatedProblem) -> Engine:
    """Trainings as `federated` does them, one after the other, with noise, on all devices, but without
    canaries, whose number is the audit's choice and which its peer has none of."""
    clients = Clients(problem.features, problem.labels, problem.starts, problem.counts, "", "")
    who = build_federated.rounds(problem.setting, clients, None)
    played = build_federated.build(problem.setting, clients, who)
    placement = ensemble.Placement.spread(1)

    def train(state: State, key: Array, hyper: Hyperparameters, data: Data, schedule: Schedule) -> State:
        return played.mechanism.segment(hyper, state, data, schedule, no_canaries(), key)

    trained = placement.over_runs(train, (0, 0, None, None, None))
    first = jax.tree.map(lambda leaf: leaf[None], played.mechanism.start(jnp.asarray(problem.theta_0)))
    start, keys = placement.by_run((first, jax.random.split(jax.random.key(0), 1)))
    schedule = Schedule(played.schedule.batches, jnp.zeros(len(problem.cohorts)))
    shared = placement.everywhere((jax.tree.map(jnp.float32, played.hyper), played.data, schedule))

    def run() -> int:
        jax.block_until_ready(trained(start, keys, *shared))
        return int(problem.cohorts.size)

    return _engine(run, 1, 0.0)


class OrdinaryConvNet(nn.Module):
    """The ConvNet's function and parameters in Flax's own layers, as its users write it; models.layers,
    which are part of our engine, would make jax_privacy several times faster."""

    @nn.compact
    def __call__(self, image: Array) -> Array:
        x = normalised(image, CIFAR10_MEAN, CIFAR10_STD)
        for i, features in enumerate((6, 16)):
            x = nn.Conv(features, (5, 5), padding="VALID", name=f"Convolution_{i}")(x)
            x = nn.max_pool(nn.relu(x), (2, 2), (2, 2))
        x = jnp.moveaxis(x, -1, -3).reshape(*x.shape[:-3], -1)
        for features in (120, 84):
            x = nn.relu(nn.Dense(features)(x))
        return nn.Dense(10)(x)


def _ordinary(model: Model) -> Model:
    if not isinstance(model.module, ConvNet):
        return model
    module = OrdinaryConvNet()

    def loss(theta: Array, labelled: tuple[Array, Array]) -> Array:
        logits: Any = module.apply({"params": model.unravel(theta)}, labelled[0])
        return model.criterion(logits, labelled[1])

    return model._replace(module=module, loss=loss)


def jax_privacy(problem: Problem, models: int = 0) -> Engine:
    """jax_privacy's clipped_grad and Gaussian noise, mapped over so many models (0: the fastest)."""
    from jax_privacy import clipping, noise_addition

    placement, devices = ensemble.Placement.local(), len(jax.local_devices())
    data = placement.everywhere((problem.features, problem.labels))
    model = _ordinary(task(problem.setting.model).make(problem.features.shape[1:]))
    fields = problem.setting.mechanism
    norm, size = fields.clipping_norm, fields.batch_size
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
            noisy = (fields.learning_rate, fields.noise_multiplier)
            thetas = jax.block_until_ready(many(thetas, next(keys), block, data, *noisy))
            return models * len(block)

        return run

    counts = [models] if models else [devices * m for m in problem.models_to_try(_platform())]
    models, run = engines.fastest(train_many, counts)
    return _engine(run, models, float(np.linalg.norm(stepped - problem.stepped)))


def _blocks(batches: Array, floats: int) -> Iterator[Array]:
    length = min(len(batches), max(5, (1 << 24) // floats))
    return itertools.cycle([batches[i : i + length] for i in range(0, len(batches) - length + 1, length)])


def gemm(_: Problem | FederatedProblem) -> Engine:
    """float32 products of two square matrices, on all cores or the GPU; a "model-step" is one product."""
    left, right = jax.random.normal(jax.random.key(0), (2, engines.GEMM_SIZE, engines.GEMM_SIZE))
    product = jax.jit(functools.partial(jnp.matmul, precision="float32"))

    def run() -> int:
        jax.block_until_ready(product(left, right))
        return 1

    return _engine(run, 1, 0.0)


def _engine(run: Run, models: int, distance: float) -> Engine:
    device = jax.local_devices()[0]

    def peak() -> int:
        return int((device.memory_stats() or {}).get("peak_bytes_in_use", 0))

    about = engines.About(models, _platform(), device.device_kind, distance)
    return Engine(about, run, None if about.platform == "cpu" else peak)


def _platform() -> str:
    return "cpu" if jax.local_devices()[0].platform == "cpu" else "gpu"
