"""Frozen bodies agree with torchvision's own; their features are computed once and kept."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from audit.errors import InputError
from audit.tasks.task import checksum_of
from models.data.images import ImageDataset, load_cifar10
from models.data.sources import LoadedArrays
from models.dense import head
from models.pretrained import alexnet, features, mobilenet
from models.pretrained.features import Body, frozen_features

# What torch 2.13.0's torchvision gave on float32, by a script that is no part of this tree: resize
# (antialias=True) and normalize of float tensors, then the network in eval mode.
TORCHVISION = json.loads((Path(__file__).parent / "data" / "torchvision.json").read_text())


def made_up(shapes, seed=0):
    rng = np.random.default_rng(seed)
    arrays = {}
    for name, shape in shapes.items():
        values = rng.uniform(-1, 1, shape)
        if len(shape) > 1:
            values *= np.sqrt(6 / np.prod(shape[1:]))
        elif not name.endswith(("bias", "mean")):
            values = 1 + values / 2  # a norm's weight and variance
        arrays[name] = values.astype(np.float32)
    return arrays


def made_up_images(count):
    return np.random.default_rng(1).integers(0, 256, (count, 32, 32, 3), np.uint8)


def _compute(body, arrays, images, size):
    @jax.jit
    def apply(parameters, images):
        return body.apply(parameters, features.normalise_images(images, size))

    return np.asarray(apply(body.make_parameters(arrays), images))


def _require_close(computed, expected):
    """Compares the first features of each image, and two sums over all of them."""
    signs = np.where(np.arange(computed.shape[1]) % 3, 1, -1)
    sums = np.stack([computed.sum(1, dtype=float), computed @ signs.astype(float)], axis=1)
    np.testing.assert_allclose(computed[:, :8], expected["first"], rtol=1e-4, atol=2e-4)
    np.testing.assert_allclose(sums, expected["sums"], rtol=1e-4, atol=2e-2)


@pytest.mark.parametrize("size", [75, pytest.param(32, marks=pytest.mark.slow)])
def test_mobilenet_is_torchvisions_on_made_up_weights(size):
    computed = _compute(
        mobilenet.MOBILENET_V2, made_up(mobilenet.list_shapes()), made_up_images(2), size
    )
    _require_close(computed, TORCHVISION["mobilenet_v2 made up"][str(size)])


@pytest.mark.slow
@pytest.mark.parametrize("size", [63, 100, 224])
def test_alexnet_is_torchvisions_on_made_up_weights(size):
    computed = _compute(alexnet.ALEXNET, made_up(alexnet.list_shapes()), made_up_images(2), size)
    _require_close(computed, TORCHVISION["alexnet made up"][str(size)])


@pytest.mark.slow
def test_mobilenet_is_torchvisions_on_imagenets_weights_and_real_images():
    try:
        arrays = mobilenet.load().arrays
        images = load_cifar10().train_images[:4]
    except InputError as error:
        pytest.skip(str(error))
    for size, expected in TORCHVISION["mobilenet_v2 imagenet"].items():
        computed = _compute(mobilenet.MOBILENET_V2, arrays, images, int(size))
        _require_close(computed, expected)
        logits = computed @ arrays["classifier.1.weight"].T + arrays["classifier.1.bias"]
        np.testing.assert_allclose(logits[:, :8], expected["logits"], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("side", [1, 3, 6, 7, 13])
def test_alexnets_pooling_averages_torchs_windows(side):
    x = np.random.default_rng(0).normal(size=(1, side, side + 1, 2)).astype(np.float32)
    pooled = np.asarray(alexnet._average_pool(jnp.asarray(x)))
    for i in range(6):
        for j in range(6):
            rows = slice(i * side // 6, -(-(i + 1) * side // 6))
            columns = slice(j * (side + 1) // 6, -(-(j + 1) * (side + 1) // 6))
            np.testing.assert_allclose(pooled[0, i, j], x[0, rows, columns].mean((0, 1)), atol=1e-6)


def test_images_are_resized_with_half_pixel_centres_and_normalised_by_channel():
    row = np.array([10, 20, 40, 80], np.uint8)
    images = np.broadcast_to(row[None, :, None, None], (1, 4, 4, 3)).astype(np.uint8)
    doubled = np.array([10, 12.5, 17.5, 25, 35, 50, 70, 80]) / 255
    x = np.asarray(features.normalise_images(jnp.asarray(images), 8))
    for channel in range(3):
        normalised = (doubled - features.IMAGENET_MEAN[channel]) / features.IMAGENET_STD[channel]
        expected = np.broadcast_to(normalised[:, None], (8, 8))
        np.testing.assert_allclose(x[0, :, :, channel], expected, atol=1e-5)


def _images(count=20, seed=1, checksum="1" * 64):
    pictures = np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 3), np.uint8)
    labels = np.arange(count, dtype=np.int32) % 10
    return ImageDataset(pictures, labels, pictures[:2], labels[:2], "made up", checksum)


def _refuse_to_load():
    raise AssertionError("a mistake is seen before the images are fetched")


class _Calls:
    count = 0


def _body(calls, scale=1.0, checksum="a"):
    def apply(parameters, images):
        calls.count += 1
        return images.mean((1, 2)) * parameters

    def load(file):
        return LoadedArrays({"scale": np.float32([scale])}, f"weights {file}", checksum)

    return Body("mean", 3, 32, 32, 8, load, lambda arrays: arrays["scale"], apply)


def test_features_are_computed_once_and_then_read(tmp_path, capfd):
    calls = _Calls()
    images = _images()
    first = frozen_features(_body(calls), lambda: images, cache_dir=str(tmp_path))
    assert "mean features: 100%" in capfd.readouterr().err
    traced = calls.count
    again = frozen_features(_body(calls), lambda: images, cache_dir=str(tmp_path))
    assert calls.count == traced > 0 and capfd.readouterr().err == ""
    pixels = images.train_images / 255
    expected = ((pixels - features.IMAGENET_MEAN) / features.IMAGENET_STD).mean((1, 2))
    for data in (first, again):
        np.testing.assert_allclose(data.features, expected, atol=1e-5)
        np.testing.assert_array_equal(data.labels, images.train_labels)
        assert data.features.dtype == np.float32
    assert first.checksum == again.checksum and first.source == again.source
    assert first.source == "mean features at 32 x 32 (weights: weights None; images: made up)"
    assert [path.suffix for path in tmp_path.iterdir()] == [".npz"]


def test_the_checksum_tells_features_weights_images_and_size_apart(tmp_path):
    def checksum(scale=1.0, weights="a", size=32, **changes):
        body = _body(_Calls(), scale, weights)
        folder = str(tmp_path / f"{scale}")
        dataset = frozen_features(
            body, lambda: _images(**changes), input_size=size, cache_dir=folder
        )
        return dataset.checksum

    checksums = [
        checksum(),
        checksum(scale=2.0),
        checksum(weights="b"),
        checksum(size=40),
        checksum(checksum="2" * 64),
        checksum(seed=2, checksum="3" * 64),
    ]
    assert len(set(checksums)) == len(checksums)
    assert checksum() == checksums[0]


@pytest.mark.parametrize("harm", ["torn", "altered"])
def test_a_harmed_cache_is_set_aside_and_computed_anew(tmp_path, capfd, harm):
    first = frozen_features(_body(_Calls()), _images, cache_dir=str(tmp_path))
    (path,) = tmp_path.iterdir()
    if harm == "torn":
        path.write_bytes(path.read_bytes()[:300])
    else:
        with np.load(path) as archive:
            entries = dict(archive)
        np.savez(path, **(entries | {"features": entries["features"] + 1}))
    capfd.readouterr()
    again = frozen_features(_body(_Calls()), _images, cache_dir=str(tmp_path))
    assert "set aside" in capfd.readouterr().err and again.checksum == first.checksum
    np.testing.assert_array_equal(again.features, first.features)


def test_what_cannot_be_used_is_one_line(tmp_path):
    folder = str(tmp_path)
    for size in (0, 31, 513):
        with pytest.raises(InputError, match=f"`input_size={size}`: give 32 to 512"):
            frozen_features(_body(_Calls()), _refuse_to_load, input_size=size, cache_dir=folder)
    with pytest.raises(InputError, match="not finite"):
        frozen_features(_body(_Calls(), np.nan), _images, cache_dir=folder)
    with pytest.raises(InputError, match=r"alexnet-owt-7be5be79\.pth.*as `weights`"):
        frozen_features(alexnet.ALEXNET, _refuse_to_load, cache_dir=folder)
    assert not list(tmp_path.iterdir())


def test_weights_are_checked_and_those_of_another_network_refused(tmp_path):
    path = tmp_path / "other.safetensors"
    path.write_bytes(safetensors.numpy.save({"conv1.weight": np.ones((2, 2), np.float32)}))
    for body in (mobilenet.MOBILENET_V2, alexnet.ALEXNET):
        with pytest.raises(InputError, match=r"other.safetensors.*features.0.*is missing"):
            body.load(str(path))
    arrays = made_up(mobilenet.list_shapes())
    path = tmp_path / "m.safetensors"
    path.write_bytes(safetensors.numpy.save(arrays))
    loaded = mobilenet.load(str(path))
    assert loaded.source.endswith("m.safetensors (differs from the published mobilenet_v2)")
    assert loaded.checksum == checksum_of(arrays)
    model = head(1280)
    assert model.n_parameters == 12_810
    assert model.loss(jnp.zeros(12_810), (jnp.ones(1280), 3)) == pytest.approx(np.log(10))
