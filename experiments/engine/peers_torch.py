"""Builds the engines that `throughput` times in PyTorch.

For DP-SGD they are Opacus and a vectorised step with torch.func, for DP-FedAvg a loop over clients.
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
    """Waits until the GPU, where there is one, has finished all work."""
    if _ON_GPU:
        torch.cuda.synchronize()


def _make_convolutional(channels: int, flat: int) -> nn.Module:
    """Returns a network of two 5x5 convolutions and three dense layers: the ConvNet or LeNet.

    Args:
      channels: The channels of an image: 3 for the ConvNet, 1 for LeNet.
      flat: The number of values that the convolutions pass to the dense layers.
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
    """Returns `models.dense.FCNN` in PyTorch: 8 inputs, 6 hidden values with ReLU, 2 outputs."""
    return nn.Sequential(
        nn.Linear(8, 6),
        nn.ReLU(),
        nn.Linear(6, 2),
    )


class _Block(nn.Module):
    """The residual block of `models.convolutional`, in PyTorch."""

    def __init__(self, channels: int, features: int, stride: int) -> None:
        """Makes a block: two 3x3 convolutions beside a shortcut.

        Args:
          channels: The number of channels of the input.
          features: The number of channels of the output.
          stride: The stride of the first convolution, by which height and width shrink.
        """
        super().__init__()
        self.body = nn.Sequential(
            *_make_normed(channels, features, 3, stride),
            nn.ReLU(),
            *_make_normed(features, features, 3, 1),
        )
        self.shortcut: nn.Module = nn.Identity()
        # The input is added to the output: where their shapes differ, a 1x1 convolution adapts it.
        if channels != features or stride != 1:
            self.shortcut = nn.Sequential(*_make_normed(channels, features, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, channels, H, W) to (B, features, H / stride, W / stride)."""
        return torch.relu(self.shortcut(x) + self.body(x))


def _make_normed(
    channels: int, features: int, window: int, stride: int
) -> tuple[nn.Module, nn.Module]:
    """Returns a convolution without bias, and the group normalisation that follows it.

    The convolution is padded so that at stride 1 the output is as large as the input.

    Args:
      channels: The number of channels of the input.
      features: The number of channels of the output.
      window: The side of the square kernel, an odd number of pixels.
      stride: The stride in pixels.
    """
    padding = (window - 1) // 2
    convolution = nn.Conv2d(channels, features, window, stride, padding, bias=False)
    return convolution, nn.GroupNorm(32, features, eps=1e-6)  # as Flax's GroupNorm by default


def _make_resnet18() -> nn.Module:
    """Returns the ResNet18 of `models.convolutional.ResNet` for CIFAR-10's images, in PyTorch."""
    blocks = []
    channels = 64
    for features in (64, 128, 256, 512):
        stride = 1 if features == 64 else 2  # each stage after the first halves the sides
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


# By the model's name. Their inputs are normalised images, or the features themselves.
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "fcnn": _make_fcnn,
    "convnet": partial(_make_convolutional, 3, 400),
    "resnet18": _make_resnet18,
    "lenet": partial(_make_convolutional, 1, 256),
}


def _list_positions(problem: Problem | FederatedProblem) -> list[NDArray[np.int64]]:
    """Returns where the entries of each of the network's parameters are in the vector theta.

    There is an index array for each parameter, in PyTorch's order and of PyTorch's shape. Flax's kernels are
    (in, out) in dense layers and (height, width, in, out) in convolutions; PyTorch's are (out, in) and
    (out, in, height, width). The networks of both frameworks flatten images channels first, so that nothing
    else differs.
    """
    positions = []
    for kernel, *bias in problem.layout:  # a normalisation's scale (out,) stands for its kernel
        if kernel.ndim == 4:
            positions.append(kernel.transpose(3, 2, 0, 1))
        else:
            positions.append(kernel.T)  # a scale stays as it is
        positions.extend(bias)
    return positions


def _make_network(problem: Problem | FederatedProblem) -> nn.Module:
    """Returns the problem's network, with the parameters theta_0."""
    network = NETWORKS[problem.setting.model]().to(_DEVICE)
    with torch.no_grad():
        for parameter, indices in zip(network.parameters(), _list_positions(problem), strict=True):
            parameter.copy_(torch.tensor(problem.theta_0[indices]))
    return network


def _measure_distance(problem: Problem | FederatedProblem, parameters: list[Tensor]) -> float:
    """Returns the Euclidean distance between parameters and those after our engine's step (`stepped`).

    Args:
      problem: The problem.
      parameters: The network's parameters after the peer's step, a tensor each.
    """
    theta = np.empty_like(problem.stepped)
    for parameter, indices in zip(parameters, _list_positions(problem), strict=True):
        theta[indices] = parameter.detach().cpu().numpy()
    return float(np.linalg.norm(theta - problem.stepped))


def _cycle_batches(problem: Problem) -> Iterator[Batch]:
    """Yields the problem's mini-batches over and over.

    Features in uint8 are taken for pixels of CIFAR-10: they are normalised by its mean and standard
    deviation, and their channels are moved first. Other features stay as they are.

    Raises:
      InputError: The features are images without CIFAR-10's three channels.
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
    """Builds the engine of Opacus: DP-SGD by its GradSampleModule and DPOptimizer.

    It trains a single model, in one thread.
    """
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    warnings.filterwarnings("ignore", "Full backward hook")  # which Opacus sets itself
    torch.set_num_threads(1)
    fields = problem.setting.mechanism

    def prepare(rate: float, sigma: float) -> tuple[nn.Module, Step]:
        """Returns a network at theta_0, and the function that trains it by a step on a mini-batch.

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

    # The step by which engines are compared: the first mini-batch, without noise, at learning rate 1.
    module, noiseless_step = prepare(rate=1.0, sigma=0.0)
    first_batch = next(_cycle_batches(problem))
    noiseless_step(first_batch)
    distance = _measure_distance(problem, list(module.parameters()))

    _, step = prepare(fields.learning_rate, fields.noise_multiplier)
    batches = _cycle_batches(problem)

    def run() -> int:
        """Takes a step; returns 1, for one model-step."""
        step(next(batches))
        _synchronize()
        return 1

    return _make_engine(run, 1, distance)


def torch_func(problem: Problem, models: int = 0) -> Engine:
    """Builds the engine of torch.func: DP-SGD of several models at once, by per-example gradients.

    It uses all cores, or the GPU. All models take the same mini-batches, with noise of their own.

    Args:
      problem: The problem of DP-SGD.
      models: The number of models to train at once; 0 to find the fastest.
    """
    network = _make_network(problem)
    theta_0 = list(network.parameters())
    fields = problem.setting.mechanism
    clipped_sum = _make_clipped_sum(network, fields.clipping_norm)
    clipped_sums = torch.func.vmap(clipped_sum, (0, None, None))  # parameters are each model's own

    def step(thetas: list[Tensor], batch: Batch, rate: float, sigma: float) -> None:
        """Takes a step with all models, in place.

        Args:
          thetas: The models' parameters, a tensor for each parameter, with a leading axis of models.
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
        """Returns so many copies of theta_0: a tensor for each parameter, with a leading axis of models."""
        copies = []
        for theta in theta_0:
            repeated = theta.detach().expand(models, *theta.shape)
            copies.append(repeated.clone())
        return copies

    def build_run(models: int) -> Run:
        """Returns a function that takes a step with so many models; each call uses the next mini-batch."""
        thetas = start(models)
        batches = _cycle_batches(problem)

        def run() -> int:
            """Takes a step with all models; returns the number of model-steps."""
            step(thetas, next(batches), fields.learning_rate, fields.noise_multiplier)
            _synchronize()
            return models

        return run

    # The step by which engines are compared: the first mini-batch, without noise, at learning rate 1.
    stepped = start(1)
    first_batch = next(_cycle_batches(problem))
    step(stepped, first_batch, rate=1.0, sigma=0.0)
    distance = _measure_distance(problem, [theta[0] for theta in stepped])

    # A given number is not compared with others.
    counts = [models] if models else problem.models_to_try(_find_platform())
    models, run = find_fastest(build_run, counts)
    return _make_engine(run, models, distance)


def _make_clipped_sum(network: nn.Module, norm: float) -> Callable[..., list[Tensor]]:
    """Makes the function that sums the clipped gradients of a mini-batch.

    Args:
      network: The network, whose own parameters are not used.
      norm: C, the largest norm of an example's gradient after clipping.

    Returns:
      (parameters, features, labels) -> the sum over examples, a tensor for each parameter.
    """
    names = [name for name, _ in network.named_parameters()]

    def loss(theta: tuple[Tensor, ...], features: Tensor, label: Tensor) -> Tensor:
        """Returns the loss on a single example, of which a mini-batch is made for the network."""
        parameters = dict(zip(names, theta, strict=True))
        logits = torch.func.functional_call(network, parameters, (features[None],))
        return cross_entropy(logits, label[None])

    gradient = torch.func.grad(loss)
    per_example_gradients = torch.func.vmap(gradient, (None, 0, 0))

    def clipped_sum(theta: tuple[Tensor, ...], features: Tensor, labels: Tensor) -> list[Tensor]:
        """Returns the sum of the examples' gradients, each scaled to norm C where its norm is larger.

        C is `norm`. The sum is a tensor for each parameter.
        """
        # For each parameter a tensor whose first axis is that of the B examples.
        gradients = per_example_gradients(theta, features, labels)
        # (B,), over all parameters together.
        squared_norms = sum(part.flatten(1).square().sum(1) for part in gradients)
        factors = (norm / torch.sqrt(squared_norms)).clamp(max=1.0)  # 1 also for a norm of 0
        # The sum over examples of factor times gradient: `tensordot` sums over the first axis.
        return [torch.tensordot(factors, part, 1) for part in gradients]

    return clipped_sum


class _ClientLoop:
    """DP-FedAvg as a loop over a cohort's clients, each of which trains a copy of the server's model."""

    def __init__(self, problem: FederatedProblem) -> None:
        """Makes the server's model, at theta_0, and puts the normalised images on the device.

        The images are Fashion-MNIST's (n, 28, 28): LeNet on them is the only model timed by DP-FedAvg.
        """
        self._problem = problem
        self.network = _make_network(problem)
        pixels = torch.tensor(problem.features, device=_DEVICE).float() / 255
        normalised = (pixels - FASHION_MNIST_MEAN) / FASHION_MNIST_STD
        self._images = normalised[:, None]  # with the axis of channels, of which there is one
        self._labels = torch.tensor(problem.labels, device=_DEVICE).long()

    def mean_update(
        self, cohort: NDArray[np.int32], batch_size: int, epochs: int, deviation: float
    ) -> list[Tensor]:
        """Returns the sum of a cohort's clipped updates plus noise, divided by the number of clients.

        An update is the server's model minus the client's trained model, so that the server subtracts it.

        Args:
          cohort: (W,) the clients' indices.
          batch_size: The size of mini-batches in a client's SGD.
          epochs: The number of epochs of a client's SGD.
          deviation: The standard deviation of the noise that is added to the sum.

        Returns:
          A tensor for each parameter.
        """
        sums = []  # a tensor for each parameter: first the noise, to which updates are added
        for parameter in self.network.parameters():
            sums.append(deviation * torch.randn_like(parameter))
        for client in cohort:
            self._add_update(sums, int(client), batch_size, epochs)
        return [total / len(cohort) for total in sums]

    def _add_update(self, sums: list[Tensor], client: int, batch_size: int, epochs: int) -> None:
        """Trains a client, and adds its clipped update to `sums` in place, a tensor for each parameter.

        The update is the server's model minus the client's trained model. It is scaled so that its norm over
        all parameters is at most C.
        """
        local = self._train_client(client, batch_size, epochs)
        with torch.no_grad():
            update = []
            pairs = zip(self.network.parameters(), local.parameters(), strict=True)
            for before, after in pairs:
                update.append(before - after)
            norm = torch.sqrt(sum(part.square().sum() for part in update))
            factor = (self._problem.setting.clipping_norm / norm).clamp(max=1.0)  # 1 for norm 0
            for total, part in zip(sums, update, strict=True):
                total.addcmul_(part, factor)  # total += part * factor

    def _train_client(self, client: int, batch_size: int, epochs: int) -> nn.Module:
        """Returns a copy of the server's model, trained by SGD on the client's examples.

        A client whose examples fit into one mini-batch takes them in order. Other clients shuffle theirs in
        each epoch.
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
    """Builds the engine that trains by DP-FedAvg in a loop over clients: a single model, in one thread.

    Args:
      problem: The problem of DP-FedAvg.
    """
    torch.set_num_threads(1)
    setting = problem.setting
    loop = _ClientLoop(problem)
    parameters = list(loop.network.parameters())

    # The round by which engines are compared: the first cohort, without noise, at server learning rate 1. A
    # mini-batch holds all of a client's examples, so that an epoch is a single step.
    most_examples = int(problem.counts.max())
    noiseless = loop.mean_update(problem.cohorts[0], most_examples, CHECKED_STEPS, deviation=0.0)
    stepped = []
    for parameter, part in zip(parameters, noiseless, strict=True):
        stepped.append(parameter.detach() - part)
    distance = _measure_distance(problem, stepped)

    server = torch.optim.SGD(parameters, setting.learning_rate, momentum=setting.momentum)
    cohorts = itertools.cycle(problem.cohorts)
    deviation = setting.noise_multiplier * setting.clipping_norm

    def run() -> int:
        """Takes a round with the next cohort; returns the number of its clients."""
        cohort = next(cohorts)
        update = loop.mean_update(cohort, setting.batch_size, epochs=1, deviation=deviation)
        for parameter, part in zip(parameters, update, strict=True):
            parameter.grad = part  # the server's SGD takes the mean update for a gradient
        server.step()
        _synchronize()
        return len(cohort)

    return _make_engine(run, 1, distance)


def _make_engine(run: Run, models: int, distance: float) -> Engine:
    """Returns the record of an engine in PyTorch, on the GPU, or on the CPU where there is no GPU.

    Args:
      run: Does some model-steps or client-updates, and returns how many.
      models: The number of models that it trains at once.
      distance: The distance between its noiseless step and ours.
    """
    if not _ON_GPU:
        return Engine(About(models, "cpu", "cpu", distance), run)
    about = About(models, "gpu", torch.cuda.get_device_name(), distance)
    return Engine(about, run, torch.cuda.max_memory_allocated)


def _find_platform() -> str:
    """Returns "gpu" where PyTorch sees a GPU, else "cpu"."""
    return "gpu" if _ON_GPU else "cpu"
