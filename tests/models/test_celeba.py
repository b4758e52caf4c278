"""CANIFE's networks for CelebA: their sizes, and that a canary's design can go through them."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from models import convolutional
from models.convolutional import ResNet

IMAGE = jnp.zeros((32, 32, 3), jnp.uint8)


def size(module):
    shapes = jax.eval_shape(module.init, jax.random.key(0), IMAGE)["params"]
    return sum(shape.size for shape in jax.tree.leaves(shapes))


def test_sizes_are_the_papers():
    assert convolutional.face_cnn().n_parameters == size(convolutional.FaceCNN()) == 29_282
    assert convolutional.face_resnet18().n_parameters == 11_177_538
    shapes = jax.eval_shape(convolutional.FaceCNN().init, jax.random.key(0), IMAGE)["params"]
    assert sorted(shapes) == ["Conv_0", "Conv_1", "Conv_2", "Conv_3", "Dense_0", "GroupNorm_0"]
    assert shapes["Dense_0"]["kernel"].shape == (288, 2)


def test_a_large_stem_quarters_the_image():
    module = ResNet((4, 8), classes=2, large_stem=True)
    shapes = jax.eval_shape(module.init, jax.random.key(0), IMAGE)["params"]
    assert shapes["Conv_0"]["kernel"].shape == (7, 7, 3, 4)
    with nn.intercept_methods(sizes := Sizes()):
        jax.eval_shape(lambda: module.init_with_output(jax.random.key(0), IMAGE))
    assert sizes.sides[:2] == [16, 8]


class Sizes:
    """The sides of the images that convolutions give, the stem's first."""

    def __init__(self):
        self.sides = []

    def __call__(self, call, args, kwargs, context):
        found = call(*args, **kwargs)
        if isinstance(context.module, nn.Conv) and context.method_name == "__call__":
            self.sides.append(found.shape[-2])
        return found


def test_the_cnn_has_second_derivatives_in_its_pixels():
    model = convolutional.face_cnn()
    theta = jax.jit(model.init)(jax.random.key(0))
    pixels = jnp.asarray(np.random.default_rng(0).uniform(0, 255, (32, 32, 3)), jnp.float32)

    def norm(pixels):
        return jnp.sum(jax.grad(model.loss)(theta, (pixels, jnp.int32(1))) ** 2)

    slope = jax.jit(jax.grad(norm))(pixels)
    assert jnp.isfinite(slope).all() and jnp.any(slope != 0)
