"""The LeNet-style network for CIFAR-10: two 5x5 convolutions with max-pooling, three dense layers,
62,006 parameters (hidden-state paper, Table 2; papers' README, slip 9)."""

import flax.linen as nn
import jax.numpy as jnp
import optax
from jax import Array

from models.base import Model, flat_model
from models.datasets import CIFAR10_MEAN, CIFAR10_STD


class PatchConvolution(nn.Module):
    """flax.linen.Conv with a square window, stride 1 and no padding, as patches times a matrix:
    (H, W, C) -> (H - w + 1, W - w + 1, features), with Conv's parameters.

    XLA's convolutions have no batching rule for kernels' gradients of examples within models.
    """

    features: int
    window: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        size, channels = self.window, x.shape[-1]
        shape = (size, size, channels, self.features)
        kernel = self.param("kernel", nn.initializers.lecun_normal(), shape)
        bias = self.param("bias", nn.initializers.zeros_init(), (self.features,))
        height, width = x.shape[0] - size + 1, x.shape[1] - size + 1
        shifted = [x[i : i + height, j : j + width] for i in range(size) for j in range(size)]
        return jnp.concatenate(shifted, axis=-1) @ kernel.reshape(-1, self.features) + bias


class ConvNet(nn.Module):
    """An image (32, 32, 3) of uint8 -> logits (10,). Pixels are normalised here, on the device."""

    classes: int = 10

    @nn.compact
    def __call__(self, image: Array) -> Array:
        mean, deviation = jnp.array(CIFAR10_MEAN, jnp.float32), jnp.array(CIFAR10_STD, jnp.float32)
        x = (image.astype(jnp.float32) / 255 - mean) / deviation
        for features in (6, 16):
            x = nn.relu(PatchConvolution(features, 5)(x))
            x = _max_pool(x)
        x = x.reshape(-1)
        for features in (120, 84):
            x = nn.relu(nn.Dense(features)(x))
        return nn.Dense(self.classes)(x)


def _max_pool(x: Array) -> Array:
    """Maxima of 2 x 2 pixels, (H, W, C) -> (H / 2, W / 2, C)."""
    height, width, channels = x.shape
    return x.reshape(height // 2, 2, width // 2, 2, channels).max(axis=(1, 3))


def convnet() -> Model:
    """The model; 62,006 parameters. LeCun normal kernels, zero biases, softmax cross entropy."""
    image = jnp.zeros((32, 32, 3), jnp.uint8)
    return flat_model(ConvNet(), image, optax.softmax_cross_entropy_with_integer_labels)
