"""Convolutional networks for images. All have LeCun normal kernels, zero biases and softmax cross entropy;
they normalise bytes on the device."""

import flax.linen as nn
import jax.numpy as jnp
from jax import Array
from optax import softmax_cross_entropy_with_integer_labels as cross_entropy

from audit.model import Model, flat_model
from models.data.images import CIFAR10_MEAN, CIFAR10_STD, FASHION_MNIST_MEAN, FASHION_MNIST_STD
from models.data.leaf import PIXELS
from models.data.tff import EMNIST_CLASSES
from models.layers import Convolution, PooledConvolution, channels_first, max_pool, normalised

CELEBA_CLASSES = 2
CELEBA_MEAN = CELEBA_STD = (0.5, 0.5, 0.5)


class ConvNet(nn.Module):
    """Images (..., 32, 32, 3) of uint8 -> logits (..., 10)."""

    classes: int = 10

    @nn.compact
    def __call__(self, image: Array) -> Array:
        x = channels_first(normalised(image, CIFAR10_MEAN, CIFAR10_STD))
        for features in (6, 16):
            x = nn.relu(max_pool(Convolution(features, 5)(x)))
        x = x.reshape(*x.shape[:-3], -1)
        for features in (120, 84):
            x = nn.relu(nn.Dense(features)(x))
        return nn.Dense(self.classes)(x)


def convnet() -> Model:
    """The LeNet-style network for CIFAR-10: two 5x5 convolutions with max-pooling, three dense layers,
    62,006 parameters (hidden-state paper, Table 2; Errata H9)."""
    return flat_model(ConvNet(), jnp.zeros((32, 32, 3), jnp.uint8), cross_entropy)


class LeNet(nn.Module):
    """Images (..., 28, 28) of uint8 -> logits (..., classes).

    Fast where all images of a client's mini-batch are given at once (`audit.model.losses_of_batch`).
    """

    classes: int = 10

    @nn.compact
    def __call__(self, image: Array) -> Array:
        pixels = normalised(image, FASHION_MNIST_MEAN, FASHION_MNIST_STD)
        x = jnp.moveaxis(pixels.reshape(1, -1, *image.shape[-2:]), 1, -1)
        for i, features in enumerate((6, 16)):
            x = PooledConvolution(features, 5, name=f"BatchLastConvolution_{i}")(x)
        x = x.reshape(-1, x.shape[-1]).T
        for width in (120, 84):
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(self.classes)(x).reshape(*image.shape[:-2], self.classes)


def lenet(classes: int = 10) -> Model:
    """The network for Fashion-MNIST's clients: LeNet-5 (LeCun et al., 1998) with ReLU and max-pooling, two
    5x5 convolutions and three dense layers, 44,426 parameters."""
    return flat_model(LeNet(classes), jnp.zeros((28, 28), jnp.uint8), cross_entropy)


class EmnistCNN(nn.Module):
    """Images (..., 28, 28) of float32 -> logits (..., classes)."""

    classes: int = EMNIST_CLASSES

    @nn.compact
    def __call__(self, image: Array) -> Array:
        x = image[..., None, :, :]
        for features in (32, 64):
            x = nn.relu(Convolution(features, 3)(x))
        x = max_pool(x)
        x = nn.relu(nn.Dense(128)(x.reshape(*x.shape[:-3], -1)))
        return nn.Dense(self.classes)(x)


def emnist_cnn(classes: int = EMNIST_CLASSES) -> Model:
    """The network for EMNIST's characters: 3x3 convolutions to 32 and 64 channels, max-pooling and dense
    layers of 128 and 62, 1,206,590 parameters, or 1,199,882 for digits (Reddi et al., 2020).

    The paper's dropout, before the dense layers and between them, is left out: an audited client's update is
    a function of its data and of the weights that it starts from.
    """
    return flat_model(EmnistCNN(classes), jnp.zeros((28, 28), jnp.float32), cross_entropy)


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
    """Images (32, 32, 3) of uint8 -> logits (classes,).

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
        x = normalised(image, self.mean, self.deviation)
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
    return nn.Conv(features, (window, window), strides, (window - 1) // 2, use_bias=False)


def _norm(features: int) -> nn.GroupNorm:
    """Over the pixels and channels of each group: by default Flax takes a first axis for examples."""
    return nn.GroupNorm(min(32, features), reduction_axes=(-3, -2, -1))


def resnet18() -> Model:
    """ResNet18 in its form for CIFAR-10, with GroupNorm in place of BatchNorm, which would mix examples:
    11,173,962 parameters (hidden-state paper, Appendix D; He et al., 2016, Section 4.2)."""
    return flat_model(ResNet(), jnp.zeros((32, 32, 3), jnp.uint8), cross_entropy)


def face_resnet18() -> Model:
    """ResNet18 for CelebA's faces in two classes, in its form for large images: a 7 x 7 stem of stride 2 and
    max-pooling; 11,177,538 parameters (Maddock et al., 2023, Appendix B, and its public code)."""
    module = ResNet(classes=CELEBA_CLASSES, mean=CELEBA_MEAN, deviation=CELEBA_STD, large_stem=True)
    return flat_model(module, jnp.zeros((PIXELS, PIXELS, 3), jnp.uint8), cross_entropy)


class FaceCNN(nn.Module):
    """Images (..., 32, 32, 3) of uint8 -> logits (..., 2). Each of the convolutions is followed by one
    GroupNorm that all share, of a group a channel, and halved by max-pooling."""

    @nn.compact
    def __call__(self, image: Array) -> Array:
        x = normalised(image, CELEBA_MEAN, CELEBA_STD)
        shared = nn.GroupNorm(32, reduction_axes=(-3, -2, -1))
        for _ in range(4):
            x = nn.relu(shared(nn.Conv(32, (3, 3), padding=2)(x)))
            x = nn.max_pool(x, (2, 2), (2, 2))
        return nn.Dense(CELEBA_CLASSES)(x.reshape(*x.shape[:-3], -1))


def face_cnn() -> Model:
    """CANIFE's CNN for CelebA: four convolutions, 29,282 parameters (Maddock et al., 2023, Appendix B)."""
    return flat_model(FaceCNN(), jnp.zeros((PIXELS, PIXELS, 3), jnp.uint8), cross_entropy)
