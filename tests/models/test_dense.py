"""Tests the sizes of dense networks, and their losses against NumPy."""

import jax
import numpy as np
import optax
import pytest

from models.data.images import FASHION_MNIST_MEAN, FASHION_MNIST_STD
from models.dense import fcnn, mlp, two_logit_cross_entropy

EXAMPLES = 9
PIXELS = np.random.default_rng(0).integers(0, 256, (EXAMPLES, 28, 28), np.uint8)
LABELS = np.random.default_rng(1).integers(0, 10, EXAMPLES, np.int32)
FLAT = PIXELS.reshape(EXAMPLES, -1) / 255
FLAT = ((FLAT - FASHION_MNIST_MEAN) / FASHION_MNIST_STD).astype(np.float32)  # normalised by NumPy


@pytest.fixture(scope="module", params=[(), (256, 256)], ids=["linear", "mlp"])
def net(request):
    return mlp(widths=request.param)


def draw_theta(model):
    return jax.random.normal(jax.random.key(2), (model.n_parameters,)) / 10


def compute_losses(tree, features, labels):
    """Returns softmax losses in float64 of dense layers with ReLU between them."""
    *hidden, last = tree.values()
    for layer in hidden:
        features = np.maximum(features @ layer["kernel"] + layer["bias"], 0)
    logits = np.float64(features @ last["kernel"] + last["bias"])
    return np.logaddexp.reduce(logits, axis=1) - logits[np.arange(len(labels)), labels]


def test_sizes_are_the_papers():
    assert mlp(widths=()).n_parameters == 7_850
    assert mlp().n_parameters == 269_322 and mlp(600, classes=100).n_parameters == 245_348
    assert fcnn().n_parameters == 68 == fcnn().init(jax.random.key(0)).size


def test_the_loss_is_the_model_in_numpy(net):
    theta = draw_theta(net)
    tree = jax.tree.map(np.float64, net.unravel(theta))
    expected = compute_losses(tree, FLAT.astype(np.float64), LABELS)
    for inputs in (PIXELS, FLAT):
        losses = jax.vmap(net.loss, (None, 0))(theta, (inputs, LABELS))
        np.testing.assert_allclose(losses, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_the_criterion_is_softmax_cross_entropy_and_scales_with_what_comes_in(dtype):
    logits = np.random.default_rng(0).normal(scale=4, size=(50, 2)).astype(np.float32)
    bits = np.arange(50) % 2

    def differentiate(criterion, labels):
        scaled = jax.value_and_grad(lambda logits, label: 3 * criterion(2 * logits, label))
        return jax.jit(jax.vmap(scaled))(logits, labels)

    expected = differentiate(optax.softmax_cross_entropy_with_integer_labels, bits)
    for got, value in zip(
        differentiate(two_logit_cross_entropy, bits.astype(dtype)), expected, strict=True
    ):
        np.testing.assert_allclose(got, value, rtol=1e-5, atol=6e-6)
