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
    (..., H, W, C) -> (..., H - w + 1, W - w + 1, features), with Conv's parameters.

    XLA's convolutions have no batching rule for kernels' gradients of examples within models; and the
    patches are what book-keeping needs (`unfold` and `output_shape`).
    """

    features: int
    window: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        shape = (self.window, self.window, x.shape[-1], self.features)
        kernel = self.param("kernel", nn.initializers.lecun_normal(), shape)
        bias = self.param("bias", nn.initializers.zeros_init(), (self.features,))
        product = self.unfold(x) @ kernel.reshape(-1, self.features) + bias
        return product.reshape(*x.shape[:-3], *self.output_shape(x))

    def unfold(self, x: Array) -> Array:
        """Patches (..., L, K) of images (..., H, W, C)."""
        height, width, _ = self.output_shape(x)
        offsets = [(i, j) for i in range(self.window) for j in range(self.window)]
        shifted = [x[..., i : i + height, j : j + width, :] for i, j in offsets]
        return jnp.concatenate(shifted, axis=-1).reshape(*x.shape[:-3], height * width, -1)

    def output_shape(self, x: Array) -> tuple[int, int, int]:
        """(H - w + 1, W - w + 1, features)."""
        return x.shape[-3] - self.window + 1, x.shape[-2] - self.window + 1, self.features


class ConvNet(nn.Module):
    """Images (..., 32, 32, 3) of uint8 -> logits (..., 10). Pixels are normalised here, on the device."""

    classes: int = 10

    @nn.compact
    def __call__(self, image: Array) -> Array:
        mean, deviation = jnp.array(CIFAR10_MEAN, jnp.float32), jnp.array(CIFAR10_STD, jnp.float32)
        x = (image.astype(jnp.float32) / 255 - mean) / deviation
        for features in (6, 16):
            x = nn.relu(PatchConvolution(features, 5)(x))
            x = _max_pool(x)
        x = x.reshape(*x.shape[:-3], -1)
        for features in (120, 84):
            x = nn.relu(nn.Dense(features)(x))
        return nn.Dense(self.classes)(x)


def _max_pool(x: Array) -> Array:
    """Maxima of 2 x 2 pixels, (..., H, W, C) -> (..., H / 2, W / 2, C)."""
    rows = jnp.maximum(x[..., 0::2, :, :], x[..., 1::2, :, :])
    return jnp.maximum(rows[..., 0::2, :], rows[..., 1::2, :])


def convnet() -> Model:
    """The model; 62,006 parameters. LeCun normal kernels, zero biases, softmax cross entropy."""
    image = jnp.zeros((32, 32, 3), jnp.uint8)
    return flat_model(ConvNet(), image, optax.softmax_cross_entropy_with_integer_labels)
