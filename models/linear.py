"""A linear model for Fashion-MNIST: 784 -> 10, 7,850 parameters (LiDP paper, Section 6 and Appendix F.1)."""

import flax.linen as nn
import jax.numpy as jnp
import optax
from jax import Array

from audit.model import Model, flat_model
from models.data.fashion_mnist import FASHION_MNIST_MEAN, FASHION_MNIST_STD
from models.layers import flat_features


def fashion_features(x: Array) -> Array:
    """`flat_features` of Fashion-MNIST's pixels."""
    return flat_features(x, FASHION_MNIST_MEAN, FASHION_MNIST_STD)


class Linear(nn.Module):
    """An image (28, 28) of uint8, normalised here, on the device, or float features (n,) -> logits."""

    classes: int = 10

    @nn.compact
    def __call__(self, x: Array) -> Array:
        return nn.Dense(self.classes)(fashion_features(x))


def linear(n_features: int = 784, classes: int = 10) -> Model:
    """The model; (n_features + 1) x classes parameters. LeCun normal kernel, zero biases, softmax cross
    entropy."""
    features = jnp.zeros(n_features, jnp.float32)
    return flat_model(
        Linear(classes), features, optax.softmax_cross_entropy_with_integer_labels, fashion_features
    )
