"""ResNet18 in its form for CIFAR-10, with GroupNorm in place of BatchNorm, which would mix examples:
11,173,962 parameters (hidden-state paper, Appendix D; He et al., 2016, Section 4.2)."""

import flax.linen as nn
import jax.numpy as jnp
import optax
from jax import Array

from audit.model import Model, flat_model
from models.data.cifar10 import CIFAR10_MEAN, CIFAR10_STD

_GROUPS = 32


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut, (..., H, W, C) -> (..., H / stride, W / stride, features)."""

    features: int
    stride: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        strides = (self.stride, self.stride)
        y = _convolution(self.features, 3, strides)(x)
        y = nn.relu(_norm(self.features)(y))
        y = _convolution(self.features, 3, (1, 1))(y)
        y = _norm(self.features)(y)
        if x.shape[-1] != self.features or self.stride != 1:
            x = _convolution(self.features, 1, strides)(x)
            x = _norm(self.features)(x)
        return nn.relu(x + y)


class ResNet(nn.Module):
    """Images (32, 32, 3) of uint8 -> logits (classes,), pixels normalised on the device.

    widths: the features of the stages of two blocks each; from the second on, a stage halves the image.
    mean, deviation: of the pixels on [0, 1]. large_stem: begins with a 7x7 convolution of stride 2 and
    max-pooling, the form for large images.
    """

    widths: tuple[int, ...] = (64, 128, 256, 512)
    classes: int = 10
    mean: tuple[float, ...] = CIFAR10_MEAN
    deviation: tuple[float, ...] = CIFAR10_STD
    large_stem: bool = False

    @nn.compact
    def __call__(self, image: Array) -> Array:
        mean, deviation = jnp.array(self.mean, jnp.float32), jnp.array(self.deviation, jnp.float32)
        x = (image.astype(jnp.float32) / 255 - mean) / deviation
        x = _convolution(self.widths[0], 7 if self.large_stem else 3, (1 + self.large_stem,) * 2)(x)
        x = nn.relu(_norm(self.widths[0])(x))
        if self.large_stem:
            x = nn.max_pool(x, (3, 3), (2, 2), ((1, 1), (1, 1)))
        for stage, features in enumerate(self.widths):
            x = Block(features, 1 if stage == 0 else 2)(x)
            x = Block(features, 1)(x)
        return nn.Dense(self.classes)(jnp.mean(x, axis=(-3, -2)))


def _convolution(features: int, window: int, strides: tuple[int, int]) -> nn.Conv:
    """Padded so that stride 1 keeps the size, without bias: a normalisation follows."""
    padding = (window - 1) // 2
    return nn.Conv(features, (window, window), strides, padding, use_bias=False)


def _norm(features: int) -> nn.GroupNorm:
    """Over the pixels and channels of each group: by default Flax takes a first axis for examples."""
    return nn.GroupNorm(min(_GROUPS, features), reduction_axes=(-3, -2, -1))


def resnet18() -> Model:
    """The model; 11,173,962 parameters. LeCun normal kernels, softmax cross entropy."""
    image = jnp.zeros((32, 32, 3), jnp.uint8)
    return flat_model(ResNet(), image, optax.softmax_cross_entropy_with_integer_labels)
