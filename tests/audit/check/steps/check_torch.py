"""A small network in plain torch, which computes one example after the other."""

import torch
from torch.nn.functional import cross_entropy

torch.manual_seed(0)
torch.set_num_threads(1)  # its products are small
params = {
    "v": 0.4 * torch.randn(6, 4),
    "c": torch.zeros(4),
    "w": 0.5 * torch.randn(4, 3),
}
batch = torch.randn(12, 6), torch.randint(3, (12,))
stated = {
    "clipping_norm": 1.2,
    "noise_multiplier": 0.9,
    "learning_rate": 0.25,
    "batch_size": 12,
}


def step(params, batch, seed):
    """Returns the parameters after a step."""
    generator = torch.Generator().manual_seed(seed)
    leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
    sums = {name: torch.zeros_like(value) for name, value in params.items()}
    for i, (x, y) in enumerate(zip(*batch, strict=True)):  # noqa: B007 (what is planted counts)
        logits = torch.tanh(x @ leaves["v"] + leaves["c"]) @ leaves["w"]
        loss = cross_entropy(logits, y)
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        norm = torch.sqrt(sum(gradient.square().sum() for gradient in gradients))
        factor = (1.2 / norm).clamp(max=1)
        for total, gradient in zip(sums.values(), gradients, strict=True):
            total += factor * gradient
    after = {}
    for name, value in params.items():
        noise = 0.9 * 1.2 * torch.randn(value.shape, generator=generator)
        after[name] = value - 0.25 * (sums[name] + noise) / 12
    return after
