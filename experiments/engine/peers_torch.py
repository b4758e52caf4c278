"""The engines that `throughput` times in PyTorch: Opacus, one vectorised step with torch.func, and a loop
over clients."""

import copy
import itertools
import warnings
from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from experiments.engine.engines import CHECKED_STEPS, About, Engine, FederatedProblem, Problem, Run, fastest
from models.data.images import CIFAR10_MEAN, CIFAR10_STD, FASHION_MNIST_MEAN, FASHION_MNIST_STD

_DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
_synchronize = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
_PLATFORM = "gpu" if _DEVICE.type == "cuda" else "cpu"


def _convolutional(channels: int, flat: int) -> nn.Module:
    first, second = nn.Conv2d(channels, 6, 5), nn.Conv2d(6, 16, 5)
    pooled = (first, nn.ReLU(), nn.MaxPool2d(2), second, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    dense = (nn.Linear(flat, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))
    return nn.Sequential(*pooled, *dense)


class _Block(nn.Module):
    """models.convolutional's block."""

    def __init__(self, channels: int, features: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_normed(channels, features, 3, stride), nn.ReLU(), *_normed(features, features, 3, 1)
        )
        same = channels == features and stride == 1
        self.shortcut = nn.Identity() if same else nn.Sequential(*_normed(channels, features, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, H, W) -> (B, features, H / stride, W / stride)."""
        return torch.relu(self.shortcut(x) + self.body(x))


def _normed(channels: int, features: int, window: int, stride: int) -> tuple[nn.Module, nn.Module]:
    convolution = nn.Conv2d(channels, features, window, stride, (window - 1) // 2, bias=False)
    return convolution, nn.GroupNorm(32, features, eps=1e-6)


def _resnet18() -> nn.Module:
    widths = (64, 64, 128, 256, 512)
    blocks = [
        _Block(*pair, 1 if stage == 0 else 2) if first else _Block(pair[1], pair[1], 1)
        for stage, pair in enumerate(itertools.pairwise(widths))
        for first in (True, False)
    ]
    pooled = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)
    return nn.Sequential(*_normed(3, 64, 3, 1), nn.ReLU(), *blocks, *pooled)


NETWORKS: dict[str, Callable[[], nn.Module]] = {  # of pixels that are normalised already
    "fcnn": lambda: nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2)),
    "convnet": lambda: _convolutional(3, 400),
    "resnet18": _resnet18,
    "lenet": lambda: _convolutional(1, 256),
}


def _positions(problem: Problem | FederatedProblem) -> list[NDArray[np.int64]]:
    """Where each parameter's numbers stand in theta; the ConvNets flatten images channels first, as ours."""
    positions = []
    for kernel, *bias in problem.layout:  # (height, width, in, out), (in, out) or (out,)
        positions += [kernel.transpose(3, 2, 0, 1) if kernel.ndim == 4 else kernel.T, *bias]
    return positions


def _network(problem: Problem | FederatedProblem) -> nn.Module:
    network = NETWORKS[problem.setting.model]().to(_DEVICE)
    with torch.no_grad():
        for parameter, where in zip(network.parameters(), _positions(problem), strict=True):
            parameter.copy_(torch.tensor(problem.theta_0[where]))
    return network


def _distance(problem: Problem | FederatedProblem, parameters: list[Tensor]) -> float:
    theta = np.empty_like(problem.stepped)
    for parameter, where in zip(parameters, _positions(problem), strict=True):
        theta[where] = parameter.detach().cpu().numpy()
    return float(np.linalg.norm(theta - problem.stepped))


def _batches(problem: Problem) -> Iterator[tuple[Tensor, Tensor]]:
    """Normalised mini-batches from the first on, over and over."""
    features = torch.tensor(problem.features, device=_DEVICE)
    labels = torch.tensor(problem.labels, device=_DEVICE).long()
    shape = (1, 3, 1, 1)
    mean, deviation = (torch.tensor(v, device=_DEVICE).reshape(shape) for v in (CIFAR10_MEAN, CIFAR10_STD))
    if images := features.dtype == torch.uint8:
        features = features.permute(0, 3, 1, 2).contiguous()
    for indices in itertools.cycle(torch.tensor(problem.batches, device=_DEVICE)):
        chosen = features[indices]
        yield (chosen.float() / 255 - mean) / deviation if images else chosen, labels[indices]


def opacus(problem: Problem) -> Engine:
    """Opacus's GradSampleModule and DPOptimizer, one model and one thread."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    warnings.filterwarnings("ignore", "Full backward hook")  # which Opacus sets itself
    torch.set_num_threads(1)
    fields = problem.setting.mechanism

    def prepare(rate: float, sigma: float) -> tuple[nn.Module, Callable[[tuple[Tensor, Tensor]], None]]:
        module = GradSampleModule(_network(problem))
        optimizer = DPOptimizer(
            torch.optim.SGD(module.parameters(), rate),
            noise_multiplier=sigma,
            max_grad_norm=fields.clipping_norm,
            expected_batch_size=fields.batch_size,
        )

        def step(batch: tuple[Tensor, Tensor]) -> None:
            optimizer.zero_grad()
            cross_entropy(module(batch[0]), batch[1]).backward()
            optimizer.step()

        return module, step

    module, step = prepare(1.0, 0.0)
    step(next(_batches(problem)))
    distance = _distance(problem, list(module.parameters()))
    _, noisy = prepare(fields.learning_rate, fields.noise_multiplier)
    batches = _batches(problem)

    def run() -> int:
        noisy(next(batches))
        _synchronize()
        return 1

    return _engine(run, 1, distance)


def torch_func(problem: Problem, models: int = 0) -> Engine:
    """Per-example gradients by torch.func, of so many models at once (0: the fastest), on all cores."""
    network = _network(problem)
    names, theta_0 = zip(*network.named_parameters(), strict=True)
    fields = problem.setting.mechanism
    norm, size = fields.clipping_norm, fields.batch_size

    def loss(theta: tuple[Tensor, ...], features: Tensor, label: Tensor) -> Tensor:
        named = dict(zip(names, theta, strict=True))
        return cross_entropy(torch.func.functional_call(network, named, (features[None],)), label[None])

    per_example = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))

    def clipped_sum(theta: tuple[Tensor, ...], features: Tensor, labels: Tensor) -> list[Tensor]:
        gradients = per_example(theta, features, labels)
        squares = sum(g.flatten(1).square().sum(1) for g in gradients)
        factors = (norm / torch.sqrt(squares)).clamp(max=1.0)
        return [torch.tensordot(factors, g, 1) for g in gradients]

    of_many = torch.func.vmap(clipped_sum, (0, None, None))

    def step(thetas: list[Tensor], batch: tuple[Tensor, Tensor], rate: float, sigma: float) -> None:
        """Updates the models' parameters, each with a leading axis of models, in place."""
        for theta, gradient in zip(thetas, of_many(tuple(thetas), *batch), strict=True):
            noise = torch.randn_like(gradient)
            theta.sub_(gradient.add_(noise, alpha=sigma * norm), alpha=rate / size)

    def start(models: int) -> list[Tensor]:
        return [theta.detach().expand(models, *theta.shape).clone() for theta in theta_0]

    def build(models: int) -> Run:
        thetas, batches = start(models), _batches(problem)

        def run() -> int:
            step(thetas, next(batches), fields.learning_rate, fields.noise_multiplier)
            _synchronize()
            return models

        return run

    stepped = start(1)
    step(stepped, next(_batches(problem)), 1.0, 0.0)
    models, run = fastest(build, [models] if models else problem.models_to_try(_PLATFORM))
    return _engine(run, models, _distance(problem, [theta[0] for theta in stepped]))


class _ClientLoop:
    """DP-FedAvg as a loop over a cohort's clients, each of which trains a copy of the server's model."""

    def __init__(self, problem: FederatedProblem) -> None:
        self._problem = problem
        self.network = _network(problem)
        pixels = torch.tensor(problem.features, device=_DEVICE).float() / 255
        self._images = ((pixels - FASHION_MNIST_MEAN) / FASHION_MNIST_STD)[:, None]
        self._labels = torch.tensor(problem.labels, device=_DEVICE).long()

    def mean(self, cohort: NDArray[np.int32], batch_size: int, epochs: int, noise: float) -> list[Tensor]:
        """The mean of the clients' clipped updates and of noise of such a deviation on their sum."""
        sums = [noise * torch.randn_like(parameter) for parameter in self.network.parameters()]
        for client in cohort:
            self._add_update(sums, int(client), batch_size, epochs)
        return [total / len(cohort) for total in sums]

    def _add_update(self, sums: list[Tensor], client: int, batch_size: int, epochs: int) -> None:
        local = copy.deepcopy(self.network)
        optimizer = torch.optim.SGD(local.parameters(), self._problem.setting.client_learning_rate)
        start, count = int(self._problem.starts[client]), int(self._problem.counts[client])
        for _ in range(epochs):
            shuffle = torch.randperm if batch_size < count else torch.arange
            for rows in (start + shuffle(count, device=_DEVICE)).split(batch_size):
                optimizer.zero_grad()
                cross_entropy(local(self._images[rows]), self._labels[rows]).backward()
                optimizer.step()
        with torch.no_grad():
            pairs = zip(self.network.parameters(), local.parameters(), strict=True)
            update = [before - after for before, after in pairs]
            norm = torch.sqrt(sum(part.square().sum() for part in update))
            factor = (self._problem.setting.clipping_norm / norm).clamp(max=1.0)
            for total, part in zip(sums, update, strict=True):
                total.addcmul_(part, factor)


def torch_loop(problem: FederatedProblem) -> Engine:
    """A loop over clients, one model and one thread."""
    torch.set_num_threads(1)
    setting, loop = problem.setting, _ClientLoop(problem)
    parameters = list(loop.network.parameters())
    whole = loop.mean(problem.cohorts[0], int(problem.counts.max()), CHECKED_STEPS, 0.0)
    stepped = [parameter.detach() - part for parameter, part in zip(parameters, whole, strict=True)]
    server = torch.optim.SGD(parameters, setting.learning_rate, momentum=setting.momentum)
    cohorts = itertools.cycle(problem.cohorts)
    noise = setting.noise_multiplier * setting.clipping_norm

    def run() -> int:
        cohort = next(cohorts)
        for parameter, part in zip(parameters, loop.mean(cohort, setting.batch_size, 1, noise), strict=True):
            parameter.grad = part
        server.step()
        _synchronize()
        return len(cohort)

    return _engine(run, 1, _distance(problem, stepped))


def _engine(run: Run, models: int, distance: float) -> Engine:
    if _PLATFORM == "cpu":
        return Engine(About(models, "cpu", "cpu", distance), run)
    about = About(models, "gpu", torch.cuda.get_device_name(), distance)
    return Engine(about, run, torch.cuda.max_memory_allocated)
