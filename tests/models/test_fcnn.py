"""The network against NumPy, its criterion against Optax, and the flat vector against the tree."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from audit.model import flat_model
from models.dense import FCNN, fcnn, two_logit_cross_entropy

theirs = optax.softmax_cross_entropy_with_integer_labels
LOGITS = np.random.default_rng(0).normal(scale=4, size=(50, 2)).astype(np.float32)
LABELS = np.arange(50) % 2


def test_initialisation_is_lecun_normal_with_zero_biases(model):
    thetas = jax.jit(jax.vmap(model.init))(jax.random.split(jax.random.key(0), 400))
    tree = jax.vmap(model.unravel)(thetas)
    layers = {kernel["kernel"].shape[1:]: kernel for kernel in tree.values()}
    assert set(layers) == {(8, 6), (6, 2)}
    for (inputs, _), layer in layers.items():
        assert not np.any(layer["bias"])
        np.testing.assert_allclose(np.var(layer["kernel"]), 1 / inputs, rtol=0.06)
        assert abs(np.mean(layer["kernel"])) < 0.02
    assert len(np.unique(thetas, axis=0)) == 400
    np.testing.assert_array_equal(model.init(jax.random.key(3)), model.init(jax.random.key(3)))


def test_loss_is_the_network_in_numpy(model, data):
    theta = np.random.default_rng(1).normal(size=68).astype(np.float32)
    tree = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), model.unravel(jnp.asarray(theta)))
    hidden, last = sorted(tree.values(), key=lambda layer: -layer["kernel"].shape[1])
    x, y = np.asarray(data[0], np.float64), np.asarray(data[1])
    logits = np.maximum(x @ hidden["kernel"] + hidden["bias"], 0) @ last["kernel"] + last["bias"]
    expected = np.logaddexp(*logits.T) - logits[np.arange(len(y)), y]
    losses = jax.jit(jax.vmap(model.loss, (None, 0)))(theta, data)
    np.testing.assert_allclose(losses, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_criterion_is_softmax_cross_entropy(dtype):
    ours = jax.jit(jax.vmap(jax.value_and_grad(two_logit_cross_entropy)))(LOGITS, LABELS.astype(dtype))
    value, gradient = jax.jit(jax.vmap(jax.value_and_grad(theirs)))(LOGITS, LABELS)
    np.testing.assert_allclose(ours[0], value, rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(ours[1], gradient, rtol=1e-5, atol=1e-6)


def test_the_criterion_scales_with_what_comes_in(model):
    def scaled(logits):
        return 3 * two_logit_cross_entropy(2 * logits, 1)

    expected = jax.grad(lambda logits: 3 * theirs(2 * logits, 1))(LOGITS[0])
    np.testing.assert_allclose(jax.grad(scaled)(LOGITS[0]), expected, rtol=1e-5)
    example, key = jnp.zeros(8), jax.random.key(5)
    model, module = flat_model(FCNN(), example, two_logit_cross_entropy), FCNN()
    tree = module.init(key, example)["params"]
    jax.tree.map(np.testing.assert_array_equal, model.unravel(model.init(key)), tree)
    x = jnp.arange(8.0)
    loss = two_logit_cross_entropy(module.apply({"params": tree}, x), 1)
    np.testing.assert_allclose(model.loss(model.init(key), (x, 1)), loss, rtol=1e-6)
    assert model.n_parameters == 68
    assert fcnn(3).n_parameters == 3 * 6 + 6 + 6 * 2 + 2
    assert model.init(jax.random.key(0)).shape == (68,)


@pytest.mark.parametrize("margin", [0.0, 30.0, 1e4, 1e30])
@pytest.mark.parametrize("sign", [1, -1])
def test_extreme_logits(margin, sign):
    logits = jnp.array([0.0, sign * margin], jnp.float32)
    for label in (0, 1):
        value, gradient = jax.value_and_grad(two_logit_cross_entropy)(logits, label)
        np.testing.assert_allclose(value, np.logaddexp(0, (1 - 2 * label) * sign * margin), atol=1e-6)
        assert np.isfinite(gradient).all()
        np.testing.assert_allclose(gradient.sum(), 0, atol=1e-7)
