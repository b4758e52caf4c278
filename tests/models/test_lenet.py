"""LeNet: its size, and its losses and gradients against Flax's own layers, alone and in a batch."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from audit.model import losses_by_example, losses_of_batch
from models.convolutional import lenet
from models.data.images import FASHION_MNIST_MEAN, FASHION_MNIST_STD

IMAGES = np.random.default_rng(0).integers(0, 256, (5, 28, 28), np.uint8)
LABELS = np.arange(5)


class Ordinary(nn.Module):
    """In Flax's layers, for a batch, flattened channels first as ours."""

    @nn.compact
    def __call__(self, images):
        x = (images[..., None] / jnp.float32(255) - FASHION_MNIST_MEAN) / FASHION_MNIST_STD
        for i, features in enumerate((6, 16)):
            x = nn.Conv(features, (5, 5), padding="VALID", name=f"BatchLastConvolution_{i}")(x)
            x = nn.relu(nn.max_pool(x, (2, 2), (2, 2)))
        x = x.transpose(0, 3, 1, 2).reshape(len(x), -1)
        for width in (120, 84):
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(10)(x)


@pytest.fixture(scope="module")
def net():
    return lenet()


@pytest.fixture(scope="module")
def parameters(net):
    return net.unravel(net.init(jax.random.key(1)))


def _expected(parameters):
    logits = Ordinary().apply({"params": parameters}, IMAGES)
    return optax.softmax_cross_entropy_with_integer_labels(logits, LABELS)


@pytest.mark.parametrize("losses", [losses_by_example, losses_of_batch])
def test_losses_are_those_of_flax_s_layers(net, parameters, losses):
    found = losses(net)(parameters, (IMAGES, LABELS))
    np.testing.assert_allclose(found, _expected(parameters), rtol=1e-4, atol=1e-4)


def test_gradients_are_those_of_flax_s_layers_and_losses_the_batch_s(net, parameters):
    expected = jax.grad(lambda p: _expected(p).mean())(parameters)
    got = jax.grad(lambda p: losses_of_batch(net)(p, (IMAGES, LABELS)).mean())(parameters)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), got, expected)
    theta = net.init(jax.random.key(2))
    alone = [net.loss(theta, example) for example in zip(IMAGES, LABELS, strict=True)]
    batch = losses_of_batch(net)(net.unravel(theta), (IMAGES, LABELS))
    np.testing.assert_allclose(alone, batch, rtol=1e-4)
    assert net.n_parameters == 156 + 2416 + 30_840 + 10_164 + 850 == 44_426
    assert net.init(jax.random.key(0)).shape == (44_426,)
