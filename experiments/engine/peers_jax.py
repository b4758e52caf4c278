"""The engines that `throughput` times in JAX, and the problems that all engines are given.

The engines are ours, jax_privacy, and a product of matrices.
"""

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

from audit.mechanism import ensemble, fedavg
from audit.mechanism.base import Data, Hyperparameters, Schedule, State, no_canaries
from audit.mechanism.clipping.base import separate
from audit.settings import build, build_federated
from audit.settings.federated import FederatedSetting
from audit.settings.make import setting_of
from audit.settings.setting import Setting
from audit.tasks.model import Model, losses_by_example
from audit.tasks.task import Clients, Dataset, Sources
from audit.training import game
from experiments.engine import engines
from experiments.engine.engines import CHECKED_STEPS, Engine, FederatedProblem, Layout, Problem, Run
from models.catalogue import federated_task, task
from models.convolutional import ConvNet
from models.data.images import CIFAR10_MEAN, CIFAR10_STD
from models.layers import PooledConvolution, normalised

LayerPath = tuple[str, ...]  # the names by which Flax reaches a layer

_RUNS = 5000  # of the audit whose chunk is taken
_ENDLESS = 2**31  # runs, of which a measurement plays as many as it has time for
_BLOCK_FLOATS = 1 << 24  # of per-example gradients in the steps that one call of jax_privacy takes
_LEAST_BLOCK = 5  # steps of a call


def make_problem(
    model: str, steps: int, batch_size: int | None, sources: Sources
) -> tuple[Problem, int]:
    """Returns a problem of DP-SGD, and the floating-point operations of a step of one model.

    It is what `audit` trains by default on the model's data, but for the number of steps and the adversary.
    That is GC-R, a gradient along a random coordinate: its steps cost what those of the default, GC-S, do,
    and no training is simulated beforehand to choose the coordinate.

    Args:
      model: Its name.
      steps: Of a run.
      batch_size: None for the model's own.
      sources: Where the data come from.
    """
    dataset = task(model).data.load(sources)
    size = {} if batch_size is None else {"batch_size": batch_size}
    setting = setting_of(model, adversary="gc_r", steps=steps, **size)
    problem = problem_of(setting, dataset)
    trainee = build.trainee(model, dataset).model
    layers = layers_of(trainee, dataset.features[0])
    operations = flops(layers.uses, setting.mechanism.batch_size)
    return problem, operations


def make_federated_problem(
    model: str, rounds: int, sources: Sources
) -> tuple[FederatedProblem, int]:
    """Returns a problem of DP-FedAvg, and the floating-point operations of a mean client's update.

    It is what `federated` trains by default on the model's data, but for the number of rounds.

    Args:
      model: Its name.
      rounds: Of a run.
      sources: Where the data come from.
    """
    setting = FederatedSetting(model, rounds=rounds)
    clients = federated_task(model).load(setting, sources).clients
    problem = federated_problem_of(setting, clients)
    layers = layers_of(federated_task(model).make(), clients.features[0])
    mean_examples = clients.counts[problem.cohorts].mean()
    operations = flops(layers.uses, float(mean_examples))
    return problem, operations


def problem_of(setting: Setting, dataset: Dataset) -> Problem:
    """Returns the problem of a setting.

    Its `stepped` is the model after our own step on the first mini-batch, without noise, at learning rate 1:
    all engines have to take that step.
    """
    played = build.build(setting, dataset)
    mechanism = played.mechanism
    theta_0 = played.init(game.root(setting.seed, "theta"))
    norm = setting.mechanism.clipping_norm
    hyper = Hyperparameters(learning_rate=1.0, clipping_norm=norm, noise_multiplier=0.0)
    first_step = Schedule(played.schedule.batches[:1], jnp.zeros(1))

    @jax.jit
    def take_step(theta: Array, data: Data) -> Array:
        state = mechanism.start(theta)
        key = jax.random.key(0)
        stepped = mechanism.segment(hyper, state, data, first_step, no_canaries(), key)
        return stepped.theta

    trainee = build.trainee(setting.model, dataset).model
    layers = layers_of(trainee, dataset.features[0])
    return Problem(
        setting=setting,
        features=dataset.features,
        labels=dataset.labels,
        batches=np.asarray(played.schedule.batches),
        theta_0=np.asarray(theta_0),
        stepped=np.asarray(take_step(theta_0, played.data)),
        layout=layers.layout,
    )


def federated_problem_of(setting: FederatedSetting, clients: Clients) -> FederatedProblem:
    """Returns the problem of a setting with cohorts of a fixed size.

    `stepped` in it is our own round of the first cohort without noise, in which every client takes
    CHECKED_STEPS steps on all of its examples.
    """
    model = federated_task(setting.model).make()
    theta_0 = model.init(game.root(setting.seed, "theta"))
    cohorts = build_federated.rounds(setting, clients, None).clients
    most = int(clients.counts.max())
    # A batch holds all of a client's examples, so that a step is an epoch.
    choices = fedavg.FedAvg(
        losses_by_example(model),
        model.unravel,
        batch_size=most,
        epochs=CHECKED_STEPS,
        most_examples=most,
        block=1,
    )
    federated = fedavg.Federated(setting.client_learning_rate, setting.cohort)
    data = tuple(map(jnp.asarray, clients.arrays))

    @jax.jit
    def take_round(theta: Array) -> Array:
        """Returns the model (p,) after the round: theta less the mean of clipped updates."""
        norm = jnp.float32(setting.clipping_norm)
        cohort = jnp.asarray(cohorts[0])
        key = jax.random.key(0)
        sums = fedavg.cohort_sums(choices, federated, theta, norm, data, cohort, key)
        return theta - sums.updates / setting.cohort

    layers = layers_of(model, clients.features[0])
    return FederatedProblem(
        setting=setting,
        features=clients.features,
        labels=clients.labels,
        starts=clients.starts,
        counts=clients.counts,
        cohorts=cohorts,
        theta_0=np.asarray(theta_0),
        stepped=np.asarray(take_round(theta_0)),
        layout=layers.layout,
    )


class Layers(NamedTuple):
    """A network's layers in the order in which they are called.

    Attributes:
      layout: The indices of their parameters in theta, as in `engines.Problem`.
      uses: Of the layers that have a kernel, how often an example's forward pass uses a weight.
    """

    layout: Layout
    uses: list[int]


def layers_of(model: Model, example: NDArray[Any]) -> Layers:
    """Returns a model's layers: which entries of theta they have, and how often each weight is used.

    Args:
      model: The network.
      example: The features of one example; only their shape is read.
    """
    # theta's indices in place of its values.
    tree = model.unravel(jnp.arange(model.n_parameters, dtype=jnp.float32))
    layout = []
    uses = []
    for path, outputs in _count_outputs(model, example).items():
        layer = _find_layer(tree, path)
        indices = []
        for name in ("kernel", "scale", "bias"):
            if name in layer:
                indices.append(np.asarray(layer[name]).astype(np.int64))
        if indices:
            layout.append(tuple(indices))
        if "kernel" in layer:
            kernel = layer["kernel"]
            weights_per_output = kernel.size // kernel.shape[-1]
            uses.append(outputs * weights_per_output)
    return Layers(layout, uses)


def _count_outputs(model: Model, example: NDArray[Any]) -> dict[LayerPath, int]:
    """Returns how many numbers each layer computes for an example, by paths in the order of calls."""
    outputs: dict[LayerPath, int] = {}

    def note_call(
        call: Callable[..., Any],
        arguments: Any,
        keywords: Any,
        context: Any,
    ) -> Any:
        """Calls a module, and notes how many numbers it computes under its path."""
        path = context.module.path
        outputs.setdefault(path, 0)  # before the layers that it calls
        result = call(*arguments, **keywords)
        if context.method_name == "__call__":
            computed = math.prod(result.shape)
            if isinstance(context.module, PooledConvolution):
                computed *= 4  # all of a 2x2 window, of which the largest is left
            outputs[path] = computed
        return result

    with nn.intercept_methods(note_call):
        jax.eval_shape(model.module.init, jax.random.key(0), example)
    return outputs


def _find_layer(tree: Any, path: LayerPath) -> Any:
    """Returns a layer's parameters by their names; {} where it has none.

    Args:
      tree: Flax's parameters, nested by the names of modules.
      path: The names that lead to the layer.
    """
    layer = tree
    for name in path:
        layer = layer.get(name, {})
    return layer


def flops(uses: list[int], examples: float) -> int:
    """Returns the floating-point operations of a step on so many examples.

    A multiplication and an addition for each use of a weight. Weights are used in the forward pass, for the
    weights' gradients and for the inputs' gradients, which the first layer does not form. Biases,
    activations, clipping and noise are not counted.

    Args:
      uses: How often an example's forward pass uses a weight, for each layer with a kernel.
      examples: In the step.
    """
    return round(2 * examples * (3 * sum(uses) - uses[0]))


def ours(problem: Problem) -> Engine:
    """Builds our own training as `audit` does it: in chunks as for 5,000 runs, with noise and insertion."""
    dataset = Dataset(problem.features, problem.labels, "", "")
    played = build.build(problem.setting, dataset)
    chunk_size = game.chunk_size(played, _RUNS)
    chunks = game.play(played, [(0, _ENDLESS)], chunk_size)

    def run() -> int:
        trained = next(chunks)
        return len(trained.scores) * problem.setting.schedule.steps

    return _make_engine(run, chunk_size, 0.0)


def ours_federated(problem: FederatedProblem) -> Engine:
    """Builds our own training as `federated` does it, one run after the other, with noise, on all devices.

    Runs have no canaries: their number is the audit's choice, and the peer has none.
    """
    clients = Clients(
        problem.features,
        problem.labels,
        problem.starts,
        problem.counts,
        "",
        "",
    )
    rounds = build_federated.rounds(problem.setting, clients, None)
    played = build_federated.build(problem.setting, clients, rounds)
    mechanism = played.mechanism
    placement = ensemble.Placement.spread(1)

    def train(
        state: State,
        key: Array,
        hyper: Hyperparameters,
        data: Data,
        schedule: Schedule,
    ) -> State:
        """Trains one run through all rounds."""
        return mechanism.segment(hyper, state, data, schedule, no_canaries(), key)

    train_runs = placement.over_runs(train, (0, 0, None, None, None))
    start = mechanism.start(jnp.asarray(problem.theta_0))
    starts = jax.tree.map(lambda leaf: leaf[None], start)
    keys = jax.random.split(jax.random.key(0), 1)
    starts, keys = placement.by_run((starts, keys))
    hyper = jax.tree.map(jnp.float32, played.hyper)
    schedule = Schedule(played.schedule.batches, jnp.zeros(len(problem.cohorts)))
    shared = placement.everywhere((hyper, played.data, schedule))

    def run() -> int:
        jax.block_until_ready(train_runs(starts, keys, *shared))
        return int(problem.cohorts.size)

    return _make_engine(run, 1, 0.0)


class OrdinaryConvNet(nn.Module):
    """The ConvNet's function and parameters in Flax's own layers, as its users write it.

    models.layers, which are part of our engine, would make jax_privacy several times faster.
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


def _replace_our_layers(model: Model) -> Model:
    """Returns the ConvNet in Flax's own layers, and any other model as it is."""
    if model.module != ConvNet():
        return model
    module = OrdinaryConvNet()

    def loss(theta: Array, labelled: tuple[Array, Array]) -> Array:
        features, label = labelled
        logits: Any = module.apply({"params": model.unravel(theta)}, features)
        return model.criterion(logits, label)

    return model._replace(module=module, loss=loss)


def jax_privacy(problem: Problem, models: int = 0) -> Engine:
    """Builds DP-SGD by jax_privacy's clipped_grad and Gaussian noise, mapped over several models.

    Args:
      problem: What is trained.
      models: At once; 0: the number that is fastest.
    """
    placement = ensemble.Placement.local()
    devices = len(jax.local_devices())
    fields = problem.setting.mechanism
    train = _make_jax_privacy_training(problem)

    data = placement.everywhere((problem.features, problem.labels))
    theta_0, batches = placement.everywhere((problem.theta_0, problem.batches))
    key = jax.random.key(0)
    first_batch = batches[:1]
    stepped = jax.jit(train)(theta_0, key, first_batch, data, rate=1.0, sigma=0.0)
    distance = float(np.linalg.norm(stepped - problem.stepped))

    mapped_axes = (0, 0, None, None, None, None)  # theta and key are a model's own
    train_models = placement.over_runs(train, mapped_axes, donated=(0,))

    def build_run(models: int) -> Run:
        """Returns a function that trains so many models, by a block of mini-batches each time."""
        thetas = placement.by_run(jnp.tile(theta_0, (models, 1)))
        gradient_floats = models // devices * fields.batch_size * theta_0.size
        blocks = _cycle_blocks(jnp.asarray(batches), gradient_floats)
        keys = _draw_keys(placement, models)

        def run() -> int:
            """Takes the next block's steps; returns how many model-steps that were."""
            nonlocal thetas
            block = next(blocks)
            thetas = train_models(
                thetas,
                next(keys),
                block,
                data,
                fields.learning_rate,
                fields.noise_multiplier,
            )
            jax.block_until_ready(thetas)
            return models * len(block)

        return run

    counts = [models]
    if not models:
        counts = [devices * count for count in problem.models_to_try(_find_platform())]
    models, run = engines.find_fastest(build_run, counts)
    return _make_engine(run, models, distance)


def _make_jax_privacy_training(problem: Problem) -> Callable[..., Array]:
    """Returns a function that trains a model by jax_privacy.

    Returns:
      (theta, key, batches, data, learning rate, sigma) -> theta after a step on each of the mini-batches.
    """
    from jax_privacy import clipping, noise_addition

    norm = problem.setting.mechanism.clipping_norm
    batch_size = problem.setting.mechanism.batch_size
    our_model = task(problem.setting.model).make(problem.features.shape[1:])
    model = _replace_our_layers(our_model)
    clipped_gradient = clipping.clipped_grad(
        model.loss,
        l2_clip_norm=norm,
        keep_batch_dim=False,
        normalize_by=float(batch_size),
    )

    def train(
        theta: Array,
        key: Array,
        batches: Array,
        data: Data,
        rate: Array,
        sigma: Array,
    ) -> Array:
        """Trains a model theta (p,) on mini-batches, indices (steps, B)."""
        features, labels = data
        deviation = sigma * norm / batch_size
        noise = noise_addition.gaussian_privatizer(stddev=deviation, prng_key=key)

        def take_step(carry: Any, indices: Array) -> tuple[Any, None]:
            """Takes a step: the mean clipped gradient of a mini-batch, plus noise of deviation sigma C / B.

            `carry` is (theta (p,), the noise's state), `indices` the mini-batch (B,).
            """
            theta, noise_state = carry
            batch = separate(theta, (features[indices], labels[indices]))
            gradient = clipped_gradient(theta, batch)
            update, noise_state = noise.update(gradient, noise_state)
            return (theta - rate * update, noise_state), None

        start = (theta, noise.init(theta))
        end, _ = jax.lax.scan(take_step, start, batches)
        trained, _ = end
        return trained

    return train


def _draw_keys(placement: ensemble.Placement, models: int) -> Iterator[Any]:
    """Yields keys (models,), spread over the devices, for one call after the other without end."""
    for call in itertools.count():
        yield placement.by_run(jax.random.split(jax.random.key(call), models))


def _cycle_blocks(batches: Array, floats: int) -> Iterator[Array]:
    """Yields blocks of mini-batches, (steps of a block, B), over and over.

    The last block is left out where it would be shorter.

    Args:
      batches: (steps, B) indices of examples.
      floats: Of a step's per-example gradients, by which a block's length is chosen.
    """
    length = min(len(batches), max(_LEAST_BLOCK, _BLOCK_FLOATS // floats))
    blocks = []
    for i in range(0, len(batches) - length + 1, length):
        blocks.append(batches[i : i + length])
    return itertools.cycle(blocks)


def gemm(_: Problem | FederatedProblem) -> Engine:
    """Builds float32 products of square matrices, on all cores or the GPU; a product is a model-step."""
    shape = (2, engines.GEMM_SIZE, engines.GEMM_SIZE)
    left, right = jax.random.normal(jax.random.key(0), shape)
    multiply = jax.jit(functools.partial(jnp.matmul, precision="float32"))

    def run() -> int:
        jax.block_until_ready(multiply(left, right))
        return 1

    return _make_engine(run, 1, 0.0)


def _make_engine(run: Run, models: int, distance: float) -> Engine:
    """Returns an engine on JAX's first device.

    Args:
      run: Does some model-steps.
      models: How many it trains at once.
      distance: How far its noiseless step is from ours; 0 for our engines and the product of matrices.
    """
    device = jax.local_devices()[0]
    about = engines.About(models, _find_platform(), device.device_kind, distance)
    if about.platform == "cpu":
        return Engine(about, run)

    def find_peak() -> int:
        statistics = device.memory_stats() or {}
        return int(statistics.get("peak_bytes_in_use", 0))

    return Engine(about, run, find_peak)


def _find_platform() -> str:
    """Returns "cpu", or "gpu" for any accelerator."""
    platform = jax.local_devices()[0].platform
    return "cpu" if platform == "cpu" else "gpu"
