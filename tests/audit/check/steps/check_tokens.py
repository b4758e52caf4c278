"""A bigram model in NumPy, for texts of different lengths. A loss is the mean over the tokens of a text."""

import numpy as np

TOKENS = 6
PADDING = -100
rng = np.random.default_rng(0)
params = {"logits": 0.5 * rng.normal(size=(TOKENS, TOKENS))}
texts = rng.integers(TOKENS, size=(24, 9))
following = texts[:, 1:].copy()
lengths = rng.integers(2, 9, 24)
following[np.arange(8) >= lengths[:, None]] = PADDING
batch = texts[:, :-1], following
stated = {"clipping_norm": 0.4, "noise_multiplier": 0.8, "learning_rate": 0.5, "batch_size": 24}


def step(params, batch, seed):
    tokens, following = batch
    is_counted = following != PADDING
    odds = np.exp(params["logits"])[tokens]
    errors = odds / odds.sum(axis=2, keepdims=True) - np.eye(TOKENS)[np.maximum(following, 0)]
    errors = errors * is_counted[:, :, None]
    counts = np.maximum(is_counted.sum(axis=1), 1)
    sums = np.einsum("itk,itl->ikl", np.eye(TOKENS)[tokens], errors)
    gradients = sums / counts[:, None, None]

    norms = np.sqrt((gradients**2).sum(axis=(1, 2)))
    factors = 1 / np.maximum(1, norms / 0.4)
    noise = 0.8 * 0.4 * np.random.default_rng(seed).normal(size=(TOKENS, TOKENS))
    mean = (np.tensordot(factors, gradients, 1) + noise) / 24
    return {"logits": params["logits"] - 0.5 * mean}
