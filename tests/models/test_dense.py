"""The linear model and the MLP: sizes, losses in NumPy, and clipped sums in all strategies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from audit.mechanism.clipping import base, dense, layerwise
from models.data.images import FASHION_MNIST_MEAN, FASHION_MNIST_STD
from models.dense import linear, mlp

EXAMPLES = 9
PIXELS = np.random.default_rng(0).integers(0, 256, (EXAMPLES, 28, 28), np.uint8)
LABELS = np.random.default_rng(1).integers(0, 10, EXAMPLES, np.int32)
FLAT = PIXELS.reshape(EXAMPLES, -1) / 255
FLAT = ((FLAT - FASHION_MNIST_MEAN) / FASHION_MNIST_STD).astype(np.float32)  # normalised by NumPy


@pytest.fixture(scope="module", params=[linear, mlp])
def net(request):
    return request.param()


@pytest.fixture(scope="module")
def gradients(net):
    gradient, theta = jax.jit(jax.grad(net.loss)), theta_of(net)
    return [np.float64(gradient(theta, example)) for example in zip(PIXELS, LABELS, strict=True)]


def theta_of(model):
    return jax.random.normal(jax.random.key(2), (model.n_parameters,)) / 10


@pytest.mark.parametrize(
    ("model", "size"),
    [
        *((linear(), 7_850), (linear(600, 100), 600 * 100 + 100), (mlp(), 269_322)),
        (mlp(600, classes=100), 600 * 256 + 256 + 256 * 256 + 256 + 256 * 100 + 100),
        (mlp(3, (5,), 2), 3 * 5 + 5 + 5 * 2 + 2),
    ],
)
def test_parameters(model, size):
    assert model.n_parameters == size == model.init(jax.random.key(0)).size


def test_the_loss_is_the_model_in_numpy(net):
    theta = theta_of(net)
    *hidden, last = (jax.tree.map(np.float64, layer) for _, layer in sorted(net.unravel(theta).items()))
    features = FLAT.astype(np.float64)
    for layer in hidden:
        features = np.maximum(features @ layer["kernel"] + layer["bias"], 0)
    logits = features @ last["kernel"] + last["bias"]
    expected = np.logaddexp.reduce(logits, axis=1) - logits[np.arange(EXAMPLES), LABELS]
    for features in (PIXELS, FLAT):
        losses = jax.vmap(net.loss, (None, 0))(theta, (features, LABELS))
        np.testing.assert_allclose(losses, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("strategy", ["book_keeping", "unfolded", "unfolded, flat", "per_example"])
def test_clipped_sums_are_those_of_a_loop_over_gradients(net, gradients, strategy):
    norms, parts = [*map(np.linalg.norm, gradients)], (net.module, net.unravel, net.criterion)
    block_bytes = 4 * 784 * 4  # of a few examples
    clipped_sum, features = {
        "book_keeping": (dense.book_keeping(*parts), FLAT),
        "unfolded": (layerwise.unfolded_book_keeping(*parts, block_bytes), PIXELS),
        "unfolded, flat": (layerwise.unfolded_book_keeping(*parts, block_bytes), FLAT),
        "per_example": (base.per_example(net.loss), PIXELS),
    }[strategy]
    clipped_sum, batch = jax.jit(clipped_sum), (jnp.asarray(features), jnp.asarray(LABELS))
    for clipping_norm in (min(norms) / 10, np.median(norms), np.inf):
        clipped = [g * min(1, clipping_norm / norm) for g, norm in zip(gradients, norms, strict=True)]
        got = clipped_sum(theta_of(net), batch, clipping_norm)
        largest = min(clipping_norm, max(norms))
        np.testing.assert_allclose(got, sum(clipped), rtol=1e-4, atol=2e-5 * largest)
