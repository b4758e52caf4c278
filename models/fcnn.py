"""The fully connected network for California Housing: 8 -> 6 -> 2, ReLU, 68 parameters
(hidden-state paper, Table 2; Errata H9)."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from audit.model import Model, flat_model


class FCNN(nn.Module):
    """features (8,) -> two logits (2,)."""

    hidden: int = 6
    outputs: int = 2

    @nn.compact
    def __call__(self, x: Array) -> Array:
        return nn.Dense(self.outputs)(nn.relu(nn.Dense(self.hidden)(x)))


@jax.custom_vjp
def two_logit_cross_entropy(logits: Array, label: Array) -> Array:
    """Cross entropy of two logits (2,) and a label in {0, 1}: softplus of their signed difference, one
    exponential where log-softmax takes two."""
    return jax.nn.softplus((1 - 2 * label) * (logits[1] - logits[0]))


def _backward(saved: tuple[Array, Array], cotangent: Array) -> tuple[Array, None]:
    """The gradient in closed form: (-r, r) with the residual r = sigmoid(margin) - label."""
    logits, label = saved
    residual = cotangent * (jax.nn.sigmoid(logits[1] - logits[0]) - label)
    return jnp.stack([-residual, residual]), None


two_logit_cross_entropy.defvjp(
    lambda logits, label: (two_logit_cross_entropy(logits, label), (logits, label)), _backward
)


def fcnn(n_features: int = 8) -> Model:
    """The model; 68 parameters for 8 features. LeCun normal kernels, zero biases."""
    return flat_model(FCNN(), jnp.zeros(n_features), two_logit_cross_entropy)
