"""ResNet18: its size, shapes, and that no example sees another."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.convolutional import ResNet, resnet18


def test_sizes_and_shapes():
    image = jnp.zeros((32, 32, 3), jnp.uint8)
    shapes = jax.eval_shape(ResNet().init, jax.random.key(0), image)["params"]
    assert sum(shape.size for shape in jax.tree.leaves(shapes)) == 11_173_962
    widths = [shapes[f"Block_{i}"]["Conv_1"]["kernel"].shape for i in range(8)]
    assert widths == [(3, 3, w, w) for w in (64, 64, 128, 128, 256, 256, 512, 512)]
    shortcuts = [i for i in range(8) if "Conv_2" in shapes[f"Block_{i}"]]
    assert shortcuts == [2, 4, 6]
    assert "bias" not in shapes["Conv_0"]


@pytest.mark.slow
def test_the_model_normalises_pixels_and_keeps_examples_apart():
    assert resnet18().n_parameters == 11_173_962
    module = ResNet((4, 8))
    images = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), np.uint8)
    variables = module.init(jax.random.key(0), images[0])
    together = module.apply(variables, images)
    assert together.shape == (3, 10)
    np.testing.assert_allclose(together[1], module.apply(variables, images[1]), rtol=1e-4, atol=1e-5)
