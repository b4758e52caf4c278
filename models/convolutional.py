"""Convolutional networks for images, with LeCun normal kernels, zero biases and softmax cross entropy.

All except EmnistCNN take bytes and normalise them on the device, which saves memory.
"""

from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp
from jax import Array
from optax import softmax_cross_entropy_with_integer_labels as cross_entropy

from audit.tasks.model import Model, flat_model
from models.data.images import CIFAR10_MEAN, CIFAR10_STD
from models.layers import (
    Convolution,
    average_pool,
    channels_first,
    max_pool,
    normalised,
)


class ConvNet(nn.Module):
    """A LeNet-style network for CIFAR-10.

    Attributes:
      pool: halves the height and width after each convolution.
      activate: the activation after each pooling, and after each dense layer except the last.
    """

    pool: Callable[[Array], Array] = max_pool
    activate: Callable[[Array], Array] = nn.relu

    @nn.compact
    def __call__(self, image: Array) -> Array:
        """Returns the logits (..., 10) for uint8 images (..., 32, 32, 3)."""
        pixels = normalised(image, CIFAR10_MEAN, CIFAR10_STD)
        x = channels_first(pixels)  # (..., 3, 32, 32), as `Convolution` expects
        for features in (6, 16):
            x = self.activate(self.pool(Convolution(features, window=5)(x)))
        x = x.reshape(*x.shape[:-3], -1)
        for width in (120, 84):
            x = self.activate(nn.Dense(width)(x))
        return nn.Dense(10)(x)


def _make(module: nn.Module) -> Model:
    """Converts a network for uint8 images (32, 32, 3) to a model with softmax cross-entropy loss."""
    return flat_model(module, jnp.zeros((32, 32, 3), jnp.uint8), cross_entropy)


def convnet() -> Model:
    """Makes the ConvNet for CIFAR-10, with 62,006 parameters (hidden-state paper, Table 2, and Errata H9)."""
    return _make(ConvNet())


def gelu_convnet() -> Model:
    """Makes a smooth version of the ConvNet for CIFAR-10, with average pooling and GELU."""
    return _make(ConvNet(pool=average_pool, activate=nn.gelu))


class EmnistCNN(nn.Module):
    """A network for EMNIST characters."""

    @nn.compact
    def __call__(self, image: Array) -> Array:
        """Returns the logits (..., 62) for float32 images (..., 28, 28)."""
        x = image[..., None, :, :]  # (..., 1 channel, height, width), as `Convolution` expects
        for features in (32, 64):
            x = nn.relu(Convolution(features, window=3)(x))
        x = max_pool(x)
        x = x.reshape(*x.shape[:-3], -1)
        x = nn.relu(nn.Dense(128)(x))
        return nn.Dense(62)(x)


def emnist_cnn() -> Model:
    """Makes the EMNIST network of Reddi et al. (2020), with 1,206,590 parameters.

    We leave out the paper's dropout, because a client's update must not depend on random draws.
    """
    return flat_model(EmnistCNN(), jnp.zeros((28, 28)), cross_entropy)


class Block(nn.Module):
    """A residual block, which computes ReLU(shortcut(x) + residual(x))."""

    features: int
    stride: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Returns the output (..., H / stride, W / stride, features) for x (..., H, W, C)."""
        residual = nn.relu(_convolve(x, self.features, window=3, stride=self.stride))
        residual = _convolve(residual, self.features, window=3)
        shortcut = x
        if residual.shape != x.shape:
            shortcut = _convolve(x, self.features, window=1, stride=self.stride)
        return nn.relu(shortcut + residual)


class ResNet(nn.Module):
    """A residual network for CIFAR-10.

    `widths` gives the number of channels in each stage, which consists of two blocks. In every stage except
    the first, the first block halves the height and width.
    """

    widths: tuple[int, ...] = (64, 128, 256, 512)

    @nn.compact
    def __call__(self, image: Array) -> Array:
        """Returns the logits (10,) for a uint8 image (32, 32, 3)."""
        x = normalised(image, CIFAR10_MEAN, CIFAR10_STD)
        x = nn.relu(_convolve(x, self.widths[0], window=3))
        stride = 1  # in the first stage
        for features in self.widths:
            x = Block(features, stride)(x)
            x = Block(features, stride=1)(x)
            stride = 2
        x = jnp.mean(x, axis=(-3, -2))  # over height and width
        return nn.Dense(10)(x)


def _convolve(x: Array, features: int, window: int, stride: int = 1) -> Array:
    """Applies a square convolution, then a group norm with at most 32 groups, to x (..., H, W, C).

    Call this function only in a module's compact method. The convolution needs no bias, because the norm has
    one. We pass the normalisation axes, because Flax treats the first axis as a batch by default.
    """
    padding = (window - 1) // 2  # preserves height and width if the stride is 1
    x = nn.Conv(features, (window, window), (stride, stride), padding, use_bias=False)(x)
    return nn.GroupNorm(min(32, features), reduction_axes=(-3, -2, -1))(x)


def resnet18() -> Model:
    """Makes the CIFAR-10 version of ResNet18 (He et al., 2016, Section 4.2), with 11,173,962 parameters.

    GroupNorm replaces BatchNorm, which would mix examples (hidden-state paper, Appendix D).
    """
    return _make(ResNet())
