"""The network for EMNIST: its size, and its logits against Flax's own layers."""

import flax.linen as nn
import jax
import numpy as np

from models.convolutional import emnist_cnn


def test_parameters_are_the_papers():
    model = emnist_cnn()
    assert model.n_parameters == 1_206_590 == model.init(jax.random.key(0)).size
    assert emnist_cnn(10).n_parameters == 1_199_882


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


def test_logits_and_losses_are_those_of_flax_s_layers():
    model = emnist_cnn()
    images = np.random.default_rng(0).random((3, 28, 28), np.float32)
    theta = model.init(jax.random.key(1))
    expected = Ordinary().apply({"params": model.unravel(theta)}, images)
    got = jax.vmap(lambda image: model.module.apply({"params": model.unravel(theta)}, image))(images)
    np.testing.assert_allclose(got, expected, atol=1e-4)
    losses = jax.vmap(model.loss, (None, 0))(theta, (images, np.arange(3)))
    by_numpy = [np.logaddexp.reduce(x) - x[i] for i, x in enumerate(expected)]
    np.testing.assert_allclose(losses, by_numpy, rtol=1e-4)
