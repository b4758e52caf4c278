"""Times DP-SGD engines, in rounds that time each engine once.

Each engine runs in its own processes; only these import JAX or PyTorch. Before timing, its step must agree
with ours. To add an engine, write a function that makes its training, and add a row to `ENGINES`.
"""

import contextlib
import functools
import itertools
import multiprocessing
import pickle
import signal
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tqdm import trange

from audit.errors import InputError, require
from audit.report.table import Column, Table
from audit.runtime.machine import cores, prepare_jax
from audit.settings.setting import Setting
from audit.tasks.task import Dataset, Sources
from experiments.sweeps.records import Record, field
from models.data.images import CIFAR10_MEAN, CIFAR10_STD

Run = Callable[[], int]  # trains for a moment; returns the number of model-steps

_SPAWN = multiprocessing.get_context("spawn")  # a process with JAX's threads cannot fork
_RUNS = 5000  # our engine chooses the chunk size for an audit with this many runs
_ENDLESS = 2**31  # more runs than any measurement trains
_CALL_STEPS = 10  # steps per call of a peer
_TRIAL_SECONDS = 0.5  # for each number of models at once
_MAX_CPU_FLOATS = 1 << 26  # in the per-example gradients of all models in a step
_MAX_GPU_FLOATS = 1 << 30


class TimedModel(NamedTuple):
    """The timing of engines on a model.

    Attributes:
      steps: The number of mini-batches of a training run.
      tolerance: The largest distance between an engine's first step and ours, without noise and at learning
        rate 1. Both are means of clipped gradients with norms of at most 1.
      fields: Other fields of the setting.
    """

    steps: int
    tolerance: float
    fields: dict[str, int]


MODELS = {
    "fcnn": TimedModel(steps=250, tolerance=1e-5, fields={}),
    "convnet": TimedModel(steps=10, tolerance=1e-5, fields={}),
    # Engines sum the float32 values of its 18 layers in different orders.
    "resnet18": TimedModel(steps=8, tolerance=1e-3, fields={"batch_size": 8}),
}


class Problem(NamedTuple):
    """A training run of DP-SGD with fixed mini-batches, for all engines.

    Attributes:
      setting: The setting.
      features: (n, ...) the examples' features.
      labels: (n,) the examples' labels.
      batches: (steps, B) the indices of each mini-batch's examples.
      theta_0: (p,) the initial parameters.
      stepped: (p,) the parameters after our first step from theta_0, without noise and at learning rate 1.
      places: The indices in theta of each network parameter's entries, with Flax's shapes, in the order of
        calls.
    """

    setting: Setting
    features: NDArray[Any]
    labels: NDArray[Any]
    batches: NDArray[np.int32]
    theta_0: NDArray[np.float32]
    stepped: NDArray[np.float32]
    places: list[NDArray[np.int64]]


class Asked(NamedTuple):
    """A request to an engine.

    Attributes:
      problem: The problem.
      batches: (steps, B) the mini-batches.
      rate: The learning rate.
      sigma: The noise multiplier.
      models: The number of models that each device trains at once.
    """

    problem: Problem
    batches: NDArray[np.int32]
    rate: float
    sigma: float
    models: int


class TimedTraining(NamedTuple):
    """A running training.

    Attributes:
      run: Trains for a moment and returns the number of model-steps. Peers take a step on each mini-batch.
      theta: () -> the parameters (p,) of the first model.
      models: The number of models at once.
      device: The device's name; "cpu" for any CPU.
    """

    run: Run
    theta: Callable[[], NDArray[np.float32]]
    models: int
    device: str


class Engine(NamedTuple):
    """An engine.

    Attributes:
      package: The name of its package on PyPI.
      make: (request) -> the training.
      tried: The numbers of models at once to try.
      one_thread: Whether it uses one core. A CPU then runs a process for each core.
    """

    package: str
    make: Callable[[Asked], TimedTraining]
    tried: Sequence[int] = (1, 8, 64, 512, 4096)
    one_thread: bool = False


def make_problem(model: str, sources: Sources) -> Problem:
    """Returns the problem of training a model with the defaults of `audit`.

    The adversary is GC-R instead of GC-S. Steps cost the same, but GC-S first simulates training runs to
    choose its coordinate.

    Args:
      model: A key of `MODELS`.
      sources: The data sources.
    """
    from audit.settings.make import setting_of
    from models.catalogue import task

    prepare_jax()
    timed = MODELS[model]
    setting = setting_of(model, adversary="gc_r", steps=timed.steps, **timed.fields)
    return problem_of(setting, task(model).data.load(sources))


def problem_of(setting: Setting, dataset: Dataset) -> Problem:
    """Returns the problem of a setting, with our first step."""
    import jax
    import jax.numpy as jnp

    from audit.mechanism.base import Data, Hyperparameters, Schedule, no_canaries
    from audit.training import build, game

    played = build.build(setting, dataset)
    theta_0 = played.init(game.root(setting.seed, "theta"))
    norm = setting.mechanism.clipping_norm
    hyper = Hyperparameters(learning_rate=1.0, clipping_norm=norm, noise_multiplier=0.0)
    first_step = Schedule(played.schedule.batches[:1], mask=jnp.zeros(1))  # without an insertion

    @jax.jit
    def take_step(theta: jax.Array, data: Data) -> jax.Array:
        mechanism = played.mechanism
        state = mechanism.start(theta)
        key = jax.random.key(0)  # the noise is multiplied by 0
        state = mechanism.segment(hyper, state, data, first_step, no_canaries(), key)
        return state.theta

    # The indices, nested like Flax's parameters. Integers below 2^24 are exact in float32.
    model = build.trainee(setting.model, dataset).model
    places = model.unravel(jnp.arange(model.n_parameters, dtype=jnp.float32))
    variables = model.module.init(jax.random.key(0), dataset.features[0])
    places_by_call = _list_leaves(places, variables["params"])
    return Problem(
        setting=setting,
        features=dataset.features,
        labels=dataset.labels,
        batches=np.asarray(played.schedule.batches),
        theta_0=np.asarray(theta_0),
        stepped=np.asarray(take_step(theta_0, played.data)),
        places=list(places_by_call),
    )


def _list_leaves(tree: dict[str, Any], created: dict[str, Any]) -> Iterator[NDArray[np.int64]]:
    """Yields the leaves of nested parameters in the order of `created`; JAX's functions sort them."""
    for name, part in created.items():
        if isinstance(part, dict):
            yield from _list_leaves(tree[name], part)
        else:
            yield np.asarray(tree[name]).astype(np.int64)


def measure_rate(run: Run, seconds: float) -> float:
    """Returns the model-steps per second of `run`, called repeatedly for some seconds."""
    begin = time.perf_counter()
    done = 0
    elapsed = 0.0
    while elapsed < seconds or not done:
        done += run()
        elapsed = time.perf_counter() - begin
    return done / elapsed


def find_fastest(engine: Engine, problem: Problem) -> TimedTraining:
    """Returns the training with the fastest number of models at once.

    Only numbers are tried whose per-example gradients fit in memory.
    """
    fields = problem.setting.mechanism
    batches = problem.batches[:_CALL_STEPS]
    max_floats = _MAX_CPU_FLOATS
    rates: dict[float, TimedTraining] = {}
    for models in engine.tried:
        if rates and models * fields.batch_size * problem.theta_0.size > max_floats:
            break
        asked = Asked(problem, batches, fields.learning_rate, fields.noise_multiplier, models)
        training = engine.make(asked)
        training.run()  # compiles
        rates[measure_rate(training.run, _TRIAL_SECONDS)] = training
        if training.device != "cpu":
            max_floats = _MAX_GPU_FLOATS
    return rates[max(rates)]


def make_ours(asked: Asked) -> TimedTraining:
    """Returns our training, as in `audit`: with noise and insertions, in chunks of runs."""
    import jax

    from audit.training import build, game

    problem = asked.problem
    dataset = Dataset(problem.features, problem.labels, "", "")
    played = build.build(problem.setting, dataset)
    chunk_size = game.chunk_size(played, _RUNS)
    chunks = game.play(played, [(0, _ENDLESS)], chunk_size)

    def run() -> int:
        runs = len(next(chunks).scores)
        return runs * problem.setting.schedule.steps

    device = str(jax.local_devices()[0].device_kind)
    return TimedTraining(run, lambda: problem.stepped, chunk_size, device)


def make_jax_privacy(asked: Asked) -> TimedTraining:
    """Returns jax_privacy's training: its clipped_grad and Gaussian noise, mapped over models."""
    import jax
    import jax.numpy as jnp
    from jax_privacy import clipping, noise_addition

    from audit.mechanism import ensemble
    from audit.mechanism.base import Data
    from audit.mechanism.clipping.base import separate
    from models.catalogue import task

    problem = asked.problem
    norm = problem.setting.mechanism.clipping_norm
    batch_size = problem.setting.mechanism.batch_size
    model = task(problem.setting.model).make(problem.features.shape[1:])
    # (theta, batch) -> the sum of the examples' clipped gradients, divided by B.
    clipped_gradient = clipping.clipped_grad(
        model.loss,
        l2_clip_norm=norm,
        keep_batch_dim=False,
        normalize_by=float(batch_size),
    )

    def train(theta: jax.Array, key: jax.Array, batches: jax.Array, data: Data) -> jax.Array:
        """Returns the parameters (p,) of one model after a step on each mini-batch."""
        features, labels = data
        deviation = asked.sigma * norm / batch_size
        noise = noise_addition.gaussian_privatizer(stddev=deviation, prng_key=key)

        def take_step(carry: Any, indices: jax.Array) -> tuple[Any, None]:
            theta, noise_state = carry
            # `separate` does not change values. Without it JAX cannot take per-example gradients of
            # convolutions if models on several devices share their features.
            batch = separate(theta, (features[indices], labels[indices]))
            update, noise_state = noise.update(clipped_gradient(theta, batch), noise_state)
            return (theta - asked.rate * update, noise_state), None

        start = (theta, noise.init(theta))
        end, _ = jax.lax.scan(take_step, start, batches)
        trained: jax.Array = end[0]
        return trained

    placement = ensemble.Placement.local()
    devices = jax.local_devices()
    models = len(devices) * asked.models
    data = placement.everywhere((problem.features, problem.labels))
    batches = placement.everywhere(asked.batches)
    # Each model has its own theta and key. New parameters reuse the memory of the old ones.
    train_models = placement.over_runs(train, (0, 0, None, None), donated=(0,))
    thetas = placement.by_run(jnp.tile(problem.theta_0, (models, 1)))
    calls = itertools.count()

    def run() -> int:
        nonlocal thetas
        call_key = jax.random.key(next(calls))
        keys = placement.by_run(jax.random.split(call_key, models))
        thetas = jax.block_until_ready(train_models(thetas, keys, batches, data))
        return models * len(batches)

    device = str(devices[0].device_kind)
    return TimedTraining(run, lambda: np.asarray(thetas[0]), models, device)


class _InTorch:
    """A problem in PyTorch: the network at theta_0, and the mini-batches' features and labels."""

    def __init__(self, asked: Asked) -> None:
        import torch

        problem = asked.problem
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.network = _make_torch_network(problem.setting.model).to(self.device)
        # PyTorch's order of Flax's axes, by the number of axes. Flax's kernels are (in, out) in dense layers
        # and (height, width, in, out) in convolutions.
        axes = {1: (0,), 2: (1, 0), 4: (3, 2, 0, 1)}
        self._places = [places.transpose(axes[places.ndim]) for places in problem.places]
        with torch.no_grad():
            for parameter, places in zip(self.network.parameters(), self._places, strict=True):
                parameter.copy_(torch.tensor(problem.theta_0[places]))
        self.batches = []
        for indices in asked.batches:
            features = problem.features[indices]
            if features.ndim == 4:
                normalized = (features / 255 - CIFAR10_MEAN) / CIFAR10_STD
                features = normalized.transpose(0, 3, 1, 2)
            inputs = torch.tensor(features, dtype=torch.float32).contiguous()
            labels = torch.tensor(problem.labels[indices], dtype=torch.long)
            self.batches.append((inputs.to(self.device), labels.to(self.device)))

    def make_training(
        self, take_step: Callable[..., None], parameters: Sequence[Any], models: int
    ) -> TimedTraining:
        """Returns the training with a function of a mini-batch's features and labels."""
        import torch

        on_gpu = self.device == "cuda"

        def run() -> int:
            for features, labels in self.batches:
                take_step(features, labels)
            if on_gpu:
                torch.cuda.synchronize()
            return models * len(self.batches)

        def flatten() -> NDArray[np.float32]:
            theta = np.empty(sum(places.size for places in self._places), np.float32)
            for parameter, places in zip(parameters, self._places, strict=True):
                values = parameter.detach().cpu().numpy()  # torch_func has a leading model axis
                theta[places] = values.reshape(-1, *places.shape)[0]
            return theta

        device = torch.cuda.get_device_name() if on_gpu else "cpu"
        return TimedTraining(run, flatten, models, device)


def _make_torch_network(model: str) -> Any:
    """Returns a catalogue model in PyTorch."""
    from torch import nn, relu

    if model == "fcnn":
        return nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2))
    if model == "convnet":
        layers: list[Any] = []
        for channels, features in ((3, 6), (6, 16)):
            layers += [nn.Conv2d(channels, features, 5), nn.ReLU(), nn.MaxPool2d(2)]
        layers += [nn.Flatten(), nn.Linear(400, 120), nn.ReLU()]
        layers += [nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)]
        return nn.Sequential(*layers)

    def make_normed(channels: int, features: int, window: int, stride: int) -> list[Any]:
        """Returns a padded convolution without bias, followed by group normalization."""
        padding = (window - 1) // 2
        convolution = nn.Conv2d(channels, features, window, stride, padding, bias=False)
        return [convolution, nn.GroupNorm(32, features, eps=1e-6)]  # Flax's default

    class Block(nn.Module):
        """A residual block: two 3x3 convolutions and a shortcut."""

        def __init__(self, channels: int, features: int, stride: int) -> None:
            super().__init__()
            first = make_normed(channels, features, 3, stride)
            second = make_normed(features, features, 3, 1)
            self.body = nn.Sequential(*first, nn.ReLU(), *second)
            self.shortcut: nn.Module = nn.Identity()
            if channels != features or stride != 1:
                self.shortcut = nn.Sequential(*make_normed(channels, features, 1, stride))

        def forward(self, x: Any) -> Any:
            return relu(self.shortcut(x) + self.body(x))

    layers = [*make_normed(3, 64, 3, 1), nn.ReLU()]
    channels = 64
    for features in (64, 128, 256, 512):
        stride = features // channels  # 1, then 2
        layers += [Block(channels, features, stride), Block(features, features, 1)]
        channels = features
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)]
    return nn.Sequential(*layers)


def make_opacus(asked: Asked) -> TimedTraining:
    """Returns the training of one model by Opacus: GradSampleModule and DPOptimizer, in one thread."""
    import torch
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer
    from torch.nn.functional import cross_entropy

    warnings.filterwarnings("ignore", "Full backward hook")  # set by Opacus
    torch.set_num_threads(1)
    made = _InTorch(asked)
    module = GradSampleModule(made.network)
    optimizer = DPOptimizer(
        torch.optim.SGD(module.parameters(), asked.rate),
        noise_multiplier=asked.sigma,
        max_grad_norm=asked.problem.setting.mechanism.clipping_norm,
        expected_batch_size=asked.problem.setting.mechanism.batch_size,
    )

    def take_step(features: torch.Tensor, labels: torch.Tensor) -> None:
        optimizer.zero_grad()
        cross_entropy(module(features), labels).backward()
        optimizer.step()

    return made.make_training(take_step, list(module.parameters()), models=1)


def make_torch_func(asked: Asked) -> TimedTraining:
    """Returns the training of several models at once with torch.func.

    It uses all cores or the GPU. Models share mini-batches and have different noise.
    """
    import torch
    from torch.nn.functional import cross_entropy

    made = _InTorch(asked)
    names = [name for name, _ in made.network.named_parameters()]
    norm = asked.problem.setting.mechanism.clipping_norm
    batch_size = asked.problem.setting.mechanism.batch_size

    def loss(theta: Any, features: Any, label: Any) -> Any:
        parameters = dict(zip(names, theta, strict=True))
        logits = torch.func.functional_call(made.network, parameters, (features[None],))
        return cross_entropy(logits, label[None])

    gradient = torch.func.grad(loss)
    per_example_gradients = torch.func.vmap(gradient, (None, 0, 0))

    def clipped_sum(theta: Any, features: Any, labels: Any) -> list[Any]:
        """Returns the sum of the examples' gradients, each clipped by its norm over all parameters."""
        gradients = per_example_gradients(theta, features, labels)
        squared_norms = sum(part.flatten(1).square().sum(1) for part in gradients)  # (B,)
        factors = (norm / torch.sqrt(squared_norms)).clamp(max=1.0)
        return [torch.tensordot(factors, part, 1) for part in gradients]

    clipped_sums = torch.func.vmap(clipped_sum, (0, None, None))
    thetas = []
    for parameter in made.network.parameters():
        copies = parameter.detach().expand(asked.models, *parameter.shape)
        thetas.append(copies.clone())

    def take_step(features: torch.Tensor, labels: torch.Tensor) -> None:
        sums = clipped_sums(tuple(thetas), features, labels)
        for theta, total in zip(thetas, sums, strict=True):
            noisy = total.add_(torch.randn_like(total), alpha=asked.sigma * norm)
            theta.sub_(noisy, alpha=asked.rate / batch_size)

    return made.make_training(take_step, thetas, asked.models)


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
    seconds: float,
    sources: Sources,
) -> list[Record]:
    """Times engines on a model, with a progress bar.

    Args:
      model: A key of `MODELS`.
      engines: Keys of `ENGINES`.
      rounds: The number of rounds.
      seconds: The minimum time per engine and round.
      sources: The data sources.

    Returns:
      A record for each engine; see `make_table`.

    Raises:
      InputError: The data cannot be read, an engine fails, or its step differs from ours.
    """
    with contextlib.ExitStack() as stack:
        file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "problem"
        with _start_process() as process:  # JAX ends with the process
            made = process.submit(make_problem, model, sources).result()
        file.write_bytes(pickle.dumps(made))
        records: list[Record] = []
        teams = []
        for name in engines:
            team = [stack.enter_context(_start_process())]
            [described] = _ask(name, team, _describe, file)
            require_agreement(name, described["distance_from_ours"], MODELS[model].tolerance)
            if ENGINES[name].one_thread and described["device"] == "cpu":
                for _ in range(cores() - 1):
                    team.append(stack.enter_context(_start_process()))
                _ask(name, team, _describe, file)  # prepares all processes before timing
            record: Record = {"model": model, "engine": name, "rates": [], "processes": len(team)}
            records.append(record | described)
            teams.append(team)
        for _ in trange(rounds, desc=model, leave=False):
            for record, team in zip(records, teams, strict=True):
                rates = _ask(record["engine"], team, _time, file, seconds)
                record["rates"].append(sum(rates))
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


@functools.cache
def _prepare(name: str, file: Path) -> TimedTraining:
    """Returns the training of an engine; only the first call in a process makes it."""
    return find_fastest(ENGINES[name], pickle.loads(file.read_bytes()))


def _describe(name: str, file: Path) -> Record:
    """Prepares an engine; returns the distance of its first step from ours, its models and its device."""
    if ENGINES[name].package.startswith("jax"):
        prepare_jax()
    problem = pickle.loads(file.read_bytes())
    distance = measure_distance(ENGINES[name], problem)
    training = _prepare(name, file)
    return {
        "distance_from_ours": distance,
        "models_at_once": training.models,
        "device": training.device,
    }


def measure_distance(engine: Engine, problem: Problem) -> float:
    """Returns the Euclidean distance of an engine's first step from ours, without noise and at rate 1."""
    asked = Asked(problem, problem.batches[:1], rate=1.0, sigma=0.0, models=1)
    training = engine.make(asked)
    training.run()
    difference = training.theta() - problem.stepped
    return float(np.linalg.norm(difference))


def _time(name: str, file: Path, seconds: float) -> float:
    """Returns the engine's rate, measured for some seconds."""
    return measure_rate(_prepare(name, file).run, seconds)


def make_table(timings: Sequence[Record]) -> Table[Record]:
    """Returns the table with a row for each model and engine."""
    ours = {}
    for record in timings:
        if record["engine"] == "ours":
            ours[record["model"]] = np.array(record["rates"])
    for record in timings:
        rates = record["rates"]
        record["model_steps_per_second"] = statistics.median(rates)
        record["ratios"] = None
        if record["engine"] != "ours" and record["model"] in ours:
            # Ratios are within rounds, since a slow round slows all engines.
            ratios = ours[record["model"]] / rates
            record["ratios"] = ratios.tolist()
    columns = (
        field("model", head="model", left=True),
        field("engine", head="engine", width=11, left=True),
        field("model_steps_per_second", head="model-steps/s", show=_show_rate),
        Column("ratios", itemgetter("ratios"), "ours is faster by", _show_ratios, left=True),
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
