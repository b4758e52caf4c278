"""Times DP-SGD engines, in rounds that time each engine once.

Each engine runs in its own processes; only these import JAX or PyTorch. To add one, write a function that
makes its training, and add a row to `ENGINES`.
"""

import contextlib
import itertools
import multiprocessing
import signal
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tqdm import trange

from audit.errors import InputError, require
from audit.report.table import Table
from audit.runtime.machine import cores, prepare_jax
from audit.settings.setting import Setting
from audit.tasks.task import Dataset, Sources
from experiments.sweeps.records import Record, field, select
from models.data.images import CIFAR10_MEAN, CIFAR10_STD

_SPAWN = multiprocessing.get_context("spawn")  # a process with JAX's threads cannot fork
_RUNS = 5000  # our engine chooses the chunk size for an audit with this many runs
_ENDLESS = 2**31  # more runs than any measurement trains
_CALL_STEPS = 10  # steps per call of a peer
_TRIAL_SECONDS = 0.5  # for each number of models at once
_ROUND_SECONDS = 3.0  # the minimum time of an engine in a round
_MAX_CPU_FLOATS = 1 << 26  # in the per-example gradients of all models in a step
_MAX_GPU_FLOATS = 1 << 30


# The fields of each model's setting that differ from the defaults of `audit`.
MODELS = {
    "fcnn": {"steps": 250},
    "convnet": {"steps": 10},
    "resnet18": {"steps": 8, "batch_size": 8},
}
# The largest distance between an engine's first step and ours, without noise and at learning rate 1. Engines
# sum the float32 values of ResNet18's layers in different orders.
TOLERANCES = {"fcnn": 1e-5, "convnet": 1e-5, "resnet18": 1e-3}


class Problem(NamedTuple):
    """A training run of DP-SGD with fixed mini-batches, for all engines.

    Attributes:
      batches: (steps, B) the indices of each mini-batch's examples.
      theta_0: (p,) the initial parameters.
      stepped: (p,) the parameters after our first step from theta_0, without noise and at learning rate 1.
      torch_order: (p,) the indices in theta of PyTorch's parameters, in PyTorch's order.
    """

    setting: Setting
    dataset: Dataset
    batches: NDArray[np.int32]
    learning_rate: float
    noise_multiplier: float
    theta_0: NDArray[np.float32]
    stepped: NDArray[np.float32]
    torch_order: NDArray[np.int64]


class Training(NamedTuple):
    """A running training.

    Attributes:
      run: Trains for a moment and returns the number of model-steps. Peers take a step on each mini-batch.
      theta: () -> the parameters (p,) of the first model.
      models: The number of models at once.
      device: The device's name; "cpu" for any CPU.
    """

    run: Callable[[], int]
    theta: Callable[[], NDArray[np.float32]]
    models: int
    device: str


class Engine(NamedTuple):
    """An engine, with the name of its package on PyPI.

    Attributes:
      make: (problem, the number of models that each device trains at once) -> the training.
      tried: The numbers of models at once to try.
      one_thread: Whether it uses one core. A CPU then runs a process for each core.
    """

    package: str
    make: Callable[[Problem, int], Training]
    tried: Sequence[int] = (1, 8, 64, 512, 4096)
    one_thread: bool = False


def make_problem(model: str, sources: Sources) -> Problem:
    """Returns the problem of training one of `MODELS` with the defaults of `audit`.

    The adversary is GC-R instead of GC-S, which costs the same per step and does not first simulate training.
    """
    from audit.settings.make import setting_of
    from models.catalogue import task

    prepare_jax()
    setting = setting_of(model, adversary="gc_r", **MODELS[model])
    return problem_of(setting, task(model).data.load(sources))


def problem_of(setting: Setting, dataset: Dataset) -> Problem:
    """Returns the problem of a setting, with our first step."""
    import jax
    import jax.numpy as jnp
    from flax.traverse_util import flatten_dict

    from audit.mechanism import base
    from audit.training import build, game

    played = build.build(setting, dataset)
    fields = setting.mechanism
    hyper = base.Hyperparameters(1.0, fields.clipping_norm, fields.noise_multiplier)
    first_step = base.Schedule(played.schedule.batches[:1], mask=jnp.zeros(1))
    theta_0 = played.init(game.root(setting.seed, "theta"))
    take_step = partial(base.rehearse, played.mechanism, canaries=base.no_canaries())
    stepped = jax.jit(take_step)(hyper, theta_0, played.data, first_step)

    # The indices in theta, nested like Flax's parameters. Integers below 2^24 are exact in float32.
    model = build.trainee(setting.model, dataset).model
    places = flatten_dict(model.unravel(jnp.arange(theta_0.size, dtype=jnp.float32)))
    created = model.module.init(jax.random.key(0), dataset.features[0])
    # PyTorch's order of Flax's axes, by the number of axes: (in, out) or (height, width, in, out).
    axes = {1: (0,), 2: (1, 0), 4: (3, 2, 0, 1)}
    order = []
    for path in flatten_dict(created["params"]):  # in the order of calls, like PyTorch's parameters
        indices = np.asarray(places[path], np.int64)
        order.append(indices.transpose(axes[indices.ndim]).ravel())
    return Problem(
        setting,
        dataset,
        batches=np.asarray(played.schedule.batches),
        learning_rate=fields.learning_rate,
        noise_multiplier=fields.noise_multiplier,
        theta_0=np.asarray(theta_0),
        stepped=np.asarray(stepped),
        torch_order=np.concatenate(order),
    )


def measure_rate(training: Training, seconds: float) -> float:
    """Returns the model-steps per second of a training that runs for at least some seconds."""
    begin = time.perf_counter()
    done = training.run()
    while time.perf_counter() - begin < seconds:
        done += training.run()
    return done / (time.perf_counter() - begin)


def find_fastest(engine: Engine, problem: Problem) -> Training:
    """Returns the training with the fastest number of models at once.

    It tries numbers with per-example gradients that fit in memory.
    """
    problem = problem._replace(batches=problem.batches[:_CALL_STEPS])
    floats = problem.setting.mechanism.batch_size * problem.theta_0.size
    max_floats = _MAX_CPU_FLOATS
    trainings: dict[float, Training] = {}  # by rate
    for models in engine.tried:
        if trainings and models * floats > max_floats:
            break
        training = engine.make(problem, models)
        training.run()  # compiles
        trainings[measure_rate(training, _TRIAL_SECONDS)] = training
        if training.device != "cpu":
            max_floats = _MAX_GPU_FLOATS
    return trainings[max(trainings)]


def measure_distance(engine: Engine, problem: Problem) -> float:
    """Returns the Euclidean distance of an engine's first step from ours, without noise and at rate 1."""
    step = problem._replace(batches=problem.batches[:1], learning_rate=1.0, noise_multiplier=0.0)
    training = engine.make(step, 1)
    training.run()
    return float(np.linalg.norm(training.theta() - problem.stepped))


def make_ours(problem: Problem, models: int) -> Training:
    """Returns our training, as in `audit`: with noise and insertions, in chunks of runs."""
    import jax

    from audit.training import build, game

    played = build.build(problem.setting, problem.dataset)
    chunk_size = game.chunk_size(played, _RUNS)
    chunks = game.play(played, [(0, _ENDLESS)], chunk_size)

    def run() -> int:
        runs = len(next(chunks).scores)
        return runs * problem.setting.schedule.steps

    device = str(jax.local_devices()[0].device_kind)
    return Training(run, lambda: problem.stepped, chunk_size, device)


def make_jax_privacy(problem: Problem, models: int) -> Training:
    """Returns jax_privacy's training: its clipped_grad and Gaussian noise, mapped over models."""
    import jax
    import jax.numpy as jnp
    from jax_privacy import clipping, noise_addition

    from audit.mechanism import ensemble
    from audit.mechanism.clipping.base import separate
    from models.catalogue import task

    norm = problem.setting.mechanism.clipping_norm
    batch_size = problem.setting.mechanism.batch_size
    model = task(problem.setting.model).make(problem.dataset.features.shape[1:])
    # (theta, batch) -> the sum of the examples' clipped gradients, divided by B.
    clipped_gradient = clipping.clipped_grad(
        model.loss,
        l2_clip_norm=norm,
        keep_batch_dim=False,
        normalize_by=float(batch_size),
    )

    def train(theta: Any, key: Any, batches: Any, data: Any) -> Any:
        """Returns the parameters (p,) of one model after a step on each mini-batch."""
        features, labels = data
        deviation = problem.noise_multiplier * norm / batch_size
        noise = noise_addition.gaussian_privatizer(stddev=deviation, prng_key=key)

        def take_step(carry: Any, indices: Any) -> Any:
            theta, noise_state = carry
            # Without `separate`, JAX cannot take per-example gradients of convolutions if models on several
            # devices share their features.
            batch = separate(theta, (features[indices], labels[indices]))
            update, noise_state = noise.update(clipped_gradient(theta, batch), noise_state)
            return (theta - problem.learning_rate * update, noise_state), None

        end, _ = jax.lax.scan(take_step, (theta, noise.init(theta)), batches)
        return end[0]

    placement = ensemble.Placement.local()
    devices = jax.local_devices()
    models *= len(devices)
    data = placement.everywhere((problem.dataset.features, problem.dataset.labels))
    batches = placement.everywhere(problem.batches)
    # Each model has its own theta and key. New parameters reuse the old ones' memory.
    train_models = placement.over_runs(train, (0, 0, None, None), donated=(0,))
    thetas = placement.by_run(jnp.tile(problem.theta_0, (models, 1)))
    calls = itertools.count()

    def run() -> int:
        nonlocal thetas
        call_key = jax.random.key(next(calls))
        keys = placement.by_run(jax.random.split(call_key, models))
        thetas = jax.block_until_ready(train_models(thetas, keys, batches, data))
        return models * len(batches)

    return Training(run, lambda: np.asarray(thetas[0]), models, str(devices[0].device_kind))


def _make_torch_network(problem: Problem) -> Any:
    """Returns the setting's model in PyTorch at theta_0, on the GPU if there is one."""
    import torch
    from torch import nn

    def normed(channels: int, features: int, window: int, stride: int) -> list[Any]:
        """Returns a padded convolution without bias, followed by group normalization."""
        convolution = nn.Conv2d(channels, features, window, stride, window // 2, bias=False)
        return [convolution, nn.GroupNorm(32, features, eps=1e-6)]  # Flax's default

    class Block(nn.Module):
        """A residual block: two 3x3 convolutions and a shortcut."""

        def __init__(self, channels: int, features: int, stride: int) -> None:
            super().__init__()
            first = normed(channels, features, 3, stride)
            second = normed(features, features, 3, 1)
            self.body = nn.Sequential(*first, nn.ReLU(), *second)
            self.shortcut = nn.Sequential()
            if stride > 1:
                self.shortcut = nn.Sequential(*normed(channels, features, 1, stride))

        def forward(self, x: Any) -> Any:
            return torch.relu(self.shortcut(x) + self.body(x))

    if problem.setting.model == "fcnn":
        layers = [nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2)]
    elif problem.setting.model == "convnet":
        layers = [nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2)]
        layers += [nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)]
        layers += [nn.Flatten(), nn.Linear(400, 120), nn.ReLU()]
        layers += [nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)]
    else:
        layers = [*normed(3, 64, 3, 1), nn.ReLU(), Block(64, 64, 1), Block(64, 64, 1)]
        for channels in (64, 128, 256):
            features = 2 * channels
            layers += [Block(channels, features, 2), Block(features, features, 1)]
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)]
    network = nn.Sequential(*layers)
    theta_0 = torch.tensor(problem.theta_0[problem.torch_order])
    nn.utils.vector_to_parameters(theta_0, network.parameters())
    return network.to("cuda" if torch.cuda.is_available() else "cpu")


def _train_in_torch(
    problem: Problem,
    models: int,
    parameters: Iterable[Any],
    take_step: Callable[..., None],
) -> Training:
    """Returns a training of `models` models at once in PyTorch.

    `take_step` takes a mini-batch of features and labels, and changes `parameters`, the first model's, in
    place.
    """
    import torch

    first_model = list(parameters)
    device = first_model[0].device
    batches = []
    for indices in problem.batches:
        features = problem.dataset.features[indices]
        if features.ndim == 4:
            normalized = (features / 255 - CIFAR10_MEAN) / CIFAR10_STD
            features = normalized.transpose(0, 3, 1, 2)
        inputs = torch.tensor(features, dtype=torch.float32, device=device).contiguous()
        labels = torch.tensor(problem.dataset.labels[indices], dtype=torch.long, device=device)
        batches.append((inputs, labels))

    def run() -> int:
        for features, labels in batches:
            take_step(features, labels)
        if device.type == "cuda":
            torch.cuda.synchronize()
        return models * len(batches)

    def get_theta() -> NDArray[np.float32]:
        vector = torch.nn.utils.parameters_to_vector(first_model)
        theta: NDArray[np.float32] = vector.detach().cpu().numpy()
        return theta[np.argsort(problem.torch_order)]  # in our order

    name = "cpu" if device.type == "cpu" else torch.cuda.get_device_name()
    return Training(run, get_theta, models, name)


def make_opacus(problem: Problem, models: int) -> Training:
    """Returns the training of one model by Opacus: GradSampleModule and DPOptimizer, in one thread."""
    import torch
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer
    from torch.nn.functional import cross_entropy

    warnings.filterwarnings("ignore", "Full backward hook")  # set by Opacus
    torch.set_num_threads(1)
    module = GradSampleModule(_make_torch_network(problem))
    optimizer = DPOptimizer(
        torch.optim.SGD(module.parameters(), problem.learning_rate),
        noise_multiplier=problem.noise_multiplier,
        max_grad_norm=problem.setting.mechanism.clipping_norm,
        expected_batch_size=problem.setting.mechanism.batch_size,
    )

    def take_step(features: Any, labels: Any) -> None:
        optimizer.zero_grad()
        cross_entropy(module(features), labels).backward()
        optimizer.step()

    return _train_in_torch(problem, models, module.parameters(), take_step)


def make_torch_func(problem: Problem, models: int) -> Training:
    """Returns the training of several models at once with torch.func, on all cores or the GPU.

    Models share mini-batches and have different noise.
    """
    import torch
    from torch.func import functional_call, grad, vmap
    from torch.nn.functional import cross_entropy

    network = _make_torch_network(problem)
    norm = problem.setting.mechanism.clipping_norm
    noise = problem.noise_multiplier * norm
    rate = problem.learning_rate / problem.setting.mechanism.batch_size

    def loss(theta: Any, features: Any, label: Any) -> Any:
        return cross_entropy(functional_call(network, theta, features[None]), label[None])

    per_example_gradients = vmap(grad(loss), (None, 0, 0))

    def clipped_sum(theta: Any, features: Any, labels: Any) -> dict[str, Any]:
        """Returns the sum of the examples' gradients, each clipped by its norm over all parameters."""
        gradients = per_example_gradients(theta, features, labels)
        squared_norms = sum(part.flatten(1).square().sum(1) for part in gradients.values())  # (B,)
        factors = (norm / torch.sqrt(squared_norms)).clamp(max=1.0)
        return {name: torch.tensordot(factors, part, 1) for name, part in gradients.items()}

    clipped_sums = vmap(clipped_sum, (0, None, None))
    thetas = {}
    for name, parameter in network.named_parameters():
        thetas[name] = parameter.detach().expand(models, *parameter.shape).clone()

    def take_step(features: Any, labels: Any) -> None:
        sums = clipped_sums(thetas, features, labels)
        for name, theta in thetas.items():
            noisy = sums[name].add_(torch.randn_like(theta), alpha=noise)
            theta.sub_(noisy, alpha=rate)

    first_model = [theta[0] for theta in thetas.values()]
    return _train_in_torch(problem, models, first_model, take_step)


ENGINES = {
    "ours": Engine("jax", make_ours, tried=(1,)),
    "jax_privacy": Engine("jax-privacy", make_jax_privacy),
    "opacus": Engine("opacus", make_opacus, tried=(1,), one_thread=True),
    "torch_func": Engine("torch", make_torch_func),
}


def measure(
    model: str,
    engines: Sequence[str],
    rounds: int,
    sources: Sources,
) -> list[Record]:
    """Times engines (keys of `ENGINES`) on a model (a key of `MODELS`), with a progress bar.

    Returns a record for each engine; see `make_table`. Raises InputError if the data cannot be read, an
    engine fails, or its step differs from ours.
    """
    with _start_process() as process:  # JAX ends with the process
        problem = process.submit(make_problem, model, sources).result()
    records: list[Record] = []
    teams = []
    with contextlib.ExitStack() as stack:
        for name in engines:
            team = [stack.enter_context(_start_process())]
            [described] = _ask(name, team, _prepare, problem)
            require_agreement(name, described["distance_from_ours"], TOLERANCES[model])
            if ENGINES[name].one_thread and described["device"] == "cpu":
                others = [stack.enter_context(_start_process()) for _ in range(cores() - 1)]
                _ask(name, others, _prepare, problem)
                team += others
            records.append({"model": model, "engine": name, "processes": len(team), **described})
            teams.append(team)
        for _ in trange(rounds, desc=model, leave=False):
            for record, team in zip(records, teams, strict=True):
                record["rates"].append(sum(_ask(record["engine"], team, _time)))
    return records


def _start_process() -> ProcessPoolExecutor:
    """Starts a process that ignores Ctrl-C; it ends with its parent."""
    return ProcessPoolExecutor(1, _SPAWN, signal.signal, (signal.SIGINT, signal.SIG_IGN))


def _ask(
    name: str,
    team: Sequence[ProcessPoolExecutor],
    function: Callable[..., Any],
    *arguments: Any,
) -> list[Any]:
    """Calls a function in all processes of an engine at once; raises InputError if it fails."""
    answers = [process.submit(function, name, *arguments) for process in team]
    try:
        return [answer.result() for answer in answers]
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{name}: {type(error).__name__}: {reason}") from None


def require_agreement(name: str, distance: float, tolerance: float) -> None:
    """Raises InputError if an engine's first step is further than `tolerance` from ours."""
    require(
        distance <= tolerance,
        f"{name}'s step differs from ours by {distance:.1e} (at most {tolerance:g}), so its time cannot be "
        "compared: remove it from --engines",
    )


_PREPARED: dict[str, Training] = {}  # in a process of an engine: its training, by the engine's name


def _prepare(name: str, problem: Problem) -> Record:
    """Prepares an engine for `_time`, and returns the start of its record, without rates."""
    engine = ENGINES[name]
    if engine.package.startswith("jax"):
        prepare_jax()
    distance = measure_distance(engine, problem)
    training = find_fastest(engine, problem)
    _PREPARED[name] = training
    return {
        "rates": [],
        "models_at_once": training.models,
        "distance_from_ours": distance,
        "device": training.device,
    }


def _time(name: str) -> float:
    """Returns the rate of a prepared engine."""
    return measure_rate(_PREPARED[name], _ROUND_SECONDS)


def make_table(timings: Sequence[Record]) -> Table[Record]:
    """Returns the table with a row for each model and engine."""
    for record in timings:
        rates = record["rates"]
        record["model_steps_per_second"] = statistics.median(rates)
        for ours in select(timings, model=record["model"], engine="ours"):  # at most one
            if record is not ours:
                # Ratios are within rounds, since a slow round slows all engines.
                record["ratios"] = np.divide(ours["rates"], rates).tolist()
    columns = (
        field("model", "model", left=True),
        field("engine", "engine", width=11, left=True),
        field("model_steps_per_second", "model-steps/s", _show_rate),
        field("ratios", "ours is faster by", _show_ratios, left=True),
        *map(field, ("rates", "models_at_once", "processes", "distance_from_ours", "device")),
    )
    return Table(columns, timings)


def _show_ratios(ratios: list[float]) -> str:
    """Returns the median, the smallest and the largest ratio over rounds."""
    median = _show_rate(statistics.median(ratios))
    return f"{median} ({_show_rate(min(ratios))} to {_show_rate(max(ratios))})"


def _show_rate(value: float) -> str:
    """Formats a rate or a ratio with three significant digits, or as an integer from 100 on."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
