"""Tests the sizes and gradients of convolutional networks, and an audit with a known result."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from optax import softmax_cross_entropy_with_integer_labels

from models.convolutional import ConvNet, ResNet, convnet, emnist_cnn
from models.layers import channels_first, max_pool


def draw_images(count, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 3), np.uint8)


class Ordinary(nn.Module):
    """In Flax's layers, for a batch, flattened channels first as ours."""

    @nn.compact
    def __call__(self, x):
        x = x[..., None]
        for i, features in enumerate((32, 64)):
            x = nn.relu(nn.Conv(features, (3, 3), padding="VALID", name=f"Convolution_{i}")(x))
        x = nn.max_pool(x, (2, 2), (2, 2))
        x = nn.relu(nn.Dense(128)(x.transpose(0, 3, 1, 2).reshape(len(x), -1)))
        return nn.Dense(62)(x)


@pytest.mark.slow
def test_losses_and_gradients_are_those_of_flax_s_layers():
    model = emnist_cnn()
    images = np.random.default_rng(0).random((3, 28, 28), np.float32)
    labels = np.arange(3)

    def ours(theta):
        return jnp.mean(jax.vmap(model.loss, (None, 0))(theta, (images, labels)))

    def of_flax(theta):
        logits = Ordinary().apply({"params": model.unravel(theta)}, images)
        return jnp.mean(softmax_cross_entropy_with_integer_labels(logits, labels))

    theta = jax.jit(model.init)(jax.random.key(1))
    (loss, gradient), expected = (jax.jit(jax.value_and_grad(f))(theta) for f in (ours, of_flax))
    assert loss == pytest.approx(float(expected[0]), rel=1e-4)
    np.testing.assert_allclose(gradient, expected[1], atol=1e-5)


def test_the_first_of_equal_pixels_has_the_gradient_of_a_pool_and_channels_come_first():
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(max_pool(x))))(jnp.zeros((1, 4, 4)))
    np.testing.assert_array_equal(gradient[0], np.tile([[1, 0], [0, 0]], (2, 2)))
    image = draw_images(1)
    np.testing.assert_array_equal(channels_first(image), np.moveaxis(image, -1, -3))


@pytest.mark.slow
def test_parameters_are_the_papers():
    assert convnet().n_parameters == 62_006
    assert emnist_cnn().n_parameters == 1_206_590
    image = jnp.zeros((32, 32, 3), jnp.uint8)
    shapes = jax.eval_shape(ResNet().init, jax.random.key(0), image)["params"]
    assert sum(shape.size for shape in jax.tree.leaves(shapes)) == 11_173_962
    kernels = [shapes[f"Block_{i}"]["Conv_1"]["kernel"].shape for i in range(8)]
    assert kernels == [(3, 3, w, w) for w in (64, 64, 128, 128, 256, 256, 512, 512)]
    assert [i for i in range(8) if "Conv_2" in shapes[f"Block_{i}"]] == [2, 4, 6]


@pytest.mark.slow
@pytest.mark.parametrize("module", [ConvNet(), ResNet((4, 8))])
def test_the_model_normalises_pixels_and_keeps_examples_apart(module):
    images = draw_images(3)
    variables = jax.jit(module.init)(jax.random.key(0), images[0])
    apply = jax.jit(module.apply)
    together = apply(variables, images)
    np.testing.assert_allclose(together[1], apply(variables, images[1]), rtol=1e-4, atol=1e-5)
    dark, light = (np.full((32, 32, 3), value, np.uint8) for value in (0, 255))
    assert not np.allclose(apply(variables, dark), apply(variables, light))
