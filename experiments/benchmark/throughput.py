"""Times DP-SGD engines on the same training problem.

Only the processes of an engine import JAX or PyTorch. To add an engine, write a function that returns its
`Training`, and add a row to `ENGINES`.
"""

import contextlib
import itertools
import multiprocessing
import signal
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tqdm import trange

from audit.errors import InputError
from audit.report.table import Table
from audit.runtime.machine import cores, prepare_jax
from audit.runtime.processes import as_completed
from audit.settings.setting import Setting
from audit.tasks.task import Dataset, UserFile
from experiments.sweeps.records import Record, Records, field, select
from models.data.images import CIFAR10_MEAN, CIFAR10_STD

Parameters = NDArray[np.float32]  # (p,) the parameters of a model
OURS = "ours"
_SPAWN = multiprocessing.get_context("spawn")  # a process with JAX threads cannot fork
_AUDITED_RUNS = 5000  # our engine's chunk size is that of an audit with 5,000 runs
_ENDLESS_RUNS = 2**31  # more runs than any measurement trains
_CALL_STEPS = 10  # the steps that a peer takes per call to `Training.run`
_TRIAL_SECONDS = 0.5  # the duration of a trial of one model count
_ROUND_SECONDS = 3.0  # an engine's minimum training time per round
# The largest number of floats in the per-example gradients of all models trained at once.
_MAX_CPU_FLOATS = 1 << 26
_MAX_GPU_FLOATS = 1 << 30

# For each model, the settings that differ from `audit`'s defaults.
MODELS = {
    "fcnn": {"steps": 250},
    "convnet": {"steps": 10},
    "resnet18": {"steps": 8, "batch_size": 8},
}


class Problem(NamedTuple):
    """A training problem for all DP-SGD engines.

    Attributes:
      batches: (steps, B) the indices of the examples in at most 10 mini-batches.
      theta_0: (p,) the initial parameters. The PyTorch engines draw their own.
    """

    setting: Setting
    dataset: Dataset
    batches: NDArray[np.int32]
    theta_0: Parameters


class Training(NamedTuple):
    """An engine's training run; each call to `run` continues it.

    Attributes:
      run: Trains briefly and returns the number of steps, summed over models. Peers take one step per
        mini-batch of the problem.
      device: The kind of device, such as "cpu".
      get_theta: Returns the first model's parameters (p,), in the engine's order, for a test. None for our
        engine, which does not keep them.
    """

    run: Callable[[], int]
    device: str
    get_theta: Callable[[], Parameters] | None = None


class Engine(NamedTuple):
    """An implementation of DP-SGD.

    Attributes:
      package: The name of its package on PyPI.
      make: Maps (problem, number of models to train at once) to a training run.
      model_counts: The numbers of models that `find_fastest` tries.
      one_thread: True if the engine runs in one process per core on a CPU.
    """

    package: str
    make: Callable[[Problem, int], Training]
    model_counts: Sequence[int] = (1, 8, 64, 512, 4096)
    one_thread: bool = False


def make_problem(model: str, user_file: UserFile) -> Problem:
    """Returns the training problem for one of `MODELS` with the defaults of `audit`.

    The canaries are random (adversary GC-R), because the default, GC-S, would first simulate a training run.
    """
    from audit.settings.make import setting_of
    from models.catalogue import task

    prepare_jax()
    setting = setting_of(model, adversary="gc_r", **MODELS[model])
    return build_problem(setting, task(model).data.load(user_file))


def build_problem(setting: Setting, dataset: Dataset) -> Problem:
    """Returns the training problem for a setting and a data set, with up to ten mini-batches."""
    from audit.training import build, game

    audited = build.build(setting, dataset)
    batches = np.asarray(audited.schedule.batches[:_CALL_STEPS])
    theta_0 = np.asarray(audited.init(game.root(setting.seed, "theta")))
    return Problem(setting, dataset, batches, theta_0)


def measure_rate(training: Training, seconds: float) -> float:
    """Trains for at least `seconds` seconds and returns the steps per second, summed over models."""
    begin = time.perf_counter()
    steps = 0
    elapsed = 0.0
    while elapsed < seconds:
        steps += training.run()
        elapsed = time.perf_counter() - begin
    return steps / elapsed


def find_fastest(engine: Engine, problem: Problem) -> Training:
    """Tries an engine's `model_counts` and returns the fastest training run.

    It skips counts for which the per-example gradients may not fit in CPU or GPU memory.
    """
    floats_per_model = problem.setting.mechanism.batch_size * problem.theta_0.size
    max_floats = _MAX_CPU_FLOATS  # until we know the device
    by_rate: dict[float, Training] = {}  # keyed by steps per second
    for models in engine.model_counts:
        if by_rate and models * floats_per_model > max_floats:  # always try the first count
            break
        training = engine.make(problem, models)
        training.run()  # compiles; not timed
        by_rate[measure_rate(training, _TRIAL_SECONDS)] = training
        if training.device != "cpu":
            max_floats = _MAX_GPU_FLOATS
    return by_rate[max(by_rate)]


def make_ours(problem: Problem, models: int) -> Training:
    """Returns our engine's training run, which trains audited models in chunks, as `audit` does.

    The engine chooses the chunk size itself, so `models`, which `Engine.make` requires, has no effect.
    """
    import jax

    from audit.training import build, game

    audited = build.build(problem.setting, problem.dataset)
    chunk_size = game.chunk_size(audited, _AUDITED_RUNS)
    # This iterator over runs [first, stop) is lazy: it trains a chunk on request.
    chunks = game.Player(audited, chunk_size).play_all([(0, _ENDLESS_RUNS)])

    def run() -> int:
        """Trains the next chunk of runs."""
        runs = len(next(chunks).scores)
        return runs * problem.setting.schedule.steps

    return Training(run, jax.default_backend())


def make_jax_privacy(problem: Problem, models: int) -> Training:
    """Returns jax_privacy's training run, which trains several models at once on one device."""
    import jax
    import jax.numpy as jnp
    from jax_privacy import clipping, noise_addition

    from models.catalogue import task

    fields = problem.setting.mechanism
    model = task(problem.setting.model).make(problem.dataset.features.shape[1:])
    # (theta, batch) -> the sum of the examples' clipped gradients, divided by B.
    clipped_gradient = clipping.clipped_grad(
        model.loss,
        l2_clip_norm=fields.clipping_norm,
        keep_batch_dim=False,
        normalize_by=float(fields.batch_size),
    )

    def train(theta: Any, key: Any, batches: Any, features: Any, labels: Any) -> Any:
        """Trains one model from theta (p,) and returns its parameters after a step on each mini-batch."""
        # Like `clipped_gradient`, the noise is divided by B.
        deviation = fields.noise_multiplier * fields.clipping_norm / fields.batch_size
        noise = noise_addition.gaussian_privatizer(stddev=deviation, prng_key=key)

        def take_step(carry: Any, indices: Any) -> Any:
            theta, noise_state = carry
            batch = features[indices], labels[indices]
            update, noise_state = noise.update(clipped_gradient(theta, batch), noise_state)
            return (theta - fields.learning_rate * update, noise_state), None

        end, _ = jax.lax.scan(take_step, (theta, noise.init(theta)), batches)
        return end[0]

    features = jnp.asarray(problem.dataset.features)
    labels = jnp.asarray(problem.dataset.labels)
    # All models share batches and data. Donating the parameters lets the update reuse their memory.
    train_models = jax.jit(jax.vmap(train, (0, 0, None, None, None)), donate_argnums=0)
    thetas = jnp.tile(problem.theta_0, (models, 1))
    calls = itertools.count()

    def run() -> int:
        """Trains the models for one more step per mini-batch; returns the number of steps."""
        nonlocal thetas
        keys = jax.random.split(jax.random.key(next(calls)), models)
        updated = train_models(thetas, keys, problem.batches, features, labels)
        thetas = jax.block_until_ready(updated)
        return models * len(problem.batches)

    return Training(run, jax.default_backend(), lambda: np.asarray(thetas[0]))


def _make_torch_network(problem: Problem) -> Any:
    """Returns the problem's model as a PyTorch module, on the GPU if there is one.

    The layers are the same as in `models`, in Flax's order.
    """
    import torch
    from torch import nn

    def normed(channels: int, features: int, window: int, stride: int) -> list[Any]:
        """Returns a convolution without bias and its group norm."""
        convolution = nn.Conv2d(channels, features, window, stride, window // 2, bias=False)
        normalization = nn.GroupNorm(32, features, eps=1e-6)  # Flax's defaults
        return [convolution, normalization]

    class Block(nn.Module):
        """A residual block: two 3x3 convolutions and a shortcut, the identity at stride 1."""

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
    else:  # resnet18
        layers = [*normed(3, 64, 3, 1), nn.ReLU(), Block(64, 64, 1), Block(64, 64, 1)]
        for channels in (64, 128, 256):
            features = 2 * channels
            layers += [Block(channels, features, 2), Block(features, features, 1)]
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)]
    return nn.Sequential(*layers).to("cuda" if torch.cuda.is_available() else "cpu")


def _train_in_torch(
    problem: Problem,
    models: int,
    first_model: Sequence[Any],
    take_step: Callable[..., None],
) -> Training:
    """Returns a training run in PyTorch on the problem's mini-batches.

    Args:
      problem, models: The training problem, and the number of models that `take_step` trains.
      first_model: The first model's parameter tensors, which `take_step` changes in place.
      take_step: (features (B, ...), labels (B,)) -> None; takes a step on a mini-batch.
    """
    import torch

    device = first_model[0].device
    batches = []
    for indices in problem.batches:
        features = problem.dataset.features[indices]
        if features.ndim == 4:  # images; PyTorch expects channels before height and width
            normalized = (features / 255 - CIFAR10_MEAN) / CIFAR10_STD
            features = normalized.transpose(0, 3, 1, 2)
        inputs = torch.tensor(features, dtype=torch.float32, device=device).contiguous()
        labels = torch.tensor(problem.dataset.labels[indices], dtype=torch.long, device=device)
        batches.append((inputs, labels))

    def run() -> int:
        """Trains all models for one step per mini-batch."""
        for features, labels in batches:
            take_step(features, labels)
        if device.type == "cuda":
            torch.cuda.synchronize()
        return models * len(batches)

    def get_theta() -> Parameters:
        """Returns the first model's parameters in PyTorch's order."""
        theta = torch.nn.utils.parameters_to_vector(first_model)
        return theta.detach().cpu().numpy()

    return Training(run, device.type, get_theta)


def make_opacus(problem: Problem, models: int) -> Training:
    """Returns Opacus' training run, which trains one model on one thread.

    It uses GradSampleModule and DPOptimizer. `models` must be 1.
    """
    import torch
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer
    from torch.nn.functional import cross_entropy

    warnings.filterwarnings("ignore", "Full backward hook")
    fields = problem.setting.mechanism
    torch.set_num_threads(1)
    module = GradSampleModule(_make_torch_network(problem))
    optimizer = DPOptimizer(
        torch.optim.SGD(module.parameters(), fields.learning_rate),
        noise_multiplier=fields.noise_multiplier,
        max_grad_norm=fields.clipping_norm,
        expected_batch_size=fields.batch_size,
    )

    def take_step(features: Any, labels: Any) -> None:
        optimizer.zero_grad()
        cross_entropy(module(features), labels).backward()
        optimizer.step()

    return _train_in_torch(problem, models, list(module.parameters()), take_step)


def make_torch_func(problem: Problem, models: int) -> Training:
    """Returns a training run of several models at once with torch.func, on all cores or the GPU."""
    import torch
    from torch.func import functional_call, grad, vmap
    from torch.nn.functional import cross_entropy

    network = _make_torch_network(problem)
    fields = problem.setting.mechanism
    noise_deviation = fields.noise_multiplier * fields.clipping_norm
    # Steps divide by B because gradients are summed over a mini-batch.
    rate = fields.learning_rate / fields.batch_size

    def loss(theta: Any, features: Any, label: Any) -> Any:
        """Returns a model's loss on one example; `theta` maps names to parameters."""
        return cross_entropy(functional_call(network, theta, features[None]), label[None])

    per_example_gradients = vmap(grad(loss), (None, 0, 0))  # one theta, B examples

    def clipped_sum(theta: Any, features: Any, labels: Any) -> dict[str, Any]:
        """Returns the sum of the examples' clipped gradients for one model, keyed by parameter name.

        Each gradient is clipped using its norm over all parameters.
        """
        gradients = per_example_gradients(theta, features, labels)  # (B, ...) by parameter name
        squares = [gradient.flatten(1).square().sum(1) for gradient in gradients.values()]
        gradient_norms = torch.sqrt(sum(squares))  # (B,)
        factors = (fields.clipping_norm / gradient_norms).clamp(max=1.0)
        return {
            name: torch.tensordot(factors, gradient, dims=1) for name, gradient in gradients.items()
        }

    clipped_sums = vmap(clipped_sum, (0, None, None))  # all models, one mini-batch
    thetas = {  # (models, ...) by parameter name
        name: parameter.detach().expand(models, *parameter.shape).clone()
        for name, parameter in network.named_parameters()
    }

    def take_step(features: Any, labels: Any) -> None:
        """Trains all models for one step on a mini-batch, with different noise for each model."""
        sums = clipped_sums(thetas, features, labels)
        for name, theta in thetas.items():
            noisy = sums[name].add_(torch.randn_like(theta), alpha=noise_deviation)
            theta.sub_(noisy, alpha=rate)

    # These views change with `thetas`. A test reads them.
    first_model = [theta[0] for theta in thetas.values()]
    return _train_in_torch(problem, models, first_model, take_step)


ENGINES = {
    OURS: Engine("jax", make_ours, model_counts=(1,)),
    "jax_privacy": Engine("jax-privacy", make_jax_privacy, one_thread=True),
    "opacus": Engine("opacus", make_opacus, model_counts=(1,), one_thread=True),
    "torch_func": Engine("torch", make_torch_func),
}


def measure(
    model: str,
    engines: Sequence[str],
    rounds: int,
    user_file: UserFile,
) -> list[Record]:
    """Times engines on a model, with a progress bar.

    `model` is a key of `MODELS`, and `engines` are keys of `ENGINES`. In each round, the engines are timed
    one after another.

    Returns:
      A record for each engine: the `model`, the `engine`, and its `rates` (steps per second in each round,
      summed over copies and processes).

    Raises:
      InputError: The data cannot be read, or an engine fails.
    """
    # With `processes` above 1, another process starts JAX and creates the problem.
    [(_, problem)] = as_completed(partial(make_problem, user_file=user_file), [model], processes=2)
    records: list[Record] = []
    teams = []  # the connections to each engine's processes
    with contextlib.ExitStack() as stack:
        for name in engines:
            team = [stack.enter_context(_start_engine(name, problem))]
            [device] = _receive(name, team)  # an engine sends its device when ready
            if ENGINES[name].one_thread and device == "cpu":
                for _ in range(cores() - 1):
                    team.append(stack.enter_context(_start_engine(name, problem)))
                _receive(name, team[1:])  # waits for the others
            records.append({"model": model, "engine": name, "rates": []})
            teams.append(team)
        for _ in trange(rounds, desc=model, leave=False):
            for record, team in zip(records, teams, strict=True):
                for connection in team:  # the engine's processes train at the same time
                    connection.send(_ROUND_SECONDS)
                record["rates"].append(sum(_receive(record["engine"], team)))
    return records


def _start_engine(name: str, problem: Problem) -> Connection:
    """Starts an engine's process, which runs `_serve`, and returns the connection to it.

    The process ends when the connection is closed.
    """
    connection, their_end = _SPAWN.Pipe()
    process = _SPAWN.Process(target=_serve, args=(name, problem, their_end), daemon=True)
    process.start()
    their_end.close()  # so `recv` fails if the process dies
    return connection


def _serve(name: str, problem: Problem, connection: Connection) -> None:
    """Prepares an engine in this process, sends its device kind, and then answers requests.

    A request is a number of seconds, and the answer is the training rate over that time (`measure_rate`).
    """
    # Ctrl-C stops the command, which then ends the engines.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    engine = ENGINES[name]
    if engine.package.startswith("jax"):
        prepare_jax(cpu_devices=int(engine.one_thread))  # 1, or 0 for one per core
    training = find_fastest(engine, problem)
    connection.send(training.device)
    with contextlib.suppress(EOFError):  # raised when the command closes the connection
        while True:
            seconds = connection.recv()
            connection.send(measure_rate(training, seconds))


def _receive(name: str, team: Sequence[Connection]) -> list[Any]:
    """Returns the next message from each of an engine's processes; raises InputError if one has failed."""
    try:
        return [connection.recv() for connection in team]
    except EOFError:
        raise InputError(f"{name} failed, see its error above: remove it from --engines") from None


def make_table(timings: Records) -> Table[Record]:
    """Returns a table with a row for each record of `measure`.

    It adds the median rate to each record. If our engine was timed on the same model, it also adds `ratios`:
    our rate divided by the engine's in each round. Both rates are from the same round because a busy machine
    slows down all engines.
    """
    for record in timings:
        rates = record["rates"]
        record["model_steps_per_second"] = statistics.median(rates)
        for ours in select(timings, model=record["model"], engine=OURS):
            if record is not ours:
                record["ratios"] = np.divide(ours["rates"], rates).tolist()
    columns = (
        field("model", "model", left=True),
        field("engine", "engine", width=11, left=True),
        field("model_steps_per_second", "model-steps/s", _show_rate),
        field("ratios", "ours is faster by", _show_ratios, left=True),
    )
    return Table(columns, timings)


def _show_ratios(ratios: list[float]) -> str:
    """Formats the median, smallest and largest ratio over the rounds."""
    median = _show_rate(statistics.median(ratios))
    return f"{median} ({_show_rate(min(ratios))} to {_show_rate(max(ratios))})"


def _show_rate(value: float) -> str:
    """Formats a rate or ratio with three significant digits, or as an integer if it is at least 100."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
