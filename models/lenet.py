"""The small convolutional network for Fashion-MNIST's clients: LeNet-5 (LeCun et al., 1998) with ReLU and
max-pooling, two 5x5 convolutions and three dense layers, 44,426 parameters."""

import flax.linen as nn
import jax.numpy as jnp
import optax
from jax import Array

from audit.model import Model, flat_model
from models.data.fashion_mnist import FASHION_MNIST_MEAN, FASHION_MNIST_STD
from models.layers import PooledConvolution


class LeNet(nn.Module):
    """Images (..., 28, 28) of uint8 -> logits (..., classes). Pixels are normalised here, on the device.

    Fast where all images of a client's mini-batch are given at once (`audit.model.losses_of_batch`).
    """

    classes: int = 10

    @nn.compact
    def __call__(self, image: Array) -> Array:
        pixels = (image.astype(jnp.float32) / 255 - FASHION_MNIST_MEAN) / FASHION_MNIST_STD
        x = jnp.moveaxis(pixels.reshape(1, -1, *image.shape[-2:]), 1, -1)
        for i, features in enumerate((6, 16)):
            x = PooledConvolution(features, 5, name=f"BatchLastConvolution_{i}")(x)
        x = x.reshape(-1, x.shape[-1]).T
        for width in (120, 84):
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(self.classes)(x).reshape(*image.shape[:-2], self.classes)


def lenet(classes: int = 10) -> Model:
    """The model. LeCun normal kernels, zero biases, softmax cross entropy."""
    image = jnp.zeros((28, 28), jnp.uint8)
    return flat_model(LeNet(classes), image, optax.softmax_cross_entropy_with_integer_labels)
