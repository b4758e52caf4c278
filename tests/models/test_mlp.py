"""The MLP: its size, its loss in NumPy, and its clipped sums in all strategies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from audit.mechanism.clipping import base, dense, layerwise
from models.data.fashion_mnist import FASHION_MNIST_MEAN, FASHION_MNIST_STD
from models.mlp import mlp

EXAMPLES = 9


def images():
    return np.random.default_rng(0).integers(0, 256, (EXAMPLES, 28, 28), np.uint8)


def labels():
    return np.random.default_rng(1).integers(0, 10, EXAMPLES, np.int32)


def normalised(pixels):
    """Flat float features, as float64 NumPy normalises them."""
    return ((pixels.reshape(len(pixels), -1) / 255 - FASHION_MNIST_MEAN) / FASHION_MNIST_STD).astype(
        np.float32
    )


@pytest.fixture(scope="module")
def net():
    return mlp()


@pytest.fixture(scope="module")
def gradients(net):
    """One after the other, as float64."""
    gradient, theta = jax.jit(jax.grad(net.loss)), theta_of(net)
    return [np.float64(gradient(theta, example)) for example in zip(images(), labels(), strict=True)]


def theta_of(model):
    return jax.random.normal(jax.random.key(2), (model.n_parameters,)) / 10


def test_parameters(net):
    assert net.n_parameters == 269_322 == net.init(jax.random.key(0)).size
    assert mlp(600, classes=100).n_parameters == 600 * 256 + 256 + 256 * 256 + 256 + 256 * 100 + 100
    assert mlp(3, (5,), 2).n_parameters == 3 * 5 + 5 + 5 * 2 + 2


def test_the_loss_is_the_model_in_numpy(net):
    pixels, y = images(), labels()
    theta = theta_of(net)
    first, second, last = (jax.tree.map(np.float64, layer) for _, layer in sorted(net.unravel(theta).items()))
    hidden = normalised(pixels).astype(np.float64)
    for layer in (first, second):
        hidden = np.maximum(hidden @ layer["kernel"] + layer["bias"], 0)
    logits = hidden @ last["kernel"] + last["bias"]
    expected = np.logaddexp.reduce(logits, axis=1) - logits[np.arange(EXAMPLES), y]
    for features in (pixels, normalised(pixels)):
        losses = jax.vmap(net.loss, (None, 0))(theta, (features, y))
        np.testing.assert_allclose(losses, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("strategy", ["book_keeping", "unfolded", "unfolded, flat", "per_example"])
def test_clipped_sums_are_those_of_a_loop_over_gradients(net, gradients, strategy):
    pixels, y = images(), labels()
    norms = [np.linalg.norm(gradient) for gradient in gradients]
    clipped_sum, features = {
        "book_keeping": (
            dense.book_keeping(net.module, net.unravel, net.criterion),
            normalised(pixels),
        ),
        "unfolded": (unfolded(net), pixels),
        "unfolded, flat": (unfolded(net), normalised(pixels)),
        "per_example": (base.per_example(net.loss), pixels),
    }[strategy]
    clipped_sum, batch = jax.jit(clipped_sum), (jnp.asarray(features), jnp.asarray(y))
    for clipping_norm in (min(norms) / 10, np.median(norms), np.inf):
        clipped = [g * min(1, clipping_norm / norm) for g, norm in zip(gradients, norms, strict=True)]
        got = clipped_sum(theta_of(net), batch, clipping_norm)
        largest = min(clipping_norm, max(norms))
        np.testing.assert_allclose(got, sum(clipped), rtol=1e-4, atol=2e-5 * largest)


def unfolded(model, block_bytes=4 * 784 * 4):
    """In blocks of a few examples."""
    return layerwise.unfolded_book_keeping(model.module, model.unravel, model.criterion, block_bytes)
