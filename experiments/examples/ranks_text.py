"""Audits a tiny PyTorch language model using the ranks of canaries (random digit strings).

./run.sh python experiments/examples/ranks_text.py

Install PyTorch with `.venv/bin/pip install torch`; in your own environment, also install this repository.
Canaries are lines of the training data, so the training loop does not change. Replace the model, the data and
the loop with your own. Comments containing RANKS mark the lines for the audit.
"""

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy

import audit

RUNS = 8
CANARIES = 8
FRESH = 20_000
STEPS = 60
TEXTS = 20
LENGTH = 10  # digits
CLIPPING_NORM = 1.0
NOISE_MULTIPLIER = 1.0
LEARNING_RATE = 0.025
PLACES = torch.arange(LENGTH - 1)


def predict(model: Tensor, digits: Tensor) -> Tensor:
    """Returns logits (..., LENGTH - 1, 10) for the digit after each of `digits` (..., LENGTH - 1).

    The model is a table (LENGTH - 1, 10, 10) of logits, indexed by the place and value of the previous digit.
    """
    return model[PLACES, digits]


def draw_digits(number: int) -> Tensor:
    """Draws digit strings (number, LENGTH) uniformly at random; they resemble card numbers."""
    return torch.randint(10, (number, LENGTH))


def score(model: Tensor, digits: Tensor) -> Tensor:
    """Returns the log likelihoods (n,) of digit strings (n, LENGTH), given their first digits."""
    logits = predict(model, digits[:, :-1])
    return -cross_entropy(logits.transpose(1, 2), digits[:, 1:], reduction="none").sum(1)


def train(texts: Tensor) -> Tensor:
    """Returns a model trained with full-batch DP-SGD on texts of shape (n, LENGTH).

    Each step uses the sum of the texts' clipped gradients plus noise, without dividing by n.
    """

    def loss(model: Tensor, text: Tensor) -> Tensor:
        """Returns the sum of the next-token losses of a text of shape (LENGTH,)."""
        return cross_entropy(predict(model, text[:-1]), text[1:], reduction="sum")

    model = torch.zeros(LENGTH - 1, 10, 10)
    for _ in range(STEPS):
        gradients = vmap(grad(loss), (None, 0))(model, texts)  # (n, LENGTH - 1, 10, 10)
        factors = (CLIPPING_NORM / gradients.flatten(1).norm(dim=1)).clamp(max=1.0)  # (n,)
        total = torch.tensordot(factors, gradients, 1)
        noise = NOISE_MULTIPLIER * CLIPPING_NORM * torch.randn(model.shape)
        model = model - LEARNING_RATE * (total + noise)
    return model


def main() -> None:
    """Trains and scores the runs, prints the bounds, and writes a page of results.

    The audit ranks each canary's score among those of fresh digit strings, which are not training data.
    """
    torch.set_num_threads(1)  # small matrix products are faster on one thread
    # The texts are 0123..., 1234..., and so on.
    texts = (torch.arange(LENGTH) + torch.arange(TEXTS)[:, None]) % 10
    scores = []
    fresh = []
    for _ in range(RUNS):
        canaries = draw_digits(CANARIES)  # RANKS: different canaries in every run
        model = train(torch.cat([texts, canaries]))
        scores.append(score(model, canaries).numpy())
        fresh.append(score(model, draw_digits(FRESH)).numpy())  # RANKS: drawn after the run
    result = audit.bounds(
        # `in_order`: rows are in the order of the runs, so the bound is valid after any number of runs.
        audit.ranks(scores, fresh, in_order=True),
        claim=audit.DpSgd(NOISE_MULTIPLIER, insertions=STEPS),
        name="a language model in PyTorch",
    )
    print(result)
    print(f"report: {result.report('page.html')}")


if __name__ == "__main__":
    main()
