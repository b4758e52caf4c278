"""The linear model, the MLP and the FCNN: sizes, losses in NumPy, and clipped sums in all strategies."""

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


@pytest.fixture(scope="module")
def gradients(net):
    compute_gradient = jax.jit(jax.grad(net.loss))
    theta = draw_theta(net)
    gradients = []
    for example in zip(PIXELS, LABELS, strict=True):
        gradients.append(np.float64(compute_gradient(theta, example)))
    return gradients


def draw_theta(model):
    return jax.random.normal(jax.random.key(2), (model.n_parameters,)) / 10


def test_sizes_are_the_papers():
    assert linear().n_parameters == 7_850
    assert mlp().n_parameters == 269_322 and mlp(600, classes=100).n_parameters == 245_348
    assert fcnn().n_parameters == 68 == fcnn().init(jax.random.key(0)).size


def test_the_loss_is_the_model_in_numpy(net):
    theta = draw_theta(net)
    tree = jax.tree.map(np.float64, net.unravel(theta))
    *hidden, last = [tree[name] for name in sorted(tree)]
    features = FLAT.astype(np.float64)
    for layer in hidden:
        features = np.maximum(features @ layer["kernel"] + layer["bias"], 0)
    logits = features @ last["kernel"] + last["bias"]
    expected = np.logaddexp.reduce(logits, axis=1) - logits[np.arange(EXAMPLES), LABELS]

    for inputs in (PIXELS, FLAT):
        losses = jax.vmap(net.loss, (None, 0))(theta, (inputs, LABELS))
        np.testing.assert_allclose(losses, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "strategy", mostly_slow(["book_keeping", "unfolded", "unfolded, flat", "per_example"], quick=2)
)
def test_clipped_sums_are_those_of_a_loop_over_gradients(net, gradients, strategy):
    parts = (net.module, net.unravel, net.criterion)
    block_bytes = 4 * 784 * 4  # of a few examples
    clipped_sum, features = {
        "book_keeping": (base.book_keeping(*parts), FLAT),
        "unfolded": (layerwise.unfolded_book_keeping(*parts, block_bytes), PIXELS),
        "unfolded, flat": (layerwise.unfolded_book_keeping(*parts, block_bytes), FLAT),
        "per_example": (base.per_example(net.loss), PIXELS),
    }[strategy]
    clipped_sum = jax.jit(clipped_sum)
    batch = (jnp.asarray(features), jnp.asarray(LABELS))

    norms = [np.linalg.norm(gradient) for gradient in gradients]
    for clipping_norm in (min(norms) / 10, np.median(norms), np.inf):
        expected = 0
        for gradient, norm in zip(gradients, norms, strict=True):
            expected = expected + gradient * min(1, clipping_norm / norm)
        largest = min(clipping_norm, max(norms))
        got = clipped_sum(draw_theta(net), batch, clipping_norm)
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=2e-5 * largest)


def _compute_logistic_slope(z, y):
    return 1 / (1 + np.exp(-z)) - y


@pytest.mark.parametrize(
    ("model", "targets", "compute_slope"),
    [
        (logistic(8), [0, 1, 1, 0, 1], _compute_logistic_slope),
        (least_squares(8), [0.2, 3, -2, 0, 9], np.subtract),
    ],
)
def test_a_linear_models_clipped_sum_clips_the_slope_of_its_scalar(model, targets, compute_slope):
    x = np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32)
    x[3] = 0
    theta = draw_theta(model) * 9
    y = np.asarray(targets, np.float32)
    assert model.n_parameters == 8

    with np.errstate(divide="ignore"):
        limits = 0.5 / np.linalg.norm(x, axis=1)
    slopes = compute_slope(x @ np.asarray(theta), y)
    slopes = np.clip(slopes, -limits, limits)
    strategies = (
        base.per_example(model.loss),
        layerwise.unfolded_book_keeping(model.module, model.unravel, model.criterion, 1 << 20),
    )
    for clipped_sum in strategies:
        got = jax.jit(clipped_sum)(theta, (jnp.asarray(x), jnp.asarray(y)), 0.5)
        np.testing.assert_allclose(got, slopes @ x, atol=1e-5)
    assert (np.abs(slopes) < limits).any()
    assert (np.abs(slopes) == limits).any()


cross_entropy = optax.softmax_cross_entropy_with_integer_labels
LOGITS = np.random.default_rng(0).normal(scale=4, size=(50, 2)).astype(np.float32)
BITS = np.arange(50) % 2


@pytest.mark.slow
def test_initialisation_is_lecun_normal_with_zero_biases(model):
    thetas = jax.jit(jax.vmap(model.init))(jax.random.split(jax.random.key(0), 400))
    tree = jax.vmap(model.unravel)(thetas)
    layers = {layer["kernel"].shape[1:]: layer for layer in tree.values()}
    assert set(layers) == {(8, 6), (6, 2)}
    for (inputs, _), layer in layers.items():
        assert not np.any(layer["bias"])
        np.testing.assert_allclose(np.var(layer["kernel"]), 1 / inputs, rtol=0.06)
        assert abs(np.mean(layer["kernel"])) < 0.02
    assert len(np.unique(thetas, axis=0)) == 400
    np.testing.assert_array_equal(model.init(jax.random.key(3)), model.init(jax.random.key(3)))


def test_loss_is_the_network_in_numpy(model, data):
    theta = np.random.default_rng(1).normal(size=68).astype(np.float32)
    tree = jax.tree.map(np.float64, model.unravel(jnp.asarray(theta)))
    hidden, last = sorted(tree.values(), key=lambda layer: -layer["kernel"].shape[1])
    x = np.asarray(data[0], np.float64)
    y = np.asarray(data[1])
    activations = np.maximum(x @ hidden["kernel"] + hidden["bias"], 0)
    logits = activations @ last["kernel"] + last["bias"]
    expected = np.logaddexp(*logits.T) - logits[np.arange(len(y)), y]
    losses = jax.jit(jax.vmap(model.loss, (None, 0)))(theta, data)
    np.testing.assert_allclose(losses, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_criterion_is_softmax_cross_entropy(dtype):
    ours = jax.jit(jax.vmap(jax.value_and_grad(two_logit_cross_entropy)))
    optaxs = jax.jit(jax.vmap(jax.value_and_grad(cross_entropy)))
    value, gradient = ours(LOGITS, BITS.astype(dtype))
    expected_value, expected_gradient = optaxs(LOGITS, BITS)
    np.testing.assert_allclose(value, expected_value, rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_the_criterion_scales_with_what_comes_in():
    def scale_ours(logits):
        return 3 * two_logit_cross_entropy(2 * logits, 1)

    def scale_optaxs(logits):
        return 3 * cross_entropy(2 * logits, 1)

    expected = jax.grad(scale_optaxs)(LOGITS[0])
    np.testing.assert_allclose(jax.grad(scale_ours)(LOGITS[0]), expected, rtol=1e-5)


@pytest.mark.parametrize("margin", [0.0, 30.0, 1e4, 1e30])
@pytest.mark.parametrize("sign", [1, -1])
def test_extreme_logits(margin, sign):
    logits = jnp.array([0.0, sign * margin], jnp.float32)
    for label in (0, 1):
        value, gradient = jax.value_and_grad(two_logit_cross_entropy)(logits, label)
        expected = np.logaddexp(0, (1 - 2 * label) * sign * margin)
        np.testing.assert_allclose(value, expected, atol=1e-6)
        assert np.isfinite(gradient).all()
        np.testing.assert_allclose(gradient.sum(), 0, atol=1e-7)
