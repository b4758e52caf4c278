"""The convolutional network for EMNIST's characters: 3x3 convolutions to 32 and 64 channels, max-pooling and
dense layers of 128 and 62, 1,206,590 parameters (Reddi et al., 2020).

The paper's dropout, before the dense layers and between them, is left out: an audited client's update is a
function of its data and of the weights that it starts from.
"""

import flax.linen as nn
import jax.numpy as jnp
import optax
from jax import Array

from audit.model import Model, flat_model
from models.data.emnist import CLASSES
from models.layers import Convolution, max_pool


class EmnistCNN(nn.Module):
    """Images (..., 28, 28) of float32 -> logits (..., classes)."""

    classes: int = CLASSES

    @nn.compact
    def __call__(self, image: Array) -> Array:
        x = image[..., None, :, :]
        for features in (32, 64):
            x = nn.relu(Convolution(features, 3)(x))
        x = max_pool(x)
        x = nn.relu(nn.Dense(128)(x.reshape(*x.shape[:-3], -1)))
        return nn.Dense(self.classes)(x)


def emnist_cnn(classes: int = CLASSES) -> Model:
    """The model; 1,206,590 parameters for 62 classes, 1,199,882 for digits. LeCun normal kernels, zero
    biases, softmax cross entropy."""
    image = jnp.zeros((28, 28), jnp.float32)
    return flat_model(EmnistCNN(classes), image, optax.softmax_cross_entropy_with_integer_labels)
