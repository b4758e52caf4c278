"""The dense networks: sizes, losses in NumPy, and clipped sums in all strategies."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from audit.mechanism.clipping import base, layerwise
from models.data.images import FASHION_MNIST_MEAN, FASHION_MNIST_STD
from models.dense import fcnn, least_squares, linear, logistic, mlp, two_logit_cross_entropy
from tests.cases import mostly_slow

EXAMPLES = 9
PIXELS = np.random.default_rng(0).integers(0, 256, (EXAMPLES, 28, 28), np.uint8)
LABELS = np.random.default_rng(1).integers(0, 10, EXAMPLES, np.int32)
FLAT = PIXELS.reshape(EXAMPLES, -1) / 255
FLAT = ((FLAT - FASHION_MNIST_MEAN) / FASHION_MNIST_STD).astype(np.float32)  # normalised by NumPy


@pytest.fixture(scope="module", params=[linear, mlp])
def net(request):
    return request.param()


def draw_theta(model):
    return jax.random.normal(jax.random.key(2), (model.n_parameters,)) / 10


def compute_losses(tree, features, labels):
    """Returns softmax losses in float64 of dense layers with ReLU between them, the widest input first."""
    *hidden, last = sorted(tree.values(), key=lambda layer: -layer["kernel"].shape[0])
    for layer in hidden:
        features = np.maximum(features @ layer["kernel"] + layer["bias"], 0)
    logits = np.float64(features @ last["kernel"] + last["bias"])
    return np.logaddexp.reduce(logits, axis=1) - logits[np.arange(len(labels)), labels]


def test_sizes_are_the_papers():
    assert linear().n_parameters == 7_850
    assert mlp().n_parameters == 269_322 and mlp(600, classes=100).n_parameters == 245_348
    assert fcnn().n_parameters == 68 == fcnn().init(jax.random.key(0)).size


def test_the_loss_is_the_model_in_numpy(net, model, data):
    theta = draw_theta(net)
    tree = jax.tree.map(np.float64, net.unravel(theta))
    expected = compute_losses(tree, FLAT.astype(np.float64), LABELS)
    for inputs in (PIXELS, FLAT):
        losses = jax.vmap(net.loss, (None, 0))(theta, (inputs, LABELS))
        np.testing.assert_allclose(losses, expected, rtol=1e-4, atol=1e-4)
    theta = 10 * draw_theta(model)
    tree = jax.tree.map(np.float64, model.unravel(theta))
    expected = compute_losses(tree, np.float64(data[0]), np.asarray(data[1]))
    losses = jax.jit(jax.vmap(model.loss, (None, 0)))(theta, data)
    np.testing.assert_allclose(losses, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "strategy", mostly_slow(["book_keeping", "unfolded", "unfolded, flat", "per_example"], quick=2)
)
def test_clipped_sums_are_those_of_a_loop_over_gradients(net, strategy):
    parts = (net.module, net.unravel, net.criterion)
    block_bytes = 4 * 784 * 4  # of a few examples
    clipped_sum, features = {
        "book_keeping": (base.book_keeping(*parts), FLAT),
        "unfolded": (layerwise.unfolded_book_keeping(*parts, block_bytes), PIXELS),
        "unfolded, flat": (layerwise.unfolded_book_keeping(*parts, block_bytes), FLAT),
        "per_example": (base.per_example(net.loss), PIXELS),
    }[strategy]
    theta = draw_theta(net)
    gradients = jax.jit(jax.vmap(jax.grad(net.loss), (None, 0)))(theta, (PIXELS, LABELS))
    gradients = np.float64(gradients)
    norms = np.linalg.norm(gradients, axis=1)
    batch = (jnp.asarray(features), jnp.asarray(LABELS))
    for clipping_norm in (min(norms) / 10, np.median(norms), np.inf):
        expected = np.minimum(1, clipping_norm / norms) @ gradients
        largest = min(clipping_norm, max(norms))
        got = jax.jit(clipped_sum)(theta, batch, clipping_norm)
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=2e-5 * largest)


@pytest.mark.parametrize(
    ("model", "targets", "compute_slope"),
    [
        (logistic(8), [0, 1, 1, 0, 1], lambda z, y: 1 / (1 + np.exp(-z)) - y),
        (least_squares(8), [0.2, 3, -2, 0, 9], np.subtract),
    ],
)
def test_a_linear_models_clipped_sum_clips_the_slope_of_its_scalar(model, targets, compute_slope):
    x = np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32)
    x[3] = 0
    theta = draw_theta(model) * 9
    y = np.asarray(targets, np.float32)
    with np.errstate(divide="ignore"):
        limits = 0.5 / np.linalg.norm(x, axis=1)
    slopes = np.clip(compute_slope(x @ np.asarray(theta), y), -limits, limits)
    assert (np.abs(slopes) < limits).any() and (np.abs(slopes) == limits).any()
    for clipped_sum in (
        base.per_example(model.loss),
        layerwise.unfolded_book_keeping(model.module, model.unravel, model.criterion, 1 << 20),
    ):
        got = jax.jit(clipped_sum)(theta, (jnp.asarray(x), jnp.asarray(y)), 0.5)
        np.testing.assert_allclose(got, slopes @ x, atol=1e-5)


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
