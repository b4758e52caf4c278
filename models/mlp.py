"""The multi-layer perceptron for Fashion-MNIST: 784 -> 256 -> 256 -> 10, ReLU, 269,322 parameters (LiDP
paper, Section 6 and Appendix F.1)."""

import flax.linen as nn
import jax.numpy as jnp
import optax
from jax import Array

from audit.model import Model, flat_model
from models.linear import fashion_features


class MLP(nn.Module):
    """An image (28, 28) of uint8, normalised here, on the device, or float features (n,) -> logits."""

    widths: tuple[int, ...] = (256, 256)
    classes: int = 10

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = fashion_features(x)
        for width in self.widths:
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(self.classes)(x)


def mlp(n_features: int = 784, widths: tuple[int, ...] = (256, 256), classes: int = 10) -> Model:
    """The model. LeCun normal kernels, zero biases, softmax cross entropy."""
    features = jnp.zeros(n_features, jnp.float32)
    return flat_model(
        MLP(widths, classes), features, optax.softmax_cross_entropy_with_integer_labels, fashion_features
    )
