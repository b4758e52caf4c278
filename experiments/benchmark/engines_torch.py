"""Builds the engines that `throughput` times in PyTorch: Opacus and a vectorised step with torch.func."""

import itertools
import warnings
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from experiments.benchmark.engines_jax import Engine, Problem, Run, find_fastest
from models.data.images import CIFAR10_MEAN, CIFAR10_STD

Batch = tuple[Tensor, Tensor]  # features (B, ...), labels (B,)

_ON_CPU = not torch.cuda.is_available()
_DEVICE = torch.device("cpu" if _ON_CPU else "cuda")
_DEVICE_NAME = "cpu" if _ON_CPU else torch.cuda.get_device_name()


# PyTorch's axes in terms of Flax's, by the number of axes of a parameter.
_TORCH_AXES = {1: (0,), 2: (1, 0), 4: (3, 2, 0, 1)}


def _synchronize() -> None:
    """Waits until the GPU has finished all work."""
    if not _ON_CPU:
        torch.cuda.synchronize()


def _make_fcnn() -> nn.Module:
    """Returns `models.dense.FCNN` in PyTorch."""
    return nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2))


def _make_convnet() -> nn.Module:
    """Returns `models.convolutional.ConvNet` in PyTorch."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


class _Block(nn.Module):
    """The residual block of `models.convolutional`, in PyTorch."""

    def __init__(self, channels: int, features: int, stride: int) -> None:
        """Makes a block: two 3x3 convolutions next to a shortcut."""
        super().__init__()
        self.body = nn.Sequential(
            *_make_normed(channels, features, 3, stride),
            nn.ReLU(),
            *_make_normed(features, features, 3, 1),
        )
        self.shortcut: nn.Module = nn.Identity()
        if channels != features or stride != 1:
            self.shortcut = nn.Sequential(*_make_normed(channels, features, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, channels, H, W) to (B, features, H / stride, W / stride)."""
        return torch.relu(self.shortcut(x) + self.body(x))


def _make_normed(
    channels: int, features: int, window: int, stride: int
) -> tuple[nn.Module, nn.Module]:
    """Returns a padded convolution without bias, and the group normalisation that follows it."""
    padding = (window - 1) // 2
    convolution = nn.Conv2d(channels, features, window, stride, padding, bias=False)
    return convolution, nn.GroupNorm(32, features, eps=1e-6)  # as Flax's by default


def _make_resnet18() -> nn.Module:
    """Returns the ResNet18 of `models.convolutional.ResNet` in PyTorch."""
    blocks = []
    channels = 64
    for features, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        blocks.append(_Block(channels, features, stride))
        blocks.append(_Block(features, features, 1))
        channels = features
    pool = nn.AdaptiveAvgPool2d(1)
    stem = _make_normed(3, 64, 3, 1)
    return nn.Sequential(*stem, nn.ReLU(), *blocks, pool, nn.Flatten(), nn.Linear(512, 10))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "fcnn": _make_fcnn,
    "convnet": _make_convnet,
    "resnet18": _make_resnet18,
}


def _list_positions(problem: Problem) -> list[np.ndarray]:
    """Returns where the entries of each of the network's parameters are in theta, in PyTorch's shapes.

    Flax's kernels are (in, out) in dense layers and (height, width, in, out) in convolutions; PyTorch's are
    (out, in) and (out, in, height, width).
    """
    return [places.transpose(_TORCH_AXES[places.ndim]) for places in problem.places]


def _make_network(problem: Problem) -> nn.Module:
    """Returns the problem's network, with the parameters theta_0."""
    network = NETWORKS[problem.setting.model]().to(_DEVICE)
    with torch.no_grad():
        for parameter, places in zip(network.parameters(), _list_positions(problem), strict=True):
            parameter.copy_(torch.tensor(problem.theta_0[places]))
    return network


def _measure_distance(problem: Problem, parameters: list[Tensor]) -> float:
    """Returns the Euclidean distance between parameters and those after our step."""
    theta = np.empty_like(problem.stepped)
    for parameter, places in zip(parameters, _list_positions(problem), strict=True):
        theta[places] = parameter.detach().cpu().numpy()
    return float(np.linalg.norm(theta - problem.stepped))


def _cycle_batches(problem: Problem) -> Iterator[Batch]:
    """Yields the problem's mini-batches over and over, with CIFAR-10's images normalised."""
    features = torch.tensor(problem.features, device=_DEVICE)
    labels = torch.tensor(problem.labels, device=_DEVICE).long()
    mean = torch.tensor(CIFAR10_MEAN, device=_DEVICE).reshape(1, 3, 1, 1)
    deviation = torch.tensor(CIFAR10_STD, device=_DEVICE).reshape(1, 3, 1, 1)
    are_images = features.ndim == 4
    if are_images:
        features = features.permute(0, 3, 1, 2).contiguous()
    for indices in itertools.cycle(torch.tensor(problem.batches, device=_DEVICE)):
        batch = features[indices]
        if are_images:
            batch = (batch.float() / 255 - mean) / deviation
        yield batch, labels[indices]


def opacus(problem: Problem) -> Engine:
    """Builds the engine of Opacus: GradSampleModule and DPOptimizer train a model in one thread."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    warnings.filterwarnings("ignore", "Full backward hook")  # which Opacus sets itself
    torch.set_num_threads(1)
    fields = problem.setting.mechanism

    def prepare(rate: float, sigma: float) -> tuple[nn.Module, Callable[[Batch], None]]:
        """Returns a network at theta_0, and the function that trains it by a step on a mini-batch."""
        module = GradSampleModule(_make_network(problem))
        optimizer = DPOptimizer(
            torch.optim.SGD(module.parameters(), rate),
            noise_multiplier=sigma,
            max_grad_norm=fields.clipping_norm,
            expected_batch_size=fields.batch_size,
        )

        def step(batch: Batch) -> None:
            features, labels = batch
            optimizer.zero_grad()
            cross_entropy(module(features), labels).backward()
            optimizer.step()

        return module, step

    module, noiseless_step = prepare(rate=1.0, sigma=0.0)
    noiseless_step(next(_cycle_batches(problem)))
    distance = _measure_distance(problem, list(module.parameters()))

    _, step = prepare(fields.learning_rate, fields.noise_multiplier)
    batches = _cycle_batches(problem)

    def run() -> int:
        """Takes a step."""
        step(next(batches))
        _synchronize()
        return 1

    return Engine(run, 1, _DEVICE_NAME, distance)


def torch_func(problem: Problem) -> Engine:
    """Builds the engine of torch.func: DP-SGD of several models at once, by per-example gradients.

    It uses all cores, or the GPU. All models take the same mini-batches, each with its own noise.
    """
    network = _make_network(problem)
    theta_0 = list(network.parameters())
    fields = problem.setting.mechanism
    clipped_sum = _make_clipped_sum(network, fields.clipping_norm)
    clipped_sums = torch.func.vmap(clipped_sum, (0, None, None))  # each model has its parameters

    def step(thetas: list[Tensor], batch: Batch, rate: float, sigma: float) -> None:
        """Takes a step with all models, in place; a parameter's tensor has a leading axis of models."""
        features, labels = batch
        sums = clipped_sums(tuple(thetas), features, labels)
        for theta, total in zip(thetas, sums, strict=True):
            noisy = total.add_(torch.randn_like(total), alpha=sigma * fields.clipping_norm)
            theta.sub_(noisy, alpha=rate / fields.batch_size)

    def start(models: int) -> list[Tensor]:
        """Returns so many copies of theta_0, along a leading axis of each parameter's tensor."""
        return [theta.detach().expand(models, *theta.shape).clone() for theta in theta_0]

    def build_run(models: int) -> Run:
        thetas = start(models)
        batches = _cycle_batches(problem)

        def run() -> int:
            """Takes a step with all models."""
            step(thetas, next(batches), fields.learning_rate, fields.noise_multiplier)
            _synchronize()
            return models

        return run

    stepped = start(1)
    step(stepped, next(_cycle_batches(problem)), rate=1.0, sigma=0.0)
    distance = _measure_distance(problem, [theta[0] for theta in stepped])
    models, run = find_fastest(build_run, problem, devices=1, on_cpu=_ON_CPU)
    return Engine(run, models, _DEVICE_NAME, distance)


def _make_clipped_sum(network: nn.Module, norm: float) -> Callable[..., list[Tensor]]:
    """Returns a function (theta, features, labels) -> the sum of the examples' gradients, clipped to `norm`.

    theta and the sum have a tensor for each parameter.
    """
    names = [name for name, _ in network.named_parameters()]

    def loss(theta: tuple[Tensor, ...], features: Tensor, label: Tensor) -> Tensor:
        parameters = dict(zip(names, theta, strict=True))
        logits = torch.func.functional_call(network, parameters, (features[None],))
        return cross_entropy(logits, label[None])

    per_example_gradients = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))

    def clipped_sum(theta: tuple[Tensor, ...], features: Tensor, labels: Tensor) -> list[Tensor]:
        gradients = per_example_gradients(theta, features, labels)
        # (B,), over all parameters together.
        squared_norms = sum(part.flatten(1).square().sum(1) for part in gradients)
        factors = (norm / torch.sqrt(squared_norms)).clamp(max=1.0)
        return [torch.tensordot(factors, part, 1) for part in gradients]

    return clipped_sum
