"""Tests that layer-wise book-keeping equals a sum over per-example gradients, for all layers."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from audit.mechanism.clipping import layerwise
from audit.mechanism.clipping.base import UnknownLayer, per_example
from audit.mechanism.clipping.layerwise import layerwise_book_keeping
from audit.tasks.model import flat_model
from models.convolutional import Block, ConvNet, ResNet
from models.layers import Convolution, max_pool
from tests.cases import mostly_slow

EXAMPLES = 7


class ChannelsFirst(nn.Module):
    features: int

    @nn.compact
    def __call__(self, x):
        x = nn.tanh(Convolution(self.features, 3)(jnp.moveaxis(x, -1, 0)))
        return nn.Dense(3)(max_pool(x).reshape(-1))


class Flaxes(nn.Module):
    convolution: nn.Conv

    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.tanh(self.convolution(x)).reshape(-1))


class Normed(nn.Module):
    norm: nn.Module

    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.tanh(self.norm(nn.Dense(8)(x))).reshape(-1))


class Residual(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(jnp.mean(Block(4, 2)(Block(4, 1)(x)), axis=(0, 1)))


class Sequence(nn.Module):
    """Dense layers at every pixel, then attention of a kind: examples by rows must not mix."""

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(5)(x.reshape(-1, 2))
        return nn.Dense(3)(jnp.mean(nn.softmax(x @ x.T) @ x, axis=0))


class ByName(nn.Module):
    """Layers that get their inputs by name, and a normalisation that may also get a mask."""

    masked: bool = False

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(4)(inputs=nn.Conv(4, (3, 3))(inputs=x))
        mask = jnp.arange(4) < 3
        x = nn.LayerNorm()(x=x, mask=mask) if self.masked else nn.LayerNorm()(x=x)
        return nn.Dense(3)(x.mean((0, 1)))


def cross_entropy(logits, label):
    return jax.nn.logsumexp(logits) - logits[label]


def of(module, side=8):
    return flat_model(module, jnp.zeros((side, side, 2)), cross_entropy)


def pictures(side=8, count=EXAMPLES, classes=3):
    rng = np.random.default_rng(0)
    return jnp.float32(rng.normal(size=(count, side, side, 2))), jnp.int32(
        rng.integers(0, classes, count)
    )


def strategy(model, block_bytes=1 << 20):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layerwise, "_CPU_BLOCK", block_bytes)
        return layerwise_book_keeping(model.module, model.unravel, model.criterion)


def check(model, batch, norms, block_bytes=1 << 20, tolerance=2e-5):
    theta = model.init(jax.random.key(0))
    theta += 0.1 * jax.random.normal(
        jax.random.key(1), theta.shape
    )  # scales off 1 and biases off 0
    fast, slow = jax.jit(strategy(model, block_bytes)), jax.jit(per_example(model.loss))
    for norm in norms:
        expected = slow(theta, batch, norm)
        atol = tolerance * min(norm, 10.0) * len(batch[1])
        np.testing.assert_allclose(fast(theta, batch, norm), expected, atol=atol)
        assert np.linalg.norm(expected) <= len(batch[1]) * norm * 1.0001


@pytest.mark.parametrize(
    ("features", "side"),
    [(2, 10), pytest.param(64, 4, marks=pytest.mark.slow)],
    ids=["each", "gram"],
)
def test_both_forms_of_a_convolution(features, side):
    length, k = (side - 2) ** 2, 18
    assert (k * features < length * (k + features)) == (features == 2)
    norms = (1e-3, 0.5, np.inf)
    check(of(Flaxes(nn.Conv(features, (3, 3), padding="VALID")), side), pictures(side), norms)


SLOW = pytest.mark.slow
LAYERS = {
    "same": Flaxes(nn.Conv(4, (3, 3))),
    "stride 2, padding 1": Flaxes(nn.Conv(4, (3, 3), 2, 1)),
    "a point, stride 2, no bias": Flaxes(nn.Conv(4, (1, 1), (2, 2), 0, use_bias=False)),
    "oblong": Flaxes(nn.Conv(4, (3, 2), (1, 2), ((2, 0), (0, 1)))),
    "group": Normed(nn.GroupNorm(4)),
    "group, no bias": Normed(nn.GroupNorm(2, use_bias=False)),
    "group, over the image": Normed(nn.GroupNorm(4, reduction_axes=(-3, -2, -1))),
    "layer": Normed(nn.LayerNorm()),
    "sums of branches": pytest.param(Residual(), marks=SLOW),
    "layers at every pixel": Sequence(),
    "inputs by name": ByName(),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "module", [*LAYERS.values(), ChannelsFirst(3)], ids=[*LAYERS, "channels first"]
)
def test_layers_and_the_derivatives_of_their_clipped_sum_by_the_parameters(module):
    """Measured Lipschitz constants are read off these, both ways."""
    model = of(module)
    batch = pictures()
    theta = model.init(jax.random.key(0)) + 0.1
    w = jax.random.normal(jax.random.key(1), theta.shape)

    def differentiate(clipped_sum):
        value, pull = jax.vjp(lambda theta: clipped_sum(theta, batch, jnp.float32(1)), theta)
        _, push = jax.vjp(lambda w: pull(w)[0], jnp.zeros_like(theta))
        return value, np.stack([pull(w)[0], push(w)[0]])

    expected, slopes = differentiate(per_example(model.loss))
    found, measured = differentiate(strategy(model, block_bytes=1 << 14))
    np.testing.assert_allclose(found, expected, atol=1e-4)
    np.testing.assert_allclose(measured, slopes, atol=1e-4 * np.abs(slopes).max())


@pytest.mark.slow
@pytest.mark.parametrize("module", [ResNet((4, 8)), ConvNet()], ids=["resnet", "convnet"])
def test_networks_of_every_layer(module):
    images = np.random.default_rng(1).integers(0, 256, (3, 32, 32, 3), np.uint8)
    batch = (jnp.asarray(images), jnp.arange(3))
    check(flat_model(module, batch[0][0], cross_entropy), batch, (0.1, 1.0, 10.0))


@pytest.mark.parametrize("name", mostly_slow(["kernel", "scale", "bias"], quick=2))
def test_a_wrong_norm_is_seen(monkeypatch, name):
    find_gradients = layerwise.find_gradients

    def without(names, call, at_output):
        gradients = find_gradients(names, call, at_output)
        if name in gradients:
            zeros = jnp.zeros_like(gradients[name].squared_norms)
            gradients[name] = gradients[name]._replace(squared_norms=zeros)
        return gradients

    monkeypatch.setattr(layerwise, "find_gradients", without)
    with pytest.raises(AssertionError):
        check(of(Normed(nn.GroupNorm(4))), pictures(), (0.05,))


class Twice(nn.Module):
    @nn.compact
    def __call__(self, x):
        layer = nn.Dense(2)
        return layer(layer(x)).reshape(-1)


class Doubled(nn.Dense):
    def __call__(self, x):
        return 2 * super().__call__(x)


REFUSED = {
    "called twice": Twice(),
    "another's product": Normed(
        nn.Dense(4, dot_general=lambda *a, **k: -jax.lax.dot_general(*a, **k))
    ),
    "a subclass": Normed(Doubled(4)),
    "grouped": Flaxes(nn.Conv(4, (3, 3), feature_group_count=2)),
    "dilated": Flaxes(nn.Conv(4, (3, 3), kernel_dilation=2)),
    "circular": Flaxes(nn.Conv(4, (3, 3), padding="CIRCULAR")),
    "by instance": Normed(nn.InstanceNorm()),
    "masked": ByName(masked=True),
}


@pytest.mark.parametrize("name", mostly_slow(REFUSED, quick=4))
def test_other_layers_are_refused(name):
    model = of(REFUSED[name])
    theta, batch = model.init(jax.random.key(0)), pictures()
    with pytest.raises(UnknownLayer, match="this strategy supports only|is called twice"):
        strategy(model)(theta, batch, 1.0)
