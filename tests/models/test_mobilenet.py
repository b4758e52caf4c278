"""Tests that the frozen layers agree with torchvision, and that features are computed once."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest

from models import mobilenet
from models.data.sources import LoadedArrays
from tests.cases import mostly_slow

# What torch 2.13.0's torchvision gave on float32, by a script that is no part of this tree: resize
# (antialias=True) and normalize of float tensors, then the network in eval mode.
TORCHVISION = json.loads((Path(__file__).parent / "data" / "torchvision.json").read_text())


SERIES = ((1, 16, 1), (6, 24, 2), (6, 32, 3), (6, 64, 4), (6, 96, 3), (6, 160, 3), (6, 320, 1))


def list_shapes():
    """Yields the kernels' shapes of the paper's Table 2: expansion, channels, how many."""
    channels = 32
    yield channels, 3, 3, 3
    for expansion, features, repeats in SERIES:
        for _ in range(repeats):
            hidden = expansion * channels
            if expansion > 1:
                yield hidden, channels, 1, 1
            yield hidden, 1, 3, 3
            yield features, hidden, 1, 1
            channels = features
    yield 1280, channels, 1, 1


def made_up():
    """Draws weights of torchvision's shapes, in the order of its file."""
    rng = np.random.default_rng(0)
    arrays = []
    for shape in list_shapes():
        kernel = rng.uniform(-1, 1, shape) * np.sqrt(6 / np.prod(shape[1:]))
        weight, bias, mean, variance = rng.uniform(-1, 1, (4, shape[0]))
        arrays += [kernel, 1 + weight / 2, bias, mean, 1 + variance / 2]
    arrays += [np.zeros(1), np.zeros(1)]  # of the classifier
    return {str(i): array.astype(np.float32) for i, array in enumerate(arrays)}


def compute(arrays, images, size):
    @jax.jit
    def apply(parameters, images):
        return mobilenet.apply(parameters, mobilenet.normalise_images(images, size))

    return np.asarray(apply(mobilenet.make_parameters(arrays), images))


def require_close(computed, expected):
    """Compares the first features of each image, and two sums over all of them."""
    signs = np.where(np.arange(computed.shape[1]) % 3, 1, -1)
    sums = np.stack([computed.sum(1, dtype=float), computed @ signs.astype(float)], axis=1)
    np.testing.assert_allclose(computed[:, :8], expected["first"], rtol=1e-4, atol=2e-4)
    np.testing.assert_allclose(sums, expected["sums"], rtol=1e-4, atol=2e-2)


@pytest.mark.slow
@pytest.mark.parametrize("size", mostly_slow([75, 32]))
def test_it_is_torchvisions_on_made_up_weights(size):
    images = np.random.default_rng(1).integers(0, 256, (2, 32, 32, 3), np.uint8)
    computed = compute(made_up(), images, size)
    require_close(computed, TORCHVISION["mobilenet_v2 made up"][str(size)])


@pytest.mark.slow
def test_features_are_computed_once_and_their_checksum_tells_images_and_weights(
    tmp_path, monkeypatch, capfd
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr(mobilenet, "SIZE", 32)
    weights = LoadedArrays(made_up(), "made up", "1" * 64)
    monkeypatch.setattr(mobilenet, "load_arrays", lambda recipe, user_file: weights)

    def load(seed):
        images = np.random.default_rng(seed).integers(0, 256, (12, 32, 32, 3), np.uint8)
        labels = np.arange(12) % 10
        path = tmp_path / f"{seed}.npz"
        splits = {"train_images": images, "train_labels": labels}
        np.savez(path, **splits, test_images=images, test_labels=labels)
        return mobilenet.load_features(str(path))

    first = load(0)
    assert "mobilenet_v2 features: 100%" in capfd.readouterr().err
    again = load(0)
    assert capfd.readouterr().err == ""
    assert first.features.shape == (12, 1280) and first.features.dtype == np.float32
    np.testing.assert_array_equal(first.features, again.features)
    assert first.checksum == again.checksum and first.source == again.source
    weights = weights._replace(checksum="2" * 64)
    assert len({first.checksum, load(0).checksum, load(1).checksum}) == 3
