"""Book-keeping by unfolding equals a sum over per-example gradients, whatever form a layer takes."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from audit.mechanism import unfolding
from audit.mechanism.clipping import per_example
from audit.mechanism.unfolding import unfolded_book_keeping
from models.base import flat_model
from models.convnet import PatchConvolution, convnet
from models.fcnn import fcnn


class Small(nn.Module):
    """One convolution, so wide or so long that its norm takes the form asked for."""

    features: int

    @nn.compact
    def __call__(self, x):
        x = nn.tanh(PatchConvolution(self.features, 3)(x))
        return nn.Dense(3)(x.reshape(*x.shape[:-3], -1))


def cross_entropy(logits, label):
    return jax.nn.logsumexp(logits) - logits[label]


def small(features, side):
    return flat_model(Small(features), jnp.zeros((side, side, 2)), cross_entropy)


def check(model, batch, norm, tolerance=2e-5):
    theta = model.init(jax.random.key(0))
    fast = jax.jit(unfolded_book_keeping(model.module, model.unravel, model.criterion))(theta, batch, norm)
    slow = jax.jit(per_example(model.loss))(theta, batch, norm)
    np.testing.assert_allclose(fast, slow, atol=tolerance * min(norm, 10.0) * len(batch[1]))
    return np.asarray(fast), np.asarray(slow)


def pictures(count, side, classes=3):
    rng = np.random.default_rng(0)
    return jnp.float32(rng.normal(size=(count, side, side, 2))), jnp.int32(rng.integers(0, classes, count))


@pytest.mark.parametrize("norm", [1e-3, 0.5, np.inf])
@pytest.mark.parametrize(("features", "side"), [(2, 9), (64, 4)], ids=["each", "gram"])
def test_both_forms_of_a_convolution(features, side, norm):
    length, k = (side - 2) ** 2, 18
    assert (k * features < length * (k + features)) == (features == 2)
    check(small(features, side), pictures(7, side), norm)


@pytest.mark.parametrize("norm", [0.1, 1.0])
def test_the_convnet(norm):
    rng = np.random.default_rng(1)
    batch = jnp.asarray(rng.integers(0, 256, (5, 32, 32, 3), np.uint8)), jnp.arange(5)
    fast, slow = check(convnet(), batch, norm)
    assert np.linalg.norm(fast) <= 5 * norm * 1.0001
    assert np.linalg.norm(fast - slow) < 1e-4 * np.linalg.norm(slow)


def test_dense_networks_and_models_at_once():
    model, rng = fcnn(), np.random.default_rng(2)
    batch = jnp.float32(rng.normal(size=(9, 8))), jnp.int32(rng.integers(0, 2, 9))
    thetas = jax.vmap(model.init)(jax.random.split(jax.random.key(0), 4))
    strategies = (
        unfolded_book_keeping(model.module, model.unravel, model.criterion), per_example(model.loss)
    )  # fmt: skip
    fast, slow = (jax.vmap(s, (0, None, None))(thetas, batch, 0.4) for s in strategies)
    np.testing.assert_allclose(fast, slow, atol=1e-5)


def test_a_wrong_norm_is_seen(monkeypatch):
    measure = unfolding._measure

    def no_bias(layer):
        square, contract = measure(layer)
        return square - jnp.sum(jnp.sum(layer.gradients, 1) ** 2, 1), contract

    monkeypatch.setattr(unfolding, "_measure", no_bias)
    with pytest.raises(AssertionError):
        check(small(2, 9), pictures(7, 9), 0.5)


class Twice(nn.Module):
    @nn.compact
    def __call__(self, x):
        layer = nn.Dense(8)
        return layer(layer(x))


class Normed(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.LayerNorm()(x))


@pytest.mark.parametrize("module", [Twice(), Normed()])
def test_other_parameters_are_refused(module):
    model = flat_model(module, jnp.zeros(8), cross_entropy)
    strategy = unfolded_book_keeping(model.module, model.unravel, model.criterion)
    with pytest.raises(TypeError, match="use per_example"):
        strategy(model.init(jax.random.key(0)), (jnp.zeros((2, 8)), jnp.zeros(2, jnp.int32)), 1.0)
