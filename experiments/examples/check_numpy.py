"""DP-SGD in NumPy for logistic regression. Check it: ./run.sh check --example=numpy"""

from typing import Any

import numpy as np

rng = np.random.default_rng(0)
params = {"w": np.zeros(8), "b": np.zeros(1)}
features = rng.normal(size=(32, 8))
labels = rng.integers(0, 2, 32)
batch = features, labels
stated: dict[str, Any] = {
    "clipping_norm": 1.5,
    "noise_multiplier": 1.1,
    "learning_rate": 0.5,
    "batch_size": 32,
}


def step(params: Any, batch: Any, seed: int) -> Any:
    """Returns the parameters after a step of DP-SGD with C = 1.5, sigma = 1.1, eta = 0.5 and B = 32.

    `params` contains weights (8,) and a bias (1,), and `batch` contains features (n, 8) and labels (0 or 1).
    The size n may differ from the expected batch size.
    """
    x, y = batch
    # The derivative of the loss with respect to the logit: the predicted probability minus the label.
    residual = 1 / (1 + np.exp(-x @ params["w"] - params["b"])) - y
    gradients = np.column_stack([residual[:, None] * x, residual])  # (n, 9), with the bias last
    clipped = gradients / np.maximum(1, np.linalg.norm(gradients, axis=1, keepdims=True) / 1.5)
    noise = 1.1 * 1.5 * np.random.default_rng(seed).normal(size=9)
    mean = (clipped.sum(axis=0) + noise) / 32
    return {"w": params["w"] - 0.5 * mean[:8], "b": params["b"] - 0.5 * mean[8:]}
