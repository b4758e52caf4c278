"""The LeNet-style network for CIFAR-10: two 5x5 convolutions with max-pooling, three dense layers,
62,006 parameters (hidden-state paper, Table 2; Errata H9)."""

import flax.linen as nn
import jax.numpy as jnp
import optax
from jax import Array

from audit.model import Model, flat_model
from models.data.cifar10 import CIFAR10_MEAN, CIFAR10_STD
from models.layers import Convolution, channels_first, max_pool


class ConvNet(nn.Module):
    """Images (..., 32, 32, 3) of uint8 -> logits (..., 10). Pixels are normalised here, on the device."""

    classes: int = 10

    @nn.compact
    def __call__(self, image: Array) -> Array:
        mean, deviation = jnp.array(CIFAR10_MEAN, jnp.float32), jnp.array(CIFAR10_STD, jnp.float32)
        x = (image.astype(jnp.float32) / 255 - mean) / deviation
        x = channels_first(x)
        for features in (6, 16):
            x = nn.relu(max_pool(Convolution(features, 5)(x)))
        x = x.reshape(*x.shape[:-3], -1)
        for features in (120, 84):
            x = nn.relu(nn.Dense(features)(x))
        return nn.Dense(self.classes)(x)


def convnet() -> Model:
    """The model; 62,006 parameters. LeCun normal kernels, zero biases, softmax cross entropy."""
    image = jnp.zeros((32, 32, 3), jnp.uint8)
    return flat_model(ConvNet(), image, optax.softmax_cross_entropy_with_integer_labels)
