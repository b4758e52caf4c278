"""The engines that `throughput` times in PyTorch.

They are Opacus, a vectorised step with torch.func, and a loop over clients.
"""

import copy
import itertools
import warnings
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from audit.errors import require
from experiments.engine.engines import (
    CHECKED_STEPS,
    About,
    Engine,
    FederatedProblem,
    Problem,
    Run,
    find_fastest,
)
from models.data.images import CIFAR10_MEAN, CIFAR10_STD, FASHION_MNIST_MEAN, FASHION_MNIST_STD

Batch = tuple[Tensor, Tensor]  # features (B, ...), labels (B,)
Step = Callable[[Batch], None]  # takes a step on a mini-batch

_ON_GPU = torch.cuda.is_available()
_DEVICE = torch.device("cuda" if _ON_GPU else "cpu")


def _synchronize() -> None:
    """Waits until a GPU has done what it was given."""
    if _ON_GPU:
        torch.cuda.synchronize()


def _make_convolutional(channels: int, flat: int) -> nn.Module:
    """Returns a network of two 5x5 convolutions and three dense layers: the ConvNet or LeNet.

    Args:
      channels: Of an image: 3 for the ConvNet, 1 for LeNet.
      flat: How many numbers come out of the convolutions.
    """
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(flat, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


def _make_fcnn() -> nn.Module:
    """Returns `models.dense.FCNN` in PyTorch: 8 -> 6 -> 2 with ReLU."""
    return nn.Sequential(
        nn.Linear(8, 6),
        nn.ReLU(),
        nn.Linear(6, 2),
    )


class _Block(nn.Module):
    """The residual block of `models.convolutional`, in PyTorch."""

    def __init__(self, channels: int, features: int, stride: int) -> None:
        """Makes a block from `channels` to `features` channels."""
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
    """Returns a square convolution, padded to keep the size at stride 1, and its group normalisation.

    Args:
      channels: Of the input.
      features: Channels of the output.
      window: The side of the square, odd.
      stride: In pixels.
    """
    padding = (window - 1) // 2
    convolution = nn.Conv2d(channels, features, window, stride, padding, bias=False)
    return convolution, nn.GroupNorm(32, features, eps=1e-6)  # Flax's epsilon


def _make_resnet18() -> nn.Module:
    """Returns `models.convolutional.ResNet` in PyTorch, in its form for CIFAR-10."""
    blocks = []
    channels = 64
    for features in (64, 128, 256, 512):
        stride = 1 if features == 64 else 2
        blocks.append(_Block(channels, features, stride))
        blocks.append(_Block(features, features, 1))
        channels = features
    return nn.Sequential(
        *_make_normed(3, 64, 3, 1),
        nn.ReLU(),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, 10),
    )


NETWORKS: dict[str, Callable[[], nn.Module]] = {  # of pixels that are normalised already
    "fcnn": _make_fcnn,
    "convnet": partial(_make_convolutional, 3, 400),
    "resnet18": _make_resnet18,
    "lenet": partial(_make_convolutional, 1, 256),
}


def _list_positions(problem: Problem | FederatedProblem) -> list[NDArray[np.int64]]:
    """Returns, for each parameter in PyTorch's order, where in theta its numbers stand, in its shape.

    Dense kernels are (out, in) and convolutions' (out, in, height, width) in PyTorch. Both frameworks'
    networks flatten images channels first.
    """
    positions = []
    for kernel, *bias in problem.layout:  # (height, width, in, out), (in, out) or (out,)
        if kernel.ndim == 4:
            positions.append(kernel.transpose(3, 2, 0, 1))
        else:
            positions.append(kernel.T)
        positions.extend(bias)
    return positions


def _make_network(problem: Problem | FederatedProblem) -> nn.Module:
    """Returns the problem's network at theta_0."""
    network = NETWORKS[problem.setting.model]().to(_DEVICE)
    with torch.no_grad():
        for parameter, indices in zip(network.parameters(), _list_positions(problem), strict=True):
            parameter.copy_(torch.tensor(problem.theta_0[indices]))
    return network


def _measure_distance(problem: Problem | FederatedProblem, parameters: list[Tensor]) -> float:
    """Returns the Euclidean distance of a network's parameters from theta after our step."""
    theta = np.empty_like(problem.stepped)
    for parameter, indices in zip(parameters, _list_positions(problem), strict=True):
        theta[indices] = parameter.detach().cpu().numpy()
    return float(np.linalg.norm(theta - problem.stepped))


def _cycle_batches(problem: Problem) -> Iterator[Batch]:
    """Yields the problem's mini-batches over and over.

    Features in uint8 are taken for pixels of CIFAR-10: they are normalised by its mean and deviation, with
    channels first. Other features stay as they are.

    Raises:
      InputError: Images that do not have CIFAR-10's three channels.
    """
    features = torch.tensor(problem.features, device=_DEVICE)
    labels = torch.tensor(problem.labels, device=_DEVICE).long()
    mean = torch.tensor(CIFAR10_MEAN, device=_DEVICE).reshape(1, 3, 1, 1)
    deviation = torch.tensor(CIFAR10_STD, device=_DEVICE).reshape(1, 3, 1, 1)
    are_images = features.dtype == torch.uint8
    if are_images:
        channels = features.shape[-1]
        require(channels == 3, f"images of {channels} channels: give CIFAR-10's, which have 3")
        features = features.permute(0, 3, 1, 2).contiguous()
    for indices in itertools.cycle(torch.tensor(problem.batches, device=_DEVICE)):
        batch = features[indices]
        if are_images:
            batch = (batch.float() / 255 - mean) / deviation
        yield batch, labels[indices]


def opacus(problem: Problem) -> Engine:
    """Builds DP-SGD by Opacus's GradSampleModule and DPOptimizer, with one model and one thread."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    warnings.filterwarnings("ignore", "Full backward hook")  # which Opacus sets itself
    torch.set_num_threads(1)
    fields = problem.setting.mechanism

    def prepare(rate: float, sigma: float) -> tuple[nn.Module, Step]:
        """Returns a model at theta_0, and what takes a step of it on a mini-batch.

        Args:
          rate: The learning rate.
          sigma: The noise multiplier.
        """
        module = GradSampleModule(_make_network(problem))
        optimizer = DPOptimizer(
            torch.optim.SGD(module.parameters(), rate),
            noise_multiplier=sigma,
            max_grad_norm=fields.clipping_norm,
            expected_batch_size=fields.batch_size,
        )

        def step(batch: Batch) -> None:
            """Takes a step on a mini-batch."""
            features, labels = batch
            optimizer.zero_grad()
            loss = cross_entropy(module(features), labels)
            loss.backward()
            optimizer.step()

        return module, step

    module, noiseless_step = prepare(rate=1.0, sigma=0.0)
    first_batch = next(_cycle_batches(problem))
    noiseless_step(first_batch)
    distance = _measure_distance(problem, list(module.parameters()))

    _, step = prepare(fields.learning_rate, fields.noise_multiplier)
    batches = _cycle_batches(problem)

    def run() -> int:
        step(next(batches))
        _synchronize()
        return 1

    return _make_engine(run, 1, distance)


def torch_func(problem: Problem, models: int = 0) -> Engine:
    """Builds DP-SGD of several models at once by torch.func's per-example gradients, on all cores.

    Args:
      problem: What is trained.
      models: At once; 0: the number that is fastest.
    """
    network = _make_network(problem)
    theta_0 = list(network.parameters())
    fields = problem.setting.mechanism
    clipped_sum = _make_clipped_sum(network, fields.clipping_norm)
    clipped_sums = torch.func.vmap(clipped_sum, (0, None, None))

    def step(thetas: list[Tensor], batch: Batch, rate: float, sigma: float) -> None:
        """Takes a step of all models in place.

        Args:
          thetas: The models' parameters, each with a leading axis of models.
          batch: The mini-batch.
          rate: The learning rate.
          sigma: The noise multiplier.
        """
        features, labels = batch
        sums = clipped_sums(tuple(thetas), features, labels)
        for theta, total in zip(thetas, sums, strict=True):
            noise = torch.randn_like(total)
            noisy = total.add_(noise, alpha=sigma * fields.clipping_norm)
            theta.sub_(noisy, alpha=rate / fields.batch_size)

    def start(models: int) -> list[Tensor]:
        """Returns theta_0's parts, each with a leading axis of models."""
        copies = []
        for theta in theta_0:
            repeated = theta.detach().expand(models, *theta.shape)
            copies.append(repeated.clone())
        return copies

    def build_run(models: int) -> Run:
        """Returns a function that takes a step of so many models on the next mini-batch."""
        thetas = start(models)
        batches = _cycle_batches(problem)

        def run() -> int:
            step(thetas, next(batches), fields.learning_rate, fields.noise_multiplier)
            _synchronize()
            return models

        return run

    stepped = start(1)
    first_batch = next(_cycle_batches(problem))
    step(stepped, first_batch, rate=1.0, sigma=0.0)
    distance = _measure_distance(problem, [theta[0] for theta in stepped])

    counts = [models] if models else problem.models_to_try(_find_platform())
    models, run = find_fastest(build_run, counts)
    return _make_engine(run, models, distance)


def _make_clipped_sum(network: nn.Module, norm: float) -> Callable[..., list[Tensor]]:
    """Returns (parameters, features, labels) -> the sum of the examples' clipped gradients, by parameter.

    Args:
      network: Whose parameters they are.
      norm: C.
    """
    names = [name for name, _ in network.named_parameters()]

    def loss(theta: tuple[Tensor, ...], features: Tensor, label: Tensor) -> Tensor:
        parameters = dict(zip(names, theta, strict=True))
        logits = torch.func.functional_call(network, parameters, (features[None],))
        return cross_entropy(logits, label[None])

    gradient = torch.func.grad(loss)
    per_example_gradients = torch.func.vmap(gradient, (None, 0, 0))

    def clipped_sum(theta: tuple[Tensor, ...], features: Tensor, labels: Tensor) -> list[Tensor]:
        gradients = per_example_gradients(theta, features, labels)
        squared_norms = sum(part.flatten(1).square().sum(1) for part in gradients)
        factors = (norm / torch.sqrt(squared_norms)).clamp(max=1.0)
        return [torch.tensordot(factors, part, 1) for part in gradients]

    return clipped_sum


class _ClientLoop:
    """DP-FedAvg as a loop over a cohort's clients, each of which trains a copy of the server's model."""

    def __init__(self, problem: FederatedProblem) -> None:
        """Puts the normalised images on the device, beside the server's model at theta_0."""
        self._problem = problem
        self.network = _make_network(problem)
        pixels = torch.tensor(problem.features, device=_DEVICE).float() / 255
        self._images = ((pixels - FASHION_MNIST_MEAN) / FASHION_MNIST_STD)[:, None]
        self._labels = torch.tensor(problem.labels, device=_DEVICE).long()

    def mean_update(
        self, cohort: NDArray[np.int32], batch_size: int, epochs: int, deviation: float
    ) -> list[Tensor]:
        """Returns the mean of the clients' clipped updates, a tensor for each parameter.

        Args:
          cohort: The clients (W,).
          batch_size: Of a client's SGD.
          epochs: Of a client's SGD.
          deviation: Of the noise on the updates' sum.
        """
        sums = []
        for parameter in self.network.parameters():
            sums.append(deviation * torch.randn_like(parameter))
        for client in cohort:
            self._add_update(sums, int(client), batch_size, epochs)
        return [total / len(cohort) for total in sums]

    def _add_update(self, sums: list[Tensor], client: int, batch_size: int, epochs: int) -> None:
        """Trains a client, and adds its clipped update to the sums, a tensor for each parameter, in place.

        The update is the server's model less the client's trained model, clipped to C over all parameters.
        """
        local = self._train_client(client, batch_size, epochs)
        with torch.no_grad():
            update = []
            pairs = zip(self.network.parameters(), local.parameters(), strict=True)
            for before, after in pairs:
                update.append(before - after)
            norm = torch.sqrt(sum(part.square().sum() for part in update))
            factor = (self._problem.setting.clipping_norm / norm).clamp(max=1.0)
            for total, part in zip(sums, update, strict=True):
                total.addcmul_(part, factor)

    def _train_client(self, client: int, batch_size: int, epochs: int) -> nn.Module:
        """Returns a copy of the server's model, trained by SGD on the client's examples.

        A client whose examples fit into a mini-batch takes them in order, others shuffle them each epoch.
        """
        local = copy.deepcopy(self.network)
        learning_rate = self._problem.setting.client_learning_rate
        optimizer = torch.optim.SGD(local.parameters(), learning_rate)
        start = int(self._problem.starts[client])
        count = int(self._problem.counts[client])
        for _ in range(epochs):
            if batch_size < count:
                order = torch.randperm(count, device=_DEVICE)
            else:
                order = torch.arange(count, device=_DEVICE)
            for rows in (start + order).split(batch_size):
                optimizer.zero_grad()
                logits = local(self._images[rows])
                loss = cross_entropy(logits, self._labels[rows])
                loss.backward()
                optimizer.step()
        return local


def torch_loop(problem: FederatedProblem) -> Engine:
    """Builds DP-FedAvg as a loop over clients, with one model and one thread."""
    torch.set_num_threads(1)
    setting = problem.setting
    loop = _ClientLoop(problem)
    parameters = list(loop.network.parameters())

    # The round by which engines are compared: a client's batch is all of its examples.
    whole = int(problem.counts.max())
    noiseless = loop.mean_update(problem.cohorts[0], whole, CHECKED_STEPS, deviation=0.0)
    stepped = []
    for parameter, part in zip(parameters, noiseless, strict=True):
        stepped.append(parameter.detach() - part)
    distance = _measure_distance(problem, stepped)

    server = torch.optim.SGD(parameters, setting.learning_rate, momentum=setting.momentum)
    cohorts = itertools.cycle(problem.cohorts)
    deviation = setting.noise_multiplier * setting.clipping_norm

    def run() -> int:
        """Takes a round; returns how many clients took part."""
        cohort = next(cohorts)
        update = loop.mean_update(cohort, setting.batch_size, epochs=1, deviation=deviation)
        for parameter, part in zip(parameters, update, strict=True):
            parameter.grad = part
        server.step()
        _synchronize()
        return len(cohort)

    return _make_engine(run, 1, distance)


def _make_engine(run: Run, models: int, distance: float) -> Engine:
    """Returns an engine on the GPU, or on the CPU where there is none."""
    if not _ON_GPU:
        return Engine(About(models, "cpu", "cpu", distance), run)
    about = About(models, "gpu", torch.cuda.get_device_name(), distance)
    return Engine(about, run, torch.cuda.max_memory_allocated)


def _find_platform() -> str:
    """Returns "gpu" where PyTorch sees a GPU, else "cpu"."""
    return "gpu" if _ON_GPU else "cpu"
