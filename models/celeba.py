"""CANIFE's networks for CelebA, faces of 32 x 32 pixels in two classes: four convolutions, 29,282 parameters,
and ResNet18, 11,177,538 parameters (Maddock et al., 2023, Appendix B, and its public code)."""

import flax.linen as nn
import jax.numpy as jnp
import optax
from jax import Array

from audit.model import Model, flat_model
from models.data.leaf import PIXELS
from models.resnet import ResNet

CLASSES = 2
MEAN = DEVIATION = (0.5, 0.5, 0.5)


class FaceCNN(nn.Module):
    """Images (..., 32, 32, 3) of uint8 -> logits (..., 2). Each of the convolutions is followed by one
    GroupNorm that all share, of a group a channel, and halved by max-pooling."""

    @nn.compact
    def __call__(self, image: Array) -> Array:
        mean, deviation = jnp.array(MEAN, jnp.float32), jnp.array(DEVIATION, jnp.float32)
        x = (image.astype(jnp.float32) / 255 - mean) / deviation
        shared = nn.GroupNorm(32, reduction_axes=(-3, -2, -1))
        for _ in range(4):
            x = nn.relu(shared(nn.Conv(32, (3, 3), padding=2)(x)))
            x = nn.max_pool(x, (2, 2), (2, 2))
        return nn.Dense(CLASSES)(x.reshape(*x.shape[:-3], -1))


def face_cnn() -> Model:
    """The model; 29,282 parameters. LeCun normal kernels, softmax cross entropy."""
    return flat_model(FaceCNN(), _image(), optax.softmax_cross_entropy_with_integer_labels)


def face_resnet18() -> Model:
    """ResNet18 in its form for large images, a 7 x 7 stem of stride 2 and max-pooling, with GroupNorm;
    11,177,538 parameters."""
    module = ResNet(classes=CLASSES, mean=MEAN, deviation=DEVIATION, large_stem=True)
    return flat_model(module, _image(), optax.softmax_cross_entropy_with_integer_labels)


def _image() -> Array:
    """An example's shape."""
    return jnp.zeros((PIXELS, PIXELS, 3), jnp.uint8)
