"""The fully connected network for California Housing: 8 -> 6 -> 2, ReLU, 68 parameters
(hidden-state paper, Table 2; papers' README, slip 9)."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from models.base import Model, flat_model


class FCNN(nn.Module):
    """features (8,) -> two logits (2,)."""

    hidden: int = 6
    outputs: int = 2

    @nn.compact
    def __call__(self, x: Array) -> Array:
        return nn.Dense(self.outputs)(nn.relu(nn.Dense(self.hidden)(x)))


def two_logit_cross_entropy(logits: Array, label: Array) -> Array:
    """Cross entropy of two logits (2,) and a label in {0, 1}, through their difference: one exponential
    where log-softmax takes two."""
    margin = logits[1] - logits[0]
    return jax.nn.softplus(margin) - label * margin


def fcnn(n_features: int = 8) -> Model:
    """The model; 68 parameters for 8 features. Glorot-like (LeCun normal) kernels, zero biases."""
    return flat_model(FCNN(), jnp.zeros(n_features), two_logit_cross_entropy)
