"""Convolutional networks: sizes, logits against Flax's own layers, and an audit whose answer is known."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from audit.adversaries.biased import random_biased_dimension
from audit.evidence import of_store
from audit.mechanism import base, dpsgd
from audit.mechanism.clipping.base import per_example
from audit.tasks.model import losses_by_example, losses_of_batch
from audit.training import game
from models.convolutional import ConvNet, ResNet, convnet, emnist_cnn, lenet, resnet18
from models.data.images import FASHION_MNIST_MEAN, FASHION_MNIST_STD


def draw_images(count, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 3), np.uint8)


@pytest.mark.slow
def test_it_has_62006_parameters_and_normalises_pixels():
    model = convnet()
    assert model.n_parameters == 62_006 == jax.eval_shape(model.init, jax.random.key(0)).size
    module = ConvNet()
    variables = jax.jit(module.init)(jax.random.key(0), draw_images(1)[0])
    apply = jax.jit(module.apply)
    dark = jnp.full((32, 32, 3), 0, jnp.uint8)
    light = jnp.full((32, 32, 3), 255, jnp.uint8)
    assert not np.allclose(apply(variables, dark), apply(variables, light))


def make_game(sigma, steps, seed):
    model = convnet()
    labels = np.random.default_rng(1).integers(0, 10, 64)
    data = (jnp.asarray(draw_images(64)), jnp.asarray(labels, jnp.int32))
    batches = base.fixed_shuffle(jax.random.key(3), 64, 4, steps)
    return game.Game(
        dpsgd.mechanism(dpsgd.DPSGD(per_example(model.loss))),
        random_biased_dimension(),
        model.init,
        data,
        base.Hyperparameters(0.01, 1.0, sigma),
        base.Schedule(batches, base.insertion_mask(steps, 1)),
        seed,
    )


@pytest.mark.slow
def test_genuine_gradients_do_not_interfere_and_mu_is_the_analytic_one():
    """In one of 62,006 coordinates the score is Gaussian with mu = sqrt(steps) / sigma."""
    steps = 10
    sigma = 2.0
    runs = 400
    (scores,) = game.play(make_game(sigma, steps, 0), [(0, runs)], runs)
    scores_in, scores_out = of_store.worlds(scores)
    unit = 0.01 / 4 * sigma * np.sqrt(steps)  # the noise's standard deviation in the final model
    mu = (scores_in.mean() - scores_out.mean()) / unit
    assert mu == pytest.approx(np.sqrt(steps) / sigma, abs=4 * np.sqrt(4 / runs))
    spread = np.sqrt((scores_in.var(ddof=1) + scores_out.var(ddof=1)) / 2)
    assert spread == pytest.approx(unit, rel=4 / np.sqrt(2 * runs))
    assert abs(spread / 1.25 - unit) > unit * 4 / np.sqrt(2 * runs)  # a wrong sigma would be seen


def test_parameters_are_the_papers():
    model = emnist_cnn()
    assert model.n_parameters == 1_206_590 == jax.eval_shape(model.init, jax.random.key(0)).size
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


def test_sizes_and_shapes():
    image = jnp.zeros((32, 32, 3), jnp.uint8)
    shapes = jax.eval_shape(ResNet().init, jax.random.key(0), image)["params"]
    assert sum(shape.size for shape in jax.tree.leaves(shapes)) == 11_173_962
    kernels = [shapes[f"Block_{i}"]["Conv_1"]["kernel"].shape for i in range(8)]
    assert kernels == [(3, 3, w, w) for w in (64, 64, 128, 128, 256, 256, 512, 512)]
    with_shortcut = [i for i in range(8) if "Conv_2" in shapes[f"Block_{i}"]]
    assert with_shortcut == [2, 4, 6]
    assert "bias" not in shapes["Conv_0"]


@pytest.mark.slow
def test_the_model_normalises_pixels_and_keeps_examples_apart():
    assert resnet18().n_parameters == 11_173_962
    module = ResNet((4, 8))
    images = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), np.uint8)
    variables = module.init(jax.random.key(0), images[0])
    together = module.apply(variables, images)
    assert together.shape == (3, 10)
    np.testing.assert_allclose(
        together[1], module.apply(variables, images[1]), rtol=1e-4, atol=1e-5
    )


IMAGES = np.random.default_rng(0).integers(0, 256, (5, 28, 28), np.uint8)
LABELS = np.arange(5)


class OrdinaryLeNet(nn.Module):
    """In Flax's layers, for a batch, flattened channels first as ours."""

    @nn.compact
    def __call__(self, images):
        pixels = images[..., None] / jnp.float32(255)
        x = (pixels - FASHION_MNIST_MEAN) / FASHION_MNIST_STD
        for i, features in enumerate((6, 16)):
            x = nn.Conv(features, (5, 5), padding="VALID", name=f"BatchLastConvolution_{i}")(x)
            x = nn.relu(nn.max_pool(x, (2, 2), (2, 2)))
        x = x.transpose(0, 3, 1, 2).reshape(len(x), -1)
        for width in (120, 84):
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(10)(x)


@pytest.fixture(scope="module")
def net():
    return lenet()


@pytest.fixture(scope="module")
def parameters(net):
    return net.unravel(jax.jit(net.init)(jax.random.key(1)))


@jax.jit
def _compute_expected(parameters):
    logits = OrdinaryLeNet().apply({"params": parameters}, IMAGES)
    return optax.softmax_cross_entropy_with_integer_labels(logits, LABELS)


@pytest.mark.slow
@pytest.mark.parametrize("losses", [losses_by_example, losses_of_batch])
def test_losses_are_those_of_flax_s_layers(net, parameters, losses):
    computed = jax.jit(losses(net))(parameters, (IMAGES, LABELS))
    np.testing.assert_allclose(computed, _compute_expected(parameters), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_gradients_are_those_of_flax_s_layers_and_losses_the_batch_s(net, parameters):
    batch_losses = jax.jit(losses_of_batch(net))
    loss = jax.jit(net.loss)

    def expected_mean(parameters):
        return _compute_expected(parameters).mean()

    def mean(parameters):
        return batch_losses(parameters, (IMAGES, LABELS)).mean()

    expected = jax.jit(jax.grad(expected_mean))(parameters)
    gradients = jax.jit(jax.grad(mean))(parameters)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), gradients, expected)

    theta = jax.jit(net.init)(jax.random.key(2))
    losses = [loss(theta, example) for example in zip(IMAGES, LABELS, strict=True)]
    together = batch_losses(net.unravel(theta), (IMAGES, LABELS))
    np.testing.assert_allclose(losses, together, rtol=1e-4)
    assert theta.shape == (net.n_parameters,) == (156 + 2416 + 30_840 + 10_164 + 850,)
