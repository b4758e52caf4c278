"""A small network with torch.func. ./run.sh check --example=torch_func"""

from typing import Any

import torch
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

import audit

torch.manual_seed(0)
torch.set_num_threads(1)  # its matrix products are too small to share among threads
network = torch.nn.Sequential(
    torch.nn.Linear(8, 6),
    torch.nn.Tanh(),
    torch.nn.Linear(6, 3),
)
params = {name: value.detach() for name, value in network.named_parameters()}
features = torch.randn(32, 8)
labels = torch.randint(3, (32,))
batch = features, labels
stated: dict[str, Any] = {
    "clipping_norm": 1.5,
    "noise_multiplier": 1.1,
    "learning_rate": 0.5,
    "batch_size": 32,
}


def step(params: Any, batch: Any, seed: int) -> Any:
    """Returns the parameters after a step of DP-SGD, which clips each example's gradient over all layers.

    The clipping norm is 1.5, the noise multiplier 1.1, the expected batch size 32, the learning rate 0.5.

    Args:
      params: The layers' parameters, by name.
      batch: Features (n, 8) and labels (n,); n may differ from the expected batch size.
      seed: The seed of the noise.
    """

    def loss(params: Any, x: Any, y: Any) -> Any:
        """Returns the cross entropy of a single example, which the network takes as a batch."""
        return cross_entropy(functional_call(network, params, x[None]), y[None])

    gradients = vmap(grad(loss), (None, 0, 0))(params, *batch)
    # (examples,): the norm of each example's gradient over all layers together.
    norms = sum(g.flatten(1).square().sum(1) for g in gradients.values()).sqrt()
    # 1 also for a norm of 0.
    factors = (1.5 / norms).clamp(max=1)

    generator = torch.Generator().manual_seed(seed)
    after = {}
    for name, value in params.items():
        noise = torch.randn(value.shape, generator=generator)
        total = torch.tensordot(factors, gradients[name], 1) + 1.1 * 1.5 * noise
        after[name] = value - 0.5 * total / 32
    return after


if __name__ == "__main__":
    print(audit.check_step(step, params, batch, **stated))
