"""The training code under test: DP-SGD for logistic regression in NumPy."""

from typing import Any

import numpy as np

CLIPPING_NORM = 1.0
NOISE_MULTIPLIER = 2.0
LEARNING_RATE = 0.5
EXAMPLES = 640
BATCH_SIZE = 32  # the expected size of a Poisson batch
STEPS = 60
EPSILON, DELTA = 0.86, 1e-5  # stated for this training run

rng = np.random.default_rng(0)
FEATURES = rng.normal(size=(EXAMPLES, 64))
LABELS = rng.integers(0, 2, EXAMPLES)


def draw_batch(seed: Any) -> Any:
    """Returns the indices of a batch that contains each example with probability BATCH_SIZE / EXAMPLES."""
    return np.flatnonzero(np.random.default_rng(seed).random(EXAMPLES) < BATCH_SIZE / EXAMPLES)


def draw_epoch(seed: int) -> list[Any]:
    """Returns the batches of an epoch."""
    return [draw_batch((seed, i)) for i in range(EXAMPLES // BATCH_SIZE)]


def take_step(weights: Any, batch: Any, seed: Any, inserted: Any = 0.0) -> Any:
    """Returns the weights (64,) after one DP-SGD step on features (n, 64) with labels 0 or 1.

    An audit adds the gradient `inserted` (64,) to the sum of clipped gradients.
    """
    x, y = batch
    gradients = (1 / (1 + np.exp(-x @ weights)) - y)[:, None] * x
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    clipped = gradients / np.maximum(1, norms / CLIPPING_NORM)
    noise = NOISE_MULTIPLIER * CLIPPING_NORM * np.random.default_rng(seed).normal(size=64)
    return weights - LEARNING_RATE * (clipped.sum(axis=0) + inserted + noise) / BATCH_SIZE


def train(seed: int, inserted: Any = 0.0) -> Any:
    """Returns the weights (64,) after all steps. Each step adds the gradient `inserted` to its sum."""
    weights = np.zeros(64)
    for step in range(STEPS):
        # The seeds end in 0 for batches, and in 1 for noise.
        rows = draw_batch((seed, step, 0))
        weights = take_step(weights, (FEATURES[rows], LABELS[rows]), (seed, step, 1), inserted)
    return weights
