"""Builds the engines that `throughput` times in JAX, and the problems that all engines are given.

The engines are ours, jax_privacy's, and a product of matrices.
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

_RUNS = 5000  # of an audit, for which our engine chooses its number of models at once
_ENDLESS = 2**31  # more runs than a measurement has time for
_BLOCK_FLOATS = 1 << 24  # in the per-example gradients of all steps of one call of jax_privacy
_LEAST_BLOCK = 5  # steps of such a call, at least


def make_problem(
    model: str, steps: int, batch_size: int | None, sources: Sources
) -> tuple[Problem, int]:
    """Makes a problem of DP-SGD, and counts the floating-point operations of a model-step.

    The problem is what `audit` trains by default on the model's data, but with its own number of steps, and
    with the adversary GC-R, which inserts a gradient along a random coordinate. A step of GC-R costs what a
    step of the default, GC-S, costs, but GC-S first simulates training runs to choose the coordinate.

    Args:
      model: The model's name.
      steps: The number of steps of a run.
      batch_size: The size of mini-batches; None for the model's own.
      sources: Where the data come from.

    Returns:
      (the problem, the floating-point operations of a step of a single model)
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
    """Makes a problem of DP-FedAvg, and counts the floating-point operations of a mean client's update.

    The problem is what `federated` trains by default on the model's data, but with its own number of rounds.
    The mean is over all clients of all cohorts.

    Args:
      model: The model's name.
      rounds: The number of rounds of a run.
      sources: Where the data come from.

    Returns:
      (the problem, the floating-point operations of the update of a client with a mean number of examples)
    """
    setting = FederatedSetting(model, rounds=rounds)
    clients = federated_task(model).load(setting, sources).clients
    problem = federated_problem_of(setting, clients)
    layers = layers_of(federated_task(model).make(), clients.features[0])
    mean_examples = clients.counts[problem.cohorts].mean()
    operations = flops(layers.uses, float(mean_examples))
    return problem, operations


def problem_of(setting: Setting, dataset: Dataset) -> Problem:
    """Returns the problem that a setting of DP-SGD gives the engines.

    `Problem.stepped` is computed here: the parameters after our engine's step on the first mini-batch,
    without noise, at learning rate 1. All engines have to take the same step.
    """
    # What `audit` would train: the mechanism, the data on the device, mini-batches and initial parameters.
    played = build.build(setting, dataset)
    mechanism = played.mechanism
    theta_0 = played.init(game.root(setting.seed, "theta"))

    norm = setting.mechanism.clipping_norm
    hyper = Hyperparameters(learning_rate=1.0, clipping_norm=norm, noise_multiplier=0.0)
    first_step = Schedule(played.schedule.batches[:1], mask=jnp.zeros(1))  # without an insertion

    @jax.jit
    def take_step(theta: Array, data: Data) -> Array:
        """Returns the parameters (p,) after our step from theta on the first mini-batch, without noise."""
        state = mechanism.start(theta)
        key = jax.random.key(0)  # any: the noise that it draws is multiplied by 0
        # A segment takes the steps of a schedule, which here has a single step.
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
    """Returns the problem that a setting of DP-FedAvg gives the engines, with the clients' data.

    `FederatedProblem.stepped` is computed here: the parameters after our engine's round with the first
    cohort, without noise, at server learning rate 1. Each client takes CHECKED_STEPS steps on all of its
    examples.
    """
    model = federated_task(setting.model).make()
    theta_0 = model.init(game.root(setting.seed, "theta"))
    cohorts = build_federated.rounds(setting, clients, listed=None).clients  # drawn, not listed
    most_examples = int(clients.counts.max())
    # A mini-batch holds all of a client's examples, so that an epoch is a single step.
    choices = fedavg.FedAvg(
        losses_by_example(model),
        model.unravel,
        batch_size=most_examples,
        epochs=CHECKED_STEPS,
        most_examples=most_examples,
        block=1,  # clients are trained one after the other
    )
    # The last is the mean size of a cohort. The clipping norm is fixed, by default.
    federated = fedavg.Federated(setting.client_learning_rate, setting.cohort)
    data = tuple(map(jnp.asarray, clients.arrays))  # features, labels, starts, counts

    @jax.jit
    def take_round(theta: Array) -> Array:
        """Returns the parameters (p,) after the first cohort's round, without noise.

        They are theta minus the mean of the clients' clipped updates.
        """
        norm = jnp.float32(setting.clipping_norm)
        cohort = jnp.asarray(cohorts[0])
        # Any key: it decides shuffles, which change nothing where a mini-batch holds all examples.
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
    """A network's layers, in the order in which they are called.

    Attributes:
      layout: Where each layer's parameters are in theta, as in `engines.Problem`.
      uses: For each layer with a kernel, the number of multiplications by its weights in the forward pass of
        one example: the number of the layer's outputs times the number of weights that each output uses.
    """

    layout: Layout
    uses: list[int]


def layers_of(model: Model, example: NDArray[Any]) -> Layers:
    """Returns where each layer's parameters are in the vector theta, and how often its weights are used.

    A use of a weight is a multiplication by it in the forward pass of a single example. Uses are counted only
    for layers that have a kernel.

    Args:
      model: The network.
      example: The features of a single example; only their shape is read.
    """
    # The parameters as Flax nests them, but with indices in theta in place of values. They are float32, as
    # parameters are, which holds indices below 2^24 exactly.
    tree = model.unravel(jnp.arange(model.n_parameters, dtype=jnp.float32))
    layout = []
    uses = []
    for path, outputs in _count_outputs(model, example).items():
        layer = _find_layer(tree, path)
        indices = []
        for name in ("kernel", "scale", "bias"):
            if name in layer:
                indices.append(np.asarray(layer[name]).astype(np.int64))
        if indices:  # not for a layer without parameters, such as pooling
            layout.append(tuple(indices))
        if "kernel" in layer:
            kernel = layer["kernel"]  # its last axis is that of the output's channels
            weights_per_output = kernel.size // kernel.shape[-1]
            uses.append(outputs * weights_per_output)
    return Layers(layout, uses)


def _count_outputs(model: Model, example: NDArray[Any]) -> dict[LayerPath, int]:
    """Counts the numbers that each layer computes for a single example, by path and in the order of calls."""
    outputs: dict[LayerPath, int] = {}

    def note_call(
        call: Callable[..., Any],
        arguments: Any,
        keywords: Any,
        context: Any,
    ) -> Any:
        """Calls a module, and stores the number of its outputs under its path (Flax's interceptor)."""
        path = context.module.path
        # Before the call, so that paths are in the order of calls: without this a module's path would come
        # after those of the layers that it calls.
        outputs.setdefault(path, 0)
        result = call(*arguments, **keywords)
        if context.method_name == "__call__":  # not `setup`, which Flax intercepts too
            computed = math.prod(result.shape)
            if isinstance(context.module, PooledConvolution):
                computed *= 4  # it computes all four of a 2x2 window, and returns the largest
            outputs[path] = computed
        return result

    with nn.intercept_methods(note_call):
        # Flax's `init` runs the network on an example; `eval_shape` finds shapes alone, and computes nothing.
        jax.eval_shape(model.module.init, jax.random.key(0), example)
    return outputs


def _find_layer(tree: Any, path: LayerPath) -> Any:
    """Returns a layer's parameters, by their names; {} where the layer has none.

    Args:
      tree: Flax's parameters, nested by the names of modules.
      path: The names that lead to the layer.
    """
    layer = tree
    for name in path:
        layer = layer.get(name, {})
    return layer


def flops(uses: list[int], examples: float) -> int:
    """Returns the number of floating-point operations of a training step.

    A training step computes three products for each layer: the forward pass, the gradient of the layer's
    weights, and the gradient of its inputs. The first layer needs no gradient of its inputs. Each product
    uses every weight as often as the forward pass does, and a use is a multiplication and an addition.
    Biases, activations, clipping and noise are not counted.

    Args:
      uses: The number of uses of weights in a single example's forward pass, for each layer with a kernel.
      examples: The number of examples in the step.
    """
    uses_per_example = 3 * sum(uses) - uses[0]
    return round(2 * examples * uses_per_example)


def ours(problem: Problem) -> Engine:
    """Builds our engine for DP-SGD: trains as `audit` does, with noise and insertions, in chunks of runs.

    The runs of a chunk are trained at once. It has as many runs as a chunk of an audit that has _RUNS runs in
    all.
    """
    # Source and checksum identify data in the store, and nothing is stored here.
    dataset = Dataset(problem.features, problem.labels, source="", checksum="")
    played = build.build(problem.setting, dataset)
    chunk_size = game.chunk_size(played, _RUNS)
    chunks = game.play(played, [(0, _ENDLESS)], chunk_size)  # more runs than there is time for

    def run() -> int:
        """Trains a chunk; returns its number of model-steps."""
        trained = next(chunks)
        return len(trained.scores) * problem.setting.schedule.steps

    return _make_engine(run, chunk_size, distance=0.0)  # it is our own step


def ours_federated(problem: FederatedProblem) -> Engine:
    """Builds our engine for DP-FedAvg: trains as `federated` does, with noise, one run after the other.

    All devices share a run. Runs have no canaries, since the peer that is timed beside it has none.
    """
    # The mechanism, with its hyperparameters, data and cohorts. Source and checksum identify data in the
    # store, and nothing is stored here.
    clients = Clients(
        problem.features,
        problem.labels,
        problem.starts,
        problem.counts,
        source="",
        checksum="",
    )
    rounds = build_federated.rounds(problem.setting, clients, listed=None)  # cohorts are drawn
    played = build_federated.build(problem.setting, clients, rounds)
    mechanism = played.mechanism

    def train(
        state: State,
        key: Array,
        hyper: Hyperparameters,
        data: Data,
        schedule: Schedule,
    ) -> State:
        """Trains a single run through all rounds."""
        return mechanism.segment(hyper, state, data, schedule, no_canaries(), key)

    # `train`, mapped over a leading axis of runs, of which there is a single run, shared by all devices.
    placement = ensemble.Placement.spread(1)
    mapped_axes = (0, 0, None, None, None)  # state and key are a run's own
    train_runs = placement.over_runs(train, mapped_axes)

    # The run's own arguments, with that axis; then those that runs would share, copied to each device.
    start = mechanism.start(jnp.asarray(problem.theta_0))
    starts = jax.tree.map(lambda leaf: leaf[None], start)
    keys = jax.random.split(jax.random.key(0), 1)
    starts, keys = placement.by_run((starts, keys))
    hyper = jax.tree.map(jnp.float32, played.hyper)
    no_insertions = jnp.zeros(len(problem.cohorts))  # for each round
    schedule = Schedule(played.schedule.batches, no_insertions)
    shared = placement.everywhere((hyper, played.data, schedule))

    def run() -> int:
        """Trains a run; returns its number of client updates."""
        jax.block_until_ready(train_runs(starts, keys, *shared))
        return int(problem.cohorts.size)

    return _make_engine(run, models=1, distance=0.0)  # it is our own step


class OrdinaryConvNet(nn.Module):
    """The ConvNet in Flax's own layers, as a user of Flax would write it; its parameters fit our ConvNet too.

    Our ConvNet uses the layers of models.layers. These are a part of our engine: with them jax_privacy would
    be several times faster.
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
        x = x.reshape(*x.shape[:-3], -1)  # (values,); a batch would stay the first axis
        for features in (120, 84):
            x = nn.Dense(features)(x)
            x = nn.relu(x)
        return nn.Dense(10)(x)


def _replace_our_layers(model: Model) -> Model:
    """Returns the ConvNet in Flax's own layers where the model is our ConvNet, else the model itself.

    Our ConvNet's layers are a part of our engine: with them a peer would be several times faster.
    """
    if model.module != ConvNet():
        return model
    module = OrdinaryConvNet()

    def loss(theta: Array, labelled: tuple[Array, Array]) -> Array:
        """Returns the loss of parameters theta (p,) on an example, (features, label)."""
        features, label = labelled
        logits: Any = module.apply({"params": model.unravel(theta)}, features)
        return model.criterion(logits, label)

    return model._replace(module=module, loss=loss)


def jax_privacy(problem: Problem, models: int = 0) -> Engine:
    """Builds the engine of jax_privacy: DP-SGD by its clipped_grad and its Gaussian noise.

    Several models are trained at once, by a map over their parameters.

    Args:
      problem: The problem of DP-SGD.
      models: The number of models to train at once; 0 to find the fastest.
    """
    placement = ensemble.Placement.local()  # spreads models over this process's devices
    devices = len(jax.local_devices())
    fields = problem.setting.mechanism
    train = _make_jax_privacy_training(problem)

    # What all models share is copied to each device.
    data = placement.everywhere((problem.features, problem.labels))
    theta_0, batches = placement.everywhere((problem.theta_0, problem.batches))
    # The step by which engines are compared: the first mini-batch, without noise, at learning rate 1.
    key = jax.random.key(0)
    first_batch = batches[:1]
    stepped = jax.jit(train)(theta_0, key, first_batch, data, rate=1.0, sigma=0.0)
    distance = float(np.linalg.norm(stepped - problem.stepped))

    mapped_axes = (0, 0, None, None, None, None)  # theta and key are each model's own
    # Trained parameters may reuse the memory of those before.
    train_models = placement.over_runs(train, mapped_axes, donated=(0,))

    def build_run(models: int) -> Run:
        """Returns a function that trains so many models, by one block of mini-batches a call."""
        thetas = placement.by_run(jnp.tile(theta_0, (models, 1)))
        # In the per-example gradients of a step that are on a device: B p for each of its models.
        gradient_floats = models // devices * fields.batch_size * theta_0.size
        blocks = _cycle_blocks(jnp.asarray(batches), gradient_floats)
        keys = _draw_keys(placement, models)

        def run() -> int:
            """Takes the next block's steps with all models; returns the number of model-steps."""
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

    counts = [models]  # a given number is not compared with others
    if not models:
        # Each device has memory of its own, so that as many models fit on each.
        counts = [devices * count for count in problem.models_to_try(_find_platform())]
    models, run = engines.find_fastest(build_run, counts)
    return _make_engine(run, models, distance)


def _make_jax_privacy_training(problem: Problem) -> Callable[..., Array]:
    """Makes the function that trains a single model by jax_privacy.

    Returns:
      (theta (p,), key, batches (steps, B), data, learning rate, sigma) -> the parameters (p,) after a step on
      each mini-batch. sigma is the noise multiplier.
    """
    from jax_privacy import clipping, noise_addition

    norm = problem.setting.mechanism.clipping_norm
    batch_size = problem.setting.mechanism.batch_size
    our_model = task(problem.setting.model).make(problem.features.shape[1:])
    model = _replace_our_layers(our_model)
    # (theta, batch) -> the sum of the examples' clipped gradients, divided by B.
    clipped_gradient = clipping.clipped_grad(
        model.loss,
        l2_clip_norm=norm,
        keep_batch_dim=False,  # `model.loss` takes an example without a batch axis
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
        """Returns parameters theta (p,) after a step on each mini-batch, a row of `batches` (steps, B)."""
        features, labels = data
        deviation = sigma * norm / batch_size  # sigma C / B, since gradients are divided by B
        noise = noise_addition.gaussian_privatizer(stddev=deviation, prng_key=key)

        def take_step(carry: Any, indices: Array) -> tuple[Any, None]:
            """Takes a step along the mean clipped gradient plus noise of standard deviation sigma C / B.

            `carry` is (theta (p,), the noise's state); `indices` (B,) are the mini-batch's examples.
            """
            theta, noise_state = carry
            # `separate` leaves all values as they are. Without it JAX can't take per-example gradients of
            # convolutions where models are mapped over several devices and share their features.
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
    """Yields random keys (models,), spread over the devices, for each call of the engine; never ends."""
    for call in itertools.count():
        yield placement.by_run(jax.random.split(jax.random.key(call), models))


def _cycle_blocks(batches: Array, floats: int) -> Iterator[Array]:
    """Yields blocks of mini-batches, each (steps of the block, B), over and over.

    A block is the mini-batches that a single call of a compiled program steps through. All blocks have the
    same length: mini-batches at the end that fill no block are left out. The steps of a block share the
    overhead of the call. But `engines.rate` reads the clock only between calls, so that long steps come in
    shorter blocks.

    Args:
      batches: (steps, B) the indices of each mini-batch's examples.
      floats: The number of floats in a step's per-example gradients. The more there are, the longer a
        step takes, and the shorter a block is.
    """
    # All steps of a block together have at most _BLOCK_FLOATS floats, unless _LEAST_BLOCK steps have more.
    length = min(len(batches), max(_LEAST_BLOCK, _BLOCK_FLOATS // floats))
    blocks = []
    for i in range(0, len(batches) - length + 1, length):
        blocks.append(batches[i : i + length])
    return itertools.cycle(blocks)


def gemm(_: Problem | FederatedProblem) -> Engine:
    """Builds an engine that multiplies two square float32 matrices, whose speed is in products a second.

    The engines that train are compared with it. It runs on all cores or on the GPU. The problem is not used:
    it is there because every engine is built from one.
    """
    shape = (2, engines.GEMM_SIZE, engines.GEMM_SIZE)
    left, right = jax.random.normal(jax.random.key(0), shape)
    # The precision that `prepare_jax` sets for the engines in JAX that train. It is not called for this one.
    multiply = jax.jit(functools.partial(jnp.matmul, precision="float32"))

    def run() -> int:
        """Multiplies the matrices; returns 1, for one product."""
        jax.block_until_ready(multiply(left, right))
        return 1

    return _make_engine(run, models=1, distance=0.0)  # there is no step to compare


def _make_engine(run: Run, models: int, distance: float) -> Engine:
    """Returns the record of an engine in JAX, with the name and the memory of JAX's first device.

    Args:
      run: Does some model-steps or client-updates, and returns how many.
      models: The number of models that it trains at once.
      distance: The distance between its noiseless step and ours; 0 for our engines and the product of
        matrices.
    """
    device = jax.local_devices()[0]
    about = engines.About(models, _find_platform(), device.device_kind, distance)
    if about.platform == "cpu":
        return Engine(about, run)  # its memory is that of the process

    def find_peak() -> int:
        """Returns the most bytes of the device's memory in use so far; 0 where the device does not tell."""
        statistics = device.memory_stats() or {}
        return int(statistics.get("peak_bytes_in_use", 0))

    return Engine(about, run, find_peak)


def _find_platform() -> str:
    """Returns "cpu" where JAX's first device is a CPU, and "gpu" for any accelerator."""
    platform = jax.local_devices()[0].platform
    return "cpu" if platform == "cpu" else "gpu"
