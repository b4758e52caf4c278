"""Convolutional networks: sizes, logits against Flax's own layers, and an audit whose answer is known."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.convolutional import ConvNet, ResNet, convnet, emnist_cnn


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
def test_logits_and_losses_are_those_of_flax_s_layers():
    model = emnist_cnn()
    images = np.random.default_rng(0).random((3, 28, 28), np.float32)
    theta = jax.jit(model.init)(jax.random.key(1))
    variables = {"params": model.unravel(theta)}
    expected = jax.jit(Ordinary().apply)(variables, images)
    logits = jax.jit(jax.vmap(model.module.apply, (None, 0)))(variables, images)
    np.testing.assert_allclose(logits, expected, atol=1e-4)
    losses = jax.jit(jax.vmap(model.loss, (None, 0)))(theta, (images, np.arange(3)))
    expected_losses = [np.logaddexp.reduce(x) - x[i] for i, x in enumerate(expected)]
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-4)


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
